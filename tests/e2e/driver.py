"""A served dashboard and a browser in front of it: what the tests and the screenshots drive."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Error, Locator, Page, expect, sync_playwright

from app.jobs.supervisor import Supervisor, worker_of
from app.services import datasets, forecasts, models, runs
from app.settings import Settings
from app.storage import Store
from app.storage.models import ACTIVE_STATES, PENDING_FORECAST_STATES

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = os.environ.get("KRONOS_TEST_CHROMIUM", "/usr/bin/chromium")
NO_CHROMIUM = f"no Chromium at {CHROMIUM}; KRONOS_TEST_CHROMIUM names another place"
BROWSER_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 300.0
"""Seconds that anything may take before a test fails; busy cores can take their time."""
expect.set_options(timeout=PATIENCE * 1000)


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """The dashboard as a user starts it, over a workspace of its own."""

    def __init__(self, workspace: Path, log: Path, entry: str = "app/server.py") -> None:
        self.workspace, self.log, self.entry = workspace, log, entry
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts it, unless it runs, and waits until it is healthy; RuntimeError with its log
        otherwise."""
        if self.process is not None:
            return
        command = [sys.executable, "-m", "streamlit", "run", self.entry]
        command += ["--server.port", str(self.port), "--server.headless", "true"]
        environment = os.environ | {"KRONOS_WORKSPACE": str(self.workspace), "OMP_NUM_THREADS": "1"}
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + PATIENCE
        while not self._healthy():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"the server did not start:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.3)

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/healthz", timeout=2) as answer:
                return json.load(answer)["status"] == "ok"  # type: ignore[no-any-return]
        except (OSError, ValueError):
            return False

    def stop(self) -> None:
        """Ends it as Ctrl+C does, or at once if that does not help."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def kill(self) -> None:
        """Ends it with SIGKILL, as a crash would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None


def clear(workspace: Path) -> None:
    """Takes away all that a test left there, running or not; the built-in model stays."""
    store = Store(Settings(workspace=workspace, database_url=""))
    try:
        _end_runs(store)
        for forecast in forecasts.list_forecasts(store):
            if forecast.state in PENDING_FORECAST_STATES:
                forecasts.cancel(store, forecast.id)
            forecasts.delete(store, forecast.id)
        for run in runs.list_runs(store):
            runs.delete(store, run.id)
        for model in models.list_models(store):
            if model.kind != "builtin":
                models.delete(store, model.id, force=True)
        for dataset in datasets.list_datasets(store):
            datasets.delete(store, dataset.id, force=True)
    finally:
        store.close()


def _end_runs(store: Store) -> None:
    """Runs outlive their server on purpose: their processes are ended, then their rows."""
    for run in runs.list_runs(store):
        if run.state == "queued":
            runs.cancel(store, run.id)
    watcher = Supervisor(store)
    for run in runs.list_runs(store):
        if run.state in ACTIVE_STATES and (worker := worker_of(run)):
            watcher.launcher.kill(worker)
    deadline = time.monotonic() + PATIENCE
    while any(run.state in ACTIVE_STATES for run in runs.list_runs(store)):
        assert time.monotonic() < deadline, "a run without a process is still active"
        watcher.reconcile()
        time.sleep(0.2)


@contextmanager
def serving(workspace: Path, log: Path, entry: str = "app/server.py") -> Iterator[Server]:
    """A running server for the length of a block."""
    server = Server(workspace, log, entry)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def browsing() -> Iterator[Browser]:
    """Headless Chromium for the length of a block."""
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=CHROMIUM, args=BROWSER_ARGUMENTS, headless=True
        )
        yield opened
        opened.close()


def new_tab(browser: Browser) -> Page:
    """A fresh tab of 1440 × 900 that shares nothing with others."""
    context = browser.new_context(
        viewport={"width": 1440, "height": 900}, timezone_id="Europe/Berlin", accept_downloads=True
    )
    context.set_default_timeout(PATIENCE * 1000)
    return context.new_page()


