"""Settings of a fine-tuning run, and what they mean for datasets of given lengths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, get_args

import pandas as pd

from kronos_core.data.windows import WindowSplit, split_windows, split_windows_at
from kronos_core.training.checks import (
    Range,
    only_known,
    require_number,
    require_one_of,
    require_switch,
    require_type,
    require_whole,
)
from kronos_core.training.options import (
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    DataShare,
    Lora,
    TokenizerStage,
)
from kronos_core.training.rates import RATES, RateSchedule
from kronos_core.training.sampler import quotas
from kronos_core.training.teacher_forcing import TeacherForcing
from kronos_core.training.yaml_text import read_yaml, write_yaml

_MINIMA = {
    "context": 2,
    "horizon": 1,
    "epochs": 1,
    "steps": 1,
    "batch_size": 1,
    "micro_batch": 1,
    "stride": 1,
    "seed": 0,
    "evaluations_per_epoch": 1,
    "max_validation_windows": 1,
    "patience": 1,
    "frozen_blocks": 0,
}

_FRACTION: Range = (lambda value: 0 < value < 1, "between 0 and 1")
_RANGES: dict[str, Range] = {
    "learning_rate": POSITIVE,
    "weight_decay": NOT_NEGATIVE,
    "clip_norm": POSITIVE,
    "warmup": (SHARE[0], "a share of the steps, from 0 to below 1"),
    "validation_fraction": _FRACTION,
    "test_fraction": SHARE,
    "dropout": SHARE,
    "ema": _FRACTION,
}

_OPTIONAL = ("steps", "micro_batch", "patience", "dropout", "ema")
_SWITCHES = ("freeze_embeddings", "halve_on_out_of_memory")
_NESTED: dict[str, type] = {
    "teacher_forcing": TeacherForcing,
    "history": TeacherForcing,
    "tokenizer": TokenizerStage,
    "lora": Lora,
}

Bars = int | pd.DatetimeIndex
"""A series as the plan sees it: its length, or its timestamps (a split by date needs them)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """Settings of a run; lengths in bars, fractions of the bars by time.

    The defaults are the release's fine-tuning settings where it has them. What is None is off.

    tokenizer: settings of a first stage that fine-tunes the tokenizer. data: the datasets with
    their weights; () means one. validation_from, test_from: ISO dates or times, in the bars' own
    zone if they have none, of the first bars of these parts; they replace the fractions, and
    without test_from there is no test part. steps: updates, instead of epochs. batch_size:
    windows per update; micro_batch: windows computed at once (None: all), gradients accumulated.
    teacher_forcing: what conditions s2; history: what the inputs hold. dropout: overrides the
    predictor's own rates. patience: evaluations without a better one that end a stage. ema: decay
    of the averaged weights, which are then the ones evaluated and saved. frozen_blocks: first
    transformer blocks, and freeze_embeddings: token and time embeddings, that are not trained.

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
    history: TeacherForcing = field(default_factory=lambda: TeacherForcing(start=1.0))
    steps: int | None = None
    micro_batch: int | None = None
    halve_on_out_of_memory: bool = True
    schedule: RateSchedule = "onecycle"
    dropout: float | None = None
    patience: int | None = None
    ema: float | None = None
    frozen_blocks: int = 0
    freeze_embeddings: bool = False
    lora: Lora | None = None
    tokenizer: TokenizerStage | None = None
    data: tuple[DataShare, ...] = ()
    validation_from: str | None = None
    test_from: str | None = None

    def __post_init__(self) -> None:
        self._check_values()
        require_type("teacher_forcing", self.teacher_forcing, TeacherForcing)
        require_type("history", self.history, TeacherForcing)
        if self.tokenizer is not None:
            require_type("tokenizer", self.tokenizer, TokenizerStage)
        if self.lora is not None:
            require_type("lora", self.lora, Lora)
        _require_betas(self.betas)
        _require_data(self.data)
        self._check_split()
        if self.micro_batch is not None and self.micro_batch > self.batch_size:
            raise ValueError(
                f"micro_batch {self.micro_batch} is larger than batch_size {self.batch_size}; "
                "leave it out to compute a batch at once"
            )

    def _check_values(self) -> None:
        for name, minimum in _MINIMA.items():
            if name not in _OPTIONAL or getattr(self, name) is not None:
                require_whole(name, getattr(self, name), minimum)
        for name, allowed in _RANGES.items():
            if name not in _OPTIONAL or getattr(self, name) is not None:
                require_number(name, getattr(self, name), allowed)
        for name in _SWITCHES:
            require_switch(name, getattr(self, name))
        require_one_of("schedule", self.schedule, get_args(RateSchedule))
        if not isinstance(self.device, str) or not self.device:
            raise ValueError(f'device must be a name such as "auto" or "cpu", got {self.device!r}')

    def _check_split(self) -> None:
        if self.validation_fraction + self.test_fraction >= 1:
            raise ValueError(
                f"validation_fraction {self.validation_fraction} and test_fraction "
                f"{self.test_fraction} leave nothing to train on; their sum must be below 1"
            )
        for name in ("validation_from", "test_from"):
            if getattr(self, name) is not None:
                _moment(name, getattr(self, name))
        if self.test_from is not None and self.validation_from is None:
            raise ValueError("test_from needs validation_from: give both dates of the split")

    @property
    def window(self) -> int:
        """Bars in one training window."""
        return self.context + self.horizon

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe; ``from_dict`` of it is equal to self."""
        plain: dict[str, Any] = _without_tuples(asdict(self))
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainingConfig:
        """Settings that are absent keep their defaults.

        Raises:
            ValueError: an unknown setting, or a value outside its range.
        """
        known = only_known(cls, values, "training setting")
        for name, kind in _NESTED.items():
            if isinstance(known.get(name), Mapping):
                known[name] = _built(kind, known[name], name)
        if isinstance(known.get("betas"), list):
            known["betas"] = tuple(known["betas"])
        if isinstance(known.get("data"), list | tuple):
            known["data"] = tuple(
                _built(DataShare, item, "data") if isinstance(item, Mapping) else item
                for item in known["data"]
            )
        return cls(**known)

    def to_yaml(self) -> str:
        """All settings as a YAML document that ``from_yaml`` reads back as an equal config."""
        return write_yaml(self.to_dict())

    @classmethod
    def from_yaml(cls, text: str) -> TrainingConfig:
        """Settings that are absent keep their defaults.

        Raises:
            ValueError: text that is no YAML (with the line), an unknown or repeated setting, a
                value outside its range.
        """
        return cls.from_dict(read_yaml(text))


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a run will do: its windows by split and its steps. A token is one bar position.

    splits: one per dataset; the counts run over all of them. train_windows counts each window
    once, windows_per_epoch as often as an epoch shows it. shares: each dataset's part of an
    epoch. total_steps: those of both stages.
    """

    splits: tuple[WindowSplit, ...]
    steps_per_epoch: int
    tokenizer_steps: int
    predictor_steps: int
    train_windows: int
    validation_windows: int
    test_windows: int
    windows_per_epoch: int
    tokens_per_epoch: int
    shares: tuple[float, ...]

    @property
    def split(self) -> WindowSplit:
        """The windows of the first dataset."""
        return self.splits[0]

    @property
    def total_steps(self) -> int:
        return self.tokenizer_steps + self.predictor_steps


def plan(series: Bars | Sequence[Bars], config: TrainingConfig, max_context: int) -> Plan:
    """Windows and steps for one or several series on a model that reads ``max_context`` bars.

    Raises:
        ValueError: the run cannot work; the message has the numbers and what to change.
    """
    each = [series] if isinstance(series, int | pd.DatetimeIndex) else list(series)
    weights = data_weights(config, len(each))
    require_fitting_window(config, max_context)
    splits = tuple(_split(item, config) for item in each)
    sizes = [len(split.train) for split in splits]
    windows = sum(sizes)
    if windows < config.batch_size:
        bars = sum(item if isinstance(item, int) else len(item) for item in each)
        raise ValueError(
            f"{bars} bars give {windows} training windows, fewer than one batch of "
            f"{config.batch_size}; lower the batch size to {windows} or less, shorten context "
            f"{config.context} or horizon {config.horizon}, or use more bars"
        )
    shown = quotas(sizes, weights)
    steps_per_epoch = math.ceil(sum(shown) / config.batch_size)
    stage = config.tokenizer
    return Plan(
        splits=splits,
        steps_per_epoch=steps_per_epoch,
        tokenizer_steps=0 if stage is None else stage.steps or stage.epochs * steps_per_epoch,
        predictor_steps=config.steps or config.epochs * steps_per_epoch,
        train_windows=windows,
        validation_windows=sum(len(split.validation) for split in splits),
        test_windows=sum(len(split.test) for split in splits),
        windows_per_epoch=sum(shown),
        tokens_per_epoch=sum(shown) * (config.window - 1),
        shares=tuple(count / sum(shown) for count in shown),
    )


def tokenizer_share(config: TrainingConfig, total_steps: int) -> int:
    """How many of a plan's ``total_steps`` are the tokenizer's."""
    stage = config.tokenizer
    if stage is None:
        return 0
    if stage.steps:
        return stage.steps
    if config.steps:
        return total_steps - config.steps
    return total_steps * stage.epochs // (stage.epochs + config.epochs)


def data_weights(config: TrainingConfig, series: int) -> list[float]:
    """The weight of each of ``series`` series; ValueError when ``config.data`` names others."""
    if not config.data:
        return [1.0] * series
    if len(config.data) != series:
        raise ValueError(f"the settings name {len(config.data)} datasets, but {series} are given")
    return [share.weight for share in config.data]


def learning_rate(step: int, total_steps: int, config: TrainingConfig) -> float:
    """The predictor's learning rate at update ``step`` of 1..total_steps."""
    factor = RATES[config.schedule](step, total_steps, config.warmup)
    return config.learning_rate * factor


