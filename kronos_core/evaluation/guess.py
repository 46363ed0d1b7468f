"""What a model expects of one bar: the chances of its tokens, and the prices that these stand for.

Letters: K candidates, C channels, V vocabulary of s1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from kronos_core.evaluation.exposure import (
    Progress,
    Stretch,
    decoded_prices,
    decodings,
    stepper,
    stretch_of,
)
from kronos_core.model.cache import after_context
from kronos_core.model.zoo import Bundle

CANDIDATES = 24

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Guess:
    """The K likeliest coarse tokens of one bar, likeliest first.

    s1 [K] with its chances p_s1 [K]; s2 [K]: the likeliest fine token of each; prices [K, C]: both
    decoded, in price units. p_all [V]: the chances of every s1. true_s1, true_s2: the bar's own
    tokens, p_true_s1 and p_true_s2 their chances, the latter given the true s1; rank: the place of
    the true s1, 1 for the likeliest. true_prices [C]: the true tokens decoded on the true past.
    """

    timestamp: pd.Timestamp
    s1: Ids
    p_s1: Floats
    s2: Ids
    prices: Floats
    p_all: Floats
    true_s1: int
    true_s2: int
    p_true_s1: float
    p_true_s2: float
    rank: int
    true_prices: Floats

    @property
    def entropy(self) -> float:
        """Of the coarse token, in nats: the logarithm of how many equal choices it is worth."""
        known = self.p_all[self.p_all > 0]
        return float(-(known * np.log(known)).sum())


@torch.inference_mode()
def next_guess(
    bundle: Bundle,
    bars: pd.DataFrame,
    *,
    context: int,
    horizon: int = 1,
    own: Sequence[Sequence[int] | Ids] | None = None,
    candidates: int = CANDIDATES,
    progress: Progress | None = None,
) -> Guess:
    """What the model expects of the last of ``bars``, ``horizon`` bars after its context.

    ``own`` are s1 and s2 [horizon − 1] that stand in for the true bars in between. The steps of
    ``progress``: the coarse tokens, the fine ones, and the decodings.

    Raises:
        ValueError: too few bars, more than the model takes, another number of own tokens.
    """
    stretch = stretch_of(bundle, bars, context, horizon)
    s1, s2 = _past(stretch, own)
    cache = after_context(bundle.predictor, s1, s2, stretch.stamps[None, :-1], 1, 1)
    chances = torch.softmax(cache.s1_logits()[0].double(), dim=-1)
    top = torch.topk(chances, min(candidates, len(chances)))
    step = stepper(progress, 2 + decodings(len(top.indices)) + decodings(1))
    step()
    true_s1, true_s2 = stretch.s1[0, -1], stretch.s2[0, -1]
    fine = _fine_logits(bundle, stretch, (s1, s2), torch.cat((top.indices, true_s1[None])))
    likeliest = fine[:-1].argmax(dim=-1)
    step()
    rows = (_followed(s1, top.indices), _followed(s2, likeliest))
    known = decoded_prices(bundle, stretch, stretch.s1, stretch.s2, step)
    return Guess(
        timestamp=stretch.timestamps[-1],
        s1=top.indices.cpu().numpy(),
        p_s1=top.values.cpu().numpy(),
        s2=likeliest.cpu().numpy(),
        prices=decoded_prices(bundle, stretch, *rows, step)[:, -1],
        p_all=chances.cpu().numpy(),
        true_s1=int(true_s1),
        true_s2=int(true_s2),
        p_true_s1=float(chances[true_s1]),
        p_true_s2=float(torch.softmax(fine[-1].double(), dim=-1)[true_s2]),
        rank=int((chances > chances[true_s1]).sum()) + 1,
        true_prices=known[0, -1],
    )


def _followed(past: Tensor, drawn: Tensor) -> Tensor:
    """A past [1, T] with each of the drawn ids [K] after it, [K, T + 1]."""
    return torch.cat((past.expand(len(drawn), -1), drawn[:, None]), dim=1)


def _fine_logits(
    bundle: Bundle, stretch: Stretch, past: tuple[Tensor, Tensor], siblings: Tensor
) -> Tensor:
    """Logits of the last bar's s2 for each of its s1 [K], [K, V2]."""
    stamps = stretch.stamps[None, :-1]
    return after_context(bundle.predictor, *past, stamps, len(siblings), 1).s2_logits(siblings)


def _past(stretch: Stretch, own: Sequence[Sequence[int] | Ids] | None) -> tuple[Tensor, Tensor]:
    """All tokens before the last bar [1, W − 1], with own ones after the context."""
    past = (stretch.s1[:, :-1].clone(), stretch.s2[:, :-1].clone())
    if own is None:
        return past
    between = stretch.horizon - 1
    for ids, drawn in zip(past, own, strict=True):
        if len(drawn) != between:
            raise ValueError(
                f"{between} bars lie in between, but {len(drawn)} own tokens are given"
            )
        ids[0, stretch.context :] = torch.from_numpy(np.asarray(drawn)).to(ids)
    return past
