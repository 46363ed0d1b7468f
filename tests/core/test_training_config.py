import json
import math
from dataclasses import replace

import pandas as pd
import pytest
import torch

from kronos_core.training.config import (
    TrainingConfig,
    is_evaluation,
    learning_rate,
    plan,
    tokenizer_share,
)
from kronos_core.training.options import DataShare, Lora, TokenizerStage
from kronos_core.training.presets import PRESETS
from kronos_core.training.rates import RATES
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
        ({"epoch": 3}, r"setting epoch \(did you mean epochs\?\); known are context"),
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
        ("steps", 0),
        ("micro_batch", 33),
        ("schedule", "step"),
        ("dropout", 1.0),
        ("ema", 1.0),
        ("patience", 0),
        ("frozen_blocks", -1),
        ("freeze_embeddings", 1),
        ("history", 0.5),
        ("lora", 8),
        ("tokenizer", True),
        ("data", ("a",)),
        ("validation_from", "soon"),
        ("validation_from", 2024),
        ("test_from", "2024-01-01"),
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


FULL = TrainingConfig(
    history=TeacherForcing.parse("inverse-sigmoid:1:0.5:30"),
    steps=500,
    micro_batch=8,
    schedule="cosine",
    dropout=0.1,
    patience=5,
    ema=0.999,
    frozen_blocks=2,
    freeze_embeddings=True,
    lora=Lora(rank=4, targets=("q_proj", "w1")),
    tokenizer=TokenizerStage(steps=50),
    data=(DataShare(name="S&P 500"), DataShare(name="Näsdaq", weight=2.5)),
    validation_from="2023-01-01",
    test_from="2024-01-01 09:30",
)


@pytest.mark.parametrize("config", [TrainingConfig(), FULL])
def test_settings_survive_json_and_yaml(config):
    assert TrainingConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert TrainingConfig.from_yaml(config.to_yaml()) == config


def test_settings_stored_by_the_first_version_still_load():
    stored = {
        "context": 64, "horizon": 8, "epochs": 2, "batch_size": 16, "learning_rate": 1e-4,
        "weight_decay": 0.1, "betas": [0.9, 0.95], "clip_norm": 3.0, "warmup": 0.03, "stride": 1,
        "validation_fraction": 0.1, "test_fraction": 0.1, "seed": 3, "device": "cpu",
        "teacher_forcing": {"schedule": "linear", "start": 1.0, "end": 0.0, "unit": "token"},
        "evaluations_per_epoch": 4, "max_validation_windows": 256,
    }  # fmt: skip
    config = TrainingConfig.from_dict(stored)
    assert config.teacher_forcing == TeacherForcing.parse("linear:1:0")
    assert config.history.always_true
    assert (config.tokenizer, config.lora, config.ema, config.data) == (None, None, None, ())
    assert {name: config.to_dict()[name] for name in stored if name != "teacher_forcing"} == {
        name: value for name, value in stored.items() if name != "teacher_forcing"
    }


def test_yaml_written_by_hand_is_understood():
    text = """
    # a comment
    learning_rate: 1e-4
    validation_from: 2023-06-30
    lora: {rank: 4}
    data:
      - name: gold
      - {name: silver, weight: 2}
    """
    config = TrainingConfig.from_yaml(text)
    assert config.learning_rate == 1e-4
    assert config.validation_from == "2023-06-30"
    assert config.lora == Lora(rank=4)
    assert config.data == (DataShare(name="gold"), DataShare(name="silver", weight=2))
    assert TrainingConfig.from_yaml("") == TrainingConfig()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs: 3\nepochs: 4", "line 2 sets epochs a second time"),
        ("epochs: [1", "not valid YAML, line 1, column"),
        ("- epochs", "must be lines of"),
        ("epoch: 3", r"epoch \(did you mean epochs\?\)"),
        ("epochs: many", "epochs must be a whole number of at least 1, got 'many'"),
        ("lora: {size: 3}", "unknown lora setting size"),
        ("tokenizer: {epochs: 0}", "tokenizer epochs must be"),
        ("data: [{weight: 2}]", "needs a name"),
        ("data: [{name: a}, {name: a}]", "names a dataset twice"),
        ("data: [{name: a, weight: 0}]", "weight of dataset a must be greater than 0"),
        ("lora: {targets: [head]}", "unknown lora target head"),
        ("a: !!python/object:os.system {}", "not valid YAML"),
    ],
)
def test_yaml_that_is_wrong_is_refused_with_the_place(text, message):
    with pytest.raises(ValueError, match=message):
        TrainingConfig.from_yaml(text)


# Steps and stages


def test_steps_replace_epochs_and_stages_add_up():
    config = TrainingConfig(context=20, horizon=4, steps=7, tokenizer=TokenizerStage(epochs=2))
    counted = plan(600, config, max_context=64)
    assert counted.predictor_steps == 7
    assert counted.tokenizer_steps == 2 * counted.steps_per_epoch
    assert counted.total_steps == 7 + counted.tokenizer_steps


