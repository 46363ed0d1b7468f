"""Calendars of real markets: stamps equal to hand-written ones, and what holds for all of them."""

from __future__ import annotations

import json

import exchange_calendars
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kronos_core.data.bars import DataError
from kronos_core.data.calendars import (
    Calendar,
    currency_week,
    exchange,
    future_timestamps,
    infer,
    recognise,
    weekly,
)
from kronos_core.data.exchanges import EXCHANGES
from tests.core.test_calendars import SERIES, forex

NEW_YORK = "America/New_York"
HONG_KONG = "Asia/Hong_Kong"
SHANGHAI = "Asia/Shanghai"


def days(*dates: str, zone: str | None = None) -> pd.DatetimeIndex:
    return pd.DatetimeIndex(list(dates)).tz_localize(zone)


def times(date: str, start: str, stop: str, step: str, zone: str) -> list[pd.Timestamp]:
    """Stamps of one stretch of one day, its last included."""
    return list(pd.date_range(f"{date} {start}", f"{date} {stop}", freq=step, tz=zone))


def same(found: pd.DatetimeIndex, expected: list[pd.Timestamp]) -> None:
    assert [stamp.isoformat() for stamp in found] == [stamp.isoformat() for stamp in expected]


@pytest.mark.parametrize("zone", [None, NEW_YORK, "UTC"])
def test_new_york_days_skip_thanksgiving_and_christmas(zone: str | None) -> None:
    calendar = exchange("XNYS")
    past = pd.bdate_range("2024-09-03", "2024-11-26", tz=zone)
    expected = days("2024-11-27", "2024-11-29", "2024-12-02", "2024-12-03", "2024-12-04", zone=zone)
    assert calendar.future(past, 5).equals(expected)
    past = calendar.future(past, 17)
    assert past[-1] == pd.Timestamp("2024-12-20", tz=zone)
    expected = days(
        *("2024-12-23", "2024-12-24", "2024-12-26", "2024-12-27", "2024-12-30", "2024-12-31"),
        *("2025-01-02", "2025-01-03", "2025-01-06", "2025-01-07", "2025-01-08", "2025-01-10"),
        zone=zone,  # 9 January 2025 was a day of mourning
    )
    assert calendar.future(past, 12).equals(expected)


def test_days_stamped_at_midnight_of_new_york_stay_there_in_utc() -> None:
    past = pd.bdate_range("2024-09-03", "2024-10-31", tz=NEW_YORK).tz_convert("UTC")
    future = exchange("XNYS").future(past, 3)
    assert [str(stamp) for stamp in future] == [
        "2024-11-01 04:00:00+00:00",
        "2024-11-04 05:00:00+00:00",  # summer time ended on the 3rd
        "2024-11-05 05:00:00+00:00",
    ]


def test_new_york_half_hours_end_early_on_half_days() -> None:
    calendar = exchange("XNYS")
    past = pd.DatetimeIndex(
        [
            stamp
            for day in pd.bdate_range("2024-11-11", "2024-11-26")
            for stamp in times(str(day.date()), "9:30", "15:30", "30min", NEW_YORK)
        ]
    )
    expected = [
        *times("2024-11-27", "9:30", "15:30", "30min", NEW_YORK),
        *times("2024-11-29", "9:30", "12:30", "30min", NEW_YORK),
        *times("2024-12-02", "9:30", "15:30", "30min", NEW_YORK),
    ]
    same(calendar.future(past, len(expected)), expected)
    same(calendar.future(past.tz_convert("UTC"), 21).tz_convert(NEW_YORK), expected[:21])
    long = calendar.future(past, 13 * 40)
    christmas = long[(long >= "2024-12-24") & (long < "2024-12-27")]
    same(
        christmas,
        times("2024-12-24", "9:30", "12:30", "30min", NEW_YORK)
        + times("2024-12-26", "9:30", "15:30", "30min", NEW_YORK),
    )


