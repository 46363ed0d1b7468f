"""The hot path: from the tokens of several contexts to drawn tokens and decoded bars.

Shape letters: G series, K paths of each, R = G·K rows, P context bars, H horizon, C=6 channels.
Rows are ordered by series, then by path.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kronos_core.forecast.sampling import SamplingConfig, draw, path_noise
from kronos_core.model.cache import (
    DECODE_TOKENS,
    PredictorCache,
    Prefix,
    decode_after_prefix,
    join,
    prefill,
)
from kronos_core.model.fused import Format, FusedPredictor, fused_predictor
from kronos_core.model.tokenizer import KronosTokenizer
from kronos_core.model.zoo import Bundle

PREFILL_TOKENS = 8192  # how many positions are taken in at once when every path has a window


@dataclass(frozen=True, slots=True)
class Context:
    """The tokens of one context, [1,P] each, and the calendar fields of context and horizon."""

    s1_ids: Tensor
    s2_ids: Tensor
    stamps: Tensor  # [P+H,5]

    @property
    def length(self) -> int:
        return self.s1_ids.shape[1]


class Engine:
    """Draws `paths` of every context; contexts of different lengths must all leave room for the
    horizon within max_context, contexts of one length need not."""

    def __init__(
        self,
        bundle: Bundle,
        contexts: Sequence[Context],
        paths: range,
        config: SamplingConfig,
        stride: int,
        form: Format,
        compiled: bool = False,
    ) -> None:
        self.bundle, self.contexts, self.config, self.stride = bundle, contexts, config, stride
        self.compiled = compiled
        self.weights: FusedPredictor = fused_predictor(bundle.predictor, form)
        self.rows = len(contexts) * len(paths)
        self.per_series = len(paths)
        noise = path_noise(config.seed, paths, config.horizon)
        device = "cpu" if bundle.device.type == "mps" else bundle.device  # it is float64
        self.noise = noise.repeat(len(contexts), 1, 1).to(device)
        times = [self.weights.times(context.stamps[None])[0] for context in contexts]
        self.past = [time[: -config.horizon] for time in times]  # [P,D] of each series
        self.future = torch.stack([time[-config.horizon :] for time in times])  # [G,H,D]

    def draw_tokens(self, report: Callable[[int], None]) -> tuple[Tensor, Tensor]:
        """s1 and s2 ids of the horizon, [R,H] each; report is told the steps done."""
        horizon = self.config.horizon
        s1_ids = self.contexts[0].s1_ids.new_zeros(self.rows, horizon)
        s2_ids = torch.zeros_like(s1_ids)
        cache = self._begin()
        for step in range(horizon):
            report(step)
            if step > 0:
                cache = self._take_in(cache, s1_ids, s2_ids, step)
            s1_ids[:, step] = draw(cache.s1_logits(), self.noise[:, step, 0], self.config)
            logits = cache.s2_logits(s1_ids[:, step])
            s2_ids[:, step] = draw(logits, self.noise[:, step, 1], self.config)
        report(horizon)
        return s1_ids, s2_ids

    def _begin(self) -> PredictorCache:
        prefixes = [
            prefill(self.weights, context.s1_ids, context.s2_ids, past[None])
            for context, past in zip(self.contexts, self.past, strict=True)
        ]
        return self._cache(join(prefixes))

    def _cache(self, prefix: Prefix) -> PredictorCache:
        room = min(self.config.horizon, self.bundle.max_context - max(prefix.lengths))
        return PredictorCache(self.weights, prefix, self.rows, room, self.compiled)

    def _take_in(
        self, cache: PredictorCache, s1_ids: Tensor, s2_ids: Tensor, step: int
    ) -> PredictorCache:
        """The cache after bar step − 1; past max_context the window moves on by `stride` bars."""
        if cache.length < self.bundle.max_context:
            cache.advance(s1_ids[:, step - 1], s2_ids[:, step - 1], self.future[:, step - 1])
            return cache
        return self._cache(self._window(s1_ids[:, :step], s2_ids[:, :step]))

    def _window(self, s1_ids: Tensor, s2_ids: Tensor) -> Prefix:
        """Take in the last bars of every row anew, from the ids drawn so far."""
        length = self.bundle.max_context - self.stride + 1
        prefixes: list[Prefix] = []
        for context, past, future, *drawn in zip(
            self.contexts, self.past, self.future, *self._by_series(s1_ids, s2_ids), strict=True
        ):
            time = torch.cat((past, future[: s1_ids.shape[1]]))[None, -length:]
            pairs = zip((context.s1_ids, context.s2_ids), drawn, strict=True)
            windows = [append_rows(known, new)[:, -length:] for known, new in pairs]
            parts = in_slices(windows, PREFILL_TOKENS)
            prefixes += [prefill(self.weights, s1, s2, time) for s1, s2 in parts]
        return join(prefixes)

    def _by_series(self, *ids: Tensor) -> tuple[tuple[Tensor, ...], ...]:
        return tuple(torch.split(x, self.per_series) for x in ids)

    def decode(self, s1_ids: Tensor, s2_ids: Tensor) -> list[Tensor]:
        """Normalised bars [K,H,C] of each series, from the ids [R,H] of the horizon."""
        limit, tokenizer = self.bundle.max_context, self.bundle.tokenizer
        return [
            decode_horizon(tokenizer, (context.s1_ids, context.s2_ids), (s1, s2), limit)
            for context, s1, s2 in zip(self.contexts, *self._by_series(s1_ids, s2_ids), strict=True)
        ]


def append_rows(known: Tensor, new: Tensor) -> Tensor:
    """[1,P] before each row of [K,T] -> [K,P+T]."""
    return torch.cat((known.expand(len(new), -1), new), dim=1)


def decode_horizon(
    tokenizer: KronosTokenizer,
    context: tuple[Tensor, Tensor],
    drawn: tuple[Tensor, Tensor],
    limit: int,
) -> Tensor:
    """Normalised bars [K,H,C] of drawn ids [K,H] that follow context ids [1,P].

    Each block of the horizon is decoded behind the bars before it, `limit` in all, as the
    release decodes the last max_context tokens.
    """
    known, horizon = context[0].shape[1], drawn[0].shape[1]
    size = horizon if horizon < limit else limit // 2
    decoded = []
    for begin in range(0, horizon, size):
        stop = min(begin + size, horizon)
        start = max(0, known + stop - limit)
        if begin == 0:
            s1, s2 = drawn
            prefix = (context[0][:, start:], context[1][:, start:])
            decoded.append(decode_after_prefix(tokenizer, prefix, (s1[:, :stop], s2[:, :stop])))
        else:
            pairs = zip(context, drawn, strict=True)
            windows = [append_rows(*pair)[:, start : known + stop] for pair in pairs]
            decoded.append(decode_windows(tokenizer, windows)[:, begin - stop :])
    return torch.cat(decoded, dim=1)


def decode_windows(tokenizer: KronosTokenizer, ids: Sequence[Tensor]) -> Tensor:
    """Normalised bars [K,T,C] of ids [K,T], a few rows at a time."""
    parts = in_slices(ids, DECODE_TOKENS)
    return torch.cat([tokenizer.decode(part, half=True) for part in parts])


def in_slices(ids: Sequence[Tensor], tokens: int) -> Iterator[tuple[Tensor, ...]]:
    """Ids [R,T] of each kind, some rows at a time, with about `tokens` positions in a slice."""
    rows = max(1, tokens // ids[0].shape[1])
    return zip(*(torch.split(x, rows) for x in ids), strict=True)
