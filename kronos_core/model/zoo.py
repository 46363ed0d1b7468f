"""Bundles: a tokenizer and a predictor that belong together, from a folder or by name."""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import torch
from torch import nn

from kronos_core.model.files import BundleError, read_json
from kronos_core.model.hub import PINNED_REVISIONS, Progress, fetch_into, fetch_repository
from kronos_core.model.kronos import Kronos
from kronos_core.model.layers import RotaryMode
from kronos_core.model.tokenizer import KronosTokenizer

BUNDLE_FILE = "bundle.json"
ASSETS = Path(__file__).parent / "assets"
_RELEASED = {"max_context": 512, "s2_rotary": "origin"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ZooEntry:
    """A model that is known by name; the embedded one has no repositories."""

    name: str
    title: str
    description: str
    max_context: int
    parameters: int
    tokenizer_repo: str | None = None
    predictor_repo: str | None = None

    @property
    def embedded(self) -> bool:
        return self.predictor_repo is None


def _released(size: str, tokenizer: str, context: int, parameters: int, about: str) -> ZooEntry:
    return ZooEntry(
        name=f"kronos-{size}",
        title=f"Kronos-{size}",
        description=about,
        max_context=context,
        parameters=parameters,
        tokenizer_repo=f"NeoQuasar/{tokenizer}",
        predictor_repo=f"NeoQuasar/Kronos-{size}",
    )


ZOO = {
    entry.name: entry
    for entry in (
        ZooEntry(
            name="kronos-nano",
            title="Kronos-nano",
            description="Tiny model that comes with the workbench, trained on daily bars. "
            "Good for trying things out, too small to be relied upon.",
            max_context=256,
            parameters=209_216,
        ),
        _released(
            "mini",
            "Kronos-Tokenizer-2k",
            2048,
            4_108_032,
            "Smallest release, with the longest context.",
        ),
        _released(
            "small", "Kronos-Tokenizer-base", 512, 24_741_376, "The middle release, eight layers."
        ),
        _released(
            "base",
            "Kronos-Tokenizer-base",
            512,
            102_310_592,
            "Largest open release, twelve layers.",
        ),
    )
}


@dataclass(slots=True)
class Bundle:
    """A loaded tokenizer and predictor, in evaluation mode on one device.

    max_context is in bars; s2_rotary says how single s2 queries are rotated; hash is the SHA-256
    of all weights and settings; provenance says where the weights come from.
    """

    name: str
    tokenizer: KronosTokenizer
    predictor: Kronos
    max_context: int
    s2_rotary: RotaryMode
    provenance: dict[str, Any] = field(default_factory=dict)
    hash: str = ""

    def __post_init__(self) -> None:
        check_settings(self.max_context, self.s2_rotary)
        if (self.tokenizer.s1_bits, self.tokenizer.s2_bits) != (
            self.predictor.config["s1_bits"],
            self.predictor.config["s2_bits"],
        ):
            raise BundleError(
                f"the tokenizer of {self.name} has {self.tokenizer.s1_bits}+"
                f"{self.tokenizer.s2_bits} bits, its predictor {self.predictor.config['s1_bits']}+"
                f"{self.predictor.config['s2_bits']}: they do not belong together"
            )
        self.predictor.s2_rotary = self.s2_rotary
        self.hash = self.hash or hash_weights(self.tokenizer, self.predictor)

    @property
    def device(self) -> torch.device:
        return next(self.predictor.parameters()).device

    @property
    def parameters(self) -> int:
        """Number of the predictor's parameters."""
        return sum(p.numel() for p in self.predictor.parameters())


def check_settings(max_context: int, s2_rotary: str) -> None:
    """BundleError unless the two settings of a bundle make sense."""
    if isinstance(max_context, bool) or not isinstance(max_context, int) or max_context < 2:
        raise BundleError(f"max_context must be a whole number of at least 2, got {max_context!r}")
    if s2_rotary not in get_args(RotaryMode):
        raise BundleError(f's2_rotary must be "origin" or "position", got {s2_rotary!r}')


def resolve_device(name: str) -> torch.device:
    """ "auto" -> cuda, else mps, else cpu; any other name must be there (ValueError)."""
    if name == "auto":
        name = "cuda" if _has_cuda() else "mps" if _has_mps() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f'unknown device "{name}": use auto, cuda, mps or cpu') from error
    present = {"cpu": True, "cuda": _has_cuda(), "mps": _has_mps()}
    if not present.get(device.type, False):
        raise ValueError(f'device "{name}" is not available on this machine: use auto or cpu')
    return device


def _has_cuda() -> bool:
    return torch.cuda.is_available()


def _has_mps() -> bool:
    return torch.backends.mps.is_available()


