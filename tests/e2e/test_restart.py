"""A crash of server and worker: after a restart the page shows what happened, and goes on."""

import os
import re
import signal
import time

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
    recorded = wait_for_points(page)

    os.kill(worker_pid(store, run.id), signal.SIGKILL)
    server.kill()
    server.start()

    page.goto(f"{server.url}/runs?run={run.id}")
    expect(page.locator("span").filter(has_text="Interrupted").first).to_be_visible(
        timeout=driver.PATIENCE
    )
    assert wait_for_points(page) >= recorded
    driver.no_traceback(page)
    driver.press(page, "Resume")
    expect(driver.button(page, "Stop")).to_be_visible(timeout=2 * driver.PATIENCE)
    driver.press(page, "Stop")
    wait_for_state(store, run.id, "stopped")
    page.goto(f"{server.url}/runs?run={run.id}")
    expect(page.locator("span").filter(has_text=re.compile("Stopped$")).first).to_be_visible(
        timeout=3 * driver.PATIENCE
    )
    driver.no_traceback(page)
    store.close()


def worker_pid(store: Store, run_id: str) -> int:
    pid = runs.get(store, run_id).pid
    assert pid is not None
    return pid


def wait_for_state(store: Store, run_id: str, state: str) -> None:
    """Waits until the worker has saved and said so, which takes long on busy cores."""
    deadline = time.monotonic() + 180
    while runs.get(store, run_id).state != state:
        assert time.monotonic() < deadline, f"still {runs.get(store, run_id).state}"
        time.sleep(0.5)


def wait_for_points(page) -> int:
    """Waits until the training curves are there; how many points they have."""
    expect(driver.chart(page, "losses")).to_be_visible(timeout=4 * driver.PATIENCE)
    for _ in range(120):
        found = driver.curve_lengths(page, "losses", "training")
        if len(found) == 3 and min(found) > 5:
            return min(found)
        page.wait_for_timeout(500)
    raise AssertionError("no training curves appeared")
