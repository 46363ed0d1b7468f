"""Forecasts side by side: the chosen ones, their pictures and their table."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st
from streamlit import column_config

from app.services import compare, forecasts
from app.services.compare import Compared
from app.storage.models import PENDING_FORECAST_STATES, Forecast
from app.storage.session import Store
from app.ui import charts_fans, components
from app.ui import format as fmt

POLL_SECONDS = 0.7
PAST = 60
MULTIPLES, OVERLAY = "Small multiples", "Overlay"
PRICE, CHANGE = "Price", "Change in %"
HELP = {
    "Median move": "Median close at the chosen bar against the last known close.",
    "Spread": "90 % minus 10 % quantile, as a share of the last close.",
    "Skew": "Where the median lies between them, −1 to 1; above 0 the upper side is longer.",
    "Tail": "Central 95 % over central 50 % range; 1 for a normal law, more for heavier tails.",
    "CRPS": "Distance of the paths from what happened, less that among them, as a share of the "
    "last close; lower is better. Over all bars that are known.",
    "MAE": "Mean absolute error of the median path, as a share of the last close.",
    "Inside 80 %": "Share of the actual closes inside the 80 % band; near 80 % is well calibrated.",
}


def named(rows: Sequence[Forecast]) -> dict[str, str]:
    """Names to choose from; those that several bear carry the beginning of their id."""
    names = [row.name for row in rows]
    return {
        row.id: row.name if names.count(row.name) == 1 else f"{row.name} · {row.id[:5]}"
        for row in rows
    }


def waiting(store: Store, ids: Sequence[str]) -> None:
    """Progress of those that are being drawn; the page is redrawn when one ends."""
    rows, _ = compare.find(store, ids)
    pending = [row for row in rows if row.state in PENDING_FORECAST_STATES]
    if not pending or st.session_state.setdefault("compare-pending", len(pending)) != len(pending):
        st.session_state.pop("compare-pending", None)
        st.rerun()
    done = sum(row.step / max(row.total_steps, 1) for row in pending) + len(rows) - len(pending)
    with st.container(border=True, horizontal=True, vertical_alignment="center"):
        words = f"Drawing: {len(rows) - len(pending)} of {len(rows)} forecasts are ready"
        st.progress(min(done / len(rows), 1.0), words, width="stretch")
        if st.button("Cancel", icon=":material/close:", key="cancel"):
            with components.problems():
                for row in pending:
                    forecasts.cancel(store, row.id)


def show(compared: Sequence[Compared]) -> None:
    """Pictures and table of drawn forecasts."""
    horizon = max(one.forecast.paths.shape[1] for one in compared)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        view = st.segmented_control(
            "View",
            [MULTIPLES, OVERLAY],
            default=MULTIPLES,
            required=True,
            key="view",
            bind="query-params",
        )
        several = len({one.row.dataset_id for one in compared}) > 1
        values = st.segmented_control(
            "Values",
            [PRICE, CHANGE],
            default=CHANGE if several else PRICE,
            required=True,
            key="values-several" if several else "values",
            bind="query-params",
        )
        step = _bar_control(horizon)
    scale = charts_fans.scale_for(compared, values == CHANGE)
    _pictures(compared, scale, view, step)
    _table(compared, scale, step)


def _bar_control(horizon: int) -> int:
    if horizon == 1:
        return 0
    words = "The bar that the distributions and the table are of."
    bar = st.slider(
        "Bar", 1, horizon, horizon, key="bar", bind="query-params", help=words, width=260
    )
    return int(bar) - 1


def _pictures(compared: Sequence[Compared], scale: charts_fans.Scale, view: str, step: int) -> None:
    ids = "-".join(one.row.id for one in compared)
    entity = f"{ids}-{view}-{scale.relative}"
    names = ", ".join(one.label for one in compared)
    draw = charts_fans.small_multiples if view == MULTIPLES else charts_fans.overlay
    figure = draw(compared, scale, step=step, entity=entity)
    components.chart(figure, key="fans", alt=f"{view} of {len(compared)} fans: {names}")
    known = any(len(one.actual) for one in compared)
    notes = ["medians with bands of 80 %"]
    if view == MULTIPLES:
        notes = ["bars from the origin", "bands of 50, 80 and 95 %"]
    notes.append("all with one value axis")
    if known:
        notes.append("known bars in grey")
    st.caption(" · ".join(notes))
    moments = {str(one.forecast.timestamps[_at(one, step)]) for one in compared}
    when = f", {_moment(compared[0], step)}" if len(moments) == 1 else " of each"
    st.subheader(f"Close at bar {step + 1}{when}", anchor=False)
    figure = charts_fans.distributions(compared, scale, step=step, entity=f"{entity}-{step}")
    alt = f"Distributions of the close at bar {step + 1} side by side: {names}"
    components.chart(figure, key="distributions", alt=alt)


def _at(one: Compared, step: int) -> int:
    return min(step, len(one.forecast.timestamps) - 1)


def _moment(one: Compared, step: int) -> str:
    return fmt.bar_moment(one.forecast.timestamps[_at(one, step)], one.seconds)


def _table(compared: Sequence[Compared], scale: charts_fans.Scale, step: int) -> None:
    found = compare.figures(compared, step)
    frame = pd.DataFrame(
        {
            "Forecast": found["label"],
            "Median move": 100 * found["median_change"],
            "P(up)": 100 * found["probability_up"],
            "80 % low": found["low_80"],
            "80 % high": found["high_80"],
            "Spread": 100 * found["spread"],
            "Skew": found["skew"],
            "Tail": found["tail"],
        }
    )
    if found["scored"].notna().any():
        frame["CRPS"] = 100 * found["crps"].astype(float)
        frame["MAE"] = 100 * found["mae"].astype(float)
        frame["Inside 80 %"] = 100 * found["coverage_80"].astype(float)
        frame["Bars scored"] = found["scored"]
    shapes = dict.fromkeys(("Spread", "CRPS", "MAE"), "%.2f %%")
    shapes |= {"Median move": "%+.2f %%", "P(up)": "%.0f %%", "Inside 80 %": "%.0f %%"}
    shapes |= {"Skew": "%+.2f", "Tail": "%.2f", "Bars scored": "%d"}
    alike = len({one.row.dataset_id for one in compared}) == 1
    price = f"%.{scale.decimals}f" if alike else "%.6g"
    shapes |= dict.fromkeys(("80 % low", "80 % high"), price)
    columns = {
        name: column_config.NumberColumn(format=shape, help=HELP.get(name))
        for name, shape in shapes.items()
        if name in frame
    }
    st.dataframe(
        frame,
        hide_index=True,
        key="compare-table",
        column_config=columns,
        placeholder=fmt.NONE,
        alt=f"Figures of {len(compared)} forecasts at bar {step + 1}",
    )
    with st.container(horizontal=True):
        for one in compared:
            components.link("forecast", fmt.plain(one.label), ":material/insights:",
                            forecast=one.row.id)  # fmt: skip
