"""Rhythms: where the bars of a series lie inside a market's opening hours.

A rhythm lists every stamp that a range of days should hold. Stamps are int64 nanoseconds of the
naive wall clock of the market, [n], ascending.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd

from kronos_core.data.exchanges import Dates, Times, weekdays
from kronos_core.data.opening import DAY_NS, Opening, dates_of, midnights
from kronos_core.data.template import (
    DAY,
    RECENT_DATES,
    WEEK,
    Months,
    Sessions,
    session_template,
    usual_slots,
    usual_weekday,
)

MOST_STAMPS = 10_000_000
Place = Literal["first", "last", "rolled", "label"]


class Rhythm(Protocol):
    def stamps(self, first: np.datetime64, last: np.datetime64) -> Times: ...


def rhythm_of(
    wall: pd.DatetimeIndex, step: pd.Timedelta, opening: Opening, *, strict: bool
) -> Rhythm:
    """The rhythm of bars `step` apart.

    wall: naive stamps on the market's clock, the most recent of the series, sorted. strict: the
    opening hours were not made from these bars, so that bars may lie elsewhere in them.
    """
    if step < DAY:
        return _intraday(wall, step, opening, strict)
    clock = _usual_clock(wall)
    if step == DAY:
        return Daily(opening, clock)
    if step == WEEK:
        return _weekly(wall, opening, clock)
    if pd.Timedelta(days=27) < step < pd.Timedelta(days=370):
        return _monthly(wall, step, opening, clock)
    return Strided(opening, clock, dates_of(wall[-1:])[0], max(1, round(step / DAY)))


def _usual_clock(wall: pd.DatetimeIndex) -> int:
    values, counts = np.unique(time_of_day(wall[-RECENT_DATES:]), return_counts=True)
    return int(values[counts.argmax()])


def time_of_day(wall: pd.DatetimeIndex) -> Times:
    """Nanoseconds after midnight."""
    return np.asarray(wall.as_unit("ns").asi8 % DAY_NS)


@dataclass(frozen=True)
class Daily:
    """One bar on every trading day, at one time of day."""

    opening: Opening
    clock: int

    def stamps(self, first: np.datetime64, last: np.datetime64) -> Times:
        return midnights(self.opening.days(first, last)) + self.clock


@dataclass(frozen=True)
class Strided:
    """Every `days` days; only on trading days when the bars so far did so."""

    opening: Opening
    clock: int
    anchor: np.datetime64
    days: int

    def stamps(self, first: np.datetime64, last: np.datetime64) -> Times:
        begin = -((self.anchor - first).astype(np.int64) // self.days)
        end = (last - self.anchor).astype(np.int64) // self.days
        dates = self.anchor + np.arange(begin, end + 1) * self.days
        if len(self.opening.days(self.anchor, self.anchor)):
            dates = np.intersect1d(dates, self.opening.days(first, last), assume_unique=True)
        return midnights(dates) + self.clock


@dataclass(frozen=True)
class Weekly:
    """One bar a week: its first or last trading day, or a weekday."""

    opening: Opening
    clock: int
    weekday: int
    place: Place

    def stamps(self, first: np.datetime64, last: np.datetime64) -> Times:
        monday = first - weekdays(first)
        if self.place == "label":
            dates = np.arange(monday + self.weekday, last + 1, 7)
        else:
            days = self.opening.days(monday, last + 6)
            dates = _one_per_period(
                days, week_index(days), self.place, weekdays(days), self.weekday
            )
        return midnights(dates[(dates >= first) & (dates <= last)]) + self.clock


@dataclass(frozen=True)
class Monthly:
    """One bar a month, quarter or year: the first or last trading day, or a day of the month."""

    opening: Opening
    clock: int
    template: Months
    anchor: np.datetime64  # a month that has a bar
    place: Place

    def stamps(self, first: np.datetime64, last: np.datetime64) -> Times:
        begin, end = first.astype("datetime64[M]"), last.astype("datetime64[M]") + 1
        months = np.arange(begin, end)
        months = months[(months - self.anchor).astype(np.int64) % self.template.months == 0]
        if self.place == "label":
            dates = self.template.dates(months, self.template.rule)
        else:
            days = self.opening.days(begin.astype("datetime64[D]"), end.astype("datetime64[D]") - 1)
            days = days[np.isin(days.astype("datetime64[M]"), months)]
            month = days.astype("datetime64[M]")
            of_month = (days - month.astype("datetime64[D]")).astype(np.int64) + 1
            dates = _one_per_period(days, month, self.place, of_month, self.template.day)
        return midnights(dates[(dates >= first) & (dates <= last)]) + self.clock


def week_index(dates: Dates) -> npt.NDArray[np.int64]:
    """A number that is equal for the dates of one week, Monday to Sunday."""
    return np.asarray((dates.astype(np.int64) + 3) // 7)


def _one_per_period(
    days: Dates,
    period: npt.NDArray[np.generic],
    place: Place,
    position: npt.NDArray[np.int64],
    usual: int,
) -> Dates:
    """Of each period one trading day: the first, the last, or the latest not past `usual`."""
    if place == "rolled":
        early = position <= usual
        firsts = np.r_[True, period[1:] != period[:-1]] if len(days) else early
        kept = early | firsts  # a period that opens late is still given its first day
        days, period = days[kept], period[kept]
    changes = np.flatnonzero(period[1:] != period[:-1])
    if len(days) == 0:
        return days
    return days[np.r_[0, changes + 1]] if place == "first" else days[np.r_[changes, len(days) - 1]]


def _weekly(wall: pd.DatetimeIndex, opening: Opening, clock: int) -> Weekly:
    weekday = usual_weekday(wall)
    dates = dates_of(wall[-RECENT_DATES:])
    place = _place(dates, opening, week_index, dates[0] - 6, dates[-1] + 6)
    return Weekly(opening, clock, weekday, place)


def _monthly(wall: pd.DatetimeIndex, step: pd.Timedelta, opening: Opening, clock: int) -> Monthly:
    template = Months(wall, step)
    dates = dates_of(wall[-RECENT_DATES:])
    place = _place(dates, opening, _month_index, dates[0] - 31, dates[-1] + 31)
    return Monthly(opening, clock, template, dates[-1].astype("datetime64[M]"), place)


def _month_index(dates: Dates) -> npt.NDArray[np.int64]:
    return dates.astype("datetime64[M]").astype(np.int64)


def _place(
    dates: Dates,
    opening: Opening,
    index: Callable[[Dates], npt.NDArray[np.int64]],
    first: np.datetime64,
    last: np.datetime64,
) -> Place:
    """Where in their periods the bars were: on trading days, or on labels like a closed 1 May."""
    days = opening.days(first, last)
    if not np.isin(dates, days).all():
        return "label"
    period, own = index(days), index(dates)
    starts, ends = (_one_per_period(days, period, place, own, 0) for place in ("first", "last"))
    if np.isin(dates, starts).mean() >= 0.8:
        return "first"
    return "last" if np.isin(dates, ends).mean() >= 0.8 else "rolled"


@dataclass(frozen=True)
class Grid:
    """Bars `step` apart from each opening on; stamped at their start or at their end."""

    opening: Opening
    step: int
    ends: bool

    def stamps(self, first: np.datetime64, last: np.datetime64) -> Times:
        # A week earlier, because a stretch is counted from its beginning.
        starts, stops = self.opening.stretches(first - 7, last + 1)
        counts = -((starts - stops) // self.step)
        if counts.sum() > MOST_STAMPS:
            raise ValueError(_too_many(int(counts.sum())))
        begin = np.repeat(starts, counts)
        number = np.arange(len(begin)) - np.repeat(np.cumsum(counts) - counts, counts)
        times = begin + (number + self.ends) * self.step
        if self.ends:  # the last bar of a stretch may be a short one
            times = np.minimum(times, np.repeat(stops, counts))
        low, high = midnights(np.array([first, last + 1]))
        return np.asarray(times[slice(*np.searchsorted(times, [low, high]))])


@dataclass(frozen=True)
class Slots:
    """Bars at the times of day seen on each weekday, as far as the market is open then.

    beyond: slots that lie outside the regular hours as a rule (trading before and after them).
    at_close: bars are stamped at the close as well.
    """

    opening: Opening
    template: Sessions
    beyond: Times
    at_close: bool
    usual_close: int

    def stamps(self, first: np.datetime64, last: np.datetime64) -> Times:
        dates = np.arange(first, last + 1)
        day = weekdays(dates)
        counts = np.array([len(slots) for slots in self.template.slots])[day]
        if counts.sum() > MOST_STAMPS:
            raise ValueError(_too_many(int(counts.sum())))
        empty = np.empty(0, np.int64)
        slots = np.concatenate([empty, *(self.template.slots[weekday] for weekday in day)])
        times = np.repeat(midnights(dates), counts) + slots
        return np.asarray(times[self._is_open(times, slots, first, last)])

    def _is_open(
        self, times: Times, slots: Times, first: np.datetime64, last: np.datetime64
    ) -> npt.NDArray[np.bool_]:
        starts, stops = self.opening.stretches(first - 7, last + 1)
        if starts.size == 0:
            return np.zeros(len(times), dtype=bool)
        inside = within(times, starts, stops, self.at_close)
        if self.beyond.size == 0:
            return inside
        days = self.opening.days(first, last)
        dates = times.astype("datetime64[ns]").astype("datetime64[D]")
        # On a short day nothing follows the early close.
        before = stops[np.searchsorted(stops, midnights(dates) + DAY_NS, side="right") - 1]
        short = before - midnights(dates) < self.usual_close
        late = short & (times >= before)
        return inside | (np.isin(slots, self.beyond) & np.isin(dates, days) & ~late)


def within(times: Times, starts: Times, stops: Times, at_close: bool) -> npt.NDArray[np.bool_]:
    """Whether each time lies in a stretch; its end belongs to it only with `at_close`."""
    if starts.size == 0:
        return np.zeros(len(times), dtype=bool)
    side: Literal["left", "right"] = "left" if at_close else "right"
    row = np.maximum(np.searchsorted(starts, times, side=side) - 1, 0)
    ended = times > stops[row] if at_close else times >= stops[row]
    started = times > starts[row] if at_close else times >= starts[row]
    inside = started & ~ended
    return inside | np.isin(times, starts) if at_close else inside


def _intraday(wall: pd.DatetimeIndex, step: pd.Timedelta, opening: Opening, strict: bool) -> Rhythm:
    midnight = wall.normalize()
    recent = wall[midnight >= midnight.unique()[-RECENT_DATES:][0]]
    grids = [Grid(opening, step.value, ends) for ends in (False, True)]
    differences = [_differences(grid, recent, strict) for grid in grids]
    fitting = [count for count in differences if count is not None]
    if fitting:
        return grids[differences.index(min(fitting))]
    template = session_template(wall, step) if len(wall) > 1 else None
    if template is None:
        return Grid(opening, step.value, False)
    return _slots(recent, opening, template)


def _differences(grid: Grid, recent: pd.DatetimeIndex, strict: bool) -> int | None:
    """How many bars and times of the grid do not meet; None when that is more than accidental.

    The bars' usual times of day must be on the grid, and with `strict` those of the grid be used.
    """
    dates = dates_of(recent)
    expected = grid.stamps(dates[0], dates[-1])
    on_grid = np.isin(recent.asi8, expected)
    days = len(np.unique(dates))
    if on_grid.mean() < 0.5 or usual_slots(time_of_day(recent[~on_grid]), days).size:
        return None
    absent = expected[~np.isin(expected, recent.asi8)]
    absent = absent[(absent > recent[0].value) & (absent < recent[-1].value)]
    counts = np.unique(absent % DAY_NS, return_counts=True)[1]
    if strict and days >= 3 and counts.size and counts.max() > 0.75 * days:
        return None
    return int((~on_grid).sum() + absent.size)


def _slots(recent: pd.DatetimeIndex, opening: Opening, template: Sessions) -> Slots:
    dates = dates_of(recent)
    starts, stops = opening.stretches(dates[0] - 7, dates[-1] + 1)
    days = len(np.unique(dates))
    at_stop, after = (np.isin(stops + late, recent.asi8).sum() for late in (0, template.step.value))
    at_close = bool(at_stop >= 0.25 * days and after < 0.25 * days)
    outside = ~within(recent.asi8, starts, stops, at_close)
    # Bars on closed days mean that the market was chosen against the bars: then it decides.
    on_days = np.isin(dates, opening.days(dates[0], dates[-1])).mean() > 0.95
    early_or_late = recent[outside] if opening.table and on_days else recent[:0]
    beyond = usual_slots(time_of_day(early_or_late), days)
    usual_close = int(np.median(stops % DAY_NS)) if stops.size else DAY_NS
    return Slots(opening, template, beyond, at_close, usual_close)


def _too_many(count: int) -> str:
    return (
        f"{count:,} bars would lie between the first and the last one, more than {MOST_STAMPS:,}. "
        "Check the first and last timestamps, or use a coarser interval."
    )
