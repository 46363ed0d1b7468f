"""What a run reports, and to whom."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

Stage = Literal["tokenizer", "predictor"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricRow:
    """One training step or one evaluation of a stage. Steps count from 1 within their stage.

    Predictor: losses are mean cross-entropies in nats per token, total the mean of s1 and s2.
    Training rows use the step's own conditioning (epsilon) and history (epsilon_history, where a
    run has it). Validation rows have s2 on the true s1 and s2_own on the model's own draws;
    exposure_gap = s2_own − s2; s1_own is s1 on a past of own draws; horizon_loss is the total
    over the horizon's targets alone.

    Tokenizer: total = (coarse + fine + quantiser loss) / 2; coarse and fine are mean squared
    errors in normalised units, commitment and the entropies (nats) the unweighted terms of the
    quantiser loss; codebook_use is the share of the s1 and s2 vocabularies that occurs, their mean.

    memory_mb: MiB in use, the device's peak or the process's size on a CPU.
    """

    stage: Stage = "predictor"
    split: Literal["train", "validation"]
    step: int
    epoch: float
    total: float
    s1: float | None = None
    s2: float | None = None
    epsilon: float | None = None
    epsilon_history: float | None = None
    learning_rate: float | None = None
    grad_norm: float | None = None
    tokens_per_second: float | None = None
    memory_mb: float | None = None
    s2_own: float | None = None
    exposure_gap: float | None = None
    horizon_loss: float | None = None
    s1_own: float | None = None
    coarse: float | None = None
    fine: float | None = None
    commitment: float | None = None
    entropy_sample: float | None = None
    entropy_code: float | None = None
    codebook_use: float | None = None


class TrainingCallbacks(Protocol):
    """What a caller hears of a run and how it stops one.

    ``on_step`` counts the steps of all stages. The event "checkpoint" comes just before the state
    is written: a caller that buffers rows must store them before it returns, because a resumed run
    sends only what comes after the checkpoint.
    """

    def on_metric(self, row: MetricRow) -> None: ...
    def on_step(self, step: int, total: int, epoch: float) -> None: ...
    def on_event(self, kind: str, message: str) -> None: ...
    def should_stop(self) -> bool: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingResult:
    """How a run ended; step and total_steps count all stages.

    best_step and best_loss are of the predictor stage. bundle_folder holds the best weights, None
    before any evaluation of that stage.
    """

    outcome: Literal["finished", "stopped"]
    step: int
    total_steps: int
    best_step: int | None
    best_loss: float | None
    bundle_folder: Path | None
