"""What a worker does when the database, the signals or the training itself are in its way."""

import errno
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from app.jobs import worker
from app.jobs.launchers import ROOT, this_process
from app.jobs.recorder import Recorder
from app.jobs.worker import NotMineError, catch_signals, claim, explain
from app.services import models, runs
from app.storage import DatabaseError, StorageError, Store, repository
from app.storage.models import Run
from kronos_core.training.memory import OutOfMemory
from kronos_core.training.trainer import MetricRow, NonFiniteLoss

ROW = MetricRow(split="train", step=1, epoch=0.1, s1=3.0, s2=4.0, total=3.5, epsilon=0.0)


def locked_error() -> DatabaseError:
    return DatabaseError("INSERT", None, sqlite3.OperationalError("database is locked"))


def start(store: Store, run: Run) -> None:
    with store.session() as session:
        assert repository.set_state(session, run.id, "starting", allowed_from=("queued",))


@pytest.fixture
def mine(store: Store, run: Run) -> Run:
    """The run, taken by this process."""
    start(store, run)
    return claim(store, run.id, this_process())


@pytest.fixture
def recorder(store: Store, mine: Run) -> Recorder:
    return Recorder(store, mine, this_process(), interval=0.02)


def steps(store: Store, run: Run) -> list[int]:
    return [row.step for row in runs.metrics(store, run.id)]


# ---------------------------------------------------------------- taking the run


def test_a_starting_run_is_taken_once(store: Store, run: Run) -> None:
    start(store, run)
    taken = claim(store, run.id, this_process())
    assert (taken.state, taken.pid) == ("running", os.getpid())
    with pytest.raises(NotMineError, match="only a starting run"):
        claim(store, run.id, this_process())


def test_a_run_of_another_process_is_not_taken(store: Store, run: Run) -> None:
    start(store, run)
    with store.session() as session:
        repository.update_row(session, Run, run.id, pid=1, host="elsewhere")
    with pytest.raises(NotMineError, match="belongs to process 1"):
        claim(store, run.id, this_process())


@pytest.mark.parametrize("run_id", ["", "000000000000"])
def test_a_run_that_is_queued_or_missing_is_not_taken(store: Store, run: Run, run_id: str) -> None:
    with pytest.raises(NotMineError):
        claim(store, run_id or run.id, this_process())


def test_a_run_stopped_while_it_started_ends_before_its_first_step(store: Store, run: Run) -> None:
    start(store, run)
    runs.stop(store, run.id)
    taken = claim(store, run.id, this_process())
    assert taken.state == "stopping"
    assert Recorder(store, taken, this_process()).should_stop()


# ---------------------------------------------------------------- recording


def test_rows_events_and_position_arrive_in_one_exchange(
    store: Store, mine: Run, recorder: Recorder
) -> None:
    recorder.on_metric(ROW)
    recorder.on_metric(replace(ROW, split="validation", step=2, total=3.0))
    recorder.on_event("note", "Half way.")
    recorder.on_step(2, 20, 0.2)
    recorder.exchange()
    row = runs.get(store, mine.id)
    assert (row.step, row.total_steps, row.best_step, row.best_total) == (2, 20, 2, 3.0)
    assert steps(store, mine) == [1, 2]
    assert runs.events(store, mine.id)[-1].message == "Half way."
    recorder.exchange()
    assert len(runs.events(store, mine.id)) == 2


def test_the_untouched_base_model_is_never_the_best(mine: Run, recorder: Recorder) -> None:
    recorder.on_metric(replace(ROW, split="validation", step=0, total=0.1))
    assert recorder.best["best_step"] is None


