"""Reading files: the same bars come back, or the message names the line, column and remedy."""

from __future__ import annotations

import codecs
import random
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kronos_core.data.bars import CHANNELS, DataError, Series
from kronos_core.data.dialects import read_bars

HEADER = "timestamps,open,high,low,close,volume,amount\n"
ROWS = (
    "2019/11/26 9:35,1.5,2,0.5,1.25,10,15\n"
    "2019/11/26 9:40,1.25,2,0.5,1.5,20,30\n"
    "2019/11/26 9:45,1.5,2,0.5,1.75,30,45\n"
)
KRONOS = HEADER + ROWS


def read_one(text: str | bytes) -> Series:
    content = text.encode() if isinstance(text, str) else text
    (series,) = read_bars(content)
    return series


def refusal(text: str | bytes) -> str:
    with pytest.raises(DataError) as caught:
        read_one(text)
    return str(caught.value)


def with_times(*times: str) -> str:
    rows = "".join(f'"{time}",1,2,0.5,1\n' for time in times)
    return f"time,open,high,low,close\n{rows}"


def times_of(*times: str) -> list[str]:
    return [stamp.isoformat() for stamp in read_one(with_times(*times)).frame["timestamps"]]


def test_the_kronos_format() -> None:
    series = read_one(KRONOS)
    assert list(series.frame.columns) == ["timestamps", *CHANNELS]
    assert series.frame.iloc[0, 1:].tolist() == [1.5, 2.0, 0.5, 1.25, 10.0, 15.0]
    assert series.frame["timestamps"].iloc[0] == pd.Timestamp("2019-11-26 09:35", tz="UTC")
    assert series.interval == pd.Timedelta(minutes=5)
    assert series.findings == ("Times carry no time zone and are taken as UTC.",)


SAME_FILE = {
    "windows line ends": KRONOS.replace("\n", "\r\n").encode(),
    "old mac line ends": KRONOS.replace("\n", "\r").encode(),
    "utf-8 with a byte order mark": codecs.BOM_UTF8 + KRONOS.encode(),
    "utf-16": KRONOS.encode("utf-16"),
    "utf-16 big endian": codecs.BOM_UTF16_BE + KRONOS.encode("utf-16-be"),
    "semicolons": KRONOS.replace(",", ";").encode(),
    "semicolons and decimal commas": KRONOS.replace(",", ";").replace(".", ",").encode(),
    "tabs": KRONOS.replace(",", "\t").encode(),
    "bars": KRONOS.replace(",", "|").encode(),
    "blank lines": ("\n \n" + KRONOS.replace("\n", "\n\n") + "\n\n   \n").encode(),
    "no line end at the end": KRONOS.rstrip().encode(),
    "quotes": ('"' + KRONOS.strip().replace(",", '","').replace("\n", '"\n"') + '"').encode(),
    "capitals and spaces": KRONOS.replace(HEADER, HEADER.title().replace(",", " , ")).encode(),
    "dashes": KRONOS.replace("/", "-").encode(),
    "dots": KRONOS.replace("2019/11/26", "2019.11.26").encode(),
}


@pytest.mark.parametrize("name", SAME_FILE)
def test_the_same_file_in_other_clothes(name: str) -> None:
    pd.testing.assert_frame_equal(read_one(SAME_FILE[name]).frame, read_one(KRONOS).frame)


def test_latin_1_text_is_read() -> None:
    text = KRONOS.replace("amount", "montant é")
    assert "Columns not used: montant é." in read_one(text.encode("latin-1")).findings


def test_a_path_is_read_and_named_in_messages(tmp_path: Path) -> None:
    path = tmp_path / "bars.csv"
    path.write_text(KRONOS)
    for source in (path, str(path)):
        pd.testing.assert_frame_equal(read_bars(source)[0].frame, read_one(KRONOS).frame)
    path.write_text("")
    with pytest.raises(DataError, match=r"^bars.csv: The file is empty"):
        read_bars(path)
    with pytest.raises(DataError, match=r"^none.csv: cannot be opened"):
        read_bars(tmp_path / "none.csv")
    with pytest.raises(DataError, match=r"^mine.csv: "):
        read_bars(b"", name="mine.csv")


