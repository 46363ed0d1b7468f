"""Bars: the rows every other part works on, and the checks that make them so."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

CHANNELS = ("open", "high", "low", "close", "volume", "amount")
PRICES = CHANNELS[:4]


class DataError(ValueError):
    """Bars that cannot be used. The message names the row or column and the remedy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """Ordered bars of one instrument and interval.

    frame: RangeIndex; `timestamps` (tz-aware UTC), then CHANNELS as float64; sorted by time, unique
        stamps, all values finite. Prices in the instrument's currency, amount in currency.
    interval: the most frequent step between two bars.
    timezone: the zone whose wall clock the calendar features and labels use.
    findings: what was noticed or done while reading, one sentence each.
    """

    frame: pd.DataFrame
    symbol: str | None = None
    interval: pd.Timedelta
    timezone: str = "UTC"
    findings: tuple[str, ...] = ()


def as_bars(frame: pd.DataFrame) -> pd.DataFrame:
    """Any frame of bars -> RangeIndex frame with `timestamps` and CHANNELS as float64.

    Timestamps come from the column `timestamps` or from a DatetimeIndex and keep their zone (naive
    stays naive), because the wall clock counts. A missing amount is volume × the mean of the four
    prices; without volume both are 0.

    Raises DataError for a missing column, an empty frame, NaN or infinite values (first row and
    column named), and stamps that are missing, unsorted or repeated.
    """
    stamps = _timestamps_of(frame)
    absent = [name for name in PRICES if name not in frame.columns]
    if absent:
        raise DataError(
            f"Missing column{'s' if len(absent) > 1 else ''}: {', '.join(absent)}. Bars need "
            f"{', '.join(PRICES)}; found {', '.join(map(str, frame.columns)) or 'none'}."
        )
    if len(frame) == 0:
        raise DataError("The frame holds no bars. Give at least one row.")
    columns = {name: _floats(frame, name) for name in PRICES}
    columns["volume"], columns["amount"] = _volume_and_amount(frame, columns)
    check_order(stamps)
    bars = pd.DataFrame({name: columns[name] for name in CHANNELS})
    _check_finite(bars, frame.index)
    bars.insert(0, "timestamps", stamps)
    return bars


def interval_of(timestamps: pd.DatetimeIndex) -> pd.Timedelta:
    """The most frequent step between neighbours (the shortest one on a tie).

    timestamps: sorted, at least two. Raises DataError otherwise.
    """
    if len(timestamps) < 2:
        raise DataError(
            f"An interval needs at least two bars, got {len(timestamps)}. Add more bars."
        )
    # Unsigned: a gap of three centuries would overflow.
    steps = np.diff(_nanoseconds(timestamps).view(np.uint64))
    if (steps == steps[0]).all():  # sorting a million equal steps takes longer than reading them
        return pd.Timedelta(int(steps[0]), unit="ns")
    lengths, counts = np.unique(steps, return_counts=True)
    return pd.Timedelta(int(lengths[counts.argmax()]), unit="ns")


def bars_hash(frame: pd.DataFrame) -> str:
    """SHA-256 (hex) of the bars' stamps and values.

    Depends on the instants (naive stamps count as UTC) and the six float64 channels only, not on
    the zone, the index, the stamps' resolution or the pandas version.
    """
    return hash_of(as_bars(frame))


def hash_of(bars: pd.DataFrame) -> str:
    """`bars_hash` of what `as_bars` returned, without checking it again."""
    values = bars[list(CHANNELS)].to_numpy(dtype="<f8") + 0.0  # -0.0 and 0.0 are the same value
    digest = hashlib.sha256()
    digest.update(_nanoseconds(pd.DatetimeIndex(bars["timestamps"])).astype("<i8").tobytes())
    digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


