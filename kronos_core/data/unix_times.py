"""Numbers -> instants: Unix time in seconds, milli-, micro- or nanoseconds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from kronos_core.data.choices import EpochUnit

_FACTORS: dict[EpochUnit, int] = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
# |values| below a limit are in that unit: each holds the years 1973 to 5138.
_LIMITS = np.array([1e11, 1e14, 1e17])
_EARLIEST = 1e8  # smaller numbers (before 1973) are rather counters or parts of a date

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class EpochError(ValueError):
    """A number that is no plausible Unix time. `row` counts from 0."""

    def __init__(self, row: int) -> None:
        super().__init__(f"row {row} is not a plausible Unix time")
        self.row = row


def from_integers(values: Integers, unit: EpochUnit | None = None) -> pd.DatetimeIndex:
    """Unix times [n] -> UTC instants; the unit by the magnitude of each value, or as given.

    Raises EpochError with the first row that does not fit.
    """
    factors = _factors(values.astype(np.float64), unit)
    return pd.DatetimeIndex(values * factors, tz="UTC")


def from_floats(values: Floats, unit: EpochUnit | None = None) -> pd.DatetimeIndex:
    """Unix times [n] with a fraction -> UTC instants, rounded to a microsecond.

    A float64 holds present-day seconds to about a microsecond; finer digits would be noise.
    Raises EpochError with the first row that does not fit.
    """
    micros = np.round(values * (_factors(values, unit) / 1000.0))
    return pd.DatetimeIndex(micros.astype(np.int64) * 1000, tz="UTC")


def _factors(values: Floats, unit: EpochUnit | None) -> Integers:
    size = np.abs(values)
    if unit is None:
        factors = np.array(list(_FACTORS.values()))[np.searchsorted(_LIMITS, size, side="right")]
        wrong = (values < _EARLIEST) & (not _reaches_far_back(values))
    else:
        factors = np.full(len(values), _FACTORS[unit])
        wrong = np.zeros(len(values), dtype=bool)
    wrong |= size * factors > 9.2e18
    if wrong.any():
        raise EpochError(int(np.argmax(wrong)))
    return factors


def _reaches_far_back(values: Floats) -> bool:
    """Whether seconds run in order from before 1973 up to now, without a leap at a bad value."""
    if len(values) < 3:
        return False
    steps = np.diff(values)
    ordered = bool((steps > 0).all() or (steps < 0).all())
    if not ordered or np.abs(values).max() >= _LIMITS[0] or values.max() < _EARLIEST:
        return False
    return bool(np.abs(steps).max() <= 1000 * np.abs(steps).min())
