"""Opening hours: on which days a market trades, and from when to when on its own wall clock.

Shapes: [n] days, [m] stretches of uninterrupted trading. Times are int64 nanoseconds of a naive
wall clock, dates datetime64[D].
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import pandas as pd

from kronos_core.data.exchanges import Dates, Times, Timetable, weekdays
from kronos_core.data.template import WEEKDAYS, day_words

MINUTE_NS = 60_000_000_000
DAY_MINUTES = 1440
DAY_NS = DAY_MINUTES * MINUTE_NS
ALL_DAY = "00:00-24:00"
FIRST_DATE, LAST_DATE = np.datetime64("1678-01-01"), np.datetime64("2262-01-01")

Stretch = tuple[int, int]  # start and end of trading, offsets from the midnight of its trading day
Week = tuple[tuple[Stretch, ...], ...]  # Monday first

_STRETCH = re.compile(r"(\d{1,2}):(\d{2})\s*[-–]\s*(\d{1,2}):(\d{2})")


def parse_hours(text: str) -> tuple[Stretch, ...]:
    """ "09:30-12:00 13:00-16:00" -> stretches in minutes of one day; "" is a closed day.

    Raises ValueError for anything else, hours beyond 24:00, and stretches out of order.
    """
    stretches = []
    for part in re.split(
        r"[\s,;]+(?=\d{1,2}:)|\s+and\s+", re.sub(r"\s*[-–]\s*", "-", text.strip())
    ):
        if part:
            stretches.append(_parse_stretch(part, text))
    for (_, end), (start, _) in pairwise(stretches):
        if start < end:
            raise ValueError(f"The hours {text!r} overlap or are out of order. Write them by time.")
    return tuple(stretches)


def _parse_stretch(part: str, text: str) -> Stretch:
    found = _STRETCH.fullmatch(part)
    if not found:
        raise ValueError(
            f"The hours {text!r} cannot be read. Write them like 09:30-16:00, or "
            "09:30-12:00 13:00-16:00 with a break; leave a closed day empty."
        )
    first, first_minute, last, last_minute = map(int, found.groups())
    start, end = 60 * first + first_minute, 60 * last + last_minute
    if max(first_minute, last_minute) > 59 or not 0 <= start < end <= DAY_MINUTES:
        raise ValueError(
            f"The hours {part!r} do not lie in one day. Start before the end, between 00:00 and "
            "24:00; trading over midnight is 18:00-24:00 on one day and 00:00-17:00 on the next."
        )
    return start, end


def format_hours(stretches: tuple[Stretch, ...]) -> str:
    """Inverse of `parse_hours`."""
    return " ".join(
        f"{start // 60:02d}:{start % 60:02d}-{end // 60:02d}:{end % 60:02d}"
        for start, end in stretches
    )


def describe_hours(hours: tuple[str, ...]) -> str:
    """Seven days of hours in words: "weekdays 09:30–12:00 and 13:00–16:00"."""
    groups: dict[str, list[int]] = {}
    for day, text in enumerate(hours):
        if text:
            groups.setdefault(text, []).append(day)
    return ", ".join(f"{day_words(days)}{_spoken(text)}" for text, days in groups.items())


def describe_stretch(hours: tuple[str, ...]) -> str:
    """A week that is one stretch in words: "from Sunday 17:00 to Friday 17:00"."""
    open_days = [day for day in range(7) if hours[day]]
    after_pause = [day for day in open_days if not hours[(day - 1) % 7]]
    before_pause = [day for day in open_days if not hours[(day + 1) % 7]]
    if len(after_pause) != 1 or len(before_pause) != 1:
        return f"on {describe_hours(hours)}"
    first, last = after_pause[0], before_pause[0]
    start, end = hours[first].split("-")[0], hours[last].split("-")[-1]
    return f"from {WEEKDAYS[first]} {start} to {WEEKDAYS[last]} {end}"


def _spoken(text: str) -> str:
    return "" if text == ALL_DAY else " " + " and ".join(text.replace("-", "–").split())


def week_of(hours: tuple[str, ...]) -> Week:
    """Hours of seven days -> stretches in nanoseconds by trading day.

    An evening that runs into the next day (Sunday from 17:00 in the currency market) belongs to
    that day, with negative offsets.
    """
    minutes = [parse_hours(text) for text in hours]
    week = [list(day) for day in minutes]
    for day, today in enumerate(minutes):
        after = (day + 1) % 7
        follows = bool(minutes[after]) and minutes[after][0][0] == 0
        if len(today) == 1 and today[0][0] >= 720 and today[0][1] == DAY_MINUTES and follows:
            week[day] = []
            week[after].insert(0, (today[0][0] - DAY_MINUTES, 0))
    return tuple(tuple((start * MINUTE_NS, end * MINUTE_NS) for start, end in day) for day in week)


@dataclass(frozen=True)
class Opening:
    """A usual week, an exchange's timetable where there is one, and extra closed days.

    Outside the range that the timetable knows the usual week holds.
    """

    week: Week
    table: Timetable | None
    closed: Dates

    @cached_property
    def known(self) -> tuple[np.datetime64, np.datetime64]:
        """First and last day for which the trading days are known, not assumed."""
        if self.table is None:
            return FIRST_DATE, LAST_DATE
        return self.table.dates[0], self.table.until

    def days(self, first: np.datetime64, last: np.datetime64) -> Dates:
        """Trading days from `first` to `last`, both included."""
        if self.table is None:
            return self._usual_days(first, last)
        start, until = self.known
        table = self.table.dates
        begin, end = np.searchsorted(table, [first, last + 1])
        return np.concatenate(
            [
                self._usual_days(first, min(last, start - 1)),
                np.setdiff1d(table[begin:end], self.closed, assume_unique=True),
                self._usual_days(max(first, until + 1), last),
            ]
        )

    def stretches(self, first: np.datetime64, last: np.datetime64) -> tuple[Times, Times]:
        """Starts and ends [m] of trading on the days from `first` to `last`, ascending.

        Stretches that touch are one: a currency week is a single stretch.
        """
        if self.table is None:
            parts = [self._usual_stretches(first, last)]
        else:
            start, until = self.known
            parts = [
                self._usual_stretches(first, min(last, start - 1)),
                self._table_stretches(first, last),
                self._usual_stretches(max(first, until + 1), last),
            ]
        starts = np.concatenate([part[0] for part in parts])
        ends = np.concatenate([part[1] for part in parts])
        if starts.size == 0:
            return starts, ends
        breaks = np.flatnonzero(starts[1:] > ends[:-1]) + 1
        return starts[np.r_[0, breaks]], ends[np.r_[breaks - 1, len(ends) - 1]]

    @cached_property
    def roll(self) -> int:
        """How long before midnight the trading day begins, in nanoseconds; mostly 0."""
        return -min(0, *(start for day in self.week for start, _ in day), 0)

    def _usual_days(self, first: np.datetime64, last: np.datetime64) -> Dates:
        if last < first:
            return np.empty(0, "datetime64[D]")
        dates = np.arange(first, last + 1, dtype="datetime64[D]")
        open_days = np.array([bool(day) for day in self.week])
        return np.setdiff1d(dates[open_days[weekdays(dates)]], self.closed, assume_unique=True)

    def _usual_stretches(self, first: np.datetime64, last: np.datetime64) -> tuple[Times, Times]:
        dates = self._usual_days(first, last)
        day = weekdays(dates)
        midnight = midnights(dates)
        starts, ends = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for weekday, stretches in enumerate(self.week):
            own = midnight[day == weekday]
            starts += [own + start for start, _ in stretches]
            ends += [own + end for _, end in stretches]
        begin = np.concatenate(starts)
        order = np.argsort(begin, kind="stable")
        return begin[order], np.concatenate(ends)[order]

    def _table_stretches(self, first: np.datetime64, last: np.datetime64) -> tuple[Times, Times]:
        table = self.table
        assert table is not None
        days = np.searchsorted(table.dates, [first, last + 1])
        own = slice(*np.searchsorted(table.owner, days))
        kept = ~np.isin(table.dates[table.owner[own]], self.closed)
        return table.opens[own][kept], table.closes[own][kept]


def midnights(dates: Dates) -> Times:
    """Dates -> nanoseconds of their midnight."""
    return dates.astype("datetime64[ns]").astype(np.int64)


def dates_of(wall: pd.DatetimeIndex) -> Dates:
    """The dates of naive stamps."""
    return wall.to_numpy().astype("datetime64[D]")


def weekday_hours(days: str, hours: str) -> tuple[str, ...]:
    """Seven days of hours: `hours` on the days that the mask ("1111100", Monday first) marks.

    Raises ValueError for a mask that is not seven digits 0 or 1.
    """
    if not re.fullmatch("[01]{7}", days):
        raise ValueError(
            f"The days {days!r} are no mask. Write seven digits, Monday first, 1 for a trading "
            f"day: 1111100 is {WEEKDAYS[0]} to {WEEKDAYS[4]}."
        )
    text = format_hours(parse_hours(hours))
    return tuple(text if day == "1" else "" for day in days)
