"""Figures of bars and forecasts: data in, Plotly figure out, no streamlit.

Letters: S paths, H horizon, T bars of context.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.ui import format as fmt
from app.ui.chart_style import (
    ACCENT,
    CLEAR,
    QUIET,
    Palette,
    as_labels,
    bar_moments,
    finish,
    ordinal_axis,
    step_seconds,
    time_labels,
    translucent,
    value_axis,
)
from kronos_core.data.bars import PRICES
from kronos_core.forecast.forecast import Forecast

DISPLAY_BARS = 1500
THIN_PATHS = 30
BANDS = ((0.95, 0.12), (0.80, 0.20), (0.50, 0.30))  # (share of the paths, opacity)
MONTH_SECONDS = 28 * 86_400


def merge_bars(frame: pd.DataFrame, limit: int = DISPLAY_BARS) -> pd.DataFrame:
    """At most `limit` display bars: neighbours merged, so that no high and no low is lost.

    Columns as in `frame` (timestamps, open … amount); volume and amount are summed.
    """
    factor = -(-len(frame) // limit)
    if factor <= 1:
        return frame
    starts = np.arange(0, len(frame), factor)
    ends = np.append(starts[1:], len(frame)) - 1
    merged = frame[["timestamps", "open"]].iloc[starts].reset_index(drop=True)
    # Reduced over slices: grouping a million rows takes several times longer.
    merged["high"] = np.maximum.reduceat(frame["high"].to_numpy(), starts)
    merged["low"] = np.minimum.reduceat(frame["low"].to_numpy(), starts)
    merged["close"] = frame["close"].to_numpy()[ends]
    for channel in ("volume", "amount"):
        merged[channel] = np.add.reduceat(frame[channel].to_numpy(), starts)
    return merged


def candles(frame: pd.DataFrame, *, colours: Palette, entity: str, height: int = 440) -> go.Figure:
    """Candles with volume below them (left out where every volume is 0)."""
    shown = merge_bars(frame)
    with_volume = bool((shown["volume"] > 0).any())
    figure = make_subplots(
        rows=2 if with_volume else 1,
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.03,
        row_heights=[0.78, 0.22] if with_volume else [1.0],
    )
    stamps = pd.DatetimeIndex(shown["timestamps"])
    labels = time_labels(stamps, step_seconds(stamps))
    decimals = fmt.price_decimals(shown["close"].tail(500))
    figure.add_trace(candle_trace(shown, labels, colours, decimals), row=1, col=1)
    if with_volume:
        figure.add_trace(volume_trace(shown, labels, colours), row=2, col=1)
        figure.update_yaxes(**{**value_axis(), "nticks": 3}, row=2, col=1)
    figure.update_xaxes(**ordinal_axis(labels))
    figure.update_yaxes(**value_axis(f",.{decimals}f"), row=1, col=1)
    return finish(figure, height=height, entity=entity, legend=False)


def candle_trace(
    frame: pd.DataFrame, labels: Sequence[str], colours: Palette, decimals: int, name: str = "bars"
) -> go.Candlestick:
    """One candle a bar; the hover text names the time with its zone and every value."""
    return go.Candlestick(
        x=as_labels(labels),
        open=frame["open"],
        high=frame["high"],
        low=frame["low"],
        close=frame["close"],
        name=name,
        increasing={"line": {"color": colours.up, "width": 1}, "fillcolor": colours.up},
        decreasing={"line": {"color": colours.down, "width": 1}, "fillcolor": colours.down},
        hovertext=as_labels(bar_texts(frame, decimals)),
        hoverinfo="text",
    )


def bar_texts(frame: pd.DataFrame, decimals: int) -> list[str]:
    """Hover text of each bar."""
    stamps = pd.DatetimeIndex(frame["timestamps"])
    prices = ([fmt.price(value, decimals) for value in frame[name].tolist()] for name in PRICES)
    volumes = [fmt.compact(value) for value in frame["volume"].tolist()]
    moments = bar_moments(stamps, step_seconds(stamps))
    return [
        f"<b>{moment}</b><br>open {first} · high {high}<br>low {low} · close {close}<br>"
        f"volume {volume}"
        for moment, first, high, low, close, volume in zip(moments, *prices, volumes, strict=True)
    ]


def volume_trace(
    frame: pd.DataFrame, labels: Sequence[str], colours: Palette, channel: str = "volume"
) -> go.Bar:
    """Bars of a non-negative channel in the colour of their candle."""
    rising = (frame["close"] >= frame["open"]).to_numpy()
    return go.Bar(
        x=as_labels(labels),
        y=frame[channel],
        name=channel,
        # Numbers with a scale of two colours: a name for each bar would be checked one by one.
        marker={
            "color": rising.astype(float),
            "colorscale": [
                [0, translucent(colours.down, 0.55)],
                [1, translucent(colours.up, 0.55)],
            ],
            "cmin": 0,
            "cmax": 1,
            "line": {"width": 0},
        },
        hoverinfo="skip",
    )


def fan(
    context: pd.DataFrame,
    forecast: Forecast,
    *,
    channel: str,
    colours: Palette,
    entity: str,
    actual: pd.DataFrame | None = None,
    height: int = 460,
) -> go.Figure:
    """The fan of one channel after its context.

    context: the last T bars up to the origin; actual: known bars after it, at most H.
    Bands hold 50, 80 and 95 % of the paths; at most 30 single paths are drawn thinly.
    """
    stamps = pd.DatetimeIndex([*context["timestamps"], *forecast.timestamps])
    labels = time_labels(stamps, step_seconds(stamps))
    past, future = labels[: len(context)], labels[len(context) :]
    decimals = _decimals(context, channel)
    figure = go.Figure()
    if channel in PRICES:
        figure.add_trace(candle_trace(context, past, colours, decimals))
    else:
        figure.add_trace(volume_trace(context, past, colours, channel))
    start = float(context[channel].iloc[-1])
    ahead = [past[-1], *future]
    _add_bands(figure, forecast, channel, ahead, start)
    _add_paths(figure, forecast, channel, ahead, start)
    _add_median(figure, forecast, channel, ahead, start, decimals)
    if actual is not None and len(actual):
        _add_actual(figure, actual, future[: len(actual)], channel, colours, decimals)
    figure.add_vline(x=len(past) - 1, line={"color": QUIET, "width": 1, "dash": "dot"})
    figure.update_xaxes(**ordinal_axis(labels))
    tickformat = f",.{decimals}f" if channel in PRICES else None
    figure.update_layout(yaxis=value_axis(tickformat))
    return finish(figure, height=height, entity=entity)


def small_fan(context: pd.DataFrame, forecast: Forecast, *, entity: str) -> go.Figure:
    """A thumbnail: past closes as a line, then bands and median, no axes."""
    past = context["close"].to_numpy()
    figure = go.Figure(
        go.Scatter(x=list(range(-len(past) + 1, 1)), y=past, line={"color": QUIET, "width": 1.2})
    )
    ahead = list(range(forecast.paths.shape[1] + 1))
    _add_bands(figure, forecast, "close", ahead, float(past[-1]))
    median = [float(past[-1]), *forecast.quantiles([0.5], "close")[0]]
    figure.add_trace(go.Scatter(x=ahead, y=median, line={"color": ACCENT, "width": 1.8}))
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    return finish(figure, height=96, entity=entity, legend=False)


def sparkline(values: Sequence[float], *, entity: str, height: int = 64) -> go.Figure:
    """A line without axes."""
    figure = go.Figure(
        go.Scatter(y=list(values), mode="lines", line={"color": ACCENT, "width": 1.4})
    )
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    return finish(figure, height=height, entity=entity, legend=False)


def chosen_paths(count: int, limit: int = THIN_PATHS) -> list[int]:
    """Which paths are drawn one by one: all of them, or `limit` spread evenly over the draw."""
    if count <= limit:
        return list(range(count))
    return [int(path) for path in np.unique(np.linspace(0, count - 1, limit).astype(int))]


def _decimals(context: pd.DataFrame, channel: str) -> int:
    return fmt.price_decimals(context["close"].tail(500)) if channel in PRICES else 0


def _add_bands(
    figure: go.Figure, forecast: Forecast, channel: str, ahead: Sequence[object], start: float
) -> None:
    for share, opacity in BANDS:
        tail = (1 - share) / 2
        low, high = forecast.quantiles([tail, 1 - tail], channel)
        edge = {"x": list(ahead), "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
        name = f"{share:.0%}".replace("%", " %")
        figure.add_trace(go.Scatter(y=[start, *low], showlegend=False, name=f"{name} low", **edge))
        figure.add_trace(
            go.Scatter(
                y=[start, *high],
                name=name,
                fill="tonexty",
                fillcolor=translucent(ACCENT, opacity),
                **edge,
            )
        )


def _add_paths(
    figure: go.Figure, forecast: Forecast, channel: str, ahead: Sequence[object], start: float
) -> None:
    values = forecast.channel(channel)
    xs: list[object] = []
    ys: list[float | None] = []
    for path in chosen_paths(len(values)):
        xs += [*ahead, None]
        ys += [start, *values[path].tolist(), None]
    figure.add_trace(
        go.Scatter(
            x=xs,
            y=ys,
            mode="lines",
            name="single paths",
            line={"color": translucent(ACCENT, 0.35), "width": 0.7},
            hoverinfo="skip",
        )
    )


def _add_median(
    figure: go.Figure,
    forecast: Forecast,
    channel: str,
    ahead: Sequence[object],
    start: float,
    decimals: int,
) -> None:
    levels = [0.025, 0.1, 0.25, 0.5, 0.75, 0.9, 0.975]
    rows = forecast.quantiles(levels, channel)
    seconds = step_seconds(forecast.timestamps)
    texts = ["origin"]
    for step, stamp in enumerate(forecast.timestamps):
        q = [fmt.price(value, decimals) for value in rows[:, step]]
        texts.append(
            f"<b>{fmt.bar_moment(stamp, seconds)}</b> · bar {step + 1}<br>"
            f"median {q[3]}<br>50 %: {q[2]} to {q[4]}<br>80 %: {q[1]} to {q[5]}<br>"
            f"95 %: {q[0]} to {q[6]}"
        )
    figure.add_trace(
        go.Scatter(
            x=list(ahead),
            y=[start, *rows[3]],
            mode="lines",
            name="median",
            line={"color": ACCENT, "width": 2.2},
            text=texts,
            hoverinfo="text",
        )
    )


def _add_actual(
    figure: go.Figure,
    actual: pd.DataFrame,
    labels: Sequence[str],
    channel: str,
    colours: Palette,
    decimals: int,
) -> None:
    if channel in PRICES:
        # Plotly draws candles below filled bands unless they stand on an axis laid over theirs.
        figure.add_trace(
            candle_trace(actual, labels, colours, decimals, name="actual bars").update(yaxis="y2")
        )
        figure.update_layout(yaxis2={"overlaying": "y", "matches": "y", "visible": False})
        return
    trace = go.Scatter(x=list(labels), y=actual[channel], mode="lines+markers", name="actual")
    trace.line = {"color": colours.down, "width": 1.6}
    trace.marker = {"size": 4, "line": {"color": CLEAR}}
    figure.add_trace(trace)
