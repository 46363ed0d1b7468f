"""Compare: how futures differ between models, settings and origins, and over many series."""

import streamlit as st

from app.services import batches, compare, datasets, forecasts, models
from app.services.errors import ServiceError
from app.services.forecast_requests import ForecastRequest
from app.storage.models import PENDING_FORECAST_STATES
from app.storage.models import Forecast as Row
from app.ui import batch_view, compare_view, components, sweep_form
from app.ui.resources import store

SIDE_BY_SIDE, MANY = "Side by side", "Many series"
NEXT = "compare-next"  # what the page is to compare after the rerun
FIRST_SWEEP = "0.6, 1.0, 1.4"
workspace = store()


def side_by_side() -> None:
    rows = forecasts.list_forecasts(workspace)
    ids = chosen(rows)
    if not ids:
        empty(rows)
        return
    picked, problems = compare.find(workspace, ids)
    pending = [row for row in picked if row.state in PENDING_FORECAST_STATES]
    if pending:
        st.fragment(compare_view.waiting, run_every=compare_view.POLL_SECONDS)(workspace, ids)
    ready = [row for row in picked if row not in pending]
    compared, more = compare.load(workspace, ready, compare_view.PAST)
    for problem in (*problems, *more):
        components.show_problem(problem)
    if compared:
        compare_view.show(compared)


def chosen(rows: list[Row]) -> list[str]:
    """The ids of the forecasts to compare; they stand in the URL."""
    names = compare_view.named(rows)
    wanted = [one for one in st.query_params.get("forecasts", "").split(",") if one]
    if NEXT in st.session_state:
        wanted = st.session_state.pop(NEXT)
        st.session_state.pop("picked", None)
    for gone in [one for one in wanted if one not in names]:
        components.show_problem(f"There is no forecast {gone!r}; it may have been deleted.")
    kept = [one for one in wanted if one in names][: compare.MOST]
    st.session_state.setdefault("picked", kept)
    st.session_state["picked"] = [one for one in st.session_state["picked"] if one in names]
    wide, narrow = st.columns([5, 1.2], vertical_alignment="bottom")
    picked = wide.multiselect(
        "Forecasts",
        list(names),
        format_func=names.__getitem__,
        max_selections=compare.MOST,
        key="picked",
        placeholder=f"Choose up to {compare.MOST}",
    )
    with narrow.popover("Vary one setting", icon=":material/tune:", width="stretch"):
        compare_next(sweep_form.sweep(workspace, stored, bases))
    if picked:
        st.query_params["forecasts"] = ",".join(picked)
    else:
        st.query_params.pop("forecasts", None)
    return list(picked)


def compare_next(ids: list[str] | None) -> None:
    if ids:
        st.session_state[NEXT] = ids
        st.query_params["forecasts"] = ",".join(ids)
        st.rerun()


def empty(rows: list[Row]) -> None:
    """Nothing is chosen: what to do, on one click."""
    words = "Choose forecasts above, or vary one setting: the same origin at three temperatures."
    icon = ":material/thermostat:"
    if components.empty(words, "Compare three temperatures", icon=icon, key="first-sweep"):
        data = stored[0]
        latest = next((row for row in rows if row.state == "finished"), None)
        base = ForecastRequest(
            dataset_id=data.id,
            model_id=latest.model_id if latest else bases[0].id,
            horizon=48,
            paths=min(100, workspace.settings.max_paths),
            origin_index=max(data.bars - 49, 1),
        )
        compare_next(sweep_form.submit(workspace, base, "temperature", FIRST_SWEEP))


def many_series() -> None:
    queued = batch_view.form(workspace, stored, bases)
    if queued:
        st.query_params["batch"] = queued
        st.rerun()
    known = batches.list_batches(workspace)
    if not known:
        st.caption("No job yet. Choose the series above; each result is stored as a forecast.")
        return
    wanted = st.query_params.get("batch")
    if wanted and wanted not in [batch.id for batch in known]:
        components.show_problem(f"There is no job {wanted!r}; it may have been deleted.")
    picked = batch_view.choose(known, {row.id: row.name for row in bases}, wanted)
    st.query_params["batch"] = picked
    try:
        batch = batches.get(workspace, picked)
    except ServiceError as problem:
        components.show_problem(str(problem))
        return
    if batch.pending:
        st.fragment(batch_view.waiting, run_every=batch_view.POLL_SECONDS)(workspace, batch.id)
    opened = batch_view.results(workspace, batch)
    if opened:
        batch_view.chosen_link(workspace, opened)


components.page_title("Compare", "How futures differ between models, settings, origins and series.")
stored = datasets.list_datasets(workspace)
bases = models.list_models(workspace)
if not stored:
    if components.empty(
        "Comparing needs bars. Start with a sample, or upload your own on the Datasets page.",
        "Open the S&P 500 sample",
        icon=":material/candlestick_chart:",
        key="empty-sample",
    ):
        with components.problems():
            datasets.add_sample(workspace, "sp500")
            st.rerun()
elif not bases:
    components.show_problem("There is no model to draw with. Get one on the Models page.")
else:
    shown = st.segmented_control(
        "Show",
        [SIDE_BY_SIDE, MANY],
        default=SIDE_BY_SIDE,
        required=True,
        key="show",
        bind="query-params",
        label_visibility="collapsed",
    )
    if shown == MANY:
        many_series()
    else:
        side_by_side()
