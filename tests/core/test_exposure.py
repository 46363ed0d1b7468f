from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

from kronos_core.data.bars import CHANNELS
from kronos_core.data.windows import channel_stats, normalise, stamp_features
from kronos_core.evaluation import exposure
from kronos_core.evaluation.exposure import (
    exposure_gap,
    fork,
    sequence_probability,
    walks,
)
from kronos_core.evaluation.guess import next_guess
from kronos_core.forecast.forecaster import Cancelled, sample_paths
from tests.core.training_runs import make_bars, make_bundle

SIZES = {"context": 24, "horizon": 12}


def bundle():
    found = make_bundle()
    found.s2_rotary = found.predictor.s2_rotary = "position"
    return found


def direct_losses(bars: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """−log p of the last 12 bars' s1 and s2 from one pass over all of them."""
    model, kept = bundle(), bars.iloc[-36:]
    values = kept[list(CHANNELS)].to_numpy()
    z = torch.from_numpy(normalise(values, *channel_stats(values[:24])))[None]
    s1, s2 = model.tokenizer.encode(z, half=True)
    stamp = torch.from_numpy(stamp_features(pd.DatetimeIndex(kept["timestamps"])))[None, :-1]
    with torch.no_grad():
        logits = model.predictor(
            s1[:, :-1], s2[:, :-1], stamp, use_teacher_forcing=True, s1_targets=s1[:, 1:]
        )
    chosen = [
        -part.log_softmax(-1).gather(-1, ids[:, 1:, None])[0, -12:, 0].numpy()
        for part, ids in zip(logits, (s1, s2), strict=True)
    ]
    return chosen[0], chosen[1]


def test_the_probability_of_a_stretch_is_that_of_one_pass_over_it():
    found = sequence_probability(bundle(), make_bars(), **SIZES)
    s1, s2 = direct_losses(make_bars())
    np.testing.assert_allclose(found.s1_loss, s1, rtol=1e-4)
    np.testing.assert_allclose(found.s2_loss, s2, rtol=1e-4)
    assert found.total == pytest.approx(float((s1 + s2).sum()), rel=1e-4)
    assert list(found.timestamps) == list(make_bars()["timestamps"].iloc[-12:])


def test_the_product_and_the_sum_are_one_thing():
    found = sequence_probability(bundle(), make_bars(), **SIZES)
    single = np.exp(-found.s1_loss) * np.exp(-found.s2_loss)
    np.testing.assert_allclose(found.running_product, np.cumprod(single), rtol=1e-9)
    np.testing.assert_allclose(found.running_total[-1], found.total)
    assert found.log10_probability == pytest.approx(np.log10(found.running_product[-1]))


def test_a_fork_runs_the_same_stretch_on_true_and_on_own_tokens():
    split = fork(bundle(), make_bars(), seed=3, **SIZES)
    known = sequence_probability(bundle(), make_bars(), **SIZES)
    np.testing.assert_allclose(split.true.s1_loss[0], known.s1_loss)
    np.testing.assert_array_equal(split.true.past_s1[0], known.s1)
    np.testing.assert_array_equal(split.own.past_s1, split.own.s1)
    assert split.s1_gap[0] == 0
    # Up to the first bar the past is the context, so both draw the same pair for it.
    assert (split.true.s1[0, 0], split.true.s2[0, 0]) == (split.own.s1[0, 0], split.own.s2[0, 0])
    np.testing.assert_allclose(split.true_prices[0], split.own_prices[0])
    assert split.true_prices.shape == split.known_prices.shape == (12, 6)


def test_own_tokens_are_what_a_greedy_forecast_draws():
    model, bars = bundle(), make_bars()
    split = fork(model, bars, greedy=True, **SIZES)
    forecast = sample_paths(model, bars.iloc[:-12], 12, 1, top_k=1, context=24)
    np.testing.assert_allclose(split.own_prices, forecast.paths[0], rtol=1e-5)


def test_the_prices_of_true_tokens_are_the_decoded_bars():
    model, bars = bundle(), make_bars()
    values = bars[list(CHANNELS)].to_numpy()[-36:]
    mean, scale = channel_stats(values[:24])
    z = torch.from_numpy(normalise(values, mean, scale))[None]
    decoded = model.tokenizer.decode(model.tokenizer.encode(z, half=True), half=True)
    expected = decoded[0].detach().numpy() * scale + mean
    found = fork(model, bars, **SIZES).known_prices
    np.testing.assert_allclose(found, expected[24:], rtol=1e-5)


def test_sampled_walks_follow_their_seed():
    first, again, other = (
        walks(bundle(), make_bars(), epsilon=0.4, count=5, seed=seed, **SIZES) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first.s1, again.s1)
    assert (first.s1 != other.s1).any()
    assert (first.s1[0] != first.s1[1]).any()


@pytest.mark.parametrize("epsilon", [0.25, 0.8])
def test_the_share_of_kept_truth_is_within_the_binomial_bound(epsilon):
    found = walks(bundle(), make_bars(), epsilon=epsilon, count=300, **SIZES)
    bound = 5 * np.sqrt(epsilon * (1 - epsilon) / found.kept.size)
    assert abs(found.kept.mean() - epsilon) < bound
    np.testing.assert_array_equal(
        found.past_s1[found.kept], np.broadcast_to(found.true_s1, found.kept.shape)[found.kept]
    )


def test_the_gap_is_nothing_on_the_truth_and_grows_from_the_first_bar():
    told = []
    gap = exposure_gap(
        bundle(),
        make_bars(),
        origins=3,
        walks=6,
        epsilons=(1.0, 0.5, 0.0),
        progress=lambda done, total: told.append((done, total)),
        **SIZES,
    )
    assert told == [(bar, 36) for bar in range(1, 37)]
    assert gap.s1_gap.shape == gap.s2_gap.shape == (3, 12)
    np.testing.assert_allclose(gap.s1_gap[0], 0, atol=1e-6)
    np.testing.assert_allclose(gap.s2_gap[0], 0, atol=1e-6)
    np.testing.assert_allclose(gap.s1_gap[:, 0], 0, atol=1e-6)
    assert np.abs(gap.s1_gap[2, 1:]).max() > 0.01
    again = exposure_gap(bundle(), make_bars(), origins=3, walks=6, epsilons=(0.0,), **SIZES)
    np.testing.assert_allclose(again.s1_loss[0], gap.s1_loss[2], rtol=1e-4)


COMPUTED = {
    "sequence_probability": sequence_probability,
    "fork": fork,
    "walks": partial(walks, epsilon=0.5),
    "exposure_gap": partial(exposure_gap, origins=2, walks=1),
    "next_guess": next_guess,
}


@pytest.mark.parametrize("compute", COMPUTED.values(), ids=COMPUTED.keys())
def test_every_computation_tells_of_its_steps_and_ends_at_any_of_them(compute, monkeypatch):
    monkeypatch.setattr(exposure, "_DECODED_ROWS", 5)
    told: list[tuple[int, int]] = []
    compute(bundle(), make_bars(), progress=lambda *steps: told.append(steps), **SIZES)
    total = len(told)
    assert told == [(done, total) for done in range(1, total + 1)]
    for last in {1, total // 2, total}:
        heard = []

        def cancel(done: int, _total: int, last=last, heard=heard) -> None:
            heard.append(done)
            if done == last:
                raise Cancelled

        with pytest.raises(Cancelled):
            compute(bundle(), make_bars(), progress=cancel, **SIZES)
        assert heard == list(range(1, last + 1))


def test_prices_decoded_in_pieces_are_the_same(monkeypatch):
    whole = fork(bundle(), make_bars(), **SIZES)
    monkeypatch.setattr(exposure, "_DECODED_ROWS", 5)
    pieces = fork(bundle(), make_bars(), **SIZES)
    np.testing.assert_allclose(pieces.own_prices, whole.own_prices, rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"context": 60}, "72 bars together, but the model takes 64 at once; shorten them by 8"),
        ({"horizon": 0}, "horizon at least 1"),
        ({"epsilon": 1.5}, r"ratios from 0 to 1, got \[1.5\]"),
    ],
)
def test_what_cannot_be_walked_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        walks(bundle(), make_bars(), **{"epsilon": 0.5, **SIZES, **change})
    with pytest.raises(ValueError, match=r"30 bars are fewer than .* give 6 more"):
        fork(bundle(), make_bars().iloc[:30], **SIZES)
