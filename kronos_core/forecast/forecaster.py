"""From bars to sample paths: prepare the context, draw tokens, decode them to prices.

Shape letters: S paths of a chunk, P context bars, H horizon, C=6 channels.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from kronos_core.data.bars import CHANNELS, as_bars, bars_hash
from kronos_core.data.calendars import future_timestamps
from kronos_core.data.windows import channel_stats, denormalise, normalise, stamp_features
from kronos_core.forecast.forecast import Forecast
from kronos_core.forecast.sampling import SamplingConfig, draw, path_noise
from kronos_core.model.cache import PredictorCache, decode_after_prefix
from kronos_core.model.zoo import Bundle

Progress = Callable[[int, int], None]
_CACHE_BYTES = 2 * 1024**3  # what the caches of one chunk of paths may take
_REBUILDS = 16  # how often, at most, a forecast past the context rebuilds its caches by default


class Cancelled(Exception):  # noqa: N818 (not an error: somebody asked for it)
    """Raised from a progress callback to stop a forecast between two steps."""


def sample_paths(
    bundle: Bundle,
    bars: pd.DataFrame,
    horizon: int,
    paths: int,
    seed: int = 0,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    future: pd.DatetimeIndex | None = None,
    *,
    context: int | None = None,
    stride: int | None = None,
    progress: Progress | None = None,
) -> Forecast:
    """Draw `paths` futures of `horizon` bars that follow the last bar of `bars`.

    bars: open … amount with timestamps as a column `timestamps` or as the index; their wall clock
    is what the model sees. future: the timestamps of the horizon, inferred from the bars if None.
    context: bars to give to the model, at most its max_context; by default all of them, and where
    some must be cut, so many that the horizon fits behind the context too. stride: past
    max_context, how many bars are drawn before the window moves on (1 is the release's rolling
    window; the default moves at most 16 times). progress is called with (done, total) between
    steps and may raise Cancelled. Raises ValueError for bars or settings that cannot be used.
    """
    config = SamplingConfig(
        horizon=horizon,
        paths=paths,
        seed=seed,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
    )
    prepared = _prepare(bundle, as_bars(bars), config, future, context)
    sampler = _Sampler(bundle, prepared, config, _stride(bundle, prepared, horizon, stride))
    chunks = sampler.chunks()
    total = len(chunks) * horizon
    drawn = []
    for index, chunk in enumerate(chunks):

        def report(step: int, before: int = index * horizon) -> None:
            if progress is not None:
                progress(before + step, total)

        drawn.append(sampler.run(chunk, report))
    return Forecast(
        paths=np.concatenate(drawn),
        timestamps=prepared.future,
        origin=prepared.context["timestamps"].iloc[-1],
        last_close=float(prepared.context["close"].iloc[-1]),
        context=len(prepared.context),
        settings=config.to_dict() | {"stride": sampler.stride},
        provenance=_provenance(bundle, prepared.context),
    )


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The context [P] and what the model reads of it."""

    context: pd.DataFrame
    future: pd.DatetimeIndex
    mean: npt.NDArray[np.float64]
    scale: npt.NDArray[np.float64]
    s1_ids: Tensor  # [1,P]
    s2_ids: Tensor  # [1,P]
    stamps: Tensor  # [P+H,5]


def _prepare(
    bundle: Bundle,
    bars: pd.DataFrame,
    config: SamplingConfig,
    future: pd.DatetimeIndex | None,
    context: int | None,
) -> _Prepared:
    length = context_length(len(bars), config.horizon, bundle.max_context, context)
    kept = bars.iloc[len(bars) - length :].reset_index(drop=True)
    past = pd.DatetimeIndex(bars["timestamps"])
    if future is None:
        future = future_timestamps(past, config.horizon)
    _check_future(future, past[-1], config.horizon)
    values = kept[list(CHANNELS)].to_numpy(np.float64)
    mean, scale = channel_stats(values)
    z = torch.from_numpy(normalise(values, mean, scale))[None].to(bundle.device)
    with torch.inference_mode():
        s1_ids, s2_ids = bundle.tokenizer.encode(z, half=True)
    features = [stamp_features(pd.DatetimeIndex(kept["timestamps"])), stamp_features(future)]
    stamps = torch.from_numpy(np.concatenate(features)).to(bundle.device)
    return _Prepared(kept, future, mean, scale, s1_ids, s2_ids, stamps)


