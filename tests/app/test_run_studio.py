"""Runs of the fine-tuning studio: several datasets, pre-flight, the queue's order, exports."""

import csv
import io
import shlex
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from app.jobs.tasks import Task, Tasks
from app.jobs.threads import short_jobs
from app.services import curves, datasets, lab, run_plans, runs
from app.services.errors import ServiceError
from app.storage import Store, repository
from app.storage.models import Dataset, Model, Run
from kronos_core.data.bars import Series
from kronos_core.training.config import TrainingConfig
from kronos_core.training.options import DataShare, Lora, TokenizerStage
from kronos_core.training.probe import Probe
from kronos_core.training.teacher_forcing import TeacherForcing


@pytest.fixture
def second(store: Store, make_bars: Callable[..., pd.DataFrame]) -> Dataset:
    series = Series(frame=make_bars(90, seed=1), interval=pd.Timedelta(days=1), timezone="UTC")
    return datasets.add(store, series, name="Other walk", source="upload")


def add_rows(store: Store, run: Run, rows: list[dict[str, Any]]) -> None:
    usual = {"stage": "predictor", "split": "train", "epoch": 0.1, "total": 1.0}
    with store.session() as session:
        repository.insert_metrics(session, run.id, [usual | row for row in rows])


# ---------------------------------------------------------------- several datasets


def test_a_run_over_several_datasets_names_and_weighs_them(
    store: Store, dataset: Dataset, second: Dataset, model: Model, config: TrainingConfig
) -> None:
    run = runs.queue(store, datasets=["Walk", second.id], model_id="Tiny", config=config)
    assert run.dataset_ids == [dataset.id, second.id]
    assert run.data_hashes == [dataset.data_hash, second.data_hash]
    assert run.name.startswith("Walk +1, Tiny")
    assert [share.name for share in runs.config_of(run).data] == ["Walk", "Other walk"]
    assert datasets.dependents(store, second.id) == [f'run "{run.name}"']


def test_the_settings_may_name_the_datasets(
    store: Store, dataset: Dataset, second: Dataset, model: Model, config: TrainingConfig
) -> None:
    data = (DataShare(name="Other walk", weight=2), DataShare(name="Walk"))
    run = runs.queue(store, model_id="Tiny", config=replace(config, data=data))
    assert run.dataset_ids == [second.id, dataset.id]
    again = TrainingConfig.from_yaml(runs.export_config(run))
    assert again.data == data
    datasets.rename(store, dataset.id, "Renamed")
    # Chosen by id, what the settings call them does not matter; the present names are kept.
    rerun = runs.queue(store, datasets=run.dataset_ids, model_id="Tiny", config=runs.config_of(run))
    assert [share.name for share in runs.config_of(rerun).data] == ["Other walk", "Renamed"]
    assert [share.weight for share in runs.config_of(rerun).data] == [2, 1]


@pytest.mark.parametrize(
    ("chosen", "data", "message"),
    [
        (None, (), "no dataset"),
        (["Walk", "Walk"], (), "named twice"),
        (["Walk"], (DataShare(name="Walk"), DataShare(name="Other walk")), "weight 2 datasets"),
        (["Nowhere"], (), 'no dataset "Nowhere"'),
    ],
)
def test_datasets_that_do_not_fit_are_refused(
    store: Store,
    dataset: Dataset,
    second: Dataset,
    model: Model,
    config: TrainingConfig,
    chosen: list[str] | None,
    data: tuple[DataShare, ...],
    message: str,
) -> None:
    with pytest.raises(ServiceError, match=message):
        runs.preflight(store, datasets=chosen, model_id="Tiny", config=replace(config, data=data))


# ---------------------------------------------------------------- pre-flight and probe


def test_a_pre_flight_lists_every_problem_with_its_remedy(
    store: Store, dataset: Dataset, model: Model, config: TrainingConfig
) -> None:
    impossible = replace(config, batch_size=500, frozen_blocks=99)
    found = runs.preflight(store, datasets=["Walk"], model_id="Tiny", config=impossible)
    assert (found.ok, found.plan) == (False, None)
    assert any("lower the batch size" in problem for problem in found.problems)
    assert any("frozen_blocks is 99" in problem for problem in found.problems)
    fine = runs.preflight(store, datasets=["Walk"], model_id="Tiny", config=config)
    assert (fine.ok, fine.problems) == (True, [])


