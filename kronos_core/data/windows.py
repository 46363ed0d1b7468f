"""Windows over bars: statistics of the context, calendar features, and splits by time.

Letters: T time, C channels, W windows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

CLIP = 5.0
STAMP_FIELDS = ("minute", "hour", "day_of_week", "day", "month")
_ROUNDING_ULPS = 8.0

Floats = npt.NDArray[np.float64]


def channel_stats(context: npt.NDArray[Any]) -> tuple[Floats, Floats]:
    """Context [..., T, C] -> (mean [..., C], scale [..., C]), float64, in the channels' own units.

    scale = population standard deviation + ε with ε = 1e-5 · min(1, |mean|): the release's 1e-5 at
    ordinary prices, and still small beside tiny ones. The deviation of a constant channel (constant
    up to rounding) is exactly 0, so its scale is ε. Raises ValueError without a single bar.
    """
    values = np.asarray(context, dtype=np.float64)
    if values.ndim < 2 or values.shape[-2] == 0:
        raise ValueError(
            f"context must be [T, C] with at least one bar, got shape {values.shape}. "
            "Give the bars before the forecast."
        )
    # Relative to the first bar a constant channel is exactly 0 and large prices lose no digits.
    first = values[..., :1, :]
    shifted = values - first
    mean = (first + shifted.mean(axis=-2, keepdims=True))[..., 0, :]
    deviation = shifted.std(axis=-2)
    constant = deviation <= _ROUNDING_ULPS * np.spacing(np.abs(mean))
    return mean, np.where(constant, 0.0, deviation) + _epsilon(mean)


def normalise(values: npt.NDArray[Any], mean: Floats, scale: Floats) -> npt.NDArray[np.float32]:
    """Values [..., T, C] in channel units -> float32 [..., T, C] clipped to ±5.

    mean and scale [..., C] come from `channel_stats` of the context. A channel that was constant
    there is exactly 0.
    """
    mean, scale = np.expand_dims(mean, -2), np.expand_dims(scale, -2)
    varies = scale > _epsilon(mean)
    centred = np.asarray(values, dtype=np.float64) - mean
    ratio = np.divide(centred, scale, out=np.zeros_like(centred), where=varies)
    return np.clip(ratio, -CLIP, CLIP).astype(np.float32)


def denormalise(z: npt.NDArray[Any], mean: Floats, scale: Floats) -> Floats:
    """Inverse of `normalise` inside the clip: z [..., T, C] -> float64 in channel units."""
    mean, scale = np.expand_dims(mean, -2), np.expand_dims(scale, -2)
    return np.asarray(z, dtype=np.float64) * scale + mean


def stamp_features(timestamps: pd.DatetimeIndex) -> npt.NDArray[np.int64]:
    """Stamps [T] -> int64 [T, 5]: minute, hour, weekday (Monday 0), day, month of the wall clock.

    Aware stamps count in their own zone, naive ones as they are.
    """
    columns = [np.asarray(getattr(timestamps, field)) for field in STAMP_FIELDS]
    return np.stack(columns, axis=-1).astype(np.int64)


@dataclass(frozen=True)
class WindowSplit:
    """Window starts of the three parts, in time order.

    train, validation, test: starts (bar index of a window's first bar); test may be empty.
    window: bars per window (context + horizon). gap: bars left out between two parts.
    cuts: bar indices (train stop, validation start, validation stop, test start); stops exclusive.
    """

    train: range
    validation: range
    test: range
    window: int
    gap: int
    cuts: tuple[int, int, int, int]


def split_windows(
    bars: int,
    *,
    context: int,
    horizon: int,
    stride: int,
    validation_fraction: float,
    test_fraction: float,
) -> WindowSplit:
    """Split a series of `bars` bars by time into train, validation and test windows.

    Each part is a stretch of bars of its own: no window reaches over a cut, validation contexts do
    not reach back, and `horizon` bars between two parts belong to neither. The fractions are
    shares of the usable window starts (at least one start each); test_fraction 0 leaves test
    empty. Within a part every `stride`-th start is taken.

    Raises ValueError for settings out of range, and for too few bars with the numbers and remedy.
    """
    _check_split(context, horizon, stride, validation_fraction, test_fraction)
    window, gap = context + horizon, horizon
    parts = 3 if test_fraction > 0 else 2
    starts = bars - (window - 1) - (parts - 1) * (window - 1 + gap)
    if starts < parts:
        raise ValueError(_too_few(bars, context, horizon, parts))
    spare = starts - parts  # every part gets one start, the fractions share out the rest
    validation = 1 + int(spare * validation_fraction)
    test = 1 + int(spare * test_fraction) if test_fraction > 0 else 0
    train = starts - validation - test
    train_stop = train - 1 + window
    validation_start = train_stop + gap
    validation_stop = validation_start + validation - 1 + window
    test_start = validation_stop + gap if test else bars
    return WindowSplit(
        train=range(0, train, stride),
        validation=range(validation_start, validation_start + validation, stride),
        test=range(test_start, test_start + test, stride),
        window=window,
        gap=gap,
        cuts=(train_stop, validation_start, validation_stop, test_start),
    )


def split_windows_at(
    bars: int,
    *,
    context: int,
    horizon: int,
    stride: int,
    validation_start: int,
    test_start: int | None = None,
) -> WindowSplit:
    """Split a series of `bars` bars at given bars; without `test_start` there is no test part.

    `validation_start` and `test_start` are the first bars of their parts (of the contexts of their
    first windows). As in `split_windows`, no window reaches over a cut and `horizon` bars before
    each cut belong to neither part. Raises ValueError where a part gets no window.
    """
    _check_split(context, horizon, stride, 0.5, 0.0)
    window, gap = context + horizon, horizon
    train_stop = validation_start - gap
    validation_stop = bars if test_start is None else test_start - gap
    parts = {"training": (0, train_stop), "validation": (validation_start, validation_stop)}
    if test_start is not None:
        parts["test"] = (test_start, bars)
    for name, (first, stop) in parts.items():
        if stop - first < window:
            raise ValueError(
                f"the {name} part has {max(0, stop - first)} bars, fewer than one window of "
                f"{window} (context {context} + horizon {horizon}; {horizon} bars before each cut "
                "are left out); move the dates of the split, or shorten the context or the horizon"
            )
    starts = [range(first, stop - window + 1, stride) for first, stop in parts.values()]
    train, validation, test = starts if test_start is not None else (*starts, range(bars, bars))
    return WindowSplit(
        train=train,
        validation=validation,
        test=test,
        window=window,
        gap=gap,
        cuts=(
            train_stop,
            validation_start,
            validation_stop,
            bars if test_start is None else test_start,
        ),
    )


def _epsilon(mean: Floats) -> Floats:
    return 1e-5 * np.minimum(1.0, np.abs(mean))


def _check_split(
    context: int, horizon: int, stride: int, validation_fraction: float, test_fraction: float
) -> None:
    for name, value in (("context", context), ("horizon", horizon), ("stride", stride)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1 bar, got {value}")
    if not 0 < validation_fraction < 1:
        raise ValueError(
            f"validation_fraction must lie between 0 and 1, got {validation_fraction}. "
            "A run needs validation windows to tell its best step; 0.1 is a usual choice."
        )
    if not 0 <= test_fraction < 1 or validation_fraction + test_fraction >= 1:
        raise ValueError(
            f"validation_fraction {validation_fraction} and test_fraction {test_fraction} leave "
            "nothing to train on. Let them sum to less than 1."
        )


def _too_few(bars: int, context: int, horizon: int, parts: int) -> str:
    window = context + horizon
    names = ("training", "validation", "test")[:parts]
    needed = parts * window + (parts - 1) * horizon
    room = max(0, (bars + horizon) // (window + horizon))
    got = ", ".join(f"{name} {int(index < room)}" for index, name in enumerate(names))
    longest = (bars - (parts - 1) * horizon) // parts - horizon
    remedies = [f"use at least {needed} bars"]
    if longest >= 1:
        remedies.append(f"shorten the context to {longest} or less")
    else:
        remedies.append("shorten the horizon and the context")
    if parts == 3:
        remedies.append(f"set the test fraction to 0 (then {2 * window + horizon} bars are enough)")
    return (
        f"{bars} bars are too few for windows of {window} bars (context {context} + horizon "
        f"{horizon}) with {horizon} bars between the parts. Windows that fit: {got}. "
        f"What to change: {', or '.join(remedies)}."
    )
