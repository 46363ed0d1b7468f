"""Every dialect's sample reads to the exact bars, in any order and clothes, with any container."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import re
import zipfile
from pathlib import Path
from typing import Any

import openpyxl
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pytest

from kronos_core import DataError, ReadingChoices, inspect_bars, read_bars
from tests.core.dialect_samples import FOLDER, SAMPLES, check_against, content_of

ENCODINGS = {"metatrader5.csv": "utf-16", "akshare_daily.csv": "gbk"}
BEFORE_THE_BARS = {
    "yfinance_one.csv": 3,
    "yfinance_wide.csv": 3,
    "cryptodatadownload.csv": 2,
    "binance_ms.csv": 0,
    "binance_us.csv": 0,
    "metatrader4.csv": 0,
    "histdata.csv": 0,
}
TEXTS = [name for name in SAMPLES if not name.endswith(".json")]


def lines_of(name: str) -> tuple[list[str], list[str]]:
    """The lines before the bars and the bars, without line ends."""
    text = content_of(name).decode(ENCODINGS.get(name, "utf-8-sig"))
    lines = text.splitlines()
    count = BEFORE_THE_BARS.get(name, 1)
    return lines[:count], lines[count:]


def encoded(name: str, lines: list[str], newline: str = "\n") -> bytes:
    return (newline.join(lines) + newline).encode(ENCODINGS.get(name, "utf-8"))


def refusal_of(content: bytes) -> str | None:
    try:
        read_bars(content)
    except DataError as error:
        return str(error)
    return None


def test_every_sample_file_is_tested() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {*SAMPLES, "stooq_limit.csv"}


@pytest.mark.parametrize("name", SAMPLES)
def test_the_exact_bars(name: str) -> None:
    (reading,) = inspect_bars(FOLDER / name)
    assert reading.dialect == SAMPLES[name].dialect
    check_against(SAMPLES[name], list(reading.series))


@pytest.mark.parametrize("name", SAMPLES)
def test_the_choices_made_read_the_same_again(name: str) -> None:
    content = content_of(name)
    (reading,) = inspect_bars(content)
    again = ReadingChoices.from_dict(json.loads(json.dumps(reading.choices.to_dict())))
    assert again == reading.choices
    check_against(SAMPLES[name], read_bars(content, mapping=again))


@pytest.mark.parametrize("name", TEXTS)
def test_rows_in_any_order(name: str) -> None:
    before, bars = lines_of(name)
    shuffled = random.Random(name).sample(bars, len(bars))
    symbols = list(SAMPLES[name].series)
    for rows in (bars[::-1], shuffled):
        found = read_bars(encoded(name, before + rows))
        found.sort(key=lambda series: symbols.index(series.symbol))
        check_against(SAMPLES[name], found)


@pytest.mark.parametrize("name", TEXTS)
def test_byte_order_marks_line_ends_and_blank_lines(name: str) -> None:
    before, bars = lines_of(name)
    check_against(SAMPLES[name], read_bars("\n".join(before + bars).encode("utf-8-sig")))
    check_against(SAMPLES[name], read_bars("\n".join(before + bars).encode("utf-16")))
    check_against(SAMPLES[name], read_bars(encoded(name, before + bars, "\r\n")))
    check_against(SAMPLES[name], read_bars(encoded(name, [*before, *bars, "", "", "   ", ""])))


@pytest.mark.parametrize("garbage", ["lorem ipsum", "\x07\x1b~~", ",,,;;;\t\t", "1,2,3", '"'])
@pytest.mark.parametrize("name", TEXTS)
def test_a_garbage_line_is_named_or_does_not_matter(name: str, garbage: str) -> None:
    before, bars = lines_of(name)
    for at in (0, 2, len(bars)):
        lines = [*before, *bars[:at], garbage, *bars[at:]]
        number = len(before) + at + 1
        content = encoded(name, lines)
        if (message := refusal_of(content)) is None:
            check_against(SAMPLES[name], read_bars(content))
        else:
            # A lone quotation mark swallows the line ends that follow.
            assert re.search(rf"\bline {number}\b", message.lower()) or garbage == '"'


@pytest.mark.parametrize("name", TEXTS)
def test_an_unreadable_value_is_named_by_line(name: str) -> None:
    before, bars = lines_of(name)
    (reading,) = inspect_bars(content_of(name))
    delimiter = reading.choices.delimiter or ""
    cells = next(csv.reader([bars[2]], delimiter=delimiter))
    cells[list(reading.columns.values()).index("close")] = "abc"
    line = io.StringIO()
    csv.writer(line, delimiter=delimiter, quoting=csv.QUOTE_ALL, lineterminator="").writerow(cells)
    bars[2] = line.getvalue()
    message = f'Line {len(before) + 3}, column .*: "abc" is not a number'
    with pytest.raises(DataError, match=message):
        read_bars(encoded(name, before + bars))


def zipped(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("_", "."), content)
    return file.getvalue()


@pytest.mark.parametrize("name", SAMPLES)
def test_archives(name: str) -> None:
    content = content_of(name)
    check_against(SAMPLES[name], read_bars(gzip.compress(content)))
    check_against(SAMPLES[name], read_bars(zipped(bars_csv=content)))


def test_an_archive_with_several_files_and_a_readme() -> None:
    content = zipped(a_csv=content_of("yahoo.csv"), b_csv=content_of("kronos.csv"), notes_txt=b"Hi")
    readings = inspect_bars(content)
    assert [reading.name for reading in readings] == ["a.csv", "b.csv"]
    check_against(SAMPLES["yahoo.csv"], list(readings[0].series))
    broken = zipped(a_csv=content_of("yahoo.csv").replace(b"184.220001", b"abc"))
    with pytest.raises(DataError, match=r"^up.zip: a.csv: Line 3, column Open"):
        read_bars(broken, name="up.zip")


def plain_frame() -> pd.DataFrame:
    return pd.read_csv(FOLDER / "kronos.csv", parse_dates=["timestamps"])


@pytest.mark.parametrize("kind", ["column", "index", "text", "zone", "date"])
def test_parquet_and_feather(kind: str, tmp_path: Path) -> None:
    frame = plain_frame()
    sample = SAMPLES["kronos.csv"]
    if kind == "index":
        frame = frame.set_index("timestamps")
    if kind == "text":
        frame = frame.astype({"timestamps": str, "close": str})
    if kind == "zone":
        frame["timestamps"] = frame["timestamps"].dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo")
    if kind == "date":
        frame, sample = (
            pd.read_csv(FOLDER / "yahoo.csv", parse_dates=["Date"]),
            SAMPLES["yahoo.csv"],
        )
        frame["Date"] = frame["Date"].dt.date
    table = pa.Table.from_pandas(frame)
    frame.to_parquet(tmp_path / "bars.parquet")
    pyarrow.feather.write_feather(table, tmp_path / "bars.feather", compression="zstd")
    for path in (tmp_path / "bars.parquet", tmp_path / "bars.feather"):
        found = read_bars(path)
        check_against(sample, found)
        assert found[0].timezone == ("Asia/Tokyo" if kind == "zone" else "UTC")


def test_errors_in_parquet_name_the_row(tmp_path: Path) -> None:
    frame = plain_frame()
    frame.loc[2, "close"] = float("nan")
    frame.to_parquet(tmp_path / "bars.parquet")
    with pytest.raises(
        DataError, match=r"^bars.parquet: Row 3, column close: the value is missing"
    ):
        read_bars(tmp_path / "bars.parquet")


def workbook(**sheets: list[list[object]]) -> bytes:
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


def rows_of(frame: pd.DataFrame) -> list[list[object]]:
    return [list(frame.columns), *frame.to_numpy(dtype=object).tolist()]


def test_excel_sheets() -> None:
    rows = rows_of(plain_frame())
    check_against(SAMPLES["kronos.csv"], read_bars(workbook(Bars=rows)))
    # A title above, a blank row, and dates as text.
    text = rows_of(plain_frame().astype({"timestamps": str}))
    above = [["My bars"], [], *text]
    check_against(SAMPLES["kronos.csv"], read_bars(workbook(Bars=above)))
    two = inspect_bars(workbook(First=rows, Second=text, Notes=[["nothing here"]]))
    assert [reading.name for reading in two] == ["First", "Second"]
    rows[3][4] = "abc"
    with pytest.raises(DataError, match='Row 4, column close: "abc" is not a number'):
        read_bars(workbook(Bars=rows))
    with pytest.raises(DataError, match="workbook is empty"):
        read_bars(workbook(Bars=[]))


def test_formulas_are_not_computed() -> None:
    rows = rows_of(plain_frame())
    rows[1][1] = "=1+1"  # saved without a value
    with pytest.raises(DataError, match="Row 2, column open: the value is missing"):
        read_bars(workbook(Bars=rows))


def json_of(frame: pd.DataFrame, orient: str, unit: str) -> Any:
    """What `DataFrame.to_json` writes, with Unix times in this unit."""
    factor = {"s": 1_000_000_000, "ms": 1_000_000}[unit]
    frame["timestamps"] = frame["timestamps"].astype("datetime64[ns]").astype("int64") // factor
    if orient in ("columns", "index"):
        frame = frame.set_index("timestamps")
    return json.loads(frame.to_json(orient=orient))


JSON_FORMS = {
    "records": lambda frame: frame.to_json(orient="records", date_format="iso"),
    "lines": lambda frame: frame.to_json(orient="records", lines=True, date_format="iso"),
    "columns": lambda frame: json_of(frame, "columns", "ms"),
    "index": lambda frame: json_of(frame, "index", "s"),
    "split": lambda frame: frame.to_json(orient="split", index=False, date_format="iso"),
    "split with index": lambda frame: frame.set_index("timestamps").to_json(
        orient="split", date_format="iso"
    ),
    "lists": lambda frame: frame.astype({"timestamps": str}).to_dict(orient="list"),
    "arrays": lambda frame: frame.astype({"timestamps": str}).to_numpy().tolist(),
    "answer": lambda frame: {"ok": True, "data": {"bars": json_of(frame, "records", "s")}},
}


@pytest.mark.parametrize("form", JSON_FORMS)
def test_json(form: str) -> None:
    written = JSON_FORMS[form](plain_frame())
    text = written if isinstance(written, str) else json.dumps(written)
    check_against(SAMPLES["kronos.csv"], read_bars(text.encode()))


def test_errors_in_json_name_the_record() -> None:
    text = content_of("records.json").replace(b'42845.23, "vol', b'"abc", "vol')
    with pytest.raises(DataError, match='Record 2, column close: "abc" is not a number'):
        read_bars(text)
    with pytest.raises(DataError, match=r'It says: "Invalid symbol\."'):
        read_bars(b'{"code": -1121, "msg": "Invalid symbol."}')
    with pytest.raises(DataError, match="Line 2: this is not valid JSON"):
        read_bars(b'[{"open": 1},\n{"open" 2}]')


def test_a_rate_limit_in_place_of_bars() -> None:
    with pytest.raises(DataError, match='only a message: "Exceeded the daily hits limit"'):
        read_bars(FOLDER / "stooq_limit.csv")