def finished(poll: Callable[[], Task | None]) -> Task:
    deadline = time.monotonic() + 60
    while True:
        task = poll()
        assert task is not None
        if not task.pending:
            return task
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_probe_is_measured_aside_and_once(
    store: Store,
    dataset: Dataset,
    model: Model,
    config: TrainingConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_plans.measuring.probe, "__defaults__", (0.05,))
    wanted: dict[str, Any] = {"datasets": ["Walk"], "model_id": "Tiny", "config": config}
    key = runs.start_probe(store, **wanted)
    task = finished(lambda: runs.probe_result(key))
    assert task.state == "finished", task.reason
    assert isinstance(task.result, Probe)
    assert task.result.tokens_per_second > 0
    assert runs.start_probe(store, **wanted) == key
    assert runs.probe_result(key) is task
    assert runs.start_probe(store, **wanted, again=True) == key
    once_more = finished(lambda: runs.probe_result(key))
    assert once_more.state == "finished"
    assert once_more.result is not task.result
    checks = runs.preflight(store, **wanted, measured=task.result).checks
    assert "memory" in [check.name for check in checks]
    assert runs.probe_result("probe-of-another-server") is None


def test_a_probe_of_what_cannot_work_fails_in_words(
    store: Store, dataset: Dataset, model: Model, config: TrainingConfig
) -> None:
    impossible = replace(config, context=100)
    key = runs.start_probe(store, datasets=["Walk"], model_id="Tiny", config=impossible)
    task = finished(lambda: runs.probe_result(key))
    assert task.state == "failed"
    assert "bars" in (task.reason or "")
    assert "Error" not in (task.reason or "")


# ---------------------------------------------------------------- the queue


@pytest.fixture
def waiting(
    store: Store, dataset: Dataset, model: Model, config: TrainingConfig
) -> Callable[[], list[str]]:
    for name in "ABC":
        runs.queue(store, datasets=["Walk"], model_id="Tiny", config=config, name=name)
    return lambda: [run.name for run in runs.queued_runs(store)]


@pytest.mark.parametrize(
    ("name", "move", "order"),
    [
        ("C", "first", "CAB"),
        ("C", "up", "ACB"),
        ("A", "down", "BAC"),
        ("A", "up", "ABC"),
        ("C", "down", "ABC"),
    ],
)
def test_the_queue_can_be_reordered(
    store: Store, waiting: Callable[[], list[str]], name: str, move: Any, order: str
) -> None:
    run = next(run for run in runs.queued_runs(store) if run.name == name)
    assert [item.name for item in runs.reorder(store, run.id, move)] == list(order)
    with store.session() as session:
        claimed = repository.claim_next_run(session, resolve_device=str)
    assert claimed is not None
    assert claimed.name == order[0]


def test_a_resumed_run_queues_behind_the_others(
    store: Store, waiting: Callable[[], list[str]]
) -> None:
    first = runs.queued_runs(store)[0]
    runs.stop(store, first.id)
    assert waiting() == ["B", "C"]
    with pytest.raises(ServiceError, match="not waiting"):
        runs.reorder(store, first.id, "up")
    runs.resume(store, first.id)
    assert waiting() == ["B", "C", "A"]


def test_a_run_out_of_memory_can_go_on_with_less(store: Store, run: Run) -> None:
    runs.stop(store, run.id)
    with pytest.raises(ServiceError, match="micro_batch"):
        runs.resume(store, run.id, micro_batch=999)
    assert runs.config_of(runs.resume(store, run.id, micro_batch=2)).micro_batch == 2


# ---------------------------------------------------------------- notes, comparing


def test_notes_and_tags_are_kept_clean(store: Store, run: Run) -> None:
    changed = runs.update(store, run.id, notes=" Good one. ", tags=[" a  b", "", "a b", "c"])
    assert (changed.notes, changed.tags, changed.name) == ("Good one.", ["a b", "c"], "First")
    assert runs.update(store, run.id, name="Else").tags == ["a b", "c"]
    with pytest.raises(ServiceError, match="at most 20 tags"):
        runs.update(store, run.id, tags=[str(number) for number in range(21)])


