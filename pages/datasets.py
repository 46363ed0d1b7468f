"""Datasets: bring bars in, look at them, keep them in order."""

import pandas as pd
import streamlit as st

from app.services import dataset_care, dataset_fetch, datasets
from app.storage.models import Dataset
from app.ui import (
    charts,
    components,
    dataset_calendar,
    dataset_quality,
    fetch_form,
    forecast_view,
    resources,
    synthetic_form,
    upload,
    upload_reading,
)
from app.ui import format as fmt
from app.ui.chart_style import palette

TABS = ["Overview", "Quality", "Calendar", "Provenance"]
RANGES = {"Last 250": 250, "Last 1,000": 1000, "All": None, "Dates": 0}
COARSER = {
    "5 min": "5min",
    "15 min": "15min",
    "30 min": "30min",
    "1 h": "1h",
    "4 h": "4h",
    "1 day": "1D",
    "1 week": "1W",
    "1 month": "1M",
}
SECONDS = dict(
    zip(COARSER, (300, 900, 1800, 3600, 14_400, 86_400, 604_800, 2_419_200), strict=True)
)
GRADES = {"good": "green", "usable": "orange", "poor": "red"}
COLUMNS = {
    "name": "Name",
    "symbol": "Symbol",
    "interval": "Interval",
    "span": st.column_config.TextColumn("Span", width="medium"),
    "bars": st.column_config.NumberColumn("Bars", format="localized"),
    "quality": st.column_config.MultiselectColumn(
        "Quality",
        options=list(GRADES),
        color=list(GRADES.values()),
        format_func=str.capitalize,
        width="small",
    ),
    "calendar": st.column_config.TextColumn("Calendar", width="medium"),
    "added": "Updated",
    "close": st.column_config.LineChartColumn("Close", width="medium"),
}
workspace = resources.store()


def show(dataset: Dataset) -> None:
    """Makes a dataset the one that the page and its URL show."""
    st.query_params["dataset"] = dataset.id
    st.rerun()


def add_panel(*, opened: bool) -> None:
    with st.expander("Add data", expanded=opened, icon=":material/add:"):
        way = st.segmented_control(
            "Where the bars come from",
            list(WAYS),
            default="Upload",
            required=True,
            key="add-way",
            label_visibility="collapsed",
        )
        if way != "Upload":
            upload.leave(key="add")
        added = WAYS[way]()
    if added:
        show(added)


def uploaded() -> Dataset | None:
    return upload.review(workspace, upload.drop(workspace, key="add"), key="add")


def yahoo() -> Dataset | None:
    return fetch_form.yahoo(workspace)


def crypto() -> Dataset | None:
    return fetch_form.crypto(workspace)


def sample() -> Dataset | None:
    return upload.sample_buttons(workspace, key="add")


def synthetic() -> Dataset | None:
    return synthetic_form.synthetic(workspace)


WAYS = {
    "Upload": uploaded,
    "Yahoo": yahoo,
    "Crypto": crypto,
    "Sample": sample,
    "Synthetic": synthetic,
}


def overview_table(rows: list[Dataset], chosen: Dataset) -> None:
    frame = pd.DataFrame(
        {
            "name": [row.name for row in rows],
            "symbol": [row.symbol or fmt.NONE for row in rows],
            "interval": [fmt.interval(row.interval_seconds) for row in rows],
            "span": [
                fmt.span(row.first, row.last, row.interval_seconds, row.timezone) for row in rows
            ],
            "bars": [row.bars for row in rows],
            "quality": [[row.quality["grade"]] if row.quality else [] for row in rows],
            "calendar": [datasets.calendar_title(row) or fmt.NONE for row in rows],
            "added": [components.ago(row.updated_at) for row in rows],
            "close": [resources.sparkline(workspace, row) for row in rows],
        }
    )
    event = st.dataframe(
        frame,
        key=f"datasets-table-{chosen.id}-{len(rows)}",
        hide_index=True,
        on_select="rerun",
        selection_mode="single-row",
        height="content" if len(rows) <= 8 else 320,
        column_config=COLUMNS,
        alt=f"Table of {fmt.plural(len(rows), 'dataset')}; select a row to open it below",
    )
    picked = components.selected_row(event, [row.id for row in rows])
    if picked and picked != chosen.id:
        st.query_params["dataset"] = picked
        st.rerun()


