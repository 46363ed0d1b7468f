"""Future stamps: held-out real stamps are found again, in every zone and across clock changes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kronos_core.data.bars import DataError
from kronos_core.data.calendars import describe_calendar, future_timestamps
from kronos_core.data.samples import load_sample

NEW_YORK = "America/New_York"


def sessions(
    start: str, days: int, minutes: list[int], zone: str | None = None
) -> pd.DatetimeIndex:
    dates = pd.bdate_range(start, periods=days)
    stamps = [date + pd.Timedelta(minutes=minute) for date in dates for minute in minutes]
    return pd.DatetimeIndex(stamps).tz_localize(zone)


def forex(start: str, stop: str) -> pd.DatetimeIndex:
    hours = pd.date_range(start, stop, freq="h", tz=NEW_YORK)
    day, hour = hours.day_of_week, hours.hour
    return hours[(day < 4) | ((day == 4) & (hour < 17)) | ((day == 6) & (hour >= 17))]


NYSE_5 = list(range(570, 960, 5))
HONG_KONG_5 = [*range(570, 720, 5), *range(780, 960, 5)]
SERIES = {
    "weekdays": pd.bdate_range("2024-01-01", periods=120),
    "weekdays in a zone": pd.bdate_range("2024-01-01", periods=120, tz=NEW_YORK),
    "every day": pd.date_range("2024-01-01", periods=120, freq="D", tz="Europe/Berlin"),
    "utc days seen from New York": pd.date_range(
        "2024-01-01", periods=150, freq="D", tz="UTC"
    ).tz_convert(NEW_YORK),
    "15 minutes around the clock": pd.date_range("2024-01-01", periods=900, freq="15min"),
    "hours across spring": pd.date_range("2024-03-06", periods=200, freq="h", tz=NEW_YORK),
    "hours across autumn": pd.date_range("2024-10-30", periods=200, freq="h", tz=NEW_YORK),
    "New York 5 minutes across spring": sessions("2024-02-12", 25, NYSE_5, NEW_YORK),
    "Hong Kong 5 minutes with lunch": sessions("2024-02-12", 25, HONG_KONG_5, "Asia/Hong_Kong"),
    "one short session": sessions("2024-02-12", 3, NYSE_5),
    "currency hours": forex("2024-01-01", "2024-04-12 16:00"),
    "currency hours across autumn": forex("2024-09-02", "2024-11-22 16:00"),
    "weeks": pd.date_range("2024-01-05", periods=150, freq="W-FRI", tz=NEW_YORK),
    "month starts": pd.date_range("2015-01-01", periods=150, freq="MS", tz=NEW_YORK),
    "month ends": pd.date_range("2015-01-31", periods=150, freq="ME"),
    "first weekdays": pd.date_range("2015-01-01", periods=150, freq="BMS"),
    "last weekdays": pd.date_range("2015-01-31", periods=150, freq="BME"),
    "quarters": pd.date_range("1990-01-01", periods=100, freq="QS"),
    "years": pd.date_range("1900-01-01", periods=100, freq="YS"),
    "two days": pd.date_range("2024-01-01", periods=100, freq="2D"),
}


@pytest.mark.parametrize("name", SERIES)
@pytest.mark.parametrize("share", [0.5, 0.83, 0.9])
def test_held_out_stamps_are_found_again(name: str, share: float) -> None:
    stamps = SERIES[name]
    cut = int(len(stamps) * share)
    future = future_timestamps(stamps[:cut], len(stamps) - cut)
    assert future.equals(stamps[cut:])
    assert future.unit == stamps.unit
    assert str(future.tz) == str(stamps.tz)


@given(
    name=st.sampled_from(sorted(SERIES)),
    cut=st.integers(2, 90),
    horizon=st.integers(1, 200),
    unit=st.sampled_from(["s", "ms", "us", "ns"]),
)
def test_future_stamps_increase_and_follow_the_past(
    name: str, cut: int, horizon: int, unit: str
) -> None:
    past = SERIES[name][:cut].as_unit(unit)
    future = future_timestamps(past, horizon)
    assert len(future) == horizon
    assert future[0] > past[-1]
    assert future.is_monotonic_increasing
    assert future.is_unique
    assert (future.unit, str(future.tz)) == (past.unit, str(past.tz))


@given(
    steps=st.lists(st.integers(1, 10_000_000), min_size=1, max_size=60),
    horizon=st.integers(1, 50),
    zone=st.sampled_from([None, "UTC", NEW_YORK, "Australia/Lord_Howe"]),
)
def test_any_past_has_a_future(steps: list[int], horizon: int, zone: str | None) -> None:
    seconds = 1_700_000_000 + np.concatenate([[0], np.cumsum(steps)])
    past = pd.DatetimeIndex(seconds * 1_000_000_000)
    past = past if zone is None else past.tz_localize("UTC").tz_convert(zone)
    future = future_timestamps(past, horizon)
    assert len(future) == horizon
    assert (np.diff(np.concatenate([past[-1:].asi8, future.asi8])) > 0).all()


def test_daily_index_bars_fall_on_weekdays() -> None:
    past = pd.DatetimeIndex(load_sample("sp500").frame["timestamps"])
    future = future_timestamps(past, 500)
    assert (future.day_of_week < 5).all()
    assert future.equals(pd.bdate_range("2019-01-01", periods=500, tz="UTC", unit="ns"))


def test_sessions_keep_local_hours_across_a_clock_change() -> None:
    future = future_timestamps(sessions("2024-02-12", 19, NYSE_5, NEW_YORK), 3 * len(NYSE_5))
    assert future[0] == pd.Timestamp("2024-03-08 09:30", tz=NEW_YORK)
    assert set(future.hour) == set(range(9, 16))
    assert {str(stamp)[-6:] for stamp in future} == {"-05:00", "-04:00"}


def test_a_session_cut_in_the_middle_goes_on_the_same_day() -> None:
    stamps = sessions("2024-02-12", 20, NYSE_5)
    future = future_timestamps(stamps[:-40], 41)
    assert future[:40].equals(stamps[-40:])
    assert future[40] == pd.Timestamp("2024-03-11 09:30")


def test_single_holidays_and_half_days_do_not_change_the_template() -> None:
    stamps = sessions("2024-02-12", 20, NYSE_5)
    half_day = (stamps.normalize() == pd.Timestamp("2024-02-20")) & (stamps.hour >= 13)
    holiday = stamps.normalize() == pd.Timestamp("2024-02-26")
    future = future_timestamps(stamps[~half_day & ~holiday], 5 * len(NYSE_5))
    assert future.equals(sessions("2024-03-11", 5, NYSE_5))


def test_a_week_that_a_holiday_moved_is_followed_by_the_usual_weekday() -> None:
    weeks = pd.date_range("2024-01-05", periods=12, freq="W-FRI")
    moved = weeks[:-1].append(weeks[-1:] - pd.Timedelta(days=1))
    assert future_timestamps(moved, 2).equals(weeks[-1:].shift(1).append(weeks[-1:].shift(2)))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("weekdays", "weekdays, one bar a day"),
        ("every day", "every day, one bar a day"),
        ("15 minutes around the clock", "around the clock, one bar every 15 minutes"),
        (
            "New York 5 minutes across spring",
            "weekdays 09:30 to 15:55, one bar every 5 minutes",
        ),
        ("weeks", "one bar a week, on Friday"),
        ("month ends", "one bar a month, on the month's end"),
        ("quarters", "one bar every 3 months, on the month's start"),
    ],
)
def test_a_calendar_is_described_in_words(name: str, words: str) -> None:
    assert describe_calendar(SERIES[name]) == words


def test_unusable_pasts_are_refused() -> None:
    days = pd.date_range("2024-01-01", periods=5)
    with pytest.raises(ValueError, match="horizon must be at least 1"):
        future_timestamps(days, 0)
    with pytest.raises(ValueError, match="beyond the year 2262"):
        future_timestamps(SERIES["years"], 500)
    with pytest.raises(DataError, match="from 1 bar"):
        future_timestamps(days[:1], 5)
    with pytest.raises(DataError, match="not sorted"):
        future_timestamps(days[::-1], 5)
