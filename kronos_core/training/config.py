"""Settings of a fine-tuning run, and what they mean for a dataset of a given length."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from kronos_core.data.windows import WindowSplit, split_windows
from kronos_core.training.teacher_forcing import TeacherForcing

START_DIVISOR = 10.0
FINAL_DIVISOR = 1e4

_MINIMA = {
    "context": 2,
    "horizon": 1,
    "epochs": 1,
    "batch_size": 1,
    "stride": 1,
    "seed": 0,
    "evaluations_per_epoch": 1,
    "max_validation_windows": 1,
}

_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "learning_rate": (lambda value: 0 < value < math.inf, "greater than 0"),
    "weight_decay": (lambda value: 0 <= value < math.inf, "at least 0"),
    "clip_norm": (lambda value: 0 < value < math.inf, "greater than 0"),
    "warmup": (lambda value: 0 <= value < 1, "a share of the steps, from 0 to below 1"),
    "validation_fraction": (lambda value: 0 < value < 1, "between 0 and 1"),
    "test_fraction": (lambda value: 0 <= value < 1, "from 0 to below 1"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """Settings of the predictor stage; lengths in bars, fractions of the bars by time.

    The defaults are the release's fine-tuning settings where it has them.

    Raises:
        ValueError: a value outside its range; the message names the setting and the range.
    """

    context: int = 128
    horizon: int = 16
    epochs: int = 3
    batch_size: int = 32
    learning_rate: float = 4e-5
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip_norm: float = 3.0
    warmup: float = 0.03
    stride: int = 1
    validation_fraction: float = 0.1
    test_fraction: float = 0.1
    teacher_forcing: TeacherForcing = field(default_factory=TeacherForcing)
    seed: int = 0
    device: str = "auto"
    evaluations_per_epoch: int = 4
    max_validation_windows: int = 256

    def __post_init__(self) -> None:
        for name, minimum in _MINIMA.items():
            _require_whole(name, getattr(self, name), minimum)
        for name, (allowed, wording) in _RANGES.items():
            _require_number(name, getattr(self, name), allowed, wording)
        _require_betas(self.betas)
        if self.validation_fraction + self.test_fraction >= 1:
            raise ValueError(
                f"validation_fraction {self.validation_fraction} and test_fraction "
                f"{self.test_fraction} leave nothing to train on; their sum must be below 1"
            )
        if not isinstance(self.teacher_forcing, TeacherForcing):
            raise ValueError(
                f"teacher_forcing must be a TeacherForcing, got {self.teacher_forcing!r}"
            )
        if not isinstance(self.device, str) or not self.device:
            raise ValueError(f'device must be a name such as "auto" or "cpu", got {self.device!r}')

    @property
    def window(self) -> int:
        """Bars in one training window."""
        return self.context + self.horizon

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe; ``from_dict`` of it is equal to self."""
        return {**asdict(self), "betas": list(self.betas)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainingConfig:
        """Settings that are absent keep their defaults.

        Raises:
            ValueError: an unknown setting, or a value outside its range.
        """
        known = _only_known(cls, values, "training setting")
        forcing = known.get("teacher_forcing")
        if isinstance(forcing, Mapping):
            only = _only_known(TeacherForcing, forcing, "teacher-forcing key")
            known["teacher_forcing"] = TeacherForcing(**only)
        if isinstance(known.get("betas"), list):
            known["betas"] = tuple(known["betas"])
        return cls(**known)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a run will do: its windows by split and its steps. A token is one bar position."""

    split: WindowSplit
    steps_per_epoch: int
    total_steps: int
    train_windows: int
    validation_windows: int
    test_windows: int
    tokens_per_epoch: int


def plan(bars: int, config: TrainingConfig, max_context: int) -> Plan:
    """Windows and steps for a series of ``bars`` bars on a model that reads ``max_context`` bars.

    Raises:
        ValueError: the run cannot work; the message has the numbers and what to change.
    """
    _require_fitting_window(config, max_context)
    split = split_windows(
        bars,
        context=config.context,
        horizon=config.horizon,
        stride=config.stride,
        validation_fraction=config.validation_fraction,
        test_fraction=config.test_fraction,
    )
    windows = len(split.train)
    if windows < config.batch_size:
        raise ValueError(
            f"{bars} bars give {windows} training windows, fewer than one batch of "
            f"{config.batch_size}; lower the batch size to {windows} or less, shorten context "
            f"{config.context} or horizon {config.horizon}, or use more bars"
        )
    steps_per_epoch = math.ceil(windows / config.batch_size)
    return Plan(
        split=split,
        steps_per_epoch=steps_per_epoch,
        total_steps=steps_per_epoch * config.epochs,
        train_windows=windows,
        validation_windows=len(split.validation),
        test_windows=len(split.test),
        tokens_per_epoch=windows * (config.window - 1),
    )


def learning_rate(step: int, total_steps: int, config: TrainingConfig) -> float:
    """OneCycle with cosine arms at update ``step`` of 1..total_steps (Smith & Topin 2017).

    Rises from a tenth of the setting over the warm-up share, then falls towards zero.
    """
    peak = config.learning_rate
    start, final = peak / START_DIVISOR, peak / START_DIVISOR / FINAL_DIVISOR
    top, last, now = config.warmup * total_steps - 1, total_steps - 1, step - 1
    if now < top:
        return _cosine(start, peak, now / top)
    return _cosine(peak, final, (now - top) / max(last - top, 1e-9))


def _cosine(start: float, end: float, fraction: float) -> float:
    return end + (start - end) / 2 * (1 + math.cos(math.pi * fraction))


def is_evaluation(step: int, steps_per_epoch: int, config: TrainingConfig) -> bool:
    """Whether the model is evaluated after ``step``; the last step of an epoch always is."""
    times = config.evaluations_per_epoch
    position = (step - 1) % steps_per_epoch + 1
    return position in {math.ceil(turn * steps_per_epoch / times) for turn in range(1, times + 1)}


def _require_fitting_window(config: TrainingConfig, max_context: int) -> None:
    # The last bar of a window is only ever a target, so one bar more than the context fits.
    longest = max_context + 1
    if config.window > longest:
        raise ValueError(
            f"context {config.context} and horizon {config.horizon} make a window of "
            f"{config.window} bars, but a model with a context of {max_context} bars takes at "
            f"most {longest}; shorten the context or the horizon by {config.window - longest} bars"
        )


def _only_known(owner: type, values: Mapping[str, Any], what: str) -> dict[str, Any]:
    names = [item.name for item in fields(owner)]
    unknown = sorted(set(values) - set(names))
    if unknown:
        raise ValueError(f"unknown {what} {', '.join(unknown)}; known are {', '.join(names)}")
    return dict(values)


def _require_whole(name: str, value: Any, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ValueError(f"{name} must be a whole number of at least {minimum}, got {value!r}")


def _require_number(name: str, value: Any, allowed: Callable[[float], bool], wording: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not allowed(value):
        raise ValueError(f"{name} must be {wording}, got {value!r}")


def _require_betas(betas: Any) -> None:
    if not isinstance(betas, tuple) or len(betas) != 2:
        raise ValueError(f"betas must be two numbers, got {betas!r}")
    for beta in betas:
        _require_number("betas", beta, lambda value: 0 <= value < 1, "from 0 to below 1 each")
