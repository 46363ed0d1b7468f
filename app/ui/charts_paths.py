"""Figures of one path and of one bar: a future as candles, a distribution, chances of a target.

Letters: S paths, H horizon.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from app.ui import format as fmt
from app.ui.chart_style import (
    ACCENT,
    QUIET,
    Palette,
    finish,
    ordinal_axis,
    step_seconds,
    time_labels,
    translucent,
    value_axis,
)
from app.ui.charts import candle_trace
from kronos_core.data.bars import CHANNELS
from kronos_core.forecast.forecast import Forecast

TARGET = "#b0588f"
BINS = 40
EDGE = (0.005, 0.995)  # quantiles that the y range of single paths spans


def path_bars(forecast: Forecast, path: int) -> pd.DataFrame:
    """One path as bars, [H]."""
    frame = pd.DataFrame(forecast.candles[path], columns=list(CHANNELS))
    frame.insert(0, "timestamps", forecast.timestamps)
    return frame


def single_path(
    context: pd.DataFrame,
    forecast: Forecast,
    path: int,
    *,
    colours: Palette,
    decimals: int,
    entity: str,
) -> go.Figure:
    """The context and one future as candles; the y range is the same for every path."""
    stamps = pd.DatetimeIndex([*context["timestamps"], *forecast.timestamps])
    labels = time_labels(stamps, step_seconds(stamps))
    past, future = labels[: len(context)], labels[len(context) :]
    figure = go.Figure(candle_trace(context, past, colours, decimals, "context"))
    figure.data[0].opacity = 0.45
    figure.add_trace(candle_trace(path_bars(forecast, path), future, colours, decimals, "path"))
    figure.add_vline(x=len(past) - 1, line={"color": QUIET, "width": 1, "dash": "dot"})
    figure.update_xaxes(**ordinal_axis(labels))
    axis = value_axis(f",.{decimals}f") | {"range": price_range(context, forecast)}
    figure.update_layout(yaxis=axis)
    return finish(figure, height=400, entity=entity, legend=False)


def price_range(context: pd.DataFrame, forecast: Forecast) -> list[float]:
    """Lowest and highest price to show: the context, and nearly all that the paths reach."""
    low = np.quantile(forecast.channel("low"), EDGE[0])
    high = np.quantile(forecast.channel("high"), EDGE[1])
    low, high = min(low, context["low"].min()), max(high, context["high"].max())
    margin = 0.04 * (high - low) or abs(high) * 0.01 or 1.0
    return [float(low - margin), float(high + margin)]


def mark(
    figure: go.Figure, *, bar: int | None, target: float | None, decimals: int, past: int
) -> go.Figure:
    """A fan with its chosen bar (from 0; None for no line) and its target price.

    Only the target lies above the traces, where a chart lets it be dragged."""
    if bar is not None:
        line = {"color": ACCENT, "width": 1, "dash": "dash"}
        figure.add_vline(x=past + bar, line=line)
    figure.update_shapes(layer="below")
    if target is not None:
        _target_line(figure, target, decimals)
    return figure


def _target_line(figure: go.Figure, target: float, decimals: int) -> None:
    figure.add_hline(
        y=target,
        line={"color": TARGET, "width": 1.4, "dash": "dash"},
        # A label of the line itself follows it while it is dragged.
        label={
            "texttemplate": f"target %{{y0:,.{decimals}f}}",
            "textposition": "start",
            "yanchor": "bottom",
            "font": {"color": TARGET, "size": 11},
        },
    )


def histogram(
    forecast: Forecast, step: int, *, target: float | None, decimals: int, entity: str
) -> go.Figure:
    """Closes of all paths at bar `step` (from 0), with last known close, median and target."""
    values = forecast.channel("close")[:, step]
    counts, edges = np.histogram(values, bins=min(BINS, max(5, len(values) // 4)))
    centres, share = (edges[1:] + edges[:-1]) / 2, counts / len(values)
    figure = go.Figure(
        go.Bar(
            x=centres,
            y=share,
            width=np.diff(edges),
            marker={"color": translucent(ACCENT, 0.45), "line": {"color": ACCENT, "width": 0.5}},
            name="paths",
            hovertext=[
                f"{fmt.price(low, decimals)} to {fmt.price(high, decimals)}<br>"
                f"{fmt.percent(part, 1)} of the paths"
                for low, high, part in zip(edges[:-1], edges[1:], share, strict=True)
            ],
            hoverinfo="text",
        )
    )
    lines = [(forecast.last_close, "last close", QUIET, 0.0)]
    lines.append((float(np.median(values)), "median", ACCENT, 0.08))
    if target is not None:
        lines.append((target, "target", TARGET, 0.16))
    for value, name, colour, drop in lines:
        figure.add_vline(x=value, line={"color": colour, "width": 1.6, "dash": "dash"})
        figure.add_annotation(
            x=value, y=1.0 - drop, yref="paper", text=name, showarrow=False, xanchor="left",
            font={"color": colour, "size": 11}, xshift=4,
        )  # fmt: skip
    figure.update_xaxes(tickformat=f",.{decimals}f", showgrid=False, nticks=7)
    figure.update_layout(yaxis=value_axis(".0%", side="left"), bargap=0)
    return finish(figure, height=320, entity=entity, legend=False)


def target_chances(
    forecast: Forecast, target: float, step: int, *, seconds: float, entity: str
) -> go.Figure:
    """The chance to close above a target at each bar, and to have touched it by then."""
    labels = time_labels(forecast.timestamps, seconds)
    curves = {
        "closes above": (forecast.probability_above(target), ACCENT),
        "has touched": (forecast.probability_touch(target), TARGET),
    }
    figure = go.Figure()
    for name, (values, colour) in curves.items():
        figure.add_trace(
            go.Scatter(
                x=labels,
                y=values,
                name=name,
                mode="lines",
                line={"color": colour, "width": 1.8},
                hovertemplate=f"%{{x}}: {name} %{{y:.0%}}<extra></extra>",
            )
        )
    figure.add_vline(x=step, line={"color": ACCENT, "width": 1, "dash": "dash"})
    figure.update_xaxes(**ordinal_axis(labels, nticks=5))
    figure.update_layout(yaxis=value_axis(".0%") | {"range": [-0.02, 1.02]})
    return finish(figure, height=320, entity=entity)
