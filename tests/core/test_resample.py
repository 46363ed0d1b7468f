"""Resampling: exact sums and extremes, on the market's own boundaries."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kronos_core.data.bars import CHANNELS, DataError, Series, make_series
from kronos_core.data.calendars import Calendar, currency_week, exchange
from kronos_core.data.resample import resample
from kronos_core.data.samples import load_sample
from tests.core.test_quality import walk


def series(stamps: pd.DatetimeIndex, zone: str = "UTC") -> Series:
    return make_series(walk(len(stamps)).assign(timestamps=stamps), timezone=zone)


def local(found: Series, zone: str) -> list[str]:
    return list(found.frame["timestamps"].dt.tz_convert(zone).dt.strftime("%m-%d %H:%M"))


@settings(max_examples=30, deadline=None)
@given(bars=st.integers(48, 400), to=st.sampled_from(["2h", "4h", "12h", "1D"]))
def test_bars_are_joined_exactly(bars: int, to: str) -> None:
    source = make_series(walk(bars))
    found = resample(source, to)
    old, new = source.frame, found.frame
    hours = 24 if to == "1D" else int(to[:-1])
    for row, start in enumerate(range(0, bars, hours)):
        part = old.iloc[start : start + hours]
        bar = new.iloc[row]
        assert bar["timestamps"] == part["timestamps"].iloc[0]
        assert (bar["open"], bar["close"]) == (part["open"].iloc[0], part["close"].iloc[-1])
        assert (bar["high"], bar["low"]) == (part["high"].max(), part["low"].min())
        assert np.isclose(bar["volume"], part["volume"].sum())
        assert np.isclose(bar["amount"], part["amount"].sum())
    assert "Resampled from one bar every hour" in found.findings[-1]


def test_hours_count_from_the_opening() -> None:
    calendar = exchange("XNYS")
    past = pd.DatetimeIndex(["2024-11-26 15:45"]).tz_localize("America/New_York")
    stamps = calendar.future(past, 26 + 14, pd.Timedelta("15min"))
    found = resample(series(stamps), "1h", calendar)
    hours = [f"{hour:02d}:30" for hour in range(9, 16)]
    assert local(found, "America/New_York") == [
        *(f"11-27 {hour}" for hour in hours),
        *(f"11-29 {hour}" for hour in hours[:4]),  # a half day
    ]
    assert local(resample(series(stamps), "1D", calendar), "America/New_York") == [
        "11-27 00:00",
        "11-29 00:00",
    ]


def test_bars_stamped_at_their_end_belong_to_the_time_before() -> None:
    days = pd.bdate_range("2024-03-04", periods=3)
    minutes = [*range(585, 691, 15), *range(795, 901, 15)]
    stamps = pd.DatetimeIndex([day + pd.Timedelta(minutes=m) for day in days for m in minutes])
    found = resample(series(stamps.tz_localize("Asia/Shanghai")), "1h", exchange("XSHG"))
    assert local(found, "Asia/Shanghai")[:4] == [
        f"03-04 {hour}" for hour in ("09:30", "10:30", "13:00", "14:00")
    ]
    assert len(found.frame) == 12


def test_the_currency_day_begins_in_the_evening() -> None:
    past = pd.DatetimeIndex(["2024-05-10 16:00"]).tz_localize("America/New_York")
    stamps = currency_week().future(past, 120, pd.Timedelta(hours=1))
    found = resample(series(stamps), "1D", currency_week())
    assert local(found, "America/New_York") == [f"05-{day} 00:00" for day in range(13, 18)]


def test_no_hour_is_folded_when_summer_time_ends() -> None:
    stamps = pd.date_range("2024-11-03", periods=24, freq="15min", tz="America/New_York")
    found = resample(series(stamps), "1h", Calendar(kind="24/7", timezone="America/New_York"))
    assert len(found.frame) == 6
    assert found.frame["volume"].sum() == pytest.approx(walk(24)["volume"].sum())


def test_days_become_weeks_and_months() -> None:
    source = load_sample("sp500")
    weeks = resample(source, "1W", exchange("XNYS"))
    assert (weeks.frame["timestamps"].dt.day_of_week == 0).all()
    assert weeks.interval == pd.Timedelta(days=7)
    months = resample(source, "1M", exchange("XNYS"))
    assert (months.frame["timestamps"].dt.day == 1).all()
    assert len(months.frame) == 12 * 20
    january = source.frame[source.frame["timestamps"].dt.strftime("%Y-%m") == "2008-01"]
    bar = months.frame.set_index("timestamps").loc["2008-01-01"]
    assert bar["close"] == january["close"].iloc[-1]
    assert bar["high"] == january["high"].max()
    assert list(weeks.frame.columns) == ["timestamps", *CHANNELS]


@pytest.mark.parametrize(
    ("to", "words"),
    [
        ("30min", "not coarser"),
        ("1h", "not coarser"),
        ("90min", "no multiple"),
        ("soon", "cannot be read"),
        ("2D", "cannot be read"),
        ("0h", "cannot be read"),
    ],
)
def test_finer_and_odd_intervals_are_refused(to: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        resample(make_series(walk(50)), to)


def test_weeks_are_not_split_into_days_nor_months_into_weeks() -> None:
    weeks = series(pd.date_range("2024-01-01", periods=30, freq="7D", tz="UTC"))
    months = series(pd.date_range("2020-01-01", periods=30, freq="MS", tz="UTC"))
    for source, to in ((weeks, "1D"), (weeks, "1W"), (months, "1W"), (months, "1M")):
        with pytest.raises(ValueError, match="not coarser"):
            resample(source, to)
    with pytest.raises(DataError, match="only one bar"):
        resample(make_series(walk(20)), "1M")
