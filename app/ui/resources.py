"""What the sessions of one server share: the open workspace, and bars that are looked at again.

Bars are kept by their hash, so what is kept is never out of date. Nobody may change them.
"""

from __future__ import annotations

import json

import pandas as pd
import streamlit as st

from app.services import dataset_care, datasets, models
from app.settings import Settings, get_settings
from app.storage.models import Dataset
from app.storage.session import Store
from kronos_core.data.bars import Series
from kronos_core.data.findings import QualityReport

_SERIES_KEPT, _LINES_KEPT, _REPORTS_KEPT = 4, 500, 20  # a series of a million bars has 56 MB


def store() -> Store:
    """The open workspace of the current settings."""
    settings = get_settings()
    return _open(str(settings.workspace), settings.resolved_database_url, settings)


@st.cache_resource(show_spinner="Opening the workspace")
def _open(workspace: str, database_url: str, _settings: Settings) -> Store:
    opened = Store(_settings)
    opened.migrate()
    models.ensure_builtin(opened)
    return opened


def series(store: Store, dataset: Dataset) -> Series:
    """A dataset's bars as the engine takes them, stamps in UTC."""
    return _series(*_key(store, dataset), store, dataset)


def bars(store: Store, dataset: Dataset) -> pd.DataFrame:
    """A dataset's bars with stamps in its own zone."""
    return _bars(*_key(store, dataset), store, dataset)


def sparkline(store: Store, dataset: Dataset) -> list[float]:
    """A few closes of a dataset, evenly spaced."""
    return _sparkline(*_key(store, dataset), store, dataset)


def quality(store: Store, dataset: Dataset) -> QualityReport:
    """The report on a dataset with the calendar that counts for it."""
    calendar = json.dumps(dataset.calendar)
    return _quality(*_key(store, dataset), dataset.id, calendar, store)


def _key(store: Store, dataset: Dataset) -> tuple[str, str, str, str]:
    root = str(store.files.root)
    return root, dataset.data_hash, dataset.timezone, dataset.symbol or ""


@st.cache_resource(max_entries=_SERIES_KEPT, show_spinner="Reading the bars")
def _series(
    root: str, data_hash: str, timezone: str, symbol: str, _store: Store, _dataset: Dataset
) -> Series:
    return datasets.series_of(_store, _dataset)


@st.cache_resource(max_entries=_SERIES_KEPT, show_spinner=False)
def _bars(
    root: str, data_hash: str, timezone: str, symbol: str, _store: Store, _dataset: Dataset
) -> pd.DataFrame:
    frame = _series(root, data_hash, timezone, symbol, _store, _dataset).frame
    return frame.assign(timestamps=frame["timestamps"].dt.tz_convert(timezone))


@st.cache_resource(max_entries=_LINES_KEPT, show_spinner=False)
def _sparkline(
    root: str, data_hash: str, timezone: str, symbol: str, _store: Store, _dataset: Dataset
) -> list[float]:
    return datasets.sparkline(_store, _dataset)


@st.cache_resource(max_entries=_REPORTS_KEPT, show_spinner="Looking for what is wrong")
def _quality(
    root: str,
    data_hash: str,
    timezone: str,
    symbol: str,
    dataset_id: str,
    calendar: str,
    _store: Store,
) -> QualityReport:
    return dataset_care.quality(_store, dataset_id)
