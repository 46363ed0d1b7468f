"""One setting varied over given values: each becomes a forecast of its own, queued together."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.services import datasets, forecasts, models
from app.services.errors import ServiceError
from app.services.forecast_requests import ForecastRequest, prepare
from app.services.shared import LONGEST_NAME
from app.storage.models import Dataset, Forecast
from app.storage.session import Store

MOST = 8


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that can be varied. name: of its field in ForecastRequest; whole: whole numbers;
    example: values as a person types them."""

    name: str
    title: str
    whole: bool
    example: str


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("model_id", "Model", False, ""),
        Setting("temperature", "Temperature", False, "0.6, 1.0, 1.4"),
        Setting("top_p", "Top-p", False, "0.7, 0.9, 1"),
        Setting("top_k", "Top-k", True, "5, 50, 500"),
        Setting("context", "Context (bars)", True, "30, 60, 120"),
        Setting("origin_index", "Origin (bars before the end)", True, "24, 48, 72"),
        Setting("seed", "Seed", True, "0, 1, 2"),
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
    _check_count(SETTINGS[setting], values)
    dataset = datasets.get(store, base.dataset_id)
    asked = []
    for value in values:
        word, field = _value(store, dataset, setting, value)
        name = f"{dataset.name}, {word}"[:LONGEST_NAME]
        asked.append(replace(base, **{setting: field, "name": name}))
    return asked


def _value(store: Store, dataset: Dataset, setting: str, value: Any) -> tuple[str, Any]:
    """The value in words, and as the request takes it."""
    if setting == "origin_index":
        if not 0 <= value < dataset.bars:
            raise ServiceError(
                f"An origin of {dataset.name} lies 0 to {dataset.bars - 1} bars before the end, "
                f"got {value}."
            )
        return f"origin {value} bars before the end", dataset.bars - 1 - int(value)
    if setting == "model_id":
        model = models.get(store, str(value))
        return model.name, model.id
    return f"{SETTINGS[setting].title.removesuffix(' (bars)').lower()} {value:g}", value


def submit(store: Store, asked: Sequence[ForecastRequest]) -> list[Forecast]:
    """Queues a forecast for each. ServiceError if one cannot be; then none is queued."""
    for request in asked:
        prepare(store, request)
    return [forecasts.submit(store, request) for request in asked]
