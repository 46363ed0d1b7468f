"""A crash of server and worker: after a restart the page shows what happened, and goes on."""

import os
import signal

import pytest
from playwright.sync_api import expect

from app.services import datasets, runs
from app.settings import Settings
from app.storage import Store
from kronos_core.training.config import TrainingConfig
from tests.e2e import driver

pytestmark = pytest.mark.browser


def test_killed_run_is_shown_as_interrupted_and_resumes(page, server):
    store = Store(Settings(workspace=server.workspace, database_url=""))
    dataset = datasets.add_sample(store, "sp500")
    config = TrainingConfig(context=48, horizon=8, epochs=20, evaluations_per_epoch=20, seed=1)
    run = runs.queue(
        store, dataset_id=dataset.id, model_id="kronos-nano", config=config, name="long"
    )
    page.goto(f"{server.url}/runs?run={run.id}")
    recorded = driver.training_points(page)

    os.kill(worker_pid(store, run.id), signal.SIGKILL)
    server.kill()
    server.start()

    page.goto(f"{server.url}/runs?run={run.id}")
    driver.expect_state(page, "Interrupted")
    assert driver.training_points(page) >= recorded
    driver.no_traceback(page)
    driver.press(page, "Resume")
    driver.press(page, "Stop")
    driver.expect_state(page, "Stopped")
    assert runs.get(store, run.id).state == "stopped"
    expect(page.get_by_text("long: stopped")).to_be_visible()
    driver.button(page, "Resume").click(trial=True)  # nothing lies over it
    driver.no_traceback(page)
    store.close()


def worker_pid(store: Store, run_id: str) -> int:
    pid = runs.get(store, run_id).pid
    assert pid is not None
    return pid
