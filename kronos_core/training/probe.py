"""What a run will take, from a short measured piece of it; and what stands in its way.

Nothing is written: the measured steps train copies of the models that are thrown away.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import torch
from torch import nn

from kronos_core.model.zoo import Bundle
from kronos_core.training.adapters import trainable_copy
from kronos_core.training.config import (
    Plan,
    TrainingConfig,
    is_evaluation,
    require_fitting_window,
)
from kronos_core.training.loop import Loop
from kronos_core.training.memory import MEBIBYTE, watched
from kronos_core.training.optimiser import trained
from kronos_core.training.rows import MetricRow
from kronos_core.training.trainer import Bars, Run, frames_of, plan_of

PROBE_SECONDS = 5.0
DISK_RESERVE_MB = 200.0
_FEWEST_STEPS = 2
_WINDOW_BYTES_PER_BAR = 4  # two int16 tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """A measured step, and the whole run estimated from it.

    step_seconds and tokens_per_second are of the predictor stage; predictor_seconds is what all of
    that stage takes, with its tokens and evaluations. peak_memory_mb is the highest
    figure seen, the device's tensors or the whole process on a CPU; estimated_memory_mb adds the
    tokens of all windows, which are kept in main memory. disk_mb is what the run's folder takes
    at most. micro_batch: the windows at once that fitted.
    """

    device: str
    step_seconds: float
    tokens_per_second: float
    peak_memory_mb: float
    predictor_seconds: float
    estimated_seconds: float
    estimated_memory_mb: float
    disk_mb: float
    micro_batch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One condition of a run. ``message`` has the numbers, and the remedy where it is not met."""

    name: str
    ok: bool
    message: str


class Silent:
    """Callbacks of a run that nobody watches."""

    def on_metric(self, row: MetricRow) -> None:
        return None

    def on_step(self, step: int, total: int, epoch: float) -> None:
        return None

    def on_event(self, kind: str, message: str) -> None:
        return None

    def should_stop(self) -> bool:
        return False


def probe(
    bundle: Bundle, bars: Bars, config: TrainingConfig, seconds: float = PROBE_SECONDS
) -> Probe:
    """Measure steps on ``config.device`` for about ``seconds`` and estimate the run from them.

    At least two steps are taken and the first is not counted, so large batches take longer.

    Raises:
        ValueError: the run cannot work (see ``plan``).
        OutOfMemory: not even the smallest step fits.
    """
    run = Run(bundle, frames_of(bars), config, folder=Path(), callbacks=Silent())
    cuda = [run.device] if run.device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda), watched(run.device) as peak:
        loop, encoding, held_out = _predictor_loop(run)
        step = _measure(loop, seconds)
        evaluation = _evaluation_seconds(loop, held_out, run.plan.validation_windows)
        first_stage = _tokenizer_seconds(run, seconds / 2)
    windows = run.plan.train_windows + run.plan.validation_windows
    predictor = (
        encoding * windows
        + run.plan.predictor_steps * step
        + _evaluations(run.plan, config) * evaluation
    )
    return Probe(
        device=str(run.device),
        step_seconds=step,
        tokens_per_second=config.batch_size * (config.window - 1) / step,
        peak_memory_mb=peak.mb,
        predictor_seconds=predictor,
        estimated_seconds=predictor + first_stage,
        estimated_memory_mb=peak.mb + _kept_mb(run),
        disk_mb=disk_mb(bundle, config),
        micro_batch=loop.micro_batch,
    )


def preflight(
    bundle: Bundle,
    bars: Bars,
    config: TrainingConfig,
    *,
    folder: Path,
    measured: Probe | None = None,
) -> tuple[Check, ...]:
    """What a run needs, checked one by one; ``folder`` is (or will be) on the disk it writes to.

    With a probe the memory is checked too.
    """
    frames = frames_of(bars)
    checks = [
        _context(bundle, config),
        _trainable(bundle, config),
        *_windows(frames, config, bundle.max_context),
        _disk(disk_mb(bundle, config), folder),
    ]
    if measured is not None:
        checks.append(_memory(measured))
    return tuple(checks)


def disk_mb(bundle: Bundle, config: TrainingConfig) -> float:
    """MiB in the run's folder at most: bundles, the checkpoint, and a new copy of it aside."""
    tokenizer, predictor = _bytes(bundle.tokenizer), _bytes(bundle.predictor)
    # Weights, two moments, and the average where there is one.
    largest = predictor if config.tokenizer is None else max(tokenizer, predictor)
    checkpoint = largest * (3 + (config.ema is not None))
    bundles = (2 + (config.tokenizer is not None) + 1) * (tokenizer + predictor)
    return (2 * checkpoint + bundles) / MEBIBYTE


def _bytes(module: nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())


def _predictor_loop(run: Run) -> tuple[Loop[Any], float, int]:
    """The predictor stage over a few windows of the run, seconds to encode one window, and how
    many of the few are for validation."""
    few = _shortened(run)
    started = time.perf_counter()
    training, validation = few.encode(few.bundle.tokenizer)
    each = (time.perf_counter() - started) / (len(training) + len(validation))
    loop = few.predictor_loop(few.bundle.tokenizer, training, validation)
    return loop, each, len(validation)


