"""The optimiser of a stage and the average of its weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from kronos_core.training.config import TrainingConfig


def build_optimiser(
    module: nn.Module, config: TrainingConfig, weight_decay: float, device: torch.device
) -> torch.optim.AdamW:
    """AdamW over what is trained, in one pass over the weights where the device has it."""
    return torch.optim.AdamW(
        trained(module).values(),
        lr=config.learning_rate,  # set anew before every step
        betas=config.betas,
        weight_decay=weight_decay,
        fused=device.type in ("cpu", "cuda"),
    )


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: item for name, item in module.named_parameters() if item.requires_grad}


M = TypeVar("M", bound=nn.Module)


class Average(Generic[M]):
    """Exponential moving average of a module's trained weights, as a module to evaluate.

    The decay at update t is min(decay, (1 + t) / (10 + t)), so that the first weights are soon
    forgotten (as in TensorFlow's ExponentialMovingAverage).
    """

    def __init__(self, module: M, decay: float) -> None:
        self.module, self.decay = copy.deepcopy(module).eval().requires_grad_(False), decay

    @torch.no_grad()
    def update(self, module: M, step: int) -> None:
        weight = 1 - min(self.decay, (1 + step) / (10 + step))
        own = dict(self.module.named_parameters())
        for name, parameter in trained(module).items():
            own[name].lerp_(parameter, weight)

    def state(self, module: M) -> dict[str, Tensor]:
        """The averaged tensors, by the names of what ``module`` trains."""
        own = dict(self.module.named_parameters())
        return {name: own[name] for name in trained(module)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.module.load_state_dict(tensors, strict=False)
