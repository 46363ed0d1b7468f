"""What may be asked of a forecast: the request, its checks, and the row that is queued."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any

import pandas as pd

from app.jobs.launchers import this_process
from app.services import datasets, memory, models
from app.services.dataset_checks import explained
from app.services.errors import ServiceError
from app.services.shared import LONGEST_NAME, clean_name
from app.services.status import version
from app.storage.files import StorageError
from app.storage.models import Dataset, Forecast, Model
from app.storage.session import Store
from kronos_core.data.calendars import Calendar
from kronos_core.forecast.forecaster import DTYPES, context_length
from kronos_core.forecast.sampling import SamplingConfig
from kronos_core.model.zoo import resolve_device


@dataclass(frozen=True, kw_only=True, slots=True)
class ForecastRequest:
    """What to draw. origin_index: the last context bar, counted from 0; None is the last bar.
    context: bars given to the model; None leaves the choice to it. Both lengths in bars.
    dtype: "float32", or "bfloat16" for the predictor.
    calendar: what stamps the bars that are not known yet, as `Calendar.to_dict` gives it; None is
    the dataset's own."""

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
    dtype: str = "float32"
    calendar: Mapping[str, Any] | None = None
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


def prepare(store: Store, request: ForecastRequest, **marks: Any) -> Forecast:
    """A checked, queued forecast that is not stored yet; `marks` go into its settings.

    ServiceError says what cannot be, and what can.
    """
    dataset = datasets.get(store, request.dataset_id)
    model = models.get(store, request.model_id)
    origin, context = check(store, request, dataset, model)
    bars = read_bars(store, dataset.data_hash, dataset.timezone)
    moment = bars["timestamps"].iloc[origin]
    settings = {
        "origin_index": origin,
        "origin": moment.isoformat(),
        "context": context,
        **request.sampling().to_dict(),
        "dtype": request.dtype,
        "calendar": _calendar(request),
        **marks,
        "process": asdict(this_process()),
    }
    return Forecast(
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


def _name(request: ForecastRequest, dataset: Dataset, model: Model, origin: pd.Timestamp) -> str:
    if request.name and request.name.strip():
        return clean_name(request.name, "forecast")
    when = f", {origin:%Y-%m-%d}"
    return f"{dataset.name}, {model.name}"[: LONGEST_NAME - len(when)] + when


def check(
    store: Store, request: ForecastRequest, dataset: Dataset, model: Model
) -> tuple[int, int]:
    """-> (origin index, context in bars). ServiceError with the remedy for what cannot be."""
    try:
        request.sampling()
        resolve_device(store.settings.device)
    except ValueError as error:
        raise ServiceError(sentence(str(error))) from error
    if request.dtype not in DTYPES:
        raise ServiceError(
            f'There is no number format "{request.dtype}". Choose one of {", ".join(DTYPES)}.'
        )
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
    _calendar(request)
    context = _context(request, origin, model)
    memory.need(store, model, [context], request.horizon, request.paths, request.dtype)
    return origin, context


def estimate(store: Store, request: ForecastRequest) -> memory.Need:
    """The memory that a forecast would take. ServiceError says what cannot be."""
    dataset = datasets.get(store, request.dataset_id)
    model = models.get(store, request.model_id)
    _, context = check(store, request, dataset, model)
    return memory.need(store, model, [context], request.horizon, request.paths, request.dtype)


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


def _calendar(request: ForecastRequest) -> dict[str, Any] | None:
    """The chosen calendar as it is stored. ServiceError names the field that makes no sense."""
    if request.calendar is None:
        return None
    with explained():
        return Calendar.from_dict(request.calendar).to_dict()


def origin_on(dataset: Dataset, bars: pd.DataFrame, day: date) -> int:
    """Index of the last bar on or before a day of the dataset's own zone, in which `bars` are.

    ServiceError for a day outside of the bars. A forecast needs two, so the first is no origin.
    """
    stamps = pd.DatetimeIndex(bars["timestamps"]).tz_localize(None)
    first, last = stamps[1].date(), stamps[-1].date()
    if not first <= day <= last:
        raise ServiceError(
            f"The origin of a forecast of {dataset.name} lies between {first} and {last}, "
            f"got {day}. Choose a day between them."
        )
    return int((stamps < pd.Timestamp(day) + pd.Timedelta(days=1)).sum()) - 1


def read_bars(store: Store, data_hash: str, timezone: str) -> pd.DataFrame:
    """Stored bars with their timestamps in the dataset's zone."""
    try:
        bars = store.files.read_bars(data_hash)
    except StorageError as error:
        raise ServiceError(str(error)) from error
    bars["timestamps"] = bars["timestamps"].dt.tz_convert(timezone)
    return bars


def sentence(text: str) -> str:
    """The message of an error, written as a sentence."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