def detail(rows: list[Dataset], dataset: Dataset) -> None:
    bars = resources.bars(workspace, dataset)
    with st.container(horizontal=True, vertical_alignment="center"):
        picker(rows, dataset)
        shown = chosen_range(dataset, bars)
        st.space("stretch")
        components.link("forecast", "Forecast", ":material/insights:", dataset=dataset.id)
        components.link("finetune", "Fine-tune", ":material/tune:", dataset=dataset.id)
        refresh_button(dataset)
        resample_menu(dataset)
        export_menu(dataset)
        rename_menu(dataset)
        if st.button("Delete", icon=":material/delete:", key="delete"):
            ask_delete(dataset)
    refreshed(dataset)
    bars_chart(dataset, shown)
    overview, quality, calendar, provenance = st.tabs(TABS, key="tab", bind="query-params")
    with overview:
        if overview.open:
            show_overview(dataset, bars)
    with quality:
        if quality.open:
            dataset_quality.show(workspace, dataset)
    with calendar:
        if calendar.open:
            dataset_calendar.show(workspace, dataset)
    with provenance:
        if provenance.open:
            show_provenance(dataset)


def refresh_button(dataset: Dataset) -> None:
    """Fetches what is new; only for bars that came from a source."""
    if dataset_fetch.request_of(dataset) is None:
        return
    if st.button("Refresh", icon=":material/sync:", key="refresh"):
        with components.problems(), st.spinner("Asking the source for newer bars"):
            _, result = dataset_fetch.refresh(workspace, dataset.id)
            st.session_state["refreshed"] = (dataset.id, result.findings)
            st.rerun()


def refreshed(dataset: Dataset) -> None:
    """What the last refresh brought, until another dataset is shown or it is dismissed."""
    dataset_id, findings = st.session_state.get("refreshed", (None, ()))
    if dataset_id != dataset.id:
        st.session_state.pop("refreshed", None)
        return
    with st.container(border=True, horizontal=True, vertical_alignment="center"):
        lines = "  \n".join(map(fmt.plain, findings))
        st.markdown(f":material/sync: {lines}", width="stretch")
        if st.button("Dismiss", key="refreshed-dismiss", type="tertiary"):
            del st.session_state["refreshed"]
            st.rerun()


def resample_menu(dataset: Dataset) -> None:
    coarser = [name for name in COARSER if SECONDS[name] > dataset.interval_seconds]
    if not coarser:
        return
    with st.popover("Resample", icon=":material/compress:"):
        chosen = st.selectbox("To one bar every", coarser, key=f"coarser-{dataset.id}")
        suggestion = f"{dataset.name} {chosen}"
        name = st.text_input("Name of the new dataset", suggestion, key=f"coarse-{suggestion}")
        if st.button("Make dataset", type="primary", key="resample"):
            with components.problems():
                show(dataset_care.resample(workspace, dataset.id, COARSER[chosen], name.strip()))


def picker(rows: list[Dataset], dataset: Dataset) -> None:
    names = {row.id: row.name for row in rows}
    picked = st.selectbox(
        "Dataset",
        list(names),
        index=list(names).index(dataset.id),
        format_func=names.__getitem__,
        key=f"picker-{dataset.id}",
        label_visibility="collapsed",
        width=220,
    )
    if picked and picked != dataset.id:
        st.query_params["dataset"] = picked
        st.rerun()


def chosen_range(dataset: Dataset, bars: pd.DataFrame) -> pd.DataFrame:
    choice = st.segmented_control(
        "Bars shown",
        list(RANGES),
        default="Last 250",
        required=True,
        key="range",
        label_visibility="collapsed",
    )
    if choice == "Dates":
        stamps = bars["timestamps"]
        ends = (stamps.iloc[0].date(), stamps.iloc[-1].date())
        picked = st.date_input(
            f"From and to ({dataset.timezone})",
            ends,
            *ends,
            key=f"dates-{dataset.id}",
            label_visibility="collapsed",
            width=220,
        )
        if len(picked) == 2:
            first, last = (pd.Timestamp(day, tz=stamps.dt.tz) for day in picked)
            bars = bars[(stamps >= first) & (stamps < last + pd.DateOffset(days=1))]
    limit = RANGES[choice]
    return bars.tail(limit) if limit else bars


