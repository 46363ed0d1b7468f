"""Forecasts: checked, drawn on the short-job thread or at once, stored, and read back."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from app.jobs.bundles import bundle_source
from app.jobs.launchers import WorkerProcess, is_alive, this_process
from app.jobs.threads import short_jobs
from app.services import datasets, memory, models
from app.services.dataset_checks import calendar_for
from app.services.errors import ServiceError
from app.services.forecast_requests import (
    ForecastRequest,
    estimate,
    prepare,
    read_bars,
    sentence,
)
from app.services.shared import clean_name, drop_unused_bars
from app.storage import repository
from app.storage.files import StorageError
from app.storage.models import PENDING_FORECAST_STATES, Dataset, Forecast, Model, utc_now
from app.storage.session import Store
from kronos_core.data.bars import Series, interval_of
from kronos_core.data.calendars import Calendar
from kronos_core.forecast import forecast as core
from kronos_core.forecast.forecaster import Cancelled, sample_paths
from kronos_core.forecast.sampling import SamplingConfig
from kronos_core.model.files import BundleError
from kronos_core.model.zoo import Bundle, resolve_device

__all__ = [
    "ForecastRequest",
    "actual",
    "cancel",
    "context_bars",
    "delete",
    "draw",
    "estimate",
    "fail_abandoned",
    "get",
    "list_forecasts",
    "load",
    "rename",
    "run_now",
    "submit",
    "summarise",
]

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
PROGRESS_SECONDS = 0.25
INTERRUPTED = "Interrupted by a restart of the server. Draw it again."
_SCALE_BARS = 20  # the last known bars, which tell whether prices were restated


# ---------------------------------------------------------------- asking


def submit(store: Store, request: ForecastRequest, **marks: Any) -> Forecast:
    """Queues a forecast on this process's short-job thread; `marks` go into its settings.

    ServiceError says what cannot be."""
    row = _add(store, request, **marks)
    short_jobs().submit(lambda: draw(store, row.id))
    return row


def soon(store: Store, forecast_id: str, seconds: float) -> Forecast:
    """The forecast; a pending one as it is when a job of this process has ended, after `seconds`
    at the latest. Asking again and again instead would hold up the drawing."""
    jobs = short_jobs()
    before = jobs.ended
    row = get(store, forecast_id)
    if row.state not in PENDING_FORECAST_STATES:
        return row
    jobs.wait(before, seconds)
    return get(store, forecast_id)


def run_now(
    store: Store, request: ForecastRequest, progress: Progress | None = None, **marks: Any
) -> Forecast:
    """Draws a forecast before it returns; `marks` go into its settings.

    ServiceError if it cannot be, or fails."""
    row = _add(store, request, **marks)
    draw(store, row.id, progress)
    row = get(store, row.id)
    if row.state != "finished":
        raise ServiceError(row.reason or f"The forecast was {row.state}.")
    return row


def _add(store: Store, request: ForecastRequest, **marks: Any) -> Forecast:
    row = prepare(store, request, **marks)
    with store.session() as session:
        return repository.add(session, row)


# ---------------------------------------------------------------- drawing


def draw(store: Store, forecast_id: str, progress: Progress | None = None) -> None:
    """Draws a queued forecast and writes how it ended into its row; raises nothing for that."""
    with store.session() as session:
        started = repository.set_forecast_state(
            session, forecast_id, "running", allowed_from=("queued",)
        )
    if not started:  # cancelled or deleted while it waited
        return
    try:
        finish(store, forecast_id, "finished", **_drawn(store, forecast_id, progress))
    except Cancelled as reason:
        state = "failed" if short_jobs().closing else "cancelled"
        finish(store, forecast_id, state, reason=str(reason))
    except (ServiceError, StorageError, ValueError) as error:
        finish(store, forecast_id, "failed", reason=sentence(str(error)))
    except Exception as error:
        log.exception("Forecast %s failed", forecast_id)
        finish(store, forecast_id, "failed", reason=explain(error))


def _drawn(store: Store, forecast_id: str, progress: Progress | None) -> dict[str, Any]:
    """The columns of a finished forecast."""
    began = time.monotonic()
    row = get(store, forecast_id)
    given = inputs(store, row)
    forecast = sample_paths(
        bundle_of(store, models.get(store, row.model_id)),
        given.bars,
        future=given.future,
        context=row.settings["context"],
        progress=_Reporter(store, forecast_id, progress),
        **sampler_settings(row),
    )
    return drawn_fields(store, forecast, given, time.monotonic() - began)


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a forecast is drawn from: the bars up to the origin, and the timestamps [horizon].

    calendar: what gave the timestamps that were not known, None where all were.
    """

    bars: pd.DataFrame
    future: pd.DatetimeIndex
    calendar: Calendar | None


