"""Bringing bars in: files with a preview before anything is stored, or a bundled sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import streamlit as st
from streamlit.runtime.uploaded_file_manager import UploadedFile

from app.services import datasets
from app.services.dataset_checks import report_on
from app.services.errors import ServiceError
from app.storage.models import Dataset
from app.storage.session import Store
from app.ui import components, forecast_view, upload_reading
from app.ui import format as fmt
from app.ui.upload_reading import Draft
from kronos_core.data.bars import CHANNELS, DataError, Series
from kronos_core.data.choices import AmbiguityError
from kronos_core.data.dialects import Reading
from kronos_core.data.findings import QualityReport
from kronos_core.data.samples import SAMPLES

PREVIEW_ROWS = 6
MOST_COLUMNS = 40
FORMATS = "CSV, TXT, TSV, Parquet, Feather, Excel (.xlsx), JSON, also within .gz and .zip"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One series of a file, with the reading it belongs to and the name that is suggested."""

    reading: Reading
    series: Series
    name: str


def drop(store: Store, *, key: str) -> list[UploadedFile]:
    """The field for files. `review` shows what is in them."""
    turn = st.session_state.setdefault(f"{key}-turn", 0)
    limit = store.settings.max_upload_mb
    files: list[UploadedFile] = st.file_uploader(
        f"Drop files here, each up to {limit} MB",
        accept_multiple_files=True,
        key=f"{key}-file-{turn}",
        # The widget's own limit lies above ours, whose message names the remedy.
        max_upload_size=2 * limit,
        help=f"{FORMATS}. A time and open, high, low and close are needed, in any order; volume "
        "and amount if you have them. Nothing is stored before you press Save.",
    )
    return files


def busy(*, key: str) -> bool:
    """Whether there are files that are not stored yet."""
    return bool(st.session_state.get(f"{key}-drafts"))


def leave(*, key: str) -> None:
    """Forgets files that are not stored, when their field goes away."""
    st.session_state.pop(f"{key}-drafts", None)


def review(store: Store, files: Sequence[UploadedFile], *, key: str) -> Dataset | None:
    """How the files are read, and what can be changed. The last stored dataset once all are."""
    known: dict[str, Draft] = st.session_state.get(f"{key}-drafts", {})
    drafts = {
        file.file_id: known.get(file.file_id) or Draft(file.name, f"{key}-{file.file_id}")
        for file in files
    }
    st.session_state[f"{key}-drafts"] = drafts
    for file, draft in zip(files, drafts.values(), strict=True):
        _read(store, file, draft)
    ready = [draft for draft in drafts.values() if draft.readings and not draft.saved]
    all_wanted = len(ready) > 1 and st.button(
        f"Save all {len(ready)} files", type="primary", icon=":material/save:", key=f"{key}-all"
    )
    for draft in drafts.values():
        with st.container(border=True):
            _draft(store, draft, save=all_wanted)
    if not drafts or not all(draft.saved for draft in drafts.values()):
        return None
    st.session_state[f"{key}-turn"] += 1
    del st.session_state[f"{key}-drafts"]
    return datasets.get(store, next(reversed(drafts.values())).saved[-1])


def _read(store: Store, file: UploadedFile, draft: Draft) -> None:
    """Reads a file anew when its choices changed, not at every rerun."""
    if not draft.stale:
        return
    limit = store.settings.max_upload_mb
    draft.forget()
    try:
        with st.spinner(f"Reading {file.name}"):
            content = file.getvalue()
            draft.readings = datasets.inspect_upload(content, file.name, limit, draft.choices)
    except AmbiguityError as question:
        draft.question = question
    except (DataError, ServiceError) as problem:
        text = str(problem)
        draft.problem = text if text.startswith(file.name) else f"{file.name}: {text}"
        draft.lines = datasets.first_lines(content) if len(content) <= limit << 20 else []


def _draft(store: Store, draft: Draft, *, save: bool) -> None:
    if draft.saved:
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(f":green[:material/check:] **{fmt.plain(draft.name)}** is stored")
            for dataset_id in draft.saved[:3]:
                row = datasets.get(store, dataset_id)
                components.link("datasets", fmt.plain(row.name), "", dataset=row.id)
        return
    if draft.question:
        upload_reading.ask(draft)
    elif draft.problem:
        upload_reading.explain(draft)
    else:
        _preview(store, draft, save=save)


def _preview(store: Store, draft: Draft, *, save: bool) -> None:
    candidates = _candidates(draft)
    head = st.container()
    place = _shown_place(draft, candidates)
    shown = candidates[place]
    count = "" if len(candidates) == 1 else f" · {len(candidates):,} series"
    title = f"**{fmt.plain(draft.name)}** · {fmt.plain(shown.reading.dialect)}{count}"
    told = " · ".join(
        filter(None, (shown.reading.name, upload_reading.told(shown.reading.choices)))
    )
    head.markdown(f"{title}  \n:small[{fmt.plain(told)}]")
    series_line(shown.series)
    raw, read = st.columns(2)
    with raw:
        st.caption("First rows as they are in the file")
        upload_reading.raw_table(shown.reading, PREVIEW_ROWS, MOST_COLUMNS, f"{draft.key}-raw")
    with read:
        st.caption("As they are read")
        series = shown.series
        seconds = series.interval.total_seconds()
        bars_table(
            series.frame.head(PREVIEW_ROWS), seconds, series.timezone, key=f"{draft.key}-rows"
        )
    _findings(shown.series, _report(draft, place, shown.series))
    upload_reading.alternatives(draft, shown.reading)
    upload_reading.form(draft, shown.reading)
    _save(store, draft, candidates, wanted=save)


