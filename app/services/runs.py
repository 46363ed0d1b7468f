"""Fine-tuning runs: queueing, stopping, resuming, and what they have recorded."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from app.services import datasets, models
from app.services.errors import ServiceError
from app.services.shared import LONGEST_NAME, clean_name, drop_unused_bars
from app.services.status import version
from app.storage import repository
from app.storage.models import (
    ACTIVE_STATES,
    RESUMABLE_STATES,
    Dataset,
    Model,
    Run,
    RunEvent,
    RunMetric,
    utc_now,
)
from app.storage.session import Store
from kronos_core.model.zoo import resolve_device
from kronos_core.training.config import Plan, TrainingConfig, plan

RATE_WINDOW = timedelta(seconds=60)
TAIL_BYTES = 64 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a run is: a fraction in 0..1, and its pace where it can be measured."""

    fraction: float
    eta_seconds: float | None
    steps_per_second: float | None


def preflight(store: Store, dataset_id: str, model_id: str, config: TrainingConfig) -> Plan:
    """What the run would do. ServiceError with the numbers and the remedy if it cannot work."""
    dataset, model = datasets.get(store, dataset_id), models.get(store, model_id)
    return _plan(dataset, model, config)


def _plan(dataset: Dataset, model: Model, config: TrainingConfig) -> Plan:
    try:
        resolve_device(config.device)
        return plan(dataset.bars, config, model.max_context)
    except ValueError as error:
        raise ServiceError(str(error)) from error


def queue(
    store: Store,
    *,
    dataset_id: str,
    model_id: str,
    config: TrainingConfig,
    name: str | None = None,
) -> Run:
    """Queues a run after its pre-flight; a supervisor starts it when its device is free."""
    dataset, model = datasets.get(store, dataset_id), models.get(store, model_id)
    steps = _plan(dataset, model, config).total_steps
    run = Run(
        name=clean_name(name, "run") if name and name.strip() else _name_for(dataset, model),
        state="queued",
        dataset_id=dataset.id,
        base_model_id=model.id,
        config=config.to_dict(),
        device=config.device,
        total_steps=steps,
        data_hash=dataset.data_hash,
        model_hash=model.model_hash,
        code_version=version(),
    )
    with store.session() as session:
        repository.add(session, run)
        repository.append_event(session, run.id, "queued", f"Queued for {steps} steps.")
    return run


def _name_for(dataset: Dataset, model: Model) -> str:
    when = f", {utc_now():%d %b %H:%M}"
    return f"{dataset.name}, {model.name}"[: LONGEST_NAME - len(when)] + when


def get(store: Store, run_id: str) -> Run:
    """The run with this id, or with an id that begins so. ServiceError if there is none."""
    with store.session(write=False) as session:
        run = repository.get(session, Run, run_id)
        if run is not None:
            return run
        alike = [run for run in repository.newest(session, Run) if run.id.startswith(run_id)]
    if len(alike) != 1 or not run_id:
        problem = "several runs begin so" if run_id and alike else "there is no such run"
        raise ServiceError(
            f'Run "{run_id}": {problem}. The Runs page and `python -m app runs` list them.'
        )
    return alike[0]


def config_of(run: Run) -> TrainingConfig:
    """The settings that the run was queued with."""
    return TrainingConfig.from_dict(run.config)


def list_runs(store: Store, limit: int | None = None) -> list[Run]:
    """All runs, newest first."""
    with store.session(write=False) as session:
        return repository.newest(session, Run, limit)


def stop(store: Store, run_id: str) -> Run:
    """Cancels a queued run at once; asks a running one to save and stop."""
    run = get(store, run_id)
    with store.session() as session:
        ended = repository.set_state(
            session,
            run.id,
            "stopped",
            allowed_from=("queued",),
            reason="Cancelled before it started. Resume puts it back into the queue.",
            finished_at=utc_now(),
        )
        asked = ended or repository.set_state(
            session,
            run.id,
            "stopping",
            allowed_from=("starting", "running"),
            stop_requested=True,
        )
        if asked:
            message = "Cancelled before it started." if ended else "Asked to save and stop."
            repository.append_event(session, run.id, "stopped" if ended else "stopping", message)
    run = get(store, run.id)
    if not asked and run.state != "stopping":
        raise ServiceError(f"{run.name} is {run.state}; there is nothing to stop.")
    return run


