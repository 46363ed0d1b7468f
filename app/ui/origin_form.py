"""The origin of a forecast: chosen as its distance from the end, or by its day."""

from __future__ import annotations

from datetime import date, timedelta

import pandas as pd
import streamlit as st

from app.services.errors import ServiceError
from app.services.forecast_requests import origin_on
from app.storage.models import Dataset
from app.ui import components

PROBLEM = "origin-problem"
BEYOND = timedelta(days=3660)
"""Days outside of the bars can be chosen, so that we say what is wrong with them."""
BEFORE_HELP = (
    "The origin is the last bar that the model sees. 0 is the end of the data; with an earlier "
    "origin the actual bars are drawn over the fan."
)
DAY_HELP = "The origin is the last known bar on or before this day, in the zone of the data."


def origin_control(data: Dataset, bars: pd.DataFrame, start: int) -> int:
    """Two fields for one choice, each following the other; the index of the origin.

    bars: of the dataset, in its own zone; start: the index that the fields open at.
    """
    last = data.bars - 1
    distance, day = f"origin-{data.id}-{start}", f"origin-day-{data.id}-{start}"

    def day_of(before: int) -> date:
        found: date = bars["timestamps"].iloc[last - before].date()
        return found

    def follow_distance() -> None:
        st.session_state[day] = day_of(st.session_state[distance])

    def follow_day() -> None:
        try:
            chosen = origin_on(data, bars, st.session_state[day])
            st.session_state[distance] = last - chosen
        except ServiceError as problem:
            st.session_state[PROBLEM] = str(problem)
        follow_distance()  # a day without bars becomes the one of its origin

    st.session_state.setdefault(distance, last - start)
    st.session_state.setdefault(day, day_of(st.session_state[distance]))
    left, right = st.columns(2)
    before = left.number_input(
        "Bars before the end",
        0,
        last - 1,
        key=distance,
        on_change=follow_distance,
        help=BEFORE_HELP,
    )
    right.date_input(
        "Origin date",
        min_value=day_of(last) - BEYOND,
        max_value=day_of(0) + BEYOND,
        format="YYYY-MM-DD",
        key=day,
        on_change=follow_day,
        help=DAY_HELP,
    )
    return last - int(before)


def origin_problem() -> None:
    """Says once why a chosen day cannot be an origin."""
    if problem := st.session_state.pop(PROBLEM, None):
        components.show_problem(problem)
