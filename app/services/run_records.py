"""Reading fine-tuning runs: the rows, what they recorded, how far they are, how they differ."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from app.jobs.tasks import key_of, tasks
from app.services.errors import ServiceError
from app.storage import Store, repository
from app.storage.models import ACTIVE_STATES, Run, RunEvent, RunMetric
from kronos_core.training.config import TrainingConfig, tokenizer_share
from kronos_core.training.probe import Probe

RATE_WINDOW = timedelta(seconds=60)
RECENT_ROWS = 2000
"""Enough for the pace of the last minute, but few to read."""
TAIL_BYTES = 64 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a run is: a fraction in 0..1, and its pace where it can be measured.

    eta_seconds: what is left of the run; of its present stage alone where `stage_only`, since
    nobody knows yet how long the next one takes.
    """

    fraction: float
    eta_seconds: float | None = None
    stage_only: bool = False
    steps_per_second: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A setting in which runs differ: its dotted name, and the value that each run has."""

    name: str
    values: tuple[Any, ...]


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


def queued_runs(store: Store) -> list[Run]:
    """The queue, first in line first."""
    with store.session(write=False) as session:
        return repository.runs_in(session, ("queued",))


def metrics(
    store: Store,
    run_id: str,
    after_id: int = 0,
    split: str | None = None,
    limit: int | None = None,
) -> list[RunMetric]:
    """The run's metric rows with an id above `after_id`, oldest first."""
    with store.session(write=False) as session:
        return repository.metrics_after(session, run_id, after_id, limit, split)


def events(store: Store, run_id: str, after_id: int = 0) -> list[RunEvent]:
    """What happened to the run, oldest first."""
    with store.session(write=False) as session:
        return repository.events_after(session, run_id, after_id)


def sparklines(store: Store, runs: Sequence[Run], points: int = 60) -> dict[str, list[float]]:
    """Validation totals of each run's predictor, step 0 first; of many, about `points` evenly
    spread ones with the last among them. By run id; one query for all runs."""
    found: dict[str, list[float]] = {run.id: [] for run in runs}
    with store.session(write=False) as session:
        for run_id, total in repository.validation_totals(session, list(found)):
            found[run_id].append(total)
    return {run_id: _spread(totals, points) for run_id, totals in found.items()}


def _spread(values: list[float], points: int) -> list[float]:
    if len(values) <= points:
        return values
    last = len(values) - 1
    return [values[round(place * last / (points - 1))] for place in range(points)]


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
    that of the present attempt and stage alone; a stage that follows takes what a probe of the
    same settings said. `rows`, if given, are the latest metric rows."""
    total = max(run.total_steps, 1)
    fraction = 1.0 if run.state == "finished" else min(run.step / total, 1.0)
    if run.state not in ACTIVE_STATES or run.started_at is None:
        return Progress(fraction=fraction)
    config = config_of(run)
    stage = run.stage or ("predictor" if config.tokenizer is None else "tokenizer")
    known = _recent(store, run.id) if rows is None else rows
    pace = _pace([row for row in known if row.stage == stage], run.started_at)
    if not pace:
        return Progress(fraction=fraction)
    first = stage == "tokenizer"
    steps = tokenizer_share(config, run.total_steps) if first else run.total_steps
    probe = measured(run) if first else None
    left = max(0, steps - run.step) / pace + (probe.predictor_seconds if probe else 0.0)
    only = first and probe is None
    return Progress(fraction=fraction, eta_seconds=left, stage_only=only, steps_per_second=pace)


def probe_key(data_hashes: Sequence[str], model_hash: str, config: Mapping[str, Any]) -> str:
    """The key under which a measurement of these inputs is kept."""
    inputs = {"data": list(data_hashes), "model": model_hash, "config": dict(config)}
    return key_of("probe", inputs)


def measured(run: Run) -> Probe | None:
    """What this server measured of a run like this one, if it did."""
    task = tasks().poll(probe_key(run.data_hashes, run.model_hash, run.config))
    return task.result if task is not None and task.state == "finished" else None


def _recent(store: Store, run_id: str) -> list[RunMetric]:
    with store.session(write=False) as session:
        return repository.latest_metrics(session, run_id, RECENT_ROWS)


def _pace(rows: Sequence[RunMetric], since: datetime) -> float | None:
    """Steps per second over the last minute of one stage's training rows after `since`."""
    # Rows of one batch share a time, at which the last was taken.
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


def compare_settings(runs: Sequence[Run]) -> list[Difference]:
    """The settings in which the runs differ, in the order in which they appear; None where a run
    does not have a setting. Data and base model are compared by what they hold."""
    each = [flat_settings(run) for run in runs]
    names = dict.fromkeys(name for settings in each for name in settings)
    rows = [
        Difference(name=name, values=tuple(settings.get(name) for settings in each))
        for name in names
    ]
    return [row for row in rows if any(value != row.values[0] for value in row.values)]


def flat_settings(run: Run) -> dict[str, Any]:
    """The run's settings under dotted names, with its data, base model and code."""
    settings = _flat(run.config)
    return settings | {
        "datasets": list(run.dataset_ids),
        "data_hashes": list(run.data_hashes),
        "base_model": run.base_model_id,
        "model_hash": run.model_hash,
        "code_version": run.code_version,
    }


def _flat(values: Mapping[str, Any], owner: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{owner}{name}.")
        else:
            flat[f"{owner}{name}"] = value
    return flat
