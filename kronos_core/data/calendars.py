"""Calendars: when a market is open, and so when the next bars of a series will be.

A calendar is inferred from bars, chosen as an exchange or recognised from a symbol, and can be
edited. Where the bars lie inside the open hours (at the start or the end of their interval, on the
first or the last trading day of a month) is always taken from the bars themselves. Days and
sessions are counted on the market's wall clock, so that they keep their local hours across a change
to or from summer time; trading without a pause is counted in elapsed time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import date
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd

from kronos_core.data.clocks import (
    RECENT_LABELS,
    check_zone,
    checked_step,
    date_zone,
    far_from,
    from_wall,
    wall_of,
)
from kronos_core.data.exchanges import EXCHANGES, check_code, market_of, timetable
from kronos_core.data.opening import (
    ALL_DAY,
    LAST_DATE,
    Opening,
    dates_of,
    describe_hours,
    describe_stretch,
    format_hours,
    parse_hours,
    week_of,
    weekday_hours,
)
from kronos_core.data.rhythm import MOST_STAMPS, Grid, Rhythm, rhythm_of, within
from kronos_core.data.template import (
    DAY,
    RECENT_BARS,
    Months,
    Sessions,
    Steady,
    Weeks,
    hours_of_sessions,
    infer_template,
    placed,
)

Kind = Literal["24/7", "24/5", "sessions", "exchange"]
CURRENCY_HOURS = (*[ALL_DAY] * 4, "00:00-17:00", "", "17:00-24:00")
_EVERY_DAY = (ALL_DAY,) * 7


@dataclass(frozen=True, kw_only=True, slots=True)
class Calendar:
    """When a market is open. JSON-able by `to_dict`, checked on construction.

    kind: "24/7"; "24/5" (one stretch from Sunday or Monday to Friday); "sessions" (the same week,
        every week); "exchange" (an exchange's own sessions, holidays and half days).
    timezone: IANA name of the zone whose wall clock `hours` and `closed` use.
    exchange: ISO code for kind "exchange", otherwise None. Its zone replaces `timezone`.
    hours: seven texts, Monday first, "09:30-12:00 13:00-16:00" with a break, "" on a closed day.
        Only for the kinds "24/5" (currency hours by default) and "sessions".
    closed: further closed days, YYYY-MM-DD.
    Raises ValueError that names the field, its value and the remedy.
    """

    kind: Kind
    timezone: str = "UTC"
    exchange: str | None = None
    hours: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind must be one of {', '.join(get_args(Kind))}, got {self.kind!r}")
        if (self.kind == "exchange") != (self.exchange is not None):
            raise ValueError(
                f"kind {self.kind!r} with exchange {self.exchange!r}: an exchange code belongs to "
                'kind "exchange" and only there.'
            )
        if self.exchange is not None:
            check_code(self.exchange)
            object.__setattr__(self, "timezone", EXCHANGES[self.exchange].timezone)
        check_zone(self.timezone)
        object.__setattr__(self, "hours", _checked_hours(self.kind, tuple(self.hours)))
        object.__setattr__(self, "closed", tuple(sorted(set(map(_checked_date, self.closed)))))

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe; `from_dict` of it is equal to self."""
        return {**asdict(self), "hours": list(self.hours), "closed": list(self.closed)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Calendar:
        """Inverse of `to_dict`. Raises ValueError for an unknown key or a wrong value."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown or "kind" not in values:
            raise ValueError(
                f"A calendar has {', '.join(sorted(known))}; "
                + (f"unknown: {', '.join(unknown)}." if unknown else "kind is missing.")
            )
        lists = {
            name: tuple(values[name])
            for name in ("hours", "closed")
            if values.get(name) is not None
        }
        return cls(**{**values, **lists})

    @property
    def title(self) -> str:
        """A few words for a table: "24/7", "XNYS", "weekdays 09:30–16:00"."""
        if self.kind == "sessions":
            return describe_hours(self.hours)
        return self.exchange or self.kind

    def describe(self) -> str:
        """One sentence. For an exchange it loads the timetable."""
        extra = f"; closed on {_counted(len(self.closed), 'further day')}" if self.closed else ""
        zone = f"{self.timezone.replace('_', ' ')} time"
        if self.kind == "24/7":
            return f"Open around the clock, every day{extra}."
        if self.kind == "24/5":
            return f"Open around the clock {describe_stretch(self.hours)}, {zone}{extra}."
        if self.exchange is None:
            return f"Open {describe_hours(self.hours)}, {zone}{extra}."
        week = tuple(_minutes_text(day) for day in _opening(self).week)
        until = _opening(self).known[1]
        return (
            f"{EXCHANGES[self.exchange].title} ({self.exchange}): {describe_hours(week)}, {zone}, "
            f"with its holidays and half days known until {until}{extra}."
        )

    def remark(self, stamps: pd.DatetimeIndex) -> str | None:
        """What is assumed about `stamps`: days beyond the exchange's known sessions, or None."""
        if self.exchange is None or len(stamps) == 0:
            return None
        dates = dates_of(wall_of(stamps, self.timezone))
        first, until = _opening(self).known
        beyond = int(((dates > until) | (dates < first)).sum())
        if beyond == 0:
            return None
        return (
            f"The holidays of {self.exchange} are known from {first} to {until}. "
            f"{_counted(beyond, 'bar')} outside follow its usual week, holidays included."
        )

    def future(
        self, past: pd.DatetimeIndex, horizon: int, interval: pd.Timedelta | None = None
    ) -> pd.DatetimeIndex:
        """The `horizon` stamps that follow `past` (in its zone and resolution; naive stays naive).

        past: sorted, unique; two stamps, or one with an `interval`. Naive stamps are taken as the
        market's wall clock. Increasing, all after the last past stamp, in trading time (labels such
        as a closed first of the month are kept when the past has them).
        Raises DataError for unusable stamps, ValueError for a horizon below 1 or past 2262.
        """
        _check_horizon(horizon)
        step = checked_step(past, interval)
        if self.kind == "24/7" and step < DAY:
            return self._elapsed_future(past, horizon, step)
        zone = date_zone(past, self.timezone) if step >= DAY else self.timezone
        rhythm = self._rhythm(past, step, zone)
        last = dates_of(wall_of(past[-1:], zone))[0]
        earliest = past[-1] + step / 2 if step >= DAY else past[-1] + pd.Timedelta(1, unit="ns")
        span = 14 + 2 * int(np.ceil(horizon * (step / DAY)))
        while True:
            stop = min(last + span, LAST_DATE)
            found = from_wall(rhythm.stamps(last, stop), zone, past, step)
            found = found[found >= earliest]
            if len(found) >= horizon:
                return pd.DatetimeIndex(found[:horizon].as_unit(past.unit), name=past.name)
            if stop == LAST_DATE:
                raise ValueError(_too_far(horizon, past))
            span *= 2

    def missing(
        self, timestamps: pd.DatetimeIndex, interval: pd.Timedelta | None = None
    ) -> pd.DatetimeIndex:
        """The bars that should lie between the first and the last stamp and do not, in their zone.

        A bar within half an interval of its time counts as there. Days before and after the known
        sessions of an exchange are left out. For a calendar without holidays every holiday is
        missing. Raises DataError for unusable stamps, ValueError for more than 10 million.
        """
        step = checked_step(timestamps, interval)
        if self.kind == "24/7" and step < DAY:
            return self._elapsed_missing(timestamps, step)
        zone = date_zone(timestamps, self.timezone) if step >= DAY else self.timezone
        wall = wall_of(timestamps, zone)
        dates = dates_of(wall[[0, -1]])
        first, until = _opening(self).known
        if max(dates[0], first) > min(dates[1], until):
            return timestamps[:0]
        expected = self._rhythm(timestamps, step, zone).stamps(
            max(dates[0], first), min(dates[1], until)
        )
        expected = expected[(expected > wall[0].value) & (expected < wall[-1].value)]
        absent = expected[far_from(expected, np.sort(wall.asi8), step.value // 2)]
        found = from_wall(absent, zone, timestamps, step)
        return pd.DatetimeIndex(found.as_unit(timestamps.unit), name=timestamps.name)

    def is_open(
        self, timestamps: pd.DatetimeIndex, interval: pd.Timedelta
    ) -> npt.NDArray[np.bool_]:
        """Whether each stamp [n] lies in trading time; from a day on, on a trading day.

        The end of a stretch counts as open, because bars may be stamped at their end.
        """
        zone = date_zone(timestamps, self.timezone) if interval >= DAY else self.timezone
        wall = wall_of(timestamps, zone)
        dates = dates_of(wall)
        if len(dates) == 0:
            return np.zeros(0, dtype=bool)
        if interval >= DAY:
            return np.isin(dates, _opening(self).days(dates.min(), dates.max()))
        starts, stops = _opening(self).stretches(dates.min() - 7, dates.max() + 1)
        return within(wall.asi8, starts, stops, at_close=True)

    def stamped_at_end(self, timestamps: pd.DatetimeIndex) -> bool:
        """Whether intraday bars are stamped at the end of their interval, as far as it shows."""
        step = checked_step(timestamps, None)
        if self.kind == "24/7" or step >= DAY:
            return False
        rhythm = self._rhythm(timestamps, step, self.timezone)
        return isinstance(rhythm, Grid) and rhythm.ends

    @property
    def roll(self) -> pd.Timedelta:
        """How long before midnight the trading day begins: 7 h where it opens at 17:00."""
        return pd.Timedelta(_opening(self).roll, unit="ns")

    def stretches(
        self, first: np.datetime64, last: np.datetime64
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Starts and ends [m] of trading on the days first…last: ns of the naive wall clock."""
        return _opening(self).stretches(first, last)

    def _rhythm(self, past: pd.DatetimeIndex, step: pd.Timedelta, zone: str | None) -> Rhythm:
        recent = past[-RECENT_BARS:]
        wall = pd.DatetimeIndex(np.sort(wall_of(recent, zone).to_numpy()))
        return rhythm_of(wall, step, _opening(self), strict=self.kind == "exchange")

    def _elapsed_future(
        self, past: pd.DatetimeIndex, horizon: int, step: pd.Timedelta
    ) -> pd.DatetimeIndex:
        last = past[-1].as_unit("ns")
        count = horizon
        while True:
            try:
                found = pd.date_range(last + step, periods=count, freq=step, unit="ns")
            except (pd.errors.OutOfBoundsDatetime, OverflowError) as error:
                raise ValueError(_too_far(horizon, past)) from error
            found = found[~self._on_closed_day(found)]
            if len(found) >= horizon:
                return pd.DatetimeIndex(found[:horizon].as_unit(past.unit), name=past.name)
            count *= 2

    def _elapsed_missing(
        self, timestamps: pd.DatetimeIndex, step: pd.Timedelta
    ) -> pd.DatetimeIndex:
        instants = timestamps.as_unit("ns").asi8
        counts = np.maximum(np.rint(np.diff(instants) / step.value).astype(np.int64) - 1, 0)
        if counts.sum() > MOST_STAMPS:
            raise ValueError(
                f"{counts.sum():,} bars are missing between the first and the last one. Check "
                "the first and last timestamps, or use a coarser interval."
            )
        begin = np.repeat(instants[:-1], counts)
        number = np.arange(len(begin)) - np.repeat(np.cumsum(counts) - counts, counts) + 1
        found = pd.DatetimeIndex(begin + number * step.value)
        if timestamps.tz is not None:
            found = found.tz_localize("UTC").tz_convert(timestamps.tz)
        found = found[~self._on_closed_day(found)]
        return pd.DatetimeIndex(found.as_unit(timestamps.unit), name=timestamps.name)

    def _on_closed_day(self, stamps: pd.DatetimeIndex) -> npt.NDArray[np.bool_]:
        if not self.closed:
            return np.zeros(len(stamps), dtype=bool)
        return np.isin(dates_of(wall_of(stamps, self.timezone)), _opening(self).closed)


def future_timestamps(
    past: pd.DatetimeIndex, horizon: int, calendar: Calendar | None = None
) -> pd.DatetimeIndex:
    """The `horizon` stamps that follow `past`, in its zone (naive stays naive) and resolution.

    past: at least two stamps, sorted and unique. Without a calendar one is inferred from the most
    recent stamps: trading around the clock, sessions (the times of day seen on each weekday;
    weekdays never traded are left out), days, weeks, or months. Increasing, and all after the last
    past stamp. Raises DataError for unusable stamps, ValueError for a horizon below 1 or past the
    year 2262.
    """
    if calendar is not None:
        return calendar.future(past, horizon)
    _check_horizon(horizon)
    template = infer_template(past)
    count = horizon
    try:
        while len(future := placed(template, past, count)) < horizon:
            count *= 2  # hours that a change of the clock skips are dropped
    except (pd.errors.OutOfBoundsDatetime, OverflowError) as error:
        raise ValueError(_too_far(horizon, past)) from error
    return pd.DatetimeIndex(future[:horizon], name=past.name)


def describe_calendar(past: pd.DatetimeIndex) -> str:
    """The inferred calendar in words, for example "weekdays, one bar a day"."""
    return infer_template(past).describe()


def infer(timestamps: pd.DatetimeIndex, timezone: str | None = None) -> Calendar:
    """The calendar that the most recent bars show: "24/7", "24/5" or "sessions", without holidays.

    timestamps: at least two, sorted, unique. timezone: the market's zone; by default their own.
    Raises DataError for unusable stamps, ValueError for an unknown zone.
    """
    own = None if timestamps.tz is None else str(timestamps.tz)
    zone = check_zone(timezone or own or "UTC")
    recent = timestamps[-RECENT_BARS:]
    step = checked_step(recent, None)
    if recent.tz is not None:
        recent = recent.tz_convert(date_zone(recent, zone) if step >= DAY else zone)
    template = infer_template(recent)
    if isinstance(template, Steady):
        return Calendar(kind="24/7", timezone=zone)
    if isinstance(template, Sessions):
        hours = hours_of_sessions(template)
    else:
        assert isinstance(template, Weeks | Months)
        labels = recent[-RECENT_LABELS:]
        # Labels on weekends say nothing about the days that are traded.
        hours = weekday_hours("1111100", ALL_DAY) if (labels.day_of_week < 5).all() else _EVERY_DAY
    if hours == _EVERY_DAY:
        return Calendar(kind="24/7", timezone=zone)
    kind: Kind = "24/5" if step < DAY and _is_one_stretch(hours) else "sessions"
    return Calendar(kind=kind, timezone=zone, hours=hours)


def exchange(code: str) -> Calendar:
    """The calendar of an exchange by its ISO code (see EXCHANGES). ValueError for another code."""
    return Calendar(kind="exchange", exchange=code)


def weekly(
    timezone: str, hours: str, days: str = "1111100", closed: tuple[str, ...] = ()
) -> Calendar:
    """The same hours ("09:30-12:00 13:00-16:00") on the days of a mask, Monday first."""
    return Calendar(
        kind="sessions", timezone=timezone, hours=weekday_hours(days, hours), closed=closed
    )


def currency_week() -> Calendar:
    """The currency market: from Sunday 17:00 to Friday 17:00 in New York."""
    return Calendar(kind="24/5", timezone="America/New_York")


def recognise(symbol: str | None, timezone: str | None = None) -> Calendar | None:
    """The calendar of a known kind of symbol, or None; see `exchanges.market_of`."""
    market = market_of(symbol, timezone)
    if market is None:
        return None
    if market == "24/7":
        return Calendar(kind="24/7")
    return currency_week() if market == "24/5" else exchange(market)


@lru_cache(maxsize=64)
def _opening(calendar: Calendar) -> Opening:
    closed = np.array(calendar.closed, dtype="datetime64[D]")
    if calendar.exchange is not None:
        table = timetable(calendar.exchange)
        return Opening(table.week, table, closed)
    return Opening(week_of(calendar.hours or _EVERY_DAY), None, closed)


def _checked_hours(kind: Kind, hours: tuple[str, ...]) -> tuple[str, ...]:
    if kind == "24/5" and not hours:
        return CURRENCY_HOURS
    if kind in ("24/7", "exchange"):
        if hours and hours != _EVERY_DAY:
            raise ValueError(
                f"kind {kind!r} has hours of its own, got {list(hours)}. Leave hours empty, or "
                'choose kind "sessions".'
            )
        return ()
    if len(hours) != 7:
        raise ValueError(
            f"hours must be seven texts, Monday first, got {len(hours)}: {list(hours)}"
        )
    tidy = tuple(format_hours(parse_hours(text)) for text in hours)
    if not any(tidy):
        raise ValueError("hours are empty on all seven days. Open the market on one of them.")
    return tidy


def _checked_date(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except (TypeError, ValueError) as error:
        raise ValueError(f"The closed day {text!r} is no date. Write it as YYYY-MM-DD.") from error


def _check_horizon(horizon: int) -> None:
    if horizon < 1:
        raise ValueError(f"horizon must be at least 1 bar, got {horizon}")


def _is_one_stretch(hours: tuple[str, ...]) -> bool:
    """Whether a week is a single stretch of about five days, as for currencies."""
    week = Opening(week_of(hours), None, np.empty(0, "datetime64[D]"))
    starts, stops = week.stretches(np.datetime64("2024-01-01"), np.datetime64("2024-01-07"))
    return len(starts) == 1 and 4 < (stops[0] - starts[0]) / DAY.value < 6


def _minutes_text(day: tuple[tuple[int, int], ...]) -> str:
    """Stretches of a trading day as hours; an evening before it as what it is on the clock."""
    minute = 60_000_000_000
    parts = []
    for start, end in day:
        first, last = (start // minute) % 1440, end // minute
        parts.append(f"{first // 60:02d}:{first % 60:02d}-{last // 60:02d}:{last % 60:02d}")
    return " ".join(parts)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _too_far(horizon: int, past: pd.DatetimeIndex) -> str:
    return f"{horizon} bars after {past[-1]} reach beyond the year 2262. Shorten the horizon."