def test_trading_before_and_after_the_regular_hours_goes_on() -> None:
    past = pd.DatetimeIndex(
        [
            stamp
            for day in pd.bdate_range("2024-11-04", "2024-11-26")
            for stamp in times(str(day.date()), "4:00", "19:30", "30min", NEW_YORK)
        ]
    )
    same(
        exchange("XNYS").future(past, 32 + 18 + 1),
        [
            *times("2024-11-27", "4:00", "19:30", "30min", NEW_YORK),
            *times("2024-11-29", "4:00", "12:30", "30min", NEW_YORK),
            pd.Timestamp("2024-12-02 04:00", tz=NEW_YORK),
        ],
    )


def hong_kong(date: str) -> list[pd.Timestamp]:
    return times(date, "9:30", "11:55", "5min", HONG_KONG) + times(
        date, "13:00", "15:55", "5min", HONG_KONG
    )


def test_hong_kong_five_minutes_have_lunch_and_holidays() -> None:
    calendar = exchange("XHKG")
    past = [stamp for date in ("2024-12-19", "2024-12-20") for stamp in hong_kong(date)]
    cut = past.index(pd.Timestamp("2024-12-20 11:50", tz=HONG_KONG)) + 1
    expected = [
        *past[cut:],
        *hong_kong("2024-12-23"),
        *times("2024-12-24", "9:30", "11:55", "5min", HONG_KONG),  # half day; closed 25 and 26
        *hong_kong("2024-12-27"),
    ]
    assert expected[1] == pd.Timestamp("2024-12-20 13:00", tz=HONG_KONG)
    same(calendar.future(pd.DatetimeIndex(past[:cut]), len(expected)), expected)


def test_currency_hours_pause_from_friday_to_sunday_in_new_york() -> None:
    calendar = currency_week()
    past = forex("2024-02-05", "2024-03-08 14:00").tz_convert("UTC")
    assert [str(stamp) for stamp in calendar.future(past, 4)] == [
        "2024-03-08 20:00:00+00:00",
        "2024-03-08 21:00:00+00:00",
        "2024-03-10 21:00:00+00:00",  # 17:00 again, but of summer time
        "2024-03-10 22:00:00+00:00",
    ]
    four_hours = past[::4][past[::4] >= "2024-03-03"]
    four_hours = pd.date_range("2024-03-03 17:00", "2024-03-08 09:00", freq="4h", tz=NEW_YORK)
    same(
        calendar.future(four_hours, 3),
        [
            pd.Timestamp(text, tz=NEW_YORK)
            for text in ("2024-03-08 13:00", "2024-03-10 17:00", "2024-03-10 21:00")
        ],
    )
    weekdays_only = pd.bdate_range("2024-01-01", "2024-03-07", tz="Europe/London")
    assert list(calendar.future(weekdays_only, 2).day) == [8, 11]


@pytest.mark.parametrize("zone", [NEW_YORK, "Europe/Berlin", "UTC"])
def test_crypto_hours_are_elapsed_across_clock_changes(zone: str) -> None:
    for start in ("2024-03-09 00:00", "2024-03-30 00:00", "2024-10-26 00:00", "2024-11-02 00:00"):
        hours = pd.date_range(start, periods=72, freq="h", tz="UTC").tz_convert(zone)
        assert Calendar(kind="24/7").future(hours[:20], 52).equals(hours[20:])
    texts = [
        str(stamp)
        for stamp in Calendar(kind="24/7").future(
            pd.date_range("2024-11-02 20:00", periods=5, freq="h", tz=NEW_YORK), 4
        )
    ]
    assert [text[11:] for text in texts] == [
        "01:00:00-04:00",
        "01:00:00-05:00",
        "02:00:00-05:00",
        "03:00:00-05:00",
    ]


