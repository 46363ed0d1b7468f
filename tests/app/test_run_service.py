"""Queueing, stopping and resuming runs, and reading what they recorded."""

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from app.services import dataset_care, runs
from app.services.errors import ServiceError
from app.storage import Store, repository
from app.storage.models import RESUMABLE_STATES, RUN_STATES, Dataset, Model, Run, RunMetric
from app.ui import components
from kronos_core.training import probe as measuring
from kronos_core.training.config import TrainingConfig
from kronos_core.training.options import TokenizerStage

BEGAN = datetime(2024, 5, 1, 12, tzinfo=UTC)


def change(store: Store, run: Run, state: str, **fields: object) -> Run:
    with store.session() as session:
        current = runs.get(store, run.id).state
        assert repository.set_state(session, run.id, state, allowed_from=(current,), **fields)
    return runs.get(store, run.id)


# ---------------------------------------------------------------- queueing


def test_a_queued_run_carries_what_makes_it_reproducible(
    run: Run, dataset: Dataset, model: Model, config: TrainingConfig
) -> None:
    assert run.state == "queued"
    assert runs.config_of(run) == config
    assert (run.data_hash, run.model_hash) == (dataset.data_hash, model.model_hash)
    assert run.code_version
    assert run.total_steps > 0


def test_preflight_and_queue_agree(
    store: Store, dataset: Dataset, model: Model, run: Run, config: TrainingConfig
) -> None:
    found = runs.preflight(store, datasets=[dataset.name], model_id=model.name, config=config)
    assert found.ok
    assert found.plan is not None
    assert found.plan.total_steps == run.total_steps
    assert {check.name for check in found.checks} >= {"context", "windows", "batch", "disk"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"context": 600}, "512"),
        ({"batch_size": 500}, "batch"),
        ({"device": "abacus"}, "abacus"),
    ],
)
def test_what_cannot_work_is_refused_and_not_stored(
    store: Store,
    dataset: Dataset,
    model: Model,
    config: TrainingConfig,
    fields: dict[str, object],
    message: str,
) -> None:
    impossible = replace(config, **fields)  # type: ignore[arg-type]
    with pytest.raises(ServiceError, match=message):
        runs.queue(store, dataset_id=dataset.id, model_id=model.id, config=impossible)
    assert runs.list_runs(store) == []


def test_a_run_without_a_name_gets_one(
    store: Store, dataset: Dataset, model: Model, config: TrainingConfig
) -> None:
    run = runs.queue(store, dataset_id=dataset.id, model_id=model.id, config=config, name=" ")
    assert run.name.startswith("Walk, Tiny, ")


# ---------------------------------------------------------------- finding


def test_the_beginning_of_an_id_is_enough(store: Store, run: Run) -> None:
    assert runs.get(store, run.id[:5]).id == run.id


@pytest.mark.parametrize("run_id", ["", "zz"])
def test_an_unknown_run_is_named(store: Store, run: Run, run_id: str) -> None:
    with pytest.raises(ServiceError, match=f'"{run_id}": there is no such run'):
        runs.get(store, run_id)


# ---------------------------------------------------------------- stop, resume, delete


def test_a_queued_run_is_cancelled_at_once(store: Store, run: Run) -> None:
    stopped = runs.stop(store, run.id)
    assert stopped.state == "stopped"
    assert "before it started" in (stopped.reason or "")
    assert stopped.finished_at is not None


@pytest.mark.parametrize("state", ["starting", "running"])
def test_an_active_run_is_asked(store: Store, run: Run, state: str) -> None:
    change(store, run, state)
    asked = runs.stop(store, run.id)
    assert (asked.state, asked.stop_requested) == ("stopping", True)
    assert runs.stop(store, run.id).state == "stopping"


@pytest.mark.parametrize("state", ["finished", "failed", "orphaned"])
def test_what_has_ended_cannot_be_stopped(store: Store, run: Run, state: str) -> None:
    change(store, run, state)
    with pytest.raises(ServiceError, match="nothing to stop"):
        runs.stop(store, run.id)


@pytest.mark.parametrize("state", RUN_STATES)
def test_only_resumable_states_go_back_into_the_queue(store: Store, run: Run, state: str) -> None:
    change(store, run, state, stop_requested=True, host="here", pid=1, device="cuda")
    if state not in RESUMABLE_STATES:
        with pytest.raises(ServiceError, match="can be resumed"):
            runs.resume(store, run.id)
        return
    again = runs.resume(store, run.id)
    assert (again.state, again.resumes) == ("queued", 1)
    assert (again.stop_requested, again.host, again.pid) == (False, None, None)
    assert (again.device, again.reason, again.finished_at) == ("cpu", None, None)


def test_deleting_a_run_takes_its_folder_and_curves(store: Store, run: Run) -> None:
    folder = store.files.run_folder(run.id)
    runs.delete(store, run.id)
    assert not folder.exists()
    assert runs.metrics(store, run.id) == []
    with pytest.raises(ServiceError):
        runs.get(store, run.id)


def test_an_active_run_is_not_deleted(store: Store, run: Run) -> None:
    change(store, run, "running")
    with pytest.raises(ServiceError, match="Stop it first"):
        runs.delete(store, run.id)


# ---------------------------------------------------------------- what was recorded


