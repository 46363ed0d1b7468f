"""Scores of sample paths against what happened. Nothing undefined passes as a number.

Shape letters: S paths, H bars.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
LEVELS = (0.5, 0.8, 0.95)  # of the bands that are scored


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """How well a fan met the bars that became known.

    bars: how many were scored. crps: of each of them, in the unit of the values; mean_crps over
    them. mae: mean absolute error of the median path, same unit. coverage: for each nominal level,
    the share of bars inside the central band of that level.
    """

    bars: int
    crps: tuple[float, ...]
    mean_crps: float
    mae: float
    coverage: dict[float, float]


def score(samples: Floats, actual: Floats, levels: Sequence[float] = LEVELS) -> Scores:
    """Samples [S,H] against actual values [H]. Raises ValueError for shapes that do not fit."""
    by_bar = crps(samples, actual)
    return Scores(
        bars=len(actual),
        crps=tuple(by_bar.tolist()),
        mean_crps=float(by_bar.mean()),
        mae=median_error(samples, actual),
        coverage={level: coverage(samples, actual, level) for level in levels},
    )


def crps(samples: Floats, actual: Floats) -> Floats:
    """Continuous ranked probability score of each bar, [H], in the unit of the values; 0 is best.

    Of the samples [S,H] as they are: mean |x − y| − ½ mean |x − x'| over all pairs (Gneiting and
    Raftery 2007, equation 21). One path, however often repeated, scores its absolute error.
    """
    samples, actual = _checked(samples, actual)
    count = len(samples)
    ordered = np.sort(samples, axis=0)
    # Σ|x − x'| over pairs from the sorted values, without forming the S² differences.
    weights = 2 * np.arange(1, count + 1) - count - 1
    apart = weights @ (ordered - ordered[0]) / count**2
    return np.asarray(np.abs(samples - actual).mean(axis=0) - apart)


def median_error(samples: Floats, actual: Floats) -> float:
    """Mean absolute error of the median of samples [S,H], in the unit of the values."""
    samples, actual = _checked(samples, actual)
    return float(np.abs(np.median(samples, axis=0) - actual).mean())


def coverage(samples: Floats, actual: Floats, level: float) -> float:
    """Share of the bars that lie in the central band of samples [S,H] with that probability.

    The band's edges belong to it. Raises ValueError unless level lies between 0 and 1.
    """
    if not 0 < level < 1:
        raise ValueError(f"the level of a band must lie between 0 and 1, got {level}")
    samples, actual = _checked(samples, actual)
    low, high = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return float(((low <= actual) & (actual <= high)).mean())


def _checked(samples: Floats, actual: Floats) -> tuple[Floats, Floats]:
    samples, actual = np.asarray(samples, np.float64), np.asarray(actual, np.float64)
    if samples.ndim != 2 or actual.shape != samples.shape[1:] or samples.size == 0:
        raise ValueError(
            f"samples [S,H] and actual values [H] with at least one of each are needed, "
            f"got {samples.shape} and {actual.shape}"
        )
    if not (np.isfinite(samples).all() and np.isfinite(actual).all()):
        raise ValueError("samples and actual values must be finite: drop the bars that are not")
    return samples, actual
