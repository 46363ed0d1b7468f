import numpy as np
import pytest
import torch

from kronos_core.training.sampler import batched, epoch_batches, evenly_spaced, quotas


def epoch(sizes, number: int, weights=None) -> list[int]:
    return torch.cat(epoch_batches(sizes, 16, 4, number, weights)).tolist()


def test_each_epoch_has_every_window_once_in_an_order_of_its_own():
    assert [len(rows) for rows in epoch_batches(50, 16, seed=4, epoch=0)] == [16, 16, 16, 2]
    assert sorted(epoch(50, 0)) == list(range(50))
    assert epoch(50, 0) != epoch(50, 1)
    assert epoch(50, 0) == epoch(50, 0)


def test_several_datasets_are_mixed_and_all_shown_once():
    rows = epoch([30, 20], 0)
    assert sorted(rows) == list(range(50))
    assert {row >= 30 for row in rows[:16]} == {True, False}


@pytest.mark.parametrize("number", [0, 1, 5])
def test_weights_say_how_often_a_window_comes_in_an_epoch(number):
    counts = np.bincount(epoch([30, 20], number, [1.0, 3.0]), minlength=50)
    assert (counts[:30] == 1).all()
    assert (counts[30:] == 3).all()


def test_a_half_weight_shows_every_window_in_two_epochs():
    halves = [
        [row for row in epoch([30, 20], number, [1.0, 0.5]) if row >= 30] for number in (0, 1)
    ]
    assert [len(half) for half in halves] == [10, 10]
    assert sorted(halves[0] + halves[1]) == list(range(30, 50))


def test_every_dataset_is_seen_in_every_epoch():
    assert quotas([100, 3], [1.0, 0.01]) == [100, 1]


def test_validation_windows_are_spread_evenly():
    assert evenly_spaced(5, 256).tolist() == [0, 1, 2, 3, 4]
    assert evenly_spaced(101, 5).tolist() == [0, 25, 50, 75, 100]
    assert evenly_spaced(1, 1).tolist() == [0]


def test_parts_cover_all_rows():
    assert [part.tolist() for part in batched(torch.arange(5), 2)] == [[0, 1], [2, 3], [4]]
