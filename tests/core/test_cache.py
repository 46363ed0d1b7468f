"""Cached decoding equals full recomputation, and paths do not influence each other."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from kronos_core import Cancelled, Kronos, estimate_memory, sample_paths
from kronos_core.model import cache as cache_module
from kronos_core.model.cache import (
    PredictorCache,
    PrefixCache,
    decode_after_prefix,
    join,
    prefill,
    take_in,
)
from kronos_core.model.fused import Format, fused_predictor
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
    suffix=st.integers(1, 6), fresh=st.integers(1, 6), block=st.integers(1, 6),
    seed=st.integers(0, 1000),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_prefix_merge_equals_plain_attention(
    groups: int, paths: int, prefix: int, suffix: int, fresh: int, block: int, seed: int
) -> None:
    fresh = min(fresh, suffix)
    rows, heads, width = groups * paths, 2, 4
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return 4 * torch.randn(*shape, generator=generator)

    keys, values = (random(groups, heads, prefix, width) for _ in range(2))
    own_keys, own_values = (random(rows, heads, suffix, width) for _ in range(2))
    queries = random(rows, heads, fresh, width)
    cache = PrefixCache.over((keys, values), rows, suffix, block=block)
    cache.append(own_keys[:, :, : suffix - fresh], own_values[:, :, : suffix - fresh])
    cache.append(own_keys[:, :, suffix - fresh :], own_values[:, :, suffix - fresh :])
    all_keys = torch.cat((keys.repeat_interleave(paths, 0), own_keys), dim=2)
    all_values = torch.cat((values.repeat_interleave(paths, 0), own_values), dim=2)
    total = prefix + suffix
    mask = torch.ones(fresh, total, dtype=torch.bool).tril(total - fresh)
    expected = scaled_dot_product_attention(queries, all_keys, all_values, attn_mask=mask)
    torch.testing.assert_close(cache.attend(queries), expected, atol=1e-5, rtol=1e-5)


def start(
    model: Kronos, s1: torch.Tensor, s2: torch.Tensor, stamp: torch.Tensor, rows: int, **kinds: bool
) -> PredictorCache:
    """A cache after the first CONTEXT bars of each row of s1 and s2."""
    weights = fused_predictor(model)
    past = (x[:, :CONTEXT] for x in (s1, s2, weights.times(stamp)))
    return PredictorCache(weights, prefill(weights, *past), rows, NEW, **kinds)


@torch.no_grad()
@pytest.mark.parametrize("rotary", ["origin", "position"])
@pytest.mark.parametrize("groups", [1, ROWS])
@pytest.mark.parametrize("compiled", [False, True])
def test_cached_logits_equal_recomputed(
    rotary: str, groups: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a compiled step computes on static shapes; compiling it is the compiler's business.
    monkeypatch.setattr(cache_module, "compiled_step", lambda device: cache_module.take_in)
    model = tiny_predictor()
    model.s2_rotary = rotary
    s1, s2 = random_ids(ROWS, CONTEXT + NEW)
    if groups == 1:
        s1[:, :CONTEXT], s2[:, :CONTEXT] = s1[:1, :CONTEXT], s2[:1, :CONTEXT]
    stamp = random_stamp(1, CONTEXT + NEW)
    times = fused_predictor(model).times(stamp)
    cache = start(model, s1[:groups], s2[:groups], stamp, ROWS, compiled=compiled)
    stamp = stamp.expand(ROWS, -1, -1)
    for now in range(CONTEXT, CONTEXT + NEW):
        logits, hidden = model.decode_s1(s1[:, :now], s2[:, :now], stamp[:, :now])
        torch.testing.assert_close(cache.s1_logits(), logits[:, -1], atol=1e-5, rtol=0)
        s2_logits = model.decode_s2(hidden, s1[:, now : now + 1])[:, 0]
        torch.testing.assert_close(cache.s2_logits(s1[:, now]), s2_logits, atol=1e-5, rtol=0)
        cache.advance(s1[:, now], s2[:, now], times[:, now])
        assert cache.length == now + 1


@torch.no_grad()
def test_a_step_is_one_graph_for_the_compiler() -> None:
    model = tiny_predictor()
    weights = fused_predictor(model, Format(torch.float32, packed=False))
    s1, s2 = random_ids(1, CONTEXT)
    prefix = prefill(weights, s1, s2, weights.times(random_stamp(1, CONTEXT)))
    plain = PredictorCache(weights, prefix, ROWS, NEW)
    static = PredictorCache(weights, prefix, ROWS, NEW, compiled=True)
    new = (torch.arange(ROWS), torch.arange(ROWS), weights.times(random_stamp(1, 1))[:, 0])
    turns = weights.tables.at(plain.places)
    step = torch.compile(take_in, backend="eager", fullgraph=True)
    expected = take_in(weights, plain.layers, *new, turns)
    torch.testing.assert_close(step(weights, static.layers, *new, turns), expected)


@torch.no_grad()
@pytest.mark.parametrize("rotary", ["origin", "position"])
def test_prefixes_of_different_lengths_do_not_influence_each_other(rotary: str) -> None:
    model = tiny_predictor()
    model.s2_rotary = rotary
    weights = fused_predictor(model)
    lengths, paths = (5, 9, 7), 2
    ids = [random_ids(1, length, seed=length) for length in lengths]
    times = [weights.times(random_stamp(1, length + NEW, seed=length)) for length in lengths]
    prefixes = [
        prefill(weights, *pair, time[:, :-NEW]) for pair, time in zip(ids, times, strict=True)
    ]
    alone = [PredictorCache(weights, prefix, paths, NEW) for prefix in prefixes]
    together = PredictorCache(
        weights, join([replace(p, layers=[*p.layers]) for p in prefixes]), 6, NEW
    )
    s1, s2 = random_ids(6, NEW)
    for step in range(NEW):
        logits = torch.cat([cache.s1_logits() for cache in alone])
        torch.testing.assert_close(together.s1_logits(), logits, atol=1e-5, rtol=0)
        pairs = zip(alone, s1[:, step].split(paths), strict=True)
        logits = torch.cat([cache.s2_logits(own) for cache, own in pairs])
        torch.testing.assert_close(together.s2_logits(s1[:, step]), logits, atol=1e-5, rtol=0)
        future = torch.cat([time[:, step - NEW] for time in times])
        together.advance(s1[:, step], s2[:, step], future)
        for index, cache in enumerate(alone):
            rows = slice(index * paths, (index + 1) * paths)
            cache.advance(s1[rows, step], s2[rows, step], future[index, None])


@torch.no_grad()
def test_half_precision_stays_close() -> None:
    model = tiny_predictor()
    s1, s2 = random_ids(1, CONTEXT)
    stamp = random_stamp(1, CONTEXT)
    logits = []
    for dtype in (torch.float32, torch.bfloat16):
        weights = fused_predictor(model, Format(dtype, packed=True))
        cache = PredictorCache(weights, prefill(weights, s1, s2, weights.times(stamp)), 3, NEW)
        cache.advance(s1[:, -1].expand(3), s2[:, -1].expand(3), weights.times(stamp)[:, -1])
        assert cache.hidden.dtype == dtype
        logits.append(cache.s2_logits(s1[:, -1].expand(3)).float())
    spread = logits[0].std()
    assert (logits[0] - logits[1]).abs().max() < 0.05 * spread
    assert not torch.equal(*logits)


@torch.no_grad()
def test_changed_weights_are_seen() -> None:
    model = tiny_predictor()
    before = fused_predictor(model)
    assert fused_predictor(model) is before
    names = list(model.state_dict())
    model.transformer[0].ffn.w1.weight.mul_(2)
    assert fused_predictor(model) is not before
    model.s2_rotary = "position"
    assert fused_predictor(model).rotary == "position"
    assert list(model.state_dict()) == names


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
    with pytest.raises(RuntimeError, match="evaluation mode"):
        fused_predictor(tiny_predictor().train())


@pytest.mark.parametrize("horizon", [10, 60])
def test_same_seed_same_paths_whatever_else_is_drawn(horizon: int) -> None:
    bundle = tiny_bundle()
    many = sample_paths(bundle, bars(), horizon, 9, seed=3)
    few = sample_paths(bundle, bars(), horizon, 4, seed=3)
    np.testing.assert_allclose(many.paths[:4], few.paths, rtol=1e-6)
    little = estimate_memory(bundle, 40, horizon, 2)
    chunked = sample_paths(bundle, bars(), horizon, 9, seed=3, memory=little)
    np.testing.assert_allclose(many.paths, chunked.paths, rtol=1e-6)
    assert not np.allclose(many.paths[0], many.paths[1])
    assert not np.allclose(sample_paths(bundle, bars(), horizon, 9, seed=4).paths, many.paths)


def test_a_longer_horizon_begins_alike() -> None:
    bundle = tiny_bundle()
    short = sample_paths(bundle, bars(), 6, 3)
    long = sample_paths(bundle, bars(), 12, 3)
    np.testing.assert_allclose(long.paths[:, :6], short.paths, rtol=1e-6)


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
