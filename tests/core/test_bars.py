"""The checks that every frame of bars passes, and what they say when it does not."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kronos_core.data.bars import (
    CHANNELS,
    DataError,
    as_bars,
    bars_hash,
    check_order,
    interval_of,
    make_series,
)


def frame_of(rows: int = 6, **changes: object) -> pd.DataFrame:
    close = 100.0 + np.arange(rows)
    columns = {
        "timestamps": pd.date_range("2024-01-01", periods=rows, freq="h"),
        "open": close - 0.5,
        "high": close + 1,
        "low": close - 1,
        "close": close,
        "volume": np.full(rows, 10.0),
        "amount": close * 10,
    }
    return pd.DataFrame({**columns, **changes})


def test_columns_come_in_channel_order_as_floats() -> None:
    shuffled = frame_of().astype({"close": int})[[*reversed(frame_of().columns)]]
    bars = as_bars(shuffled)
    assert list(bars.columns) == ["timestamps", *CHANNELS]
    assert all(bars[name].dtype == np.float64 for name in CHANNELS)
    assert isinstance(bars.index, pd.RangeIndex)


def test_the_callers_frame_is_not_changed() -> None:
    frame = frame_of()
    before = frame.copy(deep=True)
    bars = as_bars(frame)
    bars.loc[0, "close"] = -1.0
    pd.testing.assert_frame_equal(frame, before)


@pytest.mark.parametrize("zone", [None, "UTC", "America/New_York"])
@pytest.mark.parametrize("as_index", [True, False])
def test_stamps_keep_their_zone(zone: str | None, as_index: bool) -> None:
    stamps = pd.date_range("2024-01-01", periods=6, freq="h", tz=zone)
    frame = frame_of(timestamps=stamps)
    bars = as_bars(frame.set_index("timestamps") if as_index else frame)
    assert pd.DatetimeIndex(bars["timestamps"]).equals(stamps)


def test_a_missing_amount_is_volume_times_the_mean_price() -> None:
    bars = as_bars(frame_of().drop(columns="amount"))
    expected = bars["volume"] * bars[["open", "high", "low", "close"]].mean(axis=1)
    np.testing.assert_allclose(bars["amount"], expected, rtol=1e-15)


def test_without_volume_both_are_zero_even_when_an_amount_is_there() -> None:
    bars = as_bars(frame_of().drop(columns="volume"))
    assert (bars[["volume", "amount"]] == 0).all(axis=None)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (frame_of().drop(columns="close"), "Missing column: close"),
        (frame_of().drop(columns="timestamps"), "Missing column: timestamps"),
        (frame_of().iloc[:0], "no bars"),
        (frame_of(close=[1, 2, np.nan, 4, 5, 6]), "Row 2, column close: nan"),
        (frame_of(volume=[1, 2, 3, np.inf, 5, 6]), "Row 3, column volume: inf"),
        (frame_of(open=list("abcdef")), "Column open"),
        (frame_of(timestamps=frame_of()["timestamps"][::-1].to_numpy()), "not sorted: row 1"),
        (frame_of(timestamps=pd.Timestamp("2024-01-01")), "Row 1 repeats"),
        (frame_of(timestamps=[pd.NaT, *frame_of()["timestamps"][1:]]), "Row 0 has no timestamp"),
        (frame_of(timestamps=range(6)), "holds numbers"),
        (frame_of(timestamps=list("abcdef")), "cannot be read as times"),
    ],
)
def test_unusable_frames_are_refused_with_the_place(frame: pd.DataFrame, message: str) -> None:
    with pytest.raises(DataError, match=message):
        as_bars(frame)


def test_the_interval_is_the_most_frequent_step() -> None:
    stamps = pd.DatetimeIndex(["2024-01-04", "2024-01-05", "2024-01-08", "2024-01-09"])
    assert interval_of(stamps) == pd.Timedelta(days=1)
    with pytest.raises(DataError, match="at least two"):
        interval_of(stamps[:1])


def test_a_gap_of_centuries_overflows_nothing() -> None:
    stamps = pd.DatetimeIndex(["1700-01-01", "2200-01-01", "2200-01-02"], tz="UTC")
    check_order(stamps)
    assert interval_of(stamps) == pd.Timedelta(days=1)
    with pytest.raises(DataError, match="not sorted: row 1"):
        check_order(stamps[::-1])


def test_the_hash_depends_on_instants_and_values_only() -> None:
    frame = frame_of()
    utc = frame.assign(timestamps=frame["timestamps"].dt.tz_localize("UTC"))
    same = (
        utc,
        utc.assign(timestamps=utc["timestamps"].dt.tz_convert("Asia/Tokyo")),
        frame.assign(timestamps=frame["timestamps"].dt.as_unit("ms")),
        frame.set_index("timestamps"),
        frame.set_axis(range(10, 16)),
        frame[[*reversed(frame.columns)]],
    )
    assert {bars_hash(other) for other in same} == {bars_hash(frame)}


def test_the_hash_is_the_documented_one() -> None:
    known = "0e72ba765d60e76c0b319a184eb35af7625b9dbb055215d84cdc0f51efd869d1"
    assert bars_hash(frame_of()) == known


@given(row=st.integers(0, 5), channel=st.sampled_from(CHANNELS))
def test_the_hash_sees_every_value(row: int, channel: str) -> None:
    frame = frame_of()
    changed = frame.copy()
    changed.loc[row, channel] = np.nextafter(changed.loc[row, channel], np.inf)
    assert bars_hash(changed) != bars_hash(frame)


def utc_frame(**changes: object) -> pd.DataFrame:
    stamps = pd.date_range("2024-01-01", periods=6, freq="h", tz="Europe/Berlin")
    return frame_of(timestamps=stamps, **changes)


def test_a_series_holds_utc_stamps_and_its_interval() -> None:
    series = make_series(utc_frame(), symbol="X", timezone="Europe/Berlin")
    assert str(series.frame["timestamps"].dtype) == "datetime64[ns, UTC]"
    assert series.interval == pd.Timedelta(hours=1)
    assert (series.symbol, series.timezone, series.findings) == ("X", "Europe/Berlin", ())


@pytest.mark.parametrize(
    ("column", "value"), [("low", 0.0), ("close", -1.0), ("volume", -1.0), ("amount", -0.5)]
)
def test_prices_are_positive_and_volumes_not_negative(column: str, value: float) -> None:
    frame = utc_frame()
    frame.loc[3, column] = value
    with pytest.raises(DataError, match=f"column {column}: the value is {value:g}"):
        make_series(frame)
    with pytest.raises(DataError, match=f"Line 5, column {column}"):
        make_series(frame, place=lambda row: f"Line {row + 2}")


def test_a_high_below_the_close_is_reported_and_kept() -> None:
    frame = utc_frame()
    frame.loc[2, "high"] = 50.0
    series = make_series(frame, place=lambda row: f"Line {row + 2}")
    assert series.frame.loc[2, "high"] == 50.0
    assert len(series.findings) == 1
    assert "line 4 is the first" in series.findings[0]


def test_one_bar_is_no_series() -> None:
    with pytest.raises(DataError, match="only one bar"):
        make_series(utc_frame().iloc[:1])
