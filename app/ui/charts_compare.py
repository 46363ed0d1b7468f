"""Figures of several runs over one axis, and of how a run's bars are split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from app.ui.chart_style import ACCENT, GRID, QUIET, finish, translucent, value_axis
from app.ui.curves import AXIS_TITLES, Clipping, View, axis_values, smoothed, thinned_places

# Distinct also for colour-blind eyes, on light and on dark ground (after Okabe & Ito).
COLOURS = ("#1a9a92", "#dd8a1f", "#3f86c6", "#b45fa3", "#8a949b", "#c9b12b", "#d2504c", "#5a6fd0")
CURVES = {
    "total": "Total",
    "s1": "s1",
    "s2": "s2",
    "s2_own": "s2, own draw",
    "exposure_gap": "Exposure gap",
    "horizon_loss": "Horizon only",
    "learning_rate": "Learning rate",
    "tokens_per_second": "Tokens/s",
}
PARTS = {
    "training": translucent(ACCENT, 0.85),
    "gap": GRID,
    "validation": "#dd8a1f",
    "test": "#8a949b",
}


def overlay(
    frames: Mapping[str, pd.DataFrame],
    name: str,
    *,
    view: View,
    entity: str,
    clipping: Clipping | None = None,
) -> go.Figure:
    """One curve of several runs over one axis: validation bold, training thin behind it."""
    figure = go.Figure()
    everything: list[np.ndarray] = []
    for place, (label, frame) in enumerate(frames.items()):
        colour = COLOURS[place % len(COLOURS)]
        placed = frame.assign(at=axis_values(frame, view))
        everything.append(frame[name].to_numpy(dtype=float))
        for split in ("train", "validation"):
            part = placed[placed["split"] == split]
            if part[name].notna().any():
                _run(figure, part, name, label, colour, view, bold=split == "validation")
    figure.update_yaxes(**value_axis(".4~g", side="left"), title_text=CURVES[name])
    if view.log:
        figure.update_yaxes(type="log")
    if view.clip and everything:
        limits = (clipping or Clipping()).range_of(
            CURVES[name], np.concatenate(everything), log=view.log
        )
        if limits is not None:
            figure.update_yaxes(range=limits)
    figure.update_xaxes(
        showgrid=False, zeroline=False, automargin=True, title_text=AXIS_TITLES[view.axis]
    )
    finish(figure, height=460, entity=f"{entity}-{name}-{view.axis}-{view.log}-{view.clip}")
    return figure.update_layout(hovermode="closest")


def _run(
    figure: go.Figure,
    part: pd.DataFrame,
    name: str,
    label: str,
    colour: str,
    view: View,
    *,
    bold: bool,
) -> None:
    values = part[name].to_numpy(dtype=float)
    lines = [(values, 2.4, 1.0)] if bold else [(values, 1.0, 0.45)]
    if view.smooth and not bold:
        lines = [(values, 1.0, 0.2), (smoothed(values, view.smooth), 1.5, 0.75)]
    words = f"{label}, {'validation' if bold else 'training'}"
    for line, width, strength in lines:
        kept = thinned_places(line)
        figure.add_trace(
            go.Scatter(
                x=part["at"].to_numpy()[kept],
                y=line[kept],
                mode="lines+markers" if bold else "lines",
                name=label,
                legendgroup=label,
                showlegend=bold,
                opacity=strength,
                line={"color": colour, "width": width},
                marker={"size": 6},
                hovertemplate=f"{words}<br>%{{x}}: %{{y:.4g}}<extra></extra>",
            )
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitBar:
    """How the bars of one dataset are split: parts as (part, first bar, stop), and bar labels."""

    name: str
    parts: Sequence[tuple[str, int, int]]
    bars: int
    labels: Mapping[int, str]


def split_timeline(rows: Sequence[SplitBar], *, entity: str) -> go.Figure:
    """Train, gap, validation and test along the bars of every dataset, as shares of its length."""
    figure = go.Figure()
    seen: set[str] = set()
    for row in rows:
        for part, first, stop in row.parts:
            words = f"{part}: {row.labels[first]} to {row.labels[stop - 1]}, {stop - first:,} bars"
            figure.add_trace(
                go.Bar(
                    y=[row.name],
                    x=[(stop - first) / row.bars],
                    base=[first / row.bars],
                    orientation="h",
                    name=part,
                    legendgroup=part,
                    showlegend=part not in seen and part != "gap",
                    marker={"color": PARTS[part], "line": {"width": 0}},
                    hovertemplate=f"{words}<extra></extra>",
                )
            )
            seen.add(part)
    several = len(rows) > 1
    figure.update_xaxes(range=[0, 1], showgrid=False, zeroline=False, showticklabels=False)
    figure.update_yaxes(
        showticklabels=several, showgrid=False, automargin=True, autorange="reversed"
    )
    finish(figure, height=60 + 24 * len(rows), entity=entity)
    return figure.update_layout(
        barmode="overlay", bargap=0.35, hovermode="closest", legend_font_color=QUIET, dragmode=False
    )
