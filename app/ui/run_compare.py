"""Several runs side by side: curves over one axis, results, and the settings that differ."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from app.services import runs
from app.storage.models import Run
from app.storage.session import Store
from app.ui import charts_compare, components, curve_controls, run_memory, run_view
from app.ui import format as fmt
from app.ui.curves import Clipping
from app.ui.live_chart import live_chart

LIVE_SECONDS = 2.0


def page(store: Store, chosen: Sequence[Run]) -> None:
    """Everything about the chosen runs; the curves grow while any of them is at work."""
    busy = any(run.state in components.BUSY_STATES for run in chosen)
    ids = [run.id for run in chosen]
    st.fragment(_curves, run_every=LIVE_SECONDS if busy else None)(store, ids)
    names = run_view.unique_names(chosen)
    st.subheader("Results", anchor=False)
    st.dataframe(
        _results(chosen, names), hide_index=True, key="compare-results", alt="Results of the runs"
    )
    st.subheader("Settings that differ", anchor=False)
    table = run_view.differences_table(runs.compare_settings(chosen), names)
    if table.empty:
        st.caption("None: these runs have the same data, model, code and settings.")
    else:
        st.dataframe(
            table, hide_index=True, key="compare-settings", alt="Settings in which the runs differ"
        )


def _curves(store: Store, ids: Sequence[str]) -> None:
    chosen = [runs.get(store, run_id) for run_id in ids]
    name = st.segmented_control(
        "Curve",
        list(charts_compare.CURVES),
        default="total",
        required=True,
        format_func=charts_compare.CURVES.__getitem__,
        key="compare-curve",
        label_visibility="collapsed",
    )
    view, clipping = curve_controls.view("compare"), Clipping()
    memories = run_memory.follow(store, chosen)
    frames = {
        label: memory.frame[memory.frame["stage"] == "predictor"]
        for label, memory in zip(run_view.unique_names(chosen), memories, strict=True)
    }
    figure = charts_compare.overlay(
        frames, name, view=view, entity="-".join(ids), clipping=clipping
    )
    words = charts_compare.CURVES[name]
    live_chart(figure, key="compare", alt=f"{words} of {fmt.plural(len(chosen), 'run')}")
    notes = ["Bold: validation; thin: training."]
    if view.clip:
        notes.append(clipping.sentence())
    st.caption(" ".join(notes))


def _results(chosen: Sequence[Run], names: Sequence[str]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "Run": names,
            "State": [components.state_word(run.state) for run in chosen],
            "Step": [f"{run.step:,} of {run.total_steps:,}" for run in chosen],
            "Best step": [fmt.count(run.best_step) for run in chosen],
            "Best total": [fmt.loss(run.best_total) for run in chosen],
            "Best s1": [fmt.loss(run.best_s1) for run in chosen],
            "Best s2": [fmt.loss(run.best_s2) for run in chosen],
        }
    )
