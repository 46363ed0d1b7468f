"""The tokens of every window, computed once: a frozen tokenizer gives the same ones each epoch.

Shapes: N windows, B of them in a batch, W = context + horizon bars in a window, T = W − 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from kronos_core.data.bars import CHANNELS
from kronos_core.data.windows import channel_stats, normalise, stamp_features
from kronos_core.model.tokenizer import KronosTokenizer
from kronos_core.training.config import TrainingConfig

ENCODING_BATCH = 64


@dataclass(frozen=True, slots=True)
class Batch:
    """One training batch: int64 inputs s1, s2 [B, T], stamp [B, T, 5], targets [B, T]."""

    s1: Tensor
    s2: Tensor
    stamp: Tensor
    s1_targets: Tensor
    s2_targets: Tensor


@dataclass(frozen=True, slots=True)
class WindowTokens:
    """Tokens s1, s2 [N, W] (int16 where the vocabulary allows) and the calendar of the series.

    stamp [bars, 5] is kept once for the whole series; starts [N] finds each window in it.
    """

    s1: Tensor
    s2: Tensor
    starts: Tensor
    stamp: Tensor

    def __len__(self) -> int:
        return len(self.starts)

    def batch(self, rows: Tensor, device: torch.device) -> Batch:
        """The windows at ``rows`` [B]: inputs without the last bar, targets without the first."""
        s1 = self.s1[rows].to(device).long()
        s2 = self.s2[rows].to(device).long()
        bars = self.starts[rows, None] + torch.arange(s1.shape[1] - 1)
        stamp = self.stamp[bars].to(device).long()
        return Batch(s1[:, :-1], s2[:, :-1], stamp, s1[:, 1:], s2[:, 1:])


def batched(rows: Tensor, size: int) -> list[Tensor]:
    """Row numbers [N] in parts of ``size``, the last one shorter where it does not come out."""
    return [rows[first : first + size] for first in range(0, len(rows), size)]


def epoch_batches(windows: int, batch_size: int, seed: int, epoch: int) -> list[Tensor]:
    """Row numbers [B] of each batch of an epoch: every window once, the last batch partial.

    The order depends on (seed, epoch) alone, so (epoch, batch number) is all of its state.
    """
    order = np.random.default_rng([seed, epoch]).permutation(windows)
    return batched(torch.from_numpy(order), batch_size)


def evenly_spaced(windows: int, limit: int) -> Tensor:
    """At most ``limit`` row numbers from first to last of ``windows`` rows."""
    chosen = np.linspace(0, windows - 1, min(windows, limit)).round()
    return torch.from_numpy(chosen).long()


@torch.no_grad()
def encode_windows(
    tokenizer: KronosTokenizer,
    bars: pd.DataFrame,
    starts: range,
    config: TrainingConfig,
    device: torch.device,
    progress: Callable[[int], None],
) -> WindowTokens:
    """Tokens of the windows that begin at ``starts``, each normalised by its context alone.

    ``bars`` is as ``as_bars`` gives it, the tokenizer stands on ``device`` in eval mode.
    ``progress`` is told the number of windows done after each batch; raising there stops.
    """
    values = bars[list(CHANNELS)].to_numpy(dtype=np.float64)
    windows = sliding_window_view(values, config.window, axis=0).transpose(0, 2, 1)
    parts: list[tuple[Tensor, Tensor]] = []
    for first in range(0, len(starts), ENCODING_BATCH):
        chosen = windows[list(starts[first : first + ENCODING_BATCH])]
        mean, scale = channel_stats(chosen[:, : config.context])
        z = torch.from_numpy(normalise(chosen, mean, scale)).to(device)
        s1, s2 = tokenizer.encode(z, half=True)
        parts.append((_narrow(s1), _narrow(s2)))
        progress(first + len(chosen))
    stamp = stamp_features(pd.DatetimeIndex(bars["timestamps"]))
    return WindowTokens(
        s1=torch.cat([s1 for s1, _ in parts]),
        s2=torch.cat([s2 for _, s2 in parts]),
        starts=torch.tensor(starts),
        stamp=torch.from_numpy(stamp).to(torch.int8),
    )


def _narrow(ids: Tensor) -> Tensor:
    """[B, W] on the CPU in int16, or int32 where a vocabulary is too large for it."""
    ids = ids.cpu()
    fits = int(ids.max()) <= torch.iinfo(torch.int16).max
    return ids.to(torch.int16 if fits else torch.int32)
