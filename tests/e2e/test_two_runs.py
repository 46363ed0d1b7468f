"""The studio in a browser: set up, measure, queue two runs, stop, resume, compare."""

import re

import pytest
from playwright.sync_api import expect

from app.services import datasets
from app.settings import Settings
from app.storage import Store
from tests.e2e import driver

pytestmark = pytest.mark.browser


def test_two_runs_in_turn(page, server, shoot):
    store = Store(Settings(workspace=server.workspace, database_url=""))
    datasets.add_sample(store, "sp500")
    store.close()
    set_up(page, server)
    shoot("studio")
    first = queue(page, "first")
    driver.follow_link(page, "Fine-tune")
    expect(page.get_by_role("spinbutton", name="Context (bars)")).to_have_value("48")
    driver.press_segment(page, "True s1")
    second = queue(page, "second")
    expect(page.get_by_text("number 1 of 1 in the queue")).to_be_visible()

    watch(page, server, first)
    driver.press(page, "Stop")
    driver.expect_state(page, "Stopped")
    watch(page, server, second)

    page.goto(f"{server.url}/runs?run={first}")
    driver.press(page, "Resume")
    expect(page.get_by_text("number 1 of 1 in the queue")).to_be_visible()
    page.goto(f"{server.url}/runs?run={second}")
    driver.press(page, "Stop")
    driver.expect_state(page, "Stopped")
    page.goto(f"{server.url}/runs?run={first}")
    driver.expect_state(page, "Running")
    driver.no_traceback(page)

    compare(page, server, shoot)


def set_up(page, server):
    """Settings, then the pre-flight with what a short measurement says."""
    driver.open_page(page, f"{server.url}/finetune", "Fine-tune")
    for label, value in (
        ("Context (bars)", 48),
        ("Horizon (bars)", 8),
        ("Batch size", 16),
        ("Epochs", 30),
    ):
        driver.fill_number(page, label, value)
    driver.press(page, "Measure time and memory")
    expect(page.get_by_text("Time, estimated")).to_be_visible()
    expect(page.get_by_text("checks passed")).to_be_visible()
    driver.no_traceback(page)


def queue(page, name: str) -> str:
    """Queues the run and waits for its page. -> id of the run"""
    driver.fill_text(page, "Name of the run", name)
    driver.press(page, "Queue run")
    page.wait_for_url(re.compile("run="))
    expect(page.get_by_role("heading", name=name, level=1)).to_be_visible()
    return page.url.partition("run=")[2].partition("&")[0]


def watch(page, server, run_id: str):
    """Waits until the curves of the run have appeared."""
    page.goto(f"{server.url}/runs?run={run_id}")
    driver.training_points(page)


def compare(page, server, shoot):
    """Ticks both rows; their curves stand over one axis, with the setting that differs."""
    driver.open_page(page, f"{server.url}/runs", "Runs")
    for row in range(2):
        driver.tick_row(page, "runs-table", row)
        driver.settle(page)
    driver.press(page, "Compare 2 runs")
    expect(page.get_by_role("heading", name="Compare runs")).to_be_visible()
    expect(driver.chart(page, "compare")).to_be_visible()
    driver.settle(page)
    for name in ("first", "second"):
        assert max(driver.curve_lengths(page, "compare", name)) > 5
    expect(page.get_by_text("Settings that differ")).to_be_visible()
    shoot("compare-runs")
    driver.no_traceback(page)
