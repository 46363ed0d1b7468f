"""Forecasts: checked, drawn on the short-job thread or at once, stored, and read back."""

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from app.jobs.bundles import bundle_source
from app.jobs.launchers import WorkerProcess, is_alive, this_process
from app.jobs.threads import short_jobs
from app.services import datasets, models
from app.services.dataset_checks import calendar_for
from app.services.errors import ServiceError
from app.services.shared import LONGEST_NAME, clean_name, drop_unused_bars
from app.services.status import version
from app.storage import repository
from app.storage.files import StorageError
from app.storage.models import PENDING_FORECAST_STATES, Dataset, Forecast, Model, utc_now
from app.storage.session import Store
from kronos_core.data.bars import Series, interval_of
from kronos_core.data.calendars import Calendar
from kronos_core.forecast import forecast as core
from kronos_core.forecast.forecaster import Cancelled, context_length, sample_paths
from kronos_core.forecast.sampling import SamplingConfig
from kronos_core.model.zoo import Bundle, resolve_device

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
PROGRESS_SECONDS = 0.25
INTERRUPTED = "Interrupted by a restart of the server. Draw it again."
_SCALE_BARS = 20  # the last known bars, which tell whether prices were restated


@dataclass(frozen=True, kw_only=True, slots=True)
class ForecastRequest:
    """What to draw. origin_index: the last context bar, counted from 0; None is the last bar.
    context: bars given to the model; None leaves the choice to it. Both lengths in bars."""

    dataset_id: str
    model_id: str
    horizon: int
    paths: int
    origin_index: int | None = None
    context: int | None = None
    seed: int = 0
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    name: str | None = None

    def sampling(self) -> SamplingConfig:
        """The settings of the sampler. ValueError if one is out of its range."""
        return SamplingConfig(
            horizon=self.horizon,
            paths=self.paths,
            seed=self.seed,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
        )


# ---------------------------------------------------------------- asking


def submit(store: Store, request: ForecastRequest) -> Forecast:
    """Queues a forecast on this process's short-job thread. ServiceError says what cannot be."""
    row = _add(store, request)
    short_jobs().submit(lambda: draw(store, row.id))
    return row


def run_now(store: Store, request: ForecastRequest, progress: Progress | None = None) -> Forecast:
    """Draws a forecast before it returns. ServiceError if it cannot be, or fails."""
    row = _add(store, request)
    draw(store, row.id, progress)
    row = get(store, row.id)
    if row.state != "finished":
        raise ServiceError(row.reason or f"The forecast was {row.state}.")
    return row


def _add(store: Store, request: ForecastRequest) -> Forecast:
    dataset = datasets.get(store, request.dataset_id)
    model = models.get(store, request.model_id)
    origin, context = _check(store, request, dataset, model)
    bars = _bars(store, dataset.data_hash, dataset.timezone)
    moment = bars["timestamps"].iloc[origin]
    settings = {
        "origin_index": origin,
        "origin": moment.isoformat(),
        "context": context,
        **request.sampling().to_dict(),
        "process": asdict(this_process()),
    }
    row = Forecast(
        name=_name(request, dataset, model, moment),
        dataset_id=dataset.id,
        model_id=model.id,
        state="queued",
        settings=settings,
        total_steps=request.horizon,
        data_hash=dataset.data_hash,
        model_hash=model.model_hash,
        code_version=version(),
    )
    with store.session() as session:
        return repository.add(session, row)


def _name(request: ForecastRequest, dataset: Dataset, model: Model, origin: pd.Timestamp) -> str:
    if request.name and request.name.strip():
        return clean_name(request.name, "forecast")
    when = f", {origin:%Y-%m-%d}"
    return f"{dataset.name}, {model.name}"[: LONGEST_NAME - len(when)] + when


def _check(
    store: Store, request: ForecastRequest, dataset: Dataset, model: Model
) -> tuple[int, int]:
    """-> (origin index, context in bars). ServiceError with the remedy for what cannot be."""
    try:
        request.sampling()
        resolve_device(store.settings.device)
    except ValueError as error:
        raise ServiceError(_sentence(str(error))) from error
    limit = store.settings.max_paths
    if request.paths > limit:
        raise ServiceError(
            f"Paths must be between 1 and {limit}, got {request.paths}. "
            "KRONOS_MAX_PATHS raises the limit."
        )
    origin = dataset.bars - 1 if request.origin_index is None else request.origin_index
    if not 0 <= origin < dataset.bars:
        raise ServiceError(
            f"The origin must be one of the {dataset.bars} bars of {dataset.name} "
            f"(0 to {dataset.bars - 1}), got {origin}."
        )
    _check_files(store, model)
    return origin, _context(request, origin, model)


