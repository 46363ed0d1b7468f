"""Datasets from sources: fetched, stored with their request, and refreshed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from app.services import dataset_care, dataset_fetch, datasets
from app.services.dataset_fetch import FetchRequest
from app.services.errors import ServiceError
from app.storage import Store, repository
from app.storage.models import Dataset, Forecast, Model, Run
from kronos_core.data.bars import CHANNELS, PRICES, DataError, Series, bars_hash, make_series
from kronos_core.data.repair import RepairStep
from kronos_core.data.sources import Listing, SourceError

MakeBars = Callable[..., pd.DataFrame]
REQUEST = FetchRequest(source="yahoo", symbol="ABC", interval="1d", period="2y", adjusted=False)


class Exchange:
    """A source whose bars a test sets; it notes the starts that it is asked for."""

    name = "yahoo"

    def __init__(self, bars: pd.DataFrame) -> None:
        self.bars = bars
        self.longest: str | None = None
        self.asked: list[pd.Timestamp | None] = []
        self.adjusted: bool | None = None

    def search(self, text: str) -> list[Listing]:
        return [Listing(symbol=text, name=text, exchange="X", kind="equity")]

    def intervals(self) -> dict[str, str | None]:
        return {"1d": self.longest}

    def fetch(
        self,
        symbol: str,
        _interval: str,
        *,
        period: str | None,
        start: pd.Timestamp | None,
        end: pd.Timestamp | None,
        adjusted: bool,
    ) -> Series:
        assert end is None
        assert (period is None) != (start is None)
        self.asked.append(start)
        self.adjusted = adjusted
        bars = self.bars if start is None else self.bars[self.bars["timestamps"] >= start]
        if bars.empty:
            raise SourceError("Nothing there.")
        return make_series(bars.reset_index(drop=True), symbol=symbol, findings=("From X.",))


@pytest.fixture
def whole(make_bars: MakeBars) -> pd.DataFrame:
    return make_bars(100)


@pytest.fixture
def exchange(whole: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> Exchange:
    exchange = Exchange(whole.iloc[:80])
    monkeypatch.setattr(dataset_fetch, "open_source", lambda _name, _folder: exchange)
    return exchange


def fetched(store: Store, exchange: Exchange) -> Dataset:
    series = dataset_fetch.fetch(store, REQUEST)
    dataset = dataset_fetch.add(store, series, REQUEST, name="ABC 1d")
    exchange.asked.clear()
    return dataset


def stored_files(store: Store) -> set[str]:
    return {path.stem for path in (store.files.root / "bars").iterdir()}


def original(store: Store, dataset: Dataset) -> pd.DataFrame:
    return datasets.original_bars(store, dataset)


def use(store: Store, dataset: Dataset) -> tuple[Run, Forecast]:
    facts: dict[str, Any] = {"parameters": 1, "max_context": 8, "s2_rotary": "position"}
    with store.session() as session:
        model = repository.add(session, Model(name="M", kind="imported", model_hash="", **facts))
        links = {"dataset_id": dataset.id, "data_hash": dataset.data_hash}
        run = Run(name="R", base_model_id=model.id, state="finished", **links)
        forecast = Forecast(name="F", model_id=model.id, state="finished", **links)
        return repository.add(session, run), repository.add(session, forecast)


def test_a_request_is_stored_and_read_back(store: Store, exchange: Exchange) -> None:
    dataset = fetched(store, exchange)
    assert (dataset.source, dataset.symbol, dataset.bars) == ("yahoo", "ABC", 80)
    assert dataset_fetch.request_of(datasets.get(store, dataset.id)) == REQUEST
    assert exchange.adjusted is False
    start = pd.Timestamp("2024-01-01", tz="America/New_York")
    spanned = FetchRequest(source="crypto:kraken", symbol="B/U", interval="1h", start=start)
    assert FetchRequest.from_dict(spanned.to_dict()) == spanned
    series = dataset_fetch.fetch(store, REQUEST)
    assert dataset_fetch.add(store, series, spanned, name="Other").source == "crypto"


def test_searching_and_intervals(store: Store, exchange: Exchange) -> None:
    assert dataset_fetch.search(store, "yahoo", "ABC")[0].symbol == "ABC"
    assert dataset_fetch.intervals(store, "Yahoo ") == {"1d": None}


def test_refresh_fetches_only_what_is_new(
    store: Store, exchange: Exchange, whole: pd.DataFrame
) -> None:
    dataset = fetched(store, exchange)
    exchange.bars = whole
    updated, result = dataset_fetch.refresh(store, dataset.id)
    assert exchange.asked == [whole["timestamps"][50]]
    assert (result.added, len(result.changed), updated.bars) == (20, 0, 100)
    assert updated.data_hash == updated.original_hash == bars_hash(whole)
    assert updated.last == whole["timestamps"].iloc[-1]
    assert updated.updated_at > dataset.updated_at
    assert updated.quality is not None
    assert updated.quality["bars"] == 100
    assert stored_files(store) == {updated.data_hash}
    (noted,) = updated.provenance["refreshes"]
    assert (noted["added"], noted["changed"]) == (20, 0)
    assert noted["from"] == dataset.data_hash
    assert noted["findings"] == list(result.findings)
    assert dataset_fetch.request_of(updated) == REQUEST
    again, result = dataset_fetch.refresh(store, dataset.id)
    assert (result.added, again.data_hash) == (0, updated.data_hash)
    assert stored_files(store) == {updated.data_hash}


def test_a_correction_of_the_newest_bar_asks_once(
    store: Store, exchange: Exchange, whole: pd.DataFrame
) -> None:
    dataset = fetched(store, exchange)
    exchange.bars = whole.copy()
    exchange.bars.loc[79, "volume"] += 1
    updated, result = dataset_fetch.refresh(store, dataset.id)
    assert len(exchange.asked) == 1
    assert [change.channel for change in result.changed] == ["volume"]
    assert original(store, updated).loc[79, "volume"] == exchange.bars.loc[79, "volume"]


def test_a_changed_past_is_fetched_as_a_whole(
    store: Store, exchange: Exchange, whole: pd.DataFrame
) -> None:
    dataset = fetched(store, exchange)
    exchange.bars = whole.copy()
    exchange.bars.loc[:70, list(PRICES)] *= 0.99
    updated, result = dataset_fetch.refresh(store, dataset.id)
    assert exchange.asked == [whole["timestamps"][50], whole["timestamps"][0]]
    assert result.overlap == 80
    assert result.restated[0].factor == pytest.approx(0.99)
    assert bars_hash(original(store, updated)) == bars_hash(exchange.bars)


def test_beyond_the_sources_limit_old_bars_are_rescaled(
    store: Store, exchange: Exchange, whole: pd.DataFrame
) -> None:
    now = pd.Timestamp.now("UTC").floor("D")
    recent = whole.assign(timestamps=pd.date_range(end=now, periods=100, freq="D"))
    exchange.bars = recent.iloc[:80]
    dataset = fetched(store, exchange)
    exchange.longest = "60d"
    exchange.bars = recent.copy()
    exchange.bars[list(PRICES)] *= 0.5
    exchange.bars["amount"] *= 0.5
    updated, result = dataset_fetch.refresh(store, dataset.id)
    assert all(now - start <= pd.Timedelta(days=60) for start in exchange.asked if start)
    assert result.rescaled >= 39
    values = original(store, updated)[list(CHANNELS)]
    pd.testing.assert_frame_equal(values, exchange.bars[list(CHANNELS)], rtol=1e-12)


def test_runs_and_forecasts_keep_the_bars_that_they_used(
    store: Store, exchange: Exchange, whole: pd.DataFrame
) -> None:
    dataset = fetched(store, exchange)
    run, forecast = use(store, dataset)
    exchange.bars = whole
    updated, _ = dataset_fetch.refresh(store, dataset.id)
    assert stored_files(store) == {dataset.data_hash, updated.data_hash}
    assert bars_hash(store.files.read_bars(run.data_hash)) == dataset.data_hash
    exchange.bars = whole.assign(volume=1.0)
    newest, _ = dataset_fetch.refresh(store, dataset.id)
    assert stored_files(store) == {forecast.data_hash, newest.data_hash}
    datasets.delete(store, dataset.id, force=True)
    assert stored_files(store) == set()


def test_repairs_are_applied_to_the_new_bars(
    store: Store, exchange: Exchange, whole: pd.DataFrame
) -> None:
    broken = whole.copy()
    broken.loc[[10, 90], "high"] = broken.loc[[10, 90], "low"] * 0.9
    exchange.bars = broken.iloc[:80]
    dataset = fetched(store, exchange)
    step = RepairStep(name="fix_bounds")
    repaired = dataset_care.apply_repairs(store, dataset.id, [step])
    exchange.bars = broken
    updated, result = dataset_fetch.refresh(store, dataset.id)
    assert (result.added, len(result.changed)) == (20, 0)
    assert dataset_care.repairs_of(updated) == dataset_care.repairs_of(repaired)
    assert updated.original_hash == bars_hash(broken)
    frame = datasets.bars(store, updated)
    assert (frame["high"] >= frame["low"]).all()
    assert stored_files(store) == {updated.original_hash, updated.data_hash}


def test_what_cannot_be_refreshed(store: Store, exchange: Exchange) -> None:
    series = make_series(exchange.bars)
    upload = datasets.add(store, series, name="Bars", source="upload")
    with pytest.raises(ServiceError, match="Upload the newer file"):
        dataset_fetch.refresh(store, upload.id)
    dataset = fetched(store, exchange)
    exchange.bars = exchange.bars.iloc[:0]
    with pytest.raises(DataError, match="Nothing there"):
        dataset_fetch.refresh(store, dataset.id)
    assert datasets.get(store, dataset.id).data_hash == dataset.data_hash


def test_yahoo_datasets_of_the_first_version_can_be_refreshed(
    store: Store, exchange: Exchange, whole: pd.DataFrame
) -> None:
    told = {"ticker": "ABC", "period": "2y", "interval": "1d"}
    series = make_series(exchange.bars, symbol="ABC")
    dataset = datasets.add(store, series, name="ABC", source="yahoo", provenance=told)
    exchange.bars = whole
    updated, result = dataset_fetch.refresh(store, dataset.id)
    assert (result.added, updated.bars) == (20, 100)
    assert exchange.adjusted is True


def test_two_refreshes_at_once(
    store: Store, exchange: Exchange, whole: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = fetched(store, exchange)
    exchange.bars = whole
    fetch = exchange.fetch

    def meanwhile(*request: Any, **options: Any) -> Series:
        monkeypatch.setattr(exchange, "fetch", fetch)
        with store.session() as session:
            repository.update_row(session, Dataset, dataset.id, data_hash="0" * 64)
        return fetch(*request, **options)

    monkeypatch.setattr(exchange, "fetch", meanwhile)
    with pytest.raises(ServiceError, match="was changed meanwhile"):
        dataset_fetch.refresh(store, dataset.id)
    assert stored_files(store) == {dataset.original_hash}
