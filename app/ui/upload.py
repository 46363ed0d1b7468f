"""Bringing bars in: a file with a preview before anything is stored, or a bundled sample."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import streamlit as st
from streamlit.runtime.uploaded_file_manager import UploadedFile

from app.services import datasets
from app.services.errors import ServiceError
from app.storage.models import Dataset
from app.storage.session import Store
from app.ui import components, forecast_view
from app.ui import format as fmt
from kronos_core.data.bars import CHANNELS, DataError, Series
from kronos_core.data.samples import SAMPLES

PREVIEW_ROWS = 6
COLUMNS = "time, open, high, low, close; volume and amount if you have them"


def upload(store: Store, *, key: str) -> Dataset | None:
    """The file widget with its preview. The stored dataset once Save was pressed."""
    turn = st.session_state.setdefault(f"{key}-turn", 0)
    limit = store.settings.max_upload_mb
    file = st.file_uploader(
        f"A CSV file, up to {limit} MB",
        key=f"{key}-file-{turn}",
        # The widget's own limit lies above ours, whose message names the remedy.
        max_upload_size=2 * limit,
        help=f"Columns in any order: {COLUMNS}. Nothing is stored before you press Save.",
    )
    if file is None:
        return None
    read = _read(file, limit, key)
    if isinstance(read, str):
        components.show_problem(read)
        return None
    saved = None
    for place, series in enumerate(read):
        saved = _preview(store, series, file.name, key=f"{key}-{turn}-{place}") or saved
    if saved:
        st.session_state[f"{key}-turn"] = turn + 1
    return saved


def _read(file: UploadedFile, limit: int, key: str) -> list[Series] | str:
    """The series of a file, or what is wrong with it; read once per file, not once per rerun."""
    slot = f"{key}-read"
    known = st.session_state.get(slot)
    if known is None or known[0] != file.file_id:
        try:
            with st.spinner("Reading the file"):
                result = datasets.read_upload(file.getvalue(), file.name, limit)
            known = (file.file_id, result)
        except (DataError, ServiceError) as problem:
            known = (file.file_id, f"{file.name}: {problem}")
        st.session_state[slot] = known
    return known[1]


def _preview(store: Store, series: Series, filename: str, *, key: str) -> Dataset | None:
    frame = series.frame
    seconds = series.interval.total_seconds()
    first, last = frame["timestamps"].iloc[0], frame["timestamps"].iloc[-1]
    st.markdown(
        f"**{fmt.plural(len(frame), 'bar')}** · interval {fmt.interval(seconds)} · "
        f"{fmt.span(first, last, seconds, series.timezone)} ({series.timezone})"
    )
    for finding in series.findings:
        st.caption(f":material/info: {fmt.plain(finding)}")
    bars_table(frame.head(PREVIEW_ROWS), seconds, series.timezone, key=f"{key}-rows")
    suggestion = series.symbol or Path(filename).stem
    with st.container(horizontal=True, vertical_alignment="bottom"):
        name = st.text_input("Name of the dataset", suggestion, key=f"{key}-name", width=280)
        wanted = st.button("Save", type="primary", icon=":material/save:", key=f"{key}-save")
    if not wanted:
        return None
    with components.problems():
        provenance = {"file": filename}
        return datasets.add(
            store, series, name=name.strip(), source="upload", provenance=provenance
        )
    return None


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
