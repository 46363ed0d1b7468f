"""Which s1 token conditions the s2 prediction during training: the true one or the model's own.

The ratio ε is the chance of the truth. ε = 1 is teacher forcing, ε = 0 is what the released
fine-tuning does, anything between is scheduled sampling (Bengio et al. 2015).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

Schedule = Literal["constant", "linear"]
Unit = Literal["token", "sequence", "batch"]


def constant(start: float, end: float, fraction: float) -> float:
    return start


def linear(start: float, end: float, fraction: float) -> float:
    return start + (end - start) * fraction


SCHEDULES: dict[Schedule, Callable[[float, float, float], float]] = {
    "constant": constant,
    "linear": linear,
}

_DECIDED: dict[Unit, str] = {
    "token": "decided for each token",
    "sequence": "decided once for each window",
    "batch": "decided once for each batch",
}

_FORMS = '"true", "own", a ratio such as "0.3", or "linear:1:0"'


@dataclass(frozen=True, kw_only=True, slots=True)
class TeacherForcing:
    """A schedule of ε over the optimiser steps and the unit that each coin decides for.

    Raises:
        ValueError: a ratio outside [0, 1], an unknown schedule or unit, an end that the
            schedule does not take or lacks.
    """

    schedule: Schedule = "constant"
    start: float = 0.0
    end: float | None = None
    unit: Unit = "token"

    def __post_init__(self) -> None:
        _require_one_of("teacher-forcing schedule", self.schedule, get_args(Schedule))
        _require_one_of("teacher-forcing unit", self.unit, get_args(Unit))
        _require_ratio("start", self.start)
        if self.end is not None:
            _require_ratio("end", self.end)
        if self.schedule == "constant" and self.end not in (None, self.start):
            raise ValueError(
                f"a constant teacher-forcing ratio takes no end, got {self.end}; "
                "leave it out or choose the linear schedule"
            )
        if self.schedule != "constant" and self.end is None:
            raise ValueError(f"the {self.schedule} teacher-forcing schedule needs an end ratio")

    def epsilon(self, step: int, total_steps: int) -> float:
        """ε at update ``step`` of 1..total_steps; the first has the start, the last the end."""
        fraction = min(1.0, max(0.0, (step - 1) / max(1, total_steps - 1)))
        end = self.start if self.end is None else self.end
        return SCHEDULES[self.schedule](self.start, end, fraction)

    def mask(
        self, shape: tuple[int, int], step: int, total_steps: int, generator: torch.Generator
    ) -> Tensor:
        """Boolean [B, T] on the CPU, true where the truth conditions s2.

        Drawn on the CPU so that a run draws the same coins on every device.
        """
        batch, length = shape
        coins = {"token": (batch, length), "sequence": (batch, 1), "batch": (1, 1)}[self.unit]
        truth = torch.rand(coins, generator=generator) < self.epsilon(step, total_steps)
        return truth.expand(batch, length).contiguous()

    def describe(self) -> str:
        """One sentence for people who choose or read the setting."""
        if self.schedule == "constant":
            return self._describe_constant()
        return (
            f"The chance that the true s1 conditions s2 goes from {self.start:g} to {self.end:g} "
            f"over the run ({self.schedule}), {_DECIDED[self.unit]}; "
            "otherwise the model's own draw does."
        )

    def _describe_constant(self) -> str:
        if self.start == 1:
            return "The true s1 always conditions s2 (teacher forcing)."
        if self.start == 0:
            return "The model's own draw of s1 always conditions s2, as in the released training."
        return (
            f"The true s1 conditions s2 with chance {self.start:g}, {_DECIDED[self.unit]}; "
            "otherwise the model's own draw does."
        )

    @classmethod
    def parse(cls, text: str) -> TeacherForcing:
        """From "true", "own", "0.3" or "linear:1:0", each optionally with "@sequence" or "@batch".

        Raises:
            ValueError: any other text.
        """
        body, _, unit = text.strip().lower().partition("@")
        schedule, *ratios = body.split(":")
        start, end = _parse_ratios(text, schedule, ratios)
        return cls(
            schedule="constant" if end is None else schedule,  # type: ignore[arg-type]
            start=start,
            end=end,
            unit=unit or "token",  # type: ignore[arg-type]
        )

    def to_text(self) -> str:
        """The text that ``parse`` reads back as an equal setting."""
        body = {1.0: "true", 0.0: "own"}.get(self.start, _exact(self.start))
        if self.end is not None and self.schedule != "constant":
            body = f"{self.schedule}:{_exact(self.start)}:{_exact(self.end)}"
        return body if self.unit == "token" else f"{body}@{self.unit}"


def _parse_ratios(text: str, schedule: str, ratios: list[str]) -> tuple[float, float | None]:
    """(start, end) of a teacher-forcing text; the end is None for a constant ratio."""
    named = {"true": 1.0, "own": 0.0}
    if not ratios and schedule in named:
        return named[schedule], None
    try:
        if not ratios:
            return float(schedule), None
        start, end = map(float, ratios)
    except ValueError:
        raise ValueError(f"teacher forcing must be {_FORMS}; got {text!r}") from None
    return start, end


def _exact(ratio: float) -> str:
    return repr(float(ratio)).removesuffix(".0")


def _require_one_of(what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"unknown {what} {value!r}; choose one of {', '.join(allowed)}")


def _require_ratio(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"teacher-forcing {name} must be a ratio from 0 to 1, got {value!r}")
