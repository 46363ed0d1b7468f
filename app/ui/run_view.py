"""What a run's recorded rows say, as numbers and tables. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd


@dataclass(frozen=True, slots=True)
class Reading:
    """The newest value of a loss and how it changed since the evaluation before (None at first)."""

    value: float | None
    change: float | None


def reading(validation: pd.DataFrame, name: str) -> Reading:
    """The newest evaluation of a column."""
    known = validation[name].dropna()
    value = float(known.iloc[-1]) if len(known) else None
    change = float(known.iloc[-1] - known.iloc[-2]) if len(known) > 1 else None
    return Reading(value, change)


def validation_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """The evaluations of a run's history, in order."""
    return frame[frame["split"] == "validation"]


def settings_table(config: dict[str, Any]) -> pd.DataFrame:
    """Settings as rows; nested ones carry their owner's name."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            flat |= {f"{name}: {inner}": item for inner, item in value.items()}
        else:
            flat[name] = value
    return pd.DataFrame(
        {
            "setting": [name.replace("_", " ") for name in flat],
            "value": ["–" if value is None else str(value) for value in flat.values()],
        }
    )
