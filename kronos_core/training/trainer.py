"""A fine-tuning run: its stages one after the other, and what it leaves in its folder.

The tokenizer stage, if there is one, keeps its best tokenizer in ``tokenizer/``; the predictor
stage reads the windows through it. All randomness comes from generators whose states are part of
the checkpoint, so that a resumed run on the CPU equals an uninterrupted one bit for bit.
"""

from __future__ import annotations

import copy
import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch

from kronos_core.data.bars import as_bars, bars_hash
from kronos_core.model.kronos import Kronos
from kronos_core.model.tokenizer import KronosTokenizer
from kronos_core.model.zoo import Bundle, load_bundle, resolve_device, save_bundle
from kronos_core.training.adapters import plain_copy, require_trainable, trainable_copy
from kronos_core.training.checkpoint import Checkpoint, load_checkpoint
from kronos_core.training.config import Plan, TrainingConfig, data_weights, plan
from kronos_core.training.loop import Loop, Setting
from kronos_core.training.losses import NonFiniteLoss as NonFiniteLoss
from kronos_core.training.rows import MetricRow as MetricRow
from kronos_core.training.rows import Stage
from kronos_core.training.rows import TrainingCallbacks as TrainingCallbacks
from kronos_core.training.rows import TrainingResult as TrainingResult
from kronos_core.training.tasks import PredictorTask, TokenizerTask
from kronos_core.training.tokens import WindowBars, WindowTokens, encode_windows

Bars = pd.DataFrame | Sequence[pd.DataFrame]


class _StopRequested(Exception):  # noqa: N818 - not an error
    """The caller asked to stop."""


def train(
    bundle: Bundle,
    bars: Bars,
    config: TrainingConfig,
    *,
    folder: Path,
    callbacks: TrainingCallbacks,
) -> TrainingResult:
    """Fine-tune copies of the bundle's models on ``bars`` (see ``as_bars``), one frame or several.

    Several frames stand in the order of ``config.data``. ``folder`` gets checkpoint/ (the latest
    resumable state), tokenizer/ (the bundle after a tokenizer stage), best/ (the bundle with the
    lowest validation total of the predictor stage) and, at the end, last/. A checkpoint found
    there is resumed.

    Raises:
        ValueError: the plan cannot work, the bars are bad, or the checkpoint in ``folder`` is of
            other settings, other bars or another base model.
        NonFiniteLoss: training diverged.
        OutOfMemory: a step does not fit into memory, and cannot be made smaller.
    """
    frames = frames_of(bars)
    run = Run(bundle, frames, config, folder=folder, callbacks=callbacks)
    cuda = [run.device] if run.device.type == "cuda" else []
    if cuda:
        torch.set_float32_matmul_precision("high")
    with torch.random.fork_rng(devices=cuda):
        return run.go()


def frames_of(bars: Bars) -> list[pd.DataFrame]:
    """One frame or several, checked and completed by ``as_bars``."""
    return [as_bars(frame) for frame in ([bars] if isinstance(bars, pd.DataFrame) else bars)]


def plan_of(frames: Sequence[pd.DataFrame], config: TrainingConfig, max_context: int) -> Plan:
    """The plan for frames as ``frames_of`` gives them."""
    return plan([pd.DatetimeIndex(frame["timestamps"]) for frame in frames], config, max_context)


