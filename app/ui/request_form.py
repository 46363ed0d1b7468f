"""Controls of what to draw and what it takes, shared by the forms that draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import streamlit as st

from app.services.errors import ServiceError
from app.services.forecast_costs import Cost
from app.storage.models import Dataset, Model
from app.ui import format as fmt
from kronos_core.forecast.memory import GB

LONGEST_HORIZON = 1024
ORIGIN_HELP = "The origin is the last bar that the model sees; 0 is the end of the data."


def model_control(models: Sequence[Model], key: str) -> str:
    """The id of a model."""
    names = {row.id: row.name for row in models}
    return str(
        st.selectbox("Model", list(names), format_func=names.__getitem__, key=f"{key}-model")
    )


def dataset_control(datasets: Sequence[Dataset], key: str) -> Dataset:
    """One dataset."""
    rows = {row.id: row for row in datasets}
    picked = st.selectbox(
        "Dataset", list(rows), format_func=lambda one: rows[one].name, key=f"{key}-dataset"
    )
    return rows[str(picked)]


def origin_control(key: str, last: int) -> int:
    """How many bars before the end the origin lies."""
    label = "Bars before the end"
    return int(st.number_input(label, 0, last, 0, key=f"{key}-origin", help=ORIGIN_HELP))


def lengths(key: str, most_paths: int) -> tuple[int, int]:
    """Horizon and number of paths."""
    horizon = st.number_input("Horizon", 1, LONGEST_HORIZON, 48, key=f"{key}-horizon")
    start = min(100, most_paths)
    paths = st.number_input("Paths", 1, most_paths, start, key=f"{key}-paths")
    return int(horizon), int(paths)


def cost_line(cost: Callable[[], Cost]) -> None:
    """What drawing would take, before it starts; or why it cannot be, with the numbers."""
    try:
        st.caption(cost_words(cost()))
    except ServiceError as problem:
        st.caption(fmt.plain(f"This cannot be drawn. {problem}"))


def cost_words(cost: Cost) -> str:
    """Number of forecasts where there are several, memory and time."""
    need = cost.need
    several = f"{fmt.plural(cost.forecasts, 'forecast')}. " if cost.forecasts > 1 else ""
    parts = "" if need.parts == 1 else f", in {need.parts} parts"
    return (
        f"{several}Drawing takes about {_size(need.total)} of memory{parts}; "
        f"{_size(need.allowed)} may be used. {_time(cost.seconds)}"
    )


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "How long it takes is known after the first forecast with a model of this size."
    if seconds < 1:
        return "It takes less than a second."
    return f"It takes about {fmt.duration(seconds)}."


def _size(count: int) -> str:
    return f"{count / GB:.1f} GB" if count >= GB else f"{max(count / 1e6, 1):.0f} MB"
