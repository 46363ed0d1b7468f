"""Clocks: from instants to the wall clock of a zone and back, and the usual step between bars."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pandas as pd

from kronos_core.data.bars import DataError, check_order, interval_of
from kronos_core.data.template import DAY, RECENT_BARS

RECENT_LABELS = 40


def check_zone(timezone: str) -> str:
    """The zone's name when it is one; ValueError otherwise."""
    try:
        ZoneInfo(timezone)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"There is no time zone {timezone!r}. Use a name like America/New_York or UTC."
        ) from error
    return timezone


def checked_step(past: pd.DatetimeIndex, interval: pd.Timedelta | None) -> pd.Timedelta:
    """The usual step between bars: in elapsed time below a day, on the wall clock from there on."""
    if len(past) < 2 and (interval is None or len(past) == 0):
        raise DataError(
            f"The next times cannot be told from {len(past)} bar{'' if len(past) == 1 else 's'}. "
            "Give at least two bars, or the future timestamps themselves."
        )
    check_order(past)
    if interval is not None:
        if interval <= pd.Timedelta(0):
            raise ValueError(f"interval must be above 0, got {interval}")
        return interval.as_unit("ns")
    recent = past[-RECENT_BARS:]
    step = interval_of(recent)
    if step < DAY * 0.9:
        return step.as_unit("ns")
    # Days across a change of the clock are 23 or 25 hours apart.
    return pd.Timedelta(days=max(1, round(step / DAY))).as_unit("ns")


def wall_of(stamps: pd.DatetimeIndex, zone: str | None) -> pd.DatetimeIndex:
    """Naive wall clock of the zone, in ns; naive stamps are taken as that clock."""
    local = stamps if stamps.tz is None else stamps.tz_convert(zone)
    return local.tz_localize(None).as_unit("ns")


def from_wall(
    wall: npt.NDArray[np.int64], zone: str | None, like: pd.DatetimeIndex, step: pd.Timedelta
) -> pd.DatetimeIndex:
    """Wall times -> stamps in the zone of `like`. Of an hour that comes twice the first is taken.

    Intraday times that a change of the clock skips are dropped, days are moved past it.
    """
    naive = pd.DatetimeIndex(wall.astype("datetime64[ns]"))
    if like.tz is None:
        return naive
    first = np.ones(len(naive), dtype=bool)
    skipped: Any = "NaT" if step < DAY else "shift_forward"
    local = naive.tz_localize(zone, nonexistent=skipped, ambiguous=first)
    return local[local.notna()].tz_convert(like.tz)


def date_zone(stamps: pd.DatetimeIndex, zone: str) -> str | None:
    """The zone in which stamps a day or more apart mean dates: there they lie at one time of day.

    Daily bars are stamped at midnight of the market, or at midnight UTC by files with bare dates.
    """
    if stamps.tz is None:
        return None
    recent = stamps[-RECENT_LABELS * 10 :]
    candidates = (zone, str(stamps.tz), "UTC")
    clocks = [wall_of(recent, name).asi8 % DAY.value for name in candidates]
    for name, clock in zip(candidates, clocks, strict=True):
        if (clock == 0).mean() >= 0.9:
            return name
    for name, clock in zip(candidates, clocks, strict=True):
        if np.unique(clock, return_counts=True)[1].max() >= 0.9 * len(clock):
            return name
    return zone


def far_from(
    expected: npt.NDArray[np.int64], present: npt.NDArray[np.int64], reach: int
) -> npt.NDArray[np.bool_]:
    """Which expected times have no present one less than `reach` away. Both sorted."""
    right = np.minimum(np.searchsorted(present, expected), len(present) - 1)
    left = np.maximum(right - 1, 0)
    nearest = np.minimum(np.abs(present[right] - expected), np.abs(expected - present[left]))
    return np.asarray(nearest >= max(1, reach))
