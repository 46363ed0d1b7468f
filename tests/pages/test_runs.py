"""Runs: the empty page, the table, one run in every state."""

import numpy as np
import pytest

from app.services import runs
from app.storage import repository
from app.storage.models import RUN_STATES
from kronos_core.training.config import TrainingConfig
from kronos_core.training.teacher_forcing import TeacherForcing
from tests.pages.helpers import button, checked, words

LONG = 20_000


@pytest.fixture
def run(store, sample):
    return runs.queue(
        store, dataset_id=sample.id, model_id="kronos-nano", config=TrainingConfig(), name="first"
    )


def row(split: str, step: int, loss: float) -> dict[str, object]:
    values = {"stage": "predictor", "split": split, "step": step, "epoch": step / 10}
    values |= {"s1": loss, "s2": loss, "total": loss, "epsilon": 0.5, "learning_rate": 1e-4}
    return values | {"s2_own": loss + 0.2, "exposure_gap": 0.2}


def measured(store, run_id: str, first: int, last: int) -> None:
    rows = [row("train", step, 4 - step / 100) for step in range(first, last + 1)]
    rows.append(row("validation", last, 4 - last / 100))
    with store.session() as session:
        repository.insert_metrics(session, run_id, rows)


def put(store, run_id: str, state: str, **fields: object) -> None:
    with store.session() as session:
        repository.set_state(session, run_id, state, allowed_from=RUN_STATES, **fields)


def test_empty(open_page):
    page = open_page("runs")
    assert "No run yet" in words(page)
    assert button(page, "Set up a run")


def test_table(open_page, store, run):
    measured(store, run.id, 1, 20)
    table = open_page("runs").dataframe[0].value
    assert list(table["name"]) == ["first"]
    assert list(table["loss"].iloc[0]) == [3.8]


@pytest.mark.parametrize("state", RUN_STATES)
def test_every_state_can_be_looked_at(open_page, store, run, state):
    put(store, run.id, state, reason="Said why." if state == "failed" else None)
    measured(store, run.id, 1, 5)
    page = open_page("runs", run=run.id)
    off = {found.label: found.disabled for found in page.button}
    assert ("Resume" in off) == (state in ("stopped", "failed", "orphaned"))
    assert ("Stop" in off) == (state in ("starting", "running", "stopping"))
    assert off.get("Stop", False) == (state == "stopping")  # asked for once is enough
    assert len(page.get("bidi_component")) == 3  # losses, dials, pace


def test_new_rows_are_added_to_those_already_read(open_page, store, run):
    put(store, run.id, "running")
    measured(store, run.id, 1, 20)
    page = open_page("runs", run=run.id)
    assert page.metric[0].value == "3.8000"
    measured(store, run.id, 21, 30)
    checked(page.run())
    assert page.metric[0].value == "3.7000"
    assert page.metric[0].delta == "-0.1000"
    assert page.metric[3].label == "Exposure gap"


def test_stop_and_resume(open_page, store, run):
    page = open_page("runs", run=run.id)
    button(page, "Take out of the queue").click()
    checked(page.run())
    assert runs.get(store, run.id).state == "stopped"
    button(page, "Resume").click()
    checked(page.run())
    assert runs.get(store, run.id).state == "queued"


def test_stages_are_shown_one_at_a_time(open_page, store, run):
    put(store, run.id, "running", stage="predictor")
    measured(store, run.id, 1, 5)
    values = {"stage": "tokenizer", "step": 5, "epoch": 0.5, "total": 0.2, "codebook_use": 0.75}
    rows = [
        values | {"split": split, "coarse": 0.3, "fine": 0.1} for split in ("train", "validation")
    ]
    with store.session() as session:
        repository.insert_metrics(session, run.id, rows)
    page = open_page("runs", run=run.id)
    assert page.metric[0].label == "Validation s1"
    page.segmented_control(key=f"stage-{run.id}").set_value("tokenizer")
    checked(page.run())
    assert (page.metric[0].label, page.metric[0].value) == ("Coarse", "0.3000")
    assert page.metric[3].value == "0.7500"


def test_clipping_says_what_it_hides(open_page, store, run):
    measured(store, run.id, 1, 60)
    with store.session() as session:
        repository.insert_metrics(session, run.id, [row("train", 61, 90.0)])
    page = open_page("runs", run=run.id)
    page.toggle(key=f"curves-{run.id}-clip").set_value(True)
    checked(page.run())
    assert "lie outside the ranges shown" in words(page)
    assert "to 90." in words(page)


