"""How long a person waits for a fan: from the click on Draw until it stands on the page.

    python -m benchmarks.clicks

A served dashboard and headless Chromium on this machine: 100 paths of 48 bars of the S&P 500 with
kronos-nano, warm. The browser's own clock counts, from the click itself to the frame in which the
new fan's curves are there.
"""

import statistics
import tempfile
from pathlib import Path

from playwright.sync_api import Page, expect

from app.services import datasets
from app.settings import Settings
from app.storage import Store
from benchmarks.cases import Row
from tests.e2e import driver

DRAWS = 5
BAR = 2.0  # seconds
CLICKED = """() => document.addEventListener(
    'click', () => { window.clickedAt = performance.now(); }, { capture: true, once: true })"""
FAN_THERE = """before => {
    const shown = new URL(location.href).searchParams.get('forecast');
    if (!shown || shown === before) return false;
    const fans = [...document.querySelectorAll('.st-key-fan .js-plotly-plot')];
    const there = fans.some((fan) => String(fan.layout?.uirevision).startsWith(shown)
        && fan.querySelector('.scatterlayer .js-line') && fan.checkVisibility());
    return there && performance.now() - window.clickedAt;
}"""


def draw(page: Page) -> float:
    """Seconds from the click to the new fan."""
    before = page.evaluate("() => new URL(location.href).searchParams.get('forecast')")
    page.evaluate(CLICKED)
    driver.button(page, "Draw").click()
    waited = page.wait_for_function(FAN_THERE, arg=before).json_value()
    driver.settle(page)
    return float(waited) / 1000


def measure(workspace: Path, log: Path) -> list[float]:
    """Seconds of each draw after a first one that loads the model."""
    with driver.serving(workspace, log) as server, driver.browsing() as browser:
        store = Store(Settings(workspace=workspace, database_url=""))
        sample = datasets.add_sample(store, "sp500")
        store.close()
        page = driver.new_tab(browser)
        driver.open_page(page, f"{server.url}/forecast?dataset={sample.id}", "Forecast")
        for label, value in (("Horizon", "48"), ("Paths", "100")):
            expect(page.get_by_role("spinbutton", name=label).first).to_have_value(value)
        draw(page)
        return [draw(page) for _ in range(DRAWS)]


def main() -> None:
    if not Path(driver.CHROMIUM).exists():
        print(f"clicks: left out, {driver.NO_CHROMIUM}")
        return
    with tempfile.TemporaryDirectory() as folder:
        taken = measure(Path(folder) / "workspace", Path(folder) / "server.log")
    case = "kronos-nano, 100 × 48 bars: click on Draw to the fan, s"
    measured = f"median of {DRAWS}, slowest {max(taken):.2f} s"
    print(Row(case, measured, statistics.median(taken), BAR))


if __name__ == "__main__":
    main()