def test_only_what_differs_is_compared(
    store: Store, dataset: Dataset, model: Model, run: Run, config: TrainingConfig
) -> None:
    other = runs.queue(
        store,
        datasets=["Walk"],
        model_id="Tiny",
        config=replace(config, learning_rate=2e-3, lora=Lora(rank=4)),
    )
    rows = {row.name: row.values for row in runs.compare_settings([run, other])}
    assert rows["learning_rate"] == (1e-3, 2e-3)
    assert rows["lora.rank"] == (None, 4)
    assert "epochs" not in rows
    assert runs.compare_settings([run, run]) == []


# ---------------------------------------------------------------- curves


def test_thinning_keeps_extremes_ends_and_the_change_of_stage(store: Store, run: Run) -> None:
    rng = np.random.default_rng(0)
    totals = rng.normal(size=3000)
    totals[1234], totals[2345] = 50.0, -50.0
    tokenizer = [{"stage": "tokenizer", "step": step, "total": 9.0} for step in range(1, 8)]
    rows = [
        {"step": step, "s1": 1.0, "s2": 1.0, "total": float(total)}
        for step, total in enumerate(totals, start=1)
    ]
    add_rows(store, run, [*tokenizer, *rows])
    kept = runs.thinned(store, run.id, points=200)
    assert len(kept) < 800
    assert kept == sorted(kept, key=lambda row: row.id)
    shown = {(row.stage, row.step) for row in kept}
    assert {("predictor", 1235), ("predictor", 2346), ("predictor", 3000)} <= shown
    assert ("tokenizer", 7) in shown
    # A live page goes on from the last of them, and new rows join what was read.
    add_rows(store, run, [{"step": 3001, "s1": 1.0, "s2": 1.0, "split": "validation"}])
    new = runs.metrics(store, run.id, after_id=kept[-1].id)
    assert [(row.split, row.step) for row in new] == [("validation", 3001)]
    assert runs.thinned(store, run.id, points=200)[-1].id == new[0].id


def test_few_rows_are_not_thinned(store: Store, run: Run) -> None:
    add_rows(store, run, [{"step": step, "s1": 1.0, "s2": 1.0} for step in range(1, 30)])
    assert len(runs.thinned(store, run.id, points=30)) == 29
    assert curves.kept_rows(np.zeros((29, 3)), 30).tolist() == list(range(29))
    assert runs.thinned(store, "nothing") == []


def test_sparklines_are_the_predictors_evaluations(store: Store, run: Run) -> None:
    rows = [{"step": step, "split": "validation", "total": float(step)} for step in range(200)]
    add_rows(store, run, [{"step": 1, "stage": "tokenizer", "split": "validation"}, *rows])
    line = runs.sparklines(store, [run], points=50)[run.id]
    assert (len(line), line[0], line[-1]) == (50, 0.0, 199.0)
    assert runs.sparklines(store, []) == {}


def test_curves_as_csv_hold_every_row(store: Store, run: Run) -> None:
    add_rows(store, run, [{"step": 1, "coarse": 0.5, "stage": "tokenizer"}, {"step": 1, "s1": 2.0}])
    table = list(csv.DictReader(io.StringIO(runs.export_curves(store, run.id).decode())))
    assert [(row["stage"], row["s1"], row["coarse"]) for row in table] == [
        ("tokenizer", "", "0.5"),
        ("predictor", "2.0", ""),
    ]


def test_curves_for_tensorboard(store: Store, run: Run, tmp_path: Path) -> None:
    rows = [{"step": step, "s1": float(step)} for step in (1, 2)]
    add_rows(store, run, [*rows, {"step": 2, "split": "validation", "exposure_gap": 0.25}])
    folder = runs.export_tensorboard(store, run.id, tmp_path / "events")
    train = EventAccumulator(str(folder / "train"))
    train.Reload()
    assert [(event.step, event.value) for event in train.Scalars("predictor/s1")] == [
        (1, 1.0),
        (2, 2.0),
    ]
    with zipfile.ZipFile(runs.export_tensorboard(store, run.id)) as archive:
        assert {name.split("/")[0] for name in archive.namelist()} == {"train", "validation"}


def test_an_export_is_made_aside(store: Store, run: Run) -> None:
    add_rows(store, run, [{"step": 1, "s1": 2.0}])
    key = runs.start_export(store, run.id, "curves")
    assert finished(lambda: runs.export_result(key)).result == runs.export_curves(store, run.id)
    failing = runs.start_export(store, run.id, "checkpoint")
    assert "no weights yet" in (finished(lambda: runs.export_result(failing)).reason or "")


