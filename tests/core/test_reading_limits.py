"""Files made to exhaust memory or time are refused with a message, quickly and in little memory."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import openpyxl
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from kronos_core import DataError, read_bars
from kronos_core.data import arrow_files, containers, json_tables, layout, workbooks

HEADER = "timestamps,open,high,low,close,volume\n"


def bars(rows: int = 3) -> bytes:
    stamps = pd.date_range("2024-01-01", periods=rows)
    return (HEADER + "".join(f"{stamp:%Y-%m-%d},1,2,1,2,5\n" for stamp in stamps)).encode()


def zip_of(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("_", "."), content)
    return file.getvalue()


def with_false_size(content: bytes) -> bytes:
    """A ZIP archive that claims, in both of its lists, that its member is 10 bytes."""
    data = bytearray(content)
    data[22:26] = (10).to_bytes(4, "little")
    central = data.rindex(b"PK\x01\x02")
    data[central + 24 : central + 28] = (10).to_bytes(4, "little")
    return bytes(data)


def zero_bomb(size: int) -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    chunk = b"\0" * (1 << 20)
    return b"".join(packer.compress(chunk) for _ in range(size >> 20)) + packer.flush()


def workbook_of(rows: list[list[object]]) -> bytes:
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


def parquet_of(table: pa.Table) -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(table, file)
    return file.getvalue()


def wide(count: int) -> pa.Table:
    return pa.table({f"c{at}": [1.0] for at in range(count)})


def feather_of(table: pa.Table) -> bytes:
    file = io.BytesIO()
    pyarrow.feather.write_feather(table, file, compression="zstd")
    return file.getvalue()


def long_text() -> pa.Table:
    names = ["timestamps", "open", "high", "low", "close"]
    return pa.table({name: ["x" * 100_000] * 50 for name in names})


BOMBS: dict[str, tuple[Callable[[], bytes], str]] = {
    "gzip of zeros": (lambda: zero_bomb(80 << 20), "unpacks to more than 64 MB"),
    "zip of zeros": (
        lambda: zip_of(a_csv=b"1" * (40 << 20), b_csv=b"1" * (40 << 20)),
        "unpacks to more than 64 MB",
    ),
    "zip with a false size": (
        lambda: with_false_size(zip_of(a_csv=b"1" * (1 << 20))),
        "cannot be opened",
    ),
    "many members": (
        lambda: zip_of(**{f"m{at}_csv": b"1" for at in range(1001)}),
        "holds 1,001 files, more than 1,000",
    ),
    "zip in zip": (lambda: zip_of(a_csv=zip_of(b_csv=bars())), "archive within an archive"),
    "gzip in gzip": (lambda: gzip.compress(gzip.compress(bars())), "archive within an archive"),
    "columns in one line": (lambda: b"a," * 100_000 + b"close\n1", "too long for a header"),
    "short columns": (
        lambda: b"close" + b"," * 100_000 + b"\n2024-01-01,1,2,1,2\n",
        "has 100,001 columns, more than 1,000",
    ),
    "columns without titles": (
        lambda: (b"2024-01-01,1,2,1,2" + b",1" * 50_000 + b"\n") * 3,
        "columns, more than 1,000",
    ),
    "tickers": (
        lambda: b"Price," + b"Close," * 11_000 + b"Open,High,Low\nTicker" + b",A" * 11_003 + b"\n",
        "names 11,004 columns, more than 10,000",
    ),
    "columns in parquet": (lambda: parquet_of(wide(10_001)), "10,001 columns, more than"),
    "columns in excel": (lambda: workbook_of([["a"] * 1001] * 3), "1,001 columns, more than 1,000"),
    "columns in json": (lambda: json.dumps([[1] * 1001]).encode(), "more than 1,000 fields"),
    "deep lists": (lambda: b"[" * 200_000, "nested too deeply"),
    "deep objects": (lambda: b'{"a":' * 200_000 + b"1" + b"}" * 200_000, "nested too deeply"),
    "long text in parquet": (lambda: parquet_of(long_text()), "text of 100,000 characters"),
    "long text in feather": (lambda: feather_of(long_text()), "text of 100,000 characters"),
    "long number": (lambda: b"[[1" + b"0" * 5_000_000 + b"]]", "."),
    "long line": (lambda: HEADER.encode() + b"9" * 5_000_000, "."),
    "quotation marks": (lambda: HEADER.encode() + b'"' * 3_000_001, "."),
    "only delimiters": (lambda: HEADER.encode() + b",,,,,\n" * 500_000, "holds no values"),
    "only blank lines": (lambda: b"\n" * 3_000_000, "empty"),
    "pickle": (lambda: b"\x80\x04cos\nsystem\n(S'echo'\ntR.", "never opened"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_quickly(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "MAX_UNPACKED", 64 << 20)
    make, message = BOMBS[name]
    content = make()
    start = time.process_time()
    with pytest.raises(DataError, match=message):
        read_bars(content)
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("module", "limit", "value", "make", "message"),
    [
        (
            arrow_files,
            "MAX_ROWS",
            2,
            lambda: parquet_of(pa.table({"a": [1, 2, 3]})),
            "more than 2 rows",
        ),
        (
            arrow_files,
            "MAX_ROWS",
            2,
            lambda: feather_of(pa.table({"a": [1, 2, 3]})),
            "more than 2 rows",
        ),
        (json_tables, "MAX_JSON", 1 << 20, lambda: b"[" + b" " * (2 << 20), "2 MB, more than 1"),
        (workbooks, "MAX_CELLS", 10, lambda: workbook_of([[1, 2, 3]] * 5), "more than 10 cells"),
        (containers, "MAX_WORKBOOK", 100, lambda: workbook_of([[1]]), "unpacks to more than"),
        (layout, "MAX_COLUMNS", 5, bars, "has 6 columns, more than 5"),
    ],
)
def test_limits(
    monkeypatch: pytest.MonkeyPatch,
    module: object,
    limit: str,
    value: int,
    make: Callable[[], bytes],
    message: str,
) -> None:
    monkeypatch.setattr(module, limit, value)
    with pytest.raises(DataError, match=message):
        read_bars(make())


def test_a_sheet_that_claims_a_million_columns() -> None:
    rows: list[list[object]] = [HEADER.strip().split(",")]
    rows += [[f"2024-01-0{day}", 1, 2, 1, 2, 5] for day in range(1, 5)]
    file = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(workbook_of(rows))) as before,
        zipfile.ZipFile(file, "w") as after,
    ):
        for item in before.infolist():
            content = before.read(item)
            if item.filename == "xl/worksheets/sheet1.xml":
                assert b'ref="A1:F5"' in content
                content = content.replace(b'ref="A1:F5"', b'ref="A1:XFD1048576"')
            after.writestr(item, content)
    start = time.process_time()
    assert len(read_bars(file.getvalue())[0].frame) == 4
    assert time.process_time() - start < 5


MEASURE = """
import sys
from kronos_core import DataError, read_bars
from kronos_core.data import containers

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

containers.MAX_UNPACKED = 64 << 20
before = peak()
try:
    read_bars(sys.argv[1])
except DataError:
    print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_the_memory_of_a_bomb_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "bomb.gz").write_bytes(zero_bomb(512 << 20))
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path / "bomb.gz")],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert int(run.stdout) < 3 * (64 << 10)
