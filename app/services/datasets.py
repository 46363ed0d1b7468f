"""Datasets: bringing bars in, reading them back, renaming and deleting."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from app.services.errors import ServiceError
from app.services.shared import (
    check_deletable,
    clean_name,
    describe,
    free_name,
    name_taken,
    not_found,
    remove_files,
)
from app.services.status import version
from app.storage import StorageError, Store, repository
from app.storage.models import Dataset
from kronos_core.data.bars import DataError, Series
from kronos_core.data.dialects import read_bars
from kronos_core.data.samples import SAMPLES, load_sample
from kronos_core.data.sources import fetch_yahoo as download_yahoo

MEGABYTE = 1024 * 1024


def read_upload(content: bytes, filename: str, max_mb: int) -> list[Series]:
    """The series of an uploaded file; DataError says what is wrong with it. Stores nothing."""
    size = len(content) / MEGABYTE
    if size > max_mb:
        raise DataError(
            f"The file has {size:.0f} MB and the limit is {max_mb} MB. "
            "Split it, or raise KRONOS_MAX_UPLOAD_MB and start again."
        )
    return read_bars(content, Path(filename).name)


def add(
    store: Store,
    series: Series,
    *,
    name: str,
    source: str,
    provenance: Mapping[str, Any] | None = None,
) -> Dataset:
    """Stores a series; the same bars under the same name are stored once.

    `source` is "upload", "sample" or "yahoo". ServiceError if other bars have that name.
    """
    name = clean_name(name, "dataset")
    data_hash = store.files.write_bars(series.frame)
    row = _row(series, name, source, data_hash, provenance or {})
    with store.session() as session:
        known = repository.datasets_with(session, name=name, data_hash=data_hash)
        if known:
            return known[0]
        added = repository.add_unless_taken(session, row)
    if added is None:
        _drop_unused_bars(store, data_hash)
        raise name_taken(name, "dataset")
    return added


def _row(
    series: Series, name: str, source: str, data_hash: str, provenance: Mapping[str, Any]
) -> Dataset:
    stamps = series.frame["timestamps"]
    return Dataset(
        name=name,
        symbol=series.symbol,
        interval_seconds=series.interval.total_seconds(),
        timezone=series.timezone,
        bars=len(series.frame),
        first=stamps.iloc[0].to_pydatetime(warn=False),
        last=stamps.iloc[-1].to_pydatetime(warn=False),
        source=source,
        provenance={"code_version": version(), **provenance},
        findings=list(series.findings),
        data_hash=data_hash,
    )


def add_sample(store: Store, key: str) -> Dataset:
    """The bundled sample as a dataset; opened again it is the same one, also when renamed."""
    series, data = load_sample(key), SAMPLES[key]
    data_hash = store.files.write_bars(series.frame)
    with store.session(write=False) as session:
        known = repository.datasets_with(session, data_hash=data_hash, source="sample")
        taken = repository.names(session, Dataset)
    if known:
        return known[0]
    provenance = {"sample": key, "origin": data.source}
    name = free_name(data.title, taken)
    return add(store, series, name=name, source="sample", provenance=provenance)


def fetch_yahoo(store: Store, ticker: str, period: str, interval: str) -> Series:
    """Bars from Yahoo, not stored yet; DataError with the remedy when they cannot be had."""
    series = download_yahoo(ticker, period, interval)
    if len(series.frame) < 2:
        raise DataError(f"Yahoo gave one bar of {ticker}. Choose a longer period.")
    return series


def get(store: Store, id_or_name: str) -> Dataset:
    """The dataset with this id or name; ServiceError lists what there is."""
    with store.session(write=False) as session:
        found = repository.find(session, Dataset, id_or_name)
        if found is None:
            raise not_found(id_or_name, "dataset", repository.names(session, Dataset))
    return found


def list_datasets(store: Store) -> list[Dataset]:
    """All datasets, newest first."""
    with store.session(write=False) as session:
        return repository.newest(session, Dataset)


def bars(store: Store, dataset: Dataset) -> pd.DataFrame:
    """The bars: `timestamps` in the dataset's own time zone, then the six channels."""
    try:
        frame = store.files.read_bars(dataset.data_hash)
    except StorageError as error:
        raise ServiceError(f'Dataset "{dataset.name}": {error}') from error
    return frame.assign(timestamps=frame["timestamps"].dt.tz_convert(dataset.timezone))


def sparkline(store: Store, dataset: Dataset, points: int = 60) -> list[float]:
    """At most `points` closes, evenly spaced, the first and the last among them.

    Empty if the bars are missing, so that one lost file does not hide a whole list.
    """
    try:
        closes = store.files.read_closes(dataset.data_hash)
    except StorageError:
        return []
    places = np.linspace(0, len(closes) - 1, min(points, len(closes))).round().astype(int)
    return [closes[place] for place in places]


def rename(store: Store, id_or_name: str, name: str) -> Dataset:
    """Gives a dataset another name; ServiceError if it is taken."""
    dataset, name = get(store, id_or_name), clean_name(name, "dataset")
    with store.session() as session:
        holder = repository.find_by_name(session, Dataset, name)
        if holder is not None and holder.id != dataset.id:
            raise name_taken(name, "dataset")
        repository.update_row(session, Dataset, dataset.id, name=name)
    return get(store, dataset.id)


def dependents(store: Store, id_or_name: str) -> list[str]:
    """The runs and forecasts that use a dataset, in words."""
    dataset = get(store, id_or_name)
    with store.session(write=False) as session:
        return describe(repository.dependents_of_dataset(session, dataset.id))


def delete(store: Store, id_or_name: str, *, force: bool = False) -> None:
    """Deletes a dataset; with `force` also the runs and forecasts that use it.

    Models that came of its runs stay. ServiceError names what uses it, without `force` or while
    any of it is still queued or running.
    """
    dataset = get(store, id_or_name)
    with store.session() as session:
        users = repository.dependents_of_dataset(session, dataset.id)
        check_deletable("dataset", dataset.name, users, force=force)
        repository.delete_dependents(session, *users)
        repository.delete_dataset(session, dataset.id)
    remove_files(store, users)
    _drop_unused_bars(store, dataset.data_hash)


def _drop_unused_bars(store: Store, data_hash: str) -> None:
    with store.session(write=False) as session:
        used = repository.datasets_with(session, data_hash=data_hash)
    if not used:
        store.files.delete_bars(data_hash)
