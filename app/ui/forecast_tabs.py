"""Parts of the forecast page: its chosen bar and target, single paths, a distribution, files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from app.services import compare
from app.storage.models import Forecast as Row
from app.ui import charts_paths, components, distribution, export, forecast_view
from app.ui import format as fmt
from app.ui.chart_style import Palette
from kronos_core.forecast.forecast import Forecast

PATH_CONTEXT = 60
TARGET_HELP = (
    "A price; drag its line in the fan to another. Beside the fan stands the chance that a path "
    "touches it by the chosen bar, within the highs and lows on the way."
)
CRPS_HELP = (
    "Continuous ranked probability score: how far the paths lie from what happened, less how far "
    "they lie from each other. In prices; lower is better."
)
COVERAGE_HELP = "Share of the actual closes inside the band; near {level} is well calibrated."


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """What of a forecast is looked at. step: the chosen bar, from 0. target: a price."""

    row: Row
    forecast: Forecast
    step: int
    target: float | None
    decimals: int
    seconds: float  # between two bars
    colours: Palette

    @property
    def moment(self) -> str:
        return fmt.bar_moment(self.forecast.timestamps[self.step], self.seconds)


def bar_control(horizon: int) -> int:
    """The chosen bar, from 0; the last one unless somebody chooses another."""
    if horizon == 1:
        return 0
    words = "The bar that the figures beside the fan and the distribution are of."
    bar = st.slider(
        "Bar", 1, horizon, horizon, key="bar", bind="query-params", help=words, width=190
    )
    return int(bar) - 1


def target_control() -> float | None:
    """The target price; what is no number is said, with what to type."""
    text = st.text_input(
        "Target price",
        key="target",
        bind="query-params",
        placeholder="none",
        help=TARGET_HELP,
        width=130,
    )
    try:
        return distribution.parse_target(text or "")
    except distribution.TargetError as problem:
        components.show_problem(str(problem))
        return None


def target_moved(decimals: int) -> Callable[[float], None]:
    """Takes the price to which the target's line was dragged as if it had been typed."""

    def moved(price: float) -> None:
        st.session_state["target"] = f"{price:.{decimals}f}"

    return moved


def add_target(view: View) -> None:
    """Puts a target's line, to be dragged, on the upper edge of the 80 % range."""
    st.button(
        "Add a target",
        icon=":material/horizontal_rule:",
        on_click=target_moved(view.decimals),
        args=(float(view.forecast.quantiles([0.9])[0, view.step]),),
        help="Draws a line on the upper edge of the 80 % range; drag it to another price.",
        key="add-target",
    )


def score_line(view: View, actual: pd.DataFrame) -> None:
    """How the fan met the bars that are known by now."""
    met = compare.scores(view.forecast, actual)
    if met is None:
        return
    last = view.forecast.last_close
    with st.container(horizontal=True, gap="large", vertical_alignment="center", key="scores"):
        st.caption(distribution.score_words(met), width=170)
        for name, value, words in (
            ("CRPS", met.mean_crps, CRPS_HELP),
            ("MAE of the median", met.mae, "Mean absolute error of the median path, in prices."),
        ):
            share = fmt.percent(value / last, 2)
            st.metric(name, f"{fmt.price(value, view.decimals)} ({share})", help=words)
        for level, share_in in met.coverage.items():
            nominal = fmt.percent(level)
            words = COVERAGE_HELP.format(level=nominal)
            st.metric(f"Inside the {nominal} band", fmt.percent(share_in), help=words)


# ---------------------------------------------------------------- single paths


@st.cache_data(show_spinner=False, max_entries=64)
def _medoid(content_hash: str, _forecast: Forecast) -> int:
    return _forecast.medoid()


