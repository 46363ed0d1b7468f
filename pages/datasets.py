"""Datasets: bring bars in, look at them, keep them in order."""

import pandas as pd
import streamlit as st

from app.services import datasets
from app.storage.models import Dataset
from app.ui import charts, components, forecast_view, upload
from app.ui import format as fmt
from app.ui.chart_style import palette
from app.ui.resources import store
from kronos_core.data.sources import YAHOO_INTERVALS

RANGES = {"Last 250": 250, "Last 1,000": 1000, "All": None, "Dates": 0}
PERIODS = ("1d", "5d", "7d", "1mo", "3mo", "6mo", "1y", "2y", "5y", "10y", "max")
workspace = store()


def show(dataset: Dataset) -> None:
    """Makes a dataset the one that the page and its URL show."""
    st.query_params["dataset"] = dataset.id
    st.rerun()


def add_panel(*, opened: bool) -> None:
    with st.expander("Add data", expanded=opened, icon=":material/add:"):
        way = st.segmented_control(
            "Where the bars come from",
            ["Upload", "Sample", "Yahoo"],
            default="Upload",
            required=True,
            key="add-way",
            label_visibility="collapsed",
        )
        ways = {"Upload": upload.upload, "Sample": upload.sample_buttons}
        added = yahoo_form() if way == "Yahoo" else ways[way](workspace, key="add")
    if added:
        show(added)


def yahoo_form() -> Dataset | None:
    with st.form("yahoo", border=False):
        columns = st.columns([2, 1, 1, 1], vertical_alignment="bottom")
        ticker = columns[0].text_input("Ticker", placeholder="AAPL, ^GSPC, BTC-USD")
        period = columns[1].selectbox("Period", PERIODS, index=PERIODS.index("2y"))
        interval = columns[2].selectbox(
            "Interval", list(YAHOO_INTERVALS), index=list(YAHOO_INTERVALS).index("1d")
        )
        wanted = columns[3].form_submit_button("Fetch", type="primary", icon=":material/download:")
    limits = ", ".join(f"{name}: {longest}" for name, longest in YAHOO_INTERVALS.items())
    st.caption(f"Longest period that Yahoo gives for each interval: {limits}.")
    if not wanted:
        return None
    with components.problems(), st.spinner("Asking Yahoo"):
        series = datasets.fetch_yahoo(workspace, ticker.strip(), period, interval)
        name = f"{ticker.strip()} {interval}"
        provenance = {"ticker": ticker.strip(), "period": period, "interval": interval}
        return datasets.add(workspace, series, name=name, source="yahoo", provenance=provenance)
    return None


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
            "zone": [row.timezone for row in rows],
            "source": [row.source for row in rows],
            "added": [components.ago(row.updated_at) for row in rows],
            "close": [datasets.sparkline(workspace, row) for row in rows],
        }
    )
    event = st.dataframe(
        frame,
        key=f"datasets-table-{chosen.id}-{len(rows)}",
        hide_index=True,
        on_select="rerun",
        selection_mode="single-row",
        height="content" if len(rows) <= 8 else 320,
        column_config={
            "name": "Name",
            "symbol": "Symbol",
            "interval": "Interval",
            "span": st.column_config.TextColumn("Span", width="medium"),
            "bars": st.column_config.NumberColumn("Bars", format="localized"),
            "zone": "Time zone",
            "source": "Source",
            "added": "Updated",
            "close": st.column_config.LineChartColumn("Close", width="medium"),
        },
        alt=f"Table of {fmt.plural(len(rows), 'dataset')}; select a row to open it below",
    )
    picked = components.selected_row(event, [row.id for row in rows])
    if picked and picked != chosen.id:
        st.query_params["dataset"] = picked
        st.rerun()


def detail(rows: list[Dataset], dataset: Dataset) -> None:
    bars = datasets.bars(workspace, dataset)
    with st.container(horizontal=True, vertical_alignment="center"):
        picker(rows, dataset)
        shown = chosen_range(dataset, bars)
        st.space("stretch")
        components.link("forecast", "Forecast", ":material/insights:", dataset=dataset.id)
        components.link("finetune", "Fine-tune", ":material/tune:", dataset=dataset.id)
        export_menu(dataset)
        rename_menu(dataset)
        if st.button("Delete", icon=":material/delete:", key="delete"):
            ask_delete(dataset)
    bars_chart(dataset, shown)
    overview, provenance = st.tabs(["Overview", "Provenance"], key="tab", bind="query-params")
    with overview:
        show_overview(dataset, bars)
    with provenance:
        show_provenance(dataset)


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
        days = bars["timestamps"].dt.date
        ends = (days.iloc[0], days.iloc[-1])
        picked = st.date_input(
            f"From and to ({dataset.timezone})",
            ends,
            *ends,
            key=f"dates-{dataset.id}",
            label_visibility="collapsed",
            width=220,
        )
        if len(picked) == 2:
            bars = bars[(days >= picked[0]) & (days <= picked[1])]
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
            "Data hash": f"`{fmt.short_hash(dataset.data_hash)}`",
        }
        | {str(k).replace("_", " "): str(v) for k, v in dataset.provenance.items()}
    )
    st.markdown("**What was noticed**")
    for finding in dataset.findings or ["Nothing: the bars were stored as they came."]:
        st.markdown(f"- {fmt.plain(finding)}")


def export_menu(dataset: Dataset) -> None:
    def frame() -> pd.DataFrame:
        return datasets.bars(workspace, dataset)

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
add_panel(opened=not known)
if known:
    wanted = st.query_params.get("dataset", known[0].id)
    current = next((row for row in known if wanted in (row.id, row.name)), None)
    if current is None:
        components.show_problem(f"There is no dataset {wanted}. Choose one from the table.")
    overview_table(known, current or known[0])
    detail(known, current or known[0])
