"""The predictor's fine-tuning loop.

Shapes: B windows in a batch, T = context + horizon − 1 positions, V vocabulary. Steps count from
1; step 0 is the untouched base model. All randomness comes from generators whose states are part
of the checkpoint, so that a resumed run on the CPU equals an uninterrupted one bit for bit.
"""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import pandas as pd
import torch
from torch import Tensor

from kronos_core.data.bars import as_bars, bars_hash
from kronos_core.model.kronos import Kronos
from kronos_core.model.zoo import Bundle, resolve_device, save_bundle
from kronos_core.training.checkpoint import load_checkpoint, save_checkpoint
from kronos_core.training.config import (
    Plan,
    TrainingConfig,
    is_evaluation,
    learning_rate,
    plan,
)
from kronos_core.training.losses import NonFiniteLoss as NonFiniteLoss
from kronos_core.training.losses import autocast, evaluate, own_draws, require_finite
from kronos_core.training.tokens import (
    Batch,
    WindowTokens,
    encode_windows,
    epoch_batches,
)

CHECKPOINT_SECONDS = 120.0
SPEED_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricRow:
    """One training step, or one evaluation; losses are mean cross-entropies in nats per token.

    total is the mean of s1 and s2. Training rows use the step's own conditioning. Validation rows
    have s2 on the true s1 and s2_own on the model's own draws; exposure_gap = s2_own − s2;
    horizon_loss is the total over the horizon's targets alone.
    """

    stage: Literal["predictor"] = "predictor"
    split: Literal["train", "validation"]
    step: int
    epoch: float
    s1: float
    s2: float
    total: float
    epsilon: float | None = None
    learning_rate: float | None = None
    grad_norm: float | None = None
    tokens_per_second: float | None = None
    s2_own: float | None = None
    exposure_gap: float | None = None
    horizon_loss: float | None = None


class TrainingCallbacks(Protocol):
    """What a caller hears of a run and how it stops one.

    The event "checkpoint" comes just before the state is written: a caller that buffers rows must
    store them before it returns, because a resumed run sends only what comes after the checkpoint.
    """

    def on_metric(self, row: MetricRow) -> None: ...
    def on_step(self, step: int, total: int, epoch: float) -> None: ...
    def on_event(self, kind: str, message: str) -> None: ...
    def should_stop(self) -> bool: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingResult:
    """How a run ended. bundle_folder holds the best weights, None before any evaluation."""

    outcome: Literal["finished", "stopped"]
    step: int
    total_steps: int
    best_step: int | None
    best_loss: float | None
    bundle_folder: Path | None


class _StopRequested(Exception):  # noqa: N818 - not an error
    """The caller asked to stop while the windows were being encoded."""


def train(
    bundle: Bundle,
    bars: pd.DataFrame,
    config: TrainingConfig,
    *,
    folder: Path,
    callbacks: TrainingCallbacks,
) -> TrainingResult:
    """Fine-tune a copy of the bundle's predictor on ``bars`` (see ``as_bars``).

    ``folder`` gets checkpoint/ (the latest resumable state), best/ (the bundle with the lowest
    validation total) and, at the end, last/. A checkpoint found there is resumed.

    Raises:
        ValueError: the plan cannot work, the bars are bad, or the checkpoint in ``folder`` is of
            other settings, other bars or another base model.
        NonFiniteLoss: training diverged.
    """
    frame = as_bars(bars)
    steps = plan(len(frame), config, bundle.max_context)
    device = resolve_device(config.device)
    cuda = [device] if device.type == "cuda" else []
    if cuda:
        torch.set_float32_matmul_precision("high")
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(config.seed)
        trainer = Trainer(bundle, bars_hash(frame), config, steps, device, folder, callbacks)
        trainer.resume()
        try:
            training, validation = trainer.encode(frame)
        except _StopRequested:
            return trainer.result("stopped")
        return trainer.run(training, validation)


