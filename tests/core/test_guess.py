import numpy as np
import pytest

from kronos_core.evaluation.exposure import fork, sequence_probability
from kronos_core.evaluation.guess import next_guess
from tests.core.training_runs import make_bars, make_bundle


def bundle():
    found = make_bundle()
    found.s2_rotary = found.predictor.s2_rotary = "position"
    return found


def test_chances_are_those_of_the_sequence():
    bars = make_bars(120)
    guess = next_guess(bundle(), bars, context=24, horizon=3)
    whole = sequence_probability(bundle(), bars, context=24, horizon=3)
    assert guess.p_all.sum() == pytest.approx(1)
    assert -np.log(guess.p_true_s1) == pytest.approx(whole.s1_loss[-1], abs=1e-5)
    assert -np.log(guess.p_true_s2) == pytest.approx(whole.s2_loss[-1], abs=1e-5)
    assert guess.timestamp == whole.timestamps[-1]
    assert 0 < guess.entropy <= np.log(len(guess.p_all)) + 1e-9


def test_candidates_are_the_likeliest_in_order():
    guess = next_guess(bundle(), make_bars(120), context=24, candidates=5)
    assert list(guess.p_s1) == sorted(guess.p_all, reverse=True)[:5]
    assert guess.prices.shape == (5, 6)
    assert (guess.rank == 1) == (guess.s1[0] == guess.true_s1)


def test_own_tokens_stand_in_for_the_past():
    bars = make_bars(120)
    own = fork(bundle(), bars, context=24, horizon=4, seed=3).own
    guess = next_guess(bundle(), bars, context=24, horizon=4, own=(own.s1[0, :3], own.s2[0, :3]))
    assert -np.log(guess.p_true_s1) == pytest.approx(own.s1_loss[0, 3], abs=1e-5)
    with pytest.raises(ValueError, match="3 bars lie in between, but 1"):
        next_guess(bundle(), bars, context=24, horizon=4, own=(own.s1[0, :1], own.s2[0, :1]))
