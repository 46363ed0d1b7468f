"""Calendar stamps as the predictor reads them: minute, hour, weekday (Monday 0), day, month."""

import torch
from torch import Tensor

_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("weekday", 0, 6), ("day", 0, 31), ("month", 0, 12))
_MINUTES_PER_DAY = 24 * 60


def expand_stamp(stamp: Tensor, shape: tuple[int, ...]) -> Tensor:
    """[B,T,5] calendar fields as they are, or [B,T] whole minutes since 1970 expanded to them.

    Raises ValueError when the shape does not fit `shape` [B,T] or a field is out of range.
    """
    if tuple(stamp.shape[:2]) != shape or stamp.ndim not in (2, 3):
        raise ValueError(f"stamp must have shape {[*shape, 5]} or {[*shape]}, got {[*stamp.shape]}")
    if stamp.ndim == 2:
        if stamp.dtype.is_floating_point:
            raise ValueError(
                "a stamp [B,T] counts whole minutes since 1970-01-01 00:00: pass integers"
            )
        return calendar_fields(stamp.long())
    if stamp.shape[2] != len(_FIELDS):
        raise ValueError(f"stamp must have {len(_FIELDS)} fields, got {stamp.shape[2]}")
    _check_ranges(stamp)
    return stamp


def calendar_fields(minutes: Tensor) -> Tensor:
    """Whole minutes since 1970 [B,T] -> fields [B,T,5], by the proleptic Gregorian calendar."""
    days = torch.div(minutes, _MINUTES_PER_DAY, rounding_mode="floor")
    of_day = minutes - days * _MINUTES_PER_DAY
    day, month = _civil_day_month(days)
    weekday = torch.remainder(days + 3, 7)  # 1970-01-01 was a Thursday
    return torch.stack((of_day % 60, of_day // 60, weekday, day, month), dim=-1)


def _civil_day_month(days: Tensor) -> tuple[Tensor, Tensor]:
    """Day and month from days since 1970 (H. Hinnant, "chrono-compatible low-level date
    algorithms"): years start in March, so that the leap day is the last of its year."""
    shifted = days + 719468
    era_day = torch.remainder(shifted, 146097)
    year = torch.div(
        era_day - era_day // 1460 + era_day // 36524 - era_day // 146096, 365, rounding_mode="floor"
    )
    year_day = era_day - (365 * year + year // 4 - year // 100)
    march_month = (5 * year_day + 2) // 153
    day = year_day - (153 * march_month + 2) // 5 + 1
    return day, torch.where(march_month < 10, march_month + 3, march_month - 9)


def _check_ranges(stamp: Tensor) -> None:
    if not stamp.numel():
        return
    low = stamp.flatten(0, -2).amin(0).tolist()
    high = stamp.flatten(0, -2).amax(0).tolist()
    for (name, first, last), smallest, largest in zip(_FIELDS, low, high, strict=True):
        if smallest < first or largest > last:
            raise ValueError(
                f"stamp field {name} must lie in {first}…{last}, got {smallest}…{largest}; "
                "the order is minute, hour, weekday, day, month"
            )
