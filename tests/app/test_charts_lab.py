"""Pictures and words of the lab, on results that nothing had to be computed for."""

import numpy as np
import pandas as pd
import pytest

from app.ui import charts_lab, lab_words
from kronos_core.evaluation.exposure import EPSILONS, ExposureGap, Fork, SequenceProbability, Walk
from kronos_core.evaluation.guess import Guess

HORIZON = 6
STAMPS = pd.date_range("2024-01-01", periods=HORIZON, tz="UTC")
PAST = pd.DataFrame({"close": np.linspace(90, 100, 20)})


def walk(own: bool) -> Walk:
    truth = np.arange(HORIZON)
    drawn = truth + (truth >= 2) * own
    loss = (1.0 + own * truth)[None]
    return Walk(
        timestamps=STAMPS,
        epsilon=np.array([0.0 if own else 1.0]),
        kept=np.full((1, HORIZON), not own),
        true_s1=truth,
        true_s2=truth,
        s1=drawn[None],
        s2=drawn[None],
        s1_loss=loss,
        s2_loss=loss,
    )


def branches() -> Fork:
    prices = np.full((HORIZON, 6), 100.0)
    return Fork(
        true=walk(False),
        own=walk(True),
        true_prices=prices + 1,
        own_prices=prices + np.arange(HORIZON)[:, None],
        known_prices=prices,
    )


def guessed() -> Guess:
    chances = np.array([0.5, 0.3, 0.2])
    return Guess(
        timestamp=STAMPS[0],
        s1=np.arange(3),
        p_s1=chances,
        s2=np.zeros(3, dtype=np.int64),
        prices=np.full((3, 6), 101.0),
        p_all=chances,
        true_s1=1,
        true_s2=2,
        p_true_s1=0.3,
        p_true_s2=0.00001,
        rank=2,
        true_prices=np.full(6, 100.5),
    )


def sequence(loss: float = 1.0) -> SequenceProbability:
    losses = np.full(HORIZON, loss)
    ids = np.arange(HORIZON)
    return SequenceProbability(timestamps=STAMPS, s1=ids, s2=ids, s1_loss=losses, s2_loss=losses)


def gap() -> ExposureGap:
    losses = np.outer(1 - np.array(EPSILONS), np.arange(HORIZON)) + 1
    truth = np.ones(HORIZON)
    return ExposureGap(
        epsilons=np.array(EPSILONS),
        s1_loss=losses,
        s2_loss=losses,
        s1_true=truth,
        s2_true=truth,
        origins=4,
        walks=8,
    )


def test_candidates_grow_with_their_chance_and_the_truth_is_marked():
    figure = charts_lab.guess(PAST, guessed(), entity="x")
    sizes = next(item for item in figure.data if item.name == "a token's close").marker.size
    assert (np.diff(sizes) < 0).all()
    assert figure.data[-1].y[1] == "1 (true)"
    assert figure.layout.yaxis2.type == "category"


def test_product_is_drawn_however_small():
    figure = charts_lab.product(sequence(loss=500.0), entity="x")
    powers = next(item for item in figure.data if item.name == "product").y
    assert np.isfinite(powers).all()
    assert powers[-1] == pytest.approx(-HORIZON * 1000 / np.log(10))


def test_sum_ends_at_the_total():
    figure = charts_lab.logs(sequence(), entity="x")
    assert figure.data[-1].y[-1] == pytest.approx(sequence().total)


@pytest.mark.parametrize("shown", [1, 3, HORIZON])
def test_stretch_shows_as_many_bars_as_were_walked_over_one_range(shown):
    figure = charts_lab.stretch(PAST, branches(), own=True, shown=shown, entity="x")
    whole = charts_lab.stretch(PAST, branches(), own=True, shown=HORIZON, entity="x")
    own = next(item for item in figure.data if item.name == "own tokens")
    assert len(own.x) == shown + 1
    assert figure.layout.yaxis.range == whole.layout.yaxis.range
    symbols = next(item for item in figure.data if item.name == "s1").marker.symbol
    assert list(symbols) == (["square"] * 2 + ["square-open"] * 4)[:shown]


def test_true_strokes_start_on_the_true_line():
    figure = charts_lab.stretch(PAST, branches(), own=False, shown=HORIZON, entity="x")
    strokes = next(item for item in figure.data if item.name == "guess from the true past")
    assert list(strokes.y[::3]) == [100.0] * HORIZON


def test_gap_curves_are_ordered_by_epsilon():
    figure = charts_lab.gaps(gap(), epsilon=0.5, entity="x")
    assert list(figure.data[0].x) == sorted(EPSILONS)
    assert (np.diff(figure.data[0].y) < 0).all()
    assert len(charts_lab.coins(walk(True), entity="x").data) == 2


@pytest.mark.parametrize(
    "text",
    [
        lab_words.guess(guessed()),
        lab_words.product(sequence()),
        lab_words.logs(sequence()),
        lab_words.parting(branches(), guessed(), guessed()),
        lab_words.true_past(branches()),
        lab_words.own_past(branches(), 4, 2),
        lab_words.dial(gap(), 0.5),
    ],
)
def test_three_sentences_a_step(text):
    assert len(text.sentences) == 3
    for sentence in text.sentences:
        assert sentence.endswith(".")
        assert "nan" not in sentence


def test_words_carry_the_numbers():
    assert "1 in 100,000" in lab_words.guess(guessed()).sentences[2]
    assert "comes at bar 3" in lab_words.own_past(branches(), 4, 2).sentences[0]
    assert "nowhere so far" in lab_words.own_past(branches(), 2, 2).sentences[0]
    assert "10⁵" in lab_words.product(sequence()).sentences[2]
    assert "mistakes add to mistakes" in lab_words.dial(gap(), 0.0).sentences[2]
