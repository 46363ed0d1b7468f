from math import exp, log, sqrt

import pytest
import torch

from kronos_core.training.teacher_forcing import (
    TeacherForcing,
    exponential_decay,
    inverse_sigmoid_decay,
    inverse_sigmoid_k,
    linear_decay,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_constant_ratio_is_the_same_at_every_step():
    forcing = TeacherForcing(start=0.3)
    assert [forcing.epsilon(step, 50) for step in (1, 25, 50)] == [0.3, 0.3, 0.3]


@pytest.mark.parametrize("total", [2, 7, 1000])
def test_linear_equals_its_formula(total):
    forcing = TeacherForcing(schedule="linear", start=0.9, end=0.1)
    for step in range(1, total + 1):
        expected = 0.9 + (0.1 - 0.9) * (step - 1) / (total - 1)
        assert forcing.epsilon(step, total) == pytest.approx(expected)


@pytest.mark.parametrize(("start", "end"), [(1.0, 0.0), (0.2, 0.9)])
@pytest.mark.parametrize("k", [0.9, 0.999])
def test_exponential_equals_its_formula(start, end, k):
    forcing = TeacherForcing(schedule="exponential", start=start, end=end, k=k)
    for step in range(1, 301):
        expected = end + (start - end) * k ** (step - 1)
        assert forcing.epsilon(step, 300) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("start", "end"), [(1.0, 0.0), (0.2, 0.9)])
@pytest.mark.parametrize("k", [1.0, 7.5, 60.0])
def test_inverse_sigmoid_equals_its_formula(start, end, k):
    forcing = TeacherForcing(schedule="inverse-sigmoid", start=start, end=end, k=k)
    for step in range(1, 301):
        expected = end + (start - end) * k / (k + exp((step - 1) / k))
        assert forcing.epsilon(step, 300) == pytest.approx(expected, abs=1e-12)


def test_the_decays_are_pure_functions_from_one_downwards():
    assert [linear_decay(index, 4) for index in range(5)] == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert exponential_decay(3, 0.5) == 0.125
    assert inverse_sigmoid_decay(0, 4.0) == pytest.approx(4 / 5)
    assert inverse_sigmoid_decay(10**6, 1.0) == 0.0  # exp(10^6) does not overflow


@pytest.mark.parametrize("total", [3, 50, 20_000])
def test_without_k_the_decay_is_fitted_to_the_run(total):
    exponential = TeacherForcing.parse("exponential:1:0")
    assert exponential.epsilon(1, total) == 1.0
    assert exponential.epsilon(total, total) == pytest.approx(0.01)
    last = total - 1
    k = inverse_sigmoid_k(last)
    assert k * log(k) == pytest.approx(last / 2)
    sigmoid = TeacherForcing.parse("inverse-sigmoid:1:0")
    assert sigmoid.epsilon(1, total) == pytest.approx(k / (k + 1))
    assert sigmoid.epsilon(total, total) == pytest.approx(1 / (k + 1))


@pytest.mark.parametrize("schedule", ["linear", "exponential", "inverse-sigmoid"])
@pytest.mark.parametrize("total", [1, 2, 40])
def test_every_schedule_falls_within_its_ends(schedule, total):
    forcing = TeacherForcing(schedule=schedule, start=0.9, end=0.1)
    ratios = [forcing.epsilon(step, total) for step in range(0, total + 2)]
    assert all(0.1 - 1e-12 <= ratio <= 0.9 + 1e-12 for ratio in ratios)
    assert ratios == sorted(ratios, reverse=True)


def test_linear_stays_within_its_ends():
    forcing = TeacherForcing(schedule="linear", start=1.0, end=0.0)
    assert [forcing.epsilon(step, 10) for step in (0, 1, 10, 11)] == [1.0, 1.0, 0.0, 0.0]
    assert forcing.epsilon(1, 1) == 1.0


@pytest.mark.parametrize(("unit", "coins"), [("token", 40_000), ("sequence", 400), ("batch", 1)])
@pytest.mark.parametrize("epsilon", [0.25, 0.8])
def test_the_share_of_truth_is_within_the_binomial_bound(unit, coins, epsilon):
    forcing, draws, repeats = TeacherForcing(start=epsilon, unit=unit), generator(), 200
    masks = [forcing.mask((400, 100), 1, 1, draws) for _ in range(repeats)]
    share = torch.stack(masks).float().mean().item()
    bound = 5 * sqrt(epsilon * (1 - epsilon) / (coins * repeats))
    assert abs(share - epsilon) < bound