@pytest.mark.parametrize(
    "header",
    [
        "Date,Open,High,Low,Close,Volume,Turnover",
        "Open time,Open,High,Low,Close,Volume,Quote volume",
        "datetime,o,h,l,c,v,amount",
        "unix_timestamp,open_price,high_price,low_price,close_price,vol,quote_asset_volume",
        "<DATE>,<OPEN>,<HIGH>,<LOW>,<CLOSE>,<VOL>,<AMOUNT>",
        ",open,high,low,close,volume,amount",
    ],
)
def test_usual_column_names(header: str) -> None:
    read = read_one(KRONOS.replace(HEADER.strip(), header))
    pd.testing.assert_frame_equal(read.frame, read_one(KRONOS).frame)


def test_adjusted_close_is_not_the_close() -> None:
    series = read_one(
        "Date,Open,High,Low,Adj Close,Close,Volume\n"
        "2024-01-02,1,2,0.5,9,1,100\n2024-01-03,1,2,0.5,9,1,100\n"
    )
    assert (series.frame["close"] == 1).all()
    assert series.frame["amount"].tolist() == [112.5, 112.5]
    assert any("Prices are raw" in note and "Adj Close" in note for note in series.findings)
    assert "No amount column: amount is volume × the mean of the four prices." in series.findings


def test_date_and_time_columns_are_joined() -> None:
    series = read_one(
        "<DATE>\t<TIME>\t<OPEN>\t<HIGH>\t<LOW>\t<CLOSE>\t<TICKVOL>\n"
        "2024.01.02\t00:00:00\t1\t2\t.5\t1\t3\n2024.01.02\t00:01:00\t1\t2\t.5\t1\t3\n"
    )
    assert series.interval == pd.Timedelta(minutes=1)


def test_a_symbol_column_makes_one_series_a_symbol() -> None:
    text = (
        "date,symbol,open,high,low,close\n"
        "2024-01-03,B,1,2,.5,1.1\n2024-01-02,A,1,2,.5,1.2\n"
        "2024-01-02,B,1,2,.5,1.3\n2024-01-03,A,1,2,.5,1.4\n"
    )
    found = {series.symbol: series for series in read_bars(text.encode())}
    assert found["A"].frame["close"].tolist() == [1.2, 1.4]
    assert found["B"].frame["close"].tolist() == [1.3, 1.1]
    with pytest.raises(DataError, match="Line 4, column low"):
        read_bars(text.replace(".5,1.3", "0,1.3").encode())


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("1704186000", "2024-01-02T09:00:00"),
        ("1704186000.25", "2024-01-02T09:00:00.250000"),
        ("1704186000000", "2024-01-02T09:00:00"),
        ("1704186000000000", "2024-01-02T09:00:00"),
        ("1704186000000000001", "2024-01-02T09:00:00.000000001"),
        ("20240102", "2024-01-02T00:00:00"),
        ("2024-01-02", "2024-01-02T00:00:00"),
        ("2024-01-02T09:00:00Z", "2024-01-02T09:00:00"),
        ("2024-01-02T09:00:00+02:00", "2024-01-02T07:00:00"),
        ("2024-01-02 09:00:00 UTC", "2024-01-02T09:00:00"),
        ("2024-01-02 09:00:00.123456789", "2024-01-02T09:00:00.123456789"),
        ("2024/1/2 9:00", "2024-01-02T09:00:00"),
        ("2024/01/02 9:00 PM", "2024-01-02T21:00:00"),
        ("2024.01.02 09:00", "2024-01-02T09:00:00"),
        ("02.01.2024 09:00:00.000", "2024-01-02T09:00:00"),
        ("20240102 093000", "2024-01-02T09:30:00"),
        ("Jan 02, 2024", "2024-01-02T00:00:00"),
        ("2 January 2024", "2024-01-02T00:00:00"),
        ("02-Jan-2024 9:00", "2024-01-02T09:00:00"),
    ],
)
def test_ways_to_write_a_time(written: str, meant: str) -> None:
    later = written.replace("2024", "2025").replace("1704", "1714")
    assert times_of(written, later)[0] == f"{meant}+00:00"


def test_one_row_decides_the_order_of_day_and_month() -> None:
    assert times_of("01/02/2024", "13/02/2024")[0].startswith("2024-02-01")
    assert times_of("01/02/2024 9:30", "01/13/2024 9:30")[0].startswith("2024-01-02")
    assert times_of("01/01/2024", "02/02/2024")[1].startswith("2024-02-02")


