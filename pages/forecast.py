"""Forecast: draw a fan of sampled futures, read it, keep it."""

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from app.services import datasets, forecast_costs, forecasts, models
from app.services.errors import ServiceError
from app.services.forecasts import ForecastRequest
from app.storage.models import PENDING_FORECAST_STATES, Dataset, Model
from app.storage.models import Forecast as Row
from app.ui import (
    charts,
    charts_paths,
    components,
    dataset_calendar,
    forecast_tabs,
    forecast_view,
    origin_form,
    request_form,
    resources,
    sampling_form,
)
from app.ui import format as fmt
from app.ui.chart_style import palette
from app.ui.forecast_tabs import View
from app.ui.live_chart import live_chart
from kronos_core.data.bars import CHANNELS, PRICES
from kronos_core.data.calendars import Calendar
from kronos_core.forecast.forecast import Forecast

POLL_SECONDS = 0.7
SMALL_SECONDS = 1.5  # a small fan is drawn within them
PREVIEW_BARS = 250
CONTEXT_CHOICES = {"60 bars": 60, "120 bars": 120, "250 bars": 250, "500 bars": 500}
LONGEST_HORIZON = 1024
workspace = resources.store()


def pick(label: str, rows: list[Dataset] | list[Model], key: str, chosen: str | None) -> str:
    """A select box of stored rows; opened at the one that the URL or the shown forecast names."""
    names = {row.id: row.name for row in rows}
    start = next((i for i, row in enumerate(rows) if chosen in (row.id, row.name)), 0)
    picked = st.selectbox(
        label, list(names), index=start, format_func=names.__getitem__, key=f"{key}-{chosen}"
    )
    return str(picked)


def controls(shown: Row | None) -> tuple[Dataset, int]:
    """One row: what to draw. The request goes to the job queue, never runs here.

    Returns the dataset and the index of the last bar that the model would see.
    """
    widths = [2.0, 2.0, 2.8, 1.1, 1.1, 1.3, 1.1]
    places = st.columns(widths, vertical_alignment="bottom")
    with places[0]:
        wanted = shown.dataset_id if shown else st.query_params.get("dataset")
        dataset = pick("Dataset", stored, "dataset", wanted)
    with places[1]:
        wanted = shown.model_id if shown else st.query_params.get("model")
        model = pick("Model", bases, "model", wanted)
    settings = shown.settings if shown else {}
    suffix = shown.id if shown else "new"
    data = next(row for row in stored if row.id == dataset)
    with places[2]:
        given = settings if shown and dataset == shown.dataset_id else {}
        start = sampling_form.whole(given, "origin_index", data.bars - 1, 1, data.bars - 1)
        origin = origin_form.origin_control(data, resources.bars(workspace, data), start)
    with places[3]:
        horizon = horizon_control(settings, suffix)
    with places[4]:
        paths = paths_control(settings, suffix)
    with places[5].popover("Sampling", icon=":material/settings:", width="stretch"):
        same = shown and (dataset, model) == (shown.dataset_id, shown.model_id)
        rare = sampling_form.sampling(settings if same else {}, f"{suffix}-{dataset}-{model}")
        known = settings.get("calendar") if shown and dataset == shown.dataset_id else None
        rare["calendar"] = dataset_calendar.for_forecast(
            workspace, data, known, key=f"{suffix}-{dataset}"
        )
    origin_form.origin_problem()
    label, icon = "Draw", ":material/insights:"
    lengths = {"origin_index": origin, "horizon": horizon, "paths": paths}
    request = ForecastRequest(dataset_id=dataset, model_id=model, **lengths, **rare)
    if places[6].button(label, type="primary", icon=icon, width="stretch", key="draw"):
        draw_it(request)
    else:
        request_form.cost_line(lambda: forecast_costs.one_by_one(workspace, [request]))
    return data, origin


def draw_it(request: ForecastRequest) -> None:
    with components.problems():
        open_forecast(forecasts.submit(workspace, request).id)


def horizon_control(settings: dict[str, object], suffix: str) -> int:
    start = sampling_form.whole(settings, "horizon", 48, 1, LONGEST_HORIZON)
    words = "Bars to draw after the origin."
    return st.number_input(
        "Horizon", 1, LONGEST_HORIZON, start, key=f"horizon-{suffix}", help=words
    )