def fill_amount(
    prices: npt.NDArray[np.float64], volume: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Amount [T] from prices [T,4] and volume [T]: volume × the mean of the four prices."""
    with np.errstate(over="ignore", invalid="ignore"):  # a bar that overflows is reported by place
        return np.asarray(volume * prices.mean(axis=1), dtype=np.float64)


def make_series(
    frame: pd.DataFrame,
    *,
    symbol: str | None = None,
    timezone: str = "UTC",
    findings: tuple[str, ...] = (),
    place: Callable[[int], str] | None = None,
) -> Series:
    """Check a frame of bars with aware stamps and wrap it as a Series (stamps in UTC, ns).

    place(row) says where a row comes from in words ("Line 7"); without it the row's stamp does.
    Raises DataError for what `as_bars` refuses, fewer than two bars, prices ≤ 0 and a negative
    volume or amount. Bars whose high or low does not bound the others are kept and reported.
    """
    bars = as_bars(frame)
    stamps = pd.DatetimeIndex(bars["timestamps"]).tz_convert("UTC").as_unit("ns")
    bars["timestamps"] = stamps
    where = place or (lambda row: f"Bar {stamps[row]}")
    _check_signs(bars, where)
    if len(bars) < 2:
        raise DataError("There is only one bar. A series needs at least two, better hundreds.")
    return Series(
        frame=bars,
        symbol=symbol,
        interval=interval_of(stamps),
        timezone=timezone,
        findings=(*findings, *_bound_findings(bars, where)),
    )


def check_order(stamps: pd.DatetimeIndex) -> None:
    """Raise DataError unless stamps are present, increasing and unique; names the first row."""
    if stamps.hasnans:
        row = int(np.flatnonzero(stamps.isna())[0])
        raise DataError(f"Row {row} has no timestamp. Fill it in or drop the row.")
    instants = _nanoseconds(stamps)
    wrong = np.flatnonzero(instants[1:] <= instants[:-1])  # a difference may overflow
    if wrong.size == 0:
        return
    row = int(wrong[0]) + 1
    if stamps[row] == stamps[row - 1]:
        raise DataError(
            f"Row {row} repeats the timestamp {stamps[row]} of the row before. Keep one of them."
        )
    raise DataError(
        f"Timestamps are not sorted: row {row} ({stamps[row]}) comes before the row above it "
        f"({stamps[row - 1]}). Sort the bars by time, oldest first."
    )


def _check_signs(bars: pd.DataFrame, where: Callable[[int], str]) -> None:
    # Columns first: a table of a million bars is copied only when something is wrong.
    if (
        all(bars[name].min() > 0 for name in PRICES)
        and min(bars["volume"].min(), bars["amount"].min()) >= 0
    ):
        return
    values = bars[list(CHANNELS)].to_numpy()
    wrong = values < 0
    wrong[:, :4] |= values[:, :4] == 0
    rows, columns = np.nonzero(wrong)
    row, name = int(rows[0]), CHANNELS[columns[0]]
    rule = "Prices must be above 0" if name in PRICES else f"The {name} must not be negative"
    raise DataError(
        f"{where(row)}, column {name}: the value is {values[row, columns[0]]:g}. {rule}; "
        "correct or delete that row."
    )


def _bound_findings(bars: pd.DataFrame, where: Callable[[int], str]) -> tuple[str, ...]:
    opened, high, low, close = (bars[name].to_numpy() for name in PRICES)
    top, bottom = np.maximum(opened, close), np.minimum(opened, close)
    suspects = np.flatnonzero((high < top) | (low > bottom) | (high < low))
    if suspects.size == 0:
        return ()
    # Adjusted prices differ in their last digits.
    slack = 1e-9 * np.maximum(np.maximum(top, high), low)[suspects]
    high, low = high[suspects] + slack, low[suspects] - slack
    rows = suspects[(high < top[suspects]) | (low > bottom[suspects]) | (high < low)]
    if rows.size == 0:
        return ()
    first = where(int(rows[0]))
    count = "1 bar has" if rows.size == 1 else f"{rows.size:,} bars have"
    return (
        f"{count} a high below or a low above the other prices ({first[:1].lower()}{first[1:]} "
        "is the first). The values are kept as they are.",
    )


def _timestamps_of(frame: pd.DataFrame) -> pd.DatetimeIndex:
    if "timestamps" not in frame.columns:
        if isinstance(frame.index, pd.DatetimeIndex):
            return pd.DatetimeIndex(frame.index, name="timestamps")
        raise DataError(
            "Missing column: timestamps. Give the bars a column `timestamps` or a DatetimeIndex."
        )
    column = frame["timestamps"]
    if pd.api.types.is_numeric_dtype(column):
        raise DataError(
            "Column timestamps holds numbers. Convert it first, for example with "
            "pd.to_datetime(frame['timestamps'], unit='s')."
        )
    try:
        return pd.DatetimeIndex(pd.to_datetime(column, format="ISO8601"), name="timestamps")
    except (ValueError, TypeError) as error:
        raise DataError(
            f"Column timestamps cannot be read as times ({str(error).splitlines()[0]}). "
            "Convert it with pd.to_datetime first."
        ) from error


def _floats(frame: pd.DataFrame, name: str) -> npt.NDArray[np.float64]:
    column = frame[name]
    if isinstance(column, pd.DataFrame):
        raise DataError(f"There is more than one column {name}. Keep one of them.")
    try:
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    except (ValueError, TypeError) as error:
        raise DataError(
            f"Column {name} holds something that is no number ({error}). Correct that value."
        ) from error


def _volume_and_amount(
    frame: pd.DataFrame, prices: dict[str, npt.NDArray[np.float64]]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    if "volume" not in frame.columns:
        return np.zeros(len(frame)), np.zeros(len(frame))
    volume = _floats(frame, "volume")
    if "amount" in frame.columns:
        return volume, _floats(frame, "amount")
    return volume, fill_amount(np.column_stack([prices[name] for name in PRICES]), volume)


def _check_finite(bars: pd.DataFrame, labels: pd.Index[Any]) -> None:
    if all(np.isfinite(bars[name].to_numpy()).all() for name in bars.columns):
        return
    values = bars.to_numpy()
    rows, columns = np.nonzero(~np.isfinite(values))
    row, name = int(rows[0]), bars.columns[int(columns[0])]
    label = "" if labels[row] == row else f" ({labels[row]})"
    raise DataError(
        f"Row {row}{label}, column {name}: {values[row, columns[0]]} is not a finite number. "
        "Fill it in or drop the row."
    )


def _nanoseconds(timestamps: pd.DatetimeIndex) -> npt.NDArray[np.int64]:
    return timestamps.as_unit("ns").asi8