cancel = stop


def resume(store: Store, run_id: str) -> Run:
    """Puts a stopped, failed or orphaned run back into the queue; it continues from its last
    checkpoint."""
    run = get(store, run_id)
    with store.session() as session:
        queued = repository.set_state(
            session,
            run.id,
            "queued",
            allowed_from=RESUMABLE_STATES,
            stop_requested=False,
            resumes=run.resumes + 1,
            queued_at=utc_now(),
            device=run.config["device"],
            finished_at=None,
            reason=None,
            host=None,
            pid=None,
            pid_started=None,
            heartbeat_at=None,
        )
        if queued:
            repository.append_event(session, run.id, "queued", "Queued again by a resume.")
    if not queued:
        raise ServiceError(
            f"{run.name} is {run.state}; only {', '.join(RESUMABLE_STATES)} runs can be resumed."
        )
    return get(store, run.id)


def delete(store: Store, run_id: str) -> None:
    """Deletes a run with its curves, log, checkpoints, and its bars if nothing else needs them.

    A model that came of it stays.
    """
    run = get(store, run_id)
    with store.session() as session:
        current = repository.get(session, Run, run.id)
        if current is not None and current.state in ACTIVE_STATES:
            raise ServiceError(f"{run.name} is {current.state}. Stop it first, then delete it.")
        repository.delete_run(session, run.id)
    store.files.delete_run(run.id)
    drop_unused_bars(store, {run.data_hash})


def metrics(store: Store, run_id: str, after_id: int = 0) -> list[RunMetric]:
    """The run's metric rows with an id above `after_id`, oldest first."""
    with store.session(write=False) as session:
        return repository.metrics_after(session, run_id, after_id)


def events(store: Store, run_id: str) -> list[RunEvent]:
    """What happened to the run, oldest first."""
    with store.session(write=False) as session:
        return repository.events_after(session, run_id)


def log_tail(store: Store, run_id: str, lines: int = 60) -> str:
    """The last lines of the run's log; empty before its worker has written any."""
    path = store.files.log_path(run_id)
    return "\n".join(_tail(path).splitlines()[-lines:]) if path.exists() else ""


def _tail(path: Path) -> str:
    with path.open("rb") as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(0, size - TAIL_BYTES))
        return log.read().decode("utf-8", errors="replace")


def progress(store: Store, run: Run, rows: Sequence[RunMetric] | None = None) -> Progress:
    """How far the run is and how long it still takes at the pace of its last minute. The pace is
    that of the present attempt alone. `rows`, if given, are the run's latest metric rows."""
    total = max(run.total_steps, 1)
    fraction = 1.0 if run.state == "finished" else min(run.step / total, 1.0)
    if run.state not in ACTIVE_STATES or run.started_at is None:
        return Progress(fraction=fraction, eta_seconds=None, steps_per_second=None)
    known = metrics(store, run.id) if rows is None else rows
    pace = _pace(known, run.started_at)
    remaining = (run.total_steps - run.step) / pace if pace else None
    return Progress(fraction=fraction, eta_seconds=remaining, steps_per_second=pace)


def _pace(rows: Sequence[RunMetric], since: datetime) -> float | None:
    """Steps per second over the last minute of training rows recorded after `since`."""
    # Rows of one batch share a time, at which the last of them was taken.
    reached: dict[datetime, int] = {}
    for row in rows:
        if row.split == "train" and row.recorded_at >= since:
            reached[row.recorded_at] = max(row.step, reached.get(row.recorded_at, 0))
    if not reached:
        return None
    latest = max(reached)
    first = min(moment for moment in reached if latest - moment <= RATE_WINDOW)
    seconds = (latest - first).total_seconds()
    return (reached[latest] - reached[first]) / seconds if seconds > 0 else None
