"""Resampling: bars of a coarser interval, with the market's own days, weeks and months."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pandas as pd

from kronos_core.data.bars import CHANNELS, DataError, Series, interval_of, make_series
from kronos_core.data.calendars import Calendar, infer
from kronos_core.data.clocks import date_zone, from_wall, wall_of
from kronos_core.data.exchanges import weekdays
from kronos_core.data.opening import DAY_NS, dates_of, midnights
from kronos_core.data.template import DAY, step_words

_UNITS = {"min": 60, "h": 3600, "D": 86_400, "W": 604_800, "M": 2_629_746}
_WORDS = {"min": "minute", "h": "hour", "D": "day", "W": "week", "M": "month"}
_REDUCE = dict(zip(CHANNELS, ("first", "max", "min", "last", "sum", "sum"), strict=True))


def resample(series: Series, to: str, calendar: Calendar | None = None) -> Series:
    """Bars of the interval `to`: "15min", "4h", "1D", "1W", "1M" (any number before min and h).

    Open is the first, high the highest, low the lowest, close the last, volume and amount the sum.
    Intraday bars count from each opening of the market, or from midnight UTC where it never
    closes; days, weeks (from Monday) and months are those of its own zone, and a currency day
    begins at 17:00 in New York. New bars are stamped at their start. calendar: inferred from the
    bars without one. The first and the last new bar may cover a part of their time only.

    Raises ValueError for an interval that cannot be read, is not coarser than the bars', or is no
    multiple of theirs; DataError when fewer than two bars would be left.
    """
    number, unit = _parsed(to)
    stamps = pd.DatetimeIndex(series.frame["timestamps"])
    _check_coarser(to, number * _UNITS[unit], interval_of(stamps))
    chosen = calendar or infer(stamps, series.timezone)
    starts, zone = _starts(stamps, number, unit, chosen)
    groups = series.frame.groupby(starts, sort=True)
    frame = groups.agg(_REDUCE)[list(CHANNELS)]
    if len(frame) < 2:
        raise DataError(f"At {to} only one bar is left. Choose a shorter interval.")
    frame = frame.rename_axis("timestamps").reset_index()
    # At the end of summer time both hours were counted from one opening: the first is meant.
    frame["timestamps"] = from_wall(frame["timestamps"].to_numpy(), zone, stamps, DAY)
    intraday = unit in ("min", "h")
    new = f"{number} {_WORDS[unit]}{'' if number == 1 else 's'}" if intraday else _WORDS[unit]
    note = (
        f"Resampled from one bar every {step_words(interval_of(stamps))} to one every {new}; the "
        "first and the last bar may cover a part of their time only."
    )
    return make_series(
        frame,
        symbol=series.symbol,
        timezone=series.timezone if intraday else zone,
        findings=(*series.findings, note),
    )


def _parsed(to: str) -> tuple[int, str]:
    found = re.fullmatch(r"(\d+)\s*(min|h|D|W|M)", to.strip())
    if not found or int(found[1]) < 1 or (found[2] in ("D", "W", "M") and found[1] != "1"):
        raise ValueError(
            f"The interval {to!r} cannot be read. Use a number and min or h (15min, 4h), or 1D, "
            "1W, 1M."
        )
    return int(found[1]), found[2]


def _check_coarser(to: str, seconds: int, current: pd.Timedelta) -> None:
    now = current.total_seconds()
    if seconds <= now or (seconds > 86_400 and now > seconds / 1.5):
        raise ValueError(
            f"{to} is not coarser than the bars' {step_words(current)}. Bars can be joined, not "
            "split; choose a longer interval."
        )
    if seconds <= 86_400 and seconds % now:
        raise ValueError(
            f"{to} is no multiple of the bars' {step_words(current)}. Choose one that is, so that "
            "every bar falls into a single new one."
        )


def _starts(
    stamps: pd.DatetimeIndex, number: int, unit: str, calendar: Calendar
) -> tuple[npt.NDArray[np.int64], str]:
    """Start of the new bar [T] that each bar belongs to, in ns of the wall clock of a zone."""
    if unit in ("min", "h"):
        return _intraday_starts(stamps, number * _UNITS[unit] * 1_000_000_000, calendar)
    step = interval_of(stamps)
    if step < DAY:
        zone = calendar.timezone
        # A bar that is stamped at midnight as its end belongs to the day before.
        ended = step.value if calendar.stamped_at_end(stamps) else 0
        times = wall_of(stamps, zone).asi8 + calendar.roll.value - ended
    else:
        zone = date_zone(stamps, calendar.timezone) or calendar.timezone
        times = wall_of(stamps, zone).asi8
    dates = times.astype("datetime64[ns]").astype("datetime64[D]")
    if unit == "W":
        dates = dates - weekdays(dates)
    if unit == "M":
        dates = dates.astype("datetime64[M]").astype("datetime64[D]")
    return midnights(dates), zone


def _intraday_starts(
    stamps: pd.DatetimeIndex, step: int, calendar: Calendar
) -> tuple[npt.NDArray[np.int64], str]:
    if calendar.kind == "24/7":  # elapsed time, so that no hour is folded into another
        times = wall_of(stamps, "UTC").asi8
        return times - times % step, "UTC"
    wall = wall_of(stamps, calendar.timezone)
    dates = dates_of(wall)
    opens, closes = calendar.stretches(dates.min() - 7, dates.max() + 1)
    times = wall.asi8 - int(calendar.stamped_at_end(stamps))
    row = np.maximum(np.searchsorted(opens, times, side="right") - 1, 0)
    inside = (times >= opens[row]) & (times <= closes[row])
    # Trading before and after the regular hours counts from midnight.
    anchor = np.where(inside, opens[row], times - times % DAY_NS)
    return times - (times - anchor) % step, calendar.timezone
