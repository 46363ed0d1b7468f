"""Datasets as pages and the command line use them."""

import io
import zipfile
from collections.abc import Callable
from datetime import UTC
from typing import Any

import pandas as pd
import pytest

from app.services import dataset_checks, datasets, status
from app.services.errors import ServiceError
from app.storage import Store, repository
from app.storage.models import Dataset, Forecast, Model, Run
from kronos_core.data.bars import DataError, Series, interval_of
from kronos_core.data.calendars import Calendar
from kronos_core.data.choices import AmbiguityError, ReadingChoices
from kronos_core.data.synthetic import SyntheticSettings

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


def test_synthetic_bars_keep_their_settings(store: Store) -> None:
    settings = SyntheticSettings(bars=200, interval=pd.Timedelta(hours=1), seed=7)
    row = datasets.add_synthetic(store, settings, name="Walk")
    assert (row.source, row.bars, row.interval_seconds) == ("synthetic", 200, 3600)
    assert row.provenance["synthetic"] == settings.to_dict()
    assert row.findings == ["A random walk (seed 7): no market is behind these bars."]
    assert datasets.calendar_title(row) == "24/7"
    again = datasets.add_synthetic(store, settings, name="Walk")
    assert again.id == row.id
    with pytest.raises(ServiceError, match="Walk"):
        datasets.add_synthetic(store, SyntheticSettings(bars=200, seed=8), name="Walk")


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


TEXT = b"date,open,high,low,close\n2024-01-01,1,2,1,2\n2024-01-02,2,3,2,3\n"


def test_inspect_upload() -> None:
    (reading,) = datasets.inspect_upload(TEXT, "bars.csv", 1)
    assert reading.series[0].frame["close"].tolist() == [2.0, 3.0]
    with pytest.raises(DataError, match="2 MB and the limit is 1 MB"):
        datasets.inspect_upload(b"x" * (2 * 1024 * 1024), "bars.csv", 1)


def test_the_first_lines_of_a_file_that_cannot_be_read() -> None:
    assert datasets.first_lines(b"\xef\xbb\xbfa,b\r\n\r\n1,2\r\n") == ["a,b", "1,2"]
    assert datasets.first_lines("日期,开盘".encode("gb18030")) == ["日期,开盘"]
    assert datasets.first_lines(b"x" * 10_000) == ["x" * 200]
    for nothing in (b"", b"PK\x03\x04 broken", b"\x89PNG\r\n"):
        assert datasets.first_lines(nothing) == []


def test_suggested_names_are_those_of_symbols_or_files_and_differ() -> None:
    rows = "\n".join(f"{s},2024-01-0{d},1,2,1,2" for s in ("A", "B") for d in (1, 2))
    named = f"symbol,date,open,high,low,close\n{rows}\n".encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for member in ("one.csv", "two.csv"):
            archive.writestr(member, TEXT)
        archive.writestr("more/named.csv", named)
        archive.writestr("again.csv", named)
    for content, expected in (
        (TEXT, [["bars"]]),
        (named, [["A", "B"]]),
        (packed.getvalue(), [["one"], ["two"], ["A", "B"], ["A 2", "B 2"]]),
    ):
        readings = datasets.inspect_upload(content, "bars.csv", 1)
        assert datasets.suggested_names(readings, "bars.csv") == expected


def test_a_reading_is_stored_with_its_choices(store: Store) -> None:
    text = b"date;open;high;low;close\n01/02/2024;1;2;1;2\n02/02/2024;2;3;2;3\n"
    choices = ReadingChoices(date_order="DMY")
    (reading,) = datasets.inspect_upload(text, "bars.csv", 1, choices)
    described = datasets.described(reading)
    dataset = datasets.add(
        store, reading.series[0], name="Bars", source="upload", reading=described
    )
    found = datasets.get(store, dataset.id).reading
    assert found == described
    assert ReadingChoices.from_dict(found["choices"]).date_order == "DMY"
    assert found["dialect"]
    with pytest.raises(AmbiguityError):
        datasets.inspect_upload(text, "bars.csv", 1)


def test_add_keeps_quality_and_calendar(store: Store, series: Series) -> None:
    plain = datasets.add(store, series, name="Plain", source="upload")
    assert plain.quality is not None
    assert plain.quality["bars"] == 40
    assert plain.calendar is None
    assert (plain.original_hash, plain.repairs, plain.reading) == (plain.data_hash, [], {})
    always = Calendar(kind="24/7").to_dict()
    report = dataset_checks.report_on(series, always)
    chosen = datasets.add(
        store, series, name="Chosen", source="upload", calendar=always, report=report
    )
    assert chosen.calendar == always
    assert chosen.quality == report.to_dict()
    assert datasets.calendar_title(chosen) == "24/7"
    with pytest.raises(ServiceError, match="kind"):
        datasets.add(store, series, name="X", source="upload", calendar={"kind": "sometimes"})
    assert stored_files(store) == [plain.data_hash]


def test_status(store: Store, series: Series) -> None:
    use(store, datasets.add(store, series, name="Bars", source="upload"), state="queued")
    now = status.status(store)
    assert (now.running, now.queued) == (0, 1)
    assert 0 < now.memory_used_gb < now.memory_total_gb
    assert now.version.startswith("0.")
    away = Store(store.settings.model_copy(update={"device": "nowhere"}))
    assert status.status(away).device == "nowhere (not available)"
    away.close()
