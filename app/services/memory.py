"""How much memory a forecast takes: said before it starts, refused where there is too little."""

from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from app.jobs.bundles import bundle_source
from app.services.errors import ServiceError
from app.storage.models import Model
from app.storage.session import Store
from kronos_core.data.bars import CHANNELS
from kronos_core.forecast.forecaster import DTYPES
from kronos_core.forecast.memory import (
    GB,
    MemoryBudgetError,
    default_budget,
    estimate_memory,
    plan_batches,
)
from kronos_core.model.files import BundleError
from kronos_core.model.outline import Outline, outline
from kronos_core.model.zoo import resolve_device

# Bytes of one drawn bar: its prices, repaired, sorted for quantiles, and the table that is stored.
RESULT_BYTES = 7 * 8 * len(CHANNELS) + 3 * 8
SHARE = 0.8  # of the free memory that a forecast's result may take


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """Bytes of memory: while drawing, for the drawn paths, and what may be used for both.

    parts: in how many batches it is drawn, so that drawing stays within its budget and, on a CPU,
    within the processor's caches.
    """

    drawing: int
    results: int
    allowed: int
    parts: int

    @property
    def total(self) -> int:
        return self.drawing + self.results


def need(
    store: Store, model: Model, contexts: Sequence[int], horizon: int, paths: int, dtype: str
) -> Need:
    """What drawing `paths` futures of `horizon` bars after each context (bars) would take.

    ServiceError when the model's files are gone, or when it would not fit, with the remedy.
    """
    shape = _outline(store, model)
    budget, kind = default_budget(shape.device), DTYPES[dtype]
    try:
        batches = plan_batches(shape, contexts, horizon, paths, budget, kind)
    except MemoryBudgetError as error:
        text = str(error)
        raise ServiceError(f"{text[:1].upper()}{text[1:]}.") from error
    found = Need(
        drawing=max(
            estimate_memory(
                shape,
                max(contexts[index] for index in batch.series),
                horizon,
                len(batch.paths),
                len(batch.series),
                dtype=kind,
            )
            for batch in batches
        ),
        results=RESULT_BYTES * paths * horizon * len(contexts),
        allowed=int(SHARE * psutil.virtual_memory().available),
        parts=len(batches),
    )
    _refuse(found, len(contexts), horizon, paths)
    return found


def _refuse(found: Need, series: int, horizon: int, paths: int) -> None:
    if found.total <= found.allowed:
        return
    room = max(0, found.allowed - found.drawing)
    most = room // (RESULT_BYTES * horizon * series)
    whole, each = (f" for {series} series", " each") if series > 1 else ("", "")
    remedy = f"draw at most {most:,} paths{each}, or" if most else "draw fewer paths and"
    raise ServiceError(
        f"{paths:,} paths of {horizon:,} bars{whole} need about {found.total / GB:,.2g} GB of "
        f"memory, and {found.allowed / GB:,.2g} GB may be used: {remedy} shorten the horizon."
    )


def _outline(store: Store, model: Model) -> Outline:
    try:
        return outline(bundle_source(store, model), resolve_device(store.settings.device))
    except BundleError as error:
        raise files_gone(model, error) from error


def files_gone(model: Model, error: BundleError) -> ServiceError:
    """What to do about a model that cannot be loaded."""
    return ServiceError(
        f"The files of {model.name} are gone from the workspace or damaged ({error}). "
        "Download or import it again, or choose another model."
    )
