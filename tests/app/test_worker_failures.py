"""Memory, disk and data that fail a run in the middle, injected into a worker in this process."""

import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors import SafetensorError

from app.jobs import worker
from app.services import datasets, models, runs
from app.storage import Store, repository
from app.storage.models import Dataset, Model, Run
from kronos_core.data.bars import Series
from kronos_core.training import checkpoint
from kronos_core.training.config import TrainingConfig
from kronos_core.training.options import TokenizerStage
from kronos_core.training.tasks import PredictorTask

Work = Callable[[Run], Run]


@pytest.fixture
def work(store: Store, monkeypatch: pytest.MonkeyPatch) -> Work:
    """Does what the worker process of a queued run does, and gives the run as it is then."""
    monkeypatch.setattr(worker, "get_settings", lambda: store.settings)
    for name in ("catch_signals", "be_considerate", "log_to_stderr"):
        monkeypatch.setattr(worker, name, lambda *_: None)

    def do(run: Run) -> Run:
        with store.session() as session:
            assert repository.set_state(session, run.id, "starting", allowed_from=("queued",))
        worker.main([run.id])
        return runs.get(store, run.id)

    return do


def lacking_memory(monkeypatch: pytest.MonkeyPatch, fits: int, *, from_step: int = 1) -> None:
    """Makes steps with more than `fits` windows at once run out of memory."""
    parts = PredictorTask.parts

    def short(task: Any, rows: torch.Tensor, size: int, step: int, random: Any) -> Iterator[Any]:
        if size > fits and step >= from_step:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        yield from parts(task, rows, size, step, random)

    monkeypatch.setattr(PredictorTask, "parts", short)


def kinds(store: Store, run: Run) -> list[str]:
    return [event.kind for event in runs.events(store, run.id)]


def training_steps(store: Store, run: Run) -> list[int]:
    return [row.step for row in runs.metrics(store, run.id, split="train")]


def test_a_smaller_micro_batch_saves_a_run_and_is_told(
    store: Store, run: Run, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking_memory(monkeypatch, fits=4)
    row = work(run)
    assert row.state == "finished", row.reason
    assert kinds(store, run).count("out_of_memory") == 1
    assert training_steps(store, run) == list(range(1, row.total_steps + 1))


def test_out_of_memory_fails_with_advice_and_goes_on_from_its_checkpoint(
    store: Store, run: Run, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        lacking_memory(patch, fits=0, from_step=8)
        row = work(run)
    assert row.state == "failed"
    assert "Out of memory with 1 windows" in (row.reason or "")
    assert "resume the run" in (row.reason or "")
    assert training_steps(store, run) == list(range(1, 8))
    row = work(runs.resume(store, run.id, micro_batch=1))
    assert row.state == "finished", row.reason
    assert training_steps(store, run) == list(range(1, row.total_steps + 1))


def test_a_full_disk_fails_with_advice_and_nothing_recorded_is_lost(
    store: Store, run: Run, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, calls = checkpoint.save_file, []

    def full(*arguments: Any, **options: Any) -> None:
        calls.append(1)
        if len(calls) > 2:
            raise SafetensorError("I/O error: No space left on device (os error 28)")
        save(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", full)
        row = work(run)
    assert row.state == "failed"
    assert "disk of the workspace is full. Free some space" in (row.reason or "")
    before = training_steps(store, run)
    assert before == list(range(1, len(before) + 1)) != []
    row = work(runs.resume(store, run.id))
    assert row.state == "finished", row.reason
    assert "resumed" in kinds(store, run)
    assert training_steps(store, run) == list(range(1, row.total_steps + 1))


def test_a_database_locked_at_the_end_is_waited_for(
    store: Store, run: Run, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    register, calls = worker.register_model, []

    def locked(*arguments: Any) -> str:
        calls.append(1)
        if len(calls) == 1:
            raise worker.DatabaseError("INSERT", None, Exception("database is locked"))
        return register(*arguments)

    monkeypatch.setattr(worker, "register_model", locked)
    row = work(run)
    assert (row.state, len(calls)) == ("finished", 2)
    assert row.model_id is not None


def test_several_datasets_and_both_stages_leave_one_model(
    store: Store,
    dataset: Dataset,
    model: Model,
    config: TrainingConfig,
    work: Work,
    make_bars: Callable[..., pd.DataFrame],
) -> None:
    series = Series(frame=make_bars(90, seed=1), interval=pd.Timedelta(days=1), timezone="UTC")
    datasets.add(store, series, name="Other", source="upload")
    staged = replace(config, epochs=1, tokenizer=TokenizerStage(steps=4))
    run = runs.queue(store, datasets=["Walk", "Other"], model_id=model.id, config=staged)
    row = work(run)
    assert row.state == "finished", row.reason
    assert (row.stage, row.step) == ("predictor", row.total_steps)
    rows = runs.metrics(store, run.id, split="train")
    assert [item.step for item in rows if item.stage == "tokenizer"] == [1, 2, 3, 4]
    best = [item for item in runs.metrics(store, run.id) if item.step == row.best_step]
    assert row.best_total in [item.total for item in best if item.stage == "predictor"]
    assert row.model_id is not None
    made = models.get(store, row.model_id)
    assert [item["weight"] for item in made.provenance["data"]] == [1, 1]
    exported = runs.export_checkpoint(store, run.id)
    folder = exported.parent / "unpacked"

    with zipfile.ZipFile(exported) as archive:
        archive.extractall(folder)
    assert models.import_folder(store, folder, "Back").model_hash == made.model_hash
    assert TrainingConfig.from_yaml((folder / "run.yaml").read_text()) == runs.config_of(row)