def _context(request: ForecastRequest, origin: int, model: Model) -> int:
    known, wanted = origin + 1, request.context
    if wanted is not None and not 2 <= wanted <= model.max_context:
        raise ServiceError(
            f"The context must be between 2 and {model.max_context} bars for {model.name}, "
            f"got {wanted}."
        )
    if known < (wanted or 2):
        raise ServiceError(
            f"The origin has {known} bars up to and including itself, fewer than the context of "
            f"{wanted or 2}. Choose a later origin or a shorter context."
        )
    return context_length(known, request.horizon, model.max_context, wanted)


def _check_files(store: Store, model: Model) -> None:
    if model.folder and not (store.files.root / model.folder).is_dir():
        raise ServiceError(
            f"The files of {model.name} are gone from the workspace. "
            "Download or import it again, or choose another model."
        )


def _bars(store: Store, data_hash: str, timezone: str) -> pd.DataFrame:
    """Stored bars with their timestamps in the dataset's zone."""
    try:
        bars = store.files.read_bars(data_hash)
    except StorageError as error:
        raise ServiceError(str(error)) from error
    bars["timestamps"] = bars["timestamps"].dt.tz_convert(timezone)
    return bars


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


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
        _finish(store, forecast_id, "finished", **_drawn(store, forecast_id, progress))
    except Cancelled as reason:
        state = "failed" if short_jobs().closing else "cancelled"
        _finish(store, forecast_id, state, reason=str(reason))
    except (ServiceError, StorageError, ValueError) as error:
        _finish(store, forecast_id, "failed", reason=_sentence(str(error)))
    except Exception as error:
        log.exception("Forecast %s failed", forecast_id)
        _finish(store, forecast_id, "failed", reason=_explain(error))


def _drawn(store: Store, forecast_id: str, progress: Progress | None) -> dict[str, Any]:
    """The columns of a finished forecast."""
    began = time.monotonic()
    row = get(store, forecast_id)
    dataset, model = datasets.get(store, row.dataset_id), models.get(store, row.model_id)
    bars = _bars(store, row.data_hash, dataset.timezone)
    origin = row.settings["origin_index"]
    future, calendar = _future(dataset, bars, origin, row.settings["horizon"])
    forecast = sample_paths(
        _bundle(store, model),
        # Nothing after the origin goes any further than its timestamps, which calendars know.
        bars.iloc[: origin + 1].reset_index(drop=True),
        future=future,
        context=row.settings["context"],
        progress=_Reporter(store, forecast_id, progress),
        **{name: row.settings[name] for name in SamplingConfig.__dataclass_fields__},
    )
    return {
        "content_hash": store.files.write_forecast(forecast),
        "summary": {
            **summarise(forecast, time.monotonic() - began),
            "calendar": calendar.to_dict() if calendar else None,
        },
        "model_hash": forecast.provenance["model_hash"],
    }


def _bundle(store: Store, model: Model) -> Bundle:
    device = str(resolve_device(store.settings.device))
    return short_jobs().bundle(model.model_hash, bundle_source(store, model), device)


def _future(
    dataset: Dataset, bars: pd.DataFrame, origin: int, horizon: int
) -> tuple[pd.DatetimeIndex, Calendar | None]:
    """The known timestamps after the origin, then those of the dataset's calendar. -> [horizon]

    The calendar is None where all timestamps are known.
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
    calendar, _ = calendar_for(past, dataset.calendar)
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


def _finish(store: Store, forecast_id: str, state: str, **fields: Any) -> None:
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


def _explain(error: Exception) -> str:
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
    bars = _bars(store, row.data_hash, dataset.timezone)
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
    bars = _bars(store, row.data_hash, dataset.timezone).iloc[: row.settings["origin_index"] + 1]
    return bars.tail(count).reset_index(drop=True)
