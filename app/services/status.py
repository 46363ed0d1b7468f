"""What the machine is doing, for the line at the foot of every page."""

import os
import subprocess
import tomllib
from dataclasses import dataclass
from functools import lru_cache

import psutil
import torch

from app.settings import ROOT
from app.storage import Store, repository
from app.storage.models import ACTIVE_STATES
from kronos_core.model.zoo import resolve_device

GIGABYTE = 1024**3


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """The device in words, its memory in GiB (the GPU's own where there is one), and the work."""

    device: str
    memory_used_gb: float
    memory_total_gb: float
    running: int
    queued: int
    version: str


def status(store: Store) -> Status:
    """The state right now."""
    with store.session(write=False) as session:
        running = repository.count_runs(session, ACTIVE_STATES)
        queued = repository.count_runs(session, ("queued",))
    try:
        device = resolve_device(store.settings.device)
        label = _label(device)
    except ValueError:
        device, label = torch.device("cpu"), f"{store.settings.device} (not available)"
    used, total = _memory(device)
    return Status(
        device=label,
        memory_used_gb=used / GIGABYTE,
        memory_total_gb=total / GIGABYTE,
        running=running,
        queued=queued,
        version=version(),
    )


@lru_cache
def version() -> str:
    """The version of the program, with the commit where it runs from a clone: 0.1.0+1a2b3c4."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        number: str = tomllib.load(file)["project"]["version"]
    commit = _commit()
    return f"{number}+{commit}" if commit else number


def _commit() -> str:
    if not (ROOT / ".git").exists():
        return ""
    command = ["git", "rev-parse", "--short=7", "HEAD"]
    try:
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""


def _label(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "mps":
        return "Apple GPU"
    cores = os.cpu_count() or 1
    return f"CPU, {cores} core{'s' if cores > 1 else ''}"


def _memory(device: torch.device) -> tuple[int, int]:
    """Used and total bytes."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total - free, total
    memory = psutil.virtual_memory()
    return memory.total - memory.available, memory.total
