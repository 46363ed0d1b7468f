"""The form of a sweep: one setting over given values, everything else alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from app.services import forecast_costs, sweeps
from app.services.errors import ServiceError
from app.services.forcing_labels import forcing_choices, forcing_labels
from app.services.forecast_requests import ForecastRequest
from app.storage.models import Dataset, Model
from app.storage.session import Store
from app.ui import components, request_form, sampling_form

KEY = "sweep"
NO_TUNED = "No model was fine-tuned yet. Queue runs that differ in ε on the Fine-tune page."


def sweep(store: Store, datasets: Sequence[Dataset], models: Sequence[Model]) -> list[str] | None:
    """Shows the form; the ids of the forecasts when they were queued on this click."""
    first, second = st.columns(2)
    with first:
        dataset = request_form.dataset_control(datasets, KEY)
        titles = {name: setting.title for name, setting in sweeps.SETTINGS.items()}
        start = list(titles).index("temperature")
        setting = st.selectbox(
            "Setting to vary",
            list(titles),
            start,
            format_func=titles.__getitem__,
            key=f"{KEY}-setting",
        )
        values = _values(store, setting, models)
    with second:
        model = request_form.model_control(models, KEY)
        before = request_form.origin_control(KEY, dataset.bars - 2)
        horizon, paths = request_form.lengths(KEY, store.settings.max_paths)
    with st.expander("Sampling"):
        rare = sampling_form.sampling({}, KEY)
    base = ForecastRequest(
        dataset_id=dataset.id,
        model_id=model,
        horizon=horizon,
        paths=paths,
        origin_index=dataset.bars - 1 - before,
        **rare,
    )
    if st.button("Queue them", type="primary", icon=":material/playlist_add:", key="sweep-go"):
        return submit(store, base, setting, values)
    request_form.cost_line(
        lambda: forecast_costs.one_by_one(store, _requests(store, base, setting, values))
    )
    return None


def _values(store: Store, setting: str, models: Sequence[Model]) -> Any:
    """What the setting takes: models by name or by teacher forcing, numbers as typed."""
    if setting == "model_id":
        return _chosen(setting, "Models", {row.id: row.name for row in models})
    if setting == sweeps.TEACHER_FORCING:
        choices = forcing_choices(models)
        if not choices:
            st.caption(NO_TUNED)
        return _chosen(setting, "Models by their ε", forcing_labels(store, choices))
    known = sweeps.SETTINGS[setting]
    words = f"2 to {sweeps.MOST} values, separated by commas."
    return st.text_input("Values", known.example, key=f"{KEY}-values-{setting}", help=words)


def _chosen(setting: str, label: str, names: dict[str, str]) -> list[str]:
    """Ids of some of these models; all that can be compared at first."""
    return st.multiselect(
        label,
        list(names),
        list(names)[: sweeps.MOST],
        format_func=names.__getitem__,
        max_selections=sweeps.MOST,
        key=f"{KEY}-models-{setting}",
    )


def _requests(
    store: Store, base: ForecastRequest, setting: str, values: Any
) -> list[ForecastRequest]:
    numbers = sweeps.parse(setting, values) if isinstance(values, str) else values
    return sweeps.requests(store, base, setting, numbers)


def submit(store: Store, base: ForecastRequest, setting: str, values: Any) -> list[str] | None:
    """Queues the sweep; the ids, or None after saying what cannot be."""
    try:
        asked = _requests(store, base, setting, values)
        return [row.id for row in sweeps.submit(store, asked, setting)]
    except ServiceError as problem:
        components.show_problem(str(problem))
        return None
