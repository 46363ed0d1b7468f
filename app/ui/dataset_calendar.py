"""The Calendar tab: when the market is open, and which bars will be forecast next.

The same controls choose the calendar of a single forecast.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from app.services import dataset_care
from app.services.dataset_checks import Upcoming, calendar_for, upcoming
from app.storage.models import Dataset
from app.storage.session import Store
from app.ui import components, resources
from app.ui import format as fmt
from kronos_core.data.bars import Series
from kronos_core.data.calendars import CURRENCY_HOURS, Calendar
from kronos_core.data.exchanges import EXCHANGES

NEXT_BARS = 10
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
CHOSEN_WAYS = ("Exchange", "24/7", "24/5", "Own hours")
WAYS = ("Automatic", *CHOSEN_WAYS)
OF_DATASET = "The dataset's own"
WAY_OF_KIND = {"exchange": "Exchange", "24/7": "24/7", "24/5": "24/5", "sessions": "Own hours"}
OFFICE = (*["09:30-16:00"] * 5, "", "")
FORECAST_HELP = (
    "Stamps the bars after the last known one, in this forecast alone; known bars keep their times."
)
HOURS_HELP = "Like 09:30-16:00, or 09:30-12:00 13:00-16:00 with a break; empty is closed."


def show(store: Store, dataset: Dataset) -> None:
    """The whole tab: the calendar that is chosen here is shown before it is used."""
    series = resources.series(store, dataset)
    with components.problems():
        now = upcoming(series, dataset.calendar, NEXT_BARS)
        settings, preview = st.columns([3, 2], gap="large")
        with settings:
            st.markdown(_sentence(now, dataset))
            wanted = _choice(dataset, now.calendar)
            if wanted != dataset.calendar:
                _use(store, dataset, wanted)
        with preview:
            _next_bars(series, dataset, now, wanted)


def _sentence(now: Upcoming, dataset: Dataset) -> str:
    origins = {
        "chosen": "Chosen by you.",
        "recognised": f"Recognised by the symbol {dataset.symbol}.",
        "inferred": "Inferred from the times of the bars, so without holidays.",
    }
    return fmt.plain(f"{now.calendar.describe()} {origins[now.origin]}")


def _choice(dataset: Dataset, current: Calendar) -> dict[str, Any] | None:
    """The calendar that the controls say, as `Calendar.to_dict` gives it; None is automatic."""
    way = st.segmented_control(
        "Calendar",
        WAYS,
        default=WAY_OF_KIND[current.kind] if dataset.calendar else WAYS[0],
        required=True,
        key=f"calendar-way-{dataset.id}",
        help="Automatic goes by the symbol where it is known, else by the bars.",
    )
    if way == "Automatic":
        return None
    return _chosen(dataset, current, way, key=dataset.id)


def for_forecast(
    store: Store, dataset: Dataset, chosen: dict[str, Any] | None, *, key: str
) -> dict[str, Any] | None:
    """The calendar of one forecast, as ForecastRequest takes it; None is the dataset's own.

    chosen: what the controls start with.
    """
    ways = (OF_DATASET, *CHOSEN_WAYS)
    start = ways.index(WAY_OF_KIND[chosen["kind"]]) if chosen else 0
    way = st.selectbox("Calendar", ways, index=start, key=f"calendar-way-{key}", help=FORECAST_HELP)
    if way == OF_DATASET:
        return None
    if chosen is not None:
        current = Calendar.from_dict(chosen)
    else:
        current, _ = calendar_for(resources.series(store, dataset), dataset.calendar)
    return _chosen(dataset, current, way, key=key, days_a_row=2)


def _chosen(
    dataset: Dataset, current: Calendar, way: str, *, key: str, days_a_row: int = 4
) -> dict[str, Any]:
    """The calendar that the controls of one way say. current: what they start with."""
    if way == "Exchange":
        return _exchange(current, key)
    if way == "24/7":
        zone = current.timezone if current.kind == way else dataset.timezone
        return Calendar(kind="24/7", timezone=zone).to_dict()
    return _own_hours(dataset, current, way, key, days_a_row)


def _exchange(current: Calendar, key: str) -> dict[str, Any]:
    codes = list(EXCHANGES)
    code = st.selectbox(
        "Exchange",
        codes,
        index=codes.index(current.exchange) if current.exchange else 0,
        format_func=lambda code: f"{EXCHANGES[code].title} ({code})",
        key=f"calendar-exchange-{key}",
        help="With its holidays, half days and lunch breaks.",
    )
    closed = _closed(current, key)
    return {**Calendar(kind="exchange", exchange=code).to_dict(), "closed": closed}


def _own_hours(
    dataset: Dataset, current: Calendar, way: str, key: str, days_a_row: int
) -> dict[str, Any]:
    kind = "24/5" if way == "24/5" else "sessions"
    usual = CURRENCY_HOURS if kind == "24/5" else OFFICE
    hours = current.hours if current.kind == kind else usual
    zone = current.timezone if current.kind != "24/7" else dataset.timezone
    if kind == "24/5" and current.kind != kind:
        zone = "America/New_York"
    zones = list(dict.fromkeys((*fmt.zones(), zone)))
    zone = st.selectbox(
        "Time zone of the hours",
        zones,
        index=zones.index(zone),
        key=f"calendar-zone-{key}-{kind}",
    )
    typed = [
        column.text_input(
            DAYS[place], hours[place], key=f"calendar-{kind}-{DAYS[place]}-{key}", help=HOURS_HELP
        )
        for first in range(0, len(DAYS), days_a_row)
        for place, column in zip(range(first, len(DAYS)), st.columns(days_a_row), strict=False)
    ]
    closed = _closed(current, key)
    return {"kind": kind, "timezone": zone, "exchange": None, "hours": typed, "closed": closed}


def _closed(current: Calendar, key: str) -> list[str]:
    text = st.text_input(
        "Further closed days",
        ", ".join(current.closed),
        placeholder="2026-12-24, 2026-12-31",
        key=f"calendar-closed-{key}",
    )
    return sorted({day.strip() for day in text.split(",") if day.strip()})


def _use(store: Store, dataset: Dataset, wanted: dict[str, Any] | None) -> None:
    if st.button("Use this calendar", type="primary", icon=":material/check:", key="calendar-use"):
        with components.problems():
            dataset_care.set_calendar(store, dataset.id, wanted)
            st.rerun()


def _next_bars(
    series: Series, dataset: Dataset, now: Upcoming, wanted: dict[str, Any] | None
) -> None:
    shown = now if wanted == dataset.calendar else upcoming(series, wanted, NEXT_BARS)
    st.markdown(f"**Next {NEXT_BARS} bars that will be forecast**")
    if wanted != dataset.calendar:
        st.caption(f"With the calendar that is not in use yet: {fmt.plain(shown.calendar.title)}")
    seconds = dataset.interval_seconds
    frame = pd.DataFrame(
        {
            "Bar": range(1, len(shown.stamps) + 1),
            f"Time ({dataset.timezone})": [fmt.bar_time(stamp, seconds) for stamp in shown.stamps],
            "Weekday": [stamp.day_name() for stamp in shown.stamps],
        }
    )
    with st.container(key="next-bars"):
        st.table(frame, border="horizontal", hide_index=True, alt="The next bars")
    last = fmt.bar_moment(dataset.last.astimezone(fmt.zone(dataset.timezone)), seconds)
    st.caption(f"They follow the last bar, {last}.")
    if shown.remark:
        st.caption(f":material/info: {fmt.plain(shown.remark)}")
