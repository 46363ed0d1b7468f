"""The whole main job in a browser, with a server started as a user would."""

import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import expect

from tests.e2e import driver

pytestmark = pytest.mark.browser

BARS, PATHS, HORIZON = 700, 20, 10
STEPS = 200  # of the preset Quick


def hourly_csv() -> bytes:
    """A CSV file as an exchange might export it: hourly bars, German column order."""
    rng = np.random.default_rng(5)
    close = 250 * np.exp(np.cumsum(rng.normal(0, 0.004, BARS)))
    opened = np.concatenate([[250.0], close[:-1]])
    frame = pd.DataFrame(
        {
            "Time": pd.date_range("2024-03-04", periods=BARS, freq="h").strftime("%Y-%m-%d %H:%M"),
            "Volume": rng.integers(100, 900, BARS),
            "Close": close.round(2),
            "Low": (np.minimum(opened, close) * 0.998).round(2),
            "High": (np.maximum(opened, close) * 1.002).round(2),
            "Open": opened.round(2),
        }
    )
    return frame.to_csv(index=False).encode()


def test_from_file_to_fan(page, server, shoot, tmp_path):
    upload_bars(page, server, shoot)
    queue_run(page, server, shoot)
    watch_and_reload(page)
    wait_until_finished(page)
    page.reload()
    assert driver.training_points(page, 0) == STEPS
    shoot("run")
    forecast_with_checkpoint(page, shoot)
    download_paths(page, tmp_path)
    driver.no_traceback(page)


def upload_bars(page, server, shoot):
    driver.open_page(page, f"{server.url}/datasets", "Datasets")
    driver.upload(page, "hourly.csv", hourly_csv())
    expect(page.get_by_text(f"{BARS} bars").first).to_be_visible()
    driver.press(page, "Save")
    expect(driver.chart(page, "candles")).to_be_visible()
    driver.settle(page)
    assert "dataset=" in page.url
    candles = driver.chart(page, "candles").evaluate(
        "node => node.calcdata.filter(c => c[0].trace.type === 'candlestick')[0].length"
    )
    assert candles == 250
    shoot("datasets")
    driver.no_traceback(page)


def queue_run(page, server, shoot):
    driver.open_page(page, f"{server.url}/finetune", "Fine-tune")
    driver.press_segment(page, "Quick")  # 200 steps, and none of them saved by stopping early
    driver.press_segment(page, "Schedule")
    for label, value in (
        ("Context (bars)", 48),
        ("Horizon (bars)", 8),
        ("Batch size", 16),
    ):
        driver.fill_number(page, label, value)
    expect(page.get_by_text("Windows: train / val / test")).to_be_visible()
    shoot("finetune")
    driver.no_traceback(page)
    driver.press(page, "Queue run")
    page.wait_for_url(re.compile("run="))


def watch_and_reload(page):
    """The curves of s1 and s2 grow on their own, survive a reload, and keep a zoom."""
    grown = driver.training_points(page, 0)
    more = driver.training_points(page, min(grown, STEPS - 1))
    page.reload()
    again = driver.training_points(page, 0)
    assert again >= more
    driver.zoom(page, "losses")
    zoomed = driver.shown_range(page, "losses")
    driver.training_points(page, min(again, STEPS - 1))
    assert driver.shown_range(page, "losses") == pytest.approx(zoomed)
    driver.no_traceback(page)


def wait_until_finished(page):
    """The page says so without being touched."""
    link = page.get_by_role("link", name=re.compile("Forecast with it"))
    expect(link).to_be_visible()
    driver.expect_state(page, "Finished")
    driver.settle(page)
    assert min(driver.curve_lengths(page, "losses", "validation")) >= 2


def forecast_with_checkpoint(page, shoot):
    page.get_by_role("link", name=re.compile("Forecast with it")).click()
    expect(page.get_by_role("heading", name="Forecast", level=1)).to_be_visible()
    driver.settle(page)
    driver.fill_number(page, "Bars before the end", 24)
    driver.fill_number(page, "Horizon", HORIZON)
    driver.fill_number(page, "Paths", PATHS)
    driver.press(page, "Draw")
    page.wait_for_url(re.compile("forecast="))
    expect(driver.chart(page, "fan")).to_be_visible()
    driver.settle(page)
    assert driver.curve_lengths(page, "fan", "median") == [HORIZON + 1]
    expect(page.get_by_text(f"{HORIZON} actual bars drawn over the fan")).to_be_visible()
    shoot("forecast")


def download_paths(page, tmp_path: Path):
    driver.open_tab(page, "Download")
    with page.expect_download() as waiting:
        driver.press(page, "CSV")
    target = tmp_path / "paths.csv"
    waiting.value.save_as(target)
    rows = pd.read_csv(target)
    assert len(rows) == PATHS * HORIZON
    assert list(rows.columns) == [
        "path", "step", "timestamp", "open", "high", "low", "close", "volume", "amount",
    ]  # fmt: skip
    assert np.isfinite(rows["close"]).all()
    assert (rows["high"] >= rows["low"]).all()


def test_three_clicks_from_nothing_to_a_fan(page, server, shoot):
    driver.open_page(page, server.url, "Kronos Workbench")
    driver.press(page, "Open S&P 500")
    driver.settle(page)
    driver.press(page, "Draw a fan")
    expect(driver.chart(page, "fan")).to_be_visible()
    driver.settle(page)
    assert driver.curve_lengths(page, "fan", "median") == [49]
    shoot("first-fan")
    driver.no_traceback(page)
    driver.open_page(page, server.url, "Kronos Workbench")
    expect(page.get_by_text(f"{5031:,} bars")).to_be_visible()
    shoot("home")


def test_nothing_is_fetched_from_elsewhere(page, server):
    """Every page works without a network: no request leaves the machine."""
    elsewhere: list[str] = []
    own = (server.url, server.url.replace("http", "ws"), "data:", "blob:")
    page.on("request", lambda request: elsewhere.append(request.url))
    pages = ("", "datasets", "models", "finetune", "runs", "forecast", "compare", "teacher_forcing")
    for name in pages:
        page.goto(f"{server.url}/{name}")
        expect(page.get_by_role("heading", level=1).first).to_be_visible()
        driver.settle(page)
        driver.no_traceback(page)
    assert [url for url in elsewhere if not url.startswith(own)] == []


def test_delete_asks_first(page, server):
    driver.open_page(page, f"{server.url}/datasets", "Datasets")
    driver.press(page, "Open the S&P 500 sample")
    expect(driver.chart(page, "candles")).to_be_visible()
    driver.settle(page)
    driver.press(page, "Delete")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("5,031 bars will be gone")
    dialog.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("No bars yet", exact=False)).to_be_visible()
    driver.no_traceback(page)


def test_full_history_is_drawn_merged(page, server):
    driver.open_page(page, f"{server.url}/datasets", "Datasets")
    driver.press(page, "Open the S&P 500 sample")
    expect(driver.chart(page, "candles")).to_be_visible()
    driver.press_segment(page, "All")
    merged = math.ceil(5031 / math.ceil(5031 / 1500))
    expect(page.get_by_text(f"drawn as {merged:,} merged bars", exact=False)).to_be_visible()
