"""Text -> the layout of its table: delimiter, header or none, and what each column is."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from kronos_core.data.bars import PRICES, DataError
from kronos_core.data.choices import ReadingChoices
from kronos_core.data.mapping import (
    BINANCE,
    HISTDATA,
    METATRADER_4,
    NUMBERS,
    TICKER_TABLE,
    WITHOUT_TITLES,
    Dialect,
    Roles,
    assign,
    check_roles,
    dialect_of,
    normalised,
)

DELIMITERS = (",", ";", "\t", "|")
MAX_COLUMNS = 1000
MAX_COLUMNS_OF_TICKERS = 10_000
_MAX_LINE = 1 << 17
_HEAD_BYTES = 1 << 18
_HEAD_LINES = 200
_PREAMBLE = 20  # lines in which the table must begin
PLAIN_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?inf(inity)?", re.IGNORECASE)
_NUMBER_LIKE = re.compile(r"[+-]?[\d.,]*\d[\d.,]*([eE][+-]?\d+)?")
_TIME_LIKE = re.compile(
    r"\d{9,19}(\.\d+)?|(18|19|20|21)\d{6}(\d{4}|\d{6})?(?!\d).*|\d{4}[-/.]\d{1,2}[-/.]\d{1,2}.*|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}.*"
)
_CLOCK_LIKE = re.compile(r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?")
_UNIX_MS = re.compile(r"\d{12,13}|\d{15,16}")  # or µs

Line = tuple[int, str]  # number from 1, text


class NoTableError(DataError):
    """There is nothing like a table of bars."""


@dataclass(frozen=True, slots=True)
class Layout:
    """titles: of every column; header_line: the line they stand in, 0 without a header.

    skip: how many lines stand before the first bar. tickers: (symbol or None, roles) for each
    series that stands side by side in the table. head: the first rows as text.
    """

    titles: tuple[str, ...]
    header_line: int
    skip: int
    delimiter: str
    tickers: tuple[tuple[str | None, Roles], ...]
    dialect: Dialect
    head: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def used(self) -> dict[int, str]:
        """Position -> role, for every column that is used."""
        return {at: role for _, roles in reversed(self.tickers) for role, at in roles.items()}

    @property
    def numbers(self) -> tuple[int, ...]:
        """The positions of the columns that hold numbers."""
        return tuple(at for at, role in self.used.items() if role in NUMBERS)

    def title(self, at: int) -> str:
        """The title of a column for messages."""
        return self.titles[at].strip() or f"{at + 1} (unnamed)"


def find_layout(body: bytes, choices: ReadingChoices, delimiter: str | None = None) -> Layout:
    """The layout of a table in UTF-8 text.

    delimiter: known already. Raises NoTableError where there is no table, DataError where it lacks
    a column or is too wide.
    """
    lines = _head_lines(body)
    layout = _best_layout(lines, choices, choices.delimiter or delimiter)
    rows = [cells for _, cells in _split(_after(lines, layout.skip), layout.delimiter)]
    width = len(layout.titles)
    if (
        layout.header_line
        and rows
        and all(len(row) == width + 1 and not row[-1].strip() for row in rows)
    ):
        layout = replace(layout, titles=(*layout.titles, ""))  # every line ends with a delimiter
    skipped = [line for line in lines if line[0] < (layout.header_line or layout.skip + 1)]
    notes = [
        f'Line {number} stands before the table and was skipped: "{text.strip()[:60]}".'
        for number, text in skipped
        if not text.lower().startswith("sep=")
    ]
    return replace(layout, head=tuple(map(tuple, rows)), notes=(*layout.notes, *notes))


def _head_lines(body: bytes) -> list[Line]:
    """The first lines that are not blank, with their numbers as in an editor."""
    lines = re.split(rb"\r\n|\n|\r", body[:_HEAD_BYTES])
    if len(body) > _HEAD_BYTES and len(lines) > 1:
        lines.pop()  # cut off somewhere within
    found: list[Line] = []
    for number, line in enumerate(lines, 1):
        if len(line) > _MAX_LINE:
            if not found:
                raise DataError(
                    f"Line {number} is too long for a header line. This is no table of bars."
                )
            break
        if line.strip():
            found.append((number, line.decode("utf-8", errors="replace")))
        if len(found) == _HEAD_LINES:
            break
    if not found:
        raise NoTableError("The file is empty. Export the bars again, with a header line.")
    return found


def _after(lines: Sequence[Line], skip: int) -> list[Line]:
    return [line for line in lines if line[0] > skip]


def _split(lines: Sequence[Line], delimiter: str) -> list[tuple[int, list[str]]]:
    rows = []
    for number, text in lines:
        try:
            rows.append((number, next(csv.reader([text], delimiter=delimiter), [])))
        except csv.Error:
            rows.append((number, [text]))
    return rows


def _best_layout(lines: list[Line], choices: ReadingChoices, delimiter: str | None) -> Layout:
    delimiters = (delimiter,) if delimiter else DELIMITERS
    if found := _try_delimiters(lines, choices, delimiters):
        return found
    if delimiter is None and (other := _unusual_delimiter(lines)):
        try:
            if found := _try_delimiters(lines, choices, (other,)):
                return found
        except DataError:
            pass  # the message about the usual delimiters says more
    raise _no_table(lines)


def _try_delimiters(
    lines: list[Line], choices: ReadingChoices, delimiters: Sequence[str]
) -> Layout | None:
    tables = {delimiter: _split(lines[:_HEAD_LINES], delimiter) for delimiter in delimiters}
    if choices.header_line is None:
        for delimiter, rows in tables.items():
            if (layout := _table_of_tickers(rows, delimiter)) is not None:
                return layout
    headed = [
        layout
        for delimiter, rows in tables.items()
        for layout in _headed_layouts(rows, delimiter, choices)
    ]
    best = max(headed, key=_completeness, default=None)
    if best is not None and _known_numbers(best) and choices.header_line != 0:
        _check_width(best.header_line, len(best.titles))
        check_roles(best.titles, best.tickers[0][1], f"Line {best.header_line}")
        return best
    if choices.header_line:
        raise DataError(
            f"Line {choices.header_line} holds no known column titles. Choose the line of the "
            "header, or 0 for none, and say which column is which."
        )
    bare = [_bare_layout(rows, delimiter, choices) for delimiter, rows in tables.items()]
    return max(
        (layout for layout in bare if layout is not None),
        key=lambda layout: len(layout.titles),
        default=None,
    )


def _unusual_delimiter(lines: list[Line]) -> str | None:
    import clevercsv  # rarely needed, and slow to import

    sample = "\n".join(text[:500] for _, text in lines[:30])
    try:
        found = clevercsv.Detector().detect(sample, delimiters=[" ", ":", "^", "~", "#", "&", "/"])
    except (clevercsv.exceptions.Error, ValueError, IndexError):
        return None
    return (found.delimiter or None) if found is not None else None


def _headed_layouts(
    rows: list[tuple[int, list[str]]], delimiter: str, choices: ReadingChoices
) -> list[Layout]:
    if choices.header_line is None:
        candidates = rows[:_PREAMBLE]
    else:
        candidates = [row for row in rows if row[0] == choices.header_line]
    layouts = []
    for number, titles in candidates:
        # A chosen column must be there only in the line that turns out to be the header.
        plain = assign(titles, replace(choices, columns=None))
        roles = plain
        if choices.columns:
            try:
                roles = assign(titles, choices)
            except DataError:
                if choices.header_line is not None or _is_complete(plain):
                    raise
                continue
        layouts.append(
            Layout(tuple(titles), number, number, delimiter, ((None, roles),), dialect_of(titles))
        )
    return layouts


def _is_complete(roles: Roles) -> bool:
    return all(role in roles for role in ("timestamps", *PRICES))


def _completeness(layout: Layout) -> tuple[bool, int, int, int]:
    roles = layout.tickers[0][1]
    return _is_complete(roles), len(roles), len(layout.titles), -layout.header_line


def _known_numbers(layout: Layout) -> bool:
    """Whether the line names a number column; a lone unnamed or date column may be a value."""
    return any(role in NUMBERS for role in layout.tickers[0][1])


def _check_width(number: int, columns: int) -> None:
    if columns > MAX_COLUMNS:
        raise DataError(
            f"Line {number} has {columns:,} columns, more than {MAX_COLUMNS:,}. "
            "Keep the columns of one instrument."
        )


def _table_of_tickers(rows: list[tuple[int, list[str]]], delimiter: str) -> Layout | None:
    """The table with tickers side by side that yfinance saves: two or three lines of titles."""
    for (number, upper), (after, lower) in pairwise(rows[: _PREAMBLE + 1]):
        if not 5 <= len(upper) == len(lower) or after != number + 1:
            continue
        fields, symbols = upper, lower
        if not _all_fields(fields):
            fields, symbols = lower, upper
        if _all_fields(fields) and not any(
            _NUMBER_LIKE.fullmatch(cell.strip()) and "." in cell for cell in symbols[1:]
        ):
            index = next((row for row in rows if row[0] == after + 1), None)
            named = index is not None and index[1][0].strip() and not any(index[1][1:])
            if (
                named
                or normalised(upper[0]) in ("price", "ticker")
                or normalised(lower[0]) in ("ticker", "price")
            ):
                return _tickers_layout(number, after + bool(named), fields, symbols, delimiter)
    return None


def _all_fields(cells: Sequence[str]) -> bool:
    roles = [assign(["timestamps", cell], ReadingChoices()) for cell in set(cells[1:])]
    return len(roles) >= 4 and sum(len(role) > 1 for role in roles) >= 4


def _tickers_layout(
    number: int, skip: int, fields: Sequence[str], symbols: Sequence[str], delimiter: str
) -> Layout:
    if len(fields) > MAX_COLUMNS_OF_TICKERS:
        raise DataError(
            f"Line {number} names {len(fields):,} columns, more than {MAX_COLUMNS_OF_TICKERS:,}. "
            "Save fewer tickers in one file."
        )
    columns: dict[str, list[int]] = {}
    for at, symbol in enumerate(symbols[1:], 1):
        columns.setdefault(symbol.strip(), []).append(at)
    tickers = []
    for symbol, places in columns.items():
        found = assign(["timestamps", *(fields[at] for at in places)], ReadingChoices())
        roles = {role: places[at - 1] if at else 0 for role, at in found.items()}
        missing = [role for role in PRICES if role not in roles]
        if missing:
            raise DataError(
                f"Line {number}: {symbol or 'one ticker'} lacks the column {', '.join(missing)}. "
                "Save all fields of each ticker."
            )
        tickers.append((symbol or None, roles))
    titles = (
        "Date",
        *(f"{field} {symbol}" for field, symbol in zip(fields[1:], symbols[1:], strict=True)),
    )
    return Layout(titles, number, skip, delimiter, tuple(tickers), TICKER_TABLE)


def _bare_layout(
    rows: list[tuple[int, list[str]]], delimiter: str, choices: ReadingChoices
) -> Layout | None:
    """A table without titles: a time, perhaps a time of day, then numbers."""
    first = next((at for at, (_, cells) in enumerate(rows[:_PREAMBLE]) if _is_bar(cells)), None)
    if first is None:
        return None
    number, cells = rows[first]
    data = [row for _, row in rows[first:] if len(row) == len(cells) and _is_bar(row)]
    if len(data) * 2 < len(rows[first:]):
        return None
    _check_width(number, len(cells))
    if choices.header_line != 0:
        _check_unknown_titles(rows[:first], cells)
    titles = tuple(f"Column {at}" for at in range(1, len(cells) + 1))
    roles, dialect = _roles_by_place(data, delimiter)
    if choices.columns:
        chosen = assign(titles, choices)
        kept = {
            role: at
            for role, at in roles.items()
            if role not in choices.columns and at not in chosen.values()
        }
        roles = {**kept, **chosen}
    check_roles(titles, roles, f"Line {number}")
    if not choices.columns:
        _check_order_of_prices(data, roles, number)
    note = "There is no header; the columns are taken by their places."
    return Layout(titles, 0, number - 1, delimiter, ((None, roles),), dialect, notes=(note,))


def _is_bar(cells: Sequence[str]) -> bool:
    values = [cell.strip() for cell in cells]
    if len(values) < 5 or not _TIME_LIKE.fullmatch(values[0]):
        return False
    start = 2 if _CLOCK_LIKE.fullmatch(values[1]) else 1
    numbers = values[start : start + 4]
    return len(numbers) == 4 and all(_NUMBER_LIKE.fullmatch(cell) for cell in numbers)


def _check_unknown_titles(before: list[tuple[int, list[str]]], cells: Sequence[str]) -> None:
    """A line of words as wide as the table names the columns, even in words not known here."""
    for number, words in before[-1:]:
        if len(words) == len(cells) and not any(_NUMBER_LIKE.fullmatch(word) for word in words):
            raise DataError(
                f"Line {number} names columns that are not known: {', '.join(words)[:200]}. Say "
                "which column is which, or name them timestamps, open, high, low, close, volume."
            )


def _roles_by_place(rows: list[list[str]], delimiter: str) -> tuple[Roles, Dialect]:
    cells = [cell.strip() for cell in rows[0]]
    roles: Roles = {"timestamps": 0}
    start = 1
    if _CLOCK_LIKE.fullmatch(cells[1]):
        roles["time of day"], start = 1, 2
    roles |= {role: start + at for at, role in enumerate(PRICES)}
    count = len([cell for cell in cells[start + 4 :] if cell])
    if count:
        roles["volume"] = start + 4
    if len(cells) >= 11 and _UNIX_MS.fullmatch(cells[0]) and _UNIX_MS.fullmatch(cells[6]):
        return {**roles, "amount": 7}, BINANCE
    if count > 1 and _is_amount(rows, start):
        roles["amount"] = start + 5
    if start == 2 and cells[0][4:5] == ".":
        return roles, METATRADER_4
    if re.fullmatch(r"\d{8} \d{6}", cells[0]) and delimiter == ";":
        return roles, HISTDATA
    return roles, WITHOUT_TITLES


def _is_amount(rows: list[list[str]], start: int) -> bool:
    """Whether the column after the volume is volume (or lots of 100) × a price of the bar."""
    fits = {1.0: 0, 100.0: 0}
    for row in rows:
        low, high = _value(row[start + 2]), _value(row[start + 1])
        volume, amount = _value(row[start + 4]), _value(row[start + 5])
        for lot in fits:
            fits[lot] += low * volume * lot * 0.99 <= amount <= high * volume * lot * 1.01
    return max(fits.values()) >= 0.9 * len(rows)


def _check_order_of_prices(rows: list[list[str]], roles: Roles, number: int) -> None:
    good = 0
    for row in rows:
        opened, high, low, close = (_value(row[roles[role]]) for role in PRICES)
        good += not (high < max(opened, close) or low > min(opened, close))
    if good < 0.5 * len(rows):
        raise DataError(
            f"Line {number}: the columns have no titles and are not in the order open, high, low, "
            "close. Add a header line, or say which column is which."
        )


def _value(cell: str) -> float:
    try:
        return float(cell.strip().replace(",", "."))
    except ValueError:
        return float("nan")


def _no_table(lines: list[Line]) -> NoTableError:
    text = lines[0][1].strip()
    if text.startswith("<"):
        return NoTableError(
            "This is no table of bars but a web page. Download the file itself, not its page."
        )
    if len(lines) <= 2 and re.search(r"[A-Za-z]{3}", text) and not re.search(r"[;\t|]", text):
        return NoTableError(
            f'This is no table of bars; the file holds only a message: "{text[:200]}". Such text '
            "comes in place of the bars when a site refuses a download; try again later."
        )
    if re.match(r"[^,;\t|]*\d[^,;\t|]*([,;\t|]\s*[\d.]+){4}", text):
        return NoTableError(
            f"Line {lines[0][0]} holds values, not column names. Add a header line such as "
            "timestamps,open,high,low,close,volume."
        )
    return NoTableError(
        "This is no table of bars: no column names were found. The first line must name the "
        "columns, for example timestamps,open,high,low,close,volume."
    )
