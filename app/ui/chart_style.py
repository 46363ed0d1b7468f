"""What every figure shares: colours, time labels, layout. Figures carry no background of their own,
so that they stand on the light and on the dark theme alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
import plotly.graph_objects as go

from app.ui import format as fmt

ACCENT = "#1a9a92"
QUIET = "#8a949b"
GRID = "rgba(138,148,155,0.18)"
CLEAR = "rgba(0,0,0,0)"
CONFIG: dict[str, Any] = {
    "displaylogo": False,
    "scrollZoom": False,
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d", "sendChartToCloud"],
    "toImageButtonOptions": {"format": "png", "scale": 2},
}
SMALL_CONFIG: dict[str, Any] = {"displayModeBar": False, "staticPlot": True}


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours of rising and falling candles."""

    up: str
    down: str


PALETTES = {
    "colour-blind safe": Palette("#3f86c6", "#dd8a1f"),
    "green up": Palette("#2f9e62", "#d2504c"),
    "red up": Palette("#d2504c", "#2f9e62"),
}


def palette(name: str) -> Palette:
    """The palette of a setting; ValueError names the choices."""
    if name not in PALETTES:
        raise ValueError(f"unknown candle colours {name!r}, choose one of {', '.join(PALETTES)}")
    return PALETTES[name]


def translucent(colour: str, alpha: float) -> str:
    """#rrggbb with an opacity, as Plotly's rgba()."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha:g})"


def step_seconds(timestamps: pd.DatetimeIndex) -> float:
    """Most frequent step of the bars in seconds; a day where there is only one bar."""
    if len(timestamps) < 2:
        return 86_400.0
    steps = pd.Series(timestamps).diff().dropna().dt.total_seconds()
    return float(steps.mode().iloc[0])


def time_labels(timestamps: pd.DatetimeIndex, seconds: float) -> list[str]:
    """Unique wall-clock labels, one a bar.

    The hour that a clock change repeats carries its offset, since two bars of one name would
    share a place on an ordinal axis.
    """
    labels = bar_times(timestamps, seconds)
    repeated = {label for label, times in Counter(labels).items() if times > 1}
    if not repeated:
        return labels
    return [
        f"{stamp:%Y-%m-%d %H:%M:%S %z}" if label in repeated else label
        for label, stamp in zip(labels, timestamps, strict=True)
    ]


def bar_times(timestamps: pd.DatetimeIndex, seconds: float) -> list[str]:
    """`fmt.bar_time` of all stamps at once, many times faster than one by one."""
    unit: Literal["D", "m", "s"] = "D" if seconds >= 86_400 else "m" if seconds >= 60 else "s"
    texts = np.datetime_as_string(timestamps.tz_localize(None).to_numpy(), unit=unit)
    return [text.replace("T", " ") for text in texts.tolist()]


def bar_moments(timestamps: pd.DatetimeIndex, seconds: float) -> list[str]:
    """`fmt.bar_moment` of all stamps."""
    times = bar_times(timestamps, seconds)
    names = map(fmt.zone_name, timestamps)
    return [f"{time} {name}" for time, name in zip(times, names, strict=True)]


def as_labels(texts: Sequence[str]) -> npt.NDArray[np.object_]:
    """Texts as Plotly takes them at once; it would look into each element of a list."""
    return np.array(texts, dtype=object)


def ordinal_axis(labels: Sequence[str], nticks: int = 8) -> dict[str, Any]:
    """A gap-free axis: one place a bar, in order, labelled with its real time."""
    return {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": as_labels(labels),
        "range": [-0.75, len(labels) - 0.25],
        "nticks": nticks,
        "tickangle": 0,
        "showgrid": False,
        "automargin": True,
        "rangeslider": {"visible": False},
    }


def value_axis(tickformat: str | None = None, side: str = "right") -> dict[str, Any]:
    """A value axis with quiet grid lines."""
    return {
        "side": side,
        "gridcolor": GRID,
        "zeroline": False,
        "tickformat": tickformat,
        "exponentformat": "B",
        "nticks": 7,
        "automargin": True,
    }


def finish(figure: go.Figure, *, height: int, entity: str, legend: bool = True) -> go.Figure:
    """The common layout. `entity` names what is shown; the zoom lasts as long as it does."""
    figure.update_layout(
        height=height,
        margin={"l": 4, "r": 4, "t": 28 if legend else 8, "b": 4},
        paper_bgcolor=CLEAR,
        plot_bgcolor=CLEAR,
        uirevision=entity,
        dragmode="zoom",
        hovermode="x",
        hoverlabel={"font": {"size": 12}, "align": "left"},
        font={"size": 12},
        showlegend=legend,
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "font": {"size": 11}},
        bargap=0.25,
        modebar={"bgcolor": CLEAR, "color": QUIET, "activecolor": ACCENT},
    )
    return figure