def paths_control(settings: dict[str, object], suffix: str) -> int:
    most = workspace.settings.max_paths
    start = sampling_form.whole(settings, "paths", min(100, most), 1, most)
    words = "Sampled futures; more of them make smoother bands."
    return st.number_input("Paths", 1, most, start, key=f"paths-{suffix}", help=words)


def open_forecast(forecast_id: str) -> None:
    for name in ("dataset", "model"):  # what widgets keep there cannot be cleared
        st.query_params.pop(name, None)
    st.query_params["forecast"] = forecast_id
    st.rerun()


def pending(forecast_id: str) -> None:
    """Progress of a forecast that is being drawn; leaves for the fan when it ends."""
    try:
        row = forecasts.get(workspace, forecast_id)
    except ServiceError as problem:  # somebody else deleted it meanwhile
        components.show_problem(str(problem))
        return
    if row.state not in PENDING_FORECAST_STATES:
        st.rerun()
    with st.container(border=True, horizontal=True, vertical_alignment="center"):
        total = max(row.total_steps, 1)
        words = "Waiting for its turn" if row.state == "queued" else f"Bar {row.step} of {total}"
        st.progress(min(row.step / total, 1.0), words, width="stretch")
        if st.button("Cancel", icon=":material/close:", key="cancel"):
            with components.problems():
                forecasts.cancel(workspace, row.id)


def result(row: Row) -> None:
    with components.problems():
        forecast = forecasts.load(workspace, row)
        actual = forecasts.actual(workspace, row)
        view, figure = fan_and_numbers(row, forecast, actual)
        if len(actual):
            forecast_tabs.score_line(view, actual)
        tabs(view, figure)


def fan_and_numbers(row: Row, forecast: Forecast, actual: pd.DataFrame) -> tuple[View, go.Figure]:
    wide, narrow = st.columns([5, 1], gap="medium")
    with wide:
        with st.container(horizontal=True, vertical_alignment="bottom"):
            channel = st.segmented_control(
                "Channel", list(CHANNELS), default="close", required=True, key="channel"
            )
            past = st.selectbox(
                "Context shown", list(CONTEXT_CHOICES), index=1, key="context-shown", width=130
            )
            step = forecast_tabs.bar_control(forecast.paths.shape[1])
            target = forecast_tabs.target_control()
        view = View(
            row=row,
            forecast=forecast,
            step=step,
            target=target,
            decimals=price_digits(row),
            seconds=interval(row),
            colours=palette(workspace.settings.colours),
        )
        figure = draw(view, channel, CONTEXT_CHOICES[past], actual)
    with narrow:
        outlook(view)
    return view, figure


def draw(view: View, channel: str, count: int, actual: pd.DataFrame) -> go.Figure:
    row, forecast = view.row, view.forecast
    context = forecasts.context_bars(workspace, row, count)
    figure = charts.fan(
        context,
        forecast,
        channel=channel,
        colours=view.colours,
        entity=f"{row.id}-{channel}-{count}",
        actual=actual,
    )
    paths, horizon = forecast.paths.shape[:2]
    charts_paths.mark(
        figure,
        bar=None if view.step == horizon - 1 else view.step,
        target=view.target if channel in PRICES else None,
        decimals=view.decimals,
        past=len(context),
    )
    known = f", {len(actual)} actual bars over it" if len(actual) else ""
    alt = f"Fan chart of {channel}: {paths} paths, {horizon} bars from {forecast.origin}{known}"
    live_chart(figure, key="fan", alt=alt, moved=forecast_tabs.target_moved(view.decimals))
    notes = [
        f"origin {fmt.bar_moment(forecast.origin, view.seconds)}",
        fmt.plural(paths, "path"),
        f"{min(paths, charts.THIN_PATHS)} drawn singly",
        f"candle order violated in {fmt.percent(forecast.violation_rate, 1)} of raw bars, repaired",
    ]
    if len(actual):
        notes.append(f"{fmt.plural(len(actual), 'actual bar')} drawn over the fan")
    st.caption(" · ".join(notes))
    return figure


