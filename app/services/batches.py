"""Many series forecast in one job; each result is a forecast of its own, marked with its batch."""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd

from app.jobs.threads import short_jobs
from app.services import datasets, forecasts, memory, models
from app.services.errors import ServiceError
from app.services.forecast_requests import ForecastRequest, check, prepare, sentence
from app.storage import repository
from app.storage.files import StorageError
from app.storage.models import PENDING_FORECAST_STATES, Dataset, Forecast, new_id
from app.storage.session import Store
from kronos_core.forecast import forecast as core
from kronos_core.forecast.forecaster import Cancelled, sample_many

log = logging.getLogger(__name__)

MOST_SERIES = 200
SKETCH_PAST = 24  # closes before the origin in a row's small fan
SKETCH_STEPS = 16  # bars of the horizon in it, at most
SKETCH_LEVELS = {"low": 0.1, "median": 0.5, "high": 0.9}


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Forecasts that were drawn together, in the order in which they were asked for."""

    id: str
    created_at: datetime
    rows: list[Forecast]

    @property
    def pending(self) -> bool:
        return any(row.state in PENDING_FORECAST_STATES for row in self.rows)

    @property
    def progress(self) -> float:
        """Share of the work that is done, 0…1."""
        done = [row.step / max(row.total_steps, 1) for row in self.rows if _is_pending(row)]
        return min(done) if done else 1.0


def _is_pending(row: Forecast) -> bool:
    return row.state in PENDING_FORECAST_STATES


# ---------------------------------------------------------------- asking


def submit(store: Store, requests: Sequence[ForecastRequest]) -> str:
    """Queues one job that draws all of them; they may differ in dataset and origin alone.

    -> the batch's id. ServiceError names what cannot be; then nothing is queued.
    """
    batch_id = _add(store, requests)
    short_jobs().submit(lambda: draw(store, batch_id))
    return batch_id


def run_now(
    store: Store, requests: Sequence[ForecastRequest], progress: forecasts.Progress | None = None
) -> Batch:
    """Draws them before it returns. ServiceError if they cannot be, or if all of them fail."""
    batch_id = _add(store, requests)
    draw(store, batch_id, progress)
    batch = get(store, batch_id)
    if all(row.state != "finished" for row in batch.rows):
        raise ServiceError(batch.rows[0].reason or "No forecast was drawn.")
    return batch


def _add(store: Store, requests: Sequence[ForecastRequest]) -> str:
    _check(requests)
    batch_id = new_id()
    prepared = [
        _prepared(store, request, batch=batch_id, place=place)
        for place, request in enumerate(requests)
    ]
    _need(store, requests[0], [row.settings["context"] for row in prepared])
    with store.session() as session:
        for row in prepared:
            repository.add(session, row)
    return batch_id


def estimate(store: Store, requests: Sequence[ForecastRequest]) -> memory.Need:
    """The memory that drawing all of them together would take. ServiceError says what cannot be."""
    _check(requests)
    model = models.get(store, requests[0].model_id)
    rows = {row.id: row for row in datasets.list_datasets(store)}  # one query for all series
    contexts = []
    for request in requests:
        dataset = rows.get(request.dataset_id) or datasets.get(store, request.dataset_id)
        with _named(dataset):
            contexts.append(check(store, _fitting(request, dataset), dataset, model)[1])
    return _need(store, requests[0], contexts)


def _need(store: Store, request: ForecastRequest, contexts: Sequence[int]) -> memory.Need:
    model = models.get(store, request.model_id)
    return memory.need(store, model, contexts, request.horizon, request.paths, request.dtype)


def _check(requests: Sequence[ForecastRequest]) -> None:
    if not requests:
        raise ServiceError("No series is chosen. Choose at least one dataset.")
    if len(requests) > MOST_SERIES:
        raise ServiceError(
            f"At most {MOST_SERIES} series go into one job, got {len(requests)}. Make several jobs."
        )
    names = [request.dataset_id for request in requests]
    if doubled := {name for name in names if names.count(name) > 1}:
        raise ServiceError(f"{', '.join(sorted(doubled))} is named twice. Name each dataset once.")
    first, *others = (replace(request, dataset_id="", origin_index=None) for request in requests)
    if any(other != first for other in others):
        raise ServiceError("The series of one job share all settings but their origin.")


def _prepared(store: Store, request: ForecastRequest, **marks: Any) -> Forecast:
    """Checked like a single forecast."""
    dataset = datasets.get(store, request.dataset_id)
    with _named(dataset):
        return prepare(store, _fitting(request, dataset), **marks)


def _fitting(request: ForecastRequest, dataset: Dataset) -> ForecastRequest:
    """The request; a series shorter than the context gives what it has."""
    known = dataset.bars if request.origin_index is None else request.origin_index + 1
    context = request.context
    if context is not None and 2 <= known < context:
        return replace(request, context=known)
    return request


@contextmanager
def _named(dataset: Dataset) -> Iterator[None]:
    """What a service says of one of many series begins with its name."""
    try:
        yield
    except ServiceError as error:
        raise ServiceError(f"{dataset.name}: {error}") from error


# ---------------------------------------------------------------- drawing


def draw(store: Store, batch_id: str, progress: forecasts.Progress | None = None) -> None:
    """Draws a queued batch and writes how each of its forecasts ended; raises nothing for that."""
    rows = _start(store, batch_id)
    if not rows:
        return
    try:
        _draw(store, rows, progress)
    except Cancelled as reason:
        state = "failed" if short_jobs().closing else "cancelled"
        _end_all(store, rows, state, str(reason))
    except (ServiceError, StorageError, ValueError) as error:
        _end_all(store, rows, "failed", sentence(str(error)))
    except Exception as error:
        log.exception("Batch %s failed", batch_id)
        _end_all(store, rows, "failed", forecasts.explain(error))


def _start(store: Store, batch_id: str) -> list[Forecast]:
    """The forecasts that still wait, now running."""
    waiting = get(store, batch_id).rows
    with store.session() as session:
        return [
            row
            for row in waiting
            if repository.set_forecast_state(session, row.id, "running", allowed_from=("queued",))
        ]


def _draw(store: Store, rows: list[Forecast], progress: forecasts.Progress | None) -> None:
    began = time.monotonic()
    given = {row.id: found for row in rows if (found := _inputs(store, row)) is not None}
    drawable = [row for row in rows if row.id in given]
    if not drawable:
        return
    settings = forecasts.sampler_settings(drawable[0])
    # Each series gives its own context; the longest is the most that any gives.
    drawn = sample_many(
        forecasts.bundle_of(store, models.get(store, drawable[0].model_id)),
        [given[row.id].bars.tail(row.settings["context"]) for row in drawable],
        futures=[given[row.id].future for row in drawable],
        context=max(row.settings["context"] for row in drawable),
        progress=_Reporter(store, drawable, progress),
        **settings,
    )
    seconds = (time.monotonic() - began) / len(drawable)
    for row, forecast in zip(drawable, drawn, strict=True):
        if forecasts.get(store, row.id).cancel_requested:
            forecasts.finish(store, row.id, "cancelled", reason="Cancelled on request.")
            continue
        fields = forecasts.drawn_fields(store, forecast, given[row.id], seconds)
        closes = given[row.id].bars["close"]
        fields["summary"] |= {"sketch": sketch(closes, forecast)}
        forecasts.finish(store, row.id, "finished", **fields)


def _inputs(store: Store, row: Forecast) -> forecasts.Inputs | None:
    """The bars and the timestamps of one series; what is gone fails that series alone."""
    try:
        return forecasts.inputs(store, row)
    except (ServiceError, StorageError) as error:
        forecasts.finish(store, row.id, "failed", reason=sentence(str(error)))
        return None


def sketch(closes: pd.Series, forecast: core.Forecast) -> dict[str, list[float]]:
    """What a row's small fan is drawn from: past closes, then median and 80 % band, thinned out."""
    horizon = forecast.paths.shape[1]
    steps = np.unique(np.linspace(0, horizon - 1, min(horizon, SKETCH_STEPS)).astype(int))
    rows = forecast.quantiles(list(SKETCH_LEVELS.values()))[:, steps]
    bands = {name: row.tolist() for name, row in zip(SKETCH_LEVELS, rows, strict=True)}
    past = closes.tail(SKETCH_PAST).astype(float).tolist()
    return {"past": past, "steps": (steps + 1).tolist(), **bands}


