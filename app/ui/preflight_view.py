"""What stands in the pre-flight of the Fine-tune page: refusals, numbers, the measured probe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import streamlit as st

from app.services import runs
from app.storage.session import Store
from app.ui import components
from app.ui import format as fmt
from kronos_core.training.config import Plan
from kronos_core.training.probe import Probe

POLL_SECONDS = 0.5
_STARTED = "finetune-probe"


@dataclass(frozen=True, slots=True)
class _Started:
    """A measurement, and the inputs that it is for."""

    key: str
    inputs: dict[str, Any]


def measured(inputs: dict[str, Any]) -> Probe | None:
    """The finished measurement of these very inputs."""
    started: _Started | None = st.session_state.get(_STARTED)
    if started is None or started.inputs != inputs:
        return None
    task = runs.probe_result(started.key)
    return task.result if task is not None and task.state == "finished" else None


def numbers(found: runs.Preflight, probe: Probe | None) -> None:
    """What the run will do and take."""
    if found.plan is not None:
        components.facts(_plan_facts(found.plan) | _probe_facts(found.plan, probe), columns=1)
    for check in found.checks:
        if not check.ok:
            components.show_problem(check.message)
    fine = [check.message for check in found.checks if check.ok]
    if found.ok:
        with st.expander(f"{fmt.plural(len(fine), 'check')} passed", icon=":material/check:"):
            st.markdown("\n".join(f"- {fmt.plain(message)}" for message in fine))


def _plan_facts(plan: Plan) -> dict[str, str]:
    steps = fmt.count(plan.total_steps)
    if plan.tokenizer_steps:
        steps = f"{plan.tokenizer_steps:,} + {plan.predictor_steps:,}"
    windows = (plan.train_windows, plan.validation_windows, plan.test_windows)
    tokens = plan.tokens_per_epoch * plan.total_steps / max(plan.steps_per_epoch, 1)
    return {
        "Windows: train / val / test": " / ".join(fmt.count(count) for count in windows),
        "Steps per epoch": fmt.count(plan.steps_per_epoch),
        "Steps": steps,
        "Tokens in all": fmt.compact(tokens),
        "Gap": f"{plan.split.gap} bars",
    }


def _probe_facts(plan: Plan, probe: Probe | None) -> dict[str, str]:
    if probe is None:
        return {}
    return {
        "Device": probe.device,
        "Time, estimated": fmt.duration(probe.estimated_seconds),
        "Memory, estimated": f"{probe.estimated_memory_mb:,.0f} MiB",
        "Disk, at most": f"{probe.disk_mb:,.0f} MiB",
        "Tokens/s": fmt.compact(probe.tokens_per_second),
    }


def probing(store: Store, inputs: dict[str, Any]) -> None:
    """The button that measures, or how the measurement is going."""
    started: _Started | None = st.session_state.get(_STARTED)
    current = started is not None and started.inputs == inputs
    task = runs.probe_result(started.key) if started is not None and current else None
    if task is not None and task.pending:
        st.fragment(_waiting, run_every=POLL_SECONDS)(task.key)
        return
    if task is not None and task.reason:
        components.show_problem(task.reason)
    words = "Trains a copy for about five seconds on the chosen device; nothing is kept of it."
    again = task is not None and task.state == "finished"
    if st.button(
        "Measure again" if again else "Measure time and memory",
        icon=":material/speed:",
        key="probe",
        help=words,
        width="stretch",
    ):
        with components.problems():
            key = runs.start_probe(store, **inputs, again=again)
            st.session_state[_STARTED] = _Started(key, inputs)
            st.rerun()


def _waiting(key: str) -> None:
    task = runs.probe_result(key)
    if task is None or not task.pending:
        st.rerun()
    words = "Waiting for other work" if task.state == "queued" else "Measuring a few steps"
    st.markdown(f":material/hourglass_top: {words} …")
