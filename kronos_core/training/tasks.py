"""What a stage trains: its windows, its losses, its evaluation. The loop knows no more of it.

Shapes: B windows in a batch, W bars in a window, T = W − 1 positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from kronos_core.model.kronos import Kronos
from kronos_core.model.tokenizer import KronosTokenizer, TokenizerLosses
from kronos_core.training.config import TrainingConfig
from kronos_core.training.losses import (
    autocast,
    evaluate,
    own_draws,
    own_history,
)
from kronos_core.training.randomness import Randomness
from kronos_core.training.rows import Stage
from kronos_core.training.sampler import batched, evenly_spaced
from kronos_core.training.tokens import Batch, WindowBars, WindowTokens

M = TypeVar("M", bound=nn.Module)
Part = tuple[float, Tensor, dict[str, Tensor]]
"""A micro-batch: its share of the batch, the loss to descend, and values to report (scalars)."""


class Task(Protocol, Generic[M]):
    """One stage: ``module`` is trained, on windows whose numbers by dataset are ``sizes``."""

    stage: Stage
    module: M
    learning_rate: float
    weight_decay: float
    clip_norm: float
    total_steps: int
    base_competes: bool
    """Whether the untouched module at step 0 may be the best one."""

    @property
    def sizes(self) -> tuple[int, ...]: ...

    def parts(
        self, rows: Tensor, micro_batch: int, step: int, random: Randomness
    ) -> Iterator[Part]:
        """The losses of the windows at ``rows``, ``micro_batch`` of them at a time."""

    def ratios(self, step: int) -> dict[str, float]:
        """Fields of a training row that follow from the step alone."""

    def evaluate(self, module: M, step: int, micro_batch: int) -> dict[str, float | None]:
        """Fields of a validation row; independent of all random states."""


class PredictorTask:
    """Next-token prediction on the tokens of a frozen tokenizer, with teacher forcing's dials."""

    stage: Stage = "predictor"
    base_competes = False

    def __init__(
        self,
        module: Kronos,
        config: TrainingConfig,
        total_steps: int,
        training: WindowTokens,
        validation: WindowTokens,
        device: torch.device,
    ) -> None:
        self.module, self.config, self.total_steps = module, config, total_steps
        self.training, self.validation, self.device = training, validation, device
        self.learning_rate, self.clip_norm = config.learning_rate, config.clip_norm
        self.weight_decay = config.weight_decay

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.training.sizes

    def ratios(self, step: int) -> dict[str, float]:
        ratios = {"epsilon": self.config.teacher_forcing.epsilon(step, self.total_steps)}
        if not self.config.history.always_true:
            ratios["epsilon_history"] = self.config.history.epsilon(step, self.total_steps)
        return ratios

    def parts(
        self, rows: Tensor, micro_batch: int, step: int, random: Randomness
    ) -> Iterator[Part]:
        # Coins fall for the whole batch, so that they do not depend on the micro-batch.
        truth = self._coins(rows, step, random)
        first = 0
        for some in batched(rows, micro_batch):
            stop = first + len(some)
            masks = {name: mask[first:stop] for name, mask in truth.items()}
            first = stop
            yield len(some) / len(rows), *self.losses(some, masks, step, random)

    def losses(
        self, rows: Tensor, truth: dict[str, Tensor], step: int, random: Randomness
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of some windows; ``truth`` has a mask [B, T] for each ratio between 0 and 1."""
        batch = self.training.batch(rows, self.device)
        ratios = self.ratios(step)
        if ratios.get("epsilon_history", 1.0) < 1:
            mask = truth.get("epsilon_history")
            kept = None if mask is None else mask.to(self.device)
            batch = own_history(self.module, batch, kept, random.draws, step)
        self.module.train()
        with autocast(self.device):
            s1_logits, hidden = self.module.decode_s1(batch.s1, batch.s2, batch.stamp)
            condition = self._condition(batch, s1_logits, ratios["epsilon"], truth, step, random)
            s2_logits = self.module.decode_s2(hidden, condition)
            total, s1, s2 = self.module.head.compute_loss(
                s1_logits, s2_logits, batch.s1_targets, batch.s2_targets
            )
        return total, {"total": total.detach(), "s1": s1.detach(), "s2": s2.detach()}

    def _coins(self, rows: Tensor, step: int, random: Randomness) -> dict[str, Tensor]:
        """Masks [B, T] of the dials that stand between 0 and 1."""
        shape = (len(rows), self.config.window - 1)
        dials = {"epsilon": self.config.teacher_forcing, "epsilon_history": self.config.history}
        return {
            name: dials[name].mask(shape, step, self.total_steps, random.coins)
            for name, ratio in self.ratios(step).items()
            if 0 < ratio < 1
        }

    def _condition(
        self,
        batch: Batch,
        s1_logits: Tensor,
        epsilon: float,
        truth: dict[str, Tensor],
        step: int,
        random: Randomness,
    ) -> Tensor:
        """The s1 ids [B, T] that condition s2: the truth, own draws, or a mixture."""
        if epsilon == 1:
            return batch.s1_targets
        drawn = own_draws(s1_logits, random.draws, step)
        if epsilon == 0:
            return drawn
        return torch.where(truth["epsilon"].to(self.device), batch.s1_targets, drawn)

    def evaluate(self, module: Kronos, step: int, micro_batch: int) -> dict[str, float | None]:
        losses = evaluate(module, self.validation, self.config, self.device, step, micro_batch)
        return asdict(losses)


class TokenizerTask:
    """Reconstruction of normalised windows through the quantiser."""

    stage: Stage = "tokenizer"
    base_competes = True

    def __init__(
        self,
        module: KronosTokenizer,
        config: TrainingConfig,
        total_steps: int,
        training: WindowBars,
        validation: WindowBars,
        device: torch.device,
    ) -> None:
        assert config.tokenizer is not None
        self.module, self.config, self.total_steps = module, config, total_steps
        self.training, self.validation, self.device = training, validation, device
        settings = config.tokenizer
        self.learning_rate, self.clip_norm = settings.learning_rate, settings.clip_norm
        self.weight_decay = settings.weight_decay

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.training.sizes

    def ratios(self, step: int) -> dict[str, float]:
        return {}

    def parts(
        self, rows: Tensor, micro_batch: int, step: int, random: Randomness
    ) -> Iterator[Part]:
        self.module.train()
        for some in batched(rows, micro_batch):
            yield len(some) / len(rows), *self._losses(some)

    def _losses(self, rows: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        with autocast(self.device):
            losses = self.module.losses(self.training.batch(rows, self.device))
        use = self._use(*(ids.flatten().bincount(minlength=1) > 0 for ids in self._ids(losses)))
        return losses.total, {**_scalars(losses), "codebook_use": use}

    @torch.no_grad()
    def evaluate(
        self, module: KronosTokenizer, step: int, micro_batch: int
    ) -> dict[str, float | None]:
        module.eval()
        rows = evenly_spaced(len(self.validation), self.config.max_validation_windows)
        seen = [torch.zeros(2**bits, dtype=torch.bool) for bits in self._bits()]
        sums: dict[str, float] = {}
        for part in batched(rows, micro_batch):
            with autocast(self.device):
                losses = module.losses(self.validation.batch(part, self.device))
            for flags, ids in zip(seen, self._ids(losses), strict=True):
                flags[ids.flatten().cpu()] = True
            for name, value in _scalars(losses).items():
                sums[name] = sums.get(name, 0.0) + value.item() * len(part) / len(rows)
        return {**sums, "codebook_use": self._use(*seen).item()}

    def _ids(self, losses: TokenizerLosses) -> tuple[Tensor, Tensor]:
        return losses.s1_ids, losses.s2_ids

    def _bits(self) -> tuple[int, int]:
        return self.module.s1_bits, self.module.config["s2_bits"]

    def _use(self, *seen: Tensor) -> Tensor:
        """The mean over s1 and s2 of the share of the vocabulary that is flagged as seen."""
        shares = [flags.sum() / 2**bits for flags, bits in zip(seen, self._bits(), strict=True)]
        return torch.stack(shares).mean()


def _scalars(losses: TokenizerLosses) -> dict[str, Tensor]:
    names = ("total", "coarse", "fine", "commitment", "entropy_sample", "entropy_code")
    return {name: getattr(losses, name).detach().float() for name in names}
