"""Losses of the predictor: the guard against NaN, own draws, and the validation losses.

Shapes: B windows in a batch, T = context + horizon − 1 positions.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from kronos_core.model.kronos import Kronos, draw_ids
from kronos_core.training.config import TrainingConfig
from kronos_core.training.sampler import batched, evenly_spaced
from kronos_core.training.tokens import Batch, WindowTokens

VALIDATION_SEED = 20_000


class NonFiniteLoss(RuntimeError):  # noqa: N818 - the name callers know
    """A loss or gradient became NaN or infinite; the last checkpoint and best weights remain."""


def require_finite(what: str, value: float, step: int) -> None:
    if not math.isfinite(value):
        raise NonFiniteLoss(
            f"the {what} became {value} at step {step}; lower the learning rate, or look for "
            "extreme values in the bars. The last checkpoint and the best weights are kept"
        )


def own_draws(s1_logits: Tensor, generator: torch.Generator, step: int) -> Tensor:
    """One s1 id per position [B, T] from logits [B, T, V].

    Checked first, because drawing from NaN breaks the whole CUDA context.
    """
    require_finite("largest s1 logit", s1_logits.detach().abs().max().item(), step)
    return draw_ids(s1_logits, generator)


@torch.no_grad()
def own_history(
    predictor: Kronos, batch: Batch, truth: Tensor | None, draws: torch.Generator, step: int
) -> Batch:
    """The batch with input tokens drawn by the model itself where ``truth`` [B, T] is false.

    The first pass of two-pass scheduled sampling: a bar's s1 and s2 are drawn from the
    distributions that the model gives for it on the true past. The first bar of a window follows
    on nothing, so it stays. ``truth`` None draws all others. The predictor is left in eval mode.
    """
    predictor.eval()
    with autocast(batch.s1.device):
        s1_logits, hidden = predictor.decode_s1(batch.s1, batch.s2, batch.stamp)
        s1 = own_draws(s1_logits, draws, step)
        s2 = draw_ids(predictor.decode_s2(hidden, s1), draws)
    kept = torch.zeros_like(batch.s1, dtype=torch.bool) if truth is None else truth.clone()
    kept[:, 0] = True
    s1, s2 = (torch.cat((ids[:, :1], ids[:, :-1]), dim=1) for ids in (s1, s2))
    return replace(batch, s1=torch.where(kept, batch.s1, s1), s2=torch.where(kept, batch.s2, s2))


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationLosses:
    """Mean cross-entropies in nats per token; s2 on the true s1, s2_own on the model's draws.

    total is the mean of s1 and s2, horizon_loss the same over the horizon's targets alone. s1_own
    is s1 where the whole past is the model's own draws, measured in runs that train on history.
    """

    s1: float
    s2: float
    total: float
    s2_own: float
    exposure_gap: float
    horizon_loss: float
    s1_own: float | None = None


def autocast(device: torch.device) -> AbstractContextManager[Any]:
    """bfloat16 on CUDA, float32 elsewhere."""
    if device.type == "cuda":
        return torch.autocast("cuda", dtype=torch.bfloat16)
    return nullcontext()


@torch.no_grad()
def evaluate(
    predictor: Kronos,
    tokens: WindowTokens,
    config: TrainingConfig,
    device: torch.device,
    step: int = 0,
    batch_size: int | None = None,
) -> ValidationLosses:
    """Mean losses over at most ``max_validation_windows`` windows, evenly spaced in time.

    In evaluation mode and with a generator of its own: the result depends on weights and windows
    alone, and the random state of training is left as it was. ``step`` is for error messages;
    ``batch_size`` windows are computed at once (the config's, if None).
    """
    predictor.eval()
    rows = evenly_spaced(len(tokens), config.max_validation_windows)
    draws = torch.Generator(device).manual_seed(VALIDATION_SEED)
    with_history = not config.history.always_true
    sums = torch.zeros(3 + with_history, config.window - 1, dtype=torch.float64)
    for part in batched(rows, batch_size or config.batch_size):
        batch = tokens.batch(part, device)
        losses = _position_losses(predictor, batch, draws, step, with_history)
        sums += losses.cpu().double()
    means = sums / len(rows)
    s1, s2, s2_own, *s1_own = means.mean(dim=1).tolist()
    return ValidationLosses(
        s1=s1,
        s2=s2,
        total=(s1 + s2) / 2,
        s2_own=s2_own,
        exposure_gap=s2_own - s2,
        horizon_loss=means[:2, -config.horizon :].mean().item(),
        s1_own=s1_own[0] if s1_own else None,
    )


def _position_losses(
    predictor: Kronos, batch: Batch, draws: torch.Generator, step: int, with_history: bool
) -> Tensor:
    """[3 or 4, T] summed over the batch: s1, s2 on the truth, s2 on own draws, s1 on own past."""
    with autocast(batch.s1.device):
        s1_logits, hidden = predictor.decode_s1(batch.s1, batch.s2, batch.stamp)
        on_truth = predictor.decode_s2(hidden, batch.s1_targets)
        on_own = predictor.decode_s2(hidden, own_draws(s1_logits, draws, step))
    pairs = [
        (s1_logits, batch.s1_targets),
        (on_truth, batch.s2_targets),
        (on_own, batch.s2_targets),
    ]
    if with_history:
        own = own_history(predictor, batch, None, draws, step)
        with autocast(batch.s1.device):
            on_own_past, _ = predictor.decode_s1(own.s1, own.s2, own.stamp)
        pairs.append((on_own_past, batch.s1_targets))
    losses = [
        functional.cross_entropy(logits.float().transpose(1, 2), targets, reduction="none")
        for logits, targets in pairs
    ]
    return torch.stack(losses).sum(dim=1)
