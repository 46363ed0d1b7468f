"""Statistics of the context, calendar features, and splits that leak nothing."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kronos_core.data.windows import (
    channel_stats,
    denormalise,
    normalise,
    split_windows,
    stamp_features,
)

ordinary = hnp.arrays(
    np.float64, st.tuples(st.integers(2, 40), st.just(6)), elements=st.floats(1.0, 1e6)
)


@given(ordinary)
def test_equal_to_the_release_at_ordinary_prices(values: np.ndarray) -> None:
    assume((values.std(axis=0) > 1e-3).all())
    mean, scale = channel_stats(values)
    expected = np.clip((values - values.mean(axis=0)) / (values.std(axis=0) + 1e-5), -5, 5)
    np.testing.assert_allclose(normalise(values, mean, scale), expected, atol=1e-5)


@given(ordinary)
def test_denormalise_inverts_normalise_inside_the_clip(values: np.ndarray) -> None:
    mean, scale = channel_stats(values)
    z = normalise(values, mean, scale)
    inside = np.abs(z) < 5
    back = denormalise(z, mean, scale)
    tolerance = 1e-6 * scale + 1e-9 * np.abs(mean)
    assert (np.abs(back - values) <= tolerance)[inside].all()


@given(
    value=st.one_of(st.just(0.0), st.floats(1e-12, 1e15)),
    bars=st.integers(1, 700),
    noise=st.integers(0, 3),
)
def test_a_constant_channel_is_exactly_zero_and_comes_back(
    value: float, bars: int, noise: int
) -> None:
    context = np.full((bars, 2), value)
    context[::3, 1] += (
        noise * np.spacing(value) * (value > 0)
    )  # what volume × mean price leaves behind
    mean, scale = channel_stats(context)
    assert (normalise(context, mean, scale) == 0).all()
    assert (normalise(context + 1.0, mean, scale) == 0).all()
    back = denormalise(np.zeros((4, 2)), mean, scale)
    np.testing.assert_allclose(back, value, rtol=1e-15, atol=0)


def test_a_channel_of_zeros_stays_zero_whatever_is_decoded() -> None:
    mean, scale = channel_stats(np.zeros((8, 1)))
    assert (denormalise(np.array([[3.0], [-5.0]]), mean, scale) == 0).all()


def test_tiny_prices_keep_their_shape() -> None:
    shape = np.sin(np.arange(50.0))[:, None] * 0.05 + 1.0
    large, tiny = shape * 100.0, shape * 1e-8
    z_large = normalise(large, *channel_stats(large))
    z_tiny = normalise(tiny, *channel_stats(tiny))
    np.testing.assert_allclose(z_tiny, z_large, atol=2e-3)


def test_values_far_from_the_context_are_clipped() -> None:
    context = np.array([[1.0], [2.0], [3.0]])
    stats = channel_stats(context)
    z = normalise(np.array([[1e9], [-1e9]]), *stats)
    assert z.dtype == np.float32
    assert z.ravel().tolist() == [5.0, -5.0]


def test_a_batch_of_windows_equals_its_windows() -> None:
    batch = np.random.default_rng(0).normal(100, 1, (3, 20, 6))
    mean, scale = channel_stats(batch)
    whole = normalise(batch, mean, scale)
    for index, window in enumerate(batch):
        np.testing.assert_array_equal(whole[index], normalise(window, *channel_stats(window)))
        np.testing.assert_array_equal(
            denormalise(whole, mean, scale)[index],
            denormalise(whole[index], mean[index], scale[index]),
        )


def test_statistics_need_a_bar() -> None:
    with pytest.raises(ValueError, match="at least one bar"):
        channel_stats(np.empty((0, 6)))


def test_stamps_count_on_the_wall_clock_of_their_zone() -> None:
    utc = pd.DatetimeIndex(["2024-03-08 14:35", "2024-03-11 13:35"], tz="UTC")
    local = utc.tz_convert("America/New_York")
    expected = [[35, 9, 4, 8, 3], [35, 9, 0, 11, 3]]
    assert stamp_features(local).tolist() == expected
    assert stamp_features(local.tz_localize(None)).tolist() == expected
    assert stamp_features(utc)[:, 1].tolist() == [14, 13]
    assert stamp_features(utc).dtype == np.int64


settings = st.fixed_dictionaries(
    {
        "bars": st.integers(1, 3000),
        "context": st.integers(1, 200),
        "horizon": st.integers(1, 60),
        "stride": st.integers(1, 20),
        "validation_fraction": st.floats(0.01, 0.6),
        "test_fraction": st.one_of(st.just(0.0), st.floats(0.01, 0.39)),
    }
)


@given(settings)
def test_no_bar_of_a_part_is_near_another_part(values: dict[str, float]) -> None:
    window, horizon = values["context"] + values["horizon"], values["horizon"]
    parts = 3 if values["test_fraction"] else 2
    needed = parts * window + (parts - 1) * horizon
    if values["bars"] < needed:
        with pytest.raises(ValueError, match=f"at least {needed} bars"):
            split_windows(**values)
        return
    split = split_windows(**values)
    stretches = [
        (starts[0], starts[-1] + window)
        for starts in (split.train, split.validation, split.test)
        if len(starts)
    ]
    assert len(stretches) == parts
    assert stretches[0][0] == 0
    assert stretches[-1][1] <= values["bars"]
    for (_, stop), (start, _) in pairwise(stretches):
        assert start - (stop - 1) > horizon
    train_stop, validation_start, validation_stop, test_start = split.cuts
    assert split.train[-1] + window <= train_stop <= validation_start - horizon
    assert validation_start == split.validation[0]
    assert split.validation[-1] + window <= validation_stop
    assert test_start == (split.test[0] if split.test else values["bars"])
    assert {split.train.step, split.validation.step} == {values["stride"]}


def test_the_fractions_are_shares_of_the_window_starts() -> None:
    split = split_windows(
        5031, context=128, horizon=16, stride=1, validation_fraction=0.1, test_fraction=0.1
    )
    total = len(split.train) + len(split.validation) + len(split.test)
    assert len(split.validation) == pytest.approx(0.1 * total, abs=1)
    assert len(split.test) == pytest.approx(0.1 * total, abs=1)
    assert split.test[-1] + split.window == 5031


def test_too_few_bars_say_the_numbers_and_what_to_change() -> None:
    with pytest.raises(ValueError, match="100 bars are too few") as caught:
        split_windows(
            100, context=64, horizon=8, stride=1, validation_fraction=0.1, test_fraction=0.1
        )
    message = str(caught.value)
    for part in ("72 bars (context 64 + horizon 8)", "training 1, validation 0, test 0"):
        assert part in message
    for remedy in ("at least 232 bars", "context to 20 or less", "152 bars are enough"):
        assert remedy in message
    split_windows(100, context=20, horizon=8, stride=1, validation_fraction=0.1, test_fraction=0.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"context": 0}, "context must be at least 1"),
        ({"horizon": 0}, "horizon must be at least 1"),
        ({"stride": 0}, "stride must be at least 1"),
        ({"validation_fraction": 0.0}, "validation_fraction must lie"),
        ({"validation_fraction": 0.6, "test_fraction": 0.5}, "sum to less than 1"),
        ({"test_fraction": -0.1}, "leave nothing"),
    ],
)
def test_settings_out_of_range_are_refused(change: dict[str, float], message: str) -> None:
    values = {
        "context": 8,
        "horizon": 2,
        "stride": 1,
        "validation_fraction": 0.1,
        "test_fraction": 0.1,
    }
    with pytest.raises(ValueError, match=message):
        split_windows(1000, **{**values, **change})
