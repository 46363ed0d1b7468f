"""What the paths say about one bar and one target, as numbers. Pure functions over a forecast."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kronos_core.evaluation.metrics import Scores
from kronos_core.forecast.forecast import Forecast


class TargetError(ValueError):
    """A target that is no number; the message says what to type."""


@dataclass(frozen=True, slots=True)
class Chances:
    """Of a target price: to close above it at a bar, and to have touched it by then (0…1)."""

    above: float
    touched: float


def parse_target(text: str) -> float | None:
    """A price as typed ("1,234.5"), None for nothing. TargetError says what is no number."""
    cleaned = text.replace(",", "").replace(" ", "").replace("\u202f", "").replace("\u2212", "-")
    if not cleaned:
        return None
    try:
        value = float(cleaned)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise TargetError(f'The target "{text}" is no number. Type a price such as 1234.5.')
    return value


def chances(forecast: Forecast, target: float, step: int) -> Chances:
    """The target's chances at bar `step` (from 0)."""
    above = forecast.probability_above(target)[step]
    return Chances(float(above), float(forecast.probability_touch(target)[step]))


def score_words(scores: Scores) -> str:
    """What the scores rest on."""
    return f"Close against {scores.bars} actual {'bar' if scores.bars == 1 else 'bars'}"
