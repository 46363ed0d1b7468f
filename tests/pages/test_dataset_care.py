"""Datasets: the tabs Quality and Calendar, sources, refreshing and resampling."""

import pandas as pd
import pytest

from app.services import dataset_care, dataset_fetch, datasets
from app.storage.models import Dataset
from kronos_core.data.bars import make_series
from kronos_core.data.sources import Listing, SourceError
from tests.conftest import random_bars
from tests.pages.helpers import button, checked, field, words

INTERVALS = {"1m": "7d", "1d": None}


class Yahoo:
    """A source that answers from memory; `bars` is what it has."""

    name = "yahoo"

    def __init__(self) -> None:
        self.bars = random_bars(80)
        self.asked: list[tuple[str, str, bool]] = []

    def search(self, text: str) -> list[Listing]:
        if text == "nothing":
            raise SourceError("Yahoo found nothing for 'nothing'.")
        return [Listing(symbol="ABC", name="Alphabet soup", exchange="NYSE", kind="equity")]

    def intervals(self) -> dict[str, str | None]:
        return dict(INTERVALS)

    def fetch(self, symbol, interval, *, period=None, start=None, end=None, adjusted=True):
        self.asked.append((symbol, interval, adjusted))
        bars = self.bars if start is None else self.bars[self.bars["timestamps"] >= start]
        return make_series(bars.reset_index(drop=True), symbol=symbol)


@pytest.fixture
def yahoo(monkeypatch: pytest.MonkeyPatch) -> Yahoo:
    source = Yahoo()
    monkeypatch.setattr(dataset_fetch, "open_source", lambda _name, _folder: source)
    dataset_fetch._kept.cache_clear()
    return source


@pytest.fixture
def spoiled(store) -> Dataset:
    """Daily bars: one 100 times too large, one with a high below its low."""
    frame = random_bars(200)
    frame.loc[50, ["open", "high", "low", "close"]] *= 100
    frame.loc[120, "high"] = frame.loc[120, "low"] * 0.99
    return datasets.add(store, make_series(frame), name="Spoiled", source="upload")


def test_repairs_are_previewed_applied_and_undone(open_page, store, spoiled):
    page = open_page("datasets", dataset=spoiled.id, tab="Quality")
    assert "Effect on a forecast" in words(page)
    assert page.dataframe[0].value["quality"][0] == ["poor"]
    for title in ("Undo 100-fold errors", "Widen high and low"):
        field(page.checkbox, title).check()
        checked(page.run())
    assert "1 changed" in words(page)
    assert datasets.get(store, spoiled.id).data_hash == spoiled.data_hash
    button(page, "Apply 2 repairs").click()
    checked(page.run())
    repaired = datasets.get(store, spoiled.id)
    assert repaired.quality["grade"] == "good"
    assert "Applied repairs" in words(page)
    button(page, "Undo").click()
    checked(page.run())
    assert len(datasets.get(store, spoiled.id).repairs) == 1
    dataset_care.apply_repairs(store, spoiled.id, dataset_care.repairs_of(repaired)[:1])
    page = open_page("datasets", dataset=spoiled.id, tab="Quality")
    button(page, "Undo all").click()
    checked(page.run())
    assert datasets.get(store, spoiled.id).data_hash == spoiled.data_hash


def test_the_calendar_is_recognised_and_its_next_bars_shown(open_page, sample):
    page = open_page("datasets", dataset=sample.id, tab="Calendar")
    assert "XNYS" in words(page)
    assert "Recognised by the symbol" in words(page)
    shown = page.table[0].value
    assert len(shown) == 10
    assert list(shown["Time (UTC)"][:3]) == ["2019-01-02", "2019-01-03", "2019-01-04"]


def test_another_calendar_is_previewed_before_it_is_used(open_page, store, sample):
    page = open_page("datasets", dataset=sample.id, tab="Calendar")
    page.segmented_control(key=f"calendar-way-{sample.id}").set_value("24/7")
    checked(page.run())
    assert page.table[0].value["Time (UTC)"][0] == "2019-01-01"
    assert datasets.get(store, sample.id).calendar is None
    button(page, "Use this calendar").click()
    checked(page.run())
    assert datasets.get(store, sample.id).calendar["kind"] == "24/7"
    page.segmented_control(key=f"calendar-way-{sample.id}").set_value("Automatic")
    checked(page.run())
    button(page, "Use this calendar").click()
    checked(page.run())
    assert datasets.get(store, sample.id).calendar is None


