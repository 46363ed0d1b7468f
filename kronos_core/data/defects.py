"""Defects: which rows of bars look wrong, as masks and places. Reporting and repair share them.

Shapes: prices [T, 4] (open, high, low, close), volume and amount [T]; masks [T].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]

SPLIT_RATIOS = (2, 3, 4, 5, 10, 20)
SCALE_ERRORS = (100, 1000)
IDLE_BARS = 5
MOST_JUMPS = 1000  # more of them are no errors of single bars: series were mixed
_HOUR = 3_600_000_000_000
_SPIKE_SCALES, _SPIKE_LEAST = 20.0, 0.05
_WICK_SCALES, _WICK_LEAST = 40.0, 0.10
_AROUND = 5


@dataclass(frozen=True, slots=True)
class Shift:
    """From `row` on prices are about `factor` times what they were before; below 1 is a drop."""

    row: int
    factor: float


def unusable_prices(prices: Floats) -> Mask:
    """Rows with a price that is missing, infinite or not above 0."""
    with np.errstate(invalid="ignore"):
        wrong = np.zeros(len(prices), dtype=bool)
        for column in prices.T:  # a million rows of four are slower to go through than four columns
            wrong |= ~((column > 0) & (column < np.inf))
    return wrong


def unusable_amounts(*columns: Floats) -> Mask:
    """Rows with a volume or amount that is missing, infinite or negative."""
    wrong = np.zeros(len(columns[0]), dtype=bool)
    with np.errstate(invalid="ignore"):
        for column in columns:
            wrong |= ~((column >= 0) & np.isfinite(column))
    return wrong


def out_of_bounds(prices: Floats) -> Mask:
    """Rows whose high is below or whose low is above another price of the bar.

    Adjusted prices differ in their last digits, so a billionth is allowed. Rows with unusable
    prices are not judged.
    """
    opens, high, low, close = prices.T
    with np.errstate(invalid="ignore"):
        top, bottom = np.maximum(opens, close), np.minimum(opens, close)
        slack = 1e-9 * np.maximum(top, high)
        wrong = (high + slack < np.maximum(top, low)) | (low - slack > bottom)
    return np.asarray(wrong & ~unusable_prices(prices))


def spikes(prices: Floats) -> Mask:
    """Bars that jump away and back at once, or whose high or low lies far outside the bar.

    Measured against the median absolute move of the series. prices: usable, in time order.
    """
    found = np.zeros(len(prices), dtype=bool)
    if len(prices) < 2 * _AROUND:
        return found
    opens, high, low, close = prices.T
    move = np.diff(np.log(close))
    away, back = move[:-1], move[1:]
    there_and_back = np.where(away * back < 0, np.minimum(np.abs(away), np.abs(back)), 0)
    reach = np.log(np.maximum(high / np.maximum(opens, close), np.minimum(opens, close) / low))
    if there_and_back.max() <= _SPIKE_LEAST and reach.max() <= _WICK_LEAST:
        return found  # whatever the scale of the series is, which takes long to know
    least = min(max(_SPIKE_SCALES * _scale(move), _SPIKE_LEAST), np.log(10))
    found[1:-1] = there_and_back > least
    return np.asarray(found | (reach > max(_WICK_SCALES * _scale(reach), least, _WICK_LEAST)))


def scale_errors(prices: Floats) -> tuple[Rows, Floats]:
    """Bars whose close is about 100 or 1000 times too large or too small: rows and factors.

    A stretch ends where the prices jump back. Without that the shorter side counts as wrong, as
    after a change of unit (pounds to pence). prices: usable, in time order.
    """
    wrong = np.ones(len(prices))
    jumps = _jumps(prices)
    while jumps:
        first = jumps.pop(0)
        back = next((jump for jump in jumps if np.isclose(jump.factor * first.factor, 1)), None)
        if back is not None:
            wrong[first.row : back.row] *= first.factor
            jumps.remove(back)
        elif first.row > len(prices) // 2:
            wrong[first.row :] *= first.factor
        else:
            wrong[: first.row] /= first.factor
    rows = np.flatnonzero(~np.isclose(wrong, 1))
    return rows, wrong[rows]


def _jumps(prices: Floats) -> list[Shift]:
    move = np.diff(np.log(prices[:, 3]))
    rows = np.flatnonzero(np.abs(move) > np.log(50))
    found: list[Shift] = []
    for row in rows if len(rows) <= MOST_JUMPS else rows[:0]:
        for ratio in SCALE_ERRORS:
            if abs(abs(move[row]) - np.log(ratio)) < 0.35:
                found.append(Shift(int(row) + 1, float(ratio) ** int(np.sign(move[row]))))
    return found


def splits(prices: Floats) -> list[Shift]:
    """Where prices change at once by about 2, 3, 4, 5, 10 or 20 times, up or down, and stay there.

    The factor is new over old: 0.5 for a split 2 for 1. prices: usable, in time order.
    """
    if len(prices) < 4:
        return []
    gap = np.log(prices[1:, 0] / prices[:-1, 3])
    if np.abs(gap).max() <= np.log(1.8):
        return []
    close = np.log(prices[:, 3])
    least = max(np.log(1.8), 8 * _scale(np.diff(close)))
    rows = np.flatnonzero(np.abs(gap) > least) + 1
    found: list[Shift] = []
    for row in rows if len(rows) <= MOST_JUMPS else rows[:0]:
        before, after = close[max(0, row - _AROUND) : row], close[row : row + _AROUND]
        level = np.median(after) - np.median(before)
        ratio = min(SPLIT_RATIOS, key=lambda ratio: abs(abs(gap[row - 1]) - np.log(ratio)))
        near = abs(abs(gap[row - 1]) - np.log(ratio)) < 0.08
        if near and len(after) > 1 and abs(level - gap[row - 1]) < 0.2:
            found.append(Shift(int(row), float(ratio) ** int(np.sign(gap[row - 1]))))
    return found


def idle_stretches(volume: Floats, prices: Floats) -> Mask:
    """Bars in stretches of at least five without volume and without a move of any price.

    A series without any volume has none. Both in time order.
    """
    still = np.zeros(len(volume), dtype=bool)
    if len(volume) == 0 or not (volume > 0).any():
        return still
    still[1:] = volume[1:] == 0
    if not still.any():
        return still
    for column in prices.T:
        still[1:] &= column[1:] == prices[:-1, 3]
    return long_runs(still, IDLE_BARS)


def long_runs(mask: Mask, least: int) -> Mask:
    """The part of a mask that lies in runs of at least `least`."""
    edges = np.flatnonzero(np.diff(np.r_[False, mask, False].astype(np.int8)))
    starts, stops = edges[::2], edges[1::2]
    kept = np.zeros(len(mask) + 1, dtype=np.int64)
    long = stops - starts >= least
    kept[starts[long]] += 1
    kept[stops[long]] -= 1
    return np.cumsum(kept)[:-1] > 0


def clock_changes(
    first: pd.Timestamp, last: pd.Timestamp, zone: str
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Changes of a zone's clock between two naive wall times: wall time [n] (ns) and size [n] (ns).

    The size is positive when the clock goes forward. The wall time is that before the change.
    """
    days = pd.date_range(first.floor("D") - pd.Timedelta(days=1), last.ceil("D"), unit="ns")
    changed = np.flatnonzero(np.diff(_wall(days.asi8, zone) - days.asi8))
    hours = days.asi8[changed, None] + np.arange(25) * _HOUR
    wall = _wall(hours.ravel(), zone).reshape(hours.shape)
    size = np.diff(wall, axis=1) - _HOUR
    rows = np.nonzero(size)
    return wall[:, :-1][rows] + _HOUR, size[rows]