def paths_tab(view: View, context: pd.DataFrame) -> None:
    """Steps through single futures as candles, from the most typical one on."""
    typical, last = _medoid(str(view.row.content_hash), view.forecast), len(view.forecast.paths) - 1
    key = f"path-{view.row.id}"
    st.session_state.setdefault(key, typical)

    def step(by: int) -> None:
        st.session_state[key] = (st.session_state[key] + by) % (last + 1)

    def show_typical() -> None:
        st.session_state[key] = typical

    with st.container(horizontal=True, vertical_alignment="bottom"):
        words = "Number of the path, from 0, as in the downloaded table."
        path = int(st.number_input("Path", 0, last, key=key, help=words, width=130))
        icon = ":material/chevron_left:"
        st.button("Previous", icon=icon, on_click=step, args=(-1,), key="path-before")
        icon = ":material/chevron_right:"
        st.button("Next", icon=icon, on_click=step, args=(1,), key="path-after")
        icon = ":material/center_focus_strong:"
        st.button("Most typical", icon=icon, on_click=show_typical, key="path-typical")
    figure = charts_paths.single_path(
        context.tail(PATH_CONTEXT),
        view.forecast,
        path,
        colours=view.colours,
        decimals=view.decimals,
        entity=f"path-{view.row.id}",
    )
    alt = f"Path {path} of {last + 1} as candles after the last {PATH_CONTEXT} known bars"
    components.chart(figure, key="single-path", alt=alt)
    st.caption(_path_words(view, path, path == typical))


def _path_words(view: View, path: int, typical: bool) -> str:
    close = float(view.forecast.channel("close")[path, -1])
    words = [f"ends at {fmt.price(close, view.decimals)}"]
    words.append(fmt.change(close / view.forecast.last_close - 1))
    words.append(f"largest fall on the way {fmt.percent(view.forecast.drawdowns()[path], 1)}")
    if typical:
        words.append("the most typical: its closes lie nearest to all others'")
    return f"Path {path} " + " · ".join(words)


# ---------------------------------------------------------------- distribution


def distribution_tab(view: View) -> None:
    """The closes of all paths at the chosen bar, and the target's chances at every bar."""
    target = "" if view.target is None else f"{view.target:g}"
    entity = f"{view.row.id}-{view.step}-{target}"
    figure = charts_paths.histogram(
        view.forecast, view.step, target=view.target, decimals=view.decimals, entity=entity
    )
    alt = f"Histogram of the close of {len(view.forecast.paths)} paths at bar {view.step + 1}"
    st.caption(f"Close at bar {view.step + 1}, {view.moment}")
    if view.target is None:
        components.chart(figure, key="distribution", alt=alt)
        st.caption(
            "Type a target price above, or add one beside the fan, to see its chances, bar by bar."
        )
        return
    left, right = st.columns([3, 2], gap="medium")
    with left:
        components.chart(figure, key="distribution", alt=alt)
    with right:
        price = fmt.price(view.target, view.decimals)
        found = distribution.chances(view.forecast, view.target, view.step)
        above, touched = fmt.percent(found.above, 1), fmt.percent(found.touched, 1)
        lines = charts_paths.target_chances(
            view.forecast, view.target, view.step, seconds=view.seconds, entity=entity
        )
        words = f"Chance to close above {price}, and to have touched it, at every bar"
        components.chart(lines, key="chances", alt=words)
        st.caption(f"At the chosen bar: closes above {price} {above} · touched by then {touched}")


# ---------------------------------------------------------------- files


def downloads(view: View, figure: go.Figure) -> None:
    """Every path as a table, the fan as a page or a picture."""
    paths, horizon = view.forecast.paths.shape[:2]
    name, notes = view.row.name, f"{paths} paths of {horizon} bars, origin {view.forecast.origin}"
    st.caption(
        f"Tables: every path, bar by bar: {paths} × {horizon} = {paths * horizon:,} rows with "
        "path, step, timestamp and the six channels. HTML and PNG: the fan as it is shown."
    )
    found = export.browser()
    files = {
        "CSV": (lambda: forecast_view.csv_bytes(view.forecast.to_frame()), "text/csv"),
        "Parquet": (lambda: forecast_view.parquet_bytes(view.forecast.to_frame()), None),
        "HTML": (lambda: export.html_page(figure, name, notes), "text/html"),
        "PNG": (lambda: export.png(figure, name), "image/png"),
    }
    with st.container(horizontal=True):
        for label, (content, mime) in files.items():
            st.download_button(
                label,
                content,
                f"{name}.{label.lower()}",
                mime,
                icon=":material/download:",
                on_click="ignore",
                disabled=label == "PNG" and found is None,
                key=f"paths-{label.lower()}",
            )
    if found is None:
        st.caption(export.NO_BROWSER)
