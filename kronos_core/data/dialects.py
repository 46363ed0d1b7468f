"""Files -> bars: find the encoding, delimiter and columns, read the numbers, name what is wrong.

Reading goes through Arrow's CSV parser as a whole; only when something is wrong the file is walked
row by row to name the place. Nothing that is read is ever executed.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from kronos_core.data.bars import CHANNELS, PRICES, DataError, Series, make_series
from kronos_core.data.stamps import StampError, parse_stamps

DELIMITERS = (",", ";", "\t", "|")
MISSING = ("", "nan", "NaN", "NAN", "null", "NULL", "None", "NA", "N/A", "n/a", "#N/A", "-", "--")
MAX_COLUMNS = 1000
_MAX_HEADER = 1 << 16
_TIMES = (
    "timestamps timestamp datetime date_time open_time opentime gmt_time local_time utc_time "
    "unix unix_time unix_timestamp ts date trade_date time t day index unnamed:_0"
)
# The first name that a file has is taken. An unnamed first column is a saved index.
ALIASES: dict[str, tuple[str, ...]] = {
    "timestamps": (*_TIMES.split(), ""),
    "open": ("open", "o", "open_price", "opening_price"),
    "high": ("high", "h", "high_price", "max"),
    "low": ("low", "l", "low_price", "min"),
    "close": ("close", "c", "close_price", "closing_price", "close/last", "last", "price"),
    "volume": ("volume", "vol", "v", "tick_volume", "tickvol", "base_volume"),
    "amount": ("amount", "turnover", "quote_volume", "quote_asset_volume", "money"),
    "symbol": ("symbol", "ticker", "instrument", "ts_code"),
}
_CONTAINERS = {
    b"PK\x03\x04": "a ZIP archive or an Excel workbook",
    b"\x1f\x8b": "a gzip archive",
    b"PAR1": "a Parquet file",
    b"ARROW1": "a Feather file",
    b"%PDF": "a PDF document",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook",
    b"\x89PNG": "an image",
}
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?inf(inity)?", re.IGNORECASE)
_DECIMAL_COMMA = re.compile(rb"(?<![\d,])-?\d+,\d+(?![\d,])")


def read_bars(source: str | Path | bytes, name: str | None = None) -> list[Series]:
    """Read a CSV file (a path or its content) into one series per symbol.

    Needs a header with a time and open, high, low and close; volume and amount are optional, order
    and case of the columns do not matter. Naive times are taken as UTC. Rows in another order are
    sorted and repeated identical rows dropped, both with a finding.

    Raises DataError with the line (the header's own line counts, as in an editor), the column and
    the remedy. `name` is the file name shown in messages.
    """
    content, label = _content(source, name)
    try:
        return _read(content)
    except DataError as error:
        raise DataError(f"{label}: {error}" if label else str(error)) from error.__cause__


@dataclass(frozen=True, slots=True)
class _Table:
    body: bytes  # UTF-8, all lines
    header: tuple[str, ...]
    header_line: int  # from 1
    delimiter: str
    columns: dict[str, tuple[int, ...]]  # role -> positions (time may be two: date and time)
    decimal: str = "."

    def title(self, role: str) -> str:
        return self.header[self.columns[role][0]].strip() or "1 (unnamed)"


def _content(source: str | Path | bytes, name: str | None) -> tuple[bytes, str]:
    if isinstance(source, bytes):
        return source, name or ""
    path = Path(source)
    try:
        return path.read_bytes(), name or path.name
    except OSError as error:
        raise DataError(f"{path.name}: cannot be opened ({error.strerror}).") from error


def _read(content: bytes) -> list[Series]:
    table = _find_table(_to_utf8(content))
    data = _parse(table)
    _check_present(table, data)
    times, notes = _read_times(table, data)
    values = {role: data[role].to_numpy() for role in CHANNELS if role in table.columns}
    frame = pd.DataFrame({"timestamps": times, **values})
    notes += _column_notes(table)
    parts = _by_symbol(table, data)
    return [_assemble(table, frame, rows, symbol, notes) for symbol, rows in parts]


def _to_utf8(content: bytes) -> bytes:
    if not content.strip():
        raise DataError("The file is empty. Export the bars again, with a header line.")
    for magic, what in _CONTAINERS.items():
        if content.startswith(magic):
            raise DataError(f"This is {what}, not CSV text. Save or export the bars as CSV.")
    if content.startswith(codecs.BOM_UTF8):
        content = content[len(codecs.BOM_UTF8) :]
    elif content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        content = _decode_utf16(content)
    if b"\0" in content:
        raise DataError("The file is binary, not CSV text. Save or export the bars as CSV.")
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return content.decode("latin-1").encode("utf-8")
    return content


def _decode_utf16(content: bytes) -> bytes:
    try:
        return content.decode("utf-16").encode("utf-8")
    except UnicodeError as error:
        raise DataError(
            "The file starts like UTF-16 text but is damaged. Save it again as UTF-8."
        ) from error


def _find_table(body: bytes) -> _Table:
    line, start = 1, 0
    while (end := _line_end(body, start)) == start or not body[start:end].strip():
        start = end + (2 if body[end : end + 2] == b"\r\n" else 1)
        line += 1
        if start >= len(body):
            raise DataError("The file is empty. Export the bars again, with a header line.")
    if end - start > _MAX_HEADER:
        raise DataError(f"Line {line} is too long for a header line. This is no table of bars.")
    text = body[start:end].decode("utf-8")
    candidates = [_layout(body, text, line, delimiter) for delimiter in DELIMITERS]
    best = max(candidates, key=lambda table: (len(table.columns), len(table.header)))
    _check_layout(best)
    return replace(best, decimal=_decimal_of(best, body[end : end + _MAX_HEADER]))


def _line_end(body: bytes, start: int) -> int:
    ends = [at for at in (body.find(b"\n", start), body.find(b"\r", start)) if at >= 0]
    return min(ends, default=len(body))


def _layout(body: bytes, text: str, line: int, delimiter: str) -> _Table:
    try:
        header = tuple(next(csv.reader([text], delimiter=delimiter)))
    except csv.Error:
        header = (text,)
    columns: dict[str, tuple[int, ...]] = {}
    names = [re.sub(r"[\s_]+", "_", title.strip(" \t<>\"'").lower()) for title in header]
    for role, aliases in ALIASES.items():
        found = next((alias for alias in aliases if alias in names), None)
        # Without a name only a first column can be the saved index.
        if found is None or (found == "" and names[0] != ""):
            continue
        columns[role] = (names.index(found),)
        if found == "date" and "time" in names:
            columns[role] += (names.index("time"),)
    return _Table(body, header, line, delimiter, columns)


def _check_layout(table: _Table) -> None:
    shown = ", ".join(title.strip() for title in table.header[:12])
    where = f"Line {table.header_line}"
    known = [role for role in (*PRICES, "volume", "amount") if role in table.columns]
    if not known:
        if len(table.header) >= 5 and _NUMBER.fullmatch(table.header[1].strip()):
            raise DataError(
                f"{where} holds values, not column names. Add a header line such as "
                "timestamps,open,high,low,close,volume."
            )
        raise DataError(
            "This is no table of bars: no column names were found. The first line must name the "
            "columns, for example timestamps,open,high,low,close,volume."
        )
    absent = [role for role in ("timestamps", *PRICES) if role not in table.columns]
    if absent:
        raise DataError(
            f"{where}: missing column{'s' if len(absent) > 1 else ''} {', '.join(absent)}; found "
            f"{shown}. Add or rename the column{'s' if len(absent) > 1 else ''}."
        )
    if len(table.header) > MAX_COLUMNS:
        raise DataError(
            f"{where} names {len(table.header):,} columns, more than {MAX_COLUMNS:,}. "
            "Keep the columns of one instrument."
        )
    titles = [title.strip().lower() for title in table.header]
    for role, positions in table.columns.items():
        if titles.count(titles[positions[0]]) > 1:
            raise DataError(
                f"{where}: two columns are called {table.title(role)}. Remove or rename one."
            )


def _decimal_of(table: _Table, head: bytes) -> str:
    comma = table.delimiter != "," and _DECIMAL_COMMA.search(head)
    return "," if comma else "."


def _parse(table: _Table) -> dict[str, pa.ChunkedArray]:
    wanted = {str(at): role for role, places in table.columns.items() for at in places}
    types = {key: pa.float64() if wanted[key] in CHANNELS else pa.string() for key in wanted}
    csv_module = pyarrow.csv
    ragged: list[int] = []

    def on_ragged_row(row: pyarrow.csv.InvalidRow) -> str:
        if not row.text.strip():
            return "skip"
        ragged.append(row.actual_columns)
        return "error"

    try:
        data = csv_module.read_csv(
            pa.BufferReader(table.body),
            csv_module.ReadOptions(
                column_names=[str(at) for at in range(len(table.header))],
                skip_rows=table.header_line,
                block_size=1 << 22,
            ),
            csv_module.ParseOptions(
                delimiter=table.delimiter,
                invalid_row_handler=on_ragged_row,
            ),
            csv_module.ConvertOptions(
                include_columns=list(wanted),
                column_types=types,
                null_values=list(MISSING),
                strings_can_be_null=True,
                decimal_point=table.decimal,
            ),
        )
    except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
        raise _explained(table, error, bool(ragged)) from error
    if data.num_rows == 0:
        raise DataError("The file has a header line but no bars. Export it again, with the rows.")
    return {
        role: data[str(places[0])]
        if len(places) == 1
        else pc.binary_join_element_wise(*(data[str(at)] for at in places), " ")
        for role, places in table.columns.items()
    }


def _rows(table: _Table) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of the data rows, counted as Arrow counts them: blank lines are no rows."""
    text = io.TextIOWrapper(io.BytesIO(table.body), encoding="utf-8", newline="")
    for _ in range(table.header_line):
        text.readline()
    reader = csv.reader(text, delimiter=table.delimiter)
    for cells in reader:
        if len(cells) > 1 or "".join(cells).strip():
            yield table.header_line + reader.line_num, cells


def _line_of(table: _Table, row: int) -> int:
    for index, (line, _) in enumerate(_rows(table)):
        if index == row:
            return line
    raise DataError(f"Row {row + 1} of the table could not be found again. Save the file anew.")


def _explained(table: _Table, error: Exception, ragged: bool) -> DataError:
    """The first place that the parser cannot have read."""
    width = len(table.header)
    roles = [] if ragged else [role for role in CHANNELS if role in table.columns]
    numbers = [(role, table.columns[role][0]) for role in roles]
    try:
        for line, cells in _rows(table):
            if len(cells) != width:
                return DataError(
                    f"Line {line} has {len(cells)} value{'s' if len(cells) != 1 else ''}, the "
                    f"header has {width}. Correct or delete that line."
                )
            for role, at in numbers:
                cell = cells[at].strip()
                if cell not in MISSING and not _is_number(cell, table.decimal):
                    return DataError(
                        f'Line {line}, column {table.title(role)}: "{cell[:40]}" is not a number. '
                        "Correct it or delete that line."
                    )
    except csv.Error as problem:
        return DataError(f"The table cannot be read ({problem}). Save it again as plain CSV.")
    reason = str(error).splitlines()[0][:200]
    return DataError(f"The table cannot be read ({reason}). Save it again as plain CSV.")


def _is_number(cell: str, decimal: str) -> bool:
    if decimal == ",":
        cell = cell.replace(".", "x").replace(",", ".")
    return _NUMBER.fullmatch(cell) is not None


def _check_present(table: _Table, data: dict[str, pa.ChunkedArray]) -> None:
    """Every cell that is used holds a value, every number a finite one."""
    found: list[tuple[int, str]] = []
    for role, column in data.items():
        valid = pc.is_finite(column) if role in CHANNELS else pc.is_valid(column)
        row = pc.index(pc.fill_null(valid, False), False).as_py()
        if row >= 0:
            found.append((row, role))
    if not found:
        return
    row, role = min(found)
    value = data[role][row].as_py()
    problem = "the value is missing" if value is None else f"{value} is not a finite number"
    raise DataError(
        f"Line {_line_of(table, row)}, column {table.title(role)}: {problem}. "
        "Fill it in or delete that line."
    )


def _read_times(
    table: _Table, data: dict[str, pa.ChunkedArray]
) -> tuple[pd.DatetimeIndex, tuple[str, ...]]:
    try:
        stamps = parse_stamps(data["timestamps"])
    except StampError as error:
        line = _line_of(table, error.row)
        raise DataError(f"Line {line}, column {table.title('timestamps')}: {error}") from error
    daily = bool((stamps.times == stamps.times.normalize()).all())
    note = "Times carry no time zone and are taken as UTC."
    return stamps.times, () if daily or stamps.zoned else (note,)


def _column_notes(table: _Table) -> tuple[str, ...]:
    notes: list[str] = []
    if "volume" not in table.columns:
        notes.append("No volume column: volume and amount are 0.")
    elif "amount" not in table.columns:
        notes.append("No amount column: amount is volume × the mean of the four prices.")
    used = {at for places in table.columns.values() for at in places}
    unused = [title.strip() for at, title in enumerate(table.header) if at not in used]
    if unused := [title for title in unused if title]:
        more = f" and {len(unused) - 8} more" if len(unused) > 8 else ""
        notes.append(f"Columns not used: {', '.join(unused[:8])}{more}.")
    return tuple(notes)


def _by_symbol(
    table: _Table, data: dict[str, pa.ChunkedArray]
) -> list[tuple[str | None, npt.NDArray[np.int64]]]:
    if "symbol" not in table.columns:
        return [(None, np.arange(len(data["close"])))]
    codes, symbols = pd.factorize(data["symbol"].to_pandas())
    order = np.argsort(codes, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(codes))[:-1])
    return [(str(symbol).strip(), rows) for symbol, rows in zip(symbols, parts, strict=True)]


