"""Datasets: bringing bars in, reading them back, renaming and deleting."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from app.services.dataset_checks import report_on
from app.services.errors import ServiceError
from app.services.shared import (
    LONGEST_NAME,
    check_deletable,
    clean_name,
    describe,
    drop_unused_bars,
    free_name,
    name_taken,
    not_found,
    remove_files,
)
from app.services.status import version
from app.storage import StorageError, Store, repository
from app.storage.models import Dataset
from kronos_core.data.bars import DataError, Series, interval_of
from kronos_core.data.calendars import Calendar
from kronos_core.data.choices import ReadingChoices
from kronos_core.data.containers import open_parts
from kronos_core.data.decoding import to_utf8
from kronos_core.data.dialects import Reading, inspect_bars
from kronos_core.data.findings import QualityReport
from kronos_core.data.samples import SAMPLES, load_sample
from kronos_core.data.synthetic import SyntheticSettings, make_synthetic

MEGABYTE = 1024 * 1024
_HEAD_BYTES = 1 << 16
_LONGEST_LINE = 200


def inspect_upload(
    content: bytes, filename: str, max_mb: int, choices: ReadingChoices | None = None
) -> list[Reading]:
    """How an uploaded file is read, one Reading for each table in it. Stores nothing.

    DataError says what is wrong with it; AmbiguityError, which is one, holds the readings to
    choose from. choices: replace what would be detected.
    """
    size = len(content) / MEGABYTE
    if size > max_mb:
        raise DataError(
            f"The file has {size:.0f} MB and the limit is {max_mb} MB. "
            "Split it, or raise KRONOS_MAX_UPLOAD_MB and start again."
        )
    return inspect_bars(content, Path(filename).name, choices)


def described(reading: Reading) -> dict[str, Any]:
    """A reading as `add` stores it: the dialect, the member of an archive, and every choice."""
    return {
        "dialect": reading.dialect,
        "member": reading.name,
        "choices": reading.choices.to_dict(),
    }


def first_lines(content: bytes, count: int = 8) -> list[str]:
    """The first lines of a file's first table as text, to look at when it cannot be read.

    Empty where it holds no text.
    """
    try:
        body = open_parts(content)[0].body
        if not isinstance(body, bytes):
            return [",".join(body.column_names)]
        text = to_utf8(body)[0][:_HEAD_BYTES].decode("utf-8", errors="replace")
    except DataError:
        return []
    return [line[:_LONGEST_LINE] for line in text.splitlines() if line.strip()][:count]


def suggested_names(readings: Sequence[Reading], filename: str) -> list[list[str]]:
    """A name for each series of each reading, none of them twice."""
    whole, taken, names = Path(filename).stem, set[str](), list[list[str]]()
    for reading in readings:
        own = Path(reading.name).stem if len(readings) > 1 and reading.name else whole
        names.append([])
        for series in reading.series:
            name = free_name((series.symbol or own)[:LONGEST_NAME], taken)
            taken.add(name)
            names[-1].append(name)
    return names


def add(
    store: Store,
    series: Series,
    *,
    name: str,
    source: str,
    provenance: Mapping[str, Any] | None = None,
    reading: Mapping[str, Any] | None = None,
    calendar: Mapping[str, Any] | None = None,
    report: QualityReport | None = None,
) -> Dataset:
    """Stores a series; the same bars under the same name are stored once.

    source: "upload", "sample", "yahoo", "crypto", "synthetic" or "resampled". reading: see
    `described`. calendar: a chosen one, as `Calendar.to_dict` gives it. report: on these bars with
    this calendar, if there is one already. ServiceError if other bars have that name.
    """
    name = clean_name(name, "dataset")
    report = report or report_on(series, calendar)
    data_hash = store.files.write_bars(series.frame)
    row = _row(series, name, source, data_hash, provenance or {})
    row.reading, row.quality = dict(reading or {}), report.to_dict()
    row.calendar = dict(calendar) if calendar is not None else None
    with store.session() as session:
        known = repository.datasets_with(session, name=name, original_hash=data_hash)
        if known:
            return known[0]
        added = repository.add_unless_taken(session, row)
    if added is None:
        drop_unused_bars(store, {data_hash})
        raise name_taken(name, "dataset")
    return added


def _row(
    series: Series, name: str, source: str, data_hash: str, provenance: Mapping[str, Any]
) -> Dataset:
    return Dataset(
        name=name,
        symbol=series.symbol,
        timezone=series.timezone,
        source=source,
        provenance={"code_version": version(), **provenance},
        findings=list(series.findings),
        data_hash=data_hash,
        **facts_of(series),
    )


def facts_of(series: Series) -> dict[str, Any]:
    """The columns of a dataset that its bars decide."""
    stamps = series.frame["timestamps"]
    return {
        "interval_seconds": series.interval.total_seconds(),
        "bars": len(series.frame),
        "first": stamps.iloc[0].to_pydatetime(warn=False),
        "last": stamps.iloc[-1].to_pydatetime(warn=False),
    }


def add_sample(store: Store, key: str) -> Dataset:
    """The bundled sample as a dataset; opened again it is the same one, also when renamed."""
    series, data = load_sample(key), SAMPLES[key]
    data_hash = store.files.write_bars(series.frame)
    with store.session(write=False) as session:
        known = repository.datasets_with(session, original_hash=data_hash, source="sample")
        taken = repository.names(session, Dataset)
    if known:
        return known[0]
    provenance = {"sample": key, "origin": data.source}
    name = free_name(data.title, taken)
    return add(store, series, name=name, source="sample", provenance=provenance)


def add_synthetic(store: Store, settings: SyntheticSettings, *, name: str) -> Dataset:
    """Stores the bars that these settings make, with the settings, so that they can be made again.

    ServiceError if other bars have that name.
    """
    provenance = {"synthetic": settings.to_dict()}
    series = make_synthetic(settings)
    return add(store, series, name=name, source="synthetic", provenance=provenance)


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


def calendar_title(dataset: Dataset) -> str | None:
    """The calendar that counted when the bars were last checked, in a few words."""
    known = (dataset.quality or {}).get("calendar")
    return Calendar.from_dict(known).title if known else None


def bars(store: Store, dataset: Dataset) -> pd.DataFrame:
    """The bars: `timestamps` in the dataset's own time zone, then the six channels."""
    frame = _read(store, dataset, dataset.data_hash)
    return frame.assign(timestamps=frame["timestamps"].dt.tz_convert(dataset.timezone))


def series_of(store: Store, dataset: Dataset) -> Series:
    """The bars as the engine takes them, stamps in UTC, with symbol, zone and findings."""
    frame = _read(store, dataset, dataset.data_hash)
    return Series(
        frame=frame,
        symbol=dataset.symbol,
        interval=interval_of(pd.DatetimeIndex(frame["timestamps"])),
        timezone=dataset.timezone,
        findings=tuple(dataset.findings),
    )


def original_bars(store: Store, dataset: Dataset) -> pd.DataFrame:
    """The bars without the repairs, stamps in UTC."""
    return _read(store, dataset, dataset.original_hash)


def _read(store: Store, dataset: Dataset, data_hash: str) -> pd.DataFrame:
    try:
        return store.files.read_bars(data_hash)
    except StorageError as error:
        raise ServiceError(f'Dataset "{dataset.name}": {error}') from error


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
    kept_for = {row.data_hash for rows in users for row in rows}
    drop_unused_bars(store, {dataset.data_hash, dataset.original_hash, *kept_for})
