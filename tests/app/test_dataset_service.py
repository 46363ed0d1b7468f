"""Datasets as pages and the command line use them."""

from collections.abc import Callable
from datetime import UTC
from typing import Any

import pandas as pd
import pytest

from app.services import datasets, status
from app.services.errors import ServiceError
from app.storage import Store, repository
from app.storage.models import Dataset, Forecast, Model, Run
from kronos_core.data.bars import DataError, Series, interval_of

MakeBars = Callable[..., pd.DataFrame]


@pytest.fixture
def series(make_bars: MakeBars) -> Series:
    return as_series(make_bars(40), symbol="ABC", timezone="America/New_York", findings=("One.",))


def as_series(frame: pd.DataFrame, **fields: Any) -> Series:
    return Series(
        frame=frame, interval=interval_of(pd.DatetimeIndex(frame["timestamps"])), **fields
    )


def use(store: Store, dataset: Dataset, **fields: Any) -> tuple[Run, Forecast]:
    """A run and a forecast on the dataset."""
    facts: dict[str, Any] = {"parameters": 1, "max_context": 8, "s2_rotary": "position"}
    with store.session() as session:
        model = repository.add(session, Model(name="M", kind="imported", model_hash="", **facts))
        links = {"dataset_id": dataset.id}
        run = repository.add(
            session,
            Run(name="First try", base_model_id=model.id, **links, **{"state": "stopped"} | fields),
        )
        forecast = repository.add(
            session,
            Forecast(name="Next week", model_id=model.id, state="finished", **links),
        )
    return run, forecast


def stored_files(store: Store) -> list[str]:
    return sorted(path.stem for path in (store.files.root / "bars").iterdir())


def test_add_keeps_what_is_known(store: Store, series: Series) -> None:
    added = datasets.add(store, series, name="  My  bars ", source="upload", provenance={"file": 1})
    found = datasets.get(store, "My bars")
    assert found.id == added.id
    assert (found.symbol, found.bars, found.source) == ("ABC", 40, "upload")
    assert (found.interval_seconds, found.timezone) == (86400.0, "America/New_York")
    assert found.first == pd.Timestamp("2024-01-01", tz="UTC")
    assert found.last == pd.Timestamp("2024-02-09", tz="UTC")
    assert found.first.tzinfo is UTC
    assert found.findings == ["One."]
    assert found.provenance == {"file": 1, "code_version": status.version()}
    assert stored_files(store) == [found.data_hash]


def test_bars_come_back_in_their_own_zone(store: Store, series: Series) -> None:
    dataset = datasets.add(store, series, name="Bars", source="upload")
    bars = datasets.bars(store, dataset)
    assert str(bars["timestamps"].dt.tz) == "America/New_York"
    assert bars["timestamps"].tolist() == series.frame["timestamps"].tolist()
    assert bars["close"].tolist() == series.frame["close"].tolist()


def test_the_same_bars_twice_are_one_dataset(store: Store, series: Series) -> None:
    first = datasets.add(store, series, name="Bars", source="upload")
    assert datasets.add(store, series, name="Bars", source="upload").id == first.id
    other = datasets.add(store, series, name="Bars again", source="upload")
    assert [row.id for row in datasets.list_datasets(store)] == [other.id, first.id]


def test_a_name_of_other_bars_is_refused(store: Store, series: Series, make_bars: MakeBars) -> None:
    dataset = datasets.add(store, series, name="Bars", source="upload")
    with pytest.raises(ServiceError, match='already a dataset called "Bars"'):
        datasets.add(store, as_series(make_bars(40, seed=1)), name="Bars", source="upload")
    assert stored_files(store) == [dataset.data_hash]


@pytest.mark.parametrize(
    ("name", "message"),
    [("  ", "has no name"), ("x" * 81, "81 characters"), ("a\x00b", "cannot be shown")],
)
def test_bad_names(store: Store, series: Series, name: str, message: str) -> None:
    with pytest.raises(ServiceError, match=message):
        datasets.add(store, series, name=name, source="upload")
    assert datasets.list_datasets(store) == []
    assert stored_files(store) == []


def test_samples_are_added_once(store: Store) -> None:
    sample = datasets.add_sample(store, "sp500")
    assert (sample.name, sample.source, sample.provenance["sample"]) == (
        "S&P 500",
        "sample",
        "sp500",
    )
    datasets.rename(store, sample.id, "Index")
    assert datasets.add_sample(store, "sp500").id == sample.id
    with pytest.raises(DataError, match="sp500, nasdaq"):
        datasets.add_sample(store, "dax")


