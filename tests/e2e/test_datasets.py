"""Bringing in what people really have: an ambiguous file, a file with an error, and their care."""

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import expect

from app.services import datasets
from app.settings import Settings
from app.storage import Store
from tests.e2e import driver

pytestmark = pytest.mark.browser


def german_csv() -> bytes:
    """Dates that may be day first or month first."""
    rows = [f"{day:02d}/02/2024;10,5;11,25;9,75;10,5;100" for day in range(1, 13)]
    return "\n".join(["Date;Open;High;Low;Close;Volume", *rows]).encode()


def spoiled_csv() -> bytes:
    """Bars of New York, one of them 100 times too large."""
    rng = np.random.default_rng(3)
    close = 50 * np.exp(np.cumsum(rng.normal(0, 0.01, 300)))
    opened = np.concatenate([[50.0], close[:-1]])
    frame = pd.DataFrame(
        {
            "Date": pd.bdate_range("2023-11-01", periods=300).strftime("%Y-%m-%d"),
            "Open": opened,
            "High": np.maximum(opened, close) * 1.004,
            "Low": np.minimum(opened, close) * 0.996,
            "Close": close,
            "Volume": rng.integers(1000, 9000, 300),
        }
    ).round(2)
    frame.loc[250, ["Open", "High", "Low", "Close"]] *= 100
    return frame.to_csv(index=False).encode()


def stored(workspace) -> dict[str, datasets.Dataset]:
    store = Store(Settings(workspace=workspace, database_url=""))
    try:
        return {row.name: row for row in datasets.list_datasets(store)}
    finally:
        store.close()


def test_files_are_asked_about_repaired_and_given_a_calendar(page, server, shoot):
    driver.open_page(page, f"{server.url}/datasets", "Datasets")
    answer_and_save(page, server)
    repair_and_undo(page, server, shoot)
    choose_an_exchange(page, server)
    driver.no_traceback(page)


def answer_and_save(page, server):
    """Both readings are there; nothing is stored before one is chosen and saved."""
    driver.upload(page, "german.csv", german_csv())
    expect(page.get_by_text("01/02/2024 is 1 February 2024")).to_be_visible()
    expect(page.get_by_text("01/02/2024 is 2 January 2024")).to_be_visible()
    assert stored(server.workspace) == {}
    driver.press(page, "Day first")
    expect(driver.button(page, "Save")).to_be_visible()
    driver.settle(page)
    assert stored(server.workspace) == {}
    driver.press(page, "Save")
    expect(driver.chart(page, "candles")).to_be_visible()
    driver.settle(page)
    row = stored(server.workspace)["german"]
    assert (f"{row.first:%Y-%m-%d}", row.bars) == ("2024-02-01", 12)


def repair_and_undo(page, server, shoot):
    page.get_by_text("Add data").first.click()
    driver.upload(page, "spoiled.csv", spoiled_csv())
    expect(page.get_by_text("Quality poor").first).to_be_visible()
    driver.press(page, "Save")
    expect(driver.chart(page, "candles")).to_be_visible()
    driver.settle(page)
    before = stored(server.workspace)["spoiled"]
    driver.open_tab(page, "Quality")
    expect(page.get_by_text("about 100 times too large").first).to_be_visible()
    page.get_by_text("Undo 100-fold errors").first.click()
    driver.settle(page)
    expect(page.get_by_text("Before and after")).to_be_visible()
    assert stored(server.workspace)["spoiled"].data_hash == before.data_hash
    shoot("quality")
    driver.press(page, "Apply 1 repair")
    expect(page.get_by_text("Quality good").first).to_be_visible()
    driver.settle(page)
    assert stored(server.workspace)["spoiled"].data_hash != before.data_hash
    driver.press(page, "Undo")
    expect(page.get_by_text("Quality poor").first).to_be_visible()
    driver.settle(page)
    assert stored(server.workspace)["spoiled"].data_hash == before.data_hash


def choose_an_exchange(page, server):
    """The next bars are shown for what is chosen, before it is used and after."""
    driver.open_tab(page, "Calendar")
    expect(page.get_by_text("Next 10 bars that will be forecast")).to_be_visible()
    assert "2024-12-25" in next_bars(page)
    driver.press_segment(page, "Exchange")
    expect(page.get_by_text("not in use yet", exact=False)).to_be_visible()
    assert "2024-12-25" not in next_bars(page)  # Christmas
    driver.press(page, "Use this calendar")
    expect(page.get_by_text("Chosen by you", exact=False)).to_be_visible()
    driver.settle(page)
    assert stored(server.workspace)["spoiled"].calendar["exchange"] == "XNYS"


def next_bars(page) -> str:
    """The table of the next bars in words."""
    driver.settle(page)
    return page.locator(".st-key-next-bars").last.inner_text()
