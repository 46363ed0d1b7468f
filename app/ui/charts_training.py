"""Figures of one fine-tuning run: losses, the tokenizer's stage, dials and pace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.ui.chart_style import ACCENT, QUIET, finish, translucent, value_axis
from app.ui.curves import (
    AXIS_TITLES,
    DISPLAY_POINTS,
    Clipping,
    View,
    axis_values,
    downsample,
    smoothed,
    thinned_places,
)

__all__ = ["COLUMNS", "DISPLAY_POINTS", "downsample", "epsilon_preview", "history", "losses"]

NUMBERS = (
    "step", "epoch", "s1", "s2", "total", "epsilon", "epsilon_history", "learning_rate",
    "grad_norm", "tokens_per_second", "memory_mb", "s2_own", "s1_own", "exposure_gap",
    "horizon_loss", "coarse", "fine", "commitment", "entropy_sample", "entropy_code",
    "codebook_use",
)  # fmt: skip
COLUMNS = ("stage", "split", *NUMBERS, "recorded_at")
TRAIN = "#6f9fce"
MARK = "#dd8a1f"
PLAIN = View()
LOSSES = {
    "s1": "s1, coarse token (nats)",
    "s2": "s2, fine token (nats)",
    "total": "total (mean of both)",
}
TOKENIZER_LOSSES = {
    "coarse": "coarse reconstruction (mean squared error)",
    "fine": "fine reconstruction (mean squared error)",
    "total": "total",
}
TOKENIZER_MORE = {
    "commitment": "commitment",
    "entropy_sample": "entropy of a token (nats)",
    "entropy_code": "entropy of the codebook (nats)",
    "codebook_use": "codebook in use (share)",
}
PACE = {
    "grad_norm": "gradient norm",
    "tokens_per_second": "tokens/s",
    "memory_mb": "memory (MiB)",
}


def history(rows: Iterable[Any]) -> pd.DataFrame:
    """Recorded metric rows as a frame sorted by step, one column for each of COLUMNS."""
    records = [tuple(getattr(row, name, None) for name in COLUMNS) for row in rows]
    frame = pd.DataFrame.from_records(records, columns=list(COLUMNS))
    numbers = list(NUMBERS)
    frame[numbers] = frame[numbers].apply(pd.to_numeric)
    frame["recorded_at"] = pd.to_datetime(frame["recorded_at"], utc=True)
    return frame.sort_values("step", kind="stable", ignore_index=True)


def losses(
    frame: pd.DataFrame,
    *,
    best_step: int | None,
    entity: str,
    view: View = PLAIN,
    clipping: Clipping | None = None,
    panels: dict[str, str] = LOSSES,
) -> go.Figure:
    """Losses below each other over one axis; training thin, validation bold.

    ``clipping``, where the view clips, is told what that hides.
    """
    figure = _panels(panels, [0.37, 0.37, 0.26])
    placed = frame.assign(at=axis_values(frame, view))
    train = placed[placed["split"] == "train"]
    validation = placed[placed["split"] == "validation"]
    for row, name in enumerate(panels, start=1):
        _training(figure, train, name, row, view)
        figure.add_trace(_marked(validation, name, "validation", legend=row == 1), row=row, col=1)
    if validation["s2_own"].notna().any():
        figure.add_trace(_own(validation, shown=_practises_alone(train)), row=2, col=1)
    _mark_best(figure, validation, best_step, panels)
    _axes(figure, view, rows=3)
    if view.clip:
        _clip(figure, placed, panels, view, clipping or Clipping())
    finish(figure, height=620, entity=f"{entity}-{view.axis}-{view.log}-{view.clip}")
    figure.update_layout(hovermode="x unified", legend_y=1.05, margin_t=48)
    return figure


def _panels(panels: dict[str, str], heights: list[float]) -> go.Figure:
    return make_subplots(
        rows=len(panels),
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.045,
        row_heights=heights,
        subplot_titles=list(panels.values()),
    )


def _training(figure: go.Figure, train: pd.DataFrame, name: str, row: int, view: View) -> None:
    raw = _line(train, name, "training", legend=row == 1)
    if view.smooth:
        raw.update(name="training, as recorded", legendgroup="raw", showlegend=row == 1)
        raw.line = {"color": translucent(TRAIN, 0.35), "width": 1}
        raw.hoverinfo, raw.hovertemplate = "skip", None
        figure.add_trace(raw, row=row, col=1)
        calm = train.assign(**{name: smoothed(train[name].to_numpy(dtype=float), view.smooth)})
        raw = _line(calm, name, "training", legend=row == 1)
        raw.line = {"color": TRAIN, "width": 1.8}
    figure.add_trace(raw, row=row, col=1)


def _axes(figure: go.Figure, view: View, *, rows: int) -> None:
    figure.update_yaxes(**value_axis(".3~f", side="left"))
    if view.log:
        figure.update_yaxes(type="log", tickformat=".2~f", dtick="D2")
    figure.update_xaxes(showgrid=False, zeroline=False, automargin=True)
    if view.axis != "wall":
        figure.update_xaxes(rangemode="tozero")
    figure.update_xaxes(title_text=AXIS_TITLES[view.axis], row=rows, col=1)
    _left_titles(figure)


def _clip(
    figure: go.Figure, frame: pd.DataFrame, panels: dict[str, str], view: View, clipping: Clipping
) -> None:
    for row, name in enumerate(panels, start=1):
        values = frame[name].to_numpy(dtype=float)
        limits = clipping.range_of(name, values, log=view.log)
        if limits is not None:
            figure.update_yaxes(range=limits, row=row, col=1)


def small_curves(
    frame: pd.DataFrame, panels: dict[str, str], *, entity: str, view: View = PLAIN
) -> go.Figure:
    """Training curves side by side, each in a small panel of its own, validation where known."""
    figure = make_subplots(
        rows=1,
        cols=len(panels),
        horizontal_spacing=0.06,
        subplot_titles=list(panels.values()),
    )
    placed = frame.assign(at=axis_values(frame, view))
    for column, name in enumerate(panels, start=1):
        for split, colour in (("train", ACCENT), ("validation", MARK)):
            part = placed[placed["split"] == split]
            if not part[name].notna().any():
                continue
            trace = _line(part, name, PACE.get(name, name), legend=False)
            trace.line = {"color": colour, "width": 1.4}
            figure.add_trace(trace, row=1, col=column)
    figure.update_xaxes(showgrid=False, zeroline=False, automargin=True, nticks=5)
    if view.axis != "wall":
        figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(**value_axis(side="left"))
    figure.update_yaxes(nticks=4, exponentformat="SI")
    _left_titles(figure)
    finish(figure, height=190, entity=f"{entity}-{view.axis}", legend=False)
    figure.update_layout(margin_t=28)
    return figure


def schedule(frame: pd.DataFrame, *, entity: str, view: View = PLAIN) -> go.Figure:
    """The teacher-forcing ratios ε and the learning rate of every recorded training step."""
    train = frame[frame["split"] == "train"]
    train = train.assign(at=axis_values(train, view))
    titles = ("teacher-forcing ratio ε", "learning rate")
    figure = make_subplots(rows=1, cols=2, horizontal_spacing=0.08, subplot_titles=titles)
    lines = (
        ("epsilon", "conditioning", ACCENT, 1),
        ("epsilon_history", "history", MARK, 1),
        ("learning_rate", "learning rate", ACCENT, 2),
    )
    for name, label, colour, column in lines:
        if not train[name].notna().any():
            continue
        trace = _line(train, name, label, legend=column == 1)
        trace.line = {"color": colour, "width": 1.6}
        trace.hovertemplate = f"{label} %{{y:.4g}}<extra></extra>"
        figure.add_trace(trace, row=1, col=column)
    figure.update_xaxes(showgrid=False, zeroline=False, automargin=True)
    if view.axis != "wall":
        figure.update_xaxes(rangemode="tozero")
    figure.update_xaxes(title_text=AXIS_TITLES[view.axis])
    figure.update_yaxes(**value_axis(side="left"))
    figure.update_yaxes(range=[-0.04, 1.04], row=1, col=1)
    figure.update_yaxes(exponentformat="e", row=1, col=2)
    _left_titles(figure)
    several = bool(train["epsilon_history"].notna().any())
    finish(figure, height=210, entity=f"{entity}-{view.axis}", legend=several)
    figure.update_layout(margin_t=28, legend={"x": 0.46, "xanchor": "right", "y": 1.02})
    return figure


def epsilon_preview(
    steps: Sequence[int], curves: dict[str, Sequence[float]], *, entity: str
) -> go.Figure:
    """ε of both dials over the steps of a run that is being set up."""
    figure = go.Figure()
    for (label, values), (colour, dash) in zip(
        curves.items(), ((ACCENT, "solid"), (MARK, "dash")), strict=False
    ):
        figure.add_trace(
            go.Scatter(
                x=list(steps),
                y=list(values),
                mode="lines",
                name=label,
                line={"color": colour, "width": 2.2, "dash": dash},
                hovertemplate=f"{label} ε = %{{y:.3f}}<extra></extra>",
            )
        )
    figure.update_xaxes(showgrid=False, zeroline=False, title_text="step", nticks=5)
    figure.update_yaxes(**{**value_axis(".1f", side="left"), "range": [-0.04, 1.08], "nticks": 3})
    return finish(figure, height=180, entity=entity)


def _line(frame: pd.DataFrame, name: str, label: str, *, legend: bool) -> go.Scatter:
    values = frame[name].to_numpy(dtype=float)
    kept = thinned_places(values)
    return go.Scatter(
        x=frame["at"].to_numpy()[kept],
        y=values[kept],
        mode="lines",
        name=label,
        legendgroup=label,
        showlegend=legend,
        line={"color": TRAIN, "width": 1},
        hovertemplate=f"{label} %{{y:.4f}}<extra></extra>",
    )


def _marked(frame: pd.DataFrame, name: str, label: str, *, legend: bool) -> go.Scatter:
    trace = _line(frame, name, label, legend=legend)
    trace.mode = "lines+markers"
    trace.line = {"color": ACCENT, "width": 2.4}
    trace.marker = {"size": 6}
    return trace


def _own(validation: pd.DataFrame, *, shown: bool) -> go.Scatter:
    trace = _line(validation, "s2_own", "validation, own draw", legend=True)
    trace.line = {"color": ACCENT, "width": 1.4, "dash": "dot"}
    trace.visible = True if shown else "legendonly"
    return trace


def _practises_alone(train: pd.DataFrame) -> bool:
    """Whether training s2 is mostly measured on own draws, so that this is what it compares with.

    Elsewhere that curve lies so far above the others that it would flatten them.
    """
    ratios = train["epsilon"].dropna()
    return bool(len(ratios)) and float(ratios.iloc[0]) < 0.5


def _mark_best(
    figure: go.Figure, validation: pd.DataFrame, best_step: int | None, panels: dict[str, str]
) -> None:
    best = validation[validation["step"] == best_step]
    if best_step is None or best.empty:
        return
    for row, name in enumerate(panels, start=1):
        figure.add_trace(
            go.Scatter(
                x=[best["at"].iloc[0]],
                y=[float(best[name].iloc[0])],
                mode="markers",
                name=f"best step {best_step}",
                legendgroup="best",
                showlegend=row == 1,
                marker={"size": 11, "symbol": "diamond-open", "color": MARK, "line": {"width": 2}},
                hoverinfo="skip",
            ),
            row=row,
            col=1,
        )
        line = {"color": QUIET, "width": 1, "dash": "dot"}
        figure.add_vline(x=best["at"].iloc[0], line=line, row=row, col=1)


def _left_titles(figure: go.Figure) -> None:
    """Panel titles above the left edge of their panel, where the eye starts reading."""
    axes = list(figure.select_xaxes())
    for title, axis in zip(figure.layout.annotations, axes, strict=False):
        title.update(x=axis.domain[0], xanchor="left", font={"size": 12, "color": QUIET})
