"""How much memory a forecast takes, known before it starts, and how it is split to fit.

Counted are the tensors that live at once at the peak, beyond the loaded model and its decoding
copy: caches, what one step computes, and the decoded bars. Letters as in engine.py; F width of a
feed-forward layer.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import psutil
import torch

from kronos_core.data.bars import CHANNELS
from kronos_core.forecast.engine import PREFILL_TOKENS
from kronos_core.model.cache import DECODE_TOKENS
from kronos_core.model.zoo import Bundle

GB = 1e9
_CPU_BUDGET = int(1.5 * GB)  # more rows at once would not be faster
_CPU_ROWS = 512  # from here on a step of more rows only falls out of the processor's caches
_SHARE = 0.6  # of the memory that is free
_WIDE = 8  # bytes of a float64 or an id


class MemoryBudgetError(ValueError):
    """Not even one path fits into the memory that may be used."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Bytes of a forecast: for every series, for every path, and while one thing is computed.

    taking_in: computing a context. window: computing the window of a path past max_context.
    decoding: the decoder's cache of a context. decoded_path: decoding one path to bars.
    """

    series: int
    path: int
    taking_in: int
    window: int
    windows: int  # that are computed at once, at most
    decoding: int
    decoded_path: int
    decoded_paths: int  # at once, at most

    def of(self, series: int, paths: int) -> int:
        """Of `series` series with `paths` paths each."""
        moving = self.window * min(paths, self.windows)
        decoding = self.decoding + self.decoded_path * min(paths, self.decoded_paths)
        passing = max(self.taking_in, moving, decoding)
        return series * (self.series + paths * self.path) + passing


def costs(bundle: Bundle, context: int, horizon: int, dtype: torch.dtype) -> Costs:
    """What a forecast of `horizon` bars after `context` bars keeps, in bytes."""
    predictor, limit = bundle.predictor.config, bundle.max_context
    size = dtype.itemsize
    width, heads, ff = (predictor[name] for name in ("d_model", "n_heads", "ff_dim"))
    kept = 2 * size * width * (predictor["n_layers"] + 1)  # keys and values of one bar
    bar = size * (9 * width + 3 * ff)  # what one bar takes while a block computes
    vocabulary = max(bundle.predictor.s1_vocab_size, bundle.predictor.s2_vocab_size)
    drawing = (3 * size + 3 * _WIDE) * vocabulary
    scores = 3 * 4 * heads * (context + horizon)  # where no kernel avoids them
    path = kept * horizon + bar + drawing + scores + _results(horizon)
    past = context + horizon > limit
    if past:  # every path keeps a window of its own; the old one goes when the new one is there
        path += 3 * kept * limit + 4 * _WIDE * limit
    decoding = _decoding(bundle, context, horizon)
    return Costs(
        series=kept * context + size * width * (context + horizon),
        path=path,
        taking_in=bar * context,
        window=bar * limit * past,
        windows=max(1, PREFILL_TOKENS // limit),
        decoding=decoding[0],
        decoded_path=decoding[1],
        decoded_paths=max(1, DECODE_TOKENS // horizon),
    )


def _results(horizon: int) -> int:
    """Bytes of a path's noise, ids, decoded bars (float32) and prices (float64, twice)."""
    return horizon * (2 * _WIDE + 2 * _WIDE + len(CHANNELS) * (4 + 4 + 2 * _WIDE))


def _decoding(bundle: Bundle, context: int, horizon: int) -> tuple[int, int]:
    """Bytes of decoding behind one context: for the context, and for each path."""
    tokenizer = bundle.tokenizer.config
    width, heads, ff = (tokenizer[name] for name in ("d_model", "n_heads", "ff_dim"))
    bar = 4 * (11 * width + 3 * ff)
    scores = 0 if bundle.device.type == "cpu" else 3 * 4 * heads * (context + horizon)
    kept = 2 * 4 * width * tokenizer["n_dec_layers"]
    return int(context * (bar + kept)), int(horizon * (bar + scores))


def estimate_memory(
    bundle: Bundle,
    context: int,
    horizon: int,
    paths: int,
    series: int = 1,
    *,
    dtype: torch.dtype = torch.float32,
) -> int:
    """Bytes that drawing everything in one batch would add at its peak.

    context and horizon in bars, paths per series. A forecast that would take more than its
    budget is drawn in chunks and takes no more than the budget.
    """
    return costs(bundle, context, horizon, dtype).of(series, paths)


def default_budget(device: torch.device) -> int:
    """Bytes a forecast may take: 60 % of what is free, on a CPU at most 1.5 GB."""
    if device.type == "cuda":
        return int(_SHARE * torch.cuda.mem_get_info(device)[0])
    return min(_CPU_BUDGET, int(_SHARE * psutil.virtual_memory().available))


@dataclass(frozen=True, slots=True)
class Batch:
    """What is drawn together: some paths of some series (their indices)."""

    series: tuple[int, ...]
    paths: range


def plan_batches(
    bundle: Bundle,
    lengths: Sequence[int],
    horizon: int,
    paths: int,
    budget: int,
    dtype: torch.dtype = torch.float32,
) -> list[Batch]:
    """Batches that fit into `budget` bytes, for contexts of the given lengths in bars.

    Series of similar lengths come together, so that little is padded; those that outgrow
    max_context only with others of their very length. Raises MemoryBudgetError when not even
    one path fits, with the numbers and the remedy.
    """
    batches: list[Batch] = []
    waiting: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        longest = lengths[waiting[0]] if waiting else lengths[index]
        together = waiting and _alike(longest, lengths[index], horizon, bundle.max_context)
        needed = estimate_memory(bundle, longest, horizon, paths, len(waiting) + 1, dtype=dtype)
        crowded = bundle.device.type == "cpu" and (len(waiting) + 1) * paths > _CPU_ROWS
        if waiting and (not together or needed > budget or crowded):
            batches += _split(bundle, waiting, longest, horizon, paths, budget, dtype)
            waiting = []
        waiting.append(index)
    longest = lengths[waiting[0]]
    return batches + _split(bundle, waiting, longest, horizon, paths, budget, dtype)


def _alike(longest: int, length: int, horizon: int, max_context: int) -> bool:
    return longest == length or longest + horizon <= max_context


def _split(
    bundle: Bundle,
    series: Sequence[int],
    context: int,
    horizon: int,
    paths: int,
    budget: int,
    dtype: torch.dtype,
) -> list[Batch]:
    """One batch, or several chunks of the paths of a single series."""
    need = costs(bundle, context, horizon, dtype)
    counts = range(1, paths + 1)
    room = bisect_right(counts, budget, key=lambda count: need.of(1, count))
    if room == 0:
        raise MemoryBudgetError(
            f"one path of {horizon} bars after {context} bars needs {need.of(1, 1) / GB:.2g} GB "
            f"with {bundle.name}, and {budget / GB:.2g} GB may be used: shorten the context or "
            "the horizon, take a smaller model, or allow more memory"
        )
    size = paths if len(series) > 1 else room
    chunks = [range(first, min(first + size, paths)) for first in range(0, paths, size)]
    return [Batch(tuple(series), chunk) for chunk in chunks]