def _assemble(
    table: _Table,
    frame: pd.DataFrame,
    rows: npt.NDArray[np.int64],
    symbol: str | None,
    notes: tuple[str, ...],
) -> Series:
    bars = frame if len(rows) == len(frame) else frame.iloc[rows]
    bars, rows, sort_notes = _sorted(bars, rows)
    bars, rows, repeat_notes = _without_repeats(table, bars, rows)
    return make_series(
        bars.reset_index(drop=True),
        symbol=symbol,
        findings=(*sort_notes, *repeat_notes, *notes),
        place=lambda row: f"Line {_line_of(table, int(rows[row]))}",
    )


def _sorted(
    bars: pd.DataFrame, rows: npt.NDArray[np.int64]
) -> tuple[pd.DataFrame, npt.NDArray[np.int64], tuple[str, ...]]:
    times = pd.DatetimeIndex(bars["timestamps"])
    if times.is_monotonic_increasing:
        return bars, rows, ()
    if times.is_monotonic_decreasing:
        note = "The rows were newest first; they are sorted oldest first."
        return bars.iloc[::-1], rows[::-1], (note,)
    late = int((np.diff(times.asi8) < 0).sum())
    order = np.argsort(times.asi8, kind="stable")
    verb = "row was" if late == 1 else "rows were"
    note = f"{late:,} {verb} out of time order; the bars are sorted oldest first."
    return bars.iloc[order], rows[order], (note,)


def _without_repeats(
    table: _Table, bars: pd.DataFrame, rows: npt.NDArray[np.int64]
) -> tuple[pd.DataFrame, npt.NDArray[np.int64], tuple[str, ...]]:
    times = pd.DatetimeIndex(bars["timestamps"])
    repeated = np.concatenate([[False], np.diff(times.asi8) == 0])
    if not repeated.any():
        return bars, rows, ()
    values = bars.drop(columns="timestamps").to_numpy()
    differs = np.concatenate([[False], (values[1:] != values[:-1]).any(axis=1)])
    if (conflict := np.flatnonzero(repeated & differs)).size:
        first, second = sorted(_line_of(table, int(rows[conflict[0] + step])) for step in (-1, 0))
        raise DataError(
            f"Lines {first} and {second} both hold the bar of {times[conflict[0]]:%Y-%m-%d %H:%M}"
            " with different values. Delete the wrong one."
        )
    count = int(repeated.sum())
    note = f"{count:,} repeated identical row{'s were' if count > 1 else ' was'} dropped."
    return bars[~repeated], rows[~repeated], (note,)