def is_evaluation(
    step: int, steps_per_epoch: int, config: TrainingConfig, total_steps: int | None = None
) -> bool:
    """Whether the model is evaluated after ``step``; the last step of an epoch always is.

    In a stage shorter than an epoch the evaluations are spread over the ``total_steps``, and the
    last step of a stage always is one.
    """
    period = min(steps_per_epoch, total_steps or steps_per_epoch)
    times = config.evaluations_per_epoch
    position = (step - 1) % period + 1
    chosen = {math.ceil(turn * period / times) for turn in range(1, times + 1)}
    return position in chosen or step == total_steps


def require_fitting_window(config: TrainingConfig, max_context: int) -> None:
    # The last bar of a window is only ever a target, so one bar more than the context fits.
    longest = max_context + 1
    if config.window > longest:
        raise ValueError(
            f"context {config.context} and horizon {config.horizon} make a window of "
            f"{config.window} bars, but a model with a context of {max_context} bars takes at "
            f"most {longest}; shorten the context or the horizon by {config.window - longest} bars"
        )


def _split(series: Bars, config: TrainingConfig) -> WindowSplit:
    lengths = {
        "context": config.context,
        "horizon": config.horizon,
        "stride": config.stride,
    }
    if config.validation_from is None:
        return split_windows(
            series if isinstance(series, int) else len(series),
            validation_fraction=config.validation_fraction,
            test_fraction=config.test_fraction,
            **lengths,
        )
    if isinstance(series, int):
        raise ValueError("a split by date needs the timestamps of the bars, not their number")
    validation, test = (
        None if text is None else int(series.searchsorted(_in_zone(name, text, series)))
        for name, text in (
            ("validation_from", config.validation_from),
            ("test_from", config.test_from),
        )
    )
    assert validation is not None
    return split_windows_at(len(series), validation_start=validation, test_start=test, **lengths)