def _wall(instants: npt.NDArray[np.int64], zone: str) -> npt.NDArray[np.int64]:
    return pd.DatetimeIndex(instants, tz="UTC").tz_convert(zone).tz_localize(None).asi8


def repeated_hour(wall: pd.DatetimeIndex, zone: str) -> Mask:
    """Rows that come a second time in the hour that the end of summer time repeats.

    wall: naive stamps in file order. The second half of each repeat steps back or duplicates.
    """
    found = np.zeros(len(wall), dtype=bool)
    times = wall.as_unit("ns").asi8
    seen = pd.Index(times).duplicated()
    if not seen.any() or wall.hasnans:
        return found
    changes, size = clock_changes(wall.min(), wall.max(), zone)
    for change, length in zip(changes[size < 0], size[size < 0], strict=True):
        found |= seen & (times >= change + length) & (times < change)
    return found


def skipped_hours(wall: pd.DatetimeIndex, step: int, zone: str) -> Rows:
    """Rows that follow a hole of exactly the time that the start of summer time skips.

    wall: naive stamps, sorted; step in ns. Only bars at least as frequent as the skipped time tell.
    """
    times = wall.as_unit("ns").asi8
    changes, size = clock_changes(wall[0], wall[-1], zone)
    rows = []
    for change, length in zip(changes[size > 0], size[size > 0], strict=True):
        row = int(np.searchsorted(times, change))
        if 0 < row < len(times) and step <= length:
            before, after = times[row - 1], times[row]
            if after == change + length and before == change - step:
                rows.append(row)
    return np.array(rows, dtype=np.int64)


def _scale(values: Floats) -> float:
    """Median absolute value as a standard deviation; of the moves that are not 0 if most are."""
    size = np.abs(values)
    middle = float(np.median(size))
    if middle == 0 and size.any():
        middle = float(np.median(size[size > 0]))
    return 1.4826 * middle
