"""Controls of what to draw, shared by a sweep and by many series."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app.storage.models import Dataset, Model

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
