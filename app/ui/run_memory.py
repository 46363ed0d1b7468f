"""The rows of runs that a session has read, so that a live page asks only for new ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pandas as pd
import streamlit as st

from app.services import runs
from app.storage.models import ACTIVE_STATES, Run, RunMetric
from app.storage.session import Store
from app.ui import charts_training

RECENT_ROWS = 1000  # enough for the pace of the last minute
POINTS = 2000  # of each curve at the first reading; a long run is thinned to them
_STATES = "run-states"


@dataclass(slots=True)
class Memory:
    """What was read of one run up to the row `last_id`."""

    resumes: int
    last_id: int = 0
    recent: list[RunMetric] = field(default_factory=list)
    totals: list[float] = field(default_factory=list)
    history: pd.DataFrame | None = None

    def progress(self, store: Store, run: Run) -> runs.Progress:
        """How far the run is, from the rows at hand."""
        return runs.progress(store, run, self.recent)

    @property
    def frame(self) -> pd.DataFrame:
        """The history; an empty one before anything was measured."""
        return charts_training.history([]) if self.history is None else self.history


def glance(store: Store, run: Run) -> Memory:
    """Pace and validation losses of a run, without its full history."""
    return _read(store, run, "glances", full=False)


def follow(store: Store, chosen: Sequence[Run]) -> list[Memory]:
    """The same with the histories as frames; only those of these runs are kept."""
    kept = st.session_state.get("histories", {})
    ids = {run.id for run in chosen}
    st.session_state["histories"] = {key: kept[key] for key in kept if key in ids}
    return [_read(store, run, "histories", full=True) for run in chosen]


def just_ended(rows: Sequence[Run]) -> list[Run]:
    """Runs that this session saw at work and that have ended since."""
    seen: dict[str, str] = st.session_state.get(_STATES, {})
    st.session_state[_STATES] = {row.id: row.state for row in rows}
    over = ("finished", "failed", "stopped", "orphaned")
    return [row for row in rows if seen.get(row.id) in ACTIVE_STATES and row.state in over]


def _read(store: Store, run: Run, slot: str, *, full: bool) -> Memory:
    kept: dict[str, Memory] = st.session_state.setdefault(slot, {})
    memory = kept.get(run.id)
    # A resume may write rows again from its checkpoint on, under the ids they had.
    fresh = memory is None or memory.resumes != run.resumes
    if memory is None or fresh:
        memory = kept[run.id] = Memory(run.resumes)
    if fresh and (full or run.state in ACTIVE_STATES):
        rows = runs.thinned(store, run.id, POINTS)
    elif full or run.state in ACTIVE_STATES:
        rows = runs.metrics(store, run.id, memory.last_id)
    else:
        rows = runs.metrics(store, run.id, memory.last_id, split="validation")
    if rows:
        memory.last_id = max(row.id for row in rows)
        memory.recent = (memory.recent + rows)[-RECENT_ROWS:]
        memory.totals += [
            row.total for row in rows if (row.split, row.stage) == ("validation", "predictor")
        ]
    if full:
        memory.history = _extended(memory.history, rows)
    return memory


def _extended(known: pd.DataFrame | None, rows: list[RunMetric]) -> pd.DataFrame:
    if known is not None and not rows:
        return known
    fresh = charts_training.history(rows)
    if known is None or known.empty:
        return fresh
    return pd.concat([known, fresh], ignore_index=True)
