"""The engine draws what full recomputation draws: ragged batches, chunks and long horizons too."""

import numpy as np
import pandas as pd
import pytest
import torch

from kronos_core import Bundle, SamplingConfig, estimate_memory, sample_many, sample_paths
from kronos_core.forecast.engine import Context, Engine
from kronos_core.forecast.forecaster import stride_of
from kronos_core.model.fused import Format
from tests.core.models import random_ids, random_stamp, tiny_bundle
from tests.core.test_cache import bars

FLOAT32 = Format(torch.float32, packed=True)
Ids = tuple[torch.Tensor, torch.Tensor]


def context(length: int, horizon: int) -> Context:
    s1, s2 = random_ids(1, length, seed=length)
    return Context(s1, s2, random_stamp(1, length + horizon, seed=length)[0])


def config(horizon: int, **changes: object) -> SamplingConfig:
    return SamplingConfig(**({"horizon": horizon, "paths": 2, "top_k": 1} | changes))


@torch.inference_mode()
def recompute(bundle: Bundle, known: Context, horizon: int) -> Ids:
    """The likeliest ids [1,H] by running the model over the whole window for every bar."""
    s1, s2 = known.s1_ids, known.s2_ids
    for now in range(known.length, known.length + horizon):
        window = slice(max(0, now - bundle.max_context), now)
        stamps = known.stamps[None, window]
        logits, hidden = bundle.predictor.decode_s1(s1[:, window], s2[:, window], stamps)
        next_s1 = logits[:, -1:].argmax(-1)
        next_s2 = bundle.predictor.decode_s2(hidden, next_s1)[:, -1:].argmax(-1)
        s1, s2 = torch.cat((s1, next_s1), 1), torch.cat((s2, next_s2), 1)
    return s1[:, known.length :], s2[:, known.length :]


@torch.inference_mode()
def draw(bundle: Bundle, contexts: list[Context], horizon: int, stride: int = 1) -> Ids:
    engine = Engine(bundle, contexts, range(2), config(horizon), stride, FLOAT32)
    return engine.draw_tokens(lambda step: None)


@pytest.mark.parametrize("rotary", ["origin", "position"])
@pytest.mark.parametrize(
    ("lengths", "max_context"),
    [((40,), 64), ((3, 40, 17), 64), ((40,), 44), ((20, 20), 23)],
    ids=["one", "ragged", "past the context", "two past the context"],
)
def test_greedy_ids_equal_full_recomputation(
    rotary: str, lengths: tuple[int, ...], max_context: int
) -> None:
    horizon = 12
    bundle = tiny_bundle(max_context=max_context, s2_rotary=rotary)
    contexts = [context(length, horizon) for length in lengths]
    drawn = draw(bundle, contexts, horizon)
    for index, known in enumerate(contexts):
        for ids, expected in zip(drawn, recompute(bundle, known, horizon), strict=True):
            assert torch.equal(ids[2 * index : 2 * index + 2], expected.expand(2, -1))


@pytest.mark.parametrize("rotary", ["origin", "position"])
def test_a_stride_recomputes_the_window_at_its_steps(rotary: str) -> None:
    """With stride n, the window spans max_context − n + 1 … max_context bars."""
    bundle = tiny_bundle(max_context=16, s2_rotary=rotary)
    known, horizon, stride = context(16, 12), 12, 4
    drawn = draw(bundle, [known], horizon, stride)
    s1, s2, start = known.s1_ids, known.s2_ids, 0
    with torch.inference_mode():
        for now in range(16, 16 + horizon):
            if now - start > 16:
                start = now - 13
            stamps = known.stamps[None, start:now]
            logits, hidden = bundle.predictor.decode_s1(s1[:, start:], s2[:, start:], stamps)
            next_s1 = logits[:, -1:].argmax(-1)
            next_s2 = bundle.predictor.decode_s2(hidden, next_s1)[:, -1:].argmax(-1)
            s1, s2 = torch.cat((s1, next_s1), 1), torch.cat((s2, next_s2), 1)
    assert torch.equal(drawn[0][:1], s1[:, 16:])
    assert torch.equal(drawn[1][:1], s2[:, 16:])


