"""Streamlit building blocks that several pages use."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import streamlit as st

from app.services import datasets
from app.services.errors import ServiceError
from app.services.runs import Progress
from app.services.status import Status
from app.storage import Store
from app.storage.models import ACTIVE_STATES, Run
from app.ui import chart_style
from app.ui import format as fmt
from kronos_core.data.bars import DataError
from kronos_core.model.files import BundleError

PAGES = Path(__file__).resolve().parents[2] / "pages"
STATE_LOOK = {
    "queued": ("gray", ":material/schedule:"),
    "starting": ("blue", ":material/hourglass_top:"),
    "running": ("blue", ":material/play_arrow:"),
    "stopping": ("orange", ":material/hourglass_bottom:"),
    "stopped": ("orange", ":material/pause:"),
    "finished": ("green", ":material/check:"),
    "failed": ("red", ":material/error:"),
    "orphaned": ("red", ":material/link_off:"),
    "cancelled": ("gray", ":material/block:"),
}
GRADE_LOOK = {
    "good": ("green", ":material/check:"),
    "usable": ("orange", ":material/warning:"),
    "poor": ("red", ":material/error:"),
}
SEVERITY_LOOK = {
    "note": ":gray[:material/info:]",
    "warning": ":orange[:material/warning:]",
    "error": ":red[:material/error:]",
}
STATE_WORDS = {"orphaned": "interrupted"}
BUSY_STATES = ("queued", *ACTIVE_STATES)


def page_title(title: str, caption: str) -> None:
    """The head of a page: its name and one sentence."""
    st.title(title, anchor=False)
    st.caption(caption)


@contextmanager
def problems() -> Iterator[None]:
    """Shows what a service, the data or a model complains about; everything else passes."""
    try:
        yield
    except (ServiceError, DataError, BundleError) as problem:
        show_problem(str(problem))


def show_problem(message: str) -> None:
    """An error in the place where it arose: what, where, remedy."""
    st.error(fmt.plain(message), icon=":material/error:")


def go_to(page: str, **parameters: str) -> None:
    """Switches to a page by the name of its file, with the entity it shows in the URL."""
    st.switch_page(str(PAGES / f"{page}.py"), query_params=parameters)


def link(page: str, label: str, icon: str, **parameters: str) -> None:
    """A link to a page, with the entity it shows in the URL."""
    st.page_link(str(PAGES / f"{page}.py"), label=label, icon=icon, query_params=parameters)


def chart(figure: go.Figure, *, key: str, alt: str, small: bool = False) -> None:
    """A figure with its words for screen readers. `key` keeps its zoom over live updates."""
    config = chart_style.SMALL_CONFIG if small else chart_style.CONFIG
    st.plotly_chart(figure, width="stretch", key=key, config=config, alt=alt)


def state_badge(state: str) -> None:
    """The state of a run or a forecast: colour, icon and word."""
    colour, icon = STATE_LOOK[state]
    st.badge(state_word(state), icon=icon, color=colour)  # type: ignore[arg-type]


def state_word(state: str) -> str:
    """What a state is called on a page."""
    return STATE_WORDS.get(state, state).capitalize()


def grade_badge(grade: str) -> None:
    """The quality of a dataset: colour, icon and word."""
    colour, icon = GRADE_LOOK[grade]
    st.badge(f"Quality {grade}", icon=icon, color=colour)  # type: ignore[arg-type]


def severity_icon(severity: str) -> str:
    """The icon of a finding, as Markdown."""
    return SEVERITY_LOOK[severity]


def time_left(progress: Progress) -> str | None:
    """How long a run still takes, and what of that is not known; None without a pace."""
    if progress.eta_seconds is None:
        return None
    left = f"{fmt.duration(progress.eta_seconds)} left"
    if progress.stage_only:
        return f"{left} in the tokenizer stage, the predictor's time is not measured yet"
    return left


def toast_ended(run: Run) -> None:
    """Says in passing that a run is over, on whatever page."""
    icon = STATE_LOOK[run.state][1]
    st.toast(f"{fmt.plain(run.name)}: {state_word(run.state).lower()}", icon=icon, duration="long")


def empty(message: str, button: str, *, icon: str, key: str) -> bool:
    """An empty page says what to do and does it: True on the click."""
    with st.container(border=True, horizontal_alignment="center", gap="small"):
        st.markdown(message, width="content")
        return st.button(button, icon=icon, type="primary", key=key)


def offer_sample(store: Store, message: str) -> None:
    """Stands for a page that needs bars while there are none; one click opens a sample."""
    if empty(
        message,
        "Open the S&P 500 sample",
        icon=":material/candlestick_chart:",
        key="empty-sample",
    ):
        with problems():
            st.query_params["dataset"] = datasets.add_sample(store, "sp500").id
            st.rerun()


def confirm(title: str, body: str, button: str, action: Callable[[], None]) -> None:
    """Asks before something is lost. `action` runs on the button, then the page is redrawn."""

    def act() -> None:
        st.session_state.pop("confirm-problem", None)
        try:
            action()
        except (ServiceError, DataError, BundleError) as problem:
            st.session_state["confirm-problem"] = str(problem)

    @st.dialog(title)
    def ask() -> None:
        st.markdown(body)
        with st.container(horizontal=True, horizontal_alignment="right"):
            if st.button("Keep", key="confirm-no"):
                st.rerun()
            icon = ":material/delete:"
            done = st.button(button, type="primary", icon=icon, on_click=act, key="confirm-yes")
        if not done:
            return
        if problem := st.session_state.pop("confirm-problem", None):
            show_problem(problem)
        else:
            st.rerun()

    ask()


def listed_users(users: Sequence[str]) -> str:
    """What goes with something that is deleted, as a list to follow the question."""
    if not users:
        return ""
    lines = "\n".join(f"- {fmt.plain(user)}" for user in users)
    return f"\n\nThese use it and will be deleted with it:\n{lines}"


def selected_row(event: Any, ids: Sequence[str]) -> str | None:
    """The id of the row chosen in a table."""
    rows = event.selection.rows
    return ids[rows[0]] if rows and rows[0] < len(ids) else None


def local_time(value: datetime | None) -> str:
    """A moment of the workbench (not of the data) in the zone of the browser."""
    return fmt.moment(value, st.context.timezone)


def ago(value: datetime | None) -> str:
    """How long ago something of the workbench happened."""
    return fmt.ago(value, datetime.now(UTC))


def facts(rows: dict[str, str], *, columns: int = 2) -> None:
    """Names and values in quiet columns; a value in backticks is shown monospaced."""
    items = "".join(
        f"<div><dt>{html.escape(name)}</dt><dd>{_value(value)}</dd></div>"
        for name, value in rows.items()
    )
    st.html(f'<dl class="facts" style="columns: {columns}">{items}</dl>')


def _value(text: str) -> str:
    if len(text) > 2 and text[0] == text[-1] == "`":
        return f"<code>{html.escape(text[1:-1])}</code>"
    return html.escape(text)


def status_line(status: Status) -> None:
    """Device, memory, work and version, at the foot of the sidebar."""
    work = f"{status.running} running, {status.queued} queued"
    memory = f"{status.memory_used_gb:.1f} of {status.memory_total_gb:.0f} GB"
    with st.container(key="status-line"):
        st.caption(f"{status.device} · {memory}  \n{work} · v{status.version}")
