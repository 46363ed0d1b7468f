"""Files -> bars: a file in any dialect becomes series, or an error that names the place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from kronos_core.data.bars import DataError, Series
from kronos_core.data.choices import (
    DATE_ORDERS,
    Alternative,
    AmbiguityError,
    ReadingChoices,
)
from kronos_core.data.containers import Part, open_parts
from kronos_core.data.decoding import to_utf8
from kronos_core.data.layout import Layout, NoTableError, find_layout
from kronos_core.data.mapping import TICKER_TABLE, Roles, assign, check_roles, dialect_of
from kronos_core.data.series_of import Columns, assemble, columns_of
from kronos_core.data.stamps import AmbiguousStampError, StampError, Stamps, parse_stamps
from kronos_core.data.tables import Grid, read_text, with_numbers

_HEAD_ROWS = 8
_SAVE = "Save them as text or as Unix time."


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """How one table was read, for a preview before anything is stored.

    name: the archive member or sheet it comes from, "" for the file itself.
    dialect: the program or site that writes so, or what kind of table it is.
    choices: every choice as it was made; handed back as `mapping` it gives the same series.
    columns: the title of each column -> what it is used as, "" for not at all.
    head: the first rows as they stand in the file, as text under their titles.
    series: one for each symbol. findings: all of theirs, each once.
    alternatives: other ways to read the file that make sense for it.
    """

    name: str
    dialect: str
    choices: ReadingChoices
    columns: dict[str, str]
    head: pd.DataFrame
    series: tuple[Series, ...]
    findings: tuple[str, ...]
    alternatives: tuple[Alternative, ...]


def read_bars(
    source: str | Path | bytes, name: str | None = None, mapping: ReadingChoices | None = None
) -> list[Series]:
    """Read a file (a path or its content) into one series for each symbol in it.

    Read are CSV and other delimited text in the dialects of many programs, JSON, Excel, Parquet and
    Feather, also within .gz and .zip. A time, open, high, low and close are needed; volume and
    amount are optional. Naive times are taken as UTC unless a time zone is chosen. Rows in another
    order are sorted and repeated identical rows dropped, both with a finding.

    mapping: choices that replace what would be detected. name: the file's name for messages.
    Raises DataError with the line (as an editor counts), the column and the remedy; AmbiguityError,
    which is one, when two readings fit: its `readings` hold the choices to select from.
    """
    return [series for reading in inspect_bars(source, name, mapping) for series in reading.series]


def inspect_bars(
    source: str | Path | bytes, name: str | None = None, mapping: ReadingChoices | None = None
) -> list[Reading]:
    """What `read_bars` reads and how, one Reading for each table (archive member, sheet).

    Raises what `read_bars` raises.
    """
    content, label = _content(source, name)
    try:
        return _read(content, mapping or ReadingChoices())
    except DataError as error:
        if label:
            error.args = (f"{label}: {error}",)
        raise


def _content(source: str | Path | bytes, name: str | None) -> tuple[bytes, str]:
    if isinstance(source, bytes):
        return source, name or ""
    path = Path(source)
    try:
        return path.read_bytes(), name or path.name
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{path.name}: cannot be opened ({reason}).") from error


def _read(content: bytes, choices: ReadingChoices) -> list[Reading]:
    parts = open_parts(content)
    readings: list[Reading] = []
    refused: list[NoTableError] = []
    for part in parts:
        try:
            readings.append(_read_part(part, choices))
        except DataError as error:
            if part.name:
                error.args = (f"{part.name}: {error}",)
            if not isinstance(error, NoTableError):
                raise
            refused.append(error)  # a read-me beside the bars
    if not readings:
        raise refused[0]
    return readings


def _read_part(part: Part, choices: ReadingChoices) -> Reading:
    if isinstance(part.body, pa.Table):
        encoding, grid = None, _grid_of(part.body, part, choices)
    else:
        encoding, grid = _grid_of_text(part.body, part, choices)
    grid = _without_blank_rows(grid)
    stamps = _read_times(grid, choices)
    made = _choices_made(grid, stamps, encoding, choices)
    series = tuple(_series(grid, columns_of(grid, stamps, made.timezone), made))
    return Reading(
        name=part.name,
        dialect=grid.layout.dialect.name,
        choices=made,
        columns={
            grid.layout.title(at): grid.layout.used.get(at, "")
            for at in range(len(grid.layout.titles))
        },
        head=pd.DataFrame(
            [row for row in grid.layout.head if len(row) == len(grid.layout.titles)][:_HEAD_ROWS],
            columns=list(grid.layout.titles),
        ),
        series=series,
        findings=tuple(dict.fromkeys(note for one in series for note in one.findings)),
        alternatives=tuple(_alternatives(grid, stamps, made)),
    )


def _grid_of_text(body: bytes, part: Part, choices: ReadingChoices) -> tuple[str | None, Grid]:
    if not part.encoded:
        # Text that was written here has its own form, which choices about a file cannot change.
        own = replace(choices, encoding=None, delimiter=None)
        if part.headed is not None:
            own = replace(own, header_line=None if part.headed else 0)
        return None, read_text(body, find_layout(body, own, ","), own, part.place)
    body, encoding = to_utf8(body, choices.encoding)
    return encoding, read_text(body, find_layout(body, choices), choices, part.place)


def _grid_of(table: pa.Table, part: Part, choices: ReadingChoices) -> Grid:
    titles = tuple(table.column_names)
    roles = assign(titles, choices)
    check_roles(titles, roles, "The file")
    used = set(roles.values())
    head = zip(
        *(map(str, column.slice(0, _HEAD_ROWS).to_pylist()) for column in table.columns),
        strict=True,
    )
    layout = Layout(titles, 1, 0, "", ((None, roles),), dialect_of(titles), tuple(map(tuple, head)))
    cells = {at: _usable(table.column(at), at in layout.numbers) for at in used}
    return with_numbers(Grid(layout, cells, lambda row: part.place(row + 1)), choices)


def _usable(column: pa.ChunkedArray, number: bool) -> pa.ChunkedArray:
    """A typed column as numbers, or as timestamps or text."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return column.cast(pa.string()) if number else column
    if number and not pa.types.is_string(kind):
        return column.cast(pa.float64(), safe=False)
    return column.cast(pa.string())