def test_an_undecided_order_is_asked_back_with_both_readings() -> None:
    message = refusal(with_times("01/01/2024", "01/02/2024", "01/03/2024"))
    assert 'Line 3, column time: "01/02/2024" can mean 1 February 2024 or 2 January 2024' in message
    assert "YYYY-MM-DD" in message


def test_times_with_an_offset_need_no_note_on_the_zone() -> None:
    assert not any(
        "taken as UTC" in note
        for note in read_one(
            with_times("2024-01-02T09:00:00+02:00", "2024-01-02T10:00:00+02:00")
        ).findings
    )


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (b"", ["empty"]),
        (b" \n\n ", ["empty"]),
        (codecs.BOM_UTF8 + b"\n", ["empty"]),
        (b"hello\nworld, this is\ntext", ["no table of bars", "timestamps,open"]),
        (b"<html><body>Not found</body></html>", ["no table of bars"]),
        (b"\x00\x01\x02\x03" * 100, ["binary"]),
        (b"PK\x03\x04rest", ["ZIP archive", "cannot be opened"]),
        (b"PAR1rest", ["Parquet"]),
        (codecs.BOM_UTF16_LE + b"\x00\xd8a", ["UTF-16", "damaged"]),
        (HEADER, ["no bars"]),
        (HEADER + ROWS.splitlines()[0], ["only one bar"]),
        ("2024-01-02,a,1.5\n" * 3, ["no table of bars"]),
        ("2024-01-02,1,1,1,1\n2024-01-03,5,2,1,4\n2024-01-04,5,2,1,4\n", ["no titles", "order"]),
        (KRONOS.replace("close", "closing"), ["Line 1: missing column close", "Add or rename"]),
        (KRONOS.replace("amount", "close"), ["two columns are called close"]),
        (KRONOS.replace("1.25,10", "abc,10"), ["Line 2, column close", '"abc"', "Correct it"]),
        (KRONOS.replace("1.25,10", ",10"), ["Line 2, column close", "missing", "Fill it in"]),
        (KRONOS.replace("1.25,10", "NaN,10"), ["Line 2, column close", "missing"]),
        (KRONOS.replace("1.25,10", "inf,10"), ["Line 2, column close", "inf", "finite"]),
        (KRONOS.replace("1.25,10", "1e999,10"), ["Line 2, column close", "finite"]),
        (KRONOS.replace(",20,", ",,"), ["Line 3, column volume", "missing"]),
        (KRONOS.replace(",20,", ",-20,"), ["Line 3, column volume", "negative"]),
        (KRONOS.replace("1.75", "0"), ["Line 4, column close", "above 0"]),
        (KRONOS.replace("1.75", "-3"), ["Line 4, column close", "above 0"]),
        (KRONOS.replace("9:45", "soon"), ["Line 4, column timestamps", "soon", "YYYY-MM-DD"]),
        (KRONOS.replace("2019/11/26 9:45", ""), ["Line 4, column timestamps", "missing"]),
        (KRONOS.replace("11/26 9:45", "13/26 9:45"), ["Line 4, column timestamps"]),
        (KRONOS.replace("9:45", "9:40"), ["Lines 3 and 4", "different values", "Delete"]),
        (KRONOS + "some words\n", ["Line 5 has 1 value, the header has 7"]),
        (KRONOS + "1,2,3\n", ["Line 5 has 3 values, the header has 7"]),
        ("\n\n" + KRONOS.replace("1.25,10", "x,10"), ["Line 4, column close"]),
        (KRONOS.replace("\n", "\n\n").replace("1.75", "x"), ["Line 7, column close"]),
        (with_times("0", "1"), ["Line 2, column time", "not a plausible Unix time"]),
        (with_times("1704186000", "9" * 25), ["Line 3, column time"]),
        (with_times("3024-01-01", "3024-01-02"), ["Line 2, column time", "not a plausible"]),
        ("a," * 2000 + "timestamps,open,high,low,close\n1", ["has 2,005 columns"]),
        ("a," * 100_000 + "close\n1", ["too long for a header"]),
        (
            "time,open,high,low,close\n" + '"' + "x" * 200_000 + '",1,2,1,y\n',
            ["Row 1 of the table"],
        ),
    ],
)
def test_what_cannot_be_read_is_explained(text: str | bytes, parts: list[str]) -> None:
    message = refusal(text)
    for part in parts:
        assert part in message