def test_the_log_tail_is_short_and_survives_broken_text(store: Store, run: Run) -> None:
    assert runs.log_tail(store, run.id) == ""
    lines = [f"line {number}".encode() for number in range(50_000)]
    store.files.log_path(run.id).write_bytes(b"\n".join([*lines, b"caf\xe9"]))
    tail = runs.log_tail(store, run.id, lines=3).splitlines()
    assert tail == ["line 49998", "line 49999", "caf�"]


def row(step: int, seconds: float, split: str = "train", stage: str = "predictor") -> RunMetric:
    moment = BEGAN + timedelta(seconds=seconds)
    return RunMetric(stage=stage, split=split, step=step, recorded_at=moment)


@pytest.fixture
def running(store: Store, run: Run) -> Callable[[int], Run]:
    def at(step: int) -> Run:
        return change(store, run, "running", step=step, total_steps=1000, started_at=BEGAN)

    return at


def test_the_time_left_follows_the_measured_pace(
    store: Store, running: Callable[[int], Run]
) -> None:
    rows = [row(step, step / 10) for step in range(1, 401)]
    progress = runs.progress(store, running(400), rows)
    assert progress.fraction == pytest.approx(0.4)
    assert progress.steps_per_second == pytest.approx(10)
    assert progress.eta_seconds == pytest.approx(60)


def test_the_pace_before_a_resume_does_not_count(
    store: Store, running: Callable[[int], Run]
) -> None:
    earlier = [row(step, step - 1000.0) for step in range(1, 401)]
    resumed = [row(400 + step, step / 2) for step in range(1, 21)]
    progress = runs.progress(store, running(420), [*earlier, *resumed])
    assert progress.eta_seconds == pytest.approx(580 / 2)


def test_rows_written_together_count_once(store: Store, running: Callable[[int], Run]) -> None:
    rows = [row(step, 1 + (step - 1) // 10) for step in range(1, 31)]
    assert runs.progress(store, running(30), rows).steps_per_second == pytest.approx(10)


@pytest.mark.parametrize("rows", [[], [row(1, 1)], [row(1, 1, "validation"), row(9, 3)]])
def test_without_two_moments_there_is_no_pace(
    store: Store, running: Callable[[int], Run], rows: list[RunMetric]
) -> None:
    progress = runs.progress(store, running(1), rows)
    assert (progress.eta_seconds, progress.steps_per_second) == (None, None)


@pytest.fixture
def in_stages(
    store: Store, dataset: Dataset, model: Model, config: TrainingConfig
) -> Callable[..., Run]:
    """A run of 250 steps for the tokenizer and 750 for the predictor, in one of them."""
    staged = replace(config, tokenizer=TokenizerStage(epochs=1), epochs=3)
    queued = runs.queue(store, dataset_id=dataset.id, model_id=model.id, config=staged)

    def at(step: int, stage: str) -> Run:
        fields: dict[str, Any] = {"step": step, "stage": stage, "total_steps": 1000}
        return change(store, queued, "running", started_at=BEGAN, **fields)

    return at


def test_the_time_left_of_a_first_stage_leaves_out_what_nobody_measured(
    store: Store, in_stages: Callable[..., Run]
) -> None:
    rows = [row(step, step / 10, stage="tokenizer") for step in range(1, 101)]
    progress = runs.progress(store, in_stages(100, "tokenizer"), rows)
    assert progress.eta_seconds == pytest.approx(15)
    assert progress.stage_only
    assert "the predictor's time is not measured yet" in (components.time_left(progress) or "")


def test_the_next_stage_takes_what_a_probe_measured(
    store: Store, in_stages: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = in_stages(100, "tokenizer")
    probe = SimpleNamespace(predictor_seconds=600.0)
    monkeypatch.setattr(measuring, "probe", lambda *_: probe)
    wanted: dict[str, Any] = {"datasets": run.dataset_ids, "model_id": run.base_model_id}
    key = runs.start_probe(store, config=runs.config_of(run), **wanted)
    while (task := runs.probe_result(key)) is None or task.pending:
        time.sleep(0.01)
    rows = [row(step, step / 10, stage="tokenizer") for step in range(1, 101)]
    progress = runs.progress(store, run, rows)
    assert progress.eta_seconds == pytest.approx(615)
    assert not progress.stage_only
    assert components.time_left(progress) == "10 min 15 s left"


def test_each_stage_has_a_pace_of_its_own(store: Store, in_stages: Callable[..., Run]) -> None:
    first = [row(step, step / 10, stage="tokenizer") for step in range(1, 251)]
    begun = runs.progress(store, in_stages(250, "predictor"), first)
    assert begun.eta_seconds is None
    second = [row(step, 30 + step / 2) for step in range(1, 51)]
    progress = runs.progress(store, in_stages(300, "predictor"), [*first, *second])
    assert progress.eta_seconds == pytest.approx(700 / 2)
    assert not progress.stage_only


def test_a_finished_run_is_complete(store: Store, run: Run) -> None:
    progress = runs.progress(store, change(store, run, "finished"))
    assert (progress.fraction, progress.eta_seconds) == (1.0, None)


def test_bars_go_with_the_last_run_that_needs_them(
    store: Store, run: Run, dataset: Dataset, make_bars: Callable[..., pd.DataFrame]
) -> None:
    dataset_care.replace_original(store, dataset, make_bars(120, step="h", seed=1), [])
    assert store.files.bars_path(run.data_hash).exists()
    runs.delete(store, run.id)
    assert not store.files.bars_path(run.data_hash).exists()
