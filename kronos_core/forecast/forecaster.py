"""From bars to sample paths: prepare the contexts, draw tokens, decode them to prices.

Shape letters: K paths of a chunk, P context bars, H horizon, C=6 channels.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from kronos_core.data.bars import CHANNELS, as_bars, hash_of
from kronos_core.data.calendars import future_timestamps
from kronos_core.data.windows import channel_stats, denormalise, normalise, stamp_features
from kronos_core.forecast.engine import Context, Engine
from kronos_core.forecast.forecast import Forecast
from kronos_core.forecast.memory import Batch, default_budget, plan_batches
from kronos_core.forecast.sampling import SamplingConfig
from kronos_core.model.fused import Format
from kronos_core.model.zoo import Bundle

Progress = Callable[[int, int], None]
Report = Callable[[int], None]
Floats = npt.NDArray[np.float64]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
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
    dtype: str = "float32",
    compiled: bool = False,
    memory: int | None = None,
) -> Forecast:
    """Draw `paths` futures of `horizon` bars that follow the last bar of `bars`.

    bars: open … amount with timestamps as a column `timestamps` or as the index; their wall clock
    is what the model sees. future: the timestamps of the horizon, inferred from the bars if None.
    The other settings and errors are those of `sample_many`.
    """
    (forecast,) = sample_many(
        bundle,
        [bars],
        horizon,
        paths,
        seed,
        temperature,
        top_k,
        top_p,
        None if future is None else [future],
        context=context,
        stride=stride,
        progress=progress,
        dtype=dtype,
        compiled=compiled,
        memory=memory,
    )
    return forecast


def sample_many(
    bundle: Bundle,
    series: Sequence[pd.DataFrame],
    horizon: int,
    paths: int,
    seed: int = 0,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    futures: Sequence[pd.DatetimeIndex | None] | None = None,
    *,
    context: int | None = None,
    stride: int | None = None,
    progress: Progress | None = None,
    dtype: str = "float32",
    compiled: bool = False,
    memory: int | None = None,
) -> list[Forecast]:
    """Draw `paths` futures of every series, all together; each equals its own `sample_paths`.

    context: bars to give to the model, at most its max_context; by default all of them, and where
    some must be cut, so many that the horizon fits behind the context too. With many series it is
    the most that each gives: a shorter one gives what it has. stride: past max_context, how many
    bars are drawn before the window moves on (1 is the release's rolling window; the default moves
    at most 16 times). dtype: "float32", or "bfloat16" for the predictor (prices are decoded in
    float32 all the same). compiled: run the steps through torch.compile, on CUDA as one graph;
    worth its start of a minute for many forecasts of one shape. memory: bytes that may be used
    beyond the model; what needs more is drawn in several batches. progress is called with
    (done, total) steps between steps and may raise Cancelled.

    Raises ValueError for bars (naming the series) or settings that cannot be used, and its
    subclass MemoryBudgetError when not even one path fits.
    """
    config = SamplingConfig(
        horizon=horizon,
        paths=paths,
        seed=seed,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
    )
    form = _format(dtype, compiled)
    prepared = _prepare_all(bundle, series, config, futures, context)
    strides = [stride_of(bundle.max_context, item.length, horizon, stride) for item in prepared]
    budget = default_budget(bundle.device) if memory is None else memory
    lengths = [item.length for item in prepared]
    batches = plan_batches(bundle, lengths, horizon, paths, budget, form.dtype)
    drawn: list[list[Floats]] = [[] for _ in prepared]
    for batch, report in zip(batches, _totals(batches, horizon, progress), strict=True):
        contexts = [prepared[index].tokens for index in batch.series]
        step = strides[batch.series[0]]
        with torch.inference_mode():
            engine = Engine(bundle, contexts, batch.paths, config, step, form, compiled)
            bars = [z.cpu().numpy() for z in engine.decode(*engine.draw_tokens(report))]
        for index, z in zip(batch.series, bars, strict=True):
            drawn[index].append(denormalise(z, prepared[index].mean, prepared[index].scale))
    return [
        _forecast(bundle, item, np.concatenate(parts), config.to_dict() | {"stride": step}, dtype)
        for item, parts, step in zip(prepared, drawn, strides, strict=True)
    ]


def _format(dtype: str, compiled: bool) -> Format:
    if dtype not in DTYPES:
        raise ValueError(f'unknown dtype "{dtype}": choose one of {", ".join(DTYPES)}')
    return Format(DTYPES[dtype], packed=not compiled)  # a compiler sees no packed weights


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A context and what the model reads of it."""

    bars: pd.DataFrame  # [P]
    future: pd.DatetimeIndex
    mean: Floats
    scale: Floats
    tokens: Context

    @property
    def length(self) -> int:
        return len(self.bars)


def _prepare_all(
    bundle: Bundle,
    series: Sequence[pd.DataFrame],
    config: SamplingConfig,
    futures: Sequence[pd.DatetimeIndex | None] | None,
    context: int | None,
) -> list[_Prepared]:
    if not series:
        raise ValueError("there is no series to forecast: give at least one")
    futures = [None] * len(series) if futures is None else futures
    if len(futures) != len(series):
        raise ValueError(
            f"futures must hold one index per series, {len(series)}, got {len(futures)}"
        )
    if len(series) == 1:
        return [_prepare(bundle, as_bars(series[0]), config, futures[0], context)]
    prepared = []
    for index, (bars, future) in enumerate(zip(series, futures, strict=True)):
        try:
            own = None if context is None else min(context, len(bars))
            prepared.append(_prepare(bundle, as_bars(bars), config, future, own))
        except ValueError as error:
            raise ValueError(f"series {index} (counted from 0): {error}") from error
    return prepared


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
    return _Prepared(kept, future, mean, scale, Context(s1_ids, s2_ids, stamps))


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


def stride_of(max_context: int, context: int, horizon: int, stride: int | None) -> int:
    """How many bars are drawn before the window of max_context bars moves on; ValueError if such
    a stride cannot be."""
    if stride is None:
        overflow = context + horizon - max_context
        return min(max(1, -(-overflow // _REBUILDS)), max_context // 2)
    if not 1 <= stride < max_context:
        raise ValueError(f"stride must lie in 1…{max_context - 1}, got {stride}")
    return stride


def _forecast(
    bundle: Bundle, item: _Prepared, paths: Floats, settings: dict[str, Any], dtype: str
) -> Forecast:
    return Forecast(
        paths=paths,
        timestamps=item.future,
        origin=item.bars["timestamps"].iloc[-1],
        last_close=float(item.bars["close"].iloc[-1]),
        context=item.length,
        settings=settings,
        provenance=_provenance(bundle, item.bars) | {"dtype": dtype},
    )


def _totals(batches: Sequence[Batch], horizon: int, progress: Progress | None) -> Iterator[Report]:
    """For each batch what its steps are reported to, counted on over all batches."""
    total = len(batches) * horizon
    for index in range(len(batches)):

        def report(step: int, before: int = index * horizon) -> None:
            if progress is not None:
                progress(before + step, total)

        yield report


@functools.cache
def _torch_version() -> str:
    """From the package's files, whose reading takes a millisecond or two."""
    return metadata.version("torch")


def _provenance(bundle: Bundle, context: pd.DataFrame) -> dict[str, str]:
    return {
        "model": bundle.name,
        "model_hash": bundle.hash,
        "s2_rotary": bundle.s2_rotary,
        "data_hash": hash_of(context),
        "device": bundle.device.type,
        "torch": _torch_version(),
    }
