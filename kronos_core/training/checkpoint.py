"""The resumable state of a run, in one safetensors file that is replaced atomically.

One file, because a single rename is atomic everywhere: at any moment there is either the old
state or the new one, whole. Scalars travel as JSON in the file's header; nothing is unpickled.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

FILE_NAME = "state.safetensors"
FORMAT = "kronos-workbench-run-2"

_WEIGHTS, _MOMENTS, _AVERAGE, _RANDOM = "weights/", "optimiser/", "average/", "random/"


class CheckpointError(ValueError):
    """A checkpoint that cannot be read or does not belong to this run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """What a file holds.

    weights: the state dict of the stage's module. moments: optimiser tensors as "parameter/key".
    average: averaged weights, empty without EMA. random: generator states, uint8. progress: JSON
    scalars (stage, step, best, settings).
    """

    weights: dict[str, Tensor]
    moments: dict[str, Tensor]
    average: dict[str, Tensor]
    random: dict[str, Tensor]
    progress: dict[str, Any]

    def restore(self, module: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        """Load weights and optimiser moments in place, on the devices of the module.

        Raises:
            CheckpointError: the module has other parameters than the saved one.
        """
        try:
            module.load_state_dict(self.weights, strict=True)
        except RuntimeError as error:
            raise CheckpointError(f"the checkpoint is of another model: {error}") from error
        state: dict[int, dict[str, Tensor]] = {}
        for index, name in enumerate(_optimised(module, optimiser)):
            prefix = f"{name}/"
            found = {
                key.removeprefix(prefix): value
                for key, value in self.moments.items()
                if key.startswith(prefix)
            }
            if found:
                state[index] = found
        groups = optimiser.state_dict()["param_groups"]
        optimiser.load_state_dict({"state": state, "param_groups": groups})


def save_checkpoint(
    folder: Path,
    *,
    module: nn.Module,
    optimiser: torch.optim.Optimizer,
    random: Mapping[str, Tensor],
    progress: Mapping[str, Any],
    average: Mapping[str, Tensor] | None = None,
) -> None:
    """Replace the checkpoint in ``folder`` by this state; on any error the old one stays.

    ``random`` holds generator states (uint8), ``progress`` JSON-safe values, ``average`` the
    averaged weights if there are any.
    """
    tensors = {
        **_flat(_WEIGHTS, module.state_dict()),
        **_flat(_MOMENTS, _moments(module, optimiser)),
        **_flat(_AVERAGE, average or {}),
        **_flat(_RANDOM, random),
    }
    header = {"format": FORMAT, "progress": json.dumps(dict(progress), sort_keys=True)}
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f".{FILE_NAME}.new"
    try:
        save_file(tensors, aside, metadata=header)
        _flush(aside)
        aside.replace(folder / FILE_NAME)
    finally:
        aside.unlink(missing_ok=True)
    _flush_folder(folder)


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """The state saved in ``folder``, on the CPU, or None when there is none.

    Raises:
        CheckpointError: the file is there but cannot be read.
    """
    path = folder / FILE_NAME
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            header = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise CheckpointError(_unreadable(folder, str(error))) from error
    if header.get("format") != FORMAT:
        raise CheckpointError(_unreadable(folder, f"format {header.get('format')!r}"))
    return Checkpoint(
        weights=_part(_WEIGHTS, tensors),
        moments=_part(_MOMENTS, tensors),
        average=_part(_AVERAGE, tensors),
        random=_part(_RANDOM, tensors),
        progress=json.loads(header["progress"]),
    )


def _unreadable(folder: Path, detail: str) -> str:
    return (
        f"the checkpoint {folder.name}/{FILE_NAME} cannot be read ({detail}); "
        "delete it to start the run from the base model"
    )


def _optimised(module: nn.Module, optimiser: torch.optim.Optimizer) -> list[str]:
    """Parameter names in the order in which the optimiser numbers them."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    return [names[id(item)] for group in optimiser.param_groups for item in group["params"]]


def _moments(module: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    state = optimiser.state_dict()["state"]
    return {
        f"{name}/{key}": value
        for index, name in enumerate(_optimised(module, optimiser))
        for key, value in state.get(index, {}).items()
    }


def _flat(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # Cloned because safetensors refuses tensors that share memory.
    return {
        prefix + name: tensor.detach().cpu().contiguous().clone()
        for name, tensor in tensors.items()
    }


def _part(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)
    }


def _flush(path: Path) -> None:
    with path.open("r+b") as file:
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    if os.name == "nt":  # Windows has no handle for folders
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
