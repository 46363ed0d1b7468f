"""Findings: what a quality report says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd

from kronos_core.data.calendars import Calendar

Severity = Literal["note", "warning", "error"]
Grade = Literal["good", "usable", "poor"]
PLACES = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One kind of problem.

    count: bars (or missing bars) concerned. places: the first stamps, at most five. message: what
    it is. effect: what it does to a forecast. repair: name of the offered repair, or None;
    parameters: those that its step needs here.
    """

    kind: str
    severity: Severity
    count: int
    places: tuple[pd.Timestamp, ...]
    message: str
    effect: str
    repair: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe; stamps in ISO form."""
        places = [stamp.isoformat() for stamp in self.places]
        values = {name: getattr(self, name) for name in self.__slots__}
        return values | {"places": places, "parameters": dict(self.parameters)}


@dataclass(frozen=True, kw_only=True, slots=True)
class QualityReport:
    """Findings, the gravest first.

    bars: rows looked at. expected: bars that the calendar has in the span, None when unknown.
    calendar: the one that was given or inferred, None for fewer than two bars.
    """

    findings: tuple[Finding, ...]
    bars: int
    expected: int | None
    calendar: Calendar | None

    @property
    def grade(self) -> Grade:
        """good: notes at most; usable: warnings; poor: at least one error."""
        severities = {finding.severity for finding in self.findings}
        if "error" in severities:
            return "poor"
        return "usable" if "warning" in severities else "good"

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe."""
        return {
            "grade": self.grade,
            "bars": self.bars,
            "expected": self.expected,
            "calendar": self.calendar.to_dict() if self.calendar else None,
            "findings": [finding.to_dict() for finding in self.findings],
        }
