"""The Quality tab: what is wrong, what that does to a forecast, and repairs that can be undone."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from app.services import dataset_care
from app.storage.models import Dataset
from app.storage.session import Store
from app.ui import components, forecast_view, resources
from app.ui import format as fmt
from kronos_core.data.bars import CHANNELS
from kronos_core.data.findings import Finding, QualityReport
from kronos_core.data.repair import REPAIRS, Change, RepairStep

LONGEST_GAP_HELP = "Longer gaps stay open."


def show(store: Store, dataset: Dataset) -> None:
    """The whole tab."""
    report = resources.quality(store, dataset)
    _verdict(report)
    steps = _findings(dataset, report)
    _preview(store, dataset, steps)
    _applied(store, dataset)


def _verdict(report: QualityReport) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        components.grade_badge(report.grade)
        expected = f" of {report.expected:,} that the calendar has" if report.expected else ""
        calendar = report.calendar.title if report.calendar else "unknown"
        st.caption(f"{fmt.plural(report.bars, 'bar')}{expected} · calendar {fmt.plain(calendar)}")
    if not report.findings:
        st.markdown("Nothing is wrong with these bars.")


def _findings(dataset: Dataset, report: QualityReport) -> list[RepairStep]:
    """The findings, each with its repair to tick. The steps that were ticked."""
    steps = []
    for place, finding in enumerate(report.findings):
        with st.container(border=True, gap="small"):
            text, action = st.columns([4, 1.3], vertical_alignment="center")
            with text:
                _finding(dataset, finding)
            with action:
                step = _offer(dataset, finding, place)
        steps += [step] if step else []
    # Applied in the order in which they do not get into each other's way.
    return sorted(steps, key=lambda step: list(REPAIRS).index(step.name))


def _finding(dataset: Dataset, finding: Finding) -> None:
    icon = components.severity_icon(finding.severity)
    st.markdown(f"{icon} **{fmt.plain(finding.message)}**")
    first = ", ".join(
        fmt.bar_time(stamp.tz_convert(dataset.timezone), dataset.interval_seconds)
        for stamp in finding.places
    )
    more = " …" if finding.count > len(finding.places) else ""
    places = f"First: {first}{more}  \n" if first else ""
    st.caption(f"{places}Effect on a forecast: {fmt.plain(finding.effect)}")


def _offer(dataset: Dataset, finding: Finding, place: int) -> RepairStep | None:
    if finding.repair is None:
        st.caption("No repair: read the file again with other choices, or choose a calendar.")
        return None
    repair = REPAIRS[finding.repair]
    key = f"repair-{dataset.id}-{dataset.data_hash[:8]}-{place}-{repair.name}"
    if not st.checkbox(repair.title, key=key, help=repair.sentence):
        return None
    parameters: dict[str, Any] = dict(finding.parameters)
    if "longest" in repair.parameters:
        usual = int(repair.parameters["longest"])
        label = "Longest gap (bars)"
        parameters["longest"] = st.number_input(
            label, 1, 1000, usual, key=f"{key}-longest", help=LONGEST_GAP_HELP
        )
    return RepairStep(name=repair.name, parameters=parameters)


def _preview(store: Store, dataset: Dataset, steps: list[RepairStep]) -> None:
    if not steps:
        return
    st.markdown("**Before and after**")
    with components.problems():
        changes = dataset_care.preview_repairs(store, dataset.id, steps)
        for change in changes:
            _change(dataset, change)
        label = f"Apply {fmt.plural(len(steps), 'repair')}"
        icon = ":material/build:"
        if st.button(label, type="primary", icon=icon, key="apply-repairs"):
            dataset_care.apply_repairs(store, dataset.id, steps)
            st.rerun()


def _change(dataset: Dataset, change: Change) -> None:
    counts = {
        "changed": change.changed,
        "dropped": change.dropped,
        "added": change.added,
        "moved": change.moved,
    }
    told = ", ".join(f"{count:,} {word}" for word, count in counts.items() if count)
    title = REPAIRS[change.step.name].title
    st.caption(f"{title}: {told or 'no bar is touched'}; the first are shown")
    if not change.count:
        return
    before, after = st.columns(2)
    with before:
        _rows(dataset, change.before, f"before-{change.step.name}", "Before")
    with after:
        _rows(dataset, change.after, f"after-{change.step.name}", "After")


def _rows(dataset: Dataset, frame: pd.DataFrame, key: str, label: str) -> None:
    """Rows of bars, which may be unclean, under a label."""
    stamps = pd.DatetimeIndex(frame["timestamps"]).tz_convert(dataset.timezone)
    shown = frame[list(CHANNELS)].copy()
    seconds = dataset.interval_seconds
    shown.insert(0, label, [fmt.bar_time(stamp, seconds) for stamp in stamps])
    columns = forecast_view.channel_columns(fmt.price_decimals(frame["close"]))
    st.dataframe(shown, key=key, hide_index=True, column_config=columns, alt=label)


def _applied(store: Store, dataset: Dataset) -> None:
    steps = dataset_care.repairs_of(dataset)
    if not steps:
        return
    st.markdown("**Applied repairs**")
    st.caption("The original bars are kept; undoing restores them byte for byte.")
    for place, step in enumerate(steps):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(f"{place + 1}. {_step_words(step)}", width=420)
            key = f"undo-{place}"
            if st.button("Undo", icon=":material/undo:", key=key):
                with components.problems():
                    dataset_care.remove_repair(store, dataset.id, place)
                    st.rerun()
    if len(steps) > 1 and st.button("Undo all", icon=":material/undo:", key="undo-all"):
        with components.problems():
            dataset_care.undo_repairs(store, dataset.id)
            st.rerun()


def _step_words(step: RepairStep) -> str:
    told = {
        name: value
        for name, value in step.parameters.items()
        if not isinstance(value, dict) and value is not None
    }
    details = ", ".join(f"{name} {value}" for name, value in told.items())
    title = REPAIRS[step.name].title
    return fmt.plain(f"{title} ({details})" if details else title)
