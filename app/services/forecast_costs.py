"""What drawing takes, said before it starts: how much memory, and about how long."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from app.services import batches, forecasts, memory, models
from app.services.forecast_requests import ForecastRequest
from app.storage.models import Forecast
from app.storage.session import Store

RECENT = 200  # forecasts that tell how long drawing takes; a page asks at every rerun


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """need: of what is drawn at one time, the largest of several. seconds: of all of them; None
    while no forecast with a model of that size was drawn in this workspace."""

    forecasts: int
    need: memory.Need
    seconds: float | None


def one_by_one(store: Store, requests: Sequence[ForecastRequest]) -> Cost:
    """Of forecasts that are drawn one after the other. ServiceError says what cannot be."""
    needs = [forecasts.estimate(store, request) for request in requests]
    largest = max(needs, key=lambda need: need.total)
    return Cost(forecasts=len(needs), need=largest, seconds=_seconds(store, requests))


def together(store: Store, requests: Sequence[ForecastRequest]) -> Cost:
    """Of many series in one job. ServiceError says what cannot be."""
    need = batches.estimate(store, requests)
    return Cost(forecasts=len(requests), need=need, seconds=_seconds(store, requests))


def _seconds(store: Store, requests: Sequence[ForecastRequest]) -> float | None:
    parameters = {row.id: row.parameters for row in models.list_models(store)}
    drawn = [row for row in forecasts.list_forecasts(store, RECENT) if row.state == "finished"]
    total = 0.0
    for request in requests:
        size = parameters[request.model_id]
        # Only a model of the same size takes the same time.
        alike = [row for row in drawn if parameters.get(row.model_id) == size]
        if not alike:
            return None
        total += _scaled(alike, request.horizon * request.paths)
    return total


def _scaled(drawn: Sequence[Forecast], bars: int) -> float:
    """Seconds for so many drawn bars, from the forecast that is nearest in size."""

    def ratio(row: Forecast) -> float:
        return bars / (int(row.settings["horizon"]) * int(row.settings["paths"]))

    nearest = min(drawn, key=lambda row: abs(math.log(ratio(row))))
    return float((nearest.summary or {})["seconds"]) * ratio(nearest)
