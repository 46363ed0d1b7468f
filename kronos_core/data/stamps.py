"""Text -> instants: the ways in which files write a bar's time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from kronos_core.data.choices import DateOrder, EpochUnit
from kronos_core.data.unix_times import EpochError, from_floats, from_integers

_YEAR_FIRST = re.compile(r"\d{4}([-/.])\d{1,2}\1\d{1,2}(?P<rest>.*)", re.DOTALL)
_NUMERIC = re.compile(r"\d{1,2}([-/.])\d{1,2}\1(?P<year>\d{4}|\d{2})(?!\d)(?P<rest>.*)", re.DOTALL)
_CLOCK = re.compile(
    r"(?P<join>[ T]+)\d{1,2}:\d{2}(?P<second>:\d{2})?(?P<fraction>\.\d+)?"
    r"(?P<gap1> ?)(?P<half>[AaPp][Mm])?(?P<gap2> ?)(?P<zone>Z|[+-]\d{2}:?\d{2}|UTC|GMT)?"
)
_OFFSET = r"\s*[+-]\d{2}:?\d{2}$"
_PADDING = (
    (r"^(\d{4})-(\d)-", r"\1-0\2-"),
    (r"^(\d{4}-\d{2})-(\d)(\D|$)", r"\1-0\2\3"),
    (r"^(\d{4}-\d{2}-\d{2})[ T]+(\d):", r"\1T0\2:"),
)
_YEAR_FIRST_TO_ISO = ((r"^(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})", r"\1-\2-\3"), *_PADDING)
_CHINESE_TO_ISO = ((r"^(\d{4})年(\d{1,2})月(\d{1,2})日", r"\1-\2-\3"), *_PADDING)
_FOUR_DIGITS = r"^(\d{1,2})[-/.](\d{1,2})[-/.](\d{4})"
_TWO_DIGITS = r"^(\d{1,2})[-/.](\d{1,2})[-/.](\d{1,2})"
# Two digits of a year mean 1970 to 2069.
_CENTURY = ((r"^#([7-9]\d)-", r"19\1-"), (r"^#(\d\d)-", r"20\1-"))
_ORDERS: dict[DateOrder, tuple[str, str]] = {  # order -> strptime fields, groups as year-month-day
    "DMY": ("d m y", r"\3-\2-\1"),
    "MDY": ("m d y", r"\3-\1-\2"),
    "YMD": ("y m d", r"\1-\2-\3"),
}
_NAMED_DATES = ("%b %d, %Y", "%B %d, %Y", "%d %b %Y", "%d %B %Y", "%d-%b-%Y", "%d-%b-%y")
_COMPACT = tuple(
    ((r"^(\d{4})(\d\d)(\d\d)" + clock, r"\1-\2-\3" + iso),)
    for clock, iso in (
        (r"[ T]?(\d\d):?(\d\d):?(\d\d)$", r"T\4:\5:\6"),
        (r"[ T]?(\d\d):?(\d\d)$", r"T\4:\5"),
        (r" (\d):?(\d\d):?(\d\d)$", r"T0\4:\5:\6"),
        (r"( 0)?$", ""),
    )
)
_EARLIEST, _LATEST = (pd.Timestamp(day).value for day in ("1800-01-01", "2200-01-01"))
_REMEDY = "Write dates as YYYY-MM-DD or YYYY-MM-DD HH:MM, or as Unix time."
# Zones among which the one is looked for that a file's offsets from UTC belong to.
_ZONES = (
    "America/New_York",
    "America/Chicago",
    "America/Los_Angeles",
    "America/Sao_Paulo",
    "Europe/London",
    "Europe/Berlin",
    "Europe/Helsinki",
    "Europe/Moscow",
    "Asia/Kolkata",
    "Asia/Shanghai",
    "Asia/Tokyo",
    "Australia/Sydney",
    "Pacific/Auckland",
)


class StampError(ValueError):
    """A time that cannot be read. `row` counts the data rows from 0."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


class AmbiguousStampError(StampError):
    """Dates that fit more than one order. `readings` holds the instants of each."""

    def __init__(
        self, row: int, message: str, readings: Mapping[DateOrder, pd.DatetimeIndex]
    ) -> None:
        super().__init__(row, message)
        self.readings = readings