def test_there_are_no_weights_before_the_first_evaluation(store: Store, run: Run) -> None:
    with pytest.raises(ServiceError, match="no weights yet"):
        runs.export_checkpoint(store, run.id)


# ---------------------------------------------------------------- the command


def test_the_command_names_what_differs(
    store: Store, dataset: Dataset, second: Dataset, model: Model, config: TrainingConfig
) -> None:
    rich = replace(
        config,
        tokenizer=TokenizerStage(epochs=2),
        lora=Lora(rank=4, targets=("q_proj",)),
        teacher_forcing=TeacherForcing.parse("linear:1:0"),
        freeze_embeddings=True,
        data=(DataShare(name="Walk"), DataShare(name="Other walk", weight=2)),
    )
    words = shlex.split(runs.command(store, model_id="Tiny", config=rich, name="Mine"))
    assert words[:4] == ["python", "-m", "app", "finetune"]
    text = " ".join(words)
    assert "--dataset Walk --dataset Other walk --weight 1 --weight 2" in text
    assert "--tokenizer-epochs 2" in text
    assert "--teacher-forcing linear:1:0" in text
    assert "lora={rank: 4, alpha: 16.0, dropout: 0.0, targets: [q_proj]}" in words
    assert "--betas" not in text


# ---------------------------------------------------------------- the lab


def test_the_lab_answers_under_one_key(store: Store, dataset: Dataset, model: Model) -> None:
    stretch = lab.Stretch(dataset_id="Walk", model_id="Tiny", context=12, horizon=4, end=50)
    key = lab.start_fork(store, stretch, greedy=True)
    task = finished(lambda: lab.poll(key))
    assert task.state == "finished", task.reason
    assert task.result.own_prices.shape == (4, 6)
    bars = datasets.bars(store, dataset)
    assert task.result.own.timestamps[-1] == bars["timestamps"].iloc[50]
    assert lab.start_fork(store, stretch, greedy=True) == key
    assert lab.start_fork(store, stretch, greedy=False) != key


def test_the_gap_counts_its_bars(store: Store, dataset: Dataset, model: Model) -> None:
    stretch = lab.Stretch(dataset_id="Walk", model_id="Tiny", context=12, horizon=4)
    key = lab.start_gap(store, stretch, origins=3, walks=2)
    task = finished(lambda: lab.poll(key))
    assert (task.state, task.done, task.total) == ("finished", 12, 12)
    assert task.result.s1_gap.shape == (5, 4)


ASKED: dict[str, Callable[[Store, lab.Stretch], str]] = {
    "probability": lab.start_probability,
    "guess": lab.start_guess,
    "fork": lab.start_fork,
    "walks": lambda store, stretch: lab.start_walks(store, stretch, epsilon=0.5),
    "gap": lambda store, stretch: lab.start_gap(store, stretch, origins=2, walks=2),
}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED.keys())
def test_every_question_ends_soon_after_cancel(
    store: Store,
    dataset: Dataset,
    model: Model,
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[Store, lab.Stretch], str],
) -> None:
    steps: list[int] = []
    report = Tasks._report

    def cancel_at_the_first_step(tasks: Tasks, key: str, done: int, total: int) -> None:
        steps.append(done)
        if done == 1:
            lab.cancel(key)
        report(tasks, key, done, total)

    monkeypatch.setattr(Tasks, "_report", cancel_at_the_first_step)
    stretch = lab.Stretch(dataset_id="Walk", model_id="Tiny", context=12, horizon=4)
    key = ask(store, stretch)
    assert finished(lambda: lab.poll(key)).state == "cancelled"
    short_jobs().submit(lambda: None).result(timeout=60)  # the thread is free again
    assert max(steps) == 1


@pytest.mark.parametrize(("end", "message"), [(120, "0 to 119"), (10, "Choose a later bar")])
def test_a_stretch_outside_the_bars_is_refused(
    store: Store, dataset: Dataset, model: Model, end: int, message: str
) -> None:
    stretch = lab.Stretch(dataset_id="Walk", model_id="Tiny", context=12, horizon=4, end=end)
    with pytest.raises(ServiceError, match=message):
        lab.start_probability(store, stretch)
