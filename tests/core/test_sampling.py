"""Filters and draws follow the exact probabilities."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kronos_core import SamplingConfig
from kronos_core.forecast.sampling import draw, filter_logits, path_noise

LOGITS = torch.tensor([2.0, -1.0, 0.5, 0.4, -3.0, 1.9])


def config(**changes: object) -> SamplingConfig:
    return SamplingConfig(**({"horizon": 1, "paths": 1} | changes))


def exact(temperature: float, top_k: int | None, top_p: float | None) -> np.ndarray:
    """Probabilities by the definition, one token at a time."""
    weights = np.exp(LOGITS.double().numpy() / temperature)
    order = np.argsort(-weights)
    keep = order[: top_k or len(order)]
    kept, mass = [], 0.0
    for token in keep:
        kept.append(token)
        mass += weights[token] / weights[keep].sum()
        if mass >= (top_p or 1.0):
            break
    result = np.zeros(len(weights))
    result[kept] = weights[kept] / weights[kept].sum()
    return result


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("top_k", [None, 3, 100])
@pytest.mark.parametrize("top_p", [None, 0.6, 0.99])
def test_draws_follow_the_exact_probabilities(
    temperature: float, top_k: int | None, top_p: float | None
) -> None:
    settings_ = config(temperature=temperature, top_k=top_k, top_p=top_p)
    expected = exact(temperature, top_k, top_p)
    filtered = torch.softmax(filter_logits(LOGITS[None], settings_), -1)[0]
    np.testing.assert_allclose(filtered.numpy(), expected, atol=1e-6)
    count = 20_000
    uniform = torch.from_numpy(np.random.default_rng(0).random(count))
    ids = draw(LOGITS.expand(count, -1), uniform, settings_)
    seen = np.bincount(ids.numpy(), minlength=len(expected))
    assert not seen[expected == 0].any()
    possible = expected > 0
    chi_square = (
        (seen[possible] - count * expected[possible]) ** 2 / (count * expected[possible])
    ).sum()
    assert chi_square < 25  # five degrees of freedom at most: less than one in 5,000


def test_top_k_of_one_takes_the_likeliest_token() -> None:
    uniform = torch.rand(50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert draw(LOGITS.expand(50, -1), uniform, config(top_k=1)).unique().tolist() == [0]


@given(st.floats(0, 1, exclude_max=True), st.integers(1, 6), st.floats(0.01, 1))
@settings(max_examples=100, deadline=None)
def test_any_uniform_number_draws_a_possible_token(u: float, top_k: int, top_p: float) -> None:
    settings_ = config(top_k=top_k, top_p=top_p)
    token = draw(LOGITS[None], torch.tensor([u], dtype=torch.float64), settings_)
    assert exact(1.0, top_k, top_p)[int(token)] > 0


def test_noise_belongs_to_its_path() -> None:
    noise = path_noise(5, range(4), 6)
    assert noise.shape == (4, 6, 2)
    assert torch.equal(noise[2:], path_noise(5, range(2, 4), 6))
    assert torch.equal(noise[:, :3], path_noise(5, range(4), 3))
    assert noise.unique().numel() == noise.numel()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"horizon": 0}, "horizon must be at least 1, got 0"),
        ({"paths": 0}, "paths must be at least 1"),
        ({"paths": 2.5}, "paths must be at least 1, got 2.5"),
        ({"seed": -1}, "seed must be"),
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"temperature": float("nan")}, "temperature must be above 0"),
        ({"top_k": 0}, "top_k must be at least 1"),
        ({"top_p": 0.0}, "top_p must lie in"),
        ({"top_p": 1.2}, "top_p must lie in"),
    ],
)
def test_settings_that_cannot_be(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        config(**changes)