def test_each_unit_decides_for_what_it_says():
    shape, draws = (64, 20), generator()
    by_token, by_sequence, by_batch = (
        TeacherForcing(start=0.5, unit=unit).mask(shape, 1, 1, draws)
        for unit in ("token", "sequence", "batch")
    )
    assert {mask.shape for mask in (by_token, by_sequence, by_batch)} == {shape}
    assert by_token.any(dim=1).all()
    assert not by_token.all(dim=1).any()
    assert (by_sequence == by_sequence[:, :1]).all()
    assert by_sequence.any()
    assert not by_sequence.all()
    assert len(by_batch.unique()) == 1


@pytest.mark.parametrize("unit", ["token", "sequence", "batch"])
def test_ratios_one_and_zero_leave_nothing_to_chance(unit):
    shape = (16, 30)
    assert TeacherForcing(start=1.0, unit=unit).mask(shape, 1, 1, generator()).all()
    assert not TeacherForcing(start=0.0, unit=unit).mask(shape, 1, 1, generator()).any()


def test_a_mask_is_repeated_by_the_same_generator_state():
    forcing = TeacherForcing(start=0.5)
    first, second = (forcing.mask((4, 9), 3, 9, generator(7)) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("true", TeacherForcing(start=1.0)),
        ("own", TeacherForcing(start=0.0)),
        ("0.3", TeacherForcing(start=0.3)),
        ("1", TeacherForcing(start=1.0)),
        (" Linear:1:0 ", TeacherForcing(schedule="linear", start=1.0, end=0.0)),
        ("linear:0.123456789:0.5", TeacherForcing(schedule="linear", start=0.123456789, end=0.5)),
        ("0.5@sequence", TeacherForcing(start=0.5, unit="sequence")),
        ("linear:1:0@batch", TeacherForcing(schedule="linear", start=1, end=0, unit="batch")),
        ("exponential:1:0.2", TeacherForcing(schedule="exponential", start=1, end=0.2)),
        ("exponential:1:0:0.999", TeacherForcing(schedule="exponential", start=1, end=0, k=0.999)),
        (
            "inverse-sigmoid:1:0:40@sequence",
            TeacherForcing(schedule="inverse-sigmoid", start=1, end=0, k=40, unit="sequence"),
        ),
    ],
)
def test_texts_are_read_and_written_back(text, expected):
    assert TeacherForcing.parse(text) == expected
    assert TeacherForcing.parse(expected.to_text()) == expected


def test_texts_are_short():
    assert TeacherForcing(schedule="linear", start=1.0, end=0.0).to_text() == "linear:1:0"
    assert TeacherForcing(start=1.0).to_text() == "true"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "truth",
        "1.5",
        "-0.1",
        "nan",
        "linear",
        "linear:1",
        "linear:1:x",
        "linear:1:0:3",
        "exponential:1:0:2",
        "inverse-sigmoid:1:0:0.5",
        "exponential:1:0:0.9:4",
        "spiral:1:0",
        "0.5@bar",
    ],
)
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match="teacher"):
        TeacherForcing.parse(text)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"start": 1.2}, "ratio from 0 to 1, got 1.2"),
        ({"start": "0.5"}, "got '0.5'"),
        ({"schedule": "linear", "start": 1.0}, "needs an end"),
        ({"start": 1.0, "end": 0.0}, "takes no end, got 0.0"),
        ({"schedule": "spiral"}, "choose one of constant, linear"),
        ({"k": 0.5}, "constant teacher-forcing schedule takes no k"),
        ({"unit": "bar"}, "choose one of token, sequence, batch"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        TeacherForcing(**settings)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("true", "true s1 always"),
        ("own", "own draw of s1 always"),
        ("0.3", "with chance 0.3"),
        ("linear:1:0@sequence", "from 1 to 0 over the run (linear), decided once for each window"),
    ],
)
def test_the_description_is_one_sentence(text, part):
    sentence = TeacherForcing.parse(text).describe()
    assert part in sentence
    assert sentence.endswith(".")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("true", "always reads the true past"),
        ("linear:1:1", "always reads the true past"),
        ("0.7@sequence", "the true one with chance 0.7, decided once for each window"),
        ("exponential:1:0", "goes from 1 to 0 over the run (exponential)"),
    ],
)
def test_history_is_described_in_a_sentence_of_its_own(text, part):
    sentence = TeacherForcing.parse(text).describe_history()
    assert part in sentence
    assert sentence.endswith(".")