@dataclass(frozen=True, slots=True)
class Stamps:
    """times: instants in file order; naive times as if they were UTC.

    zoned: whether the text itself says the instant (by an offset or as Unix time); zone: the time
    zone that its offsets belong to; date_order: set for dates that are written in numbers with
    two ways to read them, and other_orders when those fit as well but are not usual in this file.
    """

    times: pd.DatetimeIndex
    zoned: bool
    zone: str = "UTC"
    date_order: DateOrder | None = None
    other_orders: tuple[DateOrder, ...] = ()


@dataclass(frozen=True, slots=True)
class _Way:
    """One way to read times: a strptime format or, after some rewriting, ISO 8601.

    ISO text is read many times faster than any other format, so dates are brought to it: by
    putting dashes in place of `mark`, which is quick, or by patterns with their replacements.
    """

    form: str = "ISO8601"
    mark: str = ""
    steps: tuple[tuple[str, str], ...] = ()

    def parse(self, texts: pa.ChunkedArray) -> pd.DatetimeIndex:
        """The instants of texts, NaT where this way does not fit; stops early when it does not."""
        head = self._parse(texts.slice(0, 1000))
        return head if len(texts) <= 1000 or head.hasnans else self._parse(texts)

    def _parse(self, texts: pa.ChunkedArray) -> pd.DatetimeIndex:
        if self.mark:
            texts = pc.replace_substring(texts, self.mark, "-", max_replacements=2)
        for pattern, new in self.steps:
            texts = pc.replace_substring_regex(texts, pattern, new, max_replacements=1)
        if self.form == "ISO8601" and (quick := _iso_times(texts)) is not None:
            return quick
        column = texts.to_pandas()
        return pd.DatetimeIndex(pd.to_datetime(column, format=self.form, utc=True, errors="coerce"))


def parse_stamps(
    texts: pa.ChunkedArray,
    *,
    date_order: DateOrder | None = None,
    usual_order: DateOrder | None = None,
    doubt_monthly: bool = False,
    epoch_unit: EpochUnit | None = None,
) -> Stamps:
    """Times as text, one a row, none missing -> instants; naive times count as UTC.

    Read are Unix time (s, ms, µs, ns by magnitude, or epoch_unit), YYYYMMDD, ISO 8601, year-first
    dates with other separators, dates with English month names, and dates such as 01/02/2024:
    by date_order, or the one order that fits all rows, or usual_order if that is among them; with
    doubt_monthly it is not when another order makes every date the first of a month.

    Raises StampError with the first row that does not fit, AmbiguousStampError when orders differ.
    """
    texts = pc.utf8_trim_whitespace(texts)
    first = texts[0].as_py()
    order: DateOrder | None = None
    others: tuple[DateOrder, ...] = ()
    if re.fullmatch(r"-?\d+(\.\d+)?", first):
        return _of_numbers(texts, epoch_unit)
    if match := _YEAR_FIRST.fullmatch(first):
        forms = _with_clock(match[1].join(("%Y", "%m", "%d")), match["rest"])
        iso = [_Way(mark=match[1].strip("-")), _Way(steps=_YEAR_FIRST_TO_ISO)]
        times = _first_fit(texts, [*iso, *map(_Way, forms)])
    elif match := _NUMERIC.fullmatch(first):
        usual = (usual_order, doubt_monthly)
        times, order, others = _of_numeric_dates(texts, match, date_order, usual)
    else:
        dates = [form for date in _NAMED_DATES for form in (date, *_named_with_clock(date, first))]
        rewritten = [_Way(steps=steps) for steps in (*_COMPACT[:3], _CHINESE_TO_ISO)]
        times = _first_fit(texts, [*rewritten, *map(_Way, dates)])
    clock = _CLOCK.search(first)
    zoned = bool(clock and clock["zone"])
    times = _in_range(times, texts)
    return Stamps(times, zoned, _zone_of(texts, times) if zoned else "UTC", order, others)


def _iso_times(texts: pa.ChunkedArray) -> pd.DatetimeIndex | None:
    """ISO 8601 by Arrow, which is fast but takes one kind of text only; None if it is not that."""
    for zone in (None, "UTC"):
        try:
            times = texts.cast(pa.timestamp("ns", zone))
        except pa.ArrowInvalid:
            continue
        return pd.DatetimeIndex(times.to_numpy(), tz="UTC")
    return None


