"""Datasets from the network: searching a source, fetching bars, and bringing them up to date."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import pandas as pd

from app.services import datasets
from app.services.dataset_care import repairs_of, replace_original
from app.services.errors import ServiceError
from app.storage import Store
from app.storage.models import Dataset, utc_now
from kronos_core.data.bars import Series
from kronos_core.data.refresh import Refresh, merge_new
from kronos_core.data.sources import Listing, Source, open_source, period_length

OVERLAP = 30  # known bars that are fetched again, to see whether the past changed
_KEPT_REFRESHES = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchRequest:
    """What is asked of a source; stored with the dataset, so that it can be asked again.

    source: "yahoo" or "crypto:" and an exchange. Either a period, or a start with or without an
    end. adjusted: for splits and dividends.
    """

    source: str
    symbol: str
    interval: str
    period: str | None = None
    start: pd.Timestamp | None = None
    end: pd.Timestamp | None = None
    adjusted: bool = True

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {
            name: value.isoformat() if isinstance(value, pd.Timestamp) else value
            for name, value in asdict(self).items()
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> FetchRequest:
        """The inverse of `to_dict`."""
        times = {name: pd.Timestamp(values[name]) for name in ("start", "end") if values.get(name)}
        return cls(**{**values, **times})


def search(store: Store, source: str, text: str) -> list[Listing]:
    """What a source has by a name or symbol; DataError with the remedy when it cannot be asked."""
    with _opened(store, source) as opened:
        return opened.search(text)


def intervals(store: Store, source: str) -> dict[str, str | None]:
    """The intervals of a source with the longest period of each (None: no limit)."""
    with _opened(store, source) as opened:
        return opened.intervals()


def fetch(store: Store, request: FetchRequest) -> Series:
    """Bars, not stored yet; the same request within five minutes is answered from a file.

    DataError with the reason and the remedy when they cannot be had.
    """
    with _opened(store, request.source) as opened:
        return opened.fetch(
            request.symbol,
            request.interval,
            period=request.period,
            start=request.start,
            end=request.end,
            adjusted=request.adjusted,
        )


def add(store: Store, series: Series, request: FetchRequest, *, name: str) -> Dataset:
    """Stores fetched bars with the request, so that the dataset can be refreshed."""
    return datasets.add(
        store,
        series,
        name=name,
        source=request.source.partition(":")[0],
        provenance={"request": request.to_dict(), "fetched_at": utc_now().isoformat()},
    )


def request_of(dataset: Dataset) -> FetchRequest | None:
    """What a dataset was fetched with, or None if it did not come from a source."""
    known = dataset.provenance.get("request")
    if known is not None:
        return FetchRequest.from_dict(known)
    if dataset.source == "yahoo":  # as the first version of the program stored it
        told = dataset.provenance
        return FetchRequest(
            source="yahoo",
            symbol=told["ticker"],
            interval=told["interval"],
            period=told["period"],
        )
    return None


def refresh(store: Store, id_or_name: str) -> tuple[Dataset, Refresh]:
    """Fetches what is new, joins it to the dataset, and says what changed in the past.

    The last OVERLAP bars are fetched again; where they changed, all that the source still has is.
    Repairs are applied anew to the joined bars. Runs and forecasts keep the bars that they used.
    ServiceError if the dataset did not come from a source, DataError when that gives nothing.
    """
    dataset = datasets.get(store, id_or_name)
    request = request_of(dataset)
    if request is None:
        raise ServiceError(
            f'"{dataset.name}" did not come from a source that can be asked again. '
            "Upload the newer file as another dataset instead."
        )
    original = datasets.original_bars(store, dataset)
    result, findings = _merged(store, request, original, min(OVERLAP, len(original)))
    last = original["timestamps"].iloc[-1]
    # The newest bar is often corrected once; anything earlier may reach far back.
    if any(change.timestamp < last for change in result.changed):
        result, findings = _merged(store, request, original, len(original))
    updated = replace_original(
        store,
        dataset,
        result.frame,
        repairs_of(dataset),
        provenance={**dataset.provenance, "refreshes": _noted(dataset, result)},
        findings=findings,
    )
    return updated, result


def _merged(
    store: Store, request: FetchRequest, original: pd.DataFrame, overlap: int
) -> tuple[Refresh, list[str]]:
    """The original joined to what the source has from its last `overlap` bars on, and what the
    source remarked."""
    start = _start(store, request, original["timestamps"].iloc[-overlap])
    series = fetch(store, replace(request, period=None, start=start, end=None))
    return merge_new(original, series.frame), list(series.findings)


def _start(store: Store, request: FetchRequest, wanted: pd.Timestamp) -> pd.Timestamp:
    """The start that is wanted, or the earliest that the source allows if that is later."""
    longest = intervals(store, request.source).get(request.interval)
    if longest is None:
        return wanted
    # The clock goes on between this and the request.
    return max(wanted, pd.Timestamp.now("UTC") - 0.99 * period_length(longest))


def _noted(dataset: Dataset, result: Refresh) -> list[dict[str, Any]]:
    entry = {
        "at": utc_now().isoformat(),
        "added": result.added,
        "changed": len(result.changed),
        "findings": list(result.findings),
        "from": dataset.original_hash,
    }
    return [*dataset.provenance.get("refreshes", []), entry][-_KEPT_REFRESHES:]


@contextmanager
def _opened(store: Store, name: str) -> Iterator[Source]:
    """The source of a name, for one thread at a time; opened once in the life of the process."""
    source, lock = _kept(name.strip().lower(), store.files.fetched)
    with lock:
        yield source


@lru_cache(maxsize=32)
def _kept(name: str, folder: Path) -> tuple[Source, Lock]:
    return open_source(name, folder), Lock()