def _without_blank_rows(grid: Grid) -> Grid:
    """Leave out rows without a time and without any number, such as lines of bare commas."""
    at = grid.layout.tickers[0][1]["timestamps"]
    if grid.cells[at].null_count == 0:
        return grid
    blank = pc.is_null(grid.cells[at])
    for number in grid.layout.numbers:
        blank = pc.and_(blank, pc.is_null(grid.cells[number]))
    kept = np.flatnonzero(~blank.to_numpy())
    if kept.size == 0:
        raise DataError("The table holds no values. Export it again, with the rows.")
    return grid if kept.size == len(grid) else grid.keep(kept)


def _read_times(grid: Grid, choices: ReadingChoices) -> Stamps:
    roles = grid.layout.tickers[0][1]
    at = roles["timestamps"]
    column = grid.cells[at]
    missing = pc.index(pc.is_valid(column), False).as_py()
    if missing >= 0:
        raise grid.fault(missing, at, "the value is missing. Fill it in or delete that line.")
    if pa.types.is_timestamp(column.type):
        return _of_timestamps(column)
    if "time of day" in roles:
        clock = pc.fill_null(grid.cells[roles["time of day"]], "")
        column = pc.binary_join_element_wise(column, clock, " ")
    try:
        return parse_stamps(
            column,
            date_order=choices.date_order,
            usual_order=grid.layout.dialect.date_order,
            doubt_monthly=grid.layout.dialect.doubt_monthly,
            epoch_unit=choices.epoch_unit,
        )
    except AmbiguousStampError as error:
        raise _date_question(grid, error, choices) from error
    except StampError as error:
        raise grid.fault(error.row, at, str(error)) from error


def _of_timestamps(column: pa.ChunkedArray) -> Stamps:
    zone = column.type.tz
    try:
        times = pd.DatetimeIndex(column.cast(pa.timestamp("ns", zone)).to_numpy(), tz="UTC")
        if zone not in (None, "UTC"):
            times.tz_convert(zone)
    except (pa.ArrowInvalid, ValueError, KeyError, OSError) as error:
        raise DataError(f"The times cannot be read ({str(error)[:100]}). {_SAVE}") from error
    return Stamps(times, zoned=zone is not None, zone=zone or "UTC")


def _date_question(
    grid: Grid, error: AmbiguousStampError, choices: ReadingChoices
) -> AmbiguityError:
    at = grid.layout.tickers[0][1]["timestamps"]
    start = max(0, error.row - 2)
    others = {
        grid.layout.title(place): column.slice(start, 5).to_pandas()
        for place, column in grid.cells.items()
    }
    readings = []
    for order, times in error.readings.items():
        shown = {**others, grid.layout.title(at): times[start : start + 5].tz_localize(None)}
        meaning, text = DATE_ORDERS[order].capitalize(), grid.cells[at][error.row].as_py()
        readings.append(
            Alternative(
                sentence=f"{meaning}: {text} is {_spoken(times[error.row])}.",
                choices=replace(choices, date_order=order),
                rows=pd.DataFrame(shown),
            )
        )
    return AmbiguityError(str(grid.fault(error.row, at, str(error))), tuple(readings))


