"""The form of a sweep: one setting over given values, everything else alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from app.services import sweeps
from app.services.errors import ServiceError
from app.services.forecast_requests import ForecastRequest
from app.storage.models import Dataset, Model
from app.storage.session import Store
from app.ui import components, request_form, sampling_form

KEY = "sweep"


def sweep(store: Store, datasets: Sequence[Dataset], models: Sequence[Model]) -> list[str] | None:
    """Shows the form; the ids of the forecasts when they were queued on this click."""
    first, second = st.columns(2)
    with first:
        dataset = request_form.dataset_control(datasets, KEY)
        titles = {name: setting.title for name, setting in sweeps.SETTINGS.items()}
        setting = st.selectbox(
            "Setting to vary", list(titles), 1, format_func=titles.__getitem__, key=f"{KEY}-setting"
        )
        values = _values(setting, models)
    with second:
        model = request_form.model_control(models, KEY)
        before = request_form.origin_control(KEY, dataset.bars - 2)
        horizon, paths = request_form.lengths(KEY, store.settings.max_paths)
    with st.expander("Sampling"):
        rare = sampling_form.sampling({}, KEY)
    if not st.button("Queue them", type="primary", icon=":material/playlist_add:", key="sweep-go"):
        return None
    base = ForecastRequest(
        dataset_id=dataset.id,
        model_id=model,
        horizon=horizon,
        paths=paths,
        origin_index=dataset.bars - 1 - before,
        **rare,
    )
    return submit(store, base, setting, values)


def _values(setting: str, models: Sequence[Model]) -> Any:
    """What the setting takes: models by name, numbers as typed."""
    if setting == "model_id":
        names = {row.id: row.name for row in models}
        return st.multiselect(
            "Models",
            list(names),
            list(names)[: sweeps.MOST],
            format_func=names.__getitem__,
            max_selections=sweeps.MOST,
            key=f"{KEY}-models",
        )
    known = sweeps.SETTINGS[setting]
    words = f"2 to {sweeps.MOST} values, separated by commas."
    return st.text_input("Values", known.example, key=f"{KEY}-values-{setting}", help=words)


def submit(store: Store, base: ForecastRequest, setting: str, values: Any) -> list[str] | None:
    """Queues the sweep; the ids, or None after saying what cannot be."""
    try:
        numbers = sweeps.parse(setting, values) if isinstance(values, str) else values
        asked = sweeps.requests(store, base, setting, numbers)
        return [row.id for row in sweeps.submit(store, asked)]
    except ServiceError as problem:
        components.show_problem(str(problem))
        return None