def _in_zone(name: str, text: str, series: pd.DatetimeIndex) -> pd.Timestamp:
    moment = _moment(name, text)
    if series.tz is None:
        return moment.tz_localize(None) if moment.tz is not None else moment
    return moment.tz_convert(series.tz) if moment.tz is not None else moment.tz_localize(series.tz)


def _moment(name: str, text: Any) -> pd.Timestamp:
    try:
        moment = pd.Timestamp(text) if isinstance(text, str) else None
    except ValueError:
        moment = None
    if moment is None or pd.isna(moment):
        raise ValueError(f'{name} must be a date such as "2024-06-30", got {text!r}')
    return moment


def _built(kind: type, values: Mapping[str, Any], name: str) -> Any:
    what = "teacher-forcing key" if kind is TeacherForcing else f"{name} setting"
    known = only_known(kind, values, what)
    if kind is Lora and isinstance(known.get("targets"), list):
        known["targets"] = tuple(known["targets"])
    if kind is DataShare and "name" not in known:
        raise ValueError(f"a dataset in data needs a name, got {dict(values)!r}")
    return kind(**known)


def _without_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_tuples(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_without_tuples(item) for item in value]
    return value


def _require_betas(betas: Any) -> None:
    if not isinstance(betas, tuple) or len(betas) != 2:
        raise ValueError(f"betas must be two numbers, got {betas!r}")
    for beta in betas:
        require_number("betas", beta, (SHARE[0], "from 0 to below 1 each"))


def _require_data(data: Any) -> None:
    if not isinstance(data, tuple) or not all(isinstance(item, DataShare) for item in data):
        raise ValueError(f"data must be a list of datasets with name and weight, got {data!r}")
    names = [item.name for item in data]
    if len(set(names)) < len(names):
        raise ValueError(f"data names a dataset twice: {', '.join(names)}; raise its weight")
