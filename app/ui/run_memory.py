"""The rows of runs that a session has read, so that a live page asks only for new ones."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd
import streamlit as st

from app.services import runs
from app.storage.models import Run, RunMetric
from app.storage.session import Store
from app.ui import charts_training

RECENT_ROWS = 1000  # enough for the pace of the last minute


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


def glance(store: Store, run: Run) -> Memory:
    """Pace and validation losses of a run, without its full history."""
    return _read(store, run, "glances", full=False)


def follow(store: Store, run: Run) -> Memory:
    """The same with the full history as a frame; one run at a time is kept."""
    kept = st.session_state.get("histories", {})
    st.session_state["histories"] = {key: kept[key] for key in kept if key == run.id}
    return _read(store, run, "histories", full=True)


def _read(store: Store, run: Run, slot: str, *, full: bool) -> Memory:
    kept: dict[str, Memory] = st.session_state.setdefault(slot, {})
    memory = kept.get(run.id)
    # A resume may write rows again from its checkpoint on, under the ids they had.
    if memory is None or memory.resumes != run.resumes:
        memory = kept[run.id] = Memory(run.resumes)
    rows = runs.metrics(store, run.id, memory.last_id)
    if rows:
        memory.last_id = max(row.id for row in rows)
        memory.recent = (memory.recent + rows)[-RECENT_ROWS:]
        memory.totals += [row.total for row in rows if row.split == "validation"]
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