def test_own_hours_and_closed_days(open_page, store, sample):
    page = open_page("datasets", dataset=sample.id, tab="Calendar")
    page.segmented_control(key=f"calendar-way-{sample.id}").set_value("Own hours")
    checked(page.run())
    field(page.text_input, "Wednesday").set_value("")
    field(page.text_input, "Further closed days").set_value("2019-01-03")
    checked(page.run())
    assert page.table[0].value["Time (UTC)"][0] == "2019-01-01"
    assert page.table[0].value["Time (UTC)"][1] == "2019-01-04"
    button(page, "Use this calendar").click()
    checked(page.run())
    assert datasets.get(store, sample.id).calendar["closed"] == ["2019-01-03"]
    field(page.text_input, "Monday").set_value("nine to five")
    checked(page.run())
    assert "nine to five" in page.error[0].value


def test_fetching_from_yahoo(open_page, store, yahoo):
    page = open_page("datasets")
    page.segmented_control(key="add-way").set_value("Yahoo")
    checked(page.run())
    page.text_input(key="yahoo-text").set_value("alphabet")
    button(page, "Search").click()
    checked(page.run())
    assert "ABC · Alphabet soup · NYSE · equity" in field(page.selectbox, "Listing").options
    interval = field(page.selectbox, "Interval")
    assert interval.options == ["1m · at most 7d", "1d · all there is"]
    interval.set_value("1m")
    checked(page.run())
    assert field(page.selectbox, "Period").options == ["1d", "5d", "7d", "max"]
    field(page.segmented_control, "Prices").set_value("Raw")
    checked(page.run())
    button(page, "Fetch").click()
    checked(page.run())
    (row,) = datasets.list_datasets(store)
    assert (row.name, row.source, yahoo.asked) == ("ABC 1m raw", "yahoo", [("ABC", "1m", False)])


def test_what_is_not_found_can_be_fetched_as_it_is_written(open_page, yahoo):
    page = open_page("datasets")
    page.segmented_control(key="add-way").set_value("Yahoo")
    checked(page.run())
    page.text_input(key="yahoo-text").set_value("nothing")
    button(page, "Search").click()
    checked(page.run())
    assert field(page.selectbox, "Listing").options == ["nothing · as written"]


def test_crypto_says_how_to_install_what_it_needs(open_page, monkeypatch):
    def missing(_name, _folder):
        raise SourceError("Install it with pip install ccxt.")

    monkeypatch.setattr(dataset_fetch, "open_source", missing)
    dataset_fetch._kept.cache_clear()
    page = open_page("datasets")
    page.segmented_control(key="add-way").set_value("Crypto")
    checked(page.run())
    assert "pip install ccxt" in page.info[0].value


def test_refresh_says_what_is_new(open_page, store, yahoo):
    request = dataset_fetch.FetchRequest(source="yahoo", symbol="ABC", interval="1d", period="2y")
    row = dataset_fetch.add(store, dataset_fetch.fetch(store, request), request, name="ABC")
    yahoo.bars = random_bars(83)
    page = open_page("datasets", dataset=row.id)
    button(page, "Refresh").click()
    checked(page.run())
    assert "3 new bars" in words(page)
    assert datasets.get(store, row.id).bars == 83
    button(page, "Dismiss").click()
    checked(page.run())
    assert "3 new bars" not in words(page)


def test_only_fetched_datasets_are_refreshed(open_page, sample):
    page = open_page("datasets", dataset=sample.id)
    assert "Refresh" not in [found.label for found in page.button]


def test_resample_makes_a_dataset(open_page, store, sample):
    page = open_page("datasets", dataset=sample.id)
    coarser = page.selectbox(key=f"coarser-{sample.id}")
    assert coarser.options == ["1 week", "1 month"]
    button(page, "Make dataset").click()
    checked(page.run())
    row = next(row for row in datasets.list_datasets(store) if row.source == "resampled")
    assert row.name == "S&P 500 1 week"
    assert pd.Timedelta(seconds=row.interval_seconds) == pd.Timedelta(days=7)
    assert page.query_params["dataset"] == row.id
