"""Text -> instants: the ways in which files write a bar's time."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

_YEAR_FIRST = re.compile(r"\d{4}([-/.])\d{1,2}\1\d{1,2}(?P<rest>.*)", re.DOTALL)
_YEAR_LAST = re.compile(
    r"\d{1,2}([-/.])\d{1,2}\1(?P<year>\d{4}|\d{2})(?!\d)(?P<rest>.*)", re.DOTALL
)
_CLOCK = re.compile(
    r"(?P<join>[ T]+)\d{1,2}:\d{2}(?P<second>:\d{2})?(?P<fraction>\.\d+)?"
    r"(?P<gap1> ?)(?P<half>[AaPp][Mm])?(?P<gap2> ?)(?P<zone>Z|[+-]\d{2}:?\d{2}|UTC|GMT)?"
)
_YMD = r"^(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})"
_XYZ = r"^(\d{1,2})[-/.](\d{1,2})[-/.](\d{4}|\d{2})"
_PADDING = (
    (r"^(\d{4})-(\d)-", r"\1-0\2-"),
    (r"^(\d{4}-\d{2})-(\d)(\D|$)", r"\1-0\2\3"),
    (r"^(\d{4}-\d{2}-\d{2})[ T]+(\d):", r"\1T0\2:"),
)
_NAMED_DATES = ("%b %d, %Y", "%B %d, %Y", "%d %b %Y", "%d %B %Y", "%d-%b-%Y", "%d-%b-%y")
_COMPACT = ("%Y%m%d %H%M%S", "%Y%m%d %H%M", "%Y%m%d %H:%M:%S", "%Y%m%d %H:%M", "%Y%m%dT%H%M%S")
_UNITS = ((1e11, 1_000_000_000), (1e14, 1_000_000), (1e17, 1_000), (np.inf, 1))
_YEARS = (1900, 2199)
_REMEDY = "Write dates as YYYY-MM-DD or YYYY-MM-DD HH:MM, or as Unix time."


class StampError(ValueError):
    """A time that cannot be read. `row` counts the data rows from 0."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


@dataclass(frozen=True, slots=True)
class Stamps:
    """times: UTC instants in file order; zoned: whether the text itself carried an offset."""

    times: pd.DatetimeIndex
    zoned: bool


@dataclass(frozen=True, slots=True)
class _Way:
    """One way to read times: a strptime format or ISO8601, there after rewriting the date.

    ISO text is read many times faster than any other format, so dates are brought to it by
    replacing `pattern` with `order` and padding single digits.
    """

    form: str
    pattern: str = ""
    order: str = ""

    def parse(self, texts: pa.ChunkedArray) -> pd.DatetimeIndex:
        """The instants of texts, NaT where this way does not fit; stops early when it does not."""
        for part in (texts.slice(0, 1000), texts):
            column = self._rewritten(part).to_pandas()
            times = pd.to_datetime(column, format=self.form, utc=True, errors="coerce")
            if times.isna().any():
                break
        return pd.DatetimeIndex(times)

    def _rewritten(self, texts: pa.ChunkedArray) -> pa.ChunkedArray:
        for old, new in ((self.pattern, self.order), *_PADDING) if self.pattern else ():
            texts = pc.replace_substring_regex(texts, old, new, max_replacements=1)
        return texts


def parse_stamps(texts: pa.ChunkedArray) -> Stamps:
    """Times as text, one a row, none missing -> instants; naive times count as UTC.

    Read are Unix time (s, ms, µs, ns by magnitude), YYYYMMDD, ISO 8601, year-first dates with
    other separators, day- or month-first dates when the rows decide which, and dates with English
    month names. Raises StampError with the first row that does not fit.
    """
    texts = pc.utf8_trim_whitespace(texts)
    first = texts[0].as_py()
    if re.fullmatch(r"-?\d+(\.\d+)?", first):
        return Stamps(_in_range(_from_numbers(texts), texts), zoned=True)
    if match := _YEAR_FIRST.fullmatch(first):
        sep = match[1]
        forms = _with_clock(f"%Y{sep}%m{sep}%d", match["rest"])
        iso = [_Way("ISO8601"), _Way("ISO8601", _YMD, r"\1-\2-\3")]
        times = _first_fit(texts, [*iso, *map(_Way, forms)])
    elif match := _YEAR_LAST.fullmatch(first):
        times = _day_or_month_first(texts, match)
    else:
        dates = [form for date in _NAMED_DATES for form in (date, *_named_with_clock(date, first))]
        times = _first_fit(texts, [*map(_Way, _COMPACT), *map(_Way, dates)])
    clock = _CLOCK.search(first)
    return Stamps(_in_range(times, texts), zoned=bool(clock and clock["zone"]))