FILTERS = [
    {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    for temperature in (0.7, 1.5)
    for top_k in (None, 5)
    for top_p in (None, 0.8)
]


def probabilities(logits: torch.Tensor, settings: dict[str, float | None]) -> np.ndarray:
    """[V], by the definition of the filters, one token at a time."""
    weights = np.exp(logits.double().numpy() / settings["temperature"])
    order = np.argsort(-weights)[: settings["top_k"]]
    mass = weights[order].cumsum() / weights[order].sum()
    kept = order[: 1 + int((mass < (settings["top_p"] or 2)).sum())]
    result = np.zeros(len(weights))
    result[kept] = weights[kept] / weights[kept].sum()
    return result


@pytest.mark.parametrize("settings", FILTERS)
def test_sampled_tokens_follow_the_models_probabilities(
    settings: dict[str, float | None],
) -> None:
    """First s1, and s2 given the likeliest s1, of 4,000 paths against the exact distributions."""
    bundle, count, known = tiny_bundle(), 4000, context(20, 1)
    chosen = config(1, paths=count, **settings)
    with torch.inference_mode():
        engine = Engine(bundle, [known], range(count), chosen, 1, FLOAT32)
        s1, s2 = engine.draw_tokens(lambda step: None)
        logits, hidden = bundle.predictor.decode_s1(
            known.s1_ids, known.s2_ids, known.stamps[:20][None]
        )
        exact_s1 = probabilities(logits[0, -1], settings)
        check(s1[:, 0], exact_s1)
        best = int(exact_s1.argmax())
        s2_logits = bundle.predictor.decode_s2(hidden, torch.tensor([[best]]))
    check(s2[s1[:, 0] == best, 0], probabilities(s2_logits[0, -1], settings))


def check(ids: torch.Tensor, expected: np.ndarray) -> None:
    """Chi-square at a chance of one in 10,000; nothing that was cut is ever drawn."""
    seen = np.bincount(ids.numpy(), minlength=len(expected))
    possible = expected > 0
    assert not seen[~possible].any()
    wanted = len(ids) * expected[possible]
    statistic = ((seen[possible] - wanted) ** 2 / wanted).sum()
    if possible.sum() > 1:
        assert statistic < chi_square_limit(int(possible.sum()) - 1)


def chi_square_limit(freedom: int) -> float:
    """What is exceeded once in 10,000 (Wilson and Hilferty 1931)."""
    unit = 2 / (9 * freedom)
    return freedom * (1 - unit + 3.72 * unit**0.5) ** 3


LENGTHS = (40, 12, 25, 12)


def frames() -> list[pd.DataFrame]:
    return [bars(count, seed=index) for index, count in enumerate(LENGTHS)]


@pytest.mark.parametrize("settings", [{"top_k": 1}, {"top_p": 0.9, "seed": 5}])
@pytest.mark.parametrize(
    ("max_context", "stride"), [(64, None), (20, None), (20, 1)], ids=["fits", "past", "stride 1"]
)
@pytest.mark.parametrize("chunked", [False, True])
def test_many_series_at_once_equal_one_by_one(
    settings: dict[str, float], max_context: int, stride: int | None, chunked: bool
) -> None:
    bundle = tiny_bundle(max_context=max_context)
    horizon, paths = 12, 3
    memory = estimate_memory(bundle, max(LENGTHS), horizon, 2) if chunked else None
    together = sample_many(
        bundle, frames(), horizon, paths, stride=stride, memory=memory, **settings
    )
    for frame, forecast in zip(frames(), together, strict=True):
        alone = sample_paths(bundle, frame, horizon, paths, stride=stride, **settings)
        np.testing.assert_allclose(forecast.paths, alone.paths, rtol=1e-5)
        assert forecast.timestamps.equals(alone.timestamps)
        assert forecast.origin == alone.origin
        assert forecast.settings == alone.settings
        assert forecast.provenance == alone.provenance


def test_many_series_have_their_own_contexts_and_futures() -> None:
    future = pd.date_range("2030-01-01", periods=4, freq="D")
    one, two = sample_many(
        tiny_bundle(), [bars(40), bars(12)], 4, 2, futures=[future, None], context=20
    )
    assert one.timestamps.equals(future)
    assert (one.context, two.context) == (20, 12)
    assert two.timestamps[0] == bars(12).index[-1] + pd.Timedelta(hours=1)


def test_what_many_series_are_refused_for() -> None:
    bundle, good = tiny_bundle(), bars(20)
    cases = [
        ([], {}, "no series"),
        ([good, good.drop(columns="close")], {}, r"series 1 \(counted from 0\): .*close"),
        ([good, good.iloc[:1]], {}, r"series 1 .*at least 2 bars"),
        ([good, good], {"futures": [None]}, "one index per series, 2, got 1"),
        ([good], {"dtype": "float16"}, "unknown dtype"),
    ]
    for series, settings, reason in cases:
        with pytest.raises(ValueError, match=reason):
            sample_many(bundle, series, 4, 2, **settings)


def test_progress_goes_on_over_batches() -> None:
    bundle = tiny_bundle()
    seen: list[tuple[int, int]] = []
    memory = estimate_memory(bundle, 40, 5, 2)
    sample_paths(bundle, bars(), 5, 6, memory=memory, progress=lambda *now: seen.append(now))
    assert seen[0] == (0, 15)
    assert seen[-1] == (15, 15)
    assert seen == sorted(seen)


def test_half_precision_draws_finite_prices_near_the_full_ones() -> None:
    bundle = tiny_bundle()
    full = sample_paths(bundle, bars(), 8, 200)
    half = sample_paths(bundle, bars(), 8, 200, dtype="bfloat16")
    assert half.provenance["dtype"] == "bfloat16"
    assert np.isfinite(half.paths).all()
    spread = full.paths[..., 3].std()
    assert abs(half.paths[..., 3].mean() - full.paths[..., 3].mean()) < 0.2 * spread
    assert half.paths[..., 3].std() == pytest.approx(spread, rel=0.2)


@pytest.mark.parametrize(
    ("context_", "horizon", "stride", "expected"),
    [(40, 20, None, 1), (60, 64, None, 4), (64, 1000, None, 32), (64, 8, 1, 1)],
)
def test_the_default_stride_rebuilds_at_most_sixteen_times(
    context_: int, horizon: int, stride: int | None, expected: int
) -> None:
    assert stride_of(64, context_, horizon, stride) == expected