def _spoken(time: pd.Timestamp) -> str:
    return f"{time.day} {time:%B %Y}"


def _choices_made(
    grid: Grid, stamps: Stamps, encoding: str | None, choices: ReadingChoices
) -> ReadingChoices:
    layout = grid.layout
    roles = layout.tickers[0][1]
    side_by_side = layout.dialect is TICKER_TABLE
    # Tickers side by side are found by their titles, a column without a title by its place.
    columns = {role: title for role, at in roles.items() if (title := layout.titles[at].strip())}
    own_lines = choices.header_line is None and encoding is not None and not side_by_side
    return replace(
        choices,
        columns=choices.columns if side_by_side else {**columns, **(choices.columns or {})},
        encoding=choices.encoding or encoding,
        delimiter=choices.delimiter or layout.delimiter or None,
        decimal=choices.decimal or grid.decimal,
        header_line=layout.header_line if own_lines else choices.header_line,
        date_order=choices.date_order or stamps.date_order,
        timezone=choices.timezone or (stamps.zone if stamps.zoned else None),
        prices=choices.prices or ("raw" if "adjusted close" in roles else None),
    )


def _series(grid: Grid, columns: Columns, choices: ReadingChoices) -> list[Series]:
    empty: list[str] = []
    found: list[Series] = []
    for symbol, roles in grid.layout.tickers:
        for name, rows in _by_symbol(grid, symbol, roles):
            series = assemble(grid, roles, columns, rows, name, choices)
            if series is None:
                empty.append(name or "the table")
            else:
                found.append(series)
    more = f" and {len(empty) - 5} more" if len(empty) > 5 else ""
    if not found:
        raise DataError(f"There is no price of {', '.join(empty[:5])}{more}. Export it again.")
    if empty:
        note = f"There is no price of {', '.join(empty[:5])}{more}; left out."
        found[0] = replace(found[0], findings=(*found[0].findings, note))
    return found


def _by_symbol(
    grid: Grid, symbol: str | None, roles: Roles
) -> Iterator[tuple[str | None, npt.NDArray[np.int64] | None]]:
    """(symbol, its rows), None for all rows."""
    if "symbol" not in roles:
        yield symbol, None
        return
    column = grid.cells[roles["symbol"]]
    if (row := pc.index(pc.is_valid(column), False).as_py()) >= 0:
        problem = "the value is missing. Fill it in or delete that line."
        raise grid.fault(row, roles["symbol"], problem)
    codes, symbols = pd.factorize(pc.utf8_trim_whitespace(column).to_pandas())
    if len(symbols) == 1:
        yield str(symbols[0]) or None, None
        return
    order = np.argsort(codes, kind="stable")
    for name, rows in zip(
        symbols, np.split(order, np.cumsum(np.bincount(codes))[:-1]), strict=True
    ):
        yield str(name), rows


def _alternatives(grid: Grid, stamps: Stamps, made: ReadingChoices) -> Iterator[Alternative]:
    for sentence, choices in _other_choices(grid, stamps, made):
        yield Alternative(sentence=sentence, choices=choices, rows=pd.DataFrame())


def _other_choices(
    grid: Grid, stamps: Stamps, made: ReadingChoices
) -> Iterator[tuple[str, ReadingChoices]]:
    dialect = grid.layout.dialect
    for order in stamps.other_orders:
        yield f"Read the dates {DATE_ORDERS[order]}.", replace(made, date_order=order)
    if "adjusted close" in grid.layout.tickers[0][1]:
        other: tuple[str, ReadingChoices] = (
            ("Keep the prices raw.", replace(made, prices="raw"))
            if made.prices == "adjusted"
            else (
                "Adjust the prices for splits and dividends by the adjusted close.",
                replace(made, prices="adjusted"),
            )
        )
        yield other
    if dialect.lots and made.volume_factor is None and made.amount_factor is None:
        volume, amount = dialect.lots
        also = f" and amount by {amount:g} (thousands)" if amount != 1 else ""
        sentence = f"Scale volume by {volume:g} (lots){also}."
        yield sentence, replace(made, volume_factor=volume, amount_factor=amount)
    if dialect.timezone and made.timezone is None:
        yield f"Take the times as {dialect.timezone}.", replace(made, timezone=dialect.timezone)