def inputs(store: Store, row: Forecast) -> Inputs:
    """The inputs of a stored forecast. ServiceError when its bars are gone."""
    dataset = datasets.get(store, row.dataset_id)
    bars = read_bars(store, row.data_hash, dataset.timezone)
    origin = row.settings["origin_index"]
    chosen = row.settings.get("calendar") or dataset.calendar
    future, calendar = _future(dataset, bars, origin, row.settings["horizon"], chosen)
    # Nothing after the origin goes any further than its timestamps, which calendars know.
    return Inputs(bars.iloc[: origin + 1].reset_index(drop=True), future, calendar)


def sampler_settings(row: Forecast) -> dict[str, Any]:
    """How a forecast is sampled, as the engine takes it."""
    settings = {name: row.settings[name] for name in SamplingConfig.__dataclass_fields__}
    return settings | {"dtype": row.settings.get("dtype", "float32")}


def drawn_fields(
    store: Store, forecast: core.Forecast, given: Inputs, seconds: float
) -> dict[str, Any]:
    """Stores drawn paths. -> the columns of their finished row"""
    return {
        "content_hash": store.files.write_forecast(forecast),
        "summary": {
            **summarise(forecast, seconds),
            "calendar": given.calendar.to_dict() if given.calendar else None,
        },
        "model_hash": forecast.provenance["model_hash"],
    }


def bundle_of(store: Store, model: Model) -> Bundle:
    """The model, loaded or kept from an earlier job. ServiceError when its files are gone."""
    device = str(resolve_device(store.settings.device))
    try:
        return short_jobs().bundle(model.model_hash, bundle_source(store, model), device)
    except BundleError as error:
        raise memory.files_gone(model, error) from error


def _future(
    dataset: Dataset,
    bars: pd.DataFrame,
    origin: int,
    horizon: int,
    chosen: Mapping[str, Any] | None,
) -> tuple[pd.DatetimeIndex, Calendar | None]:
    """The known timestamps after the origin, then those of the calendar. -> [horizon]

    chosen: the calendar, None where nobody chose one. The one that is returned is None where all
    timestamps are known.
    """
    stamps = pd.DatetimeIndex(bars["timestamps"][: origin + 1 + horizon])
    known = stamps[origin + 1 :]
    if len(known) == horizon:
        return known, None
    past = Series(
        frame=bars[: len(stamps)],
        symbol=dataset.symbol,
        interval=interval_of(stamps),
        timezone=dataset.timezone,
    )
    calendar, _ = calendar_for(past, chosen)
    return pd.DatetimeIndex(known.append(calendar.future(stamps, horizon - len(known)))), calendar


class _Reporter:
    """Writes progress a few times a second and ends the drawing when somebody asked for it."""

    def __init__(self, store: Store, forecast_id: str, progress: Progress | None) -> None:
        self.store, self.forecast_id, self.progress = store, forecast_id, progress
        self._reported = 0.0

    def __call__(self, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(done, total)
        if short_jobs().closing:
            raise Cancelled(INTERRUPTED)
        now = time.monotonic()
        if now - self._reported < PROGRESS_SECONDS:
            return
        self._reported = now
        with self.store.session() as session:
            position = {"step": done, "total_steps": total}
            repository.update_row(session, Forecast, self.forecast_id, **position)
            row = repository.get(session, Forecast, self.forecast_id)
        if row is None or row.cancel_requested:
            raise Cancelled("Cancelled on request.")


def summarise(forecast: core.Forecast, seconds: float) -> dict[str, Any]:
    """The figures of a forecast's end in a list: changes in percent of the last close, prices,
    shares in 0..1, and how long it took."""
    low, median, high = forecast.quantiles([0.1, 0.5, 0.9])[:, -1]
    return {
        "last_close": forecast.last_close,
        "median_close": float(median),
        "median_change": float(median / forecast.last_close - 1) * 100,
        "probability_up": float(forecast.probability_above(forecast.last_close)[-1]),
        "low_80": float(low),
        "high_80": float(high),
        "violation_rate": forecast.violation_rate,
        "gap": forecast.gap,
        "context": forecast.context,
        "seconds": round(seconds, 3),
    }


def finish(store: Store, forecast_id: str, state: str, **fields: Any) -> None:
    """Writes how a forecast ended, unless somebody else has ended it."""
    if state == "finished":
        settings = get(store, forecast_id).settings
        fields["step"] = fields["total_steps"] = settings["horizon"]
    with store.session() as session:
        repository.set_forecast_state(
            session,
            forecast_id,
            state,
            allowed_from=PENDING_FORECAST_STATES,
            finished_at=utc_now(),
            **fields,
        )


def explain(error: Exception) -> str:
    """An unexpected error in words."""
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) or "memory" in text.lower():
        return "Out of memory. Draw fewer paths, or a shorter horizon or context."
    return f"{type(error).__name__}: {text.rstrip('.')}. The server's log has the details."