def _from_numbers(texts: pa.ChunkedArray) -> pd.DatetimeIndex:
    fits = pc.match_substring_regex(texts, r"^\d{1,19}(\.\d+)?$")
    if (row := pc.index(fits, False).as_py()) >= 0:
        raise StampError(row, f"{_quote(texts, row)} is not a time like the rows above. {_REMEDY}")
    if pc.any(pc.match_substring(texts, ".")).as_py():
        values = texts.cast(pa.float64()).to_numpy()
        _check_magnitude(values, texts)
        return _epoch_of_floats(values)
    try:
        whole = texts.cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid as error:
        row = int(np.argmax(texts.cast(pa.float64()).to_numpy()))
        raise StampError(row, f"{_quote(texts, row)} is too large for a time. {_REMEDY}") from error
    if np.all((whole > 19_000_000) & (whole < 22_000_000)):
        return _first_fit(texts, [_Way("%Y%m%d")])
    _check_magnitude(whole.astype(np.float64), texts)
    return pd.DatetimeIndex(whole * _multipliers(whole), tz="UTC")


def _epoch_of_floats(values: npt.NDArray[np.float64]) -> pd.DatetimeIndex:
    # A float64 holds present-day seconds to about a microsecond; finer digits would be noise.
    micros = np.round(values * (_multipliers(values) / 1000.0))
    return pd.DatetimeIndex(micros.astype(np.int64) * 1000, tz="UTC")


def _multipliers(values: npt.NDArray[np.int64] | npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    limits = np.array([limit for limit, _ in _UNITS[:-1]])
    factors = np.array([factor for _, factor in _UNITS], dtype=np.int64)
    return factors[np.searchsorted(limits, values, side="right")]


def _check_magnitude(values: npt.NDArray[np.float64], texts: pa.ChunkedArray) -> None:
    # Below 10^8 s (1973) a number is rather a counter or a part of a date.
    wrong = np.flatnonzero((values < 1e8) | (values * _multipliers(values) > 9.2e18))
    if wrong.size:
        row = int(wrong[0])
        raise StampError(row, f"{_quote(texts, row)} is not a plausible Unix time. {_REMEDY}")


def _in_range(times: pd.DatetimeIndex, texts: pa.ChunkedArray) -> pd.DatetimeIndex:
    years = np.asarray(times.year)
    wrong = np.flatnonzero((years < _YEARS[0]) | (years > _YEARS[1]))
    if wrong.size:
        row = int(wrong[0])
        raise StampError(row, f"{_quote(texts, row)} is not a plausible time. {_REMEDY}")
    return times.as_unit("ns")


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


def _day_or_month_first(texts: pa.ChunkedArray, match: re.Match[str]) -> pd.DatetimeIndex:
    sep = match[1]
    year = ("%Y", r"\3") if len(match["year"]) == 4 else ("%y", r"20\3")
    day_first, month_first = (
        [_Way("ISO8601", _XYZ, order), *map(_Way, _with_clock(date, match["rest"]))]
        for date, order in (
            (f"%d{sep}%m{sep}{year[0]}", rf"{year[1]}-\2-\1"),
            (f"%m{sep}%d{sep}{year[0]}", rf"{year[1]}-\1-\2"),
        )
    )
    if sep == ".":  # with dots the day comes first wherever this form is in use
        return _first_fit(texts, day_first)
    try:
        by_day = _first_fit(texts, day_first)
    except StampError:
        return _first_fit(texts, [*month_first, *day_first])
    try:
        by_month = _first_fit(texts, month_first)
    except StampError:
        return by_day
    differ = np.flatnonzero(by_day != by_month)
    if differ.size == 0:
        return by_day
    row = int(differ[0])
    raise StampError(
        row,
        f"{_quote(texts, row)} can mean {_spoken(by_day[row])} or {_spoken(by_month[row])}, and "
        "no row decides which. Rewrite the dates as YYYY-MM-DD.",
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


def _spoken(time: pd.Timestamp) -> str:
    return f"{time.day} {time:%B %Y}"


def _quote(texts: pa.ChunkedArray, row: int) -> str:
    text = str(texts[row].as_py())
    return f'"{text}"' if len(text) <= 40 else f'"{text[:40]}…"'