def shanghai(date: str) -> list[pd.Timestamp]:
    """Chinese files stamp bars at their end."""
    return times(date, "9:45", "11:30", "15min", SHANGHAI) + times(
        date, "13:15", "15:00", "15min", SHANGHAI
    )


@pytest.mark.parametrize("naive", [False, True])
def test_chinese_quarter_hours_skip_the_spring_festival(naive: bool) -> None:
    dates = pd.bdate_range("2024-01-29", "2024-02-07")
    past = pd.DatetimeIndex([stamp for date in dates for stamp in shanghai(str(date.date()))])
    expected = shanghai("2024-02-08") + shanghai("2024-02-19") + shanghai("2024-02-20")
    if naive:
        past = past.tz_localize(None)
        expected = [stamp.tz_localize(None) for stamp in expected]
    same(exchange("XSHG").future(past, 48), expected)


def test_chinese_days_beyond_the_announced_holidays_follow_the_usual_week() -> None:
    calendar = exchange("XSHG")
    past = pd.bdate_range("2026-12-01", "2026-12-28")
    future = calendar.future(past, 8)
    assert future[3:].equals(pd.bdate_range("2027-01-01", periods=5, unit=past.unit))
    remark = calendar.remark(future)
    assert remark is not None
    assert "known from 1990-12-03 to 2026-12-31" in remark
    assert "5 bars" in remark
    assert calendar.remark(past) is None
    assert currency_week().remark(future) is None


def test_weeks_keep_their_convention() -> None:
    calendar = exchange("XNYS")
    mondays = pd.date_range("2024-01-01", "2024-12-30", freq="W-MON")  # Yahoo's labels
    assert calendar.future(mondays, 3).equals(days("2025-01-06", "2025-01-13", "2025-01-20"))
    daily = calendar.future(days("2023-12-29"), 260, pd.Timedelta(days=1))
    week = daily.to_period("W")
    firsts = daily[~week.duplicated(keep="first")]
    lasts = daily[~week.duplicated(keep="last")]
    known = firsts[firsts < "2024-12-23"]
    assert calendar.future(known, 5).equals(
        days("2024-12-23", "2024-12-30", "2025-01-06", "2025-01-13", "2025-01-21")
    )
    known = lasts[lasts < "2024-03-25"]
    assert calendar.future(known, 2).equals(days("2024-03-28", "2024-04-05"))  # Good Friday
    assert len(calendar.missing(firsts)) == 0
    assert calendar.missing(firsts.delete([3, 9])).equals(firsts[[3, 9]])


def test_months_keep_their_convention() -> None:
    calendar = exchange("XNYS")
    labels = pd.date_range("2023-01-01", "2024-07-01", freq="MS")
    assert calendar.future(labels, 2).equals(days("2024-08-01", "2024-09-01"))
    daily = calendar.future(days("2022-12-30"), 390, pd.Timedelta(days=1))
    month = daily.to_period("M")
    firsts = daily[~month.duplicated(keep="first")]
    lasts = daily[~month.duplicated(keep="last")]
    known = firsts[firsts < "2024-06-10"]
    assert calendar.future(known, 3).equals(days("2024-07-01", "2024-08-01", "2024-09-03"))
    known = lasts[lasts < "2024-02-01"]
    assert calendar.future(known, 3).equals(days("2024-02-29", "2024-03-28", "2024-04-30"))
    quarters = firsts[::3][:5]
    assert calendar.future(quarters, 2).equals(days("2024-04-01", "2024-07-01"))


