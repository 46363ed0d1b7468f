import json
import math

import pytest
import torch

from kronos_core.training.config import TrainingConfig, is_evaluation, learning_rate, plan
from kronos_core.training.teacher_forcing import TeacherForcing


def test_settings_survive_json():
    config = TrainingConfig(
        context=40,
        betas=(0.8, 0.9),
        teacher_forcing=TeacherForcing(schedule="linear", start=1.0, end=0.2, unit="sequence"),
    )
    assert TrainingConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_absent_settings_keep_their_defaults():
    assert TrainingConfig.from_dict({"epochs": 7}) == TrainingConfig(epochs=7)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epoch": 3}, "unknown training setting epoch; known are context"),
        ({"teacher_forcing": {"ratio": 0.3}}, "unknown teacher-forcing key ratio"),
        ({"teacher_forcing": "true"}, "teacher_forcing must be"),
    ],
)
def test_unknown_settings_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        TrainingConfig.from_dict(values)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("context", 1),
        ("horizon", 0),
        ("epochs", 0),
        ("epochs", 1.5),
        ("batch_size", True),
        ("stride", 0),
        ("seed", -1),
        ("evaluations_per_epoch", 0),
        ("max_validation_windows", 0),
        ("learning_rate", 0.0),
        ("learning_rate", math.nan),
        ("learning_rate", math.inf),
        ("weight_decay", -0.1),
        ("clip_norm", 0),
        ("warmup", 1.0),
        ("validation_fraction", 0.0),
        ("test_fraction", 1.0),
        ("betas", (0.9, 1.0)),
        ("betas", 0.9),
        ("teacher_forcing", "true"),
        ("device", ""),
    ],
)
def test_a_value_out_of_range_is_named(name, value):
    with pytest.raises(ValueError, match=name):
        TrainingConfig(**{name: value})


def test_fractions_must_leave_something_to_train_on():
    with pytest.raises(ValueError, match=r"0\.6 and test_fraction 0\.4 leave nothing"):
        TrainingConfig(validation_fraction=0.6, test_fraction=0.4)


def test_plan_counts_windows_steps_and_tokens():
    config = TrainingConfig(context=20, horizon=4, epochs=3, batch_size=16)
    counted = plan(600, config, max_context=64)
    assert counted.train_windows == len(counted.split.train)
    assert counted.validation_windows == len(counted.split.validation) > 0
    assert counted.test_windows == len(counted.split.test) > 0
    assert counted.steps_per_epoch == math.ceil(counted.train_windows / 16)
    assert counted.total_steps == 3 * counted.steps_per_epoch
    assert counted.tokens_per_epoch == counted.train_windows * 23


def test_a_window_may_be_one_bar_longer_than_the_models_context():
    config = TrainingConfig(context=61, horizon=4, batch_size=1)
    plan(600, config, max_context=64)
    with pytest.raises(ValueError, match=r"66 bars.*context of 64.*most 65.*by 1 bars"):
        plan(600, TrainingConfig(context=62, horizon=4, batch_size=1), max_context=64)


def test_too_few_bars_are_refused_with_numbers():
    with pytest.raises(ValueError, match=r"100 bars"):
        plan(100, TrainingConfig(context=64, horizon=8), max_context=512)


def test_fewer_windows_than_a_batch_are_refused_with_numbers():
    config = TrainingConfig(context=20, horizon=4, batch_size=512)
    with pytest.raises(ValueError, match=r"200 bars give \d+ training windows.*batch of 512"):
        plan(200, config, max_context=64)


@pytest.mark.parametrize("total", [20, 100, 999])
def test_the_learning_rate_equals_torchs_one_cycle(total):
    config = TrainingConfig(learning_rate=3e-4, warmup=0.2)
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    torchs = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, max_lr=3e-4, total_steps=total, pct_start=0.2, div_factor=10
    )
    for step in range(1, total + 1):
        expected = torchs.get_last_lr()[0]
        assert learning_rate(step, total, config) == pytest.approx(expected, rel=1e-9)
        optimiser.step()
        if step < total:
            torchs.step()


@pytest.mark.parametrize("total", [1, 2, 3, 33, 34])
def test_the_learning_rate_is_positive_in_the_shortest_runs(total):
    config = TrainingConfig(learning_rate=1e-3)
    rates = [learning_rate(step, total, config) for step in range(1, total + 1)]
    assert all(0 < rate <= 1e-3 for rate in rates)


@pytest.mark.parametrize("steps_per_epoch", [1, 3, 4, 10, 101])
def test_evaluations_are_spread_over_an_epoch_and_close_it(steps_per_epoch):
    config = TrainingConfig(evaluations_per_epoch=4)
    steps = range(1, 2 * steps_per_epoch + 1)
    chosen = [step for step in steps if is_evaluation(step, steps_per_epoch, config)]
    assert len(chosen) == 2 * min(4, steps_per_epoch)
    assert {steps_per_epoch, 2 * steps_per_epoch} <= set(chosen)
