"""Runs: the empty page, the table, one run in every state."""

import pytest

from app.services import runs
from app.storage import repository
from app.storage.models import RUN_STATES
from kronos_core.training.config import TrainingConfig
from tests.pages.helpers import button, checked, words


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
    labels = [found.label for found in page.button]
    assert ("Resume" in labels) == (state in ("stopped", "failed", "orphaned"))
    assert ("Stop" in labels) == (state in ("starting", "running"))
    assert len(page.get("bidi_component")) == 2  # the losses, and the schedule with its rates


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
