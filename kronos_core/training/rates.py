"""Learning-rate schedules as factors of the peak, at update ``step`` of 1..``total``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

RateSchedule = Literal["onecycle", "cosine", "constant"]

START_DIVISOR = 10.0
FINAL_DIVISOR = 1e4


def onecycle(step: int, total: int, warmup: float) -> float:
    """OneCycle with cosine arms (Smith & Topin 2017), as torch's OneCycleLR with div_factor 10.

    Rises from a tenth over the warm-up share, then falls towards zero.
    """
    start, final = 1 / START_DIVISOR, 1 / START_DIVISOR / FINAL_DIVISOR
    top, last, now = warmup * total - 1, total - 1, step - 1
    if now < top:
        return _arm(start, 1.0, now / top)
    return _arm(1.0, final, (now - top) / max(last - top, 1e-9))


def cosine(step: int, total: int, warmup: float) -> float:
    """Linear warm-up, then half a cosine that would reach zero one step after the last."""
    warm = warmup * total
    if step <= warm:
        return step / warm
    return _arm(1.0, 0.0, min(1.0, max(0.0, step - 1 - warm) / (total - warm)))


def constant(step: int, total: int, warmup: float) -> float:
    """Linear warm-up, then the peak."""
    return min(1.0, step / max(1.0, warmup * total))


RATES: dict[RateSchedule, Callable[[int, int, float], float]] = {
    "onecycle": onecycle,
    "cosine": cosine,
    "constant": constant,
}


def _arm(start: float, end: float, fraction: float) -> float:
    return end + (start - end) / 2 * (1 + math.cos(math.pi * fraction))
