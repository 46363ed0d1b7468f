"""Many series in one job: the form, its progress, and the table of what came out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import pandas as pd
import streamlit as st
from streamlit import column_config

from app.services import batches, forecast_costs, forecasts
from app.services.batches import Batch
from app.services.forecast_requests import ForecastRequest
from app.storage.models import Dataset, Model
from app.storage.session import Store
from app.ui import components, forecast_view, request_form, sampling_form, small_fan
from app.ui import format as fmt

KEY = "batch"
POLL_SECONDS = 0.7


def form(store: Store, datasets: Sequence[Dataset], models: Sequence[Model]) -> str | None:
    """Which series and how; the batch's id when it was queued on this click."""
    rows = {row.id: row for row in datasets}
    chosen = st.multiselect(
        "Datasets",
        list(rows),
        list(rows)[: batches.MOST_SERIES],
        format_func=lambda one: rows[one].name,
        max_selections=batches.MOST_SERIES,
        key=f"{KEY}-datasets",
    )
    places = st.columns([2.4, 1.5, 1.1, 1.1, 1.3, 1.5], vertical_alignment="bottom")
    with places[0]:
        model = request_form.model_control(models, KEY)
    with places[1]:
        last = min((rows[one].bars for one in chosen), default=2) - 2
        before = request_form.origin_control(KEY, max(last, 0))
    with places[2]:
        horizon = int(
            st.number_input("Horizon", 1, request_form.LONGEST_HORIZON, 48, key=f"{KEY}-horizon")
        )
    with places[3]:
        most = store.settings.max_paths
        paths = int(st.number_input("Paths", 1, most, min(100, most), key=f"{KEY}-paths"))
    with places[4].popover("Sampling", icon=":material/settings:", width="stretch"):
        rare = sampling_form.sampling({}, KEY)
    asked = [
        ForecastRequest(
            dataset_id=one,
            model_id=model,
            horizon=horizon,
            paths=paths,
            origin_index=rows[one].bars - 1 - before,
            **rare,
        )
        for one in chosen
    ]
    label, icon = "Forecast all", ":material/insights:"
    if not places[5].button(label, type="primary", icon=icon, width="stretch", key="batch-go"):
        request_form.cost_line(lambda: forecast_costs.together(store, asked))
        return None
    with components.problems():
        return batches.submit(store, asked)
    return None


def choose(stored: Sequence[Batch], models: dict[str, str], shown: str | None) -> str:
    """Which of the stored jobs to look at."""
    names = {batch.id: _title(batch, models) for batch in stored}
    start = list(names).index(shown) if shown in names else 0
    picked = st.selectbox(
        "Job", list(names), start, format_func=names.__getitem__, key=f"{KEY}-job-{shown}"
    )
    return str(picked)


def _title(batch: Batch, models: dict[str, str]) -> str:
    first = batch.rows[0]
    model = models.get(first.model_id, fmt.NONE)
    series = fmt.plural(len(batch.rows), "series", "series")
    paths, horizon = first.settings["paths"], first.settings["horizon"]
    return f"{series}, {model}, {paths} × {horizon} bars, {components.ago(batch.created_at)}"


def waiting(store: Store, batch_id: str) -> None:
    """Progress of a job; the page is redrawn when it ends."""
    with components.problems():
        batch = batches.get(store, batch_id)
        if not batch.pending:
            st.rerun()
        with st.container(border=True, horizontal=True, vertical_alignment="center"):
            series = fmt.plural(len(batch.rows), "series", "series")
            started = any(row.state == "running" for row in batch.rows)
            words = f"Drawing {series} together" if started else "Waiting for its turn"
            st.progress(min(batch.progress, 1.0), words, width="stretch")
            if st.button("Cancel", icon=":material/close:", key="batch-cancel"):
                batches.cancel(store, batch.id)


def results(store: Store, batch: Batch) -> str | None:
    """The table, sortable by its heads, with downloads; the id of a chosen forecast."""
    found = batches.table(store, batch)
    frame = _frame(found)
    table_height: int | Literal["content"] = "content" if len(frame) <= 14 else 600
    event = st.dataframe(
        frame,
        key=f"batch-table-{batch.id}",
        hide_index=True,
        on_select="rerun",
        selection_mode="single-row",
        row_height=40,
        height=table_height,
        column_config=_columns(),
        placeholder=fmt.NONE,
        alt=f"Figures of {fmt.plural(len(frame), 'series', 'series')}; select a row to open it",
    )
    for row in batch.rows:
        if row.state == "failed":
            components.show_problem(f"{row.name}: {row.reason}")
    _exports(store, batch, found)
    return components.selected_row(event, list(found["id"]))


def _frame(found: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "Series": found["series"],
            "Fan": [small_fan.picture(sketch) for sketch in found["sketch"]],
            "Median move": 100 * found["median_change"].astype(float),
            "P(up)": 100 * found["probability_up"].astype(float),
            "Band width": 100 * found["band"].astype(float),
            "Last close": found["last_close"].astype(float),
            "80 % low": found["low_80"].astype(float),
            "80 % high": found["high_80"].astype(float),
            "State": [components.state_word(state) for state in found["state"]],
        }
    )


def _columns() -> dict[str, Any]:
    number = column_config.NumberColumn
    price = {name: number(format="%.6g") for name in ("Last close", "80 % low", "80 % high")}
    return {
        "Fan": column_config.ImageColumn(
            width=small_fan.WIDTH + 16, help="Past closes, then median and 80 % band."
        ),
        "Median move": number(
            format="%+.2f %%", help="Median close of the last bar against the last known close."
        ),
        "P(up)": number(format="%.0f %%", help="Share of the paths that end above it."),
        "Band width": number(
            format="%.2f %%", help="Width of the 80 % range at the last bar, in % of it."
        ),
        **price,
    }


def _exports(store: Store, batch: Batch, found: pd.DataFrame) -> None:
    table = found.drop(columns=["sketch"])
    files: dict[str, tuple[Callable[[], bytes], str]] = {
        "Table (CSV)": (partial(forecast_view.csv_bytes, table), "series.csv"),
        "All paths (Parquet)": (
            lambda: forecast_view.parquet_bytes(batches.all_paths(store, batch)),
            "paths.parquet",
        ),
    }
    with st.container(horizontal=True):
        for label, (content, name) in files.items():
            st.download_button(
                label,
                content,
                name,
                icon=":material/download:",
                on_click="ignore",
                disabled=not found["sketch"].notna().any(),
                key=f"batch-{name}",
            )


def chosen_link(store: Store, forecast_id: str) -> None:
    """The way from a row of the table to its fan."""
    with components.problems():
        row = forecasts.get(store, forecast_id)
        label = f"Open {fmt.plain(row.name)}"
        components.link("forecast", label, ":material/insights:", forecast=row.id)