def test_a_stage_shorter_than_an_epoch_is_evaluated_within_it():
    config = TrainingConfig(evaluations_per_epoch=4)
    chosen = [step for step in range(1, 11) if is_evaluation(step, 1000, config, 10)]
    assert chosen == [3, 5, 8, 10]


def test_the_last_step_is_evaluated():
    config = TrainingConfig(evaluations_per_epoch=1)
    assert [step for step in range(1, 14) if is_evaluation(step, 5, config, 13)] == [5, 10, 13]


@pytest.mark.parametrize("tokenizer", [None, TokenizerStage(epochs=2), TokenizerStage(steps=5)])
@pytest.mark.parametrize("steps", [None, 7])
def test_the_steps_of_a_plan_tell_the_stages_apart(tokenizer, steps):
    config = TrainingConfig(context=20, horizon=4, epochs=3, steps=steps, tokenizer=tokenizer)
    counted = plan(600, config, max_context=64)
    assert tokenizer_share(config, counted.total_steps) == counted.tokenizer_steps


def test_weights_count_in_the_plan():
    data = (DataShare(name="a", weight=2.0), DataShare(name="b"))
    config = TrainingConfig(context=20, horizon=4, data=data)
    counted = plan([600, 400], config, max_context=64)
    first, second = (len(split.train) for split in counted.splits)
    assert counted.windows_per_epoch == 2 * first + second
    assert counted.train_windows == first + second
    assert counted.shares == pytest.approx(
        (2 * first / (2 * first + second), 1 - counted.shares[0])
    )


# Split by date


def hours(count: int, zone: str | None = "UTC") -> pd.DatetimeIndex:
    return pd.date_range("2024-01-01", periods=count, freq="h", tz=zone)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", None])
def test_a_split_by_date_keeps_the_gap_and_straddles_nothing(zone):
    config = TrainingConfig(
        context=20,
        horizon=4,
        batch_size=8,
        validation_from="2024-01-09",
        test_from="2024-01-12",
    )
    times = hours(400, zone)
    split = plan(times, config, max_context=64).split
    assert times[split.validation[0]] == pd.Timestamp("2024-01-09", tz=zone)
    assert times[split.test[0]] == pd.Timestamp("2024-01-12", tz=zone)
    assert split.train[-1] + config.window + config.horizon == split.validation[0]
    assert split.validation[-1] + config.window + config.horizon == split.test[0]
    assert split.test[-1] + config.window == len(times)


def test_a_split_by_date_without_test_uses_all_bars():
    config = TrainingConfig(
        context=20, horizon=4, batch_size=8, validation_from="2024-01-09T05:00Z"
    )
    split = plan(hours(300), config, max_context=64).split
    assert len(split.test) == 0
    assert split.validation[0] == 8 * 24 + 5
    assert split.validation[-1] + config.window == 300


def test_a_date_that_leaves_a_part_empty_is_refused_with_numbers():
    config = TrainingConfig(context=20, horizon=4, batch_size=8, validation_from="2024-01-02")
    with pytest.raises(ValueError, match="training part has 20 bars, fewer than one window of 24"):
        plan(hours(300), config, max_context=64)
    late = replace(config, validation_from="2025-01-02")
    with pytest.raises(ValueError, match="validation part has 0 bars"):
        plan(hours(300), late, max_context=64)
    with pytest.raises(ValueError, match="needs the timestamps"):
        plan(300, config, max_context=64)


# Rates and presets


@pytest.mark.parametrize("name", RATES)
@pytest.mark.parametrize("warmup", [0.0, 0.1])
@pytest.mark.parametrize("total", [1, 2, 10, 1000])
def test_every_rate_is_positive_and_at_most_the_peak(name, warmup, total):
    factors = [RATES[name](step, total, warmup) for step in range(1, total + 1)]
    assert all(0 < factor <= 1 for factor in factors)
    if total == 1000:
        assert max(factors) == pytest.approx(1.0, abs=1e-3)
        assert (factors[-1] == 1) == (name == "constant")
        assert (factors[0] < 0.2) == (warmup > 0)


def test_cosine_equals_its_formula():
    for step in range(101, 1001):
        expected = (1 + math.cos(math.pi * (step - 101) / 900)) / 2
        assert RATES["cosine"](step, 1000, 0.1) == pytest.approx(expected)


@pytest.mark.parametrize("key", PRESETS)
@pytest.mark.parametrize("max_context", [64, 256, 2048])
def test_presets_fit_the_model_and_state_their_cost(key, max_context):
    preset = PRESETS[key]
    config = preset.settings(max_context)
    assert config.window <= max_context + 1
    assert TrainingConfig.from_yaml(config.to_yaml()) == config
    assert any(digit.isdigit() for digit in preset.cost)


def test_presets_cost_what_they_say():
    quick, balanced, thorough = (
        plan(20_000, PRESETS[key].settings(512), 512) for key in ("quick", "balanced", "thorough")
    )
    assert quick.total_steps * 32 * 143 == pytest.approx(0.9e6, rel=0.05)
    tokens = 3 * balanced.tokens_per_epoch / (balanced.train_windows)
    assert tokens == pytest.approx(430, rel=0.01)
    assert thorough.total_steps / balanced.total_steps == pytest.approx(4, rel=0.1)