def test_gaps_are_found_where_the_market_was_open() -> None:
    full = pd.DatetimeIndex(
        [stamp for date in ("2024-02-07", "2024-02-08", "2024-02-19") for stamp in shanghai(date)]
    )
    calendar = exchange("XSHG")
    assert len(calendar.missing(full)) == 0
    assert calendar.missing(full.delete([5, 20, 21])).equals(full[[5, 20, 21]])
    hours = pd.date_range("2024-03-09", periods=72, freq="h", tz=NEW_YORK)
    gaps = Calendar(kind="24/7").missing(hours.delete([10, 11, 30]))
    assert gaps.equals(hours[[10, 11, 30]])
    holidays = infer(pd.bdate_range("2024-11-01", "2024-12-31")).missing(
        exchange("XNYS").future(days("2024-11-01"), 40, pd.Timedelta(days=1))
    )
    assert holidays.equals(days("2024-11-28", "2024-12-25"))


@pytest.mark.parametrize("name", SERIES)
def test_the_inferred_calendar_continues_like_the_bars(name: str) -> None:
    stamps = SERIES[name]
    cut = int(0.83 * len(stamps))
    calendar = infer(stamps[:cut])
    assert Calendar.from_dict(json.loads(json.dumps(calendar.to_dict()))) == calendar
    assert future_timestamps(stamps[:cut], len(stamps) - cut, calendar).equals(stamps[cut:])
    assert len(calendar.missing(stamps)) == 0


