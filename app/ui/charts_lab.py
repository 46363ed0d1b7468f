"""Figures of the teacher-forcing lab, one for each step of the walk.

Bars are numbered from the origin: 1 is the first bar after it, 0 the origin, −1 the bar before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.ui.chart_style import ACCENT, QUIET, finish, translucent, value_axis
from kronos_core.data.bars import CHANNELS
from kronos_core.evaluation.exposure import ExposureGap, Fork, SequenceProbability, Walk
from kronos_core.evaluation.guess import Guess

OWN = "#dd8a1f"
S1, S2 = ACCENT, "#3f86c6"
CLOSE = CHANNELS.index("close")
SHOWN_TOKENS = 10
HEIGHT = 430
BARS_TITLE = "bars after the origin"

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


def guess(past: pd.DataFrame, found: Guess, *, entity: str) -> go.Figure:
    """The chances of the next bar, as prices beside the bars so far and as tokens."""
    figure = _side_by_side("close, and what the next one may be", "likeliest coarse tokens s1")
    _past(figure, past)
    _candidates(figure, found, 1, ACCENT, "a token's close")
    _point(figure, 1, found.true_prices[CLOSE], "the true token", QUIET, symbol="diamond-open")
    _tokens(figure, found, ACCENT, "chance")
    return _finished(figure, entity)


def product(found: SequenceProbability, *, entity: str) -> go.Figure:
    """The chance of each bar, and the product of all so far, both on a logarithmic axis."""
    figure = _stacked("chance of each bar's tokens", "chance of all bars so far", [0.5, 0.5])
    bars = np.arange(1, len(found.s1) + 1)
    for name, values, colour in (("s1", found.s1_loss, S1), ("s2 given s1", found.s2_loss, S2)):
        figure.add_trace(_dots(bars, np.exp(-values), name, colour), row=1, col=1)
    # A product below the smallest number is drawn by its power of ten.
    powers = -found.running_total / np.log(10)
    trace = go.Scatter(x=bars, y=powers, mode="lines+markers", name="product", showlegend=False)
    trace.update(line={"color": ACCENT, "width": 2}, fill="tozeroy")
    trace.fillcolor = translucent(ACCENT, 0.12)
    trace.hovertemplate = "10<sup>%{y:.2f}</sup><extra></extra>"
    figure.add_trace(trace, row=2, col=1)
    _value_axes(figure)
    shares = [10.0**-power for power in range(9)]
    labels = [f"{100 * share:.7g} %" for share in shares]
    figure.update_yaxes(type="log", tickvals=shares, ticktext=labels, row=1, col=1)
    figure.update_yaxes(tickprefix="10<sup>", ticksuffix="</sup>", row=2, col=1)
    figure.update_xaxes(title_text=BARS_TITLE, row=2, col=1)
    return _finished(figure, entity)


def logs(found: SequenceProbability, *, entity: str) -> go.Figure:
    """What each bar adds to the sum, and the sum so far."""
    figure = _stacked("−log p of each bar (nats)", "their sum so far (nats)", [0.5, 0.5])
    bars = np.arange(1, len(found.s1) + 1)
    for name, values, colour in (("s1", found.s1_loss, S1), ("s2", found.s2_loss, S2)):
        figure.add_trace(_columns(bars, values, name, colour), row=1, col=1)
    sums = [np.cumsum(found.s1_loss), found.running_total]
    for values, colour, fill in zip(sums, (S1, S2), ("tozeroy", "tonexty"), strict=True):
        trace = go.Scatter(x=bars, y=values, mode="lines", showlegend=False, fill=fill)
        trace.update(line={"color": colour, "width": 2}, fillcolor=translucent(colour, 0.18))
        trace.hovertemplate = "%{y:.2f} nats<extra></extra>"
        figure.add_trace(trace, row=2, col=1)
    _value_axes(figure)
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title_text=BARS_TITLE, row=2, col=1)
    return _finished(figure, entity)


def parting(
    past: pd.DataFrame, branches: Fork, after_true: Guess, after_own: Guess, *, entity: str
) -> go.Figure:
    """The two ways after the first bar, and what the model expects next on each."""
    figure = _side_by_side("close on the two branches", "chances of the second bar's s1")
    _past(figure, past)
    origin = float(past["close"].iloc[-1])
    for name, price, colour in (
        ("true token", branches.known_prices[0, CLOSE], QUIET),
        ("own token", branches.own_prices[0, CLOSE], OWN),
    ):
        line = {"color": colour, "width": 2.4}
        trace = go.Scatter(x=[0, 1], y=[origin, price], mode="lines+markers", name=name, line=line)
        figure.add_trace(trace, row=1, col=1)
    for found, colour, name in (
        (after_true, ACCENT, "after the true token"),
        (after_own, OWN, "after the own token"),
    ):
        _candidates(figure, found, 2, colour, name)
    both = list(dict.fromkeys([*after_true.s1[:6], *after_own.s1[:6]]))
    for found, colour, name in ((after_true, ACCENT, "true"), (after_own, OWN, "own")):
        labels = [_token(token, found.true_s1) for token in both]
        trace = go.Bar(y=labels, x=found.p_all[both], orientation="h", name=f"after {name}")
        trace.update(marker_color=translucent(colour, 0.85), showlegend=False)
        trace.hovertemplate = f"after the {name} token %{{x:.1%}}<extra></extra>"
        figure.add_trace(trace, row=1, col=2)
    figure.update_yaxes(type="category", autorange="reversed", row=1, col=2)
    figure.update_xaxes(tickformat=".0%", row=1, col=2)
    return _finished(figure, entity)


def stretch(past: pd.DataFrame, branches: Fork, *, own: bool, shown: int, entity: str) -> go.Figure:
    """The stretch bar by bar up to ``shown``, on the true past or on the model's own.

    Above the closes, then whether each token is the true one, then how much the truth surprises.
    """
    walk = branches.own if own else branches.true
    figure = make_subplots(
        rows=3,
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.07,
        row_heights=[0.56, 0.14, 0.3],
        subplot_titles=("close", "drawn tokens: filled where the true one", "−log p of the truth"),
    )
    _past(figure, past)
    _stretch_prices(figure, past, branches, own=own, shown=shown)
    _matches(figure, walk, shown)
    bars = np.arange(1, len(walk.true_s1) + 1)
    truth, mixed = (each.s1_loss[0] + each.s2_loss[0] for each in (branches.true, branches.own))
    figure.add_trace(
        _columns(bars[:shown], truth[:shown], "on the true past", ACCENT), row=3, col=1
    )
    if own:
        figure.add_trace(
            _columns(bars[:shown], mixed[:shown], "on the own past", OWN), row=3, col=1
        )
    _value_axes(figure)
    figure.update_yaxes(tickvals=[0, 1], ticktext=["s2", "s1"], range=[-0.6, 1.6], row=2, col=1)
    figure.update_yaxes(showgrid=False, row=2, col=1)
    figure.update_xaxes(title_text=BARS_TITLE, row=3, col=1)
    figure.update_xaxes(range=[-len(past) + 0.5, len(bars) + 0.6])
    # The range is that of the whole stretch, so that the picture stands still bar by bar.
    prices = np.concatenate(
        [past["close"], branches.known_prices[:, CLOSE], branches.own_prices[:, CLOSE]]
    )
    low, high = float(prices.min()), float(prices.max())
    room = 0.05 * (high - low)
    figure.update_yaxes(range=[low - room, high + room], row=1, col=1)
    return _finished(figure, f"{entity}-{own}", height=500)


def _stretch_prices(
    figure: go.Figure, past: pd.DataFrame, branches: Fork, *, own: bool, shown: int
) -> None:
    origin = float(past["close"].iloc[-1])
    bars = np.arange(0, len(branches.known_prices) + 1)
    truth = np.concatenate([[origin], branches.known_prices[:, CLOSE]])
    line = {"color": QUIET, "width": 2}
    known = go.Scatter(x=bars, y=truth, mode="lines", name="true tokens", line=line)
    figure.add_trace(known, row=1, col=1)
    if own:
        drawn = np.concatenate([[origin], branches.own_prices[:, CLOSE]])[: shown + 1]
        trace = go.Scatter(x=bars, y=drawn, mode="lines+markers", name="own tokens")
        trace.update(x=bars[: shown + 1], line={"color": OWN, "width": 2.2}, marker={"size": 5})
        figure.add_trace(trace, row=1, col=1)
        return
    # Each guess starts from the true bar before it: short strokes that never add up.
    drawn = branches.true_prices[:shown, CLOSE]
    x = np.stack([bars[:-1][:shown], bars[1:][:shown], np.full(shown, np.nan)], axis=1).ravel()
    y = np.stack([truth[:-1][:shown], drawn, np.full(shown, np.nan)], axis=1).ravel()
    trace = go.Scatter(x=x, y=y, mode="lines+markers", name="guess from the true past")
    trace.update(line={"color": ACCENT, "width": 1.6}, marker={"size": 5})
    figure.add_trace(trace, row=1, col=1)


def _matches(figure: go.Figure, walk: Walk, shown: int) -> None:
    bars = np.arange(1, len(walk.true_s1) + 1)[:shown]
    rows = ((1, walk.s1[0], walk.true_s1, S1, "s1"), (0, walk.s2[0], walk.true_s2, S2, "s2"))
    for height, drawn, truth, colour, name in rows:
        same = drawn[:shown] == truth[:shown]
        figure.add_trace(
            go.Scatter(
                x=bars,
                y=np.full(len(bars), height),
                mode="markers",
                name=name,
                showlegend=False,
                marker={
                    "symbol": ["square" if hit else "square-open" for hit in same],
                    "size": 10,
                    "color": colour,
                },
                text=[
                    f"{name}: drawn {a}, true {b}"
                    for a, b in zip(drawn, truth[:shown], strict=False)
                ],
                hovertemplate="%{text}<extra></extra>",
            ),
            row=2,
            col=1,
        )


def coins(walk: Walk, *, entity: str) -> go.Figure:
    """Which bars of one walk were the true ones in the past that later bars read."""
    kept = walk.kept[0]
    figure = go.Figure()
    for name, mask, colour in (("true token kept", kept, ACCENT), ("own token", ~kept, OWN)):
        places = np.flatnonzero(mask) + 1
        marker = {"symbol": "square", "size": 15, "color": colour}
        trace = go.Scatter(x=places, y=np.zeros(len(places)), mode="markers", name=name)
        trace.update(marker=marker, hovertemplate=f"bar %{{x}}: {name}<extra></extra>")
        figure.add_trace(trace)
    figure.update_yaxes(visible=False, range=[-1, 1])
    figure.update_xaxes(visible=False, range=[0.3, len(kept) + 0.7])
    return finish(figure, height=72, entity=entity).update_layout(dragmode=False)


def gaps(found: ExposureGap, *, epsilon: float, entity: str) -> go.Figure:
    """The exposure gap against ε and, for s1 and s2, against the distance from the origin."""
    titles = ("mean gap against ε (nats)", "s1 gap by bar", "s2 gap by bar")
    figure = make_subplots(rows=1, cols=3, horizontal_spacing=0.07, subplot_titles=titles)
    order = np.argsort(found.epsilons)
    for name, gap, colour in (("s1", found.s1_gap, S1), ("s2", found.s2_gap, S2)):
        means = gap.mean(axis=1)[order]
        trace = go.Scatter(x=found.epsilons[order], y=means, mode="lines+markers", name=name)
        trace.update(line={"color": colour, "width": 2.2}, legendgroup=name)
        trace.hovertemplate = f"{name}, ε = %{{x:g}}: %{{y:.3f}}<extra></extra>"
        figure.add_trace(trace, row=1, col=1)
    figure.add_vline(x=epsilon, line={"color": QUIET, "width": 1, "dash": "dot"}, row=1, col=1)
    bars = np.arange(1, found.s1_gap.shape[1] + 1)
    nearest = int(np.abs(found.epsilons - epsilon).argmin())
    for column, gap, colour in ((2, found.s1_gap, S1), (3, found.s2_gap, S2)):
        for place, ratio in enumerate(found.epsilons):
            chosen = place == nearest
            trace = go.Scatter(x=bars, y=gap[place], mode="lines", showlegend=False)
            strength = 1.0 if chosen else 0.3
            trace.line = {"color": translucent(colour, strength), "width": 2.6 if chosen else 1.2}
            trace.hovertemplate = f"ε = {ratio:g}, bar %{{x}}: %{{y:.3f}}<extra></extra>"
            figure.add_trace(trace, row=1, col=column)
    _value_axes(figure)
    figure.update_xaxes(title_text="ε", row=1, col=1)
    for column in (2, 3):
        figure.update_xaxes(title_text=BARS_TITLE, row=1, col=column)
    return _finished(figure, entity, height=360).update_layout(hovermode="closest")


def _side_by_side(left: str, right: str) -> go.Figure:
    figure = make_subplots(
        rows=1,
        cols=2,
        column_widths=[0.66, 0.34],
        horizontal_spacing=0.1,
        subplot_titles=(left, right),
    )
    figure.update_xaxes(title_text=BARS_TITLE, row=1, col=1)
    return figure


def _stacked(upper: str, lower: str, heights: Sequence[float]) -> go.Figure:
    return make_subplots(
        rows=2,
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.1,
        row_heights=list(heights),
        subplot_titles=(upper, lower),
    )


def _past(figure: go.Figure, past: pd.DataFrame) -> None:
    x = np.arange(-len(past) + 1, 1)
    line = {"color": QUIET, "width": 1.6}
    trace = go.Scatter(x=x, y=past["close"], mode="lines", name="bars so far", line=line)
    trace.showlegend = False
    trace.hovertemplate = "bar %{x}: %{y:,.6~g}<extra></extra>"
    figure.add_trace(trace, row=1, col=1)


def _candidates(figure: go.Figure, found: Guess, bar: int, colour: str, name: str) -> None:
    sizes = 6 + 26 * np.sqrt(found.p_s1 / found.p_s1.max())
    trace = go.Scatter(
        x=np.full(len(found.s1), bar), y=found.prices[:, CLOSE], mode="markers", name=name
    )
    trace.marker = {
        "size": sizes,
        "color": translucent(colour, 0.35),
        "line": {"color": colour, "width": 1},
    }
    trace.customdata = np.stack([found.s1, found.p_s1], axis=1)
    words = "s1 %{customdata[0]:.0f}, chance %{customdata[1]:.1%}: close %{y:,.6~g}"
    trace.hovertemplate = f"{words}<extra></extra>"
    figure.add_trace(trace, row=1, col=1)


def _point(figure: go.Figure, bar: int, price: float, name: str, colour: str, symbol: str) -> None:
    marker = {"size": 12, "symbol": symbol, "color": colour, "line": {"width": 2}}
    trace = go.Scatter(x=[bar], y=[price], mode="markers", name=name, marker=marker)
    trace.hovertemplate = f"{name}: %{{y:,.6~g}}<extra></extra>"
    figure.add_trace(trace, row=1, col=1)


def _tokens(figure: go.Figure, found: Guess, colour: str, name: str) -> None:
    chosen = found.s1[:SHOWN_TOKENS]
    labels = [_token(token, found.true_s1) for token in chosen]
    colours = [translucent(colour, 1.0 if token == found.true_s1 else 0.45) for token in chosen]
    trace = go.Bar(y=labels, x=found.p_s1[:SHOWN_TOKENS], orientation="h", name=name)
    trace.update(marker_color=colours, showlegend=False)
    trace.hovertemplate = "%{x:.1%}<extra></extra>"
    figure.add_trace(trace, row=1, col=2)
    figure.update_yaxes(type="category", autorange="reversed", row=1, col=2)
    figure.update_xaxes(tickformat=".0%", row=1, col=2)


def _token(token: int, truth: int) -> str:
    return f"{token} (true)" if token == truth else f"{token} "


def _dots(x: Ids, y: Floats, name: str, colour: str) -> go.Scatter:
    trace = go.Scatter(x=x, y=y, mode="markers+lines", name=name)
    trace.update(marker={"size": 7, "color": colour}, line={"color": colour, "width": 1})
    trace.hovertemplate = f"{name} %{{y:.2~p}}<extra></extra>"
    return trace


def _columns(x: Ids, y: Floats, name: str, colour: str) -> go.Bar:
    trace = go.Bar(x=x, y=y, name=name, marker={"color": translucent(colour, 0.8)})
    trace.hovertemplate = f"{name} %{{y:.2f}} nats<extra></extra>"
    return trace


def _value_axes(figure: go.Figure) -> None:
    figure.update_yaxes(**value_axis(side="left"))
    figure.update_yaxes(nticks=5)


def _finished(figure: go.Figure, entity: str, height: int = HEIGHT) -> go.Figure:
    figure.update_xaxes(showgrid=False, zeroline=False, automargin=True)
    figure.update_yaxes(gridcolor="rgba(138,148,155,0.18)", zeroline=False, automargin=True)
    for title, axis in zip(figure.layout.annotations, figure.select_xaxes(), strict=False):
        title.update(x=axis.domain[0], xanchor="left", font={"size": 12, "color": QUIET})
    finish(figure, height=height, entity=entity)
    return figure.update_layout(legend={"y": 1.07}, margin_t=56)