def fail_abandoned(store: Store) -> int:
    """Marks forecasts that a dead process left unfinished as failed. -> how many"""
    with store.session() as session:
        waiting = repository.forecasts_in(session, PENDING_FORECAST_STATES)
        return sum(
            repository.set_forecast_state(
                session,
                row.id,
                "failed",
                allowed_from=(row.state,),
                reason=INTERRUPTED,
                finished_at=utc_now(),
            )
            for row in waiting
            if _abandoned(row)
        )


def _abandoned(row: Forecast) -> bool:
    process, here = WorkerProcess(**row.settings["process"]), this_process().host
    return process.host == here and not is_alive(process)


# ---------------------------------------------------------------- stored forecasts


def get(store: Store, forecast_id: str) -> Forecast:
    """The forecast with this id. ServiceError if there is none."""
    with store.session(write=False) as session:
        row = repository.get(session, Forecast, forecast_id)
    if row is None:
        raise ServiceError(f"There is no forecast {forecast_id!r}; it may have been deleted.")
    return row


def list_forecasts(store: Store, limit: int | None = None) -> list[Forecast]:
    """All forecasts, newest first."""
    with store.session(write=False) as session:
        return repository.newest(session, Forecast, limit)


def cancel(store: Store, forecast_id: str) -> Forecast:
    """Takes a queued forecast back at once; a running one ends at its next step."""
    row = get(store, forecast_id)
    waiting = PENDING_FORECAST_STATES if _abandoned(row) else ("queued",)
    with store.session() as session:
        ended = repository.set_forecast_state(
            session,
            forecast_id,
            "cancelled",
            allowed_from=waiting,
            reason="Cancelled on request.",
            finished_at=utc_now(),
        )
        if not ended:
            repository.update_row(session, Forecast, forecast_id, cancel_requested=True)
    return get(store, forecast_id)


def rename(store: Store, forecast_id: str, name: str) -> Forecast:
    """Gives the forecast another name."""
    name = clean_name(name, "forecast")
    with store.session() as session:
        repository.update_row(session, Forecast, forecast_id, name=name)
    return get(store, forecast_id)


def delete(store: Store, forecast_id: str) -> None:
    """Deletes the forecast, and its paths and bars if nothing else needs them."""
    row = get(store, forecast_id)
    if row.state in PENDING_FORECAST_STATES and not _abandoned(row):
        raise ServiceError(f"{row.name} is {row.state}. Cancel it first, then delete it.")
    with store.session() as session:
        repository.delete_forecast(session, forecast_id)
        content = row.content_hash
        unused = content and not repository.forecasts_with_content(session, content)
    if content and unused:
        store.files.delete_forecast(content)
    drop_unused_bars(store, {row.data_hash})


def load(store: Store, row: Forecast) -> core.Forecast:
    """The drawn paths. ServiceError if it is not finished or its file is gone."""
    if row.content_hash is None:
        raise ServiceError(row.reason or f"{row.name} is {row.state}; it has no paths yet.")
    try:
        return store.files.read_forecast(row.content_hash)
    except (StorageError, ValueError) as error:
        raise ServiceError(str(error)) from error


def actual(store: Store, row: Forecast) -> pd.DataFrame:
    """The known bars after the origin, at most `horizon`, on the scale of the forecast.

    They come from the bars that it was drawn from. Where these end too early, they come from the
    dataset as it is now, unless its prices were restated since.
    """
    dataset, horizon = datasets.get(store, row.dataset_id), row.settings["horizon"]
    origin = pd.Timestamp(row.settings["origin"])
    bars = read_bars(store, row.data_hash, dataset.timezone)
    if dataset.data_hash != row.data_hash and bars["timestamps"].iloc[-horizon:].min() <= origin:
        present = datasets.bars(store, dataset)
        bars = present if _same_scale(bars.tail(_SCALE_BARS), present) else bars
    after = bars[bars["timestamps"] > origin]
    return after.head(horizon).reset_index(drop=True)


def _same_scale(known: pd.DataFrame, present: pd.DataFrame) -> bool:
    """Whether most of the known bars still have their close; a correction of one is no rescale."""
    both = known.merge(present, on="timestamps", suffixes=("", "_now"))
    ratio = both["close_now"] / both["close"]
    return len(both) > 0 and abs(float(ratio.median()) - 1) <= 1e-6


def context_bars(store: Store, row: Forecast, count: int) -> pd.DataFrame:
    """The last `count` bars up to the origin, as they were when the forecast was asked for."""
    dataset = datasets.get(store, row.dataset_id)
    bars = read_bars(store, row.data_hash, dataset.timezone).iloc[
        : row.settings["origin_index"] + 1
    ]
    return bars.tail(count).reset_index(drop=True)