def bars_chart(dataset: Dataset, bars: pd.DataFrame) -> None:
    if bars.empty:
        st.info("No bar lies between these dates. Choose an earlier start or a later end.")
        return
    last = fmt.price(bars["close"].iloc[-1], fmt.price_decimals(bars["close"].tail(500)))
    span = fmt.span(
        bars["timestamps"].iloc[0],
        bars["timestamps"].iloc[-1],
        dataset.interval_seconds,
        dataset.timezone,
    )
    figure = charts.candles(
        bars,
        colours=palette(workspace.settings.colours),
        entity=f"{dataset.id}-{st.session_state['range']}",
    )
    alt = f"Candlestick chart of {dataset.name}, {len(bars)} bars, {span}, last close {last}"
    components.chart(figure, key="candles", alt=alt)
    drawn = len(charts.merge_bars(bars))
    merged = "" if drawn == len(bars) else f" · drawn as {drawn:,} merged bars, no extreme is lost"
    st.caption(f"{fmt.plural(len(bars), 'bar')} · {span} · times in {dataset.timezone}{merged}")


def show_overview(dataset: Dataset, bars: pd.DataFrame) -> None:
    decimals = fmt.price_decimals(bars["close"].tail(500))
    components.facts(
        {
            "Bars": fmt.count(dataset.bars),
            "Interval": fmt.interval(dataset.interval_seconds),
            "First bar": fmt.moment(dataset.first, dataset.timezone),
            "Last bar": fmt.moment(dataset.last, dataset.timezone),
            "Last close": fmt.price(bars["close"].iloc[-1], decimals),
            "Lowest low": fmt.price(bars["low"].min(), decimals),
            "Highest high": fmt.price(bars["high"].max(), decimals),
            "Mean volume": fmt.compact(bars["volume"].mean()),
        }
    )
    st.caption("Latest bars, newest first")
    upload.bars_table(
        bars.tail(10).iloc[::-1], dataset.interval_seconds, dataset.timezone, key="latest-bars"
    )


def show_provenance(dataset: Dataset) -> None:
    components.facts(
        {
            "Source": dataset.source,
            "Symbol": dataset.symbol or fmt.NONE,
            "Added": components.local_time(dataset.created_at),
            "Time zone": dataset.timezone,
            "Data hash": f"`{fmt.short_hash(dataset.data_hash)}`",
            "Hash of the original": f"`{fmt.short_hash(dataset.original_hash)}`",
            "Repairs": fmt.count(len(dataset.repairs)),
        }
        | fmt.flat(dataset.provenance)
        | upload_reading.provenance(dataset.reading)
    )
    st.markdown("**What was noticed**")
    for finding in dataset.findings or ["Nothing: the bars were stored as they came."]:
        st.markdown(f"- {fmt.plain(finding)}")


def export_menu(dataset: Dataset) -> None:
    def frame() -> pd.DataFrame:
        return resources.bars(workspace, dataset)

    with st.popover("Export", icon=":material/download:"):
        st.download_button(
            "CSV",
            lambda: forecast_view.csv_bytes(frame()),
            f"{dataset.name}.csv",
            "text/csv",
            key="export-csv",
            on_click="ignore",
        )
        st.download_button(
            "Parquet",
            lambda: forecast_view.parquet_bytes(frame()),
            f"{dataset.name}.parquet",
            key="export-parquet",
            on_click="ignore",
        )


def rename_menu(dataset: Dataset) -> None:
    with st.popover("Rename", icon=":material/edit:"):
        name = st.text_input("New name", dataset.name, key=f"new-name-{dataset.id}")
        if st.button("Rename", type="primary", key="rename"):
            with components.problems():
                datasets.rename(workspace, dataset.id, name.strip())
                st.rerun()


def ask_delete(dataset: Dataset) -> None:
    def delete() -> None:
        datasets.delete(workspace, dataset.id, force=True)
        st.query_params.pop("dataset", None)

    body = f"**{fmt.plain(dataset.name)}** and its {fmt.plural(dataset.bars, 'bar')} will be gone."
    body += components.listed_users(datasets.dependents(workspace, dataset.id))
    components.confirm("Delete this dataset?", body, "Delete", delete)


components.page_title(
    "Datasets", "Bars of one instrument and interval each, stored with their origin."
)
known = datasets.list_datasets(workspace)
if not known and components.empty(
    "No bars yet. Upload a file below, or start with twenty years of the S&P 500.",
    "Open the S&P 500 sample",
    icon=":material/candlestick_chart:",
    key="empty-sample",
):
    show(datasets.add_sample(workspace, "sp500"))
add_panel(opened=not known or upload.busy(key="add"))
if known:
    wanted = st.query_params.get("dataset", known[0].id)
    current = next((row for row in known if wanted in (row.id, row.name)), None)
    if current is None:
        components.show_problem(f"There is no dataset {wanted}. Choose one from the table.")
    overview_table(known, current or known[0])
    detail(known, current or known[0])
