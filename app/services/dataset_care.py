"""Taking care of a dataset: its calendar, its quality, repairs that can be undone, resampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from app.services import datasets
from app.services.dataset_checks import CalendarOrigin, calendar_for, explained, report_on
from app.services.errors import ServiceError
from app.services.shared import drop_unused_bars
from app.storage import Store, repository
from app.storage.models import Dataset
from kronos_core.data import repair
from kronos_core.data import resample as resampling
from kronos_core.data.bars import Series, bars_hash, make_series
from kronos_core.data.calendars import Calendar
from kronos_core.data.findings import QualityReport
from kronos_core.data.repair import RepairStep

# ---------------------------------------------------------------- calendar and quality


def calendar_of(store: Store, dataset: Dataset) -> tuple[Calendar, CalendarOrigin]:
    """The calendar that counts for a dataset (chosen, recognised by its symbol, or inferred)."""
    return calendar_for(datasets.series_of(store, dataset), dataset.calendar)


def set_calendar(store: Store, id_or_name: str, calendar: Mapping[str, Any] | None) -> Dataset:
    """Chooses a calendar (as `Calendar.to_dict` gives it) or, with None, none; checks anew.

    ServiceError that names the field for a calendar that makes no sense.
    """
    dataset = datasets.get(store, id_or_name)
    series = datasets.series_of(store, dataset)
    chosen = calendar_for(series, calendar)[0].to_dict() if calendar is not None else None
    report = report_on(series, chosen).to_dict()
    with store.session() as session:
        repository.update_row(session, Dataset, dataset.id, calendar=chosen, quality=report)
    return datasets.get(store, dataset.id)


def quality(store: Store, id_or_name: str) -> QualityReport:
    """What is wrong with the bars as they are now; its summary is stored with the dataset."""
    dataset = datasets.get(store, id_or_name)
    report = report_on(datasets.series_of(store, dataset), dataset.calendar)
    if dataset.quality != (summary := report.to_dict()):
        known = (dataset.original_hash, dataset.data_hash)
        with store.session() as session:
            repository.replace_bars(session, dataset.id, known=known, quality=summary)
    return report


# ---------------------------------------------------------------- repairs


def offered_steps(report: QualityReport) -> list[RepairStep]:
    """A step for every finding that can be repaired, in an order in which none spoils another."""
    offered = {
        finding.repair: RepairStep(name=finding.repair, parameters=finding.parameters)
        for finding in report.findings
        if finding.repair is not None
    }
    return [offered[name] for name in repair.REPAIRS if name in offered]


def preview_repairs(
    store: Store, id_or_name: str, steps: Sequence[RepairStep]
) -> list[repair.Change]:
    """What each step would do to the bars as they are now. Stores nothing."""
    dataset = datasets.get(store, id_or_name)
    series = datasets.series_of(store, dataset)
    with explained():
        return repair.preview(series.frame, _completed(steps, series, dataset))


def apply_repairs(store: Store, id_or_name: str, steps: Sequence[RepairStep]) -> Dataset:
    """Applies further steps after those that the dataset has; the original bars are kept.

    Steps take the dataset's calendar and time zone where they do not name their own.
    ServiceError or DataError, with nothing changed, where the result would be no usable series.
    """
    dataset = datasets.get(store, id_or_name)
    further = _completed(steps, datasets.series_of(store, dataset), dataset)
    return _with_repairs(store, dataset, [*repairs_of(dataset), *further])


def remove_repair(store: Store, id_or_name: str, place: int) -> Dataset:
    """Takes one step out (0 is the first) and applies the others to the original again."""
    dataset = datasets.get(store, id_or_name)
    steps = repairs_of(dataset)
    if not 0 <= place < len(steps):
        raise ServiceError(
            f'"{dataset.name}" has {len(steps)} repairs; there is none at place {place + 1}.'
        )
    return _with_repairs(store, dataset, steps[:place] + steps[place + 1 :])


def undo_repairs(store: Store, id_or_name: str) -> Dataset:
    """Goes back to the original bars: the same file, byte for byte, and so the same hash."""
    return _with_repairs(store, datasets.get(store, id_or_name), [])


def repairs_of(dataset: Dataset) -> list[RepairStep]:
    """The steps that lead from the original bars to the current ones."""
    return [RepairStep.from_dict(values) for values in dataset.repairs]


def replace_original(
    store: Store,
    dataset: Dataset,
    original: pd.DataFrame,
    steps: Sequence[RepairStep],
    **fields: Any,
) -> Dataset:
    """Gives a dataset other original bars and repair steps, and sets further columns.

    Files that a run or a forecast still needs are kept. ServiceError if somebody else changed the
    dataset meanwhile, DataError if the repaired bars are unusable; nothing is changed then.
    """
    with explained():
        repaired = repair.apply(original, steps) if steps else original
    series = make_series(repaired, symbol=dataset.symbol, timezone=dataset.timezone)
    report = report_on(series, dataset.calendar)
    before = (dataset.original_hash, dataset.data_hash)
    after = tuple(_stored(store, frame, before) for frame in (original, series.frame))
    fields |= datasets.facts_of(series)
    fields |= {"original_hash": after[0], "data_hash": after[1], "quality": report.to_dict()}
    fields["repairs"] = [step.to_dict() for step in steps]
    with store.session() as session:
        done = repository.replace_bars(session, dataset.id, known=before, **fields)
    drop_unused_bars(store, {*before, *after})
    if not done:
        raise ServiceError(
            f'"{dataset.name}" was changed meanwhile. Open it again and repeat this.'
        )
    return datasets.get(store, dataset.id)


# ---------------------------------------------------------------- resampling


def resample(store: Store, id_or_name: str, interval: str, name: str) -> Dataset:
    """A new dataset with bars of a coarser interval ("15min", "4h", "1D", "1W", "1M").

    Its provenance names the dataset and the bars that it came from.
    """
    dataset = datasets.get(store, id_or_name)
    calendar, _ = calendar_of(store, dataset)
    with explained():
        series = resampling.resample(datasets.series_of(store, dataset), interval, calendar)
    origin = {"dataset": dataset.id, "name": dataset.name, "data_hash": dataset.data_hash}
    return datasets.add(
        store,
        series,
        name=name,
        source="resampled",
        provenance={"resampled_from": origin, "interval": interval},
        calendar=dataset.calendar,
    )


# ---------------------------------------------------------------- helpers


def _with_repairs(store: Store, dataset: Dataset, steps: Sequence[RepairStep]) -> Dataset:
    return replace_original(store, dataset, datasets.original_bars(store, dataset), steps)


def _stored(store: Store, frame: pd.DataFrame, known: Sequence[str]) -> str:
    """The hash of bars that are in the workspace now; a file that is there stays as it is."""
    data_hash = bars_hash(frame)
    return data_hash if data_hash in known else store.files.write_bars(frame)


def _completed(steps: Sequence[RepairStep], series: Series, dataset: Dataset) -> list[RepairStep]:
    """Steps with the dataset's calendar and time zone where they do not name their own."""
    calendar, _ = calendar_for(series, dataset.calendar)
    own = {"calendar": calendar.to_dict(), "timezone": dataset.timezone}
    return [_step_with(step, own) for step in steps]


def _step_with(step: RepairStep, own: Mapping[str, Any]) -> RepairStep:
    taken = {key: own[key] for key in repair.REPAIRS[step.name].parameters if key in own}
    named = {key: value for key, value in step.parameters.items() if value is not None}
    return RepairStep(name=step.name, parameters={**taken, **named})