def test_queue_can_be_reordered_and_left(open_page, store, sample, run):
    second = runs.queue(
        store, dataset_id=sample.id, model_id="kronos-nano", config=TrainingConfig(), name="second"
    )
    page = open_page("runs", run=second.id)
    assert "number 2 of 2 in the queue" in page.get("progress")[0].proto.text
    page = open_page("runs")
    page.button(key=f"up-{second.id}").click()
    checked(page.run())
    assert [row.name for row in runs.queued_runs(store)] == ["second", "first"]
    page.button(key=f"cancel-{run.id}").click()
    checked(page.run())
    assert runs.get(store, run.id).state == "stopped"


def test_notes_and_tags(open_page, store, run):
    page = open_page("runs", run=run.id)
    next(field for field in page.text_area if field.label == "Notes").set_value("A *first* try")
    button(page, "Save").click()
    checked(page.run())
    assert runs.get(store, run.id).notes == "A *first* try"
    assert r"A \*first\* try" in words(page)


def test_change_and_rerun_fills_the_form(open_page, store, sample):
    config = TrainingConfig(context=77, teacher_forcing=TeacherForcing(start=0.3))
    run = runs.queue(store, dataset_id=sample.id, model_id="kronos-nano", config=config)
    page = open_page("finetune", run=run.id)
    fields = {field.label: field.value for field in page.number_input}
    assert fields["Context (bars)"] == 77
    assert page.slider(key="finetune-forcing-ratio-1").value == 0.3


def test_compare_shows_what_differs(open_page, store, sample, run):
    other = runs.queue(
        store, dataset_id=sample.id, model_id="kronos-nano", config=TrainingConfig(seed=7)
    )
    measured(store, run.id, 1, 20)
    measured(store, other.id, 1, 30)
    page = open_page("runs", compare=f"{run.id},{other.id}")
    settings = page.dataframe[1].value
    assert list(settings["Setting"]) == ["seed"]
    assert list(settings.iloc[0])[1:] == ["0", "7"]
    assert len(page.get("bidi_component")) == 1


def test_compare_of_a_run_that_is_gone(open_page, run):
    page = open_page("runs", compare=f"{run.id},nothing")
    assert "nothing" in page.error[0].value


def test_said_in_passing_when_a_run_ends(open_page, store, run):
    put(store, run.id, "running")
    page = open_page("home")
    put(store, run.id, "finished")
    checked(page.run())
    assert [toast.value for toast in page.toast] == ["first: finished"]
    checked(page.run())
    assert not page.toast


def test_long_run_is_read_thinned_and_once(open_page, store, run, monkeypatch):
    rng = np.random.default_rng(0)
    losses = 3 + rng.normal(0, 0.1, LONG)
    losses[123] = 9.0
    with store.session() as session:
        rows = [row("train", step + 1, float(losses[step])) for step in range(LONG)]
        repository.insert_metrics(session, run.id, rows)
    page = open_page("runs", run=run.id)
    monkeypatch.setattr(runs, "thinned", lambda *_: pytest.fail("the history is read again"))
    checked(page.run())
    frame = page.session_state["histories"][run.id].frame
    assert len(frame) < LONG / 2
    assert frame["total"].max() == 9.0
    assert frame["step"].max() == LONG


def test_run_again_queues_the_same_settings(open_page, store, run):
    put(store, run.id, "finished")
    page = open_page("runs", run=run.id)
    button(page, "Run again").click()
    checked(page.run())
    newest, first = runs.list_runs(store)
    assert (newest.state, newest.config) == ("queued", first.config)


def test_why_a_run_ended_is_said(open_page, store, run):
    put(store, run.id, "failed", reason="The disk is full. Free some space, then resume.")
    page = open_page("runs", run=run.id)
    assert "The disk is full" in page.warning[0].value


def test_delete(open_page, store, run):
    put(store, run.id, "stopped")
    page = open_page("runs", run=run.id)
    button(page, "Delete").click()
    checked(page.run())
    page.button(key="confirm-yes").click()
    checked(page.run())
    assert runs.list_runs(store) == []


def test_unknown_run_is_said(open_page):
    page = open_page("runs", run="nothing")
    assert "nothing" in page.error[0].value
