"""Figures of several forecasts: small multiples, overlay, distributions side by side.

All share one value axis. Bars are counted from the origin, or lie on one time axis where all come
from one dataset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.services.compare import Compared
from app.ui import format as fmt
from app.ui.chart_style import ACCENT, QUIET, finish, translucent, value_axis

COLOURS = (
    ACCENT,
    "#dd8a1f",
    "#4f7fc9",
    "#b0588f",
    "#8a8f2d",
    "#7b61c9",
    "#c4573f",
    "#4a9cb8",
)
BANDS = ((0.95, 0.13), (0.80, 0.2), (0.50, 0.3))
PANEL_HEIGHT = 250
TICKS = 7
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Scale:
    """How values are shown: prices, or changes from the last close in percent."""

    relative: bool
    decimals: int

    def of(self, one: Compared, prices: Any) -> Floats:
        values = np.asarray(prices, np.float64)
        return 100 * (values / one.forecast.last_close - 1) if self.relative else values

    def words(self, value: float) -> str:
        return fmt.change(value / 100) if self.relative else fmt.price(value, self.decimals)

    @property
    def axis(self) -> dict[str, Any]:
        if self.relative:
            return value_axis("+.3~g") | {"ticksuffix": " %"}
        return value_axis(f",.{self.decimals}f")


def scale_for(compared: Sequence[Compared], relative: bool) -> Scale:
    """The scale for these forecasts; the digits are those of their data."""
    closes = [one.context["close"] for one in compared]
    return Scale(relative, max((fmt.price_decimals(close) for close in closes), default=2))


def bands(one: Compared, scale: Scale) -> dict[float, tuple[Floats, Floats]]:
    """Lower and upper edge of each band, [H+1] from the origin on."""
    found = {}
    for share, _ in BANDS:
        tail = (1 - share) / 2
        edges = one.forecast.quantiles([tail, 1 - tail])
        low, high = (scale.of(one, [one.forecast.last_close, *edge]) for edge in edges)
        found[share] = (low, high)
    return found


def value_range(compared: Sequence[Compared], scale: Scale) -> list[float]:
    """One y range that holds every band, context and actual bar."""
    ends: list[float] = []
    for one in compared:
        low, high = bands(one, scale)[BANDS[0][0]]
        known = scale.of(one, [*one.context["close"], *one.actual["close"]])
        ends += [low.min(), high.max(), known.min(), known.max()]
    margin = 0.04 * (max(ends) - min(ends)) or 1.0
    return [float(min(ends) - margin), float(max(ends) + margin)]


# ---------------------------------------------------------------- small multiples


def small_multiples(
    compared: Sequence[Compared], scale: Scale, *, step: int, entity: str
) -> go.Figure:
    """One panel a forecast, bars counted from its origin, one y range for all."""
    columns = columns_for(len(compared))
    rows = -(-len(compared) // columns)
    figure = make_subplots(
        rows=rows,
        cols=columns,
        shared_xaxes="all",
        shared_yaxes="all",
        subplot_titles=[_short(one.label) for one in compared],
        horizontal_spacing=0.015,
        vertical_spacing=0.4 / (rows * 2) if rows > 1 else 0.1,
    )
    for index, one in enumerate(compared):
        place = {"row": index // columns + 1, "col": index % columns + 1}
        figure.layout.annotations[index].font = {"size": 12, "color": COLOURS[index]}
        for trace in _panel(one, scale, COLOURS[index]):
            figure.add_trace(trace, **place)
        figure.add_vline(x=0, line={"color": QUIET, "width": 1, "dash": "dot"}, **place)
        if step + 1 < len(one.forecast.timestamps):
            line = {"color": COLOURS[index], "width": 1, "dash": "dash"}
            figure.add_vline(x=step + 1, line=line, **place)
    figure.update_xaxes(showgrid=False, zeroline=False, nticks=9)
    figure.update_yaxes(**scale.axis | {"side": "left", "range": value_range(compared, scale)})
    finish(figure, height=PANEL_HEIGHT * rows + 40, entity=entity, legend=False)
    return figure.update_layout(margin={"t": 34}, hovermode="closest")


def columns_for(count: int) -> int:
    """How many panels stand in a row: at most four, and rows of like length."""
    return {5: 3, 6: 3}.get(count, min(count, 4))


def _short(label: str, longest: int = 44) -> str:
    return label if len(label) <= longest else f"{label[: longest - 1]}…"


def _panel(one: Compared, scale: Scale, colour: str) -> list[go.Scatter]:
    past, horizon = len(one.context), one.forecast.paths.shape[1]
    ahead = list(range(horizon + 1))
    known = scale.of(one, one.context["close"])
    traces = [_line(list(range(1 - past, 1)), known, QUIET, "context", 1.2)]
    for share, opacity in BANDS:
        traces += _band(ahead, bands(one, scale)[share], colour, opacity, f"{100 * share:.0f} %")
    traces.append(_median(one, scale, ahead, colour))
    if len(one.actual):
        actual = scale.of(one, [one.forecast.last_close, *one.actual["close"]])
        traces.append(_line(list(range(len(actual))), actual, QUIET, "actual", 2.2))
    return traces


def _line(x: Sequence[Any], y: Floats, colour: str, name: str, width: float) -> go.Scatter:
    line = {"color": colour, "width": width}
    return go.Scatter(x=list(x), y=y, mode="lines", name=name, line=line, hoverinfo="skip")


def _band(
    x: Sequence[Any], edges: tuple[Floats, Floats], colour: str, opacity: float, name: str
) -> list[go.Scatter]:
    common = {"x": list(x), "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    return [
        go.Scatter(y=edges[0], name=f"{name} low", showlegend=False, **common),
        go.Scatter(
            y=edges[1],
            name=f"{name} high",
            showlegend=False,
            fill="tonexty",
            fillcolor=translucent(colour, opacity),
            **common,
        ),
    ]


def _median(one: Compared, scale: Scale, x: Sequence[Any], colour: str) -> go.Scatter:
    median = scale.of(one, [one.forecast.last_close, *one.forecast.quantiles([0.5])[0]])
    low, high = bands(one, scale)[0.8]
    stamps = [one.forecast.origin, *one.forecast.timestamps]
    texts = [
        f"<b>{fmt.plain_html(one.label)}</b><br>{fmt.bar_moment(stamp, one.seconds)} · bar {bar}"
        f"<br>median {scale.words(median[bar])}"
        f"<br>80 %: {scale.words(low[bar])} to {scale.words(high[bar])}"
        for bar, stamp in enumerate(stamps)
    ]
    return go.Scatter(
        x=list(x),
        y=median,
        mode="lines",
        name=one.label,
        line={"color": colour, "width": 2},
        text=texts,
        hoverinfo="text",
    )


# ---------------------------------------------------------------- overlay


def overlay(compared: Sequence[Compared], scale: Scale, *, step: int, entity: str) -> go.Figure:
    """Medians and 80 % bands over each other, with what is known."""
    axis = _Axis(compared)
    figure = go.Figure()
    for one, colour in zip(compared, COLOURS, strict=False):
        figure.add_traces(_band(axis.ahead(one), bands(one, scale)[0.8], colour, 0.16, "80 %"))
    for x, y in axis.known(compared, scale):
        figure.add_trace(_line(x, y, QUIET, "known bars", 1.8).update(showlegend=False))
    for one, colour in zip(compared, COLOURS, strict=False):
        figure.add_trace(_median(one, scale, axis.ahead(one), colour))
    for origin in sorted({axis.ahead(one)[0] for one in compared}):
        figure.add_vline(x=origin, line={"color": QUIET, "width": 1, "dash": "dot"})
    bars = {places[step + 1] for one in compared if step + 2 < len(places := axis.ahead(one))}
    for bar in sorted(bars):
        figure.add_vline(x=bar, line={"color": ACCENT, "width": 1, "dash": "dash"})
    figure.update_xaxes(showgrid=False, zeroline=False, **axis.ticks)
    figure.update_layout(yaxis=scale.axis | {"range": value_range(compared, scale)})
    finish(figure, height=460, entity=entity)
    return figure.update_layout(hovermode="closest", legend={"traceorder": "normal"})


class _Axis:
    """Places of bars: on one gap-free time axis for one dataset, else counted from the origin."""

    def __init__(self, compared: Sequence[Compared]) -> None:
        self.shared = len({one.row.dataset_id for one in compared}) == 1
        stamps: set[pd.Timestamp] = set()
        for one in compared:
            stamps |= {*one.context["timestamps"], *one.actual["timestamps"]}
            stamps |= {one.forecast.origin, *one.forecast.timestamps}
        self._order = sorted(stamps)
        self._place = {stamp: place for place, stamp in enumerate(self._order)}
        self._seconds = compared[0].seconds if compared else 86_400.0

    def ahead(self, one: Compared) -> list[int]:
        """Places of the origin and the horizon, [H+1]."""
        if not self.shared:
            return list(range(one.forecast.paths.shape[1] + 1))
        return [self._place[stamp] for stamp in (one.forecast.origin, *one.forecast.timestamps)]

    def known(self, compared: Sequence[Compared], scale: Scale) -> list[tuple[list[int], Floats]]:
        """Places and values of known closes: once for one dataset in prices, else of each."""
        if self.shared and not scale.relative:
            frames = [frame for one in compared for frame in (one.context, one.actual)]
            known = pd.concat(frames).drop_duplicates("timestamps").sort_values("timestamps")
            return [([self._place[stamp] for stamp in known["timestamps"]],
                     known["close"].to_numpy(np.float64))]  # fmt: skip
        lines = []
        for one in compared:
            frame = pd.concat([one.context, one.actual])
            start = 1 - len(one.context)
            places = (
                [self._place[stamp] for stamp in frame["timestamps"]]
                if self.shared
                else list(range(start, start + len(frame)))
            )
            lines.append((places, scale.of(one, frame["close"])))
        return lines

    @property
    def ticks(self) -> dict[str, Any]:
        if not self.shared:
            return {"title": {"text": "bars from the origin"}}
        last = len(self._order) - 1
        places = sorted({round(last * part / TICKS) for part in range(TICKS + 1)})
        texts = [fmt.bar_time(self._order[place], self._seconds) for place in places]
        return {"tickvals": places, "ticktext": texts, "range": [-0.75, last + 0.75]}


# ---------------------------------------------------------------- distributions


def distributions(
    compared: Sequence[Compared], scale: Scale, *, step: int, entity: str
) -> go.Figure:
    """Closes at bar `step` (from 0) as violins side by side, with the actual close where known."""
    figure = go.Figure()
    for one, colour in zip(compared, COLOURS, strict=False):
        at = min(step, one.forecast.paths.shape[1] - 1)
        values = scale.of(one, one.forecast.channel("close")[:, at])
        figure.add_trace(_violin(one, values, colour))
        known = one.actual[one.actual["timestamps"] == one.forecast.timestamps[at]]
        if len(known):
            value = scale.of(one, known["close"])
            marker = {"symbol": "diamond", "size": 10, "color": QUIET, "line": {"width": 1}}
            texts = [f"actual close {scale.words(float(value[0]))}"]
            figure.add_trace(
                go.Scatter(
                    x=[one.label],
                    y=value,
                    mode="markers",
                    marker=marker,
                    name="actual",
                    hovertext=texts,
                    hoverinfo="text",
                )
            )
    figure.update_xaxes(showgrid=False, tickangle=0)
    figure.update_layout(yaxis=scale.axis)
    finish(figure, height=360, entity=entity, legend=False)
    return figure.update_layout(hovermode="closest")


def _violin(one: Compared, values: Floats, colour: str) -> go.Violin:
    return go.Violin(
        x=[one.label] * len(values),
        y=values,
        name=one.label,
        line={"color": colour, "width": 1.4},
        fillcolor=translucent(colour, 0.25),
        box={"visible": True, "width": 0.18},
        points=False,
        spanmode="hard",
        hoveron="violins",
        hoverinfo="y",
    )
