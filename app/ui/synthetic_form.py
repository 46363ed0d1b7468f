"""Bars of a market that does not exist: what they are like, a look at them, then Save."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app.services import datasets
from app.storage.models import Dataset
from app.storage.session import Store
from app.ui import charts, components
from app.ui import format as fmt
from app.ui.chart_style import palette
from app.ui.upload import series_line
from kronos_core.data.synthetic import JUMP_SIZE, SyntheticSettings, make_synthetic

INTERVALS = {"1 min": "1min", "5 min": "5min", "15 min": "15min", "1 h": "1h", "4 h": "4h"}
INTERVALS |= {"1 day": "1D", "1 week": "7D"}
PREVIEWED_BARS = 200_000  # they are made anew at every change; the command line makes more
DRIFT_HELP = "What the price grows by a year on average."
VOLATILITY_HELP = "Standard deviation of a year's return, clusters and jumps included."
CLUSTERING_HELP = "How far calm and wild times differ; 0 is the same at all times."
CYCLE_HELP = "How far volume swings around its mean over a day; for bars below a day."
JUMPS_HELP = f"Share of the bars that move {JUMP_SIZE:g} times further than usual."
SEED_HELP = "The same seed and settings make the same bars."


def synthetic(store: Store) -> Dataset | None:
    """The settings with a preview; nothing is stored before Save. The stored dataset after it."""
    st.caption("A seeded random walk round the clock: bars on which you know what there is to find")
    with components.problems():
        settings = _settings()
        _preview(store, settings)
        return _save(store, settings)
    return None


def _settings() -> SyntheticSettings:
    """The settings that the controls say. DataError for what cannot be made of them."""
    first, second = st.columns(5), st.columns(5)
    interval = first[1].selectbox(
        "Interval", list(INTERVALS), index=list(INTERVALS).index("1 day"), key="synthetic-interval"
    )
    day = first[2].date_input(
        "First day (UTC)",
        pd.Timestamp("2020-01-01"),
        min_value=pd.Timestamp("1800-01-01"),
        max_value=pd.Timestamp("2199-12-31"),
        key="synthetic-start",
    )
    drift = first[4].number_input(
        "Drift (% a year)", -500.0, 500.0, 5.0, 1.0, key="synthetic-drift", help=DRIFT_HELP
    )
    volatility = second[0].number_input(
        "Volatility (% a year)",
        *(0.0, 1000.0, 20.0, 1.0),
        key="synthetic-volatility",
        help=VOLATILITY_HELP,
    )
    jumps = second[3].number_input(
        "Jumps (% of bars)", 0.0, 100.0, 0.5, 0.1, key="synthetic-jumps", help=JUMPS_HELP
    )
    return SyntheticSettings(
        bars=first[0].number_input("Bars", 2, PREVIEWED_BARS, 2000, key="synthetic-bars"),
        interval=pd.Timedelta(INTERVALS[interval]),
        start=pd.Timestamp(day, tz="UTC"),
        first_price=first[3].number_input(
            "First price", 1e-8, 1e9, 100.0, format="%.8g", key="synthetic-price"
        ),
        drift=drift / 100,
        volatility=volatility / 100,
        clustering=second[1].slider(
            "Clustering", 0.0, 2.0, 0.5, 0.1, key="synthetic-clustering", help=CLUSTERING_HELP
        ),
        cycle=second[2].slider(
            "Daily cycle of volume", 0.0, 1.0, 0.5, 0.1, key="synthetic-cycle", help=CYCLE_HELP
        ),
        jumps=jumps / 100,
        seed=second[4].number_input("Seed", 0, 2**31 - 1, 0, key="synthetic-seed", help=SEED_HELP),
    )


def _preview(store: Store, settings: SyntheticSettings) -> None:
    series = make_synthetic(settings)
    series_line(series)
    figure = charts.candles(
        series.frame, colours=palette(store.settings.colours), entity=str(settings), height=300
    )
    alt = f"Candlestick chart of {fmt.plural(len(series.frame), 'synthetic bar')}"
    components.chart(figure, key="synthetic-chart", alt=alt)


def _save(store: Store, settings: SyntheticSettings) -> Dataset | None:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        suggestion = f"Synthetic {settings.seed}"
        key = f"synthetic-name-{suggestion}"
        name = st.text_input("Name of the dataset", suggestion, key=key, width=280)
        icon = ":material/save:"
        if not st.button("Save", type="primary", icon=icon, key="synthetic-save"):
            return None
    return datasets.add_synthetic(store, settings, name=name.strip())