class Trainer:
    """The state of one run and the loop over its steps; ``train`` is the way in."""

    def __init__(
        self,
        bundle: Bundle,
        data_hash: str,
        config: TrainingConfig,
        steps: Plan,
        device: torch.device,
        folder: Path,
        callbacks: TrainingCallbacks,
    ) -> None:
        self.bundle, self.config, self.plan = bundle, config, steps
        self.device, self.folder, self.callbacks = device, folder, callbacks
        self.data_hash = data_hash
        # A copy, so that the caller's bundle keeps its weights and its mode.
        self.predictor = copy.deepcopy(bundle.predictor).to(device)
        self.predictor.s2_rotary = "position"
        self.optimiser = build_optimiser(self.predictor, config, device)
        self.coins = torch.Generator().manual_seed(config.seed)
        self.draws = torch.Generator(device).manual_seed(config.seed)
        self.step = 0
        self.latest: MetricRow | None = None
        self.best: MetricRow | None = None
        self.order: list[Tensor] = []
        self.order_epoch = -1
        self.speed = Speed()
        self.saved_at = time.monotonic()

    def resume(self) -> None:
        """Continue from the checkpoint in the folder, if there is one."""
        found = load_checkpoint(self.folder / "checkpoint")
        if found is None:
            return
        progress = found.progress
        require_same_run(progress["identity"], self._identity())
        found.restore(self.predictor, self.optimiser)
        self.step = progress["step"]
        self.latest, self.best = (
            MetricRow(**progress[name]) if progress[name] else None for name in ("latest", "best")
        )
        same_device = progress["device"] == self.device.type
        self._restore_random(found.random, same_device)
        note = "" if same_device else f", on {self.device.type} instead of {progress['device']}"
        self.callbacks.on_event(
            "resumed", f"Resumed after step {self.step} of {self.plan.total_steps}{note}."
        )

    def encode(self, frame: pd.DataFrame) -> tuple[WindowTokens, WindowTokens]:
        """Tokens of the training and the validation windows."""
        tokenizer = copy.deepcopy(self.bundle.tokenizer).to(self.device).eval()

        def progress(done: int) -> None:
            if self.callbacks.should_stop():
                raise _StopRequested

        training, validation = (
            encode_windows(tokenizer, frame, starts, self.config, self.device, progress)
            for starts in (self.plan.split.train, self.plan.split.validation)
        )
        self.callbacks.on_event(
            "encoded",
            f"Encoded {len(training):,} training and {len(validation):,} validation windows.",
        )
        return training, validation

    def run(self, training: WindowTokens, validation: WindowTokens) -> TrainingResult:
        """Step until the plan is done or the caller asks to stop."""
        if self.latest is None:
            self._evaluate(validation)
        while self.step < self.plan.total_steps:
            if self.callbacks.should_stop():
                return self._stop()
            self._update(training.batch(self._rows(len(training)), self.device))
            if is_evaluation(self.step, self.plan.steps_per_epoch, self.config):
                self._evaluate(validation)
            elif time.monotonic() - self.saved_at > CHECKPOINT_SECONDS:
                self._save()
            self.callbacks.on_step(self.step, self.plan.total_steps, self._epoch())
        return self._finish()

    def result(self, outcome: Literal["finished", "stopped"]) -> TrainingResult:
        return TrainingResult(
            outcome=outcome,
            step=self.step,
            total_steps=self.plan.total_steps,
            best_step=self.best.step if self.best else None,
            best_loss=self.best.total if self.best else None,
            bundle_folder=self.folder / "best" if self.best else None,
        )

    def _stop(self) -> TrainingResult:
        self._save()
        self.callbacks.on_event(
            "stopped", f"Stopped after step {self.step} of {self.plan.total_steps}; resumable."
        )
        return self.result("stopped")

    def _finish(self) -> TrainingResult:
        self._save_bundle("last")
        self.callbacks.on_event("finished", f"Finished all {self.plan.total_steps} steps.")
        return self.result("finished")

    def _epoch(self) -> float:
        return self.step / self.plan.steps_per_epoch

    def _rows(self, windows: int) -> Tensor:
        """The windows of the next step's batch."""
        epoch, number = divmod(self.step, self.plan.steps_per_epoch)
        if epoch != self.order_epoch:
            self.order = epoch_batches(windows, self.config.batch_size, self.config.seed, epoch)
            self.order_epoch = epoch
        return self.order[number]

    def _update(self, batch: Batch) -> None:
        """One optimiser step and its metric row."""
        started = time.perf_counter()
        step, forcing = self.step + 1, self.config.teacher_forcing
        epsilon = forcing.epsilon(step, self.plan.total_steps)
        rate = learning_rate(step, self.plan.total_steps, self.config)
        self.predictor.train()
        with autocast(self.device):
            s1_logits, s2_logits = self._forward(batch, step, epsilon)
            losses = self.predictor.head.compute_loss(
                s1_logits, s2_logits, batch.s1_targets, batch.s2_targets
            )
        total, s1, s2 = torch.stack([loss.detach() for loss in losses]).tolist()
        require_finite("training loss", total, step)
        norm = self._descend(losses[0], rate, step)
        self.step = step
        self.speed.add(batch.s1.numel(), time.perf_counter() - started)
        self.callbacks.on_metric(
            MetricRow(
                split="train",
                step=step,
                epoch=self._epoch(),
                s1=s1,
                s2=s2,
                total=total,
                epsilon=epsilon,
                learning_rate=rate,
                grad_norm=norm,
                tokens_per_second=self.speed.per_second,
            )
        )

    def _forward(self, batch: Batch, step: int, epsilon: float) -> tuple[Tensor, Tensor]:
        """Logits [B, T, V] with s2 conditioned as teacher forcing says for this step."""
        s1_logits, hidden = self.predictor.decode_s1(batch.s1, batch.s2, batch.stamp)
        condition = self._condition(batch.s1_targets, s1_logits, step, epsilon)
        return s1_logits, self.predictor.decode_s2(hidden, condition)

    def _condition(self, truth: Tensor, s1_logits: Tensor, step: int, epsilon: float) -> Tensor:
        """The s1 ids [B, T] that condition s2: the truth, own draws, or a mixture."""
        if epsilon == 1:
            return truth
        drawn = own_draws(s1_logits, self.draws, step)
        if epsilon == 0:
            return drawn
        shape, total = (truth.shape[0], truth.shape[1]), self.plan.total_steps
        mask = self.config.teacher_forcing.mask(shape, step, total, self.coins)
        return torch.where(mask.to(self.device), truth, drawn)

    def _descend(self, loss: Tensor, rate: float, step: int) -> float:
        """Clipped AdamW update; the gradient norm before clipping."""
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        parameters = self.predictor.parameters()
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, self.config.clip_norm))
        require_finite("gradient norm", norm, step)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.step()
        return norm

    def _evaluate(self, validation: WindowTokens) -> None:
        """Send the validation row, keep the best weights, write a checkpoint."""
        losses = evaluate(self.predictor, validation, self.config, self.device, self.step)
        row = MetricRow(split="validation", step=self.step, epoch=self._epoch(), **asdict(losses))
        require_finite("validation loss", row.total, self.step)
        self.latest = row
        self.callbacks.on_metric(row)
        # The untouched base model at step 0 is a reference, not a result of this run.
        if self.step > 0 and (self.best is None or row.total < self.best.total):
            self.best = row
            self._save_bundle("best")
            self.callbacks.on_event(
                "best", f"Best validation loss so far: {row.total:.4f} at step {row.step}."
            )
        self._save()

    def _save(self) -> None:
        self.callbacks.on_event("checkpoint", f"Saving a checkpoint at step {self.step}.")
        save_checkpoint(
            self.folder / "checkpoint",
            predictor=self.predictor,
            optimiser=self.optimiser,
            random=self._random(),
            progress={
                "identity": self._identity(),
                "device": self.device.type,
                "step": self.step,
                "latest": asdict(self.latest) if self.latest else None,
                "best": asdict(self.best) if self.best else None,
            },
        )
        self.saved_at = time.monotonic()

    def _identity(self) -> dict[str, Any]:
        """What must be equal for a resumed run to be the same run; the device may change."""
        settings = self.config.to_dict()
        del settings["device"]
        return {**settings, "data_hash": self.data_hash, "base_hash": self.bundle.hash}

    def _random(self) -> dict[str, Tensor]:
        states = {
            "global": torch.get_rng_state(),
            "coins": self.coins.get_state(),
            "draws": self.draws.get_state(),
        }
        if self.device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(self.device)
        return states

    def _restore_random(self, states: Mapping[str, Tensor], same_device: bool) -> None:
        torch.set_rng_state(states["global"])
        self.coins.set_state(states["coins"])
        if same_device:
            self.draws.set_state(states["draws"])
        if same_device and self.device.type == "cuda":
            torch.cuda.set_rng_state(states["cuda"], self.device)

    def _save_bundle(self, name: Literal["best", "last"]) -> None:
        """The present weights as a bundle; its provenance says where they come from."""
        provenance = {
            "kind": "finetuned",
            "stage": "predictor",
            "base": {"name": self.bundle.name, "hash": self.bundle.hash},
            "data_hash": self.data_hash,
            "config": self.config.to_dict(),
            "step": self.step,
            "validation": asdict(self.latest) if self.latest else None,
            "torch": torch.__version__,
        }
        tuned = replace(
            self.bundle,
            name=f"{self.bundle.name} fine-tuned",
            predictor=self.predictor,
            s2_rotary="position",
            provenance=provenance,
            hash="",  # computed anew from the weights
        )
        save_bundle(tuned, self.folder / name)


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


def build_optimiser(
    predictor: Kronos, config: TrainingConfig, device: torch.device
) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        [parameter for parameter in predictor.parameters() if parameter.requires_grad],
        lr=config.learning_rate,
        betas=config.betas,
        weight_decay=config.weight_decay,
        fused=device.type == "cuda",
    )


def require_same_run(saved: Mapping[str, Any], present: Mapping[str, Any]) -> None:
    differing = [
        f"{key} (was {saved.get(key)!r}, now {present.get(key)!r})"
        for key in sorted({*saved, *present})
        if saved.get(key) != present.get(key)
    ]
    if differing:
        raise ValueError(
            f"the checkpoint belongs to another run: {', '.join(differing)}; "
            "resume with its own settings, bars and model, or start in an empty folder"
        )
