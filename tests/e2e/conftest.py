"""A headless browser and a served dashboard; without a browser these tests are skipped."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.e2e import driver

OUTPUT = Path(__file__).parent / "output"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Headless Chromium. In CI its absence is a failure, elsewhere a reason to skip."""
    if not Path(driver.CHROMIUM).exists():
        if os.environ.get("CI"):
            pytest.fail(driver.NO_CHROMIUM)
        pytest.skip(driver.NO_CHROMIUM)
    with driver.browsing() as opened:
        yield opened


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[driver.Server]:
    """One dashboard for all tests of a process: its start takes seconds."""
    folder = tmp_path_factory.mktemp("served")
    with driver.serving(folder / "workspace", folder / "server.log") as server:
        yield server


@pytest.fixture
def server(served: driver.Server) -> Iterator[driver.Server]:
    """The dashboard over a workspace without data, models of its own, runs and forecasts."""
    served.start()
    yield served
    driver.clear(served.workspace)


@pytest.fixture
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A fresh tab; what it showed last is kept when the test fails."""
    tab = driver.new_tab(browser)
    failures = request.session.testsfailed
    yield tab
    if request.session.testsfailed > failures:
        OUTPUT.mkdir(exist_ok=True)
        tab.screenshot(path=str(OUTPUT / f"{request.node.name}.png"), full_page=True)
    tab.context.close()


@pytest.fixture
def shoot(page: Page) -> Callable[[str], None]:
    """Keeps a picture of the page for the documentation when KRONOS_SCREENSHOTS names a folder."""
    folder = os.environ.get("KRONOS_SCREENSHOTS")

    def picture(name: str) -> None:
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            page.mouse.move(720, 5)
            page.wait_for_timeout(800)
            page.screenshot(path=str(Path(folder) / f"{name}.png"))

    return picture
