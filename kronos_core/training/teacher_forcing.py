"""Where training goes on from the truth and where from what the model drew itself.

The ratio ε is the chance of the truth. ε = 1 is teacher forcing, ε = 0 the model's own draws,
anything between is scheduled sampling (Bengio et al. 2015, "Scheduled sampling for sequence
prediction with recurrent neural networks"). A run has two dials of this kind:

- conditioning: which s1 conditions the s2 of the same bar (the release always takes own draws);
- history: which tokens the inputs hold (two passes, Mihaylova & Martins 2019, "Scheduled sampling
  for transformers": a first pass without gradient draws, the second one learns on the mixture).

Bengio et al. let ε fall with the training step i = 0, 1, … by a decay d(i) from 1 towards 0:
linear 1 − c·i, exponential k^i, inverse sigmoid k / (k + exp(i / k)). Here ε(i) =
end + (start − end)·d(i), so that a schedule may also rise or keep a floor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from kronos_core.training.checks import require_one_of

Schedule = Literal["constant", "linear", "exponential", "inverse-sigmoid"]
Unit = Literal["token", "sequence", "batch"]

RESIDUE = 0.01
"""What is left of an exponential decay at the last step, where no k is given."""

_DECIDED: dict[Unit, str] = {
    "token": "decided for each token",
    "sequence": "decided once for each window",
    "batch": "decided once for each batch",
}

_FORMS = (
    '"true", "own", a ratio such as "0.3", "linear:1:0", "exponential:1:0" or '
    '"inverse-sigmoid:1:0", the last two optionally with their k as in "exponential:1:0:0.999", '
    'each optionally with "@sequence" or "@batch"'
)


def linear_decay(index: int, last: int) -> float:
    """1 − i/last for i = 0..last."""
    return 1 - index / last if last else 1.0


def exponential_decay(index: int, k: float) -> float:
    """k^i for 0 < k < 1."""
    return float(k**index)


def inverse_sigmoid_decay(index: int, k: float) -> float:
    """k / (k + exp(i/k)) for k ≥ 1, in a form that does not overflow."""
    exponent = index / k - math.log(k)
    if exponent > 0:
        return math.exp(-exponent) / (1 + math.exp(-exponent))
    return 1 / (1 + math.exp(exponent))


def exponential_k(last: int) -> float:
    """The k with which the decay is ``RESIDUE`` at i = last."""
    return float(RESIDUE ** (1 / max(1, last)))


def inverse_sigmoid_k(last: int) -> float:
    """The k with which the decay is one half in the middle, k·ln k = last/2; at least 1.

    It then begins at k/(k + 1) and ends at 1/(k + 1).
    """
    target = last / 2
    k = max(2.0, target)
    for _ in range(60):  # Newton; quadratic, so far fewer are needed
        k = max(1.0, (k + target) / (math.log(k) + 1))
    return k


@dataclass(frozen=True, kw_only=True, slots=True)
class TeacherForcing:
    """A schedule of ε over the optimiser steps and the unit that each coin decides for.

    ``k`` is the constant of the exponential (0 < k < 1) or inverse-sigmoid (k ≥ 1) decay per
    step; without it, the decay is fitted to the length of the run: the exponential one leaves 1 %
    at the end, the inverse sigmoid is half way in the middle.

    Raises:
        ValueError: a ratio outside [0, 1], an unknown schedule or unit, an end or a k that the
            schedule does not take or lacks.
    """

    schedule: Schedule = "constant"
    start: float = 0.0
    end: float | None = None
    unit: Unit = "token"
    k: float | None = None

    def __post_init__(self) -> None:
        require_one_of("teacher-forcing schedule", self.schedule, get_args(Schedule))
        require_one_of("teacher-forcing unit", self.unit, get_args(Unit))
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
        _require_k(self.schedule, self.k)

    @property
    def always_true(self) -> bool:
        """Whether ε is 1 at every step."""
        return self.start == 1 and self.end in (None, 1)

    def epsilon(self, step: int, total_steps: int) -> float:
        """ε at update ``step`` of 1..total_steps.

        The first step has the start and the last the end; inverse sigmoid and exponential come
        near them only, as their formulas say.
        """
        last = max(0, total_steps - 1)
        decay = self._decay(min(last, max(0, step - 1)), last)
        end = self.start if self.end is None else self.end
        # Written as a mixture so that decays of exactly 1 and 0 give start and end exactly.
        return self.start * decay + end * (1 - decay)

    def _decay(self, index: int, last: int) -> float:
        if self.schedule == "constant":
            return 1.0
        if self.schedule == "linear":
            return linear_decay(index, last)
        if self.schedule == "exponential":
            return exponential_decay(index, self.k or exponential_k(last))
        return inverse_sigmoid_decay(index, self.k or inverse_sigmoid_k(last))

    def mask(
        self, shape: tuple[int, int], step: int, total_steps: int, generator: torch.Generator
    ) -> Tensor:
        """Boolean [B, T] on the CPU, true where the truth is taken.

        Drawn on the CPU so that a run draws the same coins on every device.
        """
        batch, length = shape
        coins = {"token": (batch, length), "sequence": (batch, 1), "batch": (1, 1)}[self.unit]
        truth = torch.rand(coins, generator=generator) < self.epsilon(step, total_steps)
        return truth.expand(batch, length).contiguous()

    def describe(self) -> str:
        """One sentence on this setting as conditioning, for people who choose or read it."""
        if self.schedule != "constant":
            return (
                f"The chance that the true s1 conditions s2 goes from {self.start:g} to "
                f"{self.end:g} over the run ({self.schedule}), {_DECIDED[self.unit]}; "
                "otherwise the model's own draw does."
            )
        if self.start == 1:
            return "The true s1 always conditions s2 (teacher forcing)."
        if self.start == 0:
            return "The model's own draw of s1 always conditions s2, as in the released training."
        return (
            f"The true s1 conditions s2 with chance {self.start:g}, {_DECIDED[self.unit]}; "
            "otherwise the model's own draw does."
        )

    def describe_history(self) -> str:
        """One sentence on this setting as history."""
        if self.always_true:
            return "The model always reads the true past (teacher forcing), in a single pass."
        if self.schedule != "constant":
            return (
                f"The chance that a token of the past is the true one goes from {self.start:g} to "
                f"{self.end:g} over the run ({self.schedule}), {_DECIDED[self.unit]}; otherwise "
                "the model reads what it drew itself in a first pass."
            )
        return (
            f"Each token of the past is the true one with chance {self.start:g}, "
            f"{_DECIDED[self.unit]}; otherwise the model reads what it drew itself in a first pass."
        )

    @classmethod
    def parse(cls, text: str) -> TeacherForcing:
        """From "true", "own", "0.3", "linear:1:0", "exponential:1:0", "inverse-sigmoid:1:0:40" …

        Each optionally with "@sequence" or "@batch"; the last two optionally with their k.

        Raises:
            ValueError: any other text.
        """
        body, _, unit = text.strip().lower().partition("@")
        schedule, *numbers = body.split(":")
        start, end, k = _parse_numbers(text, schedule, numbers)
        return cls(
            schedule="constant" if end is None else schedule,  # type: ignore[arg-type]
            start=start,
            end=end,
            unit=unit or "token",  # type: ignore[arg-type]
            k=k,
        )

    def to_text(self) -> str:
        """The text that ``parse`` reads back as an equal setting."""
        body = {1.0: "true", 0.0: "own"}.get(self.start, _exact(self.start))
        if self.end is not None and self.schedule != "constant":
            body = f"{self.schedule}:{_exact(self.start)}:{_exact(self.end)}"
            body += "" if self.k is None else f":{_exact(self.k)}"
        return body if self.unit == "token" else f"{body}@{self.unit}"


def _parse_numbers(
    text: str, schedule: str, numbers: list[str]
) -> tuple[float, float | None, float | None]:
    """(start, end, k) of a teacher-forcing text; the end is None for a constant ratio."""
    named = {"true": 1.0, "own": 0.0}
    if not numbers and schedule in named:
        return named[schedule], None, None
    try:
        if not numbers:
            return float(schedule), None, None
        start, end, *rest = map(float, numbers)
        if len(rest) > 1:
            raise ValueError(f"{len(rest)} numbers too many")
    except ValueError:
        raise ValueError(f"teacher forcing must be {_FORMS}; got {text!r}") from None
    return start, end, rest[0] if rest else None


def _exact(ratio: float) -> str:
    return repr(float(ratio)).removesuffix(".0")


def _require_ratio(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"teacher-forcing {name} must be a ratio from 0 to 1, got {value!r}")


def _require_k(schedule: Schedule, k: float | None) -> None:
    if k is None:
        return
    if schedule not in ("exponential", "inverse-sigmoid"):
        raise ValueError(f"the {schedule} teacher-forcing schedule takes no k, got {k}")
    number = isinstance(k, int | float) and not isinstance(k, bool)
    fits = number and (0 < k < 1 if schedule == "exponential" else 1 <= k < math.inf)
    if not fits:
        wanted = "between 0 and 1" if schedule == "exponential" else "at least 1"
        raise ValueError(f"k of the {schedule} teacher-forcing schedule must be {wanted}, got {k}")