def outlook(view: View) -> None:
    forecast, decimals = view.forecast, view.decimals
    shown = forecast_view.outlook(forecast, view.step)
    st.caption(f"At bar {view.step + 1}, {view.moment}")
    st.metric(
        "Median move",
        fmt.change(shown.median_move),
        help="Median close of the chosen bar against the last known close.",
    )
    st.metric(
        "P(up)",
        fmt.percent(shown.chance_up),
        help="Share of the paths whose close lies above the last known close.",
    )
    st.metric(
        "80 % range, low", fmt.price(shown.low, decimals), help="10 % of the paths lie lower."
    )
    st.metric("80 % range, high", fmt.price(shown.high, decimals), help="10 % lie higher.")
    if view.target is not None:
        touch = forecast.probability_touch(view.target)[view.step]
        words = "Share of the paths that reach the target price by the chosen bar."
        st.metric("P(touch target)", fmt.percent(touch), help=words)
    else:
        forecast_tabs.add_target(view)
    st.metric("Last known close", fmt.price(forecast.last_close, decimals))


def interval(row: Row) -> float:
    """Seconds between two bars of the forecast's dataset."""
    return datasets.get(workspace, row.dataset_id).interval_seconds


def price_digits(row: Row) -> int:
    return fmt.price_decimals(forecasts.context_bars(workspace, row, 250)["close"])


def tabs(view: View, figure: go.Figure) -> None:
    row, forecast = view.row, view.forecast
    names = ["Paths", "Distribution", "Table", "Settings", "Download"]
    paths, bar, table, settings, download = st.tabs(names, key="tab", bind="query-params")
    if paths.open:
        context = forecasts.context_bars(workspace, row, forecast_tabs.PATH_CONTEXT)
        with paths:
            st.fragment(forecast_tabs.paths_tab)(view, context)
    if bar.open:
        with bar:
            forecast_tabs.distribution_tab(view)
    if table.open:
        with table:
            bands_table(row, forecast)
    if settings.open:
        with settings:
            settings_tab(row, forecast)
    if download.open:
        with download:
            forecast_tabs.downloads(view, figure)


def bands_table(row: Row, forecast: Forecast) -> None:
    channel = st.session_state["channel"]
    frame = forecast_view.table(forecast, channel, interval(row))
    decimals = price_digits(row) if channel in PRICES else None
    st.dataframe(
        frame,
        hide_index=True,
        key="bands",
        column_config=forecast_view.band_columns(decimals, list(frame.columns[2:])),
        alt=f"Median and bands of {channel} by bar",
    )
    st.caption(f"{channel.capitalize()}, times in {forecast.timestamps.tz}")


def settings_tab(row: Row, forecast: Forecast) -> None:
    used = {
        name.replace("_", " "): fmt.NONE if row.settings[name] is None else str(row.settings[name])
        for name in ("horizon", "paths", "temperature", "top_p", "top_k", "seed")
    }
    used["number format"] = row.settings.get("dtype", "float32")
    components.facts(
        {
            "Dataset": datasets.get(workspace, row.dataset_id).name,
            "Model": models.get(workspace, row.model_id).name,
            "origin": fmt.bar_moment(forecast.origin, interval(row)),
            **used,
            "context used": f"{forecast.context} bars",
            "calendar": calendar_words(row),
            "gap at the origin": fmt.change(forecast.gap, 3),
            "data hash": f"`{fmt.short_hash(row.data_hash)}`",
            "model hash": f"`{fmt.short_hash(row.model_hash)}`",
            "paths hash": f"`{fmt.short_hash(row.content_hash)}`",
            "code version": f"`{row.code_version or fmt.NONE}`",
            "drawn": components.local_time(row.finished_at),
        }
    )


def calendar_words(row: Row) -> str:
    """What the timestamps after the last known bar come from."""
    if not row.summary or "calendar" not in row.summary:
        return fmt.NONE
    known = row.summary["calendar"]
    if not known:
        return "all bars are known"
    chosen = ", chosen for this forecast" if row.settings.get("calendar") else ""
    return f"{Calendar.from_dict(known).title}{chosen}"


