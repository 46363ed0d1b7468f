"""All random states of a run, so that a resumed run draws what the uninterrupted one would."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class Randomness:
    """Dropout's global state; coins (teacher forcing, on the CPU) and draws (on the device)."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self.device = device
        self.coins = torch.Generator().manual_seed(seed)
        self.draws = torch.Generator(device).manual_seed(seed)

    def state(self) -> dict[str, Tensor]:
        states = {
            "global": torch.get_rng_state(),
            "coins": self.coins.get_state(),
            "draws": self.draws.get_state(),
        }
        if self.device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(self.device)
        return states

    def restore(self, states: Mapping[str, Tensor], *, same_device: bool = True) -> None:
        """On another type of device than the states are of, its own generators stay as they are."""
        torch.set_rng_state(states["global"])
        self.coins.set_state(states["coins"])
        if same_device:
            self.draws.set_state(states["draws"])
        if same_device and self.device.type == "cuda":
            torch.cuda.set_rng_state(states["cuda"], self.device)
