"""Real workers, ended in every way that happens to them."""

import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest

from app.jobs.supervisor import Supervisor, worker_of
from app.services import datasets, models, runs
from app.settings import Settings
from app.storage import Store
from app.storage.models import Dataset, Model, Run
from kronos_core.training.config import TrainingConfig
from kronos_core.training.options import TokenizerStage

ENDED = ("finished", "stopped", "failed", "orphaned")


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"heartbeat_seconds": 0.2})


@pytest.fixture
def supervisor(store: Store) -> Iterator[Supervisor]:
    supervisor = Supervisor(store)
    yield supervisor
    for run in runs.list_runs(store):
        if worker := worker_of(run):
            supervisor.launcher.kill(worker)
    supervisor.launcher.reap()


@pytest.fixture
def long_run(store: Store, dataset: Dataset, model: Model, config: TrainingConfig) -> Run:
    """Some 400 steps, a checkpoint at every tenth."""
    values = config.to_dict() | {"epochs": 40, "evaluations_per_epoch": 1}
    return runs.queue(
        store,
        dataset_id=dataset.id,
        model_id=model.id,
        config=TrainingConfig.from_dict(values),
        name="Long",
    )


def until(condition: Callable[[], bool], tick: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        tick()
        time.sleep(0.1)


def reached(store: Store, run: Run, step: int) -> bool:
    row = runs.get(store, run.id)
    assert row.state not in ENDED, f"{row.state}: {row.reason}\n{runs.log_tail(store, row.id)}"
    return row.step >= step


def ended(store: Store, run: Run) -> bool:
    return runs.get(store, run.id).state in ENDED


def train_losses(store: Store, run: Run) -> dict[int, tuple[float, float]]:
    rows = [row for row in runs.metrics(store, run.id) if row.split == "train"]
    losses = {row.step: (row.s1, row.s2) for row in rows}
    assert len(losses) == len(rows), "a step is recorded twice"
    return losses


def test_sigkill_leaves_an_orphan_that_resumes_without_a_gap(
    store: Store, long_run: Run, supervisor: Supervisor
) -> None:
    until(lambda: reached(store, long_run, 20), supervisor.tick)
    worker = worker_of(runs.get(store, long_run.id))
    assert worker is not None
    supervisor.launcher.kill(worker)
    until(lambda: not supervisor.launcher.alive(worker), supervisor.launcher.reap)
    # A new server finds it, not the one that launched it.
    assert Supervisor(store).reconcile() == [long_run.id]

    orphan, before = runs.get(store, long_run.id), train_losses(store, long_run)
    assert orphan.state == "orphaned"
    assert "Resume continues" in (orphan.reason or "")
    assert len(before) >= 20

    runs.resume(store, long_run.id)
    until(lambda: ended(store, long_run), supervisor.tick)
    row, after = runs.get(store, long_run.id), train_losses(store, long_run)
    assert row.state == "finished", row.reason
    assert (row.resumes, row.step) == (1, row.total_steps)
    assert sorted(after) == list(range(1, row.total_steps + 1))
    assert {step: after[step] for step in before} == before
    assert row.model_id is not None
    assert models.get(store, row.model_id).name == "Long"
    assert any(event.kind == "resumed" for event in runs.events(store, row.id))


def test_sigkill_at_random_moments_changes_nothing_in_what_is_recorded(
    store: Store, dataset: Dataset, model: Model, config: TrainingConfig, supervisor: Supervisor
) -> None:
    staged = replace(config, steps=160, tokenizer=TokenizerStage(steps=60), evaluations_per_epoch=1)
    queue = partial(runs.queue, store, datasets=["Walk"], model_id=model.id, config=staged)
    calm, killed = queue(name="Calm"), queue(name="Killed")
    until(lambda: ended(store, calm), supervisor.tick)
    moments = random.Random(7)
    kills = 0
    for place in sorted(moments.sample(range(5, 200), 3)):
        until(lambda place=place: past_or_ended(store, killed, place), supervisor.tick)
        if ended(store, killed):  # it was faster than we looked
            break
        time.sleep(moments.uniform(0, 0.4))
        kills += kill(store, killed, supervisor)
    until(lambda: ended(store, killed), supervisor.tick)
    assert runs.get(store, killed.id).state == "finished"
    assert runs.get(store, killed.id).resumes == kills > 0
    assert measured(store, killed) == measured(store, calm)
    assert list(measured(store, killed)) == list(measured(store, calm))
    results = [models.get(store, runs.get(store, run.id).model_id or "") for run in (calm, killed)]
    assert results[0].model_hash == results[1].model_hash


def past_or_ended(store: Store, run: Run, step: int) -> bool:
    """Whether a worker has the run, which is past that step, or nothing is left to kill."""
    row = runs.get(store, run.id)
    return row.state in ENDED or (worker_of(row) is not None and row.step >= step)


def kill(store: Store, run: Run, supervisor: Supervisor) -> bool:
    """Kills the run's worker and resumes the run, unless that ended first. -> resumed?"""
    worker = worker_of(runs.get(store, run.id))
    assert worker is not None
    supervisor.launcher.kill(worker)
    until(lambda: not supervisor.launcher.alive(worker), supervisor.launcher.reap)
    supervisor.reconcile()
    if runs.get(store, run.id).state == "finished":
        return False
    runs.resume(store, run.id)
    return True


def measured(store: Store, run: Run) -> dict[tuple[str, str, int], tuple[float | None, ...]]:
    """All that does not depend on the clock, in the order of recording; no row is there twice."""
    rows = runs.metrics(store, run.id)
    found = {
        (row.stage, row.split, row.step): (row.total, row.s1, row.s2, row.coarse, row.grad_norm)
        for row in rows
    }
    assert len(found) == len(rows), "a step is recorded twice"
    return found


def test_a_database_that_is_locked_for_a_while_delays_a_run_and_loses_nothing(
    store: Store, long_run: Run, supervisor: Supervisor
) -> None:
    until(lambda: reached(store, long_run, 10), supervisor.tick)
    other = sqlite3.connect(store.settings.workspace / "kronos.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    time.sleep(2)
    other.execute("COMMIT")
    other.close()
    until(lambda: ended(store, long_run), supervisor.tick)
    row = runs.get(store, long_run.id)
    assert row.state == "finished", row.reason
    assert sorted(train_losses(store, long_run)) == list(range(1, row.total_steps + 1))


def test_stop_saves_registers_the_best_and_resumes_into_the_same_model(
    store: Store, long_run: Run, supervisor: Supervisor
) -> None:
    until(lambda: reached(store, long_run, 20), supervisor.tick)
    runs.stop(store, long_run.id)
    until(lambda: ended(store, long_run), supervisor.tick)
    stopped = runs.get(store, long_run.id)
    assert stopped.state == "stopped"
    assert "Stopped on request" in (stopped.reason or "")
    assert stopped.model_id is not None
    first = models.get(store, stopped.model_id)

    runs.resume(store, long_run.id)
    until(lambda: ended(store, long_run), supervisor.tick)
    finished = runs.get(store, long_run.id)
    assert (finished.state, finished.model_id) == ("finished", first.id)
    assert sorted(train_losses(store, long_run)) == list(range(1, finished.total_steps + 1))
    known = [row for row in models.list_models(store) if row.run_id == long_run.id]
    assert [row.best_total for row in known] == [finished.best_total]


def test_term_saves_as_well(store: Store, long_run: Run, supervisor: Supervisor) -> None:
    until(lambda: reached(store, long_run, 10), supervisor.tick)
    worker = worker_of(runs.get(store, long_run.id))
    assert worker is not None
    supervisor.launcher.terminate(worker)
    until(lambda: ended(store, long_run), supervisor.tick)
    row = runs.get(store, long_run.id)
    assert row.state == "stopped"
    assert "its process was asked to end" in (row.reason or "")
    assert (store.files.run_folder(row.id) / "checkpoint").exists()


def test_bars_that_are_gone_fail_the_run_with_a_remedy(
    store: Store, run: Run, dataset: Dataset, supervisor: Supervisor
) -> None:
    store.files.delete_bars(dataset.data_hash)
    until(lambda: ended(store, run), supervisor.tick)
    row = runs.get(store, run.id)
    assert row.state == "failed"
    assert "missing from the workspace" in (row.reason or "")
    assert "Traceback" in runs.log_tail(store, run.id)
    assert datasets.get(store, dataset.id).name == "Walk"
