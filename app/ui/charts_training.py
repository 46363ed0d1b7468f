"""Figures of fine-tuning: losses, the schedule of the teacher-forcing ratio, learning rate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots
from tsdownsample import MinMaxLTTBDownsampler

from app.ui.chart_style import ACCENT, QUIET, finish, value_axis

DISPLAY_POINTS = 1500
COLUMNS = (
    "split", "step", "epoch", "s1", "s2", "total", "epsilon", "learning_rate", "grad_norm",
    "tokens_per_second", "s2_own", "exposure_gap", "horizon_loss",
)  # fmt: skip
TRAIN = "#6f9fce"
MARK = "#dd8a1f"


def history(rows: Iterable[Any]) -> pd.DataFrame:
    """Recorded metric rows as a frame sorted by step, one column for each of COLUMNS."""
    records = [tuple(getattr(row, name) for name in COLUMNS) for row in rows]
    frame = pd.DataFrame.from_records(records, columns=list(COLUMNS))
    numeric = [name for name in COLUMNS if name != "split"]
    frame[numeric] = frame[numeric].apply(pd.to_numeric)
    return frame.sort_values("step", kind="stable", ignore_index=True)


def downsample(
    steps: np.ndarray, values: np.ndarray, limit: int = DISPLAY_POINTS
) -> tuple[np.ndarray, np.ndarray]:
    """At most about `limit` points of a curve; minimum, maximum, first and last always survive."""
    known = np.isfinite(values)
    steps, values = steps[known], values[known]
    if len(values) <= limit:
        return steps, values
    x = np.ascontiguousarray(steps, dtype=np.float64)
    y = np.ascontiguousarray(values, dtype=np.float64)
    downsampler = MinMaxLTTBDownsampler()  # type: ignore[no-untyped-call]
    kept = downsampler.downsample(x, y, n_out=limit)
    ends = [0, len(y) - 1, int(y.argmin()), int(y.argmax())]
    index = np.unique(np.concatenate([kept.astype(np.int64), ends]))
    return steps[index], values[index]


def losses(frame: pd.DataFrame, *, best_step: int | None, entity: str) -> go.Figure:
    """s1, s2 and total below each other over one step axis; training thin, validation bold."""
    figure = make_subplots(
        rows=3,
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.045,
        row_heights=[0.37, 0.37, 0.26],
        subplot_titles=("s1, coarse token (nats)", "s2, fine token (nats)", "total (mean of both)"),
    )
    train = frame[frame["split"] == "train"]
    validation = frame[frame["split"] == "validation"]
    for row, name in enumerate(("s1", "s2", "total"), start=1):
        figure.add_trace(_line(train, name, "training", legend=row == 1), row=row, col=1)
        figure.add_trace(_marked(validation, name, "validation", legend=row == 1), row=row, col=1)
    if validation["s2_own"].notna().any():
        figure.add_trace(_own(validation, shown=_practises_alone(train)), row=2, col=1)
    _mark_best(figure, validation, best_step)
    figure.update_yaxes(**value_axis(".3~f", side="left"))
    figure.update_xaxes(showgrid=False, zeroline=False, rangemode="tozero", automargin=True)
    figure.update_xaxes(title_text="step", row=3, col=1)
    _left_titles(figure)
    finish(figure, height=620, entity=entity)
    figure.update_layout(hovermode="x unified", legend_y=1.05, margin_t=48)
    return figure


def schedule(frame: pd.DataFrame, *, entity: str) -> go.Figure:
    """The teacher-forcing ratio ε and the learning rate of every recorded training step."""
    train = frame[frame["split"] == "train"]
    figure = make_subplots(
        rows=1,
        cols=2,
        horizontal_spacing=0.08,
        subplot_titles=("teacher-forcing ratio ε", "learning rate"),
    )
    for column, name in enumerate(("epsilon", "learning_rate"), start=1):
        steps, values = downsample(train["step"].to_numpy(), train[name].to_numpy(dtype=float))
        trace = go.Scatter(x=steps, y=values, mode="lines", name=name, showlegend=False)
        trace.line = {"color": ACCENT, "width": 1.6}
        trace.hovertemplate = "step %{x}: %{y:.4g}<extra></extra>"
        figure.add_trace(trace, row=1, col=column)
    figure.update_xaxes(showgrid=False, zeroline=False, rangemode="tozero", automargin=True)
    figure.update_xaxes(title_text="step")
    figure.update_yaxes(**value_axis(side="left"))
    figure.update_yaxes(range=[-0.04, 1.04], row=1, col=1)
    figure.update_yaxes(exponentformat="e", row=1, col=2)
    _left_titles(figure)
    finish(figure, height=210, entity=entity)
    return figure


def epsilon_preview(steps: Sequence[int], values: Sequence[float], *, entity: str) -> go.Figure:
    """ε over the steps of a run that is being set up."""
    figure = go.Figure(
        go.Scatter(
            x=list(steps),
            y=list(values),
            mode="lines",
            fill="tozeroy",
            fillcolor="rgba(26,154,146,0.15)",
            line={"color": ACCENT, "width": 2},
            hovertemplate="step %{x}: ε = %{y:.3f}<extra></extra>",
        )
    )
    figure.update_xaxes(showgrid=False, zeroline=False, title_text="step", nticks=5)
    figure.update_yaxes(**{**value_axis(".1f", side="left"), "range": [-0.02, 1.05], "nticks": 3})
    return finish(figure, height=150, entity=entity, legend=False)


def _line(frame: pd.DataFrame, name: str, label: str, *, legend: bool) -> go.Scatter:
    steps, values = downsample(frame["step"].to_numpy(), frame[name].to_numpy(dtype=float))
    return go.Scatter(
        x=steps,
        y=values,
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


def _mark_best(figure: go.Figure, validation: pd.DataFrame, best_step: int | None) -> None:
    best = validation[validation["step"] == best_step]
    if best_step is None or best.empty:
        return
    for row, name in enumerate(("s1", "s2", "total"), start=1):
        figure.add_trace(
            go.Scatter(
                x=[best_step],
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
        figure.add_vline(x=best_step, line=line, row=row, col=1)


def _left_titles(figure: go.Figure) -> None:
    """Panel titles above the left edge of their panel, where the eye starts reading."""
    axes = list(figure.select_xaxes())
    for title, axis in zip(figure.layout.annotations, axes, strict=False):
        title.update(x=axis.domain[0], xanchor="left", font={"size": 12, "color": QUIET})