def _shortened(run: Run) -> Run:
    """The same run over as many windows as one batch and a part of an evaluation need."""
    few = Run(run.bundle, run.frames, run.config, folder=run.folder, callbacks=run.callbacks)
    batch = run.config.batch_size
    splits = tuple(
        replace(split, train=split.train[:batch], validation=split.validation[:batch])
        for split in run.plan.splits
    )
    few.plan = replace(run.plan, splits=splits, steps_per_epoch=1)
    return few


def _measure(loop: Loop[Any], seconds: float) -> float:
    """Seconds per step, the median over the steps after the first."""
    rows = torch.arange(min(loop.config.batch_size, sum(loop.task.sizes)))
    taken: list[float] = []
    began = time.perf_counter()
    while len(taken) < _FEWEST_STEPS or time.perf_counter() - began < seconds:
        started = time.perf_counter()
        loop.update(rows)
        taken.append(time.perf_counter() - started)
    return sorted(taken[1:])[len(taken[1:]) // 2]


def _evaluation_seconds(loop: Loop[Any], held_out: int, windows: int) -> float:
    """Seconds that one evaluation over ``windows`` takes, from one over ``held_out`` windows."""
    most = loop.config.max_validation_windows
    started = time.perf_counter()
    loop.task.evaluate(loop.shown, 0, loop.micro_batch)
    return (time.perf_counter() - started) / min(held_out, most) * min(windows, most)


def _evaluations(plan: Plan, config: TrainingConfig) -> int:
    """How often the predictor is evaluated, step 0 included."""
    steps, per_epoch = plan.predictor_steps, plan.steps_per_epoch
    epoch = range(1, min(steps, per_epoch) + 1)
    each = sum(is_evaluation(step, per_epoch, config, steps) for step in epoch)
    return 1 + math.ceil(each * max(1.0, steps / per_epoch))


def _tokenizer_seconds(run: Run, seconds: float) -> float:
    if run.config.tokenizer is None:
        return 0.0
    return run.plan.tokenizer_steps * _measure(_shortened(run).tokenizer_loop(), seconds)


def _kept_mb(run: Run) -> float:
    windows = run.plan.train_windows + run.plan.validation_windows
    return windows * run.config.window * _WINDOW_BYTES_PER_BAR / MEBIBYTE


def _context(bundle: Bundle, config: TrainingConfig) -> Check:
    fits = f"A window of {config.window} bars fits the model's context of {bundle.max_context}."
    return _check("context", fits, lambda: require_fitting_window(config, bundle.max_context))


def _trainable(bundle: Bundle, config: TrainingConfig) -> Check:
    total = sum(parameter.numel() for parameter in bundle.predictor.parameters())
    try:
        with torch.random.fork_rng(devices=[]):
            tuned = trainable_copy(bundle.predictor, config)
    except ValueError as error:
        return Check(name="parameters", ok=False, message=_sentence(f"{error}."))
    count = sum(parameter.numel() for parameter in trained(tuned).values())
    message = f"{count:,} of the predictor's {total:,} parameters are trained."
    return Check(name="parameters", ok=True, message=message)


def _windows(
    frames: Sequence[pd.DataFrame], config: TrainingConfig, max_context: int
) -> list[Check]:
    """Windows in every part, and a batch no larger than the set."""
    roomy = replace(config, batch_size=1, micro_batch=None)
    # The context has a check of its own; here only the bars count.
    room = max(max_context, config.window)
    try:
        steps = plan_of(frames, roomy, room)
    except ValueError as error:
        text = str(error).rstrip(".")
        return [Check(name="windows", ok=False, message=_sentence(f"{text}."))]
    counts = (
        f"{steps.train_windows:,} training, {steps.validation_windows:,} validation and "
        f"{steps.test_windows:,} test windows."
    )
    batch = f"{steps.train_windows:,} training windows fill batches of {config.batch_size}."
    return [
        Check(name="windows", ok=True, message=counts),
        _check("batch", batch, lambda: plan_of(frames, config, room)),
    ]


def _disk(needed: float, folder: Path) -> Check:
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free / MEBIBYTE
    numbers = f"the run takes up to {needed:,.0f} MiB of disk, {free:,.0f} MiB are free"
    if free < needed + DISK_RESERVE_MB:
        lacking = needed + DISK_RESERVE_MB - free
        remedy = f"; free {lacking:,.0f} MiB (with a reserve), or delete old runs and models."
        return Check(name="disk", ok=False, message=_sentence(numbers + remedy))
    return Check(name="disk", ok=True, message=_sentence(numbers + "."))


def _memory(measured: Probe) -> Check:
    if measured.device.startswith("cuda"):
        total = torch.cuda.get_device_properties(measured.device).total_memory / MEBIBYTE
    else:
        total = psutil.virtual_memory().total / MEBIBYTE
    needed = measured.estimated_memory_mb
    numbers = f"the run takes about {needed:,.0f} of {total:,.0f} MiB of memory"
    if needed > total:
        remedy = "; take a smaller micro-batch, a shorter context, a larger stride or LoRA."
        return Check(name="memory", ok=False, message=_sentence(numbers + remedy))
    return Check(name="memory", ok=True, message=_sentence(numbers + "."))


def _check(name: str, fine: str, require: Callable[[], object]) -> Check:
    try:
        require()
    except ValueError as error:
        return Check(name=name, ok=False, message=_sentence(f"{error}."))
    return Check(name=name, ok=True, message=fine)


def _sentence(text: str) -> str:
    setting = "_" in text.partition(" ")[0]
    return text if setting else text[:1].upper() + text[1:]
