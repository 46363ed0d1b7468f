"""The loop over the steps of a stage: micro-batches, guards, evaluations, checkpoints.

A step's randomness comes from states that are part of the checkpoint, and which windows it takes
follows from its number, so a resumed run on the CPU equals an uninterrupted one bit for bit.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from kronos_core.training.checkpoint import Checkpoint, save_checkpoint
from kronos_core.training.config import TrainingConfig, data_weights, is_evaluation
from kronos_core.training.losses import require_finite
from kronos_core.training.memory import OutOfMemory, free_memory, is_out_of_memory, memory_mb
from kronos_core.training.optimiser import Average, build_optimiser, trained
from kronos_core.training.randomness import Randomness
from kronos_core.training.rates import RATES
from kronos_core.training.rows import MetricRow, TrainingCallbacks
from kronos_core.training.sampler import epoch_batches
from kronos_core.training.tasks import Task

CHECKPOINT_SECONDS = 120.0
SPEED_SECONDS = 5.0

M = TypeVar("M", bound=nn.Module)
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What the stages of a run share. identity: what a checkpoint must be of; done and total:
    the steps before this stage and of all stages."""

    config: TrainingConfig
    device: torch.device
    folder: Path
    callbacks: TrainingCallbacks
    identity: dict[str, Any]
    steps_per_epoch: int
    done: int
    total: int