def test_a_tokenizer_stage_is_recorded_and_never_the_best(
    store: Store, mine: Run, recorder: Recorder
) -> None:
    row = MetricRow(
        stage="tokenizer", split="validation", step=3, epoch=0.1, total=0.01, coarse=0.2, fine=0.1
    )
    recorder.on_metric(row)
    recorder.on_event("early_stop", "The tokenizer stage ended early.")
    recorder.on_step(3, 20, 0.1)
    recorder.exchange()
    run = runs.get(store, mine.id)
    assert (run.stage, run.step, run.best_step) == ("tokenizer", 3, None)
    (kept,) = runs.metrics(store, mine.id)
    assert (kept.s1, kept.s2, kept.coarse, kept.fine) == (None, None, 0.2, 0.1)
    assert runs.events(store, mine.id)[-1].kind == "early_stop"
    recorder.on_metric(replace(ROW, split="validation", total=2.0))
    recorder.exchange()
    run = runs.get(store, mine.id)
    assert (run.stage, run.best_step, run.best_total) == ("predictor", 1, 2.0)


def test_a_loss_that_is_not_finite_does_not_block_the_others(
    store: Store, mine: Run, recorder: Recorder
) -> None:
    recorder.on_metric(replace(ROW, s1=float("nan")))
    recorder.on_metric(replace(ROW, step=2))
    recorder.exchange()
    assert steps(store, mine) == [2]


@contextmanager
def broken(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:

        def fail(*_args: object, **_options: object) -> None:
            raise OSError("database is locked")

        patch.setattr(store, "session", fail)
        yield


def test_a_database_that_does_not_answer_delays_but_loses_nothing(
    store: Store, mine: Run, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with broken(store, monkeypatch):
        recorder.on_metric(ROW)
        with pytest.raises(OSError, match="locked"):
            recorder.exchange()
        recorder.on_metric(replace(ROW, step=2))
        assert not recorder.should_stop()
    recorder.exchange()
    assert steps(store, mine) == [1, 2]


def test_the_exchanging_thread_survives_a_locked_database(
    store: Store, mine: Run, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with broken(store, monkeypatch):
        recorder.start()
        recorder.on_metric(ROW)
    assert recorder.finish("finished", None)
    assert steps(store, mine) == [1]
    assert runs.get(store, mine.id).state == "finished"


def test_rows_from_before_a_checkpoint_outlive_the_process(
    store: Store, mine: Run, recorder: Recorder
) -> None:
    recorder.on_metric(ROW)
    recorder.on_event("checkpoint", "Saving a checkpoint at step 1.")
    after_a_kill = Recorder(store, mine, this_process())
    after_a_kill.on_metric(replace(ROW, step=2))
    after_a_kill.exchange()
    assert steps(store, mine) == [1, 2]
    assert not (store.files.run_folder(mine.id) / "unrecorded.json").exists()


def test_a_wish_to_stop_is_seen(store: Store, mine: Run, recorder: Recorder) -> None:
    runs.stop(store, mine.id)
    assert not recorder.should_stop()
    recorder.exchange()
    assert recorder.should_stop()


@pytest.mark.parametrize("fields", [{"pid": 1}, {"host": "elsewhere"}])
def test_a_run_that_went_to_another_worker_is_let_go(
    store: Store, mine: Run, recorder: Recorder, fields: dict[str, object]
) -> None:
    with store.session() as session:
        repository.update_row(session, Run, mine.id, **fields)
    recorder.on_metric(ROW)
    recorder.exchange()
    assert recorder.should_stop()
    assert not recorder.finish("failed", "Never written.")
    assert steps(store, mine) == []
    assert runs.get(store, mine.id).state == "running"


def test_a_deleted_run_is_let_go(store: Store, mine: Run, recorder: Recorder) -> None:
    with store.session() as session:
        repository.delete_run(session, mine.id)
    recorder.on_metric(ROW)
    recorder.exchange()
    assert recorder.lost


def test_a_worker_taken_for_dead_takes_its_run_back(
    store: Store, mine: Run, recorder: Recorder
) -> None:
    with store.session() as session:
        repository.set_state(
            session, mine.id, "orphaned", allowed_from=("running",), reason="Silent."
        )
    recorder.on_metric(ROW)
    recorder.exchange()
    row = runs.get(store, mine.id)
    assert (row.state, row.reason, row.finished_at) == ("running", None, None)


def test_term_is_a_wish_to_stop(recorder: Recorder) -> None:
    names = ("SIGTERM", "SIGINT")
    before = {name: signal.getsignal(getattr(signal, name)) for name in names}
    try:
        catch_signals(recorder)
        signal.raise_signal(signal.SIGTERM)
        assert recorder.should_stop()
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)


# ---------------------------------------------------------------- how a run ends


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NonFiniteLoss("The loss became NaN at step 7."), "lower learning rate"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), "half the batch size"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "half the batch size"),
        (MemoryError(), "Out of memory"),
        (OSError(errno.ENOSPC, "No space left on device"), "disk of the workspace is full"),
        (FileNotFoundError(2, "No such file", "weights"), "missing: weights. Put it back"),
        (StorageError("The bars file is missing. Import the data again."), "Import the data again"),
        (ValueError("context 900 is too long"), "Context 900 is too long."),
        (ValueError("batch_size must be 1"), "batch_size must be 1."),
        (OutOfMemory("out of memory with 4 windows; use LoRA"), "memory with 4 windows; use LoRA."),
        (SafetensorError("I/O error: No space left on device (os error 28)"), "disk of the work"),
        (locked_error(), "did not answer (database is locked)"),
        (KeyError("surprise"), "KeyError: 'surprise'. The log has the details"),
    ],
)
def test_failures_say_what_to_do(error: Exception, expected: str) -> None:
    assert expected in explain(error)


