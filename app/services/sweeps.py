"""One setting varied over given values: each becomes a forecast of its own, queued together."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.services import datasets, forecasts, models
from app.services.errors import ServiceError
from app.services.forcing_labels import forcing_labels
from app.services.forecast_requests import ForecastRequest, prepare
from app.services.shared import LONGEST_NAME
from app.storage.models import Dataset, Forecast
from app.storage.session import Store

MOST = 8
TEACHER_FORCING = "teacher_forcing"


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that can be varied. field: what it changes in a ForecastRequest; whole: whole
    numbers; example: values as a person types them, empty for models, which are chosen."""

    name: str
    title: str
    field: str
    whole: bool
    example: str


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("model_id", "Model", "model_id", False, ""),
        Setting(TEACHER_FORCING, "Teacher forcing of training (ε)", "model_id", False, ""),
        Setting("temperature", "Temperature", "temperature", False, "0.6, 1.0, 1.4"),
        Setting("top_p", "Top-p", "top_p", False, "0.7, 0.9, 1"),
        Setting("top_k", "Top-k", "top_k", True, "5, 50, 500"),
        Setting("context", "Context (bars)", "context", True, "30, 60, 120"),
        Setting("origin_index", "Origin (bars before the end)", "origin_index", True, "24, 48, 72"),
        Setting("seed", "Seed", "seed", True, "0, 1, 2"),
    )
}


def parse(setting: str, text: str) -> list[float]:
    """Numbers as typed, separated by commas or spaces. ServiceError names what is none."""
    known = SETTINGS[setting]
    words = text.replace(";", " ").replace(",", " ").split()
    values = [_number(known, word) for word in words]
    _check_count(known, values)
    return values


def _number(setting: Setting, word: str) -> float:
    try:
        return int(word) if setting.whole else float(word)
    except ValueError:
        kind = "whole number" if setting.whole else "number"
        raise ServiceError(
            f'{setting.title}: "{word}" is no {kind}. Type values such as {setting.example}.'
        ) from None


def _check_count(setting: Setting, values: Sequence[Any]) -> None:
    if not 2 <= len(values) <= MOST:
        raise ServiceError(
            f"{setting.title}: give 2 to {MOST} values to compare, got {len(values)}."
        )
    if len(set(values)) < len(values):
        raise ServiceError(f"{setting.title}: a value is given twice. Give each once.")


def requests(
    store: Store, base: ForecastRequest, setting: str, values: Sequence[Any]
) -> list[ForecastRequest]:
    """The base request with each value, named after it. Origins are counted in bars before the
    end of the dataset; a model may be given by its name or id."""
    known = SETTINGS[setting]
    _check_count(known, values)
    dataset = datasets.get(store, base.dataset_id)
    if known.field == "model_id":
        found = _models(store, setting, values)
    else:
        found = [_value(dataset, known, value) for value in values]
    return [
        replace(base, **{known.field: value, "name": f"{dataset.name}, {word}"[:LONGEST_NAME]})
        for word, value in found
    ]


def _models(store: Store, setting: str, values: Sequence[Any]) -> list[tuple[str, Any]]:
    """Each model in words, and its id."""
    rows = [models.get(store, str(value)) for value in values]
    if setting != TEACHER_FORCING:
        return [(row.name, row.id) for row in rows]
    words = forcing_labels(store, rows)
    if unknown := [row.name for row in rows if row.id not in words]:
        raise ServiceError(
            f"The runs that {', '.join(unknown)} came from were deleted, so their teacher forcing "
            "is unknown. Choose other models, or vary the model."
        )
    return [(words[row.id], row.id) for row in rows]


def _value(dataset: Dataset, setting: Setting, value: Any) -> tuple[str, Any]:
    """The value in words, and as the request takes it."""
    if setting.field == "origin_index":
        if not 0 <= value < dataset.bars:
            raise ServiceError(
                f"An origin of {dataset.name} lies 0 to {dataset.bars - 1} bars before the end, "
                f"got {value}."
            )
        return f"origin {value} bars before the end", dataset.bars - 1 - int(value)
    return f"{setting.title.removesuffix(' (bars)').lower()} {value:g}", value


def submit(store: Store, asked: Sequence[ForecastRequest], setting: str) -> list[Forecast]:
    """Queues a forecast for each, marked with the setting that is varied.

    ServiceError if one cannot be; then none is queued."""
    for request in asked:
        prepare(store, request)
    return [forecasts.submit(store, request, varied=setting) for request in asked]
