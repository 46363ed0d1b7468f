"""Figures of paths against loops over single paths."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from kronos_core import Forecast
from kronos_core.forecast import figures
from tests.core.test_forecast import forecast


def walk(paths: int = 9, bars: int = 6, seed: int = 0) -> np.ndarray:
    """Closes [S,H] of random walks from 100."""
    steps = np.random.default_rng(seed).normal(0, 0.02, (paths, bars))
    return 100 * np.exp(np.cumsum(steps, axis=1))


def walked() -> Forecast:
    close = walk()
    paths = np.stack((close, close * 1.01, close * 0.99, close, close, close), axis=-1)
    return forecast(paths=paths, timestamps=pd.date_range("2024-03-08", periods=6, freq="D"))


@pytest.mark.parametrize("value", [96.0, 100.0, 103.5])
def test_touching_within_each_bar(value: float) -> None:
    result = walked()
    expected = [
        sum(
            min(100, *path[: step + 1, 2]) <= value <= max(100, *path[: step + 1, 1])
            for path in result.candles
        ) / 9
        for step in range(6)
    ]  # fmt: skip
    probability = result.probability_touch(value)
    np.testing.assert_allclose(probability, expected)
    assert (np.diff(probability) >= 0).all()
    assert (probability >= result.probability_above(value) - (value < 100)).all()


def test_touching_a_volume_counts_the_bars_alone() -> None:
    result = walked()
    assert result.probability_touch(1e9, "volume").tolist() == [0.0] * 6
    assert result.probability_touch(float(result.paths[0, 0, 4]), "volume")[0] == pytest.approx(
        1 / 9
    )
    with pytest.raises(ValueError, match="must be a number"):
        result.probability_touch(float("nan"))
    with pytest.raises(ValueError, match="unknown channel"):
        result.probability_touch(1.0, "price")


def test_jumping_over_a_level_touches_it() -> None:
    low, high = np.array([[10.0, 20.0]]), np.array([[11.0, 21.0]])
    assert figures.touched(low, high, 15.0).tolist() == [[False, True]]
    assert figures.touched(low, high, 9.0).tolist() == [[False, False]]


def test_expected_range_grows_with_the_horizon() -> None:
    result = walked()
    expected = [
        np.mean([path[: step + 1, 1].max() - path[: step + 1, 2].min() for path in result.candles])
        for step in range(6)
    ]
    np.testing.assert_allclose(result.expected_range(), expected)


def test_drawdown_by_its_definition() -> None:
    for path, drawn in zip(walk(), walked().drawdowns(), strict=True):
        track = [100.0, *path]
        falls = [1 - later / track[i] for i in range(7) for later in track[i:]]
        assert drawn == pytest.approx(max(falls))
    assert figures.drawdowns(np.array([[101.0, 102.0]]), 100.0).tolist() == [0.0]


def test_volatility_by_its_definition() -> None:
    for path, drawn in zip(walk(), walked().volatilities(), strict=True):
        track = np.log([100.0, *path])
        assert drawn == pytest.approx(sum((b - a) ** 2 for a, b in pairwise(track)) ** 0.5)
    with pytest.raises(ValueError, match="path 1 closes at 0 in bar 2"):
        figures.volatilities(np.array([[1.0, 1.0], [1.0, 0.0]]), 1.0)


@pytest.mark.parametrize("count", [1, 9, 1100])
def test_the_medoid_has_the_least_summed_distance(count: int) -> None:
    close = walk(count)
    totals = [np.sqrt(np.square(close - path).sum(axis=1)).sum() for path in close]
    assert figures.medoid(close) == int(np.argmin(totals))
    if count == 9:
        assert walked().medoid() == int(np.argmin(totals))


def test_the_shape_of_known_distributions() -> None:
    rng = np.random.default_rng(0)
    normal = figures.shape(rng.normal(0, 0.01, 200_000))
    assert normal.spread == pytest.approx(2 * 1.28155 * 0.01, rel=0.02)
    assert normal.skew == pytest.approx(0, abs=0.02)
    assert normal.tail == pytest.approx(1, abs=0.02)
    assert figures.shape(rng.exponential(size=10_000)).skew > 0.3
    assert figures.shape(rng.standard_t(2, size=10_000)).tail > 1.5
    assert figures.shape(np.full(5, 0.1)) == figures.Shape(spread=0.0, skew=None, tail=None)


def test_changes_and_shape_of_a_bar() -> None:
    result = walked()
    np.testing.assert_allclose(result.changes(), walk()[:, -1] / 100 - 1)
    assert result.shape(2) == figures.shape(walk()[:, 2] / 100 - 1)


def test_scores_match_bars_by_their_timestamps() -> None:
    result = walked()
    stamps = result.timestamps[[1, 3]].append(pd.DatetimeIndex(["2030-01-01"]))
    actual = pd.DataFrame({"timestamps": stamps, "close": [101.0, 99.0, 1.0]})
    scores = result.scores(actual)
    assert scores.bars == 2
    assert scores.mae == pytest.approx(
        np.abs(np.median(walk()[:, [1, 3]], axis=0) - [101, 99]).mean()
    )
    with pytest.raises(ValueError, match="none of the forecast's bars is known"):
        result.scores(actual.iloc[2:])
    with pytest.raises(ValueError, match="time zone"):
        result.scores(actual.assign(timestamps=actual["timestamps"].dt.tz_localize("UTC")))
