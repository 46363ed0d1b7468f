"""Which windows each step trains on; the order follows from seed and epoch alone.

So (epoch, number of the batch) is all of its state, and a resumed run goes on exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Rows = npt.NDArray[np.int64]


def quotas(sizes: Sequence[int], weights: Sequence[float]) -> list[int]:
    """How many windows of each dataset an epoch shows: weight times its size, at least one."""
    return [max(1, round(weight * size)) for size, weight in zip(sizes, weights, strict=True)]


def epoch_batches(
    sizes: int | Sequence[int],
    batch_size: int,
    seed: int,
    epoch: int,
    weights: Sequence[float] | None = None,
) -> list[Tensor]:
    """Row numbers [B] of each batch of an epoch, the last batch partial.

    ``sizes`` counts the windows of each dataset; rows number them all in a row. With weight 1
    every window comes once an epoch. Each dataset goes through random orders of its own, one
    after the other, and takes as many windows per epoch as its quota says: weight 0.5 shows one
    half of the windows in one epoch and the other half in the next.
    """
    each = [sizes] if isinstance(sizes, int) else list(sizes)
    shown = quotas(each, [1.0] * len(each) if weights is None else weights)
    offsets = np.cumsum([0, *each[:-1]])
    parts = [
        offset + _stretch(size, quota, seed, epoch, number)
        for number, (offset, size, quota) in enumerate(zip(offsets, each, shown, strict=True))
    ]
    order = np.concatenate(parts)
    if len(parts) > 1:
        mixer = np.random.default_rng([seed, epoch, len(parts), 1])
        order = mixer.permutation(order)
    return batched(torch.from_numpy(order), batch_size)


def batched(rows: Tensor, size: int) -> list[Tensor]:
    """Row numbers [N] in parts of ``size``, the last one shorter where it does not come out."""
    return [rows[first : first + size] for first in range(0, len(rows), size)]


def evenly_spaced(windows: int, limit: int) -> Tensor:
    """At most ``limit`` row numbers from first to last of ``windows`` rows."""
    chosen = np.linspace(0, windows - 1, min(windows, limit)).round()
    return torch.from_numpy(chosen).long()


def _stretch(size: int, quota: int, seed: int, epoch: int, dataset: int) -> Rows:
    """Positions epoch·quota … (epoch + 1)·quota of one dataset's endless row of orders."""
    first, stop = epoch * quota, (epoch + 1) * quota
    passes = range(first // size, (stop - 1) // size + 1)
    orders = np.concatenate([_order(size, seed, number, dataset) for number in passes])
    skipped = first - passes.start * size
    return orders[skipped : skipped + quota]


def _order(size: int, seed: int, number: int, dataset: int) -> Rows:
    key = [seed, number, dataset] if dataset else [seed, number]
    return np.random.default_rng(key).permutation(size)