def test_a_worker_gives_way_as_a_session_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = tmp_path / "autogroup"
    monkeypatch.setattr(worker, "AUTOGROUP", group)
    worker.lower_session(10)  # not on this system
    assert not group.exists()
    group.write_text("/autogroup-1 nice 0")
    monkeypatch.setattr(os, "getsid", lambda _: os.getppid())
    worker.lower_session(10)  # in the session of somebody else
    assert group.read_text() == "/autogroup-1 nice 0"
    monkeypatch.setattr(os, "getsid", lambda _: os.getpid())
    worker.lower_session(10)
    assert group.read_text() == "10"
    monkeypatch.setattr(worker, "AUTOGROUP", tmp_path)  # writing there is an OSError
    worker.lower_session(10)


@pytest.mark.skipif(not worker.AUTOGROUP.exists(), reason="no sched_autogroup on this system")
def test_the_session_of_a_real_worker_is_lowered() -> None:
    script = (
        "from app.jobs import worker; worker.be_considerate(); import os; "
        "print(os.nice(0), worker.AUTOGROUP.read_text())"
    )
    command = [sys.executable, "-c", script]
    printed = subprocess.run(
        command, check=True, capture_output=True, text=True, start_new_session=True, cwd=ROOT
    ).stdout.split()
    assert int(printed[0]) >= min(19, os.nice(0) + worker.NICENESS)
    assert printed[0] == printed[-1]


def test_a_run_in_process_finishes_and_leaves_a_model(
    store: Store, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "get_settings", lambda: store.settings)
    monkeypatch.setattr(worker, "catch_signals", lambda _: None)
    monkeypatch.setattr(worker, "be_considerate", lambda: None)
    monkeypatch.setattr(worker, "log_to_stderr", lambda *_: None)
    start(store, run)
    assert worker.main([run.id]) == 0
    row = runs.get(store, run.id)
    assert (row.state, row.reason, row.step) == ("finished", None, row.total_steps)
    assert row.model_id is not None
    made = models.get(store, row.model_id)
    assert (made.kind, made.parent_id, made.run_id) == ("finetuned", run.base_model_id, run.id)
    assert (made.dataset_id, made.best_total) == (run.dataset_id, row.best_total)
    assert (store.files.model_folder(made.id) / "predictor").is_dir()
    assert worker.main([run.id]) == 2
