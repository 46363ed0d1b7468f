"""What the teacher-forcing lab asks the service, and how a page waits for the answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import streamlit as st

from app.services import datasets, lab
from app.services.lab import Stretch
from app.storage.models import Dataset, Model
from app.storage.session import Store
from app.ui import components
from kronos_core.evaluation.exposure import Fork

SHOWN_PAST, FEW_BARS = 40, 16
PATIENCE_SECONDS = 0.6
"""Answers that come so soon are worth no progress bar."""
POLL_SECONDS = 0.5
_ASKED, _CANCELLED = "lab-asked", "lab-cancelled"


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where the lab looks: data, model, the index of the last known bar, and how far."""

    store: Store
    dataset: Dataset
    model: Model
    origin: int
    context: int
    horizon: int
    greedy: bool = False
    seed: int = 0

    @property
    def entity(self) -> str:
        """Names the place, so that a chart keeps its zoom while it stays."""
        return f"{self.dataset.id}-{self.model.id}-{self.origin}-{self.context}-{self.horizon}"

    def past(self, shown: int = SHOWN_PAST) -> pd.DataFrame:
        """The last bars up to the origin, as they are drawn."""
        bars = datasets.bars(self.store, self.dataset)
        return bars.iloc[: self.origin + 1].tail(min(shown, self.context))

    def guess(self) -> str:
        """Asks what is expected of the first bar. -> key"""
        return lab.start_guess(self.store, self._stretch(1))

    def second_guesses(self, branches: Fork) -> tuple[str, str]:
        """Asks for the second bar: after the true first bar, and after the own one. -> keys"""
        own = [branches.own.s1[0, :1].tolist(), branches.own.s2[0, :1].tolist()]
        stretch = self._stretch(2)
        return lab.start_guess(self.store, stretch), lab.start_guess(self.store, stretch, own=own)

    def probability(self) -> str:
        return lab.start_probability(self.store, self._stretch(self.horizon))

    def fork(self) -> str:
        return lab.start_fork(
            self.store, self._stretch(self.horizon), greedy=self.greedy, seed=self.seed
        )

    def walk(self, epsilon: float) -> str:
        stretch = self._stretch(self.horizon)
        return lab.start_walks(
            self.store, stretch, epsilon=epsilon, greedy=self.greedy, seed=self.seed
        )

    def gap(self) -> str:
        return lab.start_gap(self.store, self._stretch(self.horizon), seed=self.seed)

    def _stretch(self, horizon: int) -> Stretch:
        return Stretch(
            dataset_id=self.dataset.id,
            model_id=self.model.id,
            context=self.context,
            horizon=horizon,
            end=self.origin + horizon,
        )


def answers(keys: Sequence[str]) -> list[Any] | None:
    """The results of jobs, or None with a progress bar or a problem in their place.

    The page is drawn again once they are there.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    tasks = [lab.poll(key) for key in keys]
    while any(task and task.pending for task in tasks) and time.monotonic() < deadline:
        time.sleep(0.02)
        tasks = [lab.poll(key) for key in keys]
    for task in tasks:
        if task is not None and task.state == "failed":
            components.show_problem(task.reason or "This could not be computed.")
            return None
    if all(task is not None and task.state == "finished" for task in tasks):
        return [task.result for task in tasks if task is not None]
    st.fragment(_waiting, run_every=POLL_SECONDS)(list(keys))
    return None


def _waiting(keys: list[str]) -> None:
    tasks = [lab.poll(key) for key in keys]
    if not any(task and task.pending for task in tasks):
        st.rerun()
    done = sum(task.done for task in tasks if task)
    total = max(1, sum(task.total for task in tasks if task))
    with st.container(border=True, horizontal=True, vertical_alignment="center"):
        words = f"Computing: {done / total:.0%}" if done else "Waiting for the model"
        st.progress(min(done / total, 1.0), words, width="stretch")
        # The last step waits for two answers at once.
        if st.button("Cancel", icon=":material/close:", key=f"lab-cancel-{keys[0]}"):
            for key in keys:
                lab.cancel(key)
            st.session_state[_CANCELLED] = st.session_state[_ASKED]
            st.rerun()


def is_cancelled(place: Place, step: int) -> bool:
    """Whether the picture was cancelled and not asked for again; offers to do so.

    To be asked before anything is computed: asking for it again would start it again.
    """
    asked = st.session_state[_ASKED] = (step, place.entity, place.greedy, place.seed)
    if st.session_state.get(_CANCELLED) != asked:
        return False
    st.info("Cancelled.", icon=":material/block:")
    if st.button("Compute", type="primary", icon=":material/play_arrow:", key="lab-again"):
        del st.session_state[_CANCELLED]
        st.rerun()
    return True