def wait_until(page: Page, condition: Callable[[], bool], what: str) -> None:
    """Waits until a condition holds that the browser knows nothing of."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"in vain for {PATIENCE:.0f} s at {page.url}: {what}"
        page.wait_for_timeout(200)


def settle(page: Page, quiet: float = 0.6) -> None:
    """Waits until Streamlit has finished a rerun: nothing running for `quiet` seconds."""
    app = page.locator('[data-testid="stApp"]')
    busy_at = time.monotonic()

    def calm() -> bool:
        nonlocal busy_at
        if app.get_attribute("data-test-script-state") != "notRunning":
            busy_at = time.monotonic()
        return time.monotonic() - busy_at >= quiet

    wait_until(page, calm, "the page is at rest")


def open_page(page: Page, url: str, title: str) -> None:
    """Opens a page of the dashboard and waits for its heading."""
    page.goto(url)
    expect(page.get_by_role("heading", name=title, level=1)).to_be_visible()
    settle(page)


def press(page: Page, label: str, *, exact: bool = True) -> None:
    """Presses a button by its words; the name that a reader hears may start with its icon's.

    A page that redraws just then can move the button away between the mouse's down and up.
    """
    target = button(page, label, exact=exact)
    wait_until(page, lambda: _pressed(target), f"{label} is pressed")


def _pressed(target: Locator) -> bool:
    """Clicks; whether the click reached what it was meant for."""
    meant = target.element_handle()
    meant.evaluate("node => node.addEventListener('click', () => node.wasPressed = true)")
    try:
        meant.click()
    except Error as error:
        if "not attached" in str(error):
            return False
        raise
    return bool(meant.evaluate("node => node.wasPressed === true"))


def button(page: Page, label: str, *, exact: bool = True) -> Locator:
    """A visible button whose label is these words."""
    # While a page runs for long, Streamlit shows a Stop of its own in the header.
    inner = page.get_by_text(label, exact=exact)
    return page.locator("button:visible:not(header button)").filter(has=inner).first


def fill_number(page: Page, label: str, value: float) -> None:
    """Types a number into a number field and commits it."""
    field = page.get_by_role("spinbutton", name=label).first
    field.fill(str(value))
    field.press("Enter")
    settle(page)


def fill_text(page: Page, label: str, value: str) -> None:
    """Types into a text field and commits it."""
    field = page.get_by_label(label, exact=True).first
    field.fill(value)
    field.press("Enter")
    settle(page)


def choose(page: Page, label: str, option: str) -> None:
    """Picks an option of a select box."""
    box = page.locator('[data-testid="stSelectbox"]').filter(has_text=label).first
    box.locator("input").click()
    page.get_by_role("option", name=option).first.click()
    settle(page)


def press_segment(page: Page, label: str) -> None:
    """Chooses in a segmented control."""
    page.locator('[data-testid="stButtonGroup"] button').filter(has_text=label).first.click()
    settle(page)


def follow_link(page: Page, label: str) -> None:
    """Goes to another page within the session, by the navigation at the side."""
    page.get_by_test_id("stSidebarNav").get_by_role("link", name=label).click()
    expect(page.get_by_role("heading", name=label, level=1)).to_be_visible()
    settle(page)


def tick_row(page: Page, key: str, row: int) -> None:
    """Ticks a row of a table; its cells are painted, so the mouse has to find the box."""
    box = page.locator(f".st-key-{key} canvas").first.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 16, box["y"] + 31 * (row + 1.5))


def open_tab(page: Page, label: str) -> None:
    """Opens a tab."""
    page.get_by_role("tab", name=label).click()
    settle(page)


def upload(page: Page, name: str, content: bytes | Path) -> None:
    """Gives the page's file field a file."""
    field = page.locator('[data-testid="stFileUploaderDropzoneInput"]').first
    if isinstance(content, Path):
        field.set_input_files(str(content))
    else:
        field.set_input_files({"name": name, "mimeType": "text/csv", "buffer": content})
    settle(page)


def chart(page: Page, key: str) -> Locator:
    """A chart by its key; while the page redraws, the one it leaves may still be there too."""
    return page.locator(f".st-key-{key} .js-plotly-plot").last


def curve_lengths(page: Page, key: str, name: str) -> list[int]:
    """How many points the curves of that name have, panel by panel."""
    script = """(node, name) => (node.calcdata || [])
        .filter(points => points.length && points[0].trace && points[0].trace.name === name)
        .map(points => points[0].trace._length ?? points.length)"""
    return chart(page, key).evaluate(script, name)  # type: ignore[no-any-return]


def training_points(page: Page, more_than: int = 5) -> int:
    """Waits until the training curves of all losses have more points; how many they have."""
    expect(chart(page, "losses")).to_be_visible()
    found: list[int] = []

    def grown() -> bool:
        found[:] = curve_lengths(page, "losses", "training")
        return len(found) == 3 and min(found) > more_than

    wait_until(page, grown, f"more than {more_than} points in the training curves")
    return min(found)


def expect_state(page: Page, word: str) -> None:
    """Waits until the badge beside a run's name says this."""
    expect(page.locator("span").filter(has_text=re.compile(f"{word}$")).first).to_be_visible()


def shown_range(page: Page, key: str) -> list[float]:
    """The range of the first x axis of a chart."""
    return chart(page, key).evaluate("node => node._fullLayout.xaxis.range.map(Number)")  # type: ignore[no-any-return]


def zoom(page: Page, key: str) -> None:
    """Drags over the middle of a chart's first panel."""
    box = chart(page, key).locator(".nsewdrag").first.bounding_box()
    assert box is not None
    height = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.2, height)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, height, steps=8)
    page.mouse.up()


def no_traceback(page: Page) -> None:
    """Nothing on the page looks like a program that broke."""
    text = page.inner_text("body")
    for word in ("Traceback", "Something went wrong", "StreamlitAPIException"):
        assert word not in text, f"{word!r} is on the page {page.url}:\n{text[:2000]}"
    assert page.locator('[data-testid="stException"]').count() == 0