class Loop(Generic[M]):
    """The state of one stage. ``keep`` is told to save a module as the best one so far."""

    def __init__(
        self, task: Task[M], setting: Setting, keep: Callable[[M, MetricRow], None]
    ) -> None:
        self.task, self.setting, self.config, self.keep = task, setting, setting.config, keep
        self.device, self.callbacks = setting.device, setting.callbacks
        self.module = task.module
        self.optimiser = build_optimiser(self.module, self.config, task.weight_decay, self.device)
        self.average = Average(self.module, self.config.ema) if self.config.ema else None
        self.random = Randomness(self.config.seed, self.device)
        self.micro_batch = self.config.micro_batch or self.config.batch_size
        self.step = 0
        self.latest: MetricRow | None = None
        self.best: MetricRow | None = None
        self.stale = 0
        self.order: list[Tensor] = []
        self.order_epoch = -1
        self.speed = Speed()
        self.saved_at = time.monotonic()

    @property
    def shown(self) -> M:
        """The module that is evaluated and saved."""
        return self.module if self.average is None else self.average.module

    @property
    def exhausted(self) -> bool:
        """Whether the evaluations have not become better for the config's patience."""
        return self.config.patience is not None and self.stale >= self.config.patience

    @property
    def epoch(self) -> float:
        return self.step / self.setting.steps_per_epoch

    def resume(self, found: Checkpoint) -> None:
        """Continue from a checkpoint of this stage."""
        progress = found.progress
        found.restore(self.module, self.optimiser)
        if self.average is not None:
            self.average.restore(found.average)
        self.step, self.stale = progress["step"], progress["stale"]
        self.micro_batch = min(self.micro_batch, progress["micro_batch"])
        self.latest, self.best = (
            MetricRow(**progress[name]) if progress[name] else None for name in ("latest", "best")
        )
        same_device = progress["device"] == self.device.type
        self.random.restore(found.random, same_device=same_device)
        note = "" if same_device else f", on {self.device.type} instead of {progress['device']}"
        self.callbacks.on_event(
            "resumed",
            f"Resumed the {self.task.stage} stage after step {self.step} of "
            f"{self.task.total_steps}{note}.",
        )

    def run(self) -> bool:
        """Step until the stage is done. -> False if the caller asked to stop before"""
        if self.latest is None:
            self._evaluate()
        while self.step < self.task.total_steps and not self.exhausted:
            if self.callbacks.should_stop():
                self._save()
                return False
            self.callbacks.on_metric(self.update(self._rows()))
            if self._evaluation_is_due():
                self._evaluate()
            elif time.monotonic() - self.saved_at > CHECKPOINT_SECONDS:
                self._save()
            done, total = self.setting.done + self.step, self.setting.total
            self.callbacks.on_step(done, total, self.epoch)
        if self.step < self.task.total_steps:
            self.callbacks.on_event("early_stop", self._why_early())
        return True

    def update(self, rows: Tensor) -> MetricRow:
        """One optimiser step on the windows at ``rows`` [B]."""
        started = time.perf_counter()
        step = self.step + 1
        values = self._fitting(lambda: self._accumulate(rows, step))
        rate, norm = self._descend(step)
        self.step = step
        if self.average is not None:
            self.average.update(self.module, step)
        tokens = len(rows) * (self.config.window - 1)
        self.speed.add(tokens, time.perf_counter() - started)
        return MetricRow(
            stage=self.task.stage,
            split="train",
            step=step,
            epoch=self.epoch,
            **values,
            **self.task.ratios(step),
            learning_rate=rate,
            grad_norm=norm,
            tokens_per_second=self.speed.per_second,
            memory_mb=memory_mb(self.device),
        )

    def _rows(self) -> Tensor:
        """The windows of the next step's batch."""
        epoch, number = divmod(self.step, self.setting.steps_per_epoch)
        if epoch != self.order_epoch:
            sizes = self.task.sizes
            weights = data_weights(self.config, len(sizes))
            self.order = epoch_batches(
                sizes, self.config.batch_size, self.config.seed, epoch, weights
            )
            self.order_epoch = epoch
        return self.order[number]

    def _accumulate(self, rows: Tensor, step: int) -> dict[str, float]:
        """Gradients of the mean loss over ``rows``, micro-batch by micro-batch; its values."""
        self.optimiser.zero_grad(set_to_none=True)
        sums: dict[str, float] = {}
        for share, loss, values in self.task.parts(rows, self.micro_batch, step, self.random):
            read = torch.stack(list(values.values())).tolist()
            for name, value in zip(values, read, strict=True):
                sums[name] = sums.get(name, 0.0) + value * share
            require_finite(f"{self.task.stage}'s training loss", sums["total"], step)
            (loss * share).backward()  # type: ignore[no-untyped-call]
        return sums

    def _fitting(self, work: Callable[[], R]) -> R:
        """``work`` with smaller micro-batches until it fits into memory, from one random state."""
        before = self.random.state()
        while True:
            try:
                return work()
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                self._halve(error)
            # Behind the handler, where the failed step's tensors are no longer held.
            self.optimiser.zero_grad(set_to_none=True)
            free_memory(self.device)
            self.random.restore(before)

    def _halve(self, error: Exception) -> None:
        size, window = self.micro_batch, self.config.window
        if size == 1 or not self.config.halve_on_out_of_memory:
            smaller = "" if size == 1 else "a smaller micro-batch, "
            raise OutOfMemory(
                f"out of memory with {size} windows of {window} bars at once on "
                f"{self.device.type}; use {smaller}a shorter context, LoRA adapters or a smaller "
                "model, or end other programs, then resume the run"
            ) from error
        self.micro_batch = (size + 1) // 2
        self.callbacks.on_event(
            "out_of_memory",
            f"{size} windows at once did not fit into memory; going on with {self.micro_batch} "
            f"(batches stay at {self.config.batch_size}).",
        )

    def _descend(self, step: int) -> tuple[float, float]:
        """Clipped AdamW update -> (learning rate, gradient norm before clipping)."""
        rate = self.task.learning_rate * RATES[self.config.schedule](
            step, self.task.total_steps, self.config.warmup
        )
        parameters = trained(self.module).values()
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, self.task.clip_norm))
        require_finite(f"{self.task.stage}'s gradient norm", norm, step)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.step()
        return rate, norm

    def _evaluation_is_due(self) -> bool:
        return is_evaluation(
            self.step, self.setting.steps_per_epoch, self.config, self.task.total_steps
        )

    def _evaluate(self) -> None:
        """Send the validation row, keep the best weights, write a checkpoint."""
        values = self._fitting(lambda: self.task.evaluate(self.shown, self.step, self.micro_batch))
        row = MetricRow(
            stage=self.task.stage,
            split="validation",
            step=self.step,
            epoch=self.epoch,
            **values,  # type: ignore[arg-type]
        )
        require_finite(f"{self.task.stage}'s validation loss", row.total, self.step)
        self.latest = row
        self.callbacks.on_metric(row)
        self._compare(row)
        self._save()

    def _compare(self, row: MetricRow) -> None:
        """Keep the weights if they are the best; count the evaluations in vain otherwise."""
        # The untouched predictor at step 0 is a reference, not a result of this run.
        if row.step == 0 and not self.task.base_competes:
            return
        if self.best is not None and row.total >= self.best.total:
            self.stale += 1
            return
        self.best, self.stale = row, 0
        self.keep(self.shown, row)
        self.callbacks.on_event(
            "best", f"Best validation loss so far: {row.total:.4f} at step {row.step}."
        )

    def _why_early(self) -> str:
        best = self.best.step if self.best else 0
        return (
            f"The {self.task.stage} stage ended early at step {self.step} of "
            f"{self.task.total_steps}: no better evaluation since step {best}."
        )

    def _save(self) -> None:
        self.callbacks.on_event("checkpoint", f"Saving a checkpoint at step {self.step}.")
        save_checkpoint(
            self.setting.folder / "checkpoint",
            module=self.module,
            optimiser=self.optimiser,
            average={} if self.average is None else self.average.state(self.module),
            random=self.random.state(),
            progress={
                "identity": self.setting.identity,
                "stage": self.task.stage,
                "device": self.device.type,
                "step": self.step,
                "stale": self.stale,
                "micro_batch": self.micro_batch,
                "latest": asdict(self.latest) if self.latest else None,
                "best": asdict(self.best) if self.best else None,
            },
        )
        self.saved_at = time.monotonic()


class Speed:
    """Tokens per second over the last few seconds of training, evaluations left out."""

    def __init__(self) -> None:
        self.steps: deque[tuple[int, float]] = deque()
        self.tokens, self.seconds = 0, 0.0

    def add(self, tokens: int, seconds: float) -> None:
        self.steps.append((tokens, seconds))
        self.tokens, self.seconds = self.tokens + tokens, self.seconds + seconds
        while len(self.steps) > 1 and self.seconds > SPEED_SECONDS:
            tokens, seconds = self.steps.popleft()
            self.tokens, self.seconds = self.tokens - tokens, self.seconds - seconds

    @property
    def per_second(self) -> float:
        return self.tokens / max(self.seconds, 1e-9)
