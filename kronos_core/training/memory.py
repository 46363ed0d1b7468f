"""Memory: how much is in use, and what to do when there is not enough."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch

MEBIBYTE = 2.0**20
_SIGNS = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory")
_SAMPLING_SECONDS = 0.005


class OutOfMemory(RuntimeError):  # noqa: N818 - reads better where it is raised
    """A step does not fit into memory; the message says with what settings and what to change."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out, on whatever device."""
    if isinstance(error, OutOfMemory | MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError | OSError) and any(sign in text for sign in _SIGNS)


def memory_mb(device: torch.device) -> float:
    """Memory in MiB: the peak of the device's tensors, or what this process holds on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / MEBIBYTE
    if device.type == "mps":
        return torch.mps.driver_allocated_memory() / MEBIBYTE
    return float(psutil.Process().memory_info().rss) / MEBIBYTE


def free_memory(device: torch.device) -> None:
    """Give cached blocks back after a step that did not fit."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    if device.type == "mps":
        torch.mps.empty_cache()


class Peak:
    """The highest memory figure seen, in MiB."""

    def __init__(self) -> None:
        self.mb = 0.0


@contextmanager
def watched(device: torch.device) -> Iterator[Peak]:
    """Measure the peak of ``memory_mb`` while the block runs.

    A device keeps its own peak; the size of a process is sampled from a thread.
    """
    peak, ended = Peak(), threading.Event()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)

    def sample() -> None:
        while not ended.is_set():
            peak.mb = max(peak.mb, memory_mb(device))
            time.sleep(_SAMPLING_SECONDS)

    thread = threading.Thread(target=sample, name="memory", daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()
        peak.mb = max(peak.mb, memory_mb(device))
