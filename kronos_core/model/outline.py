"""The shape of a bundle without its weights: what it would need is known before it is loaded."""

import os
from functools import lru_cache
from pathlib import Path

import torch

from kronos_core.model.files import CONFIG_FILE, WEIGHTS_FILE, BundleError
from kronos_core.model.kronos import Kronos
from kronos_core.model.tokenizer import KronosTokenizer
from kronos_core.model.zoo import ASSETS, ZOO, Bundle, read_settings

PARTS = ("tokenizer", "predictor")


class Outline(Bundle):
    """A bundle whose tensors hold no data; `device` is where they would lie."""

    __slots__ = ("target",)
    target: torch.device

    @property
    def device(self) -> torch.device:
        return self.target


def outline(source: str | os.PathLike[str], device: torch.device) -> Outline:
    """The outline of a bundle folder or a built-in model.

    Raises BundleError when files are missing, whether or not they were there before.
    """
    folder = ASSETS / source if str(source) in ZOO else Path(source)
    for part in PARTS:
        for name in (CONFIG_FILE, WEIGHTS_FILE):
            if not (folder / part / name).is_file():
                raise BundleError(f"{folder / part / name} is missing: import the model again")
    configs = [folder / part / CONFIG_FILE for part in PARTS]
    return _outline(folder, device, max(path.stat().st_mtime_ns for path in configs))


@lru_cache(maxsize=32)
def _outline(folder: Path, device: torch.device, _changed: int) -> Outline:
    settings = read_settings(folder)
    with torch.device("meta"):
        tokenizer = KronosTokenizer.from_config(folder / "tokenizer" / CONFIG_FILE)
        predictor = Kronos.from_config(folder / "predictor" / CONFIG_FILE)
    made = Outline(
        name=str(settings.get("name") or folder.name),
        tokenizer=tokenizer,
        predictor=predictor,
        max_context=settings["max_context"],
        s2_rotary=settings["s2_rotary"],
        hash="outline",
    )
    made.target = device
    return made
