"""Stored forecasts side by side: what differs between them, and how they look and score."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pandas as pd

from app.services import datasets, forecasts, models
from app.services.errors import ServiceError
from app.services.forcing_labels import forcing_labels
from app.services.sweeps import TEACHER_FORCING
from app.storage.models import Forecast
from app.storage.session import Store
from kronos_core.data.calendars import Calendar
from kronos_core.evaluation.metrics import Scores
from kronos_core.forecast import forecast as core

MOST = 8
_TITLES = {
    "dataset": "dataset",
    "model": "model",
    "origin": "origin",
    "context": "context",
    "horizon": "horizon",
    "temperature": "temperature",
    "top_p": "top-p",
    "top_k": "top-k",
    "dtype": "number format",
    "calendar": "calendar",
    "paths": "paths",
    "seed": "seed",
    "model_hash": "weights",
    "data_hash": "data",
}
_DEFAULTS = {"top_p": 1, "top_k": "all"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """A forecast with what tells it from the others. label: the settings that differ, in words.
    actual: the known bars after the origin."""

    row: Forecast
    forecast: core.Forecast
    label: str
    dataset: str
    seconds: float  # between two bars
    context: pd.DataFrame
    actual: pd.DataFrame


def find(store: Store, ids: Sequence[str]) -> tuple[list[Forecast], list[str]]:
    """The forecasts with these ids, at most eight, and what is to be said of the others."""
    rows, problems = [], []
    for forecast_id in dict.fromkeys(ids):
        try:
            rows.append(forecasts.get(store, forecast_id))
        except ServiceError as error:
            problems.append(str(error))
    if len(rows) > MOST:
        problems.append(f"Only the first {MOST} of {len(rows)} forecasts are compared.")
    return rows[:MOST], problems


def load(store: Store, rows: Sequence[Forecast], past: int) -> tuple[list[Compared], list[str]]:
    """The drawn ones with `past` bars of context, and why others cannot be shown."""
    named = dict(zip((row.id for row in rows), labels(store, rows), strict=True))
    found, problems = [], []
    for row in rows:
        try:
            dataset = datasets.get(store, row.dataset_id)
            found.append(
                Compared(
                    row=row,
                    forecast=forecasts.load(store, row),
                    label=named[row.id],
                    dataset=dataset.name,
                    seconds=dataset.interval_seconds,
                    context=forecasts.context_bars(store, row, past),
                    actual=forecasts.actual(store, row),
                )
            )
        except ServiceError as error:
            problems.append(f"{row.name}: {error}")
    return found, problems


def labels(store: Store, rows: Sequence[Forecast]) -> list[str]:
    """For each forecast the settings that differ; its name where none does. All are different.

    The models of a sweep over teacher forcing are called by theirs."""
    names = _model_names(store, rows)
    settings = [_settings(store, row) | {"model": names[row.model_id]} for row in rows]
    differing = differences(settings)
    plain = [
        ", ".join(_words(name, values[name]) for name in differing) or row.name
        for row, values in zip(rows, settings, strict=True)
    ]
    doubled = {label for label in plain if plain.count(label) > 1}
    return [
        f"{label} ({number})" if label in doubled else label
        for number, label in enumerate(plain, start=1)
    ]


def differences(settings: Sequence[dict[str, Any]]) -> list[str]:
    """The names of the settings whose values are not all the same."""
    differing = [name for name in _TITLES if len({str(one[name]) for one in settings}) > 1]
    # A model's weights and a dataset's bars say nothing new beside another model or dataset.
    implied = {"model_hash": "model", "data_hash": "dataset"}
    return [name for name in differing if implied.get(name) not in differing]


def _settings(store: Store, row: Forecast) -> dict[str, Any]:
    values = {name: row.settings.get(name) for name in _TITLES}
    for name, default in _DEFAULTS.items():
        values[name] = default if values[name] is None else values[name]
    return values | {
        "dataset": datasets.get(store, row.dataset_id).name,
        "dtype": values["dtype"] or "float32",
        "calendar": _calendar(values["calendar"]),
        "model_hash": row.model_hash[:10],
        "data_hash": row.data_hash[:10],
    }


def _calendar(chosen: dict[str, Any] | None) -> str:
    return Calendar.from_dict(chosen).title if chosen else "of the dataset"


def _model_names(store: Store, rows: Sequence[Forecast]) -> dict[str, str]:
    found = {row.model_id: models.get(store, row.model_id) for row in rows}
    names = {model_id: model.name for model_id, model in found.items()}
    if all(row.settings.get("varied") == TEACHER_FORCING for row in rows):
        names |= forcing_labels(store, list(found.values()))
    return names


def _words(name: str, value: Any) -> str:
    if name in ("dataset", "model"):
        return str(value)
    if name == "origin":
        moment = datetime.fromisoformat(value)
        value = f"{moment:%Y-%m-%d}" if not (moment.hour or moment.minute) else f"{moment:%F %H:%M}"
    return f"{_TITLES[name]} {value}"


def scores(forecast: core.Forecast, actual: pd.DataFrame) -> Scores | None:
    """How the fan met the known bars; None where none of its bars is known."""
    if not forecast.timestamps.isin(actual["timestamps"]).any():
        return None
    return forecast.scores(actual)


def figures(compared: Sequence[Compared], step: int) -> pd.DataFrame:
    """One row a forecast at bar `step` (from 0; the last bar of a shorter one), shares as 0…1:
    label, median_change, probability_up, low_80 and high_80 (prices), spread, skew, tail, then
    scored (bars), crps and mae (shares of the last close), coverage_80; None where unknown."""
    return pd.DataFrame([_figures(one, step) for one in compared])


def _figures(one: Compared, step: int) -> dict[str, Any]:
    forecast = one.forecast
    at = min(step, forecast.paths.shape[1] - 1)
    low, median, high = (float(row[at]) for row in forecast.quantiles([0.1, 0.5, 0.9]))
    shape, met = forecast.shape(at), scores(forecast, one.actual)
    last = forecast.last_close
    return {
        "label": one.label,
        "median_change": median / last - 1,
        "probability_up": float(forecast.probability_above(last)[at]),
        "low_80": low,
        "high_80": high,
        "spread": shape.spread,
        "skew": shape.skew,
        "tail": shape.tail,
        "scored": met.bars if met else None,
        "crps": met.mean_crps / last if met else None,
        "mae": met.mae / last if met else None,
        "coverage_80": met.coverage[0.8] if met else None,
    }