def context_length(bars: int, horizon: int, max_context: int, context: int | None) -> int:
    """How many of the last bars the model is given; ValueError when there are too few."""
    if bars < 2:
        raise ValueError(f"a forecast needs at least 2 bars of context, got {bars}")
    if context is not None:
        if not 2 <= context <= min(bars, max_context):
            raise ValueError(
                f"context must lie in 2…{min(bars, max_context)} bars here ({bars} are given, the "
                f"model takes {max_context}), got {context}"
            )
        return context
    if bars < max_context:
        return bars
    return max(max_context - horizon, max_context // 2)


def _check_future(future: pd.DatetimeIndex, last: pd.Timestamp, horizon: int) -> None:
    if len(future) != horizon:
        raise ValueError(f"future must hold {horizon} timestamps, got {len(future)}")
    if (future.tz is None) != (last.tz is None):
        raise ValueError("future and the bars must both have a time zone, or both none")
    if future[0] <= last or not (future.is_monotonic_increasing and future.is_unique):
        raise ValueError(f"future must increase and start after the last bar, {last}")


def _stride(bundle: Bundle, prepared: _Prepared, horizon: int, stride: int | None) -> int:
    if stride is None:
        overflow = len(prepared.context) + horizon - bundle.max_context
        return min(max(1, -(-overflow // _REBUILDS)), bundle.max_context // 2)
    if not 1 <= stride < bundle.max_context:
        raise ValueError(f"stride must lie in 1…{bundle.max_context - 1}, got {stride}")
    return stride


@dataclass(slots=True)
class _Sampler:
    bundle: Bundle
    prepared: _Prepared
    config: SamplingConfig
    stride: int

    def chunks(self) -> list[range]:
        """Path indices in chunks whose caches fit into memory."""
        size = max(1, _CACHE_BYTES // self._bytes_per_path())
        paths = self.config.paths
        return [range(first, min(first + size, paths)) for first in range(0, paths, size)]

    def _bytes_per_path(self) -> int:
        own = self.config.horizon
        if self.prepared.s1_ids.shape[1] + own > self.bundle.max_context:
            own = self.bundle.max_context  # a path past the context has a prefix of its own
        predictor, tokenizer = self.bundle.predictor.config, self.bundle.tokenizer.config
        layers = predictor["n_layers"] + 1
        kept = 2 * 4 * own * predictor["d_model"] * layers
        scores = 4 * self.config.horizon * tokenizer["n_heads"] * self.bundle.max_context
        return int(kept + 2 * scores)

    @torch.inference_mode()
    def run(self, chunk: range, report: Callable[[int], None]) -> npt.NDArray[np.float64]:
        """Draw and decode the paths of one chunk -> [S,H,C] in price units."""
        s1_ids, s2_ids = self._draw_tokens(chunk, report)
        z = self._decode(s1_ids, s2_ids)
        return denormalise(z.float().cpu().numpy(), self.prepared.mean, self.prepared.scale)

    def _draw_tokens(self, chunk: range, report: Callable[[int], None]) -> tuple[Tensor, Tensor]:
        """Ids of context and horizon [S,P+H]."""
        rows, horizon = len(chunk), self.config.horizon
        noise = path_noise(self.config.seed, chunk, horizon)
        known = self.prepared.s1_ids.shape[1]
        s1_ids = self._room(self.prepared.s1_ids, rows)
        s2_ids = self._room(self.prepared.s2_ids, rows)
        cache = self._prefill(self.prepared.s1_ids, self.prepared.s2_ids, 0, rows)
        for step in range(horizon):
            report(step)
            now = known + step
            if step > 0:
                cache = self._take_in(cache, s1_ids, s2_ids, now)
            s1_ids[:, now] = draw(cache.s1_logits(), noise[:, step, 0], self.config)
            logits = cache.s2_logits(s1_ids[:, now])
            s2_ids[:, now] = draw(logits, noise[:, step, 1], self.config)
        report(horizon)
        return s1_ids, s2_ids

    def _room(self, ids: Tensor, rows: int) -> Tensor:
        return torch.cat((ids, ids.new_zeros(1, self.config.horizon)), dim=1).repeat(rows, 1)

    def _prefill(self, s1_ids: Tensor, s2_ids: Tensor, start: int, rows: int) -> PredictorCache:
        length = s1_ids.shape[1]
        stamps = self.prepared.stamps[start : start + length].expand(s1_ids.shape[0], length, -1)
        room = min(self.config.horizon, self.bundle.max_context - length)
        return PredictorCache(self.bundle.predictor, s1_ids, s2_ids, stamps, rows, room)

    def _take_in(
        self, cache: PredictorCache, s1_ids: Tensor, s2_ids: Tensor, now: int
    ) -> PredictorCache:
        """The cache after bar now − 1; past max_context the window moves on by `stride` bars."""
        if cache.length < self.bundle.max_context:
            cache.advance(s1_ids[:, now - 1], s2_ids[:, now - 1], self.prepared.stamps[now - 1])
            return cache
        start = now - (self.bundle.max_context - self.stride + 1)
        return self._prefill(s1_ids[:, start:now], s2_ids[:, start:now], start, s1_ids.shape[0])

    def _decode(self, s1_ids: Tensor, s2_ids: Tensor) -> Tensor:
        """Normalised bars [S,H,C] of the horizon, from ids [S,P+H].

        Each block of the horizon is decoded behind the bars before it, max_context in all, as the
        release decodes the last max_context tokens.
        """
        end = s1_ids.shape[1]
        first = end - self.config.horizon
        limit = self.bundle.max_context
        size = self.config.horizon if self.config.horizon < limit else limit // 2
        decoded = []
        for begin in range(first, end, size):
            stop = min(begin + size, end)
            start = max(0, stop - limit)
            decoded.append(self._decode_block(s1_ids, s2_ids, start, begin, stop))
        return torch.cat(decoded, dim=1)

    def _decode_block(
        self, s1_ids: Tensor, s2_ids: Tensor, start: int, begin: int, stop: int
    ) -> Tensor:
        tokenizer = self.bundle.tokenizer
        if begin == self.prepared.s1_ids.shape[1]:
            prefix = (s1_ids[:1, start:begin], s2_ids[:1, start:begin])
            return decode_after_prefix(
                tokenizer, prefix, (s1_ids[:, begin:stop], s2_ids[:, begin:stop])
            )
        window = [s1_ids[:, start:stop], s2_ids[:, start:stop]]
        return tokenizer.decode(window, half=True)[:, begin - start :]


def _provenance(bundle: Bundle, context: pd.DataFrame) -> dict[str, str]:
    return {
        "model": bundle.name,
        "model_hash": bundle.hash,
        "s2_rotary": bundle.s2_rotary,
        "data_hash": bars_hash(context),
        "device": bundle.device.type,
        "torch": metadata.version("torch"),
    }
