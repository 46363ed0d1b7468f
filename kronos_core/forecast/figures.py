"""Figures of sample paths: what they touch, how far they range, fall and vary, how they differ.

All are functions of arrays, so that they serve any set of paths. Shape letters: S paths, H bars.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_BLOCK = 512  # paths compared with all others at once
_NORMAL_TAIL = 2.9058  # ratio of the central 95 % to the central 50 % range of a normal law


def touched(low: Floats, high: Floats, value: float) -> npt.NDArray[np.bool_]:
    """Which paths [S] have reached `value` by each bar, [S,H]: a level lies between the lowest low
    and the highest high so far, so that jumping over it counts."""
    lowest, highest = np.minimum.accumulate(low, axis=1), np.maximum.accumulate(high, axis=1)
    return np.asarray((lowest <= value) & (value <= highest))


def ranges(low: Floats, high: Floats) -> Floats:
    """Highest high minus lowest low up to each bar, [S,H], in price units."""
    return np.asarray(np.maximum.accumulate(high, axis=1) - np.minimum.accumulate(low, axis=1))


def drawdowns(close: Floats, start: float) -> Floats:
    """Largest fall of each path [S] from a close so far, as a share of it; `start` is the first."""
    track = _from(close, start)
    return np.asarray((1 - track / np.maximum.accumulate(track, axis=1)).max(axis=1))


def volatilities(close: Floats, start: float) -> Floats:
    """Realised volatility of each path [S] over the horizon: root of summed squared log returns.

    Raises ValueError when a close is not above 0, where it is undefined.
    """
    track = _from(close, start)
    if (track <= 0).any():
        path, bar = np.argwhere(track <= 0)[0]
        raise ValueError(
            f"path {path} closes at {track[path, bar]:g} in bar {bar}: volatility is defined for "
            "prices above 0 only"
        )
    return np.asarray(np.sqrt(np.square(np.diff(np.log(track), axis=1)).sum(axis=1)))


def _from(close: Floats, start: float) -> Floats:
    return np.concatenate((np.full((len(close), 1), start), close), axis=1)


def medoid(values: Floats) -> int:
    """Index of the most typical of the paths [S,H]: the least summed Euclidean distance to all
    others (Kaufman and Rousseeuw 1987); the first of equals."""
    centred = values - values.mean(axis=0)
    squares = np.square(centred).sum(axis=1)
    blocks = [
        range(first, min(first + _BLOCK, len(values))) for first in range(0, len(values), _BLOCK)
    ]
    totals = [_distances(centred, squares, block).sum(axis=1) for block in blocks]
    return int(np.concatenate(totals).argmin())


def _distances(values: Floats, squares: Floats, block: range) -> Floats:
    """Euclidean distances of a block of rows to all rows, by the cosine rule."""
    rows = slice(block.start, block.stop)
    squared = squares[rows, None] + squares - 2 * values[rows] @ values.T
    return np.asarray(np.sqrt(np.maximum(squared, 0)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """The form of a distribution of relative changes.

    spread: 90 % minus 10 % quantile, as a share of the last close. skew: where the median lies
    between them, −1…1, above 0 when the upper side is longer (Kelley's measure). tail: central
    95 % over central 50 % range, 1 for a normal law and more for heavier tails. skew and tail are
    None where they are undefined: all changes alike.
    """

    spread: float
    skew: float | None
    tail: float | None


def shape(changes: Floats) -> Shape:
    """Form of the distribution of relative changes [S]."""
    levels = (0.025, 0.1, 0.25, 0.5, 0.75, 0.9, 0.975)
    lowest, low, lower, middle, upper, high, highest = np.quantile(changes, levels)
    spread, core = high - low, upper - lower
    return Shape(
        spread=float(spread),
        skew=float((high + low - 2 * middle) / spread) if spread > 0 else None,
        tail=float((highest - lowest) / core / _NORMAL_TAIL) if core > 0 else None,
    )
