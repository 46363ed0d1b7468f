"""The data of a run as a form: datasets with weights, and where they are split by time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any

import pandas as pd
import streamlit as st

from app.storage.models import Dataset
from app.ui import format as fmt
from app.ui import training_form
from app.ui.charts_compare import SplitBar
from app.ui.training_form import key
from kronos_core.data.windows import WindowSplit
from kronos_core.training.options import DataShare


def datasets(stored: Sequence[Dataset], wanted: Sequence[str]) -> list[Dataset]:
    """The chosen datasets; ``wanted`` are ids or names to open with."""
    by_id = {row.id: row for row in stored}
    start = [row.id for row in stored if row.id in wanted or row.name in wanted]
    chosen = st.multiselect(
        "Datasets",
        list(by_id),
        default=start or [stored[0].id],
        format_func=lambda row_id: by_id[row_id].name,
        key=key("datasets-" + ",".join(wanted)),
        help="With several, a run learns from all of them at once.",
    )
    for row in [by_id[row_id] for row_id in chosen[:3]]:
        st.caption(
            f"{row.bars:,} bars · {fmt.interval(row.interval_seconds)} · "
            + fmt.span(row.first, row.last, row.interval_seconds, row.timezone)
        )
    if len(chosen) > 3:
        st.caption(f"and {fmt.plural(len(chosen) - 3, 'more dataset', 'more datasets')}")
    return [by_id[row_id] for row_id in chosen]


def weights(chosen: Sequence[Dataset]) -> tuple[DataShare, ...]:
    """How often an epoch shows each dataset; () for a single one."""
    if len(chosen) < 2:
        return ()
    known = {share.name: share.weight for share in training_form.base().data}
    with st.popover("Weights", icon=":material/balance:"):
        st.caption("Weight 1 shows every window once an epoch, 2 twice, 0.5 half of them in turn.")
        return tuple(
            DataShare(
                name=row.id,
                weight=st.number_input(
                    row.name,
                    0.01,
                    100.0,
                    float(known.get(row.id, known.get(row.name, 1.0))),
                    0.5,
                    key=key(f"weight-{row.id}"),
                ),
            )
            for row in chosen
        )


def split(chosen: Sequence[Dataset]) -> dict[str, Any]:
    """Shares of the bars for validation and test, or the dates at which they begin."""
    start = training_form.base()
    left, right = st.columns(2)
    validation = left.slider(
        "Validation",
        0.02,
        0.4,
        min(max(start.validation_fraction, 0.02), 0.4),
        0.01,
        format="percent",
        key=key("validation"),
        help="Share of the bars, by time, on which losses are measured but nothing is learned.",
    )
    test = right.slider(
        "Test",
        0.0,
        0.4,
        min(start.test_fraction, 0.4),
        0.01,
        format="percent",
        key=key("test"),
        help="The newest bars, kept away from training and from choosing the best step.",
    )
    found: dict[str, Any] = {"validation_fraction": validation, "test_fraction": test}
    with st.popover("Split by date", icon=":material/calendar_month:"):
        return found | _dates(chosen)


def _dates(chosen: Sequence[Dataset]) -> dict[str, str | None]:
    start = training_form.base()
    on = st.toggle(
        "Split at dates",
        start.validation_from is not None,
        key=key("by-date"),
        help="The same days for all datasets, instead of shares of each.",
    )
    if not on or not chosen:
        return {"validation_from": None, "test_from": None}
    first, last = min(row.first for row in chosen).date(), max(row.last for row in chosen).date()
    days = (last - first).days
    validation = _date(
        "Validation begins", start.validation_from, first + timedelta(round(0.8 * days)), "val-from"
    )
    with_test = st.toggle(
        "Keep a test part",
        start.test_from is not None or start.validation_from is None,
        key=key("test-dated"),
    )
    test = None
    if with_test:
        test = _date(
            "Test begins", start.test_from, first + timedelta(round(0.9 * days)), "test-from"
        )
    return {"validation_from": validation, "test_from": test}


def _date(label: str, known: str | None, otherwise: date, name: str) -> str:
    value = pd.Timestamp(known).date() if known else otherwise
    chosen = st.date_input(label, value, min_value=date(1900, 1, 1), key=key(name))
    # A file may say the hour as well; it stays as long as the day does.
    return known if known and chosen == value else str(chosen)


def split_bar(row: Dataset, split: WindowSplit, stamps: pd.Series) -> SplitBar:
    """How one dataset is split, with the times of the cuts; gaps belong to no part."""
    train, validation, stop, test = split.cuts
    parts = [("training", 0, train), ("gap", train, validation), ("validation", validation, stop)]
    if len(split.test):
        parts += [("gap", stop, test), ("test", test, row.bars)]
    parts = [part for part in parts if part[1] < part[2]]
    edges = {place for _, first, end in parts for place in (first, end - 1)}
    labels = {
        place: fmt.bar_time(stamps.iloc[place], row.interval_seconds) for place in sorted(edges)
    }
    return SplitBar(name=row.name, parts=parts, bars=row.bars, labels=labels)


def split_words(row: SplitBar) -> str:
    """The same in words."""
    parts = (
        f"{part} from {row.labels[first]} to {row.labels[stop - 1]}"
        for part, first, stop in row.parts
    )
    return f"{row.name}: " + ", ".join(parts)
