"""Excel workbooks -> CSV text, one a sheet; values only, formulas are never computed."""

from __future__ import annotations

import csv
import datetime as dt
import io
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any
from xml.etree.ElementTree import ParseError

from kronos_core.data.bars import DataError
from kronos_core.data.layout import MAX_COLUMNS, NoTableError

MAX_CELLS = 20_000_000
_DAMAGED = (
    zipfile.BadZipFile,
    ParseError,
    KeyError,
    ValueError,
    TypeError,
    AttributeError,
    IndexError,
    OverflowError,
    EOFError,
    OSError,
    RuntimeError,
    NotImplementedError,
    zlib.error,
)


def workbook_to_csv(content: bytes) -> list[tuple[str, bytes]]:
    """The sheets that hold anything: (name, UTF-8 CSV text whose line n is the sheet's row n).

    Dates are written as ISO text, numbers in full. The name is "" when there is one sheet only.
    Raises DataError when the workbook is damaged, too large or empty.
    """
    import openpyxl  # slow to import, and most files are no workbooks

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about styles and extensions that do not matter here
            book = openpyxl.load_workbook(
                io.BytesIO(content), read_only=True, data_only=True, keep_links=False
            )
            sheets = [(sheet.title, _sheet_to_csv(sheet)) for sheet in book.worksheets]
    except DataError:
        raise
    except _DAMAGED as error:
        raise DataError(
            f"The Excel workbook cannot be read ({str(error)[:100]}). Save the sheet as CSV."
        ) from error
    sheets = [(name, body) for name, body in sheets if body.strip(b"\n,\r ")]
    if not sheets:
        raise NoTableError("The Excel workbook is empty.")
    return sheets if len(sheets) > 1 else [("", sheets[0][1])]


def _sheet_to_csv(sheet: Any) -> bytes:
    sheet.reset_dimensions()  # a workbook may claim a million columns
    rows = list(_rows(sheet))
    while rows and not rows[-1]:
        rows.pop()
    width = max(map(len, rows), default=0)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in rows:
        # A blank row stays a line, so that lines are rows.
        writer.writerow(row + [""] * (width - len(row)) if row else [])
    return text.getvalue().encode("utf-8", errors="replace")


def _rows(sheet: Any) -> Iterator[list[str]]:
    cells = 0
    for values in sheet.iter_rows(values_only=True):
        cells += len(values) + 1
        if cells > MAX_CELLS:
            raise DataError(
                f"The sheet {sheet.title} holds more than {MAX_CELLS:,} cells. Save it as CSV."
            )
        row = [_text(value) for value in values]
        while row and not row[-1]:
            row.pop()
        if len(row) > MAX_COLUMNS:
            raise DataError(
                f"The sheet {sheet.title} has {len(row):,} columns, more than {MAX_COLUMNS:,}. "
                "Keep the columns of one instrument."
            )
        yield row


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, dt.datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return " ".join(str(value).split())
