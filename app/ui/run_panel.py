"""The part of a run's page that moves: progress, numbers, curves."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app.services import runs
from app.storage.models import Run
from app.storage.session import Store
from app.ui import charts_training, components, curve_controls, run_memory, run_view, teaching
from app.ui import format as fmt
from app.ui.curves import Clipping, View
from app.ui.live_chart import live_chart


def live(store: Store, run_id: str, seen_state: str) -> None:
    """Everything about a run that moves; redrawn alone while the run is active."""
    run = runs.get(store, run_id)
    if run.state != seen_state:
        st.rerun()
    (memory,) = run_memory.follow(store, [run])
    progress_line(store, run, memory.progress(store, run))
    stage = stage_choice(run, memory.frame)
    frame = memory.frame[memory.frame["stage"] == stage]
    numbers(frame, stage)
    curves(run, frame, stage)


def progress_line(store: Store, run: Run, progress: runs.Progress) -> None:
    """How far the run is; for a queued one its place in the queue."""
    parts = [f"step {run.step:,} of {run.total_steps:,}", f"epoch {run.epoch:.2f}"]
    if run.state in components.BUSY_STATES and run.stage == "tokenizer":
        parts.append("tokenizer stage")
    if progress.steps_per_second:
        parts.append(f"{progress.steps_per_second:.2g} steps/s")
    if left := components.time_left(progress):
        parts.append(left)
    if run.state == "queued":
        ids = [row.id for row in runs.queued_runs(store)]
        place = f"number {ids.index(run.id) + 1} of {len(ids)}" if run.id in ids else "next"
        parts = [f"waiting for its turn, {place} in the queue"]
    st.progress(progress.fraction, " · ".join(parts))


def stage_choice(run: Run, frame: pd.DataFrame) -> str:
    """Which stage is shown: the present one, until another is chosen."""
    stages = [name for name in ("tokenizer", "predictor") if (frame["stage"] == name).any()]
    if len(stages) < 2:
        return stages[0] if stages else "predictor"
    return st.segmented_control(
        "Stage",
        stages,
        default="predictor",
        required=True,
        format_func=str.capitalize,
        key=f"stage-{run.id}",
        label_visibility="collapsed",
    )


PREDICTOR_NUMBERS = {
    "Validation s1": ("s1", "Loss of the coarse token, in nats."),
    "Validation s2": ("s2", "Loss of the fine token given the true s1, in nats."),
    "Validation total": ("total", "Mean of s1 and s2; the best step has the lowest."),
    "Exposure gap": ("exposure_gap", teaching.EXPOSURE_HELP),
}
TOKENIZER_NUMBERS = {
    "Coarse": ("coarse", "Squared error of bars rebuilt from s1 alone, in normalised units."),
    "Fine": ("fine", "Squared error of bars rebuilt from s1 and s2, in normalised units."),
    "Validation total": ("total", "Half of coarse, fine and the quantiser's loss together."),
    "Codebook in use": ("codebook_use", "Share of the tokens that occur at all."),
}


def numbers(frame: pd.DataFrame, stage: str) -> None:
    """The newest evaluation and its change since the one before."""
    validation = run_view.validation_rows(frame)
    shown = PREDICTOR_NUMBERS if stage == "predictor" else TOKENIZER_NUMBERS
    for column, (label, (name, words)) in zip(st.columns(4), shown.items(), strict=True):
        reading = run_view.reading(validation, name)
        column.metric(
            label,
            fmt.loss(reading.value),
            fmt.loss_change(reading.change),
            delta_color="off" if name == "codebook_use" else "inverse",
            help=words,
        )


def curves(run: Run, frame: pd.DataFrame, stage: str) -> None:
    """Losses over the chosen axis, then dials and pace."""
    if frame.empty:
        st.caption("The first losses appear here as soon as the worker has measured them.")
        return
    view, clipping = curve_controls.view(f"curves-{run.id}"), Clipping()
    predictor = stage == "predictor"
    figure = charts_training.losses(
        frame,
        best_step=run.best_step if predictor else None,
        entity=f"{run.id}-{stage}",
        view=view,
        clipping=clipping,
        panels=charts_training.LOSSES if predictor else charts_training.TOKENIZER_LOSSES,
    )
    alt = f"Training and validation losses of the {stage} of {run.name} up to step {run.step}"
    live_chart(figure, key="losses", alt=alt)
    if view.clip:
        st.caption(clipping.sentence())
    if predictor:
        st.caption(teaching.CURVES_HELP)
    below(run, frame, view, stage)


def below(run: Run, frame: pd.DataFrame, view: View, stage: str) -> None:
    """ε and the learning rate, or the rest of the tokenizer's losses; then the pace."""
    if stage == "predictor":
        figure = charts_training.schedule(frame, entity=run.id, view=view)
        alt = f"Teacher-forcing ratio and learning rate of {run.name}"
    else:
        panels = charts_training.TOKENIZER_MORE
        figure = charts_training.small_curves(frame, panels, entity=run.id, view=view)
        alt = f"Commitment, entropies and use of the codebook of {run.name}"
    live_chart(figure, key="schedule", alt=alt)
    pace = charts_training.small_curves(frame, charts_training.PACE, entity=run.id, view=view)
    live_chart(pace, key="pace", alt=f"Gradient norm, tokens per second and memory of {run.name}")
