"""Calendar, quality, repairs that can be undone, and resampling of stored datasets."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from app.services import dataset_care, dataset_checks, datasets
from app.services.errors import ServiceError
from app.storage import Store, repository
from app.storage.models import Dataset
from kronos_core.data.bars import CHANNELS, bars_hash, make_series
from kronos_core.data.calendars import Calendar
from kronos_core.data.repair import RepairStep

MakeBars = Callable[..., pd.DataFrame]
BOUNDS = RepairStep(name="fix_bounds")
GAPS = RepairStep(name="fill_gaps", parameters={"longest": 3})


@pytest.fixture
def broken(make_bars: MakeBars) -> pd.DataFrame:
    """Hourly bars around the clock: three with a wrong high, two missing."""
    frame = make_bars(200, step="h")
    frame.loc[[20, 50, 120], "high"] = frame.loc[[20, 50, 120], "low"] * 0.99
    return frame.drop(index=[80, 81]).reset_index(drop=True)


@pytest.fixture
def dataset(store: Store, broken: pd.DataFrame) -> Dataset:
    series = make_series(broken, symbol="BTC-USD")
    return datasets.add(store, series, name="Broken", source="upload")


def stored_files(store: Store) -> set[str]:
    return {path.stem for path in (store.files.root / "bars").iterdir()}


# ---------------------------------------------------------------- calendar and quality


def test_the_calendar_that_counts(store: Store, dataset: Dataset, make_bars: MakeBars) -> None:
    assert dataset_care.calendar_of(store, dataset) == (Calendar(kind="24/7"), "recognised")
    plain = datasets.add(store, make_series(make_bars(60)), name="Plain", source="upload")
    calendar, origin = dataset_care.calendar_of(store, plain)
    assert (calendar.kind, origin) == ("24/7", "inferred")
    # Bars at night and at weekends are not those of the exchange that the symbol points to.
    around = make_series(make_bars(200, step="h"), symbol="AAPL", timezone="America/New_York")
    assert dataset_checks.calendar_for(around)[1] == "inferred"


def test_choosing_a_calendar(store: Store, dataset: Dataset) -> None:
    chosen = Calendar(kind="24/5", timezone="America/New_York")
    updated = dataset_care.set_calendar(store, dataset.id, chosen.to_dict())
    assert dataset_care.calendar_of(store, updated) == (chosen, "chosen")
    assert updated.quality is not None
    assert updated.quality["calendar"] == chosen.to_dict()
    assert updated.data_hash == dataset.data_hash
    back = dataset_care.set_calendar(store, dataset.id, None)
    assert back.calendar is None
    assert back.quality == dataset.quality
    for wrong in ({"kind": "sometimes"}, {"kind": "24/7", "timezone": "Mars/Base"}, {"no": 1}):
        with pytest.raises(ServiceError):
            dataset_care.set_calendar(store, dataset.id, wrong)
    assert datasets.get(store, dataset.id).calendar is None


def test_upcoming_bars(store: Store) -> None:
    sample = datasets.add_sample(store, "sp500")
    series = datasets.series_of(store, sample)
    now = dataset_checks.upcoming(series, count=3)
    assert (now.calendar.exchange, now.origin, now.remark) == ("XNYS", "recognised", None)
    assert list(now.stamps.strftime("%Y-%m-%d")) == ["2019-01-02", "2019-01-03", "2019-01-04"]
    far = dataset_checks.upcoming(
        series, Calendar(kind="exchange", exchange="XNYS").to_dict(), 9000
    )
    assert far.remark is not None
    with pytest.raises(ServiceError, match="kind"):
        dataset_checks.upcoming(series, {"kind": "sometimes"})


def test_offered_steps_repair_all_that_can_be(store: Store, broken: pd.DataFrame) -> None:
    prices = ["open", "high", "low", "close"]
    broken.loc[10, prices] *= 100
    dataset = datasets.add(store, make_series(broken, symbol="BTC-USD"), name="B", source="upload")
    steps = dataset_care.offered_steps(dataset_care.quality(store, dataset.id))
    assert [step.name for step in steps] == ["rescale", "fix_bounds", "fill_gaps"]
    dataset_care.apply_repairs(store, dataset.id, steps)
    assert dataset_care.quality(store, dataset.id).findings == ()


def test_quality_is_computed_and_kept(store: Store, dataset: Dataset) -> None:
    report = dataset_care.quality(store, dataset.id)
    kinds = {finding.kind: finding.count for finding in report.findings}
    assert dataset.quality == report.to_dict()
    assert 3 in kinds.values()
    with store.session() as session:
        repository.update_row(session, Dataset, dataset.id, quality=None)
    assert dataset_care.quality(store, dataset.id) == report
    assert datasets.get(store, dataset.id).quality == report.to_dict()


# ---------------------------------------------------------------- repairs


def test_a_repair_changes_only_what_is_wrong(
    store: Store, dataset: Dataset, broken: pd.DataFrame
) -> None:
    (change,) = dataset_care.preview_repairs(store, dataset.id, [BOUNDS])
    assert change.changed == 3
    assert datasets.get(store, dataset.id).data_hash == dataset.data_hash
    updated = dataset_care.apply_repairs(store, dataset.id, [BOUNDS])
    assert dataset_care.repairs_of(updated) == [BOUNDS]
    assert updated.original_hash == dataset.original_hash
    assert updated.data_hash != dataset.data_hash
    values = datasets.bars(store, updated)[list(CHANNELS)].to_numpy()
    rows = np.unique(np.nonzero(values != broken[list(CHANNELS)].to_numpy())[0])
    assert rows.tolist() == [20, 50, 118]
    assert stored_files(store) == {updated.original_hash, updated.data_hash}
    assert updated.quality != dataset.quality


def test_undo_restores_the_original_byte_for_byte(store: Store, dataset: Dataset) -> None:
    path = store.files.bars_path(dataset.original_hash)
    before = path.read_bytes()
    dataset_care.apply_repairs(store, dataset.id, [BOUNDS])
    repaired = dataset_care.apply_repairs(store, dataset.id, [GAPS])
    assert repaired.bars == dataset.bars + 2
    undone = dataset_care.undo_repairs(store, dataset.id)
    assert undone.data_hash == undone.original_hash == dataset.data_hash
    assert (undone.repairs, undone.bars, undone.quality) == ([], dataset.bars, dataset.quality)
    assert path.read_bytes() == before
    assert stored_files(store) == {dataset.data_hash}


def test_one_step_can_be_taken_out(store: Store, dataset: Dataset) -> None:
    both = dataset_care.apply_repairs(store, dataset.id, [BOUNDS, GAPS])
    gaps = dataset_care.remove_repair(store, dataset.id, 0)
    assert [step.name for step in dataset_care.repairs_of(gaps)] == ["fill_gaps"]
    assert gaps.bars == both.bars
    again = dataset_care.apply_repairs(store, dataset.id, [BOUNDS])
    assert [step.name for step in dataset_care.repairs_of(again)] == ["fill_gaps", "fix_bounds"]
    with pytest.raises(ServiceError, match="has 2 repairs; there is none at place 3"):
        dataset_care.remove_repair(store, dataset.id, 2)


def test_steps_take_the_datasets_calendar_and_zone(store: Store, dataset: Dataset) -> None:
    updated = dataset_care.apply_repairs(store, dataset.id, [GAPS])
    (step,) = dataset_care.repairs_of(updated)
    assert step.parameters == {"longest": 3, "calendar": Calendar(kind="24/7").to_dict()}
    # A calendar that is chosen later does not change what was repaired.
    dataset_care.set_calendar(store, dataset.id, Calendar(kind="24/5").to_dict())
    assert dataset_care.repairs_of(datasets.get(store, dataset.id)) == [step]


def test_a_step_that_changes_nothing_keeps_the_file(store: Store, dataset: Dataset) -> None:
    path = store.files.bars_path(dataset.data_hash)
    written = path.stat().st_mtime_ns
    updated = dataset_care.apply_repairs(store, dataset.id, [RepairStep(name="sort")])
    assert updated.data_hash == dataset.data_hash
    assert path.stat().st_mtime_ns == written


def test_a_repair_that_makes_no_sense_changes_nothing(store: Store, dataset: Dataset) -> None:
    wrong = RepairStep(name="fill_gaps", parameters={"longest": 0})
    for call in (dataset_care.apply_repairs, dataset_care.preview_repairs):
        with pytest.raises(ServiceError, match="at least 1 bar"):
            call(store, dataset.id, [wrong])
    assert datasets.get(store, dataset.id).data_hash == dataset.data_hash
    assert stored_files(store) == {dataset.data_hash}


def test_the_same_upload_is_found_again_after_repairs(
    store: Store, dataset: Dataset, broken: pd.DataFrame
) -> None:
    dataset_care.apply_repairs(store, dataset.id, [BOUNDS])
    again = datasets.add(store, make_series(broken), name="Broken", source="upload")
    assert again.id == dataset.id
    datasets.delete(store, dataset.id)
    assert stored_files(store) == set()


# ---------------------------------------------------------------- resampling


def test_resampling_makes_a_dataset_with_provenance(store: Store, dataset: Dataset) -> None:
    chosen = dataset_care.set_calendar(store, dataset.id, Calendar(kind="24/7").to_dict())
    coarse = dataset_care.resample(store, dataset.id, "1D", "Days")
    assert (coarse.source, coarse.symbol, coarse.interval_seconds) == (
        "resampled",
        "BTC-USD",
        86400.0,
    )
    assert coarse.provenance["interval"] == "1D"
    assert coarse.provenance["resampled_from"] == {
        "dataset": dataset.id,
        "name": "Broken",
        "data_hash": dataset.data_hash,
    }
    assert coarse.calendar == chosen.calendar
    fine, days = datasets.bars(store, dataset), datasets.bars(store, coarse)
    assert days["volume"].sum() == pytest.approx(fine["volume"].sum())
    assert days["close"].iloc[-1] == fine["close"].iloc[-1]
    assert bars_hash(days) == coarse.original_hash
    for interval in ("7 hours and a bit", "30min"):
        with pytest.raises(ServiceError, match="interval"):
            dataset_care.resample(store, dataset.id, interval, "X")
