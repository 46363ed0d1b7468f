"""Three sets of settings to start from, each with what it costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kronos_core.training.config import TrainingConfig
from kronos_core.training.options import TokenizerStage
from kronos_core.training.teacher_forcing import TeacherForcing


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """A name, one sentence on what it is for, what it costs, and its settings for a model.

    ``settings`` takes the model's context in bars.
    """

    title: str
    description: str
    cost: str
    settings: Callable[[int], TrainingConfig]


def quick(max_context: int = 512) -> TrainingConfig:
    """200 updates of 32 windows: at 128 + 16 bars 0.9 million tokens, whatever the dataset."""
    settings = TrainingConfig(steps=200, evaluations_per_epoch=5, max_validation_windows=64)
    return _fitting(settings, max_context)


def balanced(max_context: int = 512) -> TrainingConfig:
    """Three passes over every window, the release's settings: 429 tokens per bar at 128 + 16."""
    return _fitting(TrainingConfig(epochs=3, patience=6), max_context)


def thorough(max_context: int = 512) -> TrainingConfig:
    """A pass of the tokenizer and up to ten of the predictor: at most about four times balanced.

    ε falls from truth to own draws, the weights are averaged, and eight evaluations without a
    better one end a stage early.
    """
    settings = TrainingConfig(
        epochs=10,
        tokenizer=TokenizerStage(),
        teacher_forcing=TeacherForcing(schedule="inverse-sigmoid", start=1.0, end=0.0),
        ema=0.999,
        patience=8,
        max_validation_windows=512,
    )
    return _fitting(settings, max_context)


PRESETS = {
    "quick": Preset(
        title="Quick",
        description="A first look at whether the data teaches the model anything.",
        cost="200 updates of 32 windows, about 0.9 million tokens, whatever the dataset.",
        settings=quick,
    ),
    "balanced": Preset(
        title="Balanced",
        description="The settings of the release, for everyday fine-tuning.",
        cost="3 passes over every window: about 430 tokens of training per bar of the dataset.",
        settings=balanced,
    ),
    "thorough": Preset(
        title="Thorough",
        description="Tunes the tokenizer too, then goes from truth to own draws until nothing "
        "improves.",
        cost="Up to 10 passes and one of the tokenizer: at most about 4 times Balanced.",
        settings=thorough,
    ),
}


def _fitting(settings: TrainingConfig, max_context: int) -> TrainingConfig:
    """The settings with a window that the model takes; the horizon at most half of it."""
    longest = max_context + 1
    horizon = min(settings.horizon, longest // 3)
    return replace(settings, horizon=horizon, context=min(settings.context, longest - horizon))
