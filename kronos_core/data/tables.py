"""A table's cells: text through Arrow's CSV parser, or typed columns, with the place of each row.

Plain files go through the parser as a whole; only for other ways to write numbers the cells are
taken as text first, and only when something is wrong the file is walked line by line to name it.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.csv

from kronos_core.data.bars import DataError
from kronos_core.data.choices import Alternative, AmbiguityError, ReadingChoices
from kronos_core.data.layout import PLAIN_NUMBER, Layout
from kronos_core.data.numbers import (
    MISSING,
    Decimal,
    NumberError,
    decimal_evidence,
    first_with,
    markers_in,
    to_numbers,
)

_ISO = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(?P<zone>Z)?)?")
_PERCENT_LIKE = re.compile(r"[+-]?[\d.,]*\d[\d.,]*\s*(%|[KkMmBb])?")


@dataclass(frozen=True, slots=True)
class Grid:
    """The columns that are used, as read.

    cells: position -> column; numbers as float64 (null where missing), times as text or
        timestamps, symbols as text.
    place: row -> where it stands in the file, in words.
    markers: position -> which cells hold a sign for "none".
    """

    layout: Layout
    cells: Mapping[int, pa.ChunkedArray]
    place: Callable[[int], str]
    decimal: Decimal | None = None
    markers: Mapping[int, pa.ChunkedArray] | None = None

    def __len__(self) -> int:
        return len(next(iter(self.cells.values())))

    def keep(self, rows: npt.NDArray[np.int64]) -> Grid:
        """The grid with these rows only; places stay those of the file."""
        taken = pa.array(rows)
        return replace(
            self,
            cells={at: column.take(taken) for at, column in self.cells.items()},
            place=lambda row: self.place(int(rows[row])),
            markers=self.markers
            and {at: column.take(taken) for at, column in self.markers.items()},
        )

    def fault(self, row: int, at: int, problem: str) -> DataError:
        """The error for a cell."""
        return DataError(f"{self.place(row)}, column {self.layout.title(at)}: {problem}")


def read_text(
    body: bytes, layout: Layout, choices: ReadingChoices, name_line: Callable[[int], str]
) -> Grid:
    """The cells of a table in UTF-8 text. name_line(line) says a line number in words.

    Raises DataError with the line for lines of another width and cells that are no numbers,
    AmbiguityError when the decimal mark cannot be told.
    """
    text = _Text(body, layout, name_line)
    decimal = _plain_decimal(layout, choices)
    if decimal is not None and (cells := text.parse(_types(layout), decimal)) is not None:
        return Grid(layout, cells, text.place, decimal)
    cells = text.parse({at: pa.string() for at in layout.used}, ".")
    if cells is None:
        raise text.fault()
    return with_numbers(Grid(layout, cells, text.place), choices)


def with_numbers(grid: Grid, choices: ReadingChoices) -> Grid:
    """The grid with its number columns read where they are still text."""
    texts = {at: grid.cells[at] for at in grid.layout.numbers if _is_text(grid.cells[at])}
    if not texts:
        return grid
    decimal = _decimal_of(grid, texts, choices)
    numbers = _numbers(grid, texts, decimal)
    markers = {at: markers_in(column) for at, column in texts.items()}
    return replace(grid, cells={**grid.cells, **numbers}, decimal=decimal, markers=markers)


def _numbers(
    grid: Grid, texts: Mapping[int, pa.ChunkedArray], decimal: Decimal
) -> dict[int, pa.ChunkedArray]:
    numbers: dict[int, pa.ChunkedArray] = {}
    wrong: list[tuple[int, int]] = []
    for at, column in texts.items():
        try:
            numbers[at] = to_numbers(column, decimal)
        except NumberError as error:
            wrong.append((error.row, at))
    if wrong:
        row, at = min(wrong)
        cell = str(texts[at][row])[:40]
        raise grid.fault(row, at, f'"{cell}" is not a number. Correct it or delete that line.')
    return numbers


@dataclass(frozen=True, slots=True)
class _Text:
    body: bytes  # UTF-8, all lines
    layout: Layout
    name_line: Callable[[int], str]

    def parse(
        self, types: Mapping[int, pa.DataType], decimal: Decimal
    ) -> dict[int, pa.ChunkedArray] | None:
        """The columns in these types; None when a cell does not fit its type."""
        module = pyarrow.csv
        ragged: list[int] = []

        def on_ragged_row(row: pyarrow.csv.InvalidRow) -> str:
            if not row.text.strip():
                return "skip"
            ragged.append(row.actual_columns)
            return "error"

        numbers = any(kind == pa.float64() for kind in types.values())
        try:
            data = module.read_csv(
                pa.BufferReader(self.body),
                module.ReadOptions(
                    column_names=[str(at) for at in range(len(self.layout.titles))],
                    skip_rows=self.layout.skip,
                    block_size=1 << 22,
                ),
                module.ParseOptions(
                    delimiter=self.layout.delimiter, invalid_row_handler=on_ragged_row
                ),
                # As text the signs for "none" are told apart from empty cells.
                _conversion(types, decimal, MISSING if numbers else ("",)),
            )
        except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
            if ragged or not numbers:
                raise self.fault(error) from error
            return None
        if data.num_rows == 0:
            raise DataError(
                "The file has a header line but no bars. Export it again, with the rows."
            )
        # In one piece a column of numbers is used where it lies instead of being copied.
        cells = {at: pa.chunked_array([data[str(at)].combine_chunks()]) for at in types}
        del data
        pa.default_memory_pool().release_unused()  # the parser's blocks outweigh the columns
        return cells

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """(line, cells) of the rows, counted as Arrow counts them: blank lines are no rows."""
        text = io.TextIOWrapper(io.BytesIO(self.body), encoding="utf-8", newline="")
        for _ in range(self.layout.skip):
            text.readline()
        reader = csv.reader(text, delimiter=self.layout.delimiter)
        start = self.layout.skip + 1
        for cells in reader:
            blank = not cells or (len(cells) == 1 and cells[0].isspace())
            if not blank:
                yield start, cells
            start = self.layout.skip + reader.line_num + 1

    def place(self, row: int) -> str:
        try:
            for index, (line, _) in enumerate(self.rows()):
                if index == row:
                    return self.name_line(line)
        except csv.Error:
            pass  # Arrow reads longer cells than this reader; then the row is counted instead
        return f"Row {row + 1} of the table"

    def fault(self, error: Exception | None = None) -> DataError:
        """The first line of another width, or what the parser says."""
        width = len(self.layout.titles)
        try:
            for line, cells in self.rows():
                if len(cells) != width:
                    return DataError(
                        f"{self.name_line(line)} has {len(cells)} "
                        f"value{'s' if len(cells) != 1 else ''}, "
                        f"the {'header' if self.layout.header_line else 'line above'} has {width}. "
                        "Correct or delete that line."
                    )
        except csv.Error as problem:
            return DataError(f"The table cannot be read ({problem}). Save it again as plain CSV.")
        reason = str(error).splitlines()[0][:200]
        return DataError(f"The table cannot be read ({reason}). Save it again as plain CSV.")


def _conversion(
    types: Mapping[int, pa.DataType], decimal: Decimal, missing: tuple[str, ...]
) -> pyarrow.csv.ConvertOptions:
    return pyarrow.csv.ConvertOptions(
        include_columns=[str(at) for at in types],
        column_types={str(at): kind for at, kind in types.items()},
        null_values=list(missing),
        strings_can_be_null=True,
        decimal_point=decimal,
    )


def _types(layout: Layout) -> dict[int, pa.DataType]:
    types = {at: pa.float64() if at in layout.numbers else pa.string() for at in layout.used}
    (_, roles), *_ = layout.tickers
    at = roles["timestamps"]
    first = layout.head[0] if layout.head else ()
    match = _ISO.fullmatch(first[at].strip()) if len(first) > at else None
    if match and "time of day" not in roles:
        # Times that Arrow reads itself never become text, which saves their memory.
        types[at] = pa.timestamp("ns", "UTC" if match["zone"] else None)
    return types


def _plain_decimal(layout: Layout, choices: ReadingChoices) -> Decimal | None:
    """The decimal mark when the first rows hold nothing but plain numbers, else None."""
    usual = choices.decimal or layout.dialect.decimal
    cells = [row[at].strip() for row in layout.head for at in layout.numbers if at < len(row)]
    cells = [cell for cell in cells if cell not in MISSING]
    if usual != "," and all(PLAIN_NUMBER.fullmatch(cell) for cell in cells):
        return "."
    swapped = [cell.replace(".", "x").replace(",", ".") for cell in cells]
    if usual != "." and all(PLAIN_NUMBER.fullmatch(cell) for cell in swapped):
        texts = pa.chunked_array([pa.array(cells, pa.string())])
        if usual == "," or list(decimal_evidence(texts)) == [","]:
            return ","
    return None


def _decimal_of(
    grid: Grid, texts: Mapping[int, pa.ChunkedArray], choices: ReadingChoices
) -> Decimal:
    """The decimal mark that all number columns agree on, by every row of them."""
    if choices.decimal is not None:
        return choices.decimal
    with_comma = {at: column for at, column in texts.items() if first_with(column, ",") >= 0}
    # Where commas are they nearly always settle it; looking at all columns takes far longer.
    found = _evidence(with_comma) or _evidence(texts)
    if len(found) == 2:
        raise _contradiction(grid, texts, found)
    if found:
        return next(iter(found))
    if grid.layout.dialect.decimal is not None:
        return grid.layout.dialect.decimal
    if beside := _evidence_beside(grid.layout):
        return beside
    if with_comma:
        undecided = min((first_with(column, ","), at) for at, column in with_comma.items())
        raise _undecided(grid, texts, undecided, choices)
    return "."


def _evidence(texts: Mapping[int, pa.ChunkedArray]) -> dict[Decimal, tuple[int, int]]:
    """Decimal mark -> (row, position) of the first cell that needs it."""
    found: dict[Decimal, tuple[int, int]] = {}
    for at, column in texts.items():
        for decimal, row in decimal_evidence(column).items():
            found[decimal] = min(found.get(decimal, (row, at)), (row, at))
    return found


def _evidence_beside(layout: Layout) -> Decimal | None:
    """What the columns that are not used say, such as a change in per cent."""
    cells = [
        cell
        for row in layout.head
        for at, cell in enumerate(row)
        if at not in layout.used and _PERCENT_LIKE.fullmatch(cell.strip())
    ]
    found = decimal_evidence(pa.chunked_array([pa.array(cells, pa.string())]))
    return next(iter(found)) if len(found) == 1 else None


def _contradiction(
    grid: Grid,
    texts: Mapping[int, pa.ChunkedArray],
    found: Mapping[Decimal, tuple[int, int]],
) -> DataError:
    (row, at), (other_row, other_at) = sorted(found.values(), reverse=True)
    return grid.fault(
        row,
        at,
        f'"{texts[at][row]}" and "{texts[other_at][other_row]}" '
        f"({grid.place(other_row).lower()}) write decimals in two ways. "
        "Correct one of them or delete that line.",
    )


def _undecided(
    grid: Grid,
    texts: Mapping[int, pa.ChunkedArray],
    cell: tuple[int, int],
    choices: ReadingChoices,
) -> AmbiguityError:
    row, at = cell
    text = str(texts[at][row]).strip()
    start = max(0, row - 2)
    decimals: tuple[tuple[Decimal, str], ...] = (
        (".", "The comma marks thousands"),
        (",", "The comma is the decimal mark"),
    )
    readings = []
    for decimal, meaning in decimals:
        numbers = _numbers(grid, texts, decimal)
        rows = {
            grid.layout.title(place): (numbers.get(place, column)).slice(start, 5).to_pandas()
            for place, column in grid.cells.items()
        }
        sentence = f"{meaning}: {text} is {numbers[at][row].as_py():g}."
        readings.append(
            Alternative(
                sentence=sentence,
                choices=replace(choices, decimal=decimal),
                rows=pd.DataFrame(rows),
            )
        )
    problem = f'"{text}" can be a number with thousands or with decimals. Choose the decimal mark.'
    return AmbiguityError(str(grid.fault(row, at, problem)), tuple(readings))


def _is_text(column: pa.ChunkedArray) -> bool:
    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))
