"""Drawing tokens from logits: settings, filters, and noise that belongs to its path.

Shape letters: R rows (sample paths), V vocabulary, S paths, H horizon.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

_FEW = 128  # tokens that are put in order first; more only where they are not enough
_SLACK = 1e-4  # for rounding where a probability is compared with p


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingConfig:
    """How futures are drawn.

    horizon: bars per path. paths: number of sample paths. temperature divides the logits. top_k
    keeps the k likeliest tokens, top_p the smallest set of tokens with at least that probability;
    both may be set, None leaves a filter out. top_k=1 is greedy.
    """

    horizon: int
    paths: int
    seed: int = 0
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        for name in ("horizon", "paths"):
            if not _is_whole(getattr(self, name)) or getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)!r}")
        if not _is_whole(self.seed) or self.seed < 0:
            raise ValueError(f"seed must be a whole number from 0 on, got {self.seed!r}")
        if not (self.temperature > 0 and np.isfinite(self.temperature)):
            raise ValueError(
                f"temperature must be above 0, got {self.temperature}; top_k=1 always takes the "
                "likeliest token"
            )
        if self.top_k is not None and (not _is_whole(self.top_k) or self.top_k < 1):
            raise ValueError(f"top_k must be at least 1, or None for all, got {self.top_k!r}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], or None for all, got {self.top_p}")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def path_noise(seed: int, paths: range, horizon: int) -> Tensor:
    """Uniform numbers in [0, 1) as float64 [S,H,2]: for s1 and s2 of each bar of each path.

    A path's numbers depend on the seed and its own index alone, so neither the other paths nor
    the horizon change them.
    """
    rows = [np.random.default_rng((seed, path)).random((horizon, 2)) for path in paths]
    return torch.from_numpy(np.stack(rows))


def filter_logits(logits: Tensor, config: SamplingConfig) -> Tensor:
    """Apply temperature, then top-k, then top-p to logits [R,V]; what is cut becomes −inf."""
    logits = logits.float()
    if config.temperature != 1:
        logits = logits / config.temperature
    top_k, top_p = config.top_k, config.top_p
    if top_k is not None and top_k < logits.shape[-1]:
        values, indices = logits.topk(int(top_k), dim=-1)  # largest first
        return _only(logits, indices, values if top_p in (None, 1) else cut_tail(values, top_p))
    return logits if top_p is None else keep_top_p(logits, top_p)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """The likeliest tokens stay until their probabilities reach p; at least one stays.

    Most distributions reach p within a few tokens; then only those few are put in order.
    """
    if p == 1:
        return logits
    values, indices = logits.topk(min(_FEW, logits.shape[-1]), dim=-1)
    total = logits.logsumexp(-1, keepdim=True)
    if bool(((values - total).exp().sum(-1) < p + _SLACK).any()):
        values, indices = logits.sort(dim=-1, descending=True)
    return _only(logits, indices, cut_tail(values, p, total))


def cut_tail(ordered: Tensor, p: float, total: Tensor | None = None) -> Tensor:
    """Logits in falling order: −inf where the probability before reaches p.

    total [R,1] is the log-sum-exp the probabilities refer to, by default that of `ordered`.
    """
    total = ordered.logsumexp(-1, keepdim=True) if total is None else total
    probabilities = (ordered - total).exp()
    before = probabilities.cumsum(dim=-1) - probabilities
    # The likeliest stays even where rounding makes `before` as large as a tiny p.
    before[:, 0] = 0
    return ordered.masked_fill(before >= p, -torch.inf)


def _only(logits: Tensor, indices: Tensor, values: Tensor) -> Tensor:
    return torch.full_like(logits, -torch.inf).scatter(-1, indices, values)


def draw(logits: Tensor, uniform: Tensor, config: SamplingConfig) -> Tensor:
    """One token id per row from logits [R,V] by inverse transform of uniform numbers [R]."""
    if config.top_k == 1:
        return logits.argmax(dim=-1)
    weights = torch.softmax(filter_logits(logits, config), dim=-1)
    # Float64, which Apple's GPUs lack.
    weights = weights.cpu().double() if weights.device.type == "mps" else weights.double()
    cumulative = weights.cumsum(dim=-1)
    total = cumulative[:, -1:]
    # Rounding must not lift the target onto the last edge, where tokens of weight 0 may lie.
    target = torch.minimum(
        uniform.to(total.device)[:, None] * total, torch.nextafter(total, torch.zeros_like(total))
    )
    ids = torch.searchsorted(cumulative, target, right=True)[:, 0]
    return ids.to(logits.device)
