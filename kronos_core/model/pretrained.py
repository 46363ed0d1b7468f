"""Saving and loading a module as config.json + model.safetensors, strictly and without pickle."""

import inspect
import json
import os
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from kronos_core.model.files import CONFIG_FILE, WEIGHTS_FILE, BundleError, read_json
from kronos_core.model.hub import fetch_repository


class Pretrained(nn.Module):
    """A module that is rebuilt from the keyword arguments kept in `config`."""

    config: dict[str, Any]

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write config.json and model.safetensors into `folder`, which is created."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        (path / CONFIG_FILE).write_text(json.dumps(self.config, indent=2, sort_keys=True))
        weights = {name: t.detach().cpu().contiguous() for name, t in self.state_dict().items()}
        save_file(weights, path / WEIGHTS_FILE)

    @classmethod
    def from_pretrained(cls, source: str | os.PathLike[str], revision: str | None = None) -> Self:
        """Load from a folder, or from a Hugging Face id such as "NeoQuasar/Kronos-small".

        The module comes back in evaluation mode on the CPU. Raises BundleError when files are
        missing or do not fit, and when an id cannot be reached.
        """
        folder = Path(source)
        if not folder.is_dir():
            folder = fetch_repository(str(source), revision)
        module = cls.from_config(folder / CONFIG_FILE)
        module._load_weights(folder / WEIGHTS_FILE)
        return module.eval()

    @classmethod
    def from_config(cls, path: Path) -> Self:
        """A module with random weights, built as a config.json says. Raises BundleError."""
        config = read_json(path)
        known = set(inspect.signature(cls.__init__).parameters) - {"self"}
        if unknown := sorted(set(config) - known):
            raise BundleError(
                f"{path} has unknown settings {', '.join(unknown)} for {cls.__name__}"
            )
        try:
            return cls(**config)
        except (TypeError, ValueError) as error:
            raise BundleError(f"{path} does not describe a {cls.__name__}: {error}") from error

    def _load_weights(self, path: Path) -> None:
        if not path.is_file():
            raise BundleError(f"{path} is missing: a model folder needs {WEIGHTS_FILE}")
        try:
            weights = load_file(path)
        except (SafetensorError, OSError) as error:
            raise BundleError(f"{path} is not a readable safetensors file: {error}") from error
        self._check_names(path, weights)
        self.load_state_dict(weights, strict=True)

    def _check_names(self, path: Path, weights: dict[str, torch.Tensor]) -> None:
        own = self.state_dict()
        problems = [f"missing {name}" for name in own if name not in weights]
        problems += [f"unexpected {name}" for name in weights if name not in own]
        problems += [
            f"{name} is {tuple(weights[name].shape)}, expected {tuple(own[name].shape)}"
            for name in own
            if name in weights and weights[name].shape != own[name].shape
        ]
        if problems:
            shown = "; ".join(problems[:3]) + (" …" if len(problems) > 3 else "")
            raise BundleError(
                f"{path} does not fit {type(self).__name__} as its {CONFIG_FILE} describes it: "
                f"{shown}. Check that both files come from the same model."
            )
