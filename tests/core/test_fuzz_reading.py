"""Damaged files of every dialect end in clean series or a DataError, never in anything else.

KRONOS_FUZZ sets the number of damaged files (200 without it).
"""

from __future__ import annotations

import gzip
import io
import os
import random
import time
import zipfile
from collections.abc import Callable

import numpy as np
import openpyxl
import pandas as pd
import pyarrow.feather
import pytest

from kronos_core import AmbiguityError, DataError, Series, read_bars
from kronos_core.data.bars import CHANNELS, PRICES
from tests.core.dialect_samples import FOLDER, SAMPLES, content_of

CASES = int(os.environ.get("KRONOS_FUZZ", "200"))
BATCH = 50  # damaged files in one test
SLOWEST = 5.0  # seconds of computing for one file
PIECES = [
    b"\n\n", b"\r", b"1e999", b"-1", b"nan", b"inf", b"9" * 30, b"\xff\xfe", b'"', b"'",
    b",", b";", b"\t", b"|", b"1,234", b"1.234.567", b"0", b"%", b"$", "万".encode(), b"K", b"\0",
    b"2024-13-45", b"T00:00+99:99", b"01/02/2024", b"1969", b"close", b"date", b"{", b"]", b"PK",
]  # fmt: skip
SHEET = "xl/worksheets/sheet1.xml"


def zipped(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bars.csv", content)
    return file.getvalue()


def workbook(frame: pd.DataFrame) -> bytes:
    book = openpyxl.Workbook()
    for row in [list(frame.columns), *frame.to_numpy(dtype=object).tolist()]:
        book.active.append(row)
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


def with_damaged_sheet(content: bytes, chance: random.Random) -> bytes:
    """A workbook whose archive is whole while the sheet in it is not."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as before, zipfile.ZipFile(file, "w") as after:
        for name in before.namelist():
            member = before.read(name)
            after.writestr(name, damaged(member, chance) if name == SHEET else member)
    return file.getvalue()


def binary_samples() -> dict[str, bytes]:
    frame = pd.read_csv(FOLDER / "kronos.csv", parse_dates=["timestamps"])
    parquet, feather = io.BytesIO(), io.BytesIO()
    frame.to_parquet(parquet)
    pyarrow.feather.write_feather(frame, feather)
    return {
        "parquet": parquet.getvalue(),
        "feather": feather.getvalue(),
        "excel": workbook(frame),
        "zip": zipped(content_of("binance_ms.csv")),
        "gzip": gzip.compress(content_of("yahoo.csv"), mtime=0),
    }


WHOLE = {name: content_of(name) for name in [*SAMPLES, "stooq_limit.csv"]} | binary_samples()


def damaged(content: bytes, chance: random.Random) -> bytes:
    data = bytearray(content)
    for _ in range(chance.choice([1, 1, 1, 2, 3, 8])):
        at = chance.randrange(len(data) + 1)
        size = chance.randint(1, 40)
        other = chance.randrange(len(data) + 1)
        match chance.randrange(8):
            case 0:
                data[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                data[at : at + size] = b""
            case 2:
                data[at:at] = bytes(chance.choices(b',;|\t\n\r"-+.eE0123456789 ', k=6))
            case 3:
                data[at:at] = data[other : other + size]
            case 4:
                del data[at:]
            case 5:
                data = bytearray(swapped_cells(bytes(data), chance))
            case 6:
                flipped = bytes(byte ^ 1 << chance.randrange(8) for byte in data[at : at + 1])
                data[at : at + 1] = flipped
            case _:
                data[at:at] = chance.choice(PIECES)
    return bytes(data)


def swapped_cells(content: bytes, chance: random.Random) -> bytes:
    lines = content.split(b"\n")
    at = chance.randrange(len(lines))
    delimiter = b";" if b";" in lines[at] else b","
    cells = lines[at].split(delimiter)
    cells[chance.randrange(len(cells))] = chance.choice(PIECES)
    if chance.random() < 0.2:
        chance.shuffle(cells)
    lines[at] = delimiter.join(cells)
    return b"\n".join(lines)


def check_clean(series: Series) -> None:
    frame = series.frame
    values = frame[list(CHANNELS)].to_numpy()
    stamps = pd.DatetimeIndex(frame["timestamps"])
    assert list(frame.columns) == ["timestamps", *CHANNELS]
    assert len(frame) >= 2
    assert np.isfinite(values).all()
    assert (values[:, : len(PRICES)] > 0).all()
    assert (values >= 0).all()
    assert str(stamps.tz) == "UTC"
    assert stamps.is_monotonic_increasing
    assert stamps.is_unique
    assert series.interval > pd.Timedelta(0)


def outcome_of(content: bytes) -> list[Series] | DataError:
    try:
        return read_bars(content, name="bars")
    except DataError as error:
        return error


def check_one(content: bytes) -> str:
    start = time.process_time()
    outcome = outcome_of(content)
    assert time.process_time() - start < SLOWEST
    if isinstance(outcome, DataError):
        assert str(outcome).startswith("bars: ")
        assert not isinstance(outcome, AmbiguityError) or len(outcome.readings) >= 2
        return "refused"
    for series in outcome:
        check_clean(series)
    return "read"


@pytest.mark.parametrize("batch", range(-(-CASES // BATCH)))
def test_damaged_files(batch: int) -> None:
    names = list(WHOLE)
    for case in range(batch * BATCH, min((batch + 1) * BATCH, CASES)):
        chance = random.Random(case)
        name = names[case % len(names)]
        inside = name == "excel" and chance.random() < 0.5
        content = (with_damaged_sheet if inside else damaged)(WHOLE[name], chance)
        try:
            check_one(content)
        except BaseException as error:
            error.add_note(f"case {case} of {name}: {content[:2000]!r}")
            raise


def random_bytes(chance: random.Random) -> bytes:
    return chance.randbytes(chance.randint(0, 400))


def random_table(chance: random.Random) -> bytes:
    letters = '0123456789.,;:-/ \t|"abcdeKM%$€亿\n\n\n'
    return "".join(chance.choices(letters, k=chance.randint(0, 600))).encode()


@pytest.mark.parametrize("make", [random_bytes, random_table])
def test_random_content(make: Callable[[random.Random], bytes]) -> None:
    for case in range(CASES):
        check_one(make(random.Random(case)))


def test_every_sample_can_be_damaged_and_still_read() -> None:
    """The damage is neither so slight that all are read nor so heavy that none is."""
    outcomes = [check_one(damaged(content_of("yahoo.csv"), random.Random(at))) for at in range(100)]
    assert 5 < outcomes.count("read") < 95