CALENDARS = {
    "XNYS": exchange("XNYS"),
    "XHKG": exchange("XHKG"),
    "XSHG": exchange("XSHG"),
    "CMES": exchange("CMES"),
    "24/5": currency_week(),
    "24/7": Calendar(kind="24/7", closed=("2024-05-01",)),
    "sessions": weekly("Europe/London", "08:00-16:30", closed=("2024-05-06", "2024-05-27")),
    "two sessions": weekly("Asia/Tokyo", "09:00-11:30 12:30-15:30", "1111110"),
}


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(CALENDARS)),
    minutes=st.sampled_from([1, 5, 15, 30, 60, 240, 1440]),
    start=st.datetimes(pd.Timestamp("2010-01-01"), pd.Timestamp("2025-06-01")),
    horizon=st.integers(1, 400),
    zone=st.sampled_from([None, "UTC", NEW_YORK, "Asia/Tokyo"]),
)
def test_future_stamps_lie_in_trading_time(
    name: str, minutes: int, start: pd.Timestamp, horizon: int, zone: str | None
) -> None:
    calendar, step = CALENDARS[name], pd.Timedelta(minutes=minutes)
    past = pd.DatetimeIndex([pd.Timestamp(start).floor("D")]).tz_localize(zone)
    future = calendar.future(past, horizon, step)
    assert len(future) == horizon
    assert future[0] > past[0]
    assert (np.diff(future.asi8) > 0).all()
    assert str(future.tz) == str(past.tz)
    assert calendar.is_open(future, step).all()
    if horizon > 1 and step < pd.Timedelta(days=1):
        assert len(calendar.missing(future, step)) == 0
        again = calendar.future(future[: max(1, horizon // 2)], horizon, step)
        assert calendar.is_open(again, step).all()


@pytest.mark.parametrize(
    ("symbol", "timezone", "title"),
    [
        ("^GSPC", None, "XNYS"),
        ("AAPL", NEW_YORK, "XNYS"),
        ("BRK-B", NEW_YORK, "XNYS"),
        ("0700.HK", None, "XHKG"),
        ("600519.SS", None, "XSHG"),
        ("sh600519", None, "XSHG"),
        ("000001.SZ", None, "XSHG"),
        ("600519", SHANGHAI, "XSHG"),
        ("7203.T", None, "XTKS"),
        ("SAP.DE", None, "XETR"),
        ("ES=F", None, "CMES"),
        ("BTC-USD", None, "24/7"),
        ("BTCUSDT", None, "24/7"),
        ("ETH/BTC", None, "24/7"),
        ("EURUSD=X", None, "24/5"),
        ("EURUSD", None, "24/5"),
        ("XAU/USD", None, "24/5"),
    ],
)
def test_symbols_are_recognised(symbol: str, timezone: str | None, title: str) -> None:
    calendar = recognise(symbol, timezone)
    assert calendar is not None
    assert calendar.title == title


@pytest.mark.parametrize("symbol", [None, "", "AAPL", "my series", "^UNKNOWN", "BRK-B", "A.B.C"])
def test_unknown_symbols_are_left_open(symbol: str | None) -> None:
    assert recognise(symbol) is None


def test_calendars_are_described_in_one_sentence() -> None:
    assert currency_week().describe() == (
        "Open around the clock from Sunday 17:00 to Friday 17:00, America/New York time."
    )
    assert Calendar(kind="24/7").describe() == "Open around the clock, every day."
    lunch = weekly(HONG_KONG, "9:30-12:00, 13:00-16:00", closed=("2024-07-01",))
    assert lunch.describe() == (
        "Open weekdays 09:30–12:00 and 13:00–16:00, Asia/Hong Kong time; closed on 1 further day."
    )
    assert exchange("XHKG").describe() == (
        "Hong Kong Stock Exchange (XHKG): weekdays 09:30–12:00 and 13:00–16:00, Asia/Hong Kong "
        "time, with its holidays and half days known until 2039-12-31."
    )


@pytest.mark.parametrize("code", ["XNYS", "XHKG", "XSHG", "CMES", "XSAU"])
def test_zones_are_those_of_the_timetables(code: str) -> None:
    found = exchange_calendars.get_calendar(code, start="2024-01-02", end="2024-03-01")
    assert str(found.tz) == EXCHANGES[code].timezone


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"kind": "always"}, "kind must be one of"),
        ({"kind": "exchange"}, "exchange code belongs to"),
        ({"kind": "24/7", "exchange": "XNYS"}, "exchange code belongs to"),
        ({"kind": "exchange", "exchange": "XXXX"}, "There is no exchange 'XXXX'"),
        ({"kind": "24/7", "timezone": "Mars/Phobos"}, "no time zone 'Mars/Phobos'"),
        ({"kind": "24/7", "hours": ["", "", "", "", "", "", "09:00-10:00"]}, "hours of its own"),
        ({"kind": "sessions", "hours": ["09:00-10:00"]}, "seven texts"),
        ({"kind": "sessions", "hours": [""] * 7}, "empty on all seven days"),
        ({"kind": "sessions", "hours": ["9 to 5"] * 7}, "cannot be read"),
        ({"kind": "sessions", "hours": ["16:00-09:00"] * 7}, "do not lie in one day"),
        ({"kind": "sessions", "hours": ["09:00-12:00 11:00-13:00"] * 7}, "overlap"),
        ({"kind": "24/7", "closed": ["25.12.2024"]}, "no date"),
        ({"kind": "24/7", "colour": "red"}, "unknown: colour"),
        ({"timezone": "UTC"}, "kind is missing"),
    ],
)
def test_wrong_calendars_are_refused(values: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Calendar.from_dict(values)


def test_unusable_stamps_are_refused() -> None:
    calendar, past = exchange("XNYS"), pd.bdate_range("2024-01-01", periods=5)
    with pytest.raises(ValueError, match="horizon must be at least 1"):
        calendar.future(past, 0)
    with pytest.raises(DataError, match="from 1 bar"):
        calendar.future(past[:1], 5)
    with pytest.raises(DataError, match="not sorted"):
        calendar.missing(past[::-1])
    with pytest.raises(ValueError, match="beyond the year 2262"):
        calendar.future(past, 100_000)
    with pytest.raises(ValueError, match="beyond the year 2262"):
        Calendar(kind="24/7").future(past, 10**6, pd.Timedelta(hours=20))
    wide = pd.DatetimeIndex(["1800-01-01 00:00", "1800-01-01 00:01", "2080-01-01"])
    with pytest.raises(ValueError, match="first and last timestamps"):
        Calendar(kind="24/7").missing(wide)
    with pytest.raises(ValueError, match="first and last timestamps"):
        currency_week().missing(wide)