class Run:
    """The stages of one run; ``train`` is the way in."""

    def __init__(
        self,
        bundle: Bundle,
        frames: Sequence[pd.DataFrame],
        config: TrainingConfig,
        *,
        folder: Path,
        callbacks: TrainingCallbacks,
    ) -> None:
        self.bundle, self.frames, self.config = bundle, frames, config
        self.folder, self.callbacks = folder, callbacks
        self.plan = plan_of(frames, config, bundle.max_context)
        self.device = resolve_device(config.device)
        self.hashes = [bars_hash(frame) for frame in frames]
        self.best: MetricRow | None = None
        self.done = 0
        """Steps taken, over all stages."""
        require_trainable(bundle.predictor, config)

    def go(self) -> TrainingResult:
        """Take up what the folder holds and go through the stages."""
        remove_leftovers(self.folder)
        found = load_checkpoint(self.folder / "checkpoint")
        if found is not None:
            require_same_run(found.progress["identity"], self.identity())
        try:
            tokenizer = self._tokenizer(found)
            self._predictor(tokenizer, found)
        except _StopRequested:
            self.callbacks.on_event(
                "stopped", f"Stopped after step {self.done} of {self.plan.total_steps}; resumable."
            )
            return self._result("stopped")
        self.callbacks.on_event(
            "finished", f"Finished at step {self.done} of {self.plan.total_steps}."
        )
        return self._result("finished")

    def _tokenizer(self, found: Checkpoint | None) -> KronosTokenizer:
        """The tokenizer to read the windows with, fine-tuned first if the config says so."""
        if self.config.tokenizer is None:
            return self.bundle.tokenizer
        if not _is_at("predictor", found):
            loop = self.tokenizer_loop()
            if found is not None:
                loop.resume(found)
            self._go_through(loop)
        self.done = self.plan.tokenizer_steps
        return load_bundle(self.folder / "tokenizer", device="cpu").tokenizer

    def _predictor(self, tokenizer: KronosTokenizer, found: Checkpoint | None) -> None:
        resumed = found if _is_at("predictor", found) else None
        if resumed is not None:
            self.done = self.plan.tokenizer_steps + resumed.progress["step"]
            self.best = MetricRow(**best) if (best := resumed.progress["best"]) else None
        training, validation = self.encode(tokenizer)
        loop = self.predictor_loop(tokenizer, training, validation)
        if resumed is not None:
            loop.resume(resumed)
        self._go_through(loop)
        self._save_predictor("last", tokenizer, loop.shown, loop.latest)

    def _go_through(self, loop: Loop[Any]) -> None:
        try:
            complete = loop.run()
        finally:
            self.done = loop.setting.done + loop.step
            if loop.task.stage == "predictor":
                self.best = loop.best
        if not complete:
            raise _StopRequested

    def tokenizer_loop(self) -> Loop[KronosTokenizer]:
        """The first stage at its beginning."""
        torch.manual_seed(self.config.seed)
        splits = self.plan.splits
        task = TokenizerTask(
            copy.deepcopy(self.bundle.tokenizer).to(self.device),
            self.config,
            self.plan.tokenizer_steps,
            WindowBars.over(self._parts([split.train for split in splits]), self.config),
            WindowBars.over(self._parts([split.validation for split in splits]), self.config),
            self.device,
        )
        return Loop(task, self._setting(0), self._save_tokenizer)

    def predictor_loop(
        self, tokenizer: KronosTokenizer, training: WindowTokens, validation: WindowTokens
    ) -> Loop[Kronos]:
        """The second stage at its beginning."""
        torch.manual_seed(self.config.seed)
        task = PredictorTask(
            trainable_copy(self.bundle.predictor, self.config).to(self.device),
            self.config,
            self.plan.predictor_steps,
            training,
            validation,
            self.device,
        )

        def keep(module: Kronos, row: MetricRow) -> None:
            self._save_predictor("best", tokenizer, module, row)

        return Loop(task, self._setting(self.plan.tokenizer_steps), keep)

    def encode(self, tokenizer: KronosTokenizer) -> tuple[WindowTokens, WindowTokens]:
        """Tokens of the training and the validation windows."""
        frozen = copy.deepcopy(tokenizer).to(self.device).eval()

        def progress(done: int) -> None:
            if self.callbacks.should_stop():
                raise _StopRequested

        splits = self.plan.splits
        training, validation = (
            encode_windows(frozen, self._parts(starts), self.config, self.device, progress)
            for starts in (
                [split.train for split in splits],
                [split.validation for split in splits],
            )
        )
        self.callbacks.on_event(
            "encoded",
            f"Encoded {len(training):,} training and {len(validation):,} validation windows.",
        )
        return training, validation

    def _parts(self, starts: Sequence[range]) -> list[tuple[pd.DataFrame, range]]:
        return list(zip(self.frames, starts, strict=True))

    def _setting(self, done: int) -> Setting:
        return Setting(
            config=self.config,
            device=self.device,
            folder=self.folder,
            callbacks=self.callbacks,
            identity=self.identity(),
            steps_per_epoch=self.plan.steps_per_epoch,
            done=done,
            total=self.plan.total_steps,
        )

    @property
    def data_hash(self) -> str:
        """The hash of the bars; of several series, one over all of theirs."""
        if len(self.hashes) == 1:
            return self.hashes[0]
        return hashlib.sha256(" ".join(self.hashes).encode()).hexdigest()

    def identity(self) -> dict[str, Any]:
        """What must be equal for a resumed run to be the same run; the device may change."""
        settings = self.config.to_dict()
        # How memory is used may change as well: a run that ran out of it goes on with less.
        for name in ("device", "micro_batch", "halve_on_out_of_memory"):
            del settings[name]
        return {**settings, "data_hash": self.data_hash, "base_hash": self.bundle.hash}

    def _result(self, outcome: Literal["finished", "stopped"]) -> TrainingResult:
        return TrainingResult(
            outcome=outcome,
            step=self.done,
            total_steps=self.plan.total_steps,
            best_step=self.best.step if self.best else None,
            best_loss=self.best.total if self.best else None,
            bundle_folder=self.folder / "best" if self.best else None,
        )

    def _save_tokenizer(self, module: KronosTokenizer, row: MetricRow) -> None:
        """A bundle of the tuned tokenizer and the base predictor."""
        self._save("tokenizer", row, tokenizer=module, predictor=self.bundle.predictor)

    def _save_predictor(
        self, name: str, tokenizer: KronosTokenizer, module: Kronos, row: MetricRow | None
    ) -> None:
        """The present weights as a bundle that any loader reads, adapters merged."""
        plain = plain_copy(module)
        self._save(name, row, tokenizer=tokenizer, predictor=plain, s2_rotary="position")

    def _save(self, name: str, row: MetricRow | None, **parts: Any) -> None:
        weights = data_weights(self.config, len(self.hashes))
        provenance = {
            "kind": "finetuned",
            "stage": row.stage if row else "predictor",
            "base": {"name": self.bundle.name, "hash": self.bundle.hash},
            "data_hash": self.data_hash,
            "data": [
                {"hash": digest, "weight": weight}
                for digest, weight in zip(self.hashes, weights, strict=True)
            ],
            "config": self.config.to_dict(),
            "step": row.step if row else 0,
            "validation": asdict(row) if row else None,
            "torch": torch.__version__,
        }
        tuned = replace(
            self.bundle,
            name=f"{self.bundle.name} fine-tuned",
            provenance=provenance,
            hash="",  # computed anew from the weights
            **parts,
        )
        save_bundle(tuned, self.folder / name)


def remove_leftovers(folder: Path) -> None:
    """Delete what a killed process left half written."""
    for path in folder.glob(".new-*"):
        shutil.rmtree(path, ignore_errors=True)


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


def _is_at(stage: Stage, found: Checkpoint | None) -> bool:
    return found is not None and found.progress["stage"] == stage
