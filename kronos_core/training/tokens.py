"""The windows of a run, as tokens for the predictor and as normalised bars for the tokenizer.

A frozen tokenizer gives the same tokens each epoch, so they are computed once and kept.
Shapes: N windows, B of them in a batch, W = context + horizon bars in a window, T = W − 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from kronos_core.data.bars import CHANNELS
from kronos_core.data.windows import channel_stats, normalise, stamp_features
from kronos_core.model.tokenizer import KronosTokenizer
from kronos_core.training.config import TrainingConfig

ENCODING_BATCH = 64

Part = tuple[pd.DataFrame, range]
"""Bars as ``as_bars`` gives them, and the starts of the windows over them."""


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

    stamp [bars, 5] is kept once for all series, one after the other; starts [N] finds each window
    in it. sizes: the number of windows of each series.
    """

    s1: Tensor
    s2: Tensor
    starts: Tensor
    stamp: Tensor
    sizes: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.starts)

    def batch(self, rows: Tensor, device: torch.device) -> Batch:
        """The windows at ``rows`` [B]: inputs without the last bar, targets without the first."""
        s1 = self.s1[rows].to(device).long()
        s2 = self.s2[rows].to(device).long()
        bars = self.starts[rows, None] + torch.arange(s1.shape[1] - 1)
        stamp = self.stamp[bars].to(device).long()
        return Batch(s1[:, :-1], s2[:, :-1], stamp, s1[:, 1:], s2[:, 1:])


@dataclass(frozen=True, slots=True)
class WindowBars:
    """Windows over the bars of one or several series, normalised as they are asked for.

    values [bars, C] of all series one after the other; starts [N]; sizes as in ``WindowTokens``.
    """

    values: npt.NDArray[np.float64]
    starts: npt.NDArray[np.int64]
    window: int
    context: int
    sizes: tuple[int, ...]

    @classmethod
    def over(cls, parts: Sequence[Part], config: TrainingConfig) -> WindowBars:
        lengths = [len(bars) for bars, _ in parts]
        offsets = np.cumsum([0, *lengths[:-1]])
        columns = list(CHANNELS)
        return cls(
            values=np.concatenate([bars[columns].to_numpy(np.float64) for bars, _ in parts]),
            starts=np.concatenate(
                [
                    offset + np.asarray(starts, dtype=np.int64)
                    for offset, (_, starts) in zip(offsets, parts, strict=True)
                ]
            ),
            window=config.window,
            context=config.context,
            sizes=tuple(len(starts) for _, starts in parts),
        )

    def __len__(self) -> int:
        return len(self.starts)

    def batch(self, rows: Tensor, device: torch.device) -> Tensor:
        """float32 [B, W, C], each window normalised by its context alone."""
        bars = self.starts[rows.numpy()][:, None] + np.arange(self.window)
        chosen = self.values[bars]
        mean, scale = channel_stats(chosen[:, : self.context])
        return torch.from_numpy(normalise(chosen, mean, scale)).to(device)


@torch.no_grad()
def encode_windows(
    tokenizer: KronosTokenizer,
    parts: Sequence[Part],
    config: TrainingConfig,
    device: torch.device,
    progress: Callable[[int], None],
) -> WindowTokens:
    """Tokens of the windows of ``parts``, each normalised by its context alone.

    The tokenizer stands on ``device`` in eval mode. ``progress`` is told the number of windows
    done after each batch; raising there stops.
    """
    windows = WindowBars.over(parts, config)
    done: list[tuple[Tensor, Tensor]] = []
    for first in range(0, len(windows), ENCODING_BATCH):
        rows = torch.arange(first, min(first + ENCODING_BATCH, len(windows)))
        s1, s2 = tokenizer.encode(windows.batch(rows, device), half=True)
        done.append((_narrow(s1, tokenizer.s1_bits), _narrow(s2, tokenizer.s2_bits)))
        progress(first + len(rows))
    stamps = [stamp_features(pd.DatetimeIndex(bars["timestamps"])) for bars, _ in parts]
    return WindowTokens(
        s1=torch.cat([s1 for s1, _ in done]),
        s2=torch.cat([s2 for _, s2 in done]),
        starts=torch.from_numpy(windows.starts),
        stamp=torch.from_numpy(np.concatenate(stamps)).to(torch.int8),
        sizes=windows.sizes,
    )


def _narrow(ids: Tensor, bits: int) -> Tensor:
    """[B, W] on the CPU in int16, or int32 where the vocabulary is too large for it."""
    return ids.cpu().to(torch.int16 if bits < 16 else torch.int32)