def _end_all(store: Store, rows: list[Forecast], state: str, reason: str) -> None:
    for row in rows:
        forecasts.finish(store, row.id, state, reason=reason)


class _Reporter:
    """Writes the batch's progress and ends the drawing when nobody waits for any of it."""

    def __init__(
        self, store: Store, rows: list[Forecast], progress: forecasts.Progress | None
    ) -> None:
        self.store, self.ids, self.progress = store, [row.id for row in rows], progress
        self._reported = 0.0

    def __call__(self, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(done, total)
        if short_jobs().closing:
            raise Cancelled(forecasts.INTERRUPTED)
        now = time.monotonic()
        if now - self._reported < forecasts.PROGRESS_SECONDS:
            return
        self._reported = now
        wanted = False
        with self.store.session() as session:
            for row_id in self.ids:
                repository.update_row(session, Forecast, row_id, step=done, total_steps=total)
                row = repository.get(session, Forecast, row_id)
                wanted |= row is not None and not row.cancel_requested
        if not wanted:
            raise Cancelled("Cancelled on request.")


# ---------------------------------------------------------------- stored batches


def get(store: Store, batch_id: str) -> Batch:
    """The batch with this id. ServiceError if none of its forecasts is left."""
    for batch in list_batches(store):
        if batch.id == batch_id:
            return batch
    raise ServiceError(f"There is no batch {batch_id!r}; its forecasts may have been deleted.")


def list_batches(store: Store) -> list[Batch]:
    """All batches, newest first."""
    found: dict[str, list[Forecast]] = {}
    for row in forecasts.list_forecasts(store):
        if batch_id := row.settings.get("batch"):
            found.setdefault(batch_id, []).append(row)
    return [
        Batch(
            id=batch_id,
            created_at=min(row.created_at for row in rows),
            rows=sorted(rows, key=lambda row: int(row.settings["place"])),
        )
        for batch_id, rows in found.items()
    ]


def cancel(store: Store, batch_id: str) -> None:
    """Takes a queued batch back; a running one ends at its next step."""
    for row in get(store, batch_id).rows:
        if _is_pending(row):
            forecasts.cancel(store, row.id)


def table(store: Store, batch: Batch) -> pd.DataFrame:
    """One row a series: id, series, state, reason, last_close, median_change, probability_up (0…1),
    low_80 and high_80 (prices), band (width of the 80 % range as a share of the last close),
    sketch. Changes are shares of the last close; what is not drawn yet is None."""
    names = {row.id: row.name for row in datasets.list_datasets(store)}
    return pd.DataFrame([_figures(row, names) for row in batch.rows])


def _figures(row: Forecast, names: dict[str, str]) -> dict[str, Any]:
    found = row.summary or {}
    last = found.get("last_close")
    band = None if not last else (found["high_80"] - found["low_80"]) / last
    change = found.get("median_change")
    return {
        "id": row.id,
        "series": names.get(row.dataset_id, row.name),
        "state": row.state,
        "reason": row.reason,
        "last_close": last,
        "median_change": None if change is None else change / 100,
        "probability_up": found.get("probability_up"),
        "low_80": found.get("low_80"),
        "high_80": found.get("high_80"),
        "band": band,
        "sketch": found.get("sketch"),
    }


def all_paths(store: Store, batch: Batch) -> pd.DataFrame:
    """Every path of every drawn series, long: series, path, step, timestamp (UTC), open … amount.

    ServiceError when nothing is drawn yet."""
    names = {row.id: row.name for row in datasets.list_datasets(store)}
    parts = []
    for row in batch.rows:
        if row.state == "finished":
            frame = forecasts.load(store, row).to_frame()
            frame["timestamp"] = frame["timestamp"].dt.tz_convert("UTC")
            frame.insert(0, "series", names.get(row.dataset_id, row.name))
            parts.append(frame)
    if not parts:
        raise ServiceError("Nothing of this batch is drawn yet. Wait until it has finished.")
    return pd.concat(parts, ignore_index=True)
