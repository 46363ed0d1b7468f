"""What a run's recorded rows say, as numbers and tables. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from app.services.runs import Difference
from app.storage.models import Run


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
            "value": [_shown(value) for value in flat.values()],
        }
    )


def unique_names(chosen: Sequence[Run]) -> list[str]:
    """The names of runs, with the beginning of the id where two are called the same."""
    often = Counter(run.name for run in chosen)
    return [run.name if often[run.name] == 1 else f"{run.name} ({run.id[:4]})" for run in chosen]


def differences_table(differences: Sequence[Difference], names: Sequence[str]) -> pd.DataFrame:
    """One row for each setting that differs, one column for each run."""
    rows = [
        [item.name.replace("_", " ").replace(".", ": "), *map(_shown, item.values)]
        for item in differences
    ]
    return pd.DataFrame(rows, columns=["Setting", *names])


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_shown, value)) or "–"
    if isinstance(value, dict):
        return " ".join(f"{name}={_shown(item)}" for name, item in value.items())
    return str(value)