def _of_numbers(texts: pa.ChunkedArray, unit: EpochUnit | None) -> Stamps:
    fits = pc.match_substring_regex(texts, r"^-?\d{1,19}(\.\d+)?$")
    if (row := pc.index(fits, False).as_py()) >= 0:
        raise StampError(row, f"{_quote(texts, row)} is not a time like the rows above. {_REMEDY}")
    if unit is None and (times := _of_digits(texts)) is not None:
        return Stamps(_in_range(times, texts), zoned=False)
    try:
        if pc.any(pc.match_substring(texts, ".")).as_py():
            times = from_floats(texts.cast(pa.float64()).to_numpy(), unit)
        else:
            times = from_integers(_integers(texts), unit)
    except EpochError as error:
        raise StampError(
            error.row, f"{_quote(texts, error.row)} is not a plausible Unix time. {_REMEDY}"
        ) from error
    return Stamps(_in_range(times, texts), zoned=True)


def _integers(texts: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    try:
        return np.asarray(texts.cast(pa.int64()).to_numpy())
    except pa.ArrowInvalid as error:
        row = int(np.argmax(np.abs(texts.cast(pa.float64()).to_numpy())))
        raise StampError(row, f"{_quote(texts, row)} is too large for a time. {_REMEDY}") from error


def _of_digits(texts: pa.ChunkedArray) -> pd.DatetimeIndex | None:
    """Dates such as 20240102 or 202401020930; None if the numbers are rather Unix times."""
    fits = pc.match_substring_regex(texts, r"^(18|19|20|21)\d{6}(\d{4}|\d{6})?$")
    if not pc.all(fits.slice(0, 1000)).as_py():
        return None
    day_only = pc.all(pc.equal(pc.utf8_length(texts), 8)).as_py()
    for steps in _COMPACT[3:] if day_only else _COMPACT[:2]:
        times = _Way(steps=steps).parse(texts)
        if not times.hasnans:
            return times
    if len(texts[0].as_py()) == 8:
        row = int(np.flatnonzero(times.isna())[0])
        raise StampError(row, f"{_quote(texts, row)} is not a readable time. {_REMEDY}")
    return None


def _in_range(times: pd.DatetimeIndex, texts: pa.ChunkedArray) -> pd.DatetimeIndex:
    try:
        times = times.as_unit("ns")
        values = times.asi8
        if values.min() >= _EARLIEST and values.max() < _LATEST:
            return times
        row = int(np.flatnonzero((values < _EARLIEST) | (values >= _LATEST))[0])
    except pd.errors.OutOfBoundsDatetime:
        years = np.asarray(times.year)
        row = int(np.flatnonzero((years < 1800) | (years >= 2200))[0])
    raise StampError(row, f"{_quote(texts, row)} is not a plausible time. {_REMEDY}")


def _first_fit(texts: pa.ChunkedArray, ways: list[_Way]) -> pd.DatetimeIndex:
    """Parse in the first way that fits every row, else name the row where the best one ends."""
    furthest = 0
    for way in ways:
        times = way.parse(texts)
        missing = np.flatnonzero(times.isna())
        if missing.size == 0:
            return times
        furthest = max(furthest, int(missing[0]))
    raise StampError(furthest, f"{_quote(texts, furthest)} is not a readable time. {_REMEDY}")


def _of_numeric_dates(
    texts: pa.ChunkedArray,
    match: re.Match[str],
    asked: DateOrder | None,
    preference: tuple[DateOrder | None, bool],
) -> tuple[pd.DatetimeIndex, DateOrder, tuple[DateOrder, ...]]:
    fitting: dict[DateOrder, pd.DatetimeIndex] = {}
    errors: list[StampError] = []
    for order in (asked,) if asked else _possible_orders(match):
        try:
            fitting[order] = _first_fit(texts, _ways_of(order, match))
        except StampError as error:
            errors.append(error)
    if not fitting:
        raise max(errors, key=lambda error: error.row)
    usual, doubt_monthly = preference
    doubted = doubt_monthly and _could_be_monthly(fitting, usual)
    if usual and usual in fitting and not doubted:
        others = tuple(order for order in fitting if (fitting[order] != fitting[usual]).any())
        return fitting[usual], usual, others
    (order, times), *rest = fitting.items()
    apart = [np.flatnonzero(times != other) for _, other in rest]
    if rows := [int(differ[0]) for differ in apart if differ.size]:
        raise _ambiguity(texts, min(rows), fitting)
    return times, order, ()


def _possible_orders(match: re.Match[str]) -> tuple[DateOrder, ...]:
    if match[1] == ".":  # with dots the day comes first wherever this form is in use
        return ("DMY",)
    if match[1] == "-" and len(match["year"]) == 2:
        return ("DMY", "MDY", "YMD")
    return ("DMY", "MDY")


def _ways_of(order: DateOrder, match: re.Match[str]) -> list[_Way]:
    fields, groups = _ORDERS[order]
    long = len(match["year"]) == 4 and order != "YMD"
    steps = (
        ((_FOUR_DIGITS, groups), *_PADDING)
        if long
        else ((_TWO_DIGITS, "#" + groups), *_CENTURY, *_PADDING)
    )
    date = match[1].join(
        "%" + (field.upper() if field == "y" and long else field) for field in fields.split()
    )
    return [_Way(steps=steps), *map(_Way, _with_clock(date, match["rest"]))]


def _could_be_monthly(
    fitting: Mapping[DateOrder, pd.DatetimeIndex], usual: DateOrder | None
) -> bool:
    """Whether another order makes every date the first of a month, as monthly bars are dated."""
    firsts = {order: bool((times.day == 1).all()) for order, times in fitting.items()}
    return any(first for order, first in firsts.items() if order != usual) and not all(
        firsts.values()
    )


def _ambiguity(
    texts: pa.ChunkedArray, row: int, fitting: Mapping[DateOrder, pd.DatetimeIndex]
) -> AmbiguousStampError:
    spoken = " or ".join(f"{times[row].day} {times[row]:%B %Y}" for times in fitting.values())
    return AmbiguousStampError(
        row,
        f"{_quote(texts, row)} can mean {spoken}, and no row decides which. Choose the order of "
        "the dates, or rewrite them as YYYY-MM-DD.",
        fitting,
    )


def _with_clock(date: str, rest: str) -> list[str]:
    """The format of date plus the clock time written in `rest`; empty when `rest` is neither."""
    if not rest.strip():
        return [date]
    clock = _CLOCK.fullmatch(rest)
    if clock is None:
        return []
    zone = clock["zone"]
    suffix = "" if zone is None else ("%z" if zone[0] in "Z+-" else zone)
    return [
        date
        + clock["join"]
        + ("%I" if clock["half"] else "%H")
        + ":%M"
        + (":%S" if clock["second"] else "")
        + (".%f" if clock["fraction"] else "")
        + clock["gap1"]
        + ("%p" if clock["half"] else "")
        + clock["gap2"]
        + suffix
    ]


def _named_with_clock(date: str, first: str) -> list[str]:
    clock = _CLOCK.search(first)
    return _with_clock(date, clock[0]) if clock else []


def _zone_of(texts: pa.ChunkedArray, times: pd.DatetimeIndex) -> str:
    """The zone whose wall clock the texts show: UTC, one of the usual ones, or a fixed offset."""
    wall = _iso_times(pc.replace_substring_regex(texts, _OFFSET, ""))
    if wall is None or (wall == times).all():
        return "UTC"
    for zone in _ZONES:
        if (times.tz_convert(zone).tz_localize(None) == wall.tz_localize(None)).all():
            return zone
    hours, rest = divmod(int(wall.asi8[0] - times.asi8[0]), 3_600_000_000_000)
    constant = bool((wall.asi8 - times.asi8 == wall.asi8[0] - times.asi8[0]).all())
    return f"Etc/GMT{-hours:+d}" if constant and rest == 0 and -14 <= -hours <= 12 else "UTC"


def _quote(texts: pa.ChunkedArray, row: int) -> str:
    text = str(texts[row].as_py())
    return f'"{text}"' if len(text) <= 40 else f'"{text[:40]}…"'