def stored_forecasts(shown: Row | None) -> None:
    rows = forecasts.list_forecasts(workspace)
    if not rows:
        return
    st.subheader("Stored forecasts", anchor=False)
    data = {row.id: row.name for row in stored}
    names = {row.id: row.name for row in bases}
    frame = pd.DataFrame(
        {
            "Name": [row.name for row in rows],
            "State": [components.state_word(row.state) for row in rows],
            "Dataset": [data.get(row.dataset_id, fmt.NONE) for row in rows],
            "Model": [names.get(row.model_id, fmt.NONE) for row in rows],
            "Horizon": [row.settings.get("horizon") for row in rows],
            "Paths": [row.settings.get("paths") for row in rows],
            "Seed": [row.settings.get("seed") for row in rows],
            "Drawn": [components.ago(row.created_at) for row in rows],
        }
    )
    event = st.dataframe(
        frame,
        key=f"forecasts-table-{shown.id if shown else ''}-{len(rows)}",
        hide_index=True,
        on_select="rerun",
        selection_mode="single-row",
        height="content" if len(rows) <= 8 else 320,
        alt=f"Table of {fmt.plural(len(rows), 'forecast')}; select a row to open it",
    )
    picked = components.selected_row(event, [row.id for row in rows])
    if picked and (shown is None or picked != shown.id):
        open_forecast(picked)
    if shown is None or shown.state in PENDING_FORECAST_STATES:
        return
    if st.button("Delete the shown forecast", icon=":material/delete:", key="delete"):
        ask_delete(shown)


def ask_delete(row: Row) -> None:
    def delete() -> None:
        forecasts.delete(workspace, row.id)
        st.query_params.pop("forecast", None)

    body = f"**{fmt.plain(row.name)}** and its paths will be gone."
    components.confirm("Delete this forecast?", body, "Delete", delete)


def shown_forecast() -> Row | None:
    wanted = st.query_params.get("forecast")
    if wanted is None:
        return None
    try:
        return forecasts.get(workspace, wanted)
    except ServiceError as problem:
        components.show_problem(str(problem))
        return None


def preview(dataset: Dataset, origin: int) -> None:
    """The bars up to the origin, before anything is drawn."""
    bars = resources.bars(workspace, dataset).iloc[: origin + 1].tail(PREVIEW_BARS)
    last = fmt.bar_moment(bars["timestamps"].iloc[-1], dataset.interval_seconds)
    st.caption(f"The model sees the bars up to {last}. Press Draw to sample what may come next.")
    figure = charts.candles(
        bars, colours=palette(workspace.settings.colours), entity=dataset.id, height=400
    )
    alt = f"Candlestick chart of {dataset.name}, the last {len(bars)} bars up to {last}"
    components.chart(figure, key="context", alt=alt)


def small_fan(row: Row) -> None:
    """The page stands; a fan that is about to be there replaces it without another look."""
    try:
        if forecasts.soon(workspace, row.id, SMALL_SECONDS).state in PENDING_FORECAST_STATES:
            return
    except ServiceError:  # deleted meanwhile
        pass
    st.rerun()


def body(row: Row | None, dataset: Dataset, origin: int) -> None:
    if row is None:
        preview(dataset, origin)
    elif row.state in PENDING_FORECAST_STATES:
        st.fragment(pending, run_every=POLL_SECONDS)(row.id)
    elif row.state == "finished":
        result(row)
    elif row.state == "cancelled":
        st.info("This forecast was cancelled. Press Draw to sample again.")
    else:
        components.show_problem(row.reason or "This forecast failed. Press Draw to sample again.")


components.page_title("Forecast", "A fan of sampled futures; no path is ever averaged away.")
stored = datasets.list_datasets(workspace)
bases = models.list_models(workspace)
if not stored:
    components.offer_sample(
        workspace,
        "A forecast needs bars. Start with a sample, or upload your own on the Datasets page.",
    )
elif not bases:
    components.show_problem("There is no model to draw with. Get one on the Models page.")
else:
    current = shown_forecast()
    body(current, *controls(current))
    stored_forecasts(current)
    if current is not None and current.state in PENDING_FORECAST_STATES:
        small_fan(current)