def test_a_sample_gives_way_to_a_users_name(store: Store, series: Series) -> None:
    datasets.add(store, series, name="S&P 500", source="upload")
    assert datasets.add_sample(store, "sp500").name == "S&P 500 2"


def test_get_lists_what_there_is(store: Store, series: Series) -> None:
    with pytest.raises(ServiceError, match="no dataset yet"):
        datasets.get(store, "Bars")
    datasets.add(store, series, name="Bars", source="upload")
    with pytest.raises(ServiceError, match=r'no dataset "bar"\. There are: Bars'):
        datasets.get(store, "bar")


def test_sparkline(store: Store, series: Series) -> None:
    dataset = datasets.add(store, series, name="Bars", source="upload")
    closes = series.frame["close"].tolist()
    assert datasets.sparkline(store, dataset) == closes
    few = datasets.sparkline(store, dataset, 5)
    assert len(few) == 5
    assert (few[0], few[-1]) == (closes[0], closes[-1])
    store.files.delete_bars(dataset.data_hash)
    assert datasets.sparkline(store, dataset) == []
    with pytest.raises(ServiceError, match=r'"Bars".*missing'):
        datasets.bars(store, dataset)


def test_rename(store: Store, series: Series) -> None:
    dataset = datasets.add(store, series, name="Bars", source="upload")
    datasets.add(store, series, name="Others", source="upload")
    renamed = datasets.rename(store, dataset.id, " New ")
    assert (renamed.id, renamed.name) == (dataset.id, "New")
    assert renamed.updated_at > dataset.updated_at
    assert datasets.rename(store, "New", "New").id == dataset.id
    with pytest.raises(ServiceError, match="already"):
        datasets.rename(store, dataset.id, "Others")


def test_delete_removes_bars_that_nothing_else_uses(store: Store, series: Series) -> None:
    first = datasets.add(store, series, name="First", source="upload")
    second = datasets.add(store, series, name="Second", source="upload")
    datasets.delete(store, first.id)
    assert stored_files(store) == [first.data_hash]
    datasets.delete(store, second.id)
    assert stored_files(store) == []
    assert datasets.list_datasets(store) == []


def test_delete_names_what_depends_on_it(store: Store, series: Series) -> None:
    dataset = datasets.add(store, series, name="Bars", source="upload")
    run, forecast = use(store, dataset)
    log = store.files.log_path(run.id)
    log.write_text("line")
    assert datasets.dependents(store, dataset.id) == ['run "First try"', 'forecast "Next week"']
    with pytest.raises(ServiceError, match='run "First try", forecast "Next week"'):
        datasets.delete(store, dataset.id)
    datasets.delete(store, dataset.id, force=True)
    assert not log.parent.exists()
    with store.session(write=False) as session:
        assert repository.get(session, Run, run.id) is None
        assert repository.get(session, Forecast, forecast.id) is None


@pytest.mark.parametrize("state", ["queued", "running", "stopping"])
def test_work_that_goes_on_is_never_deleted(store: Store, series: Series, state: str) -> None:
    dataset = datasets.add(store, series, name="Bars", source="upload")
    use(store, dataset, state=state)
    with pytest.raises(ServiceError, match="Stop that first"):
        datasets.delete(store, dataset.id, force=True)
    assert datasets.bars(store, dataset)["close"].size == 40


def test_read_upload() -> None:
    text = b"date,open,high,low,close\n2024-01-01,1,2,1,2\n2024-01-02,2,3,2,3\n"
    (series,) = datasets.read_upload(text, "bars.csv", 1)
    assert series.frame["close"].tolist() == [2.0, 3.0]
    with pytest.raises(DataError, match="2 MB and the limit is 1 MB"):
        datasets.read_upload(b"x" * (2 * 1024 * 1024), "bars.csv", 1)


def test_yahoo_needs_two_bars(
    store: Store, series: Series, make_bars: MakeBars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "download_yahoo", lambda *_: series)
    assert datasets.fetch_yahoo(store, "ABC", "1y", "1d") is series
    one = Series(frame=make_bars(1), interval=pd.Timedelta(days=1))
    monkeypatch.setattr(datasets, "download_yahoo", lambda *_: one)
    with pytest.raises(DataError, match="longer period"):
        datasets.fetch_yahoo(store, "ABC", "1d", "1d")


def test_status(store: Store, series: Series) -> None:
    use(store, datasets.add(store, series, name="Bars", source="upload"), state="queued")
    now = status.status(store)
    assert (now.running, now.queued) == (0, 1)
    assert 0 < now.memory_used_gb < now.memory_total_gb
    assert now.version.startswith("0.")
    away = Store(store.settings.model_copy(update={"device": "nowhere"}))
    assert status.status(away).device == "nowhere (not available)"
    away.close()
