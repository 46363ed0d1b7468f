"""The parts of a run's settings that may be left out: datasets, tokenizer stage, adapters."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kronos_core.training.checks import Range, require_number, require_whole

POSITIVE: Range = (lambda value: 0 < value < math.inf, "greater than 0")
NOT_NEGATIVE: Range = (lambda value: 0 <= value < math.inf, "at least 0")
SHARE: Range = (lambda value: 0 <= value < 1, "from 0 to below 1")
WEIGHT: Range = (lambda value: 0 < value <= 100, "greater than 0 and at most 100")

LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "out_proj", "w1", "w2", "w3")


@dataclass(frozen=True, kw_only=True, slots=True)
class DataShare:
    """One dataset of a run: its name or id, and how often an epoch shows each of its windows.

    Weight 1 shows every window once an epoch, 3 three times, 0.5 half of them in turn.

    Raises:
        ValueError: an empty name, a weight outside (0, 100].
    """

    name: str
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"the name of a dataset must be a text, got {self.name!r}")
        require_number(f"weight of dataset {self.name}", self.weight, WEIGHT)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerStage:
    """Settings of the tokenizer stage; the defaults are the release's, for one epoch.

    Windows, batches, warm-up, schedule, EMA and patience are those of the whole run. ``steps``,
    if given, counts updates instead of epochs.

    Raises:
        ValueError: a value outside its range.
    """

    epochs: int = 1
    steps: int | None = None
    learning_rate: float = 2e-4
    weight_decay: float = 0.1
    clip_norm: float = 2.0

    def __post_init__(self) -> None:
        require_whole("tokenizer epochs", self.epochs, 1)
        if self.steps is not None:
            require_whole("tokenizer steps", self.steps, 1)
        require_number("tokenizer learning_rate", self.learning_rate, POSITIVE)
        require_number("tokenizer weight_decay", self.weight_decay, NOT_NEGATIVE)
        require_number("tokenizer clip_norm", self.clip_norm, POSITIVE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lora:
    """Low-rank adapters (Hu et al. 2021): W stays, W + (alpha / rank)·B·A is trained through A, B.

    ``targets`` are names of linear layers, wherever they occur in the predictor.

    Raises:
        ValueError: a value outside its range, an unknown target.
    """

    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    targets: tuple[str, ...] = ("q_proj", "v_proj")

    def __post_init__(self) -> None:
        require_whole("lora rank", self.rank, 1)
        require_number("lora alpha", self.alpha, POSITIVE)
        require_number("lora dropout", self.dropout, SHARE)
        if not isinstance(self.targets, tuple) or not self.targets:
            raise ValueError(f"lora targets must be a list of layer names, got {self.targets!r}")
        unknown = [str(target) for target in self.targets if target not in LORA_TARGETS]
        if unknown:
            raise ValueError(
                f"unknown lora target {', '.join(unknown)}; choose from {', '.join(LORA_TARGETS)}"
            )
