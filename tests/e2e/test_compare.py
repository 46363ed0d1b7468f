"""Fans against what happened, side by side, over many series, and taken back, in a browser."""

import re
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import expect

from app.services import datasets
from app.settings import Settings
from app.storage import Store
from kronos_core.data.bars import Series
from tests.e2e import driver

pytestmark = pytest.mark.browser

SERIES = 12


def bars(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    close = 50 * (seed + 1) * np.exp(np.cumsum(rng.normal(0, 0.01, 200)))
    opened = np.concatenate([close[:1], close[:-1]])
    frame = pd.DataFrame(
        {
            "timestamps": pd.date_range("2023-01-02", periods=200, freq="B", tz="UTC"),
            "open": opened,
            "high": np.maximum(opened, close) * 1.004,
            "low": np.minimum(opened, close) * 0.996,
            "close": close,
            "volume": rng.integers(1000, 9000, 200).astype(float),
        }
    )
    return frame.assign(amount=frame["volume"] * frame["close"])


@pytest.fixture
def twelve(server):
    """A dashboard with twelve daily series."""
    store = Store(Settings(workspace=server.workspace, database_url=""))
    day = pd.Timedelta(days=1)
    for number in range(SERIES):
        series = Series(frame=bars(number), interval=day, timezone="UTC")
        datasets.add(store, series, name=f"Stock {number + 1}", source="upload")
    store.close()
    return server


PLACE_OF = """(node, price) => {
    const axis = node._fullLayout.yaxis;
    return node.getBoundingClientRect().y + axis._offset + axis.l2p(price);
}"""


def drag_target(page, price, to):
    """Drags the target's line in the fan from one price to another."""
    fan = driver.chart(page, "fan")
    fan.scroll_into_view_if_needed()
    x = fan.bounding_box()["x"] + 300
    page.mouse.move(x, fan.evaluate(PLACE_OF, price))
    page.mouse.down()
    page.mouse.move(x, fan.evaluate(PLACE_OF, to), steps=8)
    page.mouse.up()


def metric(page, label):
    """The value of a figure beside the fan."""
    shown = page.get_by_test_id("stMetric").filter(has_text=label)
    return shown.get_by_test_id("stMetricValue")


def test_a_past_origin_with_the_actual_bars_over_the_fan(page, twelve, shoot, tmp_path):
    driver.open_page(page, f"{twelve.url}/forecast", "Forecast")
    for label, value in (("Bars before the end", 24), ("Horizon", 12)):
        driver.fill_number(page, label, value)
    expect(page.get_by_text("Drawing takes about")).to_be_visible()
    driver.press(page, "Draw")
    page.wait_for_url(re.compile("forecast="))
    expect(driver.chart(page, "fan")).to_be_visible()
    driver.settle(page)
    assert driver.curve_lengths(page, "fan", "actual bars") == [12]
    expect(page.get_by_text("Close against 12 actual bars")).to_be_visible()
    driver.fill_text(page, "Target price", "dear")
    expect(page.get_by_role("alert").first).to_contain_text("Type a price such as")
    driver.fill_text(page, "Target price", "500")
    expect(page.get_by_text("P(touch target)")).to_be_visible()
    assert "target=500" in page.url
    shoot("forecast-past")
    expect(metric(page, "P(touch target)")).to_have_text("0 %")
    driver.zoom(page, "fan")
    zoomed = driver.shown_range(page, "fan")
    last = float(metric(page, "Last known close").inner_text().replace(",", ""))
    drag_target(page, 500, to=last)
    expect(metric(page, "P(touch target)")).not_to_have_text("0 %")
    (dragged,) = parse_qs(urlsplit(page.url).query)["target"]
    assert float(dragged) == pytest.approx(last, rel=0.01)
    expect(page.get_by_label("Target price", exact=True)).to_have_value(dragged)
    assert driver.shown_range(page, "fan") == zoomed
    shoot("forecast-target")
    driver.open_tab(page, "Download")
    with page.expect_download() as waiting:
        driver.press(page, "HTML")
    target = tmp_path / "fan.html"
    waiting.value.save_as(target)
    text = target.read_text(encoding="utf-8")
    assert "Plotly.newPlot" in text
    assert not re.search(r'<script[^>]+src="', text)
    driver.no_traceback(page)


def test_three_temperatures_side_by_side(page, twelve, shoot):
    driver.open_page(page, f"{twelve.url}/compare", "Compare")
    driver.press(page, "Compare three temperatures")
    chart = driver.chart(page, "fans")
    labels = [f"temperature {value}" for value in ("0.6", "1.0", "1.4")]
    expect(page.get_by_text("Close at bar 48")).to_be_visible()
    expect(page.get_by_text("Drawing:")).to_have_count(0)
    driver.settle(page)
    script = """node => ['yaxis', 'yaxis2', 'yaxis3'].map(
        name => node._fullLayout[name].range.join())"""
    page.reload()  # its URL says what is compared
    expect(chart).to_be_visible()
    driver.settle(page)
    assert len(set(chart.evaluate(script))) == 1
    titles = chart.evaluate("node => node.layout.annotations.map(note => note.text)")
    assert titles == labels
    shoot("compare")
    driver.press_segment(page, "Overlay")
    assert [driver.curve_lengths(page, "fans", label) for label in labels] == [[49]] * 3
    driver.no_traceback(page)


def test_twelve_series_in_one_job(page, twelve, shoot, tmp_path):
    driver.open_page(page, f"{twelve.url}/compare?show=Many+series", "Compare")
    driver.fill_number(page, "Horizon", 16)
    driver.press(page, "Forecast all")
    page.wait_for_url(re.compile("batch="))
    export = driver.button(page, "Table (CSV)")
    expect(export).to_be_enabled()
    driver.settle(page)
    shoot("many-series")
    with page.expect_download() as waiting:
        export.click()
    waiting.value.save_as(tmp_path / "series.csv")
    rows = pd.read_csv(tmp_path / "series.csv")
    assert len(rows) == SERIES
    assert (rows["state"] == "finished").all()
    assert rows["probability_up"].between(0, 1).all()
    driver.no_traceback(page)


def test_a_long_forecast_is_cancelled(page, twelve):
    driver.open_page(page, f"{twelve.url}/forecast", "Forecast")
    driver.fill_number(page, "Horizon", 1024)
    driver.fill_number(page, "Paths", 1000)
    driver.press(page, "Draw")
    page.wait_for_url(re.compile("forecast="))
    driver.press(page, "Cancel")
    said = page.get_by_text("This forecast was cancelled")
    expect(said).to_be_visible()
    driver.no_traceback(page)
