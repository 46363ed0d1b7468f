"""Every score against a scalar oracle of a line or two."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kronos_core.evaluation.metrics import coverage, crps, median_error, score


def crps_oracle(samples: list[float], actual: float) -> float:
    own = sum(abs(x - actual) for x in samples) / len(samples)
    return own - sum(abs(x - z) for x in samples for z in samples) / len(samples) ** 2 / 2


values = st.floats(-1e3, 1e3)


@given(st.lists(values, min_size=1, max_size=12), values)
@settings(deadline=None)
def test_crps_by_its_definition(samples: list[float], actual: float) -> None:
    result = crps(np.array(samples)[:, None], np.array([actual]))
    assert result.shape == (1,)
    assert result[0] == pytest.approx(crps_oracle(samples, actual), abs=1e-9)


def test_crps_of_one_repeated_path_is_its_absolute_error() -> None:
    rng = np.random.default_rng(0)
    path, actual = rng.normal(size=(1, 7)), rng.normal(size=7)
    repeated = path.repeat(50, axis=0)
    np.testing.assert_allclose(crps(repeated, actual), np.abs(path[0] - actual))
    assert score(repeated, actual).mean_crps == pytest.approx(median_error(repeated, actual))


def test_crps_keeps_its_digits_at_large_prices() -> None:
    small = np.random.default_rng(0).normal(size=(200, 1))
    expected = crps(small, np.zeros(1))
    np.testing.assert_allclose(crps(small + 1e8, np.full(1, 1e8)), expected, rtol=1e-6)


def test_crps_is_least_for_the_true_distribution() -> None:
    rng = np.random.default_rng(0)
    actual = rng.normal(size=2000)
    right, shifted, narrow = (
        crps(spread * rng.normal(size=(200, 2000)) + shift, actual).mean()
        for shift, spread in ((0, 1), (0.5, 1), (0, 0.3))
    )
    assert right < min(shifted, narrow)
    assert right == pytest.approx(1 / np.sqrt(np.pi), rel=0.05)  # exact for the normal law


def test_median_error() -> None:
    samples = np.array([[1.0, 5.0], [2.0, 6.0], [9.0, 7.0]])
    assert median_error(samples, np.array([4.0, 6.0])) == ((4 - 2) + (6 - 6)) / 2


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95])
def test_coverage_is_the_level_for_the_true_distribution(level: float) -> None:
    rng = np.random.default_rng(1)
    share = coverage(rng.normal(size=(2000, 3000)), rng.normal(size=3000), level)
    assert share == pytest.approx(level, abs=0.03)


def test_coverage_counts_the_edges() -> None:
    samples = np.array([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    assert coverage(samples, np.array([1.0, 2.0, 0.0]), 0.5) == pytest.approx(1 / 3)


def test_scores_tell_how_many_bars_they_are_of() -> None:
    result = score(np.zeros((4, 3)), np.array([1.0, -2.0, 0.0]))
    assert result.bars == 3
    assert result.crps == (1.0, 2.0, 0.0)
    assert result.coverage == {0.5: 1 / 3, 0.8: 1 / 3, 0.95: 1 / 3}


def test_what_cannot_be_scored() -> None:
    good = np.zeros((4, 3))
    cases = [
        (good, np.zeros(2), r"got \(4, 3\) and \(2,\)"),
        (np.zeros((4, 0)), np.zeros(0), "at least one"),
        (good, np.array([0, np.nan, 0]), "finite"),
    ]
    for samples, actual, reason in cases:
        with pytest.raises(ValueError, match=reason):
            score(samples, actual)
    with pytest.raises(ValueError, match="between 0 and 1, got 80"):
        coverage(good, np.zeros(3), 80)
