"""The calendar that counts for bars, and the report on them, before and after they are stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from app.services.errors import ServiceError
from kronos_core.data import quality
from kronos_core.data.bars import DataError, Series
from kronos_core.data.calendars import Calendar, infer, recognise
from kronos_core.data.findings import QualityReport

CalendarOrigin = Literal["chosen", "recognised", "inferred"]
_DAY = pd.Timedelta(days=1)
_RECENT = 5_000
_FITS = 0.98  # of the recent bars; fewer come from longer hours than the exchange's own


def calendar_for(
    series: Series, chosen: Mapping[str, Any] | None = None
) -> tuple[Calendar, CalendarOrigin]:
    """The calendar that counts for a series, and where it comes from.

    The chosen one (as `Calendar.to_dict` gives it); else the one that the symbol points to, if the
    bars lie in its hours; else the one that the bars themselves show. ServiceError that names the
    field for a chosen calendar that makes no sense.
    """
    if chosen is not None:
        with explained():
            return Calendar.from_dict(chosen), "chosen"
    stamps = pd.DatetimeIndex(series.frame["timestamps"])
    known = recognise(series.symbol, series.timezone)
    if known is not None and _fits(known, stamps, series.interval):
        return known, "recognised"
    return infer(stamps, series.timezone), "inferred"


@dataclass(frozen=True, kw_only=True, slots=True)
class Upcoming:
    """A calendar, where it comes from, the stamps that it puts after a series' last bar (in the
    series' zone), and what it assumes about them."""

    calendar: Calendar
    origin: CalendarOrigin
    stamps: pd.DatetimeIndex
    remark: str | None


def upcoming(series: Series, chosen: Mapping[str, Any] | None = None, count: int = 10) -> Upcoming:
    """The next bars that would be forecast. ServiceError for a calendar that makes no sense."""
    calendar, origin = calendar_for(series, chosen)
    past = pd.DatetimeIndex(series.frame["timestamps"]).tz_convert(series.timezone)
    with explained():
        stamps = calendar.future(past, count)
    return Upcoming(calendar=calendar, origin=origin, stamps=stamps, remark=calendar.remark(stamps))


def report_on(series: Series, chosen: Mapping[str, Any] | None = None) -> QualityReport:
    """The report on a series with the calendar that counts for it."""
    return quality.report(series, calendar_for(series, chosen)[0])


@contextmanager
def explained() -> Iterator[None]:
    """What the engine refuses is a message for the person in front of the page."""
    try:
        yield
    except DataError:
        raise
    except ValueError as error:
        raise ServiceError(str(error)) from error


def _fits(calendar: Calendar, stamps: pd.DatetimeIndex, interval: pd.Timedelta) -> bool:
    if interval > _DAY:  # a month may begin on a closed day
        return True
    return float(calendar.is_open(stamps[-_RECENT:], interval).mean()) >= _FITS