def hash_weights(*modules: nn.Module) -> str:
    """SHA-256 over names, shapes and values of the modules' tensors."""
    digest = hashlib.sha256()
    for module in modules:
        for name, tensor in sorted(module.state_dict().items()):
            digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def load_bundle(
    path_or_name: str | os.PathLike[str],
    device: str = "auto",
    max_context: int | None = None,
    s2_rotary: RotaryMode | None = None,
) -> Bundle:
    """Load a bundle folder (tokenizer/, predictor/, optional bundle.json) or a name of the zoo.

    Without bundle.json the folder is taken for a released model: 512 bars, "origin".
    max_context (bars) and s2_rotary override what the bundle says. Raises BundleError when files
    are missing, do not fit or cannot be fetched, ValueError for a device that is not there.
    """
    target = resolve_device(device)
    name = str(path_or_name)
    folder = Path(path_or_name)
    if folder.is_dir():
        tokenizer_folder, predictor_folder = folder / "tokenizer", folder / "predictor"
        settings = read_settings(folder)
        name = str(settings.get("name") or folder.name)
    elif name in ZOO:
        entry = ZOO[name]
        if entry.embedded:
            return load_bundle(ASSETS / name, device, max_context, s2_rotary)
        assert entry.tokenizer_repo is not None
        assert entry.predictor_repo is not None
        tokenizer_folder = fetch_repository(entry.tokenizer_repo)
        predictor_folder = fetch_repository(entry.predictor_repo)
        settings = _released_settings(entry)
    else:
        raise BundleError(
            f"there is no model folder {name}, and no model of that name; "
            f"known names: {', '.join(ZOO)}"
        )
    return Bundle(
        name=name,
        tokenizer=KronosTokenizer.from_pretrained(tokenizer_folder).to(target),
        predictor=Kronos.from_pretrained(predictor_folder).to(target),
        max_context=settings["max_context"] if max_context is None else max_context,
        s2_rotary=settings["s2_rotary"] if s2_rotary is None else s2_rotary,
        provenance=settings.get("provenance", {}),
    )


def read_settings(folder: Path) -> dict[str, Any]:
    """What bundle.json says, or stands for it; BundleError if the folder is no bundle."""
    missing = [name for name in ("tokenizer", "predictor") if not (folder / name).is_dir()]
    if missing:
        raise BundleError(
            f"{folder} is no model bundle: it lacks {' and '.join(f'{n}/' for n in missing)}. "
            "A bundle folder holds tokenizer/ and predictor/, each with config.json and "
            "model.safetensors."
        )
    path = folder / BUNDLE_FILE
    return _RELEASED | (read_json(path) if path.exists() else {})


def _released_settings(entry: ZooEntry) -> dict[str, Any]:
    repositories = (entry.tokenizer_repo, entry.predictor_repo)
    revisions = {repo: PINNED_REVISIONS.get(str(repo), "main") for repo in repositories}
    return {
        "name": entry.name,
        "max_context": entry.max_context,
        "s2_rotary": "origin",
        "provenance": {"release": entry.title, "revisions": revisions},
    }


def save_bundle(bundle: Bundle, folder: str | os.PathLike[str]) -> None:
    """Write tokenizer/, predictor/ and bundle.json; an older folder is replaced as a whole."""
    with _replacing(Path(folder)) as aside:
        bundle.tokenizer.save_pretrained(aside / "tokenizer")
        bundle.predictor.save_pretrained(aside / "predictor")
        _write_settings(
            aside,
            {
                "name": bundle.name,
                "max_context": bundle.max_context,
                "s2_rotary": bundle.s2_rotary,
                "provenance": bundle.provenance,
            },
        )


def download(name: str, folder: str | os.PathLike[str], progress: Progress | None = None) -> Path:
    """Fetch a released model of the zoo into a bundle folder, or nothing at all.

    progress hears (bytes here, bytes in all); raising there ends the download. Raises BundleError
    for an unknown name, and when the hub cannot be reached: the message says how to place the
    files by hand.
    """
    entry = ZOO.get(name)
    if entry is None or entry.tokenizer_repo is None or entry.predictor_repo is None:
        names = ", ".join(entry.name for entry in ZOO.values() if not entry.embedded)
        raise BundleError(f'"{name}" is no released model: choose one of {names}')
    with _replacing(Path(folder)) as aside:
        parts = {
            aside / "tokenizer": entry.tokenizer_repo,
            aside / "predictor": entry.predictor_repo,
        }
        fetch_into(parts, progress)
        _write_settings(aside, _released_settings(entry))
    return Path(folder)


def _write_settings(folder: Path, settings: dict[str, Any]) -> None:
    text = json.dumps(settings, indent=2, sort_keys=True, ensure_ascii=False)
    (folder / BUNDLE_FILE).write_text(text, encoding="utf-8")


@contextmanager
def _replacing(folder: Path) -> Iterator[Path]:
    """A folder to fill aside, put in place only when everything went well."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder.parent) as scratch:
        aside = Path(scratch) / "new"
        aside.mkdir()
        yield aside
        if folder.exists():
            os.replace(folder, Path(scratch) / "old")
        os.replace(aside, folder)
