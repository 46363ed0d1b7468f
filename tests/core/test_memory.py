"""The estimate bounds what a forecast really holds, and what does not fit is split or refused."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kronos_core import MemoryBudgetError, estimate_memory, sample_paths
from kronos_core.forecast.memory import default_budget, plan_batches
from tests.core.models import tiny_bundle
from tests.core.test_cache import bars


class PeakMemory(TorchDispatchMode):
    """Bytes of all storages made inside that live at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and not tensor.is_mkldnn:
                self.count(tensor.untyped_storage())
        return result

    def count(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata in self.known:
            return
        self.known.add(storage._cdata)
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self.forget, storage._cdata, storage.nbytes())

    def forget(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


@contextmanager
def peak_memory() -> Iterator[PeakMemory]:
    with PeakMemory() as peak:
        yield peak


def test_the_peak_is_of_what_lives_at_once() -> None:
    with peak_memory() as peak:
        kept = torch.zeros(100, dtype=torch.float64)
        for _ in range(3):
            torch.zeros(50, dtype=torch.float64)
    assert peak.peak == 8 * 150
    assert peak.now == kept.nbytes


@pytest.mark.parametrize(
    ("context", "horizon", "paths", "max_context"),
    [(100, 8, 2, 128), (30, 60, 60, 128), (100, 8, 500, 128), (40, 30, 40, 48)],
    ids=["long context", "long horizon", "many paths", "past the context"],
)
def test_the_estimate_bounds_what_lives_at_once(
    context: int, horizon: int, paths: int, max_context: int
) -> None:
    bundle = tiny_bundle(max_context=max_context)
    given = {"context": context, "memory": 10**12, "top_p": 0.9}
    sample_paths(bundle, bars(context), horizon, paths, **given)  # the weights are fused here
    with peak_memory() as peak:
        sample_paths(bundle, bars(context), horizon, paths, **given)
    estimate = estimate_memory(bundle, context, horizon, paths)
    print(peak.peak, estimate)
    assert peak.peak <= estimate <= 10 * peak.peak


def test_half_precision_takes_less_and_more_series_take_more() -> None:
    bundle = tiny_bundle()
    one = estimate_memory(bundle, 40, 20, 100)
    assert estimate_memory(bundle, 40, 20, 100, dtype=torch.bfloat16) < one
    assert one < estimate_memory(bundle, 40, 20, 100, series=3) <= 3 * one


def test_batches_hold_every_path_of_every_series_once() -> None:
    bundle = tiny_bundle()
    lengths = [40, 7, 60, 33, 64, 64]
    budget = estimate_memory(bundle, 64, 20, 50)
    batches = plan_batches(bundle, lengths, 20, 50, budget)
    drawn = [(index, path) for batch in batches for index in batch.series for path in batch.paths]
    assert sorted(drawn) == [(index, path) for index in range(6) for path in range(50)]
    for batch in batches:
        own = [lengths[index] for index in batch.series]
        assert max(own) + 20 <= 64 or len(set(own)) == 1
        assert estimate_memory(bundle, max(own), 20, len(batch.paths), len(own)) <= budget


def test_less_memory_means_smaller_chunks() -> None:
    bundle = tiny_bundle()
    least = estimate_memory(bundle, 40, 20, 1)
    assert [len(batch.paths) for batch in plan_batches(bundle, [40], 20, 3, least)] == [1, 1, 1]
    assert len(plan_batches(bundle, [40], 20, 3, estimate_memory(bundle, 40, 20, 3))) == 1


def test_not_even_one_path_fits() -> None:
    reason = r"one path of 20 bars after 40 bars needs .* GB with tiny, .*: shorten the context"
    with pytest.raises(MemoryBudgetError, match=reason):
        sample_paths(tiny_bundle(), bars(), 20, 5, memory=1000)


def test_the_default_budget_is_a_part_of_the_free_memory() -> None:
    assert 0 < default_budget(torch.device("cpu")) <= 1.5e9
