"""Templates: when the next bars of a series will be, inferred from the bars alone.

Days and sessions are counted on the wall clock of the stamps' own zone, so that they keep their
local hours across a change to or from summer time; trading without a pause is counted in elapsed
time. Holidays are not known here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd

from kronos_core.data.bars import DataError, check_order, interval_of

DAY = pd.Timedelta(days=1)
WEEK = pd.Timedelta(days=7)
RECENT_BARS = 20_000
RECENT_DATES = 40
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTH_RULES = ("start", "end", "first weekday", "last weekday", "same day")

Dates = npt.NDArray[np.datetime64]  # [n] of datetime64[D]
Times = npt.NDArray[np.int64]  # nanoseconds


class Template(Protocol):
    @property
    def elapsed(self) -> bool: ...  # steps in elapsed time rather than on the wall clock

    def after(self, last: pd.Timestamp, count: int) -> pd.DatetimeIndex: ...

    def describe(self) -> str: ...


def placed(template: Template, past: pd.DatetimeIndex, count: int) -> pd.DatetimeIndex:
    """Stamps of the template in the zone of `past`: those that exist there and come after it."""
    last, zone, unit = past[-1], past.tz, past.unit
    if zone is None:
        return template.after(last, count).as_unit(unit)
    if template.elapsed:
        utc = template.after(last.tz_convert("UTC").tz_localize(None), count)
        return utc.as_unit(unit).tz_localize("UTC").tz_convert(zone)
    wall = template.after(last.tz_localize(None), count).as_unit(unit)
    # Of an hour that comes twice the first is taken; it is a night hour.
    first = np.ones(len(wall), dtype=bool)
    local = wall.tz_localize(zone, nonexistent="NaT", ambiguous=first)
    local = local[local.notna()]
    return local[local > last]


def infer_template(past: pd.DatetimeIndex) -> Template:
    if len(past) < 2:
        raise DataError(
            f"The next times cannot be told from {len(past)} bar. Give at least two bars, "
            "or the future timestamps themselves."
        )
    check_order(past)
    recent = past[-RECENT_BARS:].as_unit("ns")
    wall = recent.tz_localize(None)
    step = interval_of(recent)
    wall_step = interval_of(wall) if wall.is_monotonic_increasing else step
    if pd.Timedelta(days=27) < wall_step < pd.Timedelta(days=370):
        return Months(wall, wall_step)
    if wall_step == WEEK:
        return Weeks(usual_weekday(wall))
    if _regular(recent, step) and (step < DAY or not _regular(wall, wall_step)):
        return Steady(step, elapsed=True)
    if step < DAY and not _on_one_grid(recent, step):
        return Steady(pd.Timedelta(int(np.median(np.diff(recent.asi8))), unit="ns"), elapsed=True)
    if wall_step == DAY or step < DAY:
        return session_template(wall, wall_step) or Steady(step, elapsed=step < DAY)
    return Steady(wall_step, elapsed=False)


def _regular(stamps: pd.DatetimeIndex, step: pd.Timedelta) -> bool:
    """Whether the series runs without a pause, apart from single missing bars."""
    steps = np.diff(stamps.asi8)
    on_grid = (steps > 0) & (steps % step.value == 0)
    missing = steps.sum() / step.value - len(steps)
    return bool(on_grid.all() and missing <= 0.02 * len(steps))


def _on_one_grid(stamps: pd.DatetimeIndex, step: pd.Timedelta) -> bool:
    """Whether most steps are multiples of the usual one; stamps of single trades are not."""
    return bool((np.diff(stamps.asi8) % step.value == 0).mean() >= 0.5)


@dataclass(frozen=True)
class Steady:
    step: pd.Timedelta
    elapsed: bool

    def after(self, last: pd.Timestamp, count: int) -> pd.DatetimeIndex:
        return pd.date_range(last + self.step, periods=count, freq=self.step, unit="ns")

    def describe(self) -> str:
        return f"around the clock, one bar every {step_words(self.step)}"


@dataclass(frozen=True)
class Weeks:
    weekday: int
    elapsed: bool = False

    def after(self, last: pd.Timestamp, count: int) -> pd.DatetimeIndex:
        # A week that a holiday moved by a day or two is still followed by the usual weekday.
        shift = (self.weekday - last.weekday() + 3) % 7 - 3
        return pd.date_range(last + WEEK + shift * DAY, periods=count, freq=WEEK, unit="ns")

    def describe(self) -> str:
        return f"one bar a week, on {WEEKDAYS[self.weekday]}"


def usual_weekday(wall: pd.DatetimeIndex) -> int:
    return int(np.bincount(np.asarray(wall[-RECENT_DATES:].day_of_week), minlength=7).argmax())


class Months:
    """Bars one or more whole months apart, on the day of the month that the past shows."""

    elapsed = False

    def __init__(self, wall: pd.DatetimeIndex, step: pd.Timedelta) -> None:
        self.months = max(1, round(step / DAY / 30.44))
        self.day = int(np.bincount(np.asarray(wall[-RECENT_DATES:].day)).argmax())
        dates = wall[-24:].normalize()
        months = dates.to_numpy().astype("datetime64[M]")
        fits = [
            (dates == pd.DatetimeIndex(self.dates(months, rule))).mean() >= 0.8
            for rule in _MONTH_RULES
        ]
        self.rule = _MONTH_RULES[fits.index(True)] if any(fits) else "same day"

    def dates(self, months: npt.NDArray[np.datetime64], rule: str) -> Dates:
        first = months.astype("datetime64[D]")
        last = (months + 1).astype("datetime64[D]") - 1
        match rule:
            case "start":
                return first
            case "end":
                return last
            case "first weekday":
                return np.busday_offset(first, 0, roll="forward")
            case "last weekday":
                return np.busday_offset(last, 0, roll="backward")
            case _:
                days = np.minimum((first + (self.day - 1)).astype(np.int64), last.astype(np.int64))
                return days.astype("datetime64[D]")

    def after(self, last: pd.Timestamp, count: int) -> pd.DatetimeIndex:
        clock = last - last.normalize()
        months = np.datetime64(last, "M") + self.months * np.arange(0, count + 1)
        stamps = pd.DatetimeIndex(self.dates(months, self.rule)).as_unit("ns") + clock
        # A bar stamped a little off its rule must not be followed by its own month again.
        return stamps[1:]

    def describe(self) -> str:
        every = "one bar a month" if self.months == 1 else f"one bar every {self.months} months"
        day = f"day {self.day}" if self.rule == "same day" else f"the month's {self.rule}"
        return f"{every}, on {day}"


@dataclass(frozen=True)
class Sessions:
    """slots[weekday]: times of day (ns after midnight) at which a bar starts; empty when closed."""

    slots: tuple[Times, ...]
    step: pd.Timedelta
    elapsed: bool = False

    def after(self, last: pd.Timestamp, count: int) -> pd.DatetimeIndex:
        per_week = sum(map(len, self.slots))
        midnight = last.normalize()
        week = np.concatenate(
            [self.slots[(midnight.weekday() + day) % 7] + day * DAY.value for day in range(7)]
        )
        weeks = 2 + count // per_week
        times = (np.arange(weeks)[:, None] * WEEK.value + week[None, :]).ravel()
        stamps = pd.DatetimeIndex(midnight.as_unit("ns").value + times)
        return stamps[stamps > last][:count]

    def describe(self) -> str:
        days = day_words([day for day in range(7) if len(self.slots[day])])
        if self.step >= DAY:
            return f"{days}, one bar a day"
        open_slots = [slots for slots in self.slots if len(slots)]
        if any(not np.array_equal(slots, open_slots[0]) for slots in open_slots):
            return f"{days} with hours by weekday, one bar every {step_words(self.step)}"
        first = min(int(slots[0]) for slots in open_slots)
        last = max(int(slots[-1]) for slots in open_slots)
        hours = f"{clock_words(first)} to {clock_words(last)}"
        return f"{days} {hours}, one bar every {step_words(self.step)}"


def session_template(wall: pd.DatetimeIndex, step: pd.Timedelta) -> Sessions | None:
    """The template of the recent dates, or None when the times of day follow none."""
    midnight = wall.normalize()
    recent = midnight >= midnight.unique()[-RECENT_DATES:][0]
    dates = midnight[recent].to_numpy()
    weekday = np.asarray(midnight[recent].day_of_week)
    slot = (wall.asi8 - midnight.asi8)[recent]
    if step >= DAY:
        slot = np.full_like(slot, slot[-1])
    seen = np.array([np.unique(dates[weekday == day]).size for day in range(7)])
    common = usual_slots(slot[weekday < 5], int(seen[:5].sum()))
    weeks = (dates[-1] - dates[0]) / np.timedelta64(7, "D")
    slots = []
    for day in range(7):
        own = usual_slots(slot[weekday == day], int(seen[day]))
        # Two weeks tell which days are traded; before that Monday to Friday are assumed to be.
        if seen[day] < 0.25 * weeks:
            own = own[:0]
        assumed = day < 5 and (seen[day] < 3 if seen[day] else weeks < 2)
        slots.append(common if assumed and common.size else own)
    typical = np.median(np.unique(dates, return_counts=True)[1])
    if not any(map(len, slots)) or max(map(len, slots)) > 4 * typical:
        return None
    return Sessions(tuple(slots), step)


def usual_slots(slots: Times, dates: int) -> Times:
    """The times of day seen on at least a quarter of the dates."""
    values, counts = np.unique(slots, return_counts=True)
    return values[counts >= 0.25 * dates]


def hours_of_sessions(template: Sessions) -> tuple[str, ...]:
    """Seven texts of opening hours, Monday first, that hold the template's bars.

    A pause of at least half an hour is a break. Bars are taken to be stamped at their start.
    """
    return tuple(_hours_of_slots(slots, template.step.value) for slots in template.slots)


def _hours_of_slots(slots: Times, step: int) -> str:
    if len(slots) == 0:
        return ""
    if step >= DAY.value:
        return "00:00-24:00"
    pauses = np.flatnonzero(np.diff(slots) > max(step, 1_799_999_999_999)) + 1
    parts = []
    for run in np.split(slots, pauses):
        start, end = int(run[0]), min(int(run[-1]) + step, DAY.value)
        minutes = start // 60_000_000_000, -(-end // 60_000_000_000)
        parts.append("-".join(f"{minute // 60:02d}:{minute % 60:02d}" for minute in minutes))
    return " ".join(parts)


def day_words(days: list[int]) -> str:
    if days == [0, 1, 2, 3, 4]:
        return "weekdays"
    if len(days) == 7:
        return "every day"
    if len(days) > 2 and days == list(range(days[0], days[-1] + 1)):
        return f"{WEEKDAYS[days[0]]} to {WEEKDAYS[days[-1]]}"
    return ", ".join(WEEKDAYS[day] for day in days)


def clock_words(nanoseconds: int) -> str:
    minutes = nanoseconds // 60_000_000_000
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def step_words(step: pd.Timedelta) -> str:
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        count = step.total_seconds() / size
        if count >= 1 and count == int(count):
            return unit if count == 1 else f"{int(count)} {unit}s"
    return f"{step.total_seconds():g} seconds"