def test_rows_in_another_order_are_sorted_with_a_finding() -> None:
    lines = ROWS.splitlines(keepends=True)
    reversed_ = read_one(HEADER + "".join(lines[::-1]))
    mixed = read_one(HEADER + "".join([lines[1], lines[0], lines[2]]))
    for series, note in ((reversed_, "newest first"), (mixed, "1 row was out of time order")):
        pd.testing.assert_frame_equal(series.frame, read_one(KRONOS).frame)
        assert note in series.findings[0]


def test_lines_are_named_as_in_the_file_also_after_sorting() -> None:
    lines = ROWS.replace("1.75", "0").splitlines(keepends=True)
    assert "Line 2, column close" in refusal(HEADER + "".join(lines[::-1]))


def test_repeated_identical_rows_are_dropped_with_a_finding() -> None:
    series = read_one(KRONOS + ROWS.splitlines()[0] + "\n")
    pd.testing.assert_frame_equal(series.frame, read_one(KRONOS).frame)
    assert "1 repeated identical row was dropped." in series.findings


def test_without_volume_both_are_zero_with_a_finding() -> None:
    series = read_one(with_times("2024-01-02", "2024-01-03"))
    assert (series.frame[["volume", "amount"]] == 0).all(axis=None)
    assert "No volume column: volume and amount are 0." in series.findings


def test_a_high_below_the_close_is_a_finding_with_its_line() -> None:
    series = read_one(KRONOS.replace("1.5,2,0.5,1.75", "1.5,1.6,0.5,1.75"))
    assert "1 bar has a high below" in series.findings[-1]
    assert "line 4 is the first" in series.findings[-1]


@settings(max_examples=50, deadline=None)
@given(
    values=hnp.arrays(
        np.float64, st.tuples(st.integers(2, 20), st.just(6)), elements=st.floats(1e-6, 1e12)
    ),
    delimiter=st.sampled_from([",", ";", "\t", "|"]),
    decimal=st.sampled_from([".", ","]),
    order=st.permutations(["timestamps", *CHANNELS]),
    time_format=st.sampled_from([None, "%Y/%m/%d %H:%M", "%d.%m.%Y %H:%M:%S", "%Y-%m-%dT%H:%MZ"]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "latin-1"]),
    newest_first=st.booleans(),
)
def test_any_frame_in_any_clothes_reads_back_equal(
    values: np.ndarray,
    delimiter: str,
    decimal: str,
    order: list[str],
    time_format: str | None,
    encoding: str,
    newest_first: bool,
) -> None:
    stamps = pd.date_range("2024-01-01 09:00", periods=len(values), freq="h", tz="UTC", unit="ns")
    frame = pd.DataFrame(values, columns=list(CHANNELS))
    frame.insert(0, "timestamps", stamps)
    written = frame[::-1] if newest_first else frame
    text = written[order].to_csv(
        index=False,
        sep=delimiter,
        decimal="." if delimiter == "," else decimal,
        date_format=time_format,
    )
    pd.testing.assert_frame_equal(read_one(text.encode(encoding)).frame, frame, check_exact=True)


def mutated(content: bytes, chance: random.Random) -> bytes:
    data = bytearray(content)
    for _ in range(chance.randint(1, 5)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(4):
            case 0:
                data[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                data[at : at + chance.randint(1, 40)] = b""
            case 2:
                data[at:at] = bytes(chance.choices(b',;|\t\n\r"-+.eE0123456789 ', k=6))
            case _:
                data[at:at] = chance.choice(
                    [b"\n\n", b"1e999", b"nan", b"9" * 30, b"\xff\xfe", b'"', b"T00:00+99:99"]
                )
    return bytes(data)


@pytest.mark.parametrize(
    "name", ["no line end at the end", "semicolons and decimal commas", "utf-16"]
)
def test_damaged_files_end_in_bars_or_a_data_error(name: str) -> None:
    chance = random.Random(name)
    for _ in range(70):
        try:
            series = read_bars(mutated(SAME_FILE[name], chance))
        except DataError:
            continue
        for one in series:
            assert np.isfinite(one.frame[list(CHANNELS)].to_numpy()).all()
            assert one.frame["timestamps"].is_monotonic_increasing