def _candidates(draft: Draft) -> list[Candidate]:
    assert draft.readings
    names = datasets.suggested_names(draft.readings, draft.name)
    return [
        Candidate(reading, series, name)
        for reading, own in zip(draft.readings, names, strict=True)
        for series, name in zip(reading.series, own, strict=True)
    ]


def _shown_place(draft: Draft, candidates: list[Candidate]) -> int:
    if len(candidates) == 1:
        return 0
    place: int = st.selectbox(
        "Series shown below",
        range(len(candidates)),
        format_func=lambda place: candidates[place].name,
        key=f"{draft.key}-{draft.turn}-shown",
        width=280,
    )
    return place


def series_line(series: Series) -> None:
    """How many bars, how long, from when to when."""
    frame, seconds = series.frame, series.interval.total_seconds()
    first, last = frame["timestamps"].iloc[0], frame["timestamps"].iloc[-1]
    st.markdown(
        f"**{fmt.plural(len(frame), 'bar')}** · interval {fmt.interval(seconds)} · "
        f"{fmt.span(first, last, seconds, series.timezone)} ({series.timezone})"
    )


def _report(draft: Draft, place: int, series: Series) -> QualityReport:
    if place not in draft.reports:
        draft.reports[place] = report_on(series)
    return draft.reports[place]


def _findings(series: Series, report: QualityReport) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        components.grade_badge(report.grade)
        st.caption(f"Calendar: {report.calendar.title if report.calendar else fmt.NONE}")
    notes = [f":material/info: {fmt.plain(finding)}" for finding in series.findings]
    notes += [
        f"{components.severity_icon(found.severity)} {fmt.plain(found.message)}"
        for found in report.findings
    ]
    st.caption("  \n".join(notes) or ":material/info: The bars are taken as they come.")


def _save(store: Store, draft: Draft, candidates: list[Candidate], *, wanted: bool) -> None:
    with st.container(horizontal=len(candidates) == 1, vertical_alignment="bottom"):
        names = _names(draft, candidates)
        pressed = st.button(
            "Save" if len(candidates) == 1 else f"Save {len(names)} series",
            type="primary",
            icon=":material/save:",
            key=f"{draft.key}-save",
            disabled=not names,
        )
    if not (pressed or wanted):
        return
    with components.problems():
        stored = [
            datasets.add(
                store,
                candidates[place].series,
                name=name,
                source="upload",
                provenance={"file": draft.name},
                reading=datasets.described(candidates[place].reading),
                report=draft.reports.get(place),
            )
            for place, name in names.items()
        ]
        draft.saved = [row.id for row in stored]
        st.toast(f"{draft.name} is stored", icon=":material/check:")


def _names(draft: Draft, candidates: list[Candidate]) -> dict[int, str]:
    """Place of each series that is to be stored -> its name."""
    key = f"{draft.key}-{draft.turn}-name"
    if len(candidates) == 1:
        name = st.text_input("Name of the dataset", candidates[0].name, key=key, width=280)
        return {0: name.strip()}
    frame = pd.DataFrame(
        {
            "Save": True,
            "Name": [found.name for found in candidates],
            "Symbol": [found.series.symbol or fmt.NONE for found in candidates],
            "Bars": [len(found.series.frame) for found in candidates],
            "Interval": [fmt.interval(one.series.interval.total_seconds()) for one in candidates],
        }
    )
    st.caption("Each is stored as a dataset of its own; untick what you do not need.")
    edited = st.data_editor(
        frame,
        key=key,
        hide_index=True,
        disabled=["Symbol", "Bars", "Interval"],
        height="content" if len(frame) <= 8 else 320,
    )
    kept = zip(edited["Save"], edited["Name"], strict=True)
    return {place: str(name or "").strip() for place, (wanted, name) in enumerate(kept) if wanted}


def bars_table(frame: pd.DataFrame, seconds: float, timezone: str, *, key: str) -> None:
    """Bars as rows, prices with the digits of the data, times in the zone of the data."""
    decimals = fmt.price_decimals(frame["close"])
    stamps = pd.DatetimeIndex(frame["timestamps"]).tz_convert(fmt.zone(timezone))
    shown = frame[list(CHANNELS)].copy()
    shown.insert(0, f"time ({timezone})", [fmt.bar_time(stamp, seconds) for stamp in stamps])
    st.dataframe(
        shown,
        key=key,
        hide_index=True,
        column_config=forecast_view.channel_columns(decimals),
        alt="Table of bars",
    )


def sample_buttons(store: Store, *, key: str) -> Dataset | None:
    """One button a bundled sample; the dataset that was opened."""
    opened = None
    with st.container(horizontal=True):
        for name, sample in SAMPLES.items():
            label = f"Open {sample.title}"
            icon = ":material/candlestick_chart:"
            if st.button(label, key=f"{key}-{name}", icon=icon, help=sample.description):
                with components.problems():
                    opened = datasets.add_sample(store, name)
    return opened
