"""Cached decoding equals full recomputation, and paths do not influence each other."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from kronos_core import Cancelled, sample_paths
from kronos_core.forecast import forecaster
from kronos_core.model.cache import PredictorCache, PrefixCache, decode_after_prefix
from tests.core.models import random_ids, random_stamp, tiny_bundle, tiny_predictor, tiny_tokenizer

CONTEXT, NEW, ROWS = 9, 5, 4


def bars(count: int = 40, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    close = 100 * np.exp(np.cumsum(rng.normal(0, 0.01, count)))
    frame = pd.DataFrame({"open": close * 1.001, "high": close * 1.01, "low": close * 0.99})
    frame["close"] = close
    frame["volume"] = rng.uniform(1e3, 1e4, count)
    frame.index = pd.date_range("2024-01-01", periods=count, freq="h")
    return frame


@given(
    groups=st.integers(1, 3), paths=st.integers(1, 3), prefix=st.integers(1, 9),
    suffix=st.integers(1, 6), fresh=st.integers(1, 6), seed=st.integers(0, 1000),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_prefix_merge_equals_plain_attention(
    groups: int, paths: int, prefix: int, suffix: int, fresh: int, seed: int
) -> None:
    fresh = min(fresh, suffix)
    rows, heads, width = groups * paths, 2, 4
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return 4 * torch.randn(*shape, generator=generator)

    keys, values = (random(groups, heads, prefix, width) for _ in range(2))
    own_keys, own_values = (random(rows, heads, suffix, width) for _ in range(2))
    queries = random(rows, heads, fresh, width)
    cache = PrefixCache.over(keys, values, rows, suffix)
    cache.append(own_keys[:, :, : suffix - fresh], own_values[:, :, : suffix - fresh])
    cache.append(own_keys[:, :, suffix - fresh :], own_values[:, :, suffix - fresh :])
    all_keys = torch.cat((keys.repeat_interleave(paths, 0), own_keys), dim=2)
    all_values = torch.cat((values.repeat_interleave(paths, 0), own_values), dim=2)
    total = prefix + suffix
    mask = torch.ones(fresh, total, dtype=torch.bool).tril(total - fresh)
    expected = scaled_dot_product_attention(queries, all_keys, all_values, attn_mask=mask)
    torch.testing.assert_close(cache.attend(queries), expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("rotary", ["origin", "position"])
@pytest.mark.parametrize("groups", [1, ROWS])
def test_cached_logits_equal_recomputed(rotary: str, groups: int) -> None:
    model = tiny_predictor()
    model.s2_rotary = rotary
    s1, s2 = random_ids(ROWS, CONTEXT + NEW)
    if groups == 1:
        s1[:, :CONTEXT], s2[:, :CONTEXT] = s1[:1, :CONTEXT], s2[:1, :CONTEXT]
    stamp = random_stamp(1, CONTEXT + NEW).expand(ROWS, -1, -1)
    prefix = (ids[:groups, :CONTEXT] for ids in (s1, s2))
    cache = PredictorCache(model, *prefix, stamp[:groups, :CONTEXT], ROWS, NEW)
    for now in range(CONTEXT, CONTEXT + NEW):
        logits, hidden = model.decode_s1(s1[:, :now], s2[:, :now], stamp[:, :now])
        torch.testing.assert_close(cache.s1_logits(), logits[:, -1], atol=1e-5, rtol=0)
        s2_logits = model.decode_s2(hidden, s1[:, now : now + 1])[:, 0]
        torch.testing.assert_close(cache.s2_logits(s1[:, now]), s2_logits, atol=1e-5, rtol=0)
        cache.advance(s1[:, now], s2[:, now], stamp[0, now])
        assert cache.length == now + 1


@torch.no_grad()
def test_decoding_behind_a_shared_prefix_equals_decoding_everything() -> None:
    tokenizer = tiny_tokenizer()
    s1, s2 = random_ids(ROWS, CONTEXT + NEW)
    s1[:, :CONTEXT], s2[:, :CONTEXT] = s1[:1, :CONTEXT], s2[:1, :CONTEXT]
    split = decode_after_prefix(
        tokenizer,
        (s1[:1, :CONTEXT], s2[:1, :CONTEXT]),
        (s1[:, CONTEXT:], s2[:, CONTEXT:]),
    )
    whole = tokenizer.decode([s1, s2], half=True)[:, CONTEXT:]
    torch.testing.assert_close(split, whole, atol=1e-5, rtol=0)


def test_sampling_refuses_a_model_in_training_mode() -> None:
    model = tiny_predictor().train()
    s1, s2 = random_ids(1, CONTEXT)
    with pytest.raises(RuntimeError, match="evaluation mode"):
        PredictorCache(model, s1, s2, random_stamp(1, CONTEXT), 1, 1)


@pytest.mark.parametrize("horizon", [10, 60])
def test_same_seed_same_paths_whatever_else_is_drawn(
    horizon: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tiny_bundle()
    many = sample_paths(bundle, bars(), horizon, 9, seed=3)
    few = sample_paths(bundle, bars(), horizon, 4, seed=3)
    np.testing.assert_allclose(many.paths[:4], few.paths, rtol=1e-6)
    monkeypatch.setattr(forecaster, "_CACHE_BYTES", 1)
    one_by_one = sample_paths(bundle, bars(), horizon, 9, seed=3)
    np.testing.assert_allclose(many.paths, one_by_one.paths, rtol=1e-6)
    assert not np.allclose(many.paths[0], many.paths[1])
    assert not np.allclose(sample_paths(bundle, bars(), horizon, 9, seed=4).paths, many.paths)


def test_a_longer_horizon_begins_alike() -> None:
    bundle = tiny_bundle()
    short = sample_paths(bundle, bars(), 6, 3)
    long = sample_paths(bundle, bars(), 12, 3)
    np.testing.assert_allclose(long.paths[:, :6], short.paths, rtol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("rotary", ["origin", "position"])
@pytest.mark.parametrize(("max_context", "stride"), [(64, None), (44, 1)])
def test_greedy_ids_equal_full_recomputation(
    rotary: str, max_context: int, stride: int | None
) -> None:
    horizon = 12
    bundle = tiny_bundle(max_context=max_context, s2_rotary=rotary)
    config = forecaster.SamplingConfig(horizon=horizon, paths=2, top_k=1)
    prepared = forecaster._prepare(bundle, forecaster.as_bars(bars()), config, None, 40)
    stride = forecaster._stride(bundle, prepared, horizon, stride)
    sampler = forecaster._Sampler(bundle, prepared, config, stride)
    ids = sampler._draw_tokens(range(2), lambda step: None)
    s1, s2, stamps = prepared.s1_ids, prepared.s2_ids, prepared.stamps[None]
    for now in range(40, 40 + horizon):
        window = slice(max(0, now - max_context), now)
        logits, hidden = bundle.predictor.decode_s1(s1[:, window], s2[:, window], stamps[:, window])
        next_s1 = logits[:, -1:].argmax(-1)
        next_s2 = bundle.predictor.decode_s2(hidden, next_s1)[:, -1:].argmax(-1)
        s1, s2 = torch.cat((s1, next_s1), 1), torch.cat((s2, next_s2), 1)
    for drawn, expected in zip(ids, (s1, s2), strict=True):
        assert torch.equal(drawn, expected.expand(2, -1))


def test_progress_counts_up_and_can_cancel() -> None:
    seen: list[tuple[int, int]] = []
    sample_paths(
        tiny_bundle(), bars(), 5, 2, progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(step, 5) for step in range(6)]

    def cancel(done: int, total: int) -> None:
        if done == 3:
            raise Cancelled

    with pytest.raises(Cancelled):
        sample_paths(tiny_bundle(), bars(), 5, 2, progress=cancel)
