"""The bars of every sample file, read a second time without the reader.

Each file has a description of its own, made from the file's text and what is documented of the
program that writes it: where its columns stand and how it writes times and numbers. Only the
standard library reads it here (openpyxl and pyarrow for their own files), so that neither the
reader nor the bars in dialect_samples.py can confirm themselves.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import openpyxl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from kronos_core import ReadingChoices, Series, read_bars
from kronos_core.data.samples import load_sample
from tests.core.dialect_samples import FOLDER, SAMPLES

Row = tuple[datetime, float, float, float, float, float, float | None]
Found = dict[str | None, list[Row]]
BUNDLED = Path(__file__).parents[2] / "kronos_core" / "data" / "assets"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SUFFIXES = {"K": 3, "M": 6, "B": 9}
DIGITS_A_SECOND = {10: 1, 13: 1_000, 16: 1_000_000}  # digits of a present-day time -> its unit


@dataclass(frozen=True)
class Table:
    """How one file writes its bars.

    prices: the positions of open, high, low and close; volume and amount: theirs, None where
    there is no such column. symbol: its position, or the symbol itself. stamp: a strptime format,
    for the cells at `time` joined by a space, "unix" for Unix time or "iso" for ISO 8601. skip:
    lines before the bars. zone: of times that carry none. thousands, decimal: marks of numbers.
    lots: factors of volume and amount. adjusted: the position of a close that scales the prices.
    """

    prices: tuple[int, int, int, int]
    volume: int
    stamp: str
    amount: int | None = None
    symbol: int | str | None = None
    time: tuple[int, ...] = (0,)
    skip: int = 1
    delimiter: str = ","
    encoding: str = "utf-8"
    zone: tzinfo = UTC
    thousands: str = ""
    decimal: str = "."
    lots: tuple[float, float] = (1.0, 1.0)
    adjusted: int | None = None

    def number(self, text: str) -> float:
        text = text.strip().removeprefix("$")
        if self.thousands:
            text = text.replace(self.thousands, "")
        power = SUFFIXES.get(text[-1], 0)
        digits = (text[:-1] if power else text).replace(self.decimal, ".")
        return float(Decimal(digits).scaleb(power))

    def moment(self, text: str) -> datetime:
        if self.stamp == "unix":
            return EPOCH + timedelta(microseconds=int(text) * 10**6 // DIGITS_A_SECOND[len(text)])
        if self.stamp == "iso":
            return datetime.fromisoformat(text).astimezone(UTC)
        local = datetime.strptime(text, self.stamp).replace(tzinfo=self.zone)
        return local.astimezone(UTC)

    def bar(self, cells: list[str]) -> Row:
        prices = [self.number(cells[at]) for at in self.prices]
        if self.adjusted is not None:
            prices = [price * (self.number(cells[self.adjusted]) / prices[3]) for price in prices]
        volume, amount = 0.0, None
        if not cells[self.volume]:
            amount = 0.0  # a bar without volume has no amount either
        else:
            volume = self.number(cells[self.volume]) * self.lots[0]
        if self.amount is not None:
            amount = self.number(cells[self.amount]) * self.lots[1]
        stamp = self.moment(" ".join(cells[at] for at in self.time))
        first, high, low, close = prices
        return stamp, first, high, low, close, volume, amount

    def read(self, content: bytes) -> Found:
        lines = io.StringIO(content.decode(self.encoding), newline="")
        found: Found = {}
        for cells in list(csv.reader(lines, delimiter=self.delimiter))[self.skip :]:
            if cells[self.prices[3]]:  # tickers side by side do not trade on the same days
                symbol = cells[self.symbol] if isinstance(self.symbol, int) else self.symbol
                found.setdefault(symbol, []).append(self.bar(cells))
        return {symbol: sorted(rows) for symbol, rows in found.items()}


BINANCE = Table(prices=(1, 2, 3, 4), volume=5, amount=7, stamp="unix")
INVESTING = Table(prices=(2, 3, 4, 1), volume=5, stamp="%m/%d/%Y", thousands=",")
PORTUGUESE = replace(INVESTING, stamp="%d.%m.%Y", thousands=".", decimal=",")
KRONOS = Table(prices=(1, 2, 3, 4), volume=5, amount=6, stamp="%Y/%m/%d %H:%M")
STOOQ = Table(prices=(4, 5, 6, 7), volume=8, symbol=0, time=(2, 3), stamp="%Y%m%d %H%M%S")
TRADINGVIEW = Table(prices=(1, 2, 3, 4), volume=5, stamp="unix")
YAHOO = Table(prices=(1, 2, 3, 4), volume=6, stamp="%Y-%m-%d")
AKSHARE = Table(prices=(2, 4, 5, 3), volume=6, amount=7, symbol=1, stamp="%Y-%m-%d", encoding="gbk")
TUSHARE = Table(prices=(2, 3, 4, 5), volume=9, amount=10, symbol=0, time=(1,), stamp="%Y%m%d")
HISTDATA = Table(prices=(1, 2, 3, 4), volume=5, stamp="%Y%m%d %H%M%S", delimiter=";", skip=0)
WIDE = Table(prices=(7, 3, 5, 1), volume=9, symbol="AAPL", stamp="%Y-%m-%d", skip=3)
# A file with tickers side by side is one table for each of them.
TABLES: dict[str, tuple[Table, ...]] = {
    "akshare_daily.csv": (AKSHARE,),
    "akshare_minutes.csv": (
        Table(prices=(1, 3, 4, 2), volume=5, amount=6, stamp="%Y-%m-%d %H:%M:%S"),
    ),
    # Stücke is the number of shares, Volumen what they were traded for.
    "ariva.csv": (
        Table(
            prices=(1, 2, 3, 4),
            volume=5,
            amount=6,
            stamp="%Y-%m-%d",
            delimiter=";",
            thousands=".",
            decimal=",",
        ),
    ),
    "binance_headed.csv": (BINANCE,),
    "binance_mixed_units.csv": (BINANCE,),
    "binance_ms.csv": (replace(BINANCE, skip=0),),
    "binance_us.csv": (replace(BINANCE, skip=0),),
    "cryptodatadownload.csv": (
        Table(prices=(3, 4, 5, 6), volume=7, amount=8, symbol=2, stamp="unix", skip=2),
    ),
    "dukascopy.csv": (Table(prices=(1, 2, 3, 4), volume=5, stamp="%d.%m.%Y %H:%M:%S.%f"),),
    "histdata.csv": (HISTDATA,),
    "investing_names.csv": (replace(INVESTING, stamp="%b %d, %Y", encoding="utf-8-sig"),),
    "investing_numeric.csv": (INVESTING,),
    "investing_portuguese.csv": (PORTUGUESE,),
    "investing_portuguese_index.csv": (PORTUGUESE,),
    "kronos.csv": (KRONOS,),
    "kronos_shuffled_columns.csv": (
        replace(KRONOS, prices=(5, 4, 6, 1), volume=2, amount=0, time=(3,)),
    ),
    "metatrader4.csv": (
        Table(prices=(2, 3, 4, 5), volume=6, time=(0, 1), stamp="%Y.%m.%d %H:%M", skip=0),
    ),
    # <VOL> holds zeros only, as for every currency pair; <TICKVOL> is what there is.
    "metatrader5.csv": (
        Table(
            prices=(2, 3, 4, 5),
            volume=6,
            time=(0, 1),
            stamp="%Y.%m.%d %H:%M:%S",
            delimiter="\t",
            encoding="utf-16",
        ),
    ),
    "nasdaq.csv": (Table(prices=(3, 4, 5, 1), volume=2, stamp="%m/%d/%Y"),),
    "stooq.csv": (STOOQ,),
    "stooq_daily.txt": (STOOQ,),
    "stooq_polish.csv": (Table(prices=(1, 2, 3, 4), volume=5, stamp="%Y-%m-%d"),),
    "symbols.csv": (Table(prices=(2, 3, 4, 5), volume=6, symbol=1, stamp="%Y-%m-%d"),),
    "tradingview_iso.csv": (replace(TRADINGVIEW, stamp="iso"),),
    "tradingview_unix.csv": (TRADINGVIEW,),
    "tushare.csv": (TUSHARE,),
    "yahoo.csv": (YAHOO,),
    "yfinance_one.csv": (replace(WIDE, prices=(4, 2, 3, 1), volume=5),),
    "yfinance_wide.csv": (
        WIDE,
        replace(WIDE, prices=(8, 4, 6, 2), volume=10, symbol="BTC-USD"),
    ),
}
# What may be chosen for a file when it is read, and the same in the description of the file.
CHOSEN: list[tuple[str, ReadingChoices, Table]] = [
    # HistData writes Eastern Standard Time the whole year, without summer time.
    (
        "histdata.csv",
        ReadingChoices(timezone="Etc/GMT+5"),
        replace(HISTDATA, zone=timezone(timedelta(hours=-5))),
    ),
    (
        "akshare_daily.csv",
        ReadingChoices(timezone="Asia/Shanghai"),
        replace(AKSHARE, zone=ZoneInfo("Asia/Shanghai")),
    ),
    (
        "stooq.csv",
        ReadingChoices(timezone="Europe/Warsaw"),
        replace(STOOQ, zone=ZoneInfo("Europe/Warsaw")),
    ),
    # Tushare counts volume in lots of 100 shares and amount in thousands of yuan.
    (
        "tushare.csv",
        ReadingChoices(volume_factor=100.0, amount_factor=1000.0),
        replace(TUSHARE, lots=(100.0, 1000.0)),
    ),
    ("yahoo.csv", ReadingChoices(prices="adjusted"), replace(YAHOO, adjusted=5)),
]


def bars_of(name: str) -> Found:
    """The bars of a text sample by its own description."""
    content = (FOLDER / name).read_bytes()
    found: Found = {}
    for table in TABLES[name]:
        found |= table.read(content)
    return found


def expected_bars(name: str) -> Found:
    """The bars in dialect_samples.py."""
    return {
        symbol: [(datetime.fromisoformat(row[0]).replace(tzinfo=UTC), *row[1:]) for row in rows]
        for symbol, rows in SAMPLES[name].series.items()
    }


def with_amount(row: Row) -> Row:
    """An amount that is not in the file is volume × the mean of the four prices."""
    stamp, first, high, low, close, volume, amount = row
    if amount is None:
        amount = volume * ((first + high + low + close) / 4)
    return stamp, first, high, low, close, volume, amount


def rows_of(series: Series) -> Iterator[Row]:
    for stamp, *values in series.frame.itertuples(index=False):
        yield (stamp.to_pydatetime(), *values)


def check_reader(found: list[Series], bars: Found) -> None:
    """What the reader makes of a file is exactly these bars."""
    assert [series.symbol for series in found] == list(bars)
    for series, rows in zip(found, bars.values(), strict=True):
        assert list(rows_of(series)) == [with_amount(row) for row in rows]


def test_every_sample_has_a_description() -> None:
    assert {*TABLES, "records.json"} == set(SAMPLES)


@pytest.mark.parametrize("name", TABLES)
def test_the_expected_bars_are_what_the_file_says(name: str) -> None:
    assert expected_bars(name) == bars_of(name)


def test_the_expected_bars_of_json() -> None:
    records = json.loads((FOLDER / "records.json").read_bytes())
    names = ("open", "high", "low", "close", "volume")
    rows = [
        (EPOCH + timedelta(seconds=one["timestamp"]), *(one[name] for name in names), None)
        for one in records
    ]
    assert expected_bars("records.json") == {None: rows}


def test_a_message_in_place_of_bars_holds_none() -> None:
    assert (FOLDER / "stooq_limit.csv").read_text() == "Exceeded the daily hits limit"


@pytest.mark.parametrize(("name", "choices", "table"), CHOSEN, ids=[name for name, _, _ in CHOSEN])
def test_choices_mean_what_they_say(name: str, choices: ReadingChoices, table: Table) -> None:
    content = (FOLDER / name).read_bytes()
    check_reader(read_bars(content, mapping=choices), table.read(content))


@pytest.mark.parametrize("name", TABLES)
def test_packed_samples(name: str) -> None:
    content = (FOLDER / name).read_bytes()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    for packed in (gzip.compress(content), file.getvalue()):
        check_reader(read_bars(packed), bars_of(name))


def typed_columns() -> dict[str, list[datetime] | list[float]]:
    """The bars of kronos.csv by column, as a program with types of its own holds them."""
    (rows,) = bars_of("kronos.csv").values()
    stamps, *channels = zip(*rows, strict=True)
    names = ("open", "high", "low", "close", "volume", "amount")
    columns: dict[str, list[datetime] | list[float]] = {
        "timestamps": [stamp.replace(tzinfo=None) for stamp in stamps]
    }
    return columns | {name: list(values) for name, values in zip(names, channels, strict=True)}


def excel() -> bytes:
    book, file = openpyxl.Workbook(), io.BytesIO()
    columns = typed_columns()
    book.active.append(list(columns))
    for row in zip(*columns.values(), strict=True):
        book.active.append(row)
    book.save(file)
    return file.getvalue()


def rows_of_excel(content: bytes) -> list[Row]:
    sheet = openpyxl.load_workbook(io.BytesIO(content)).active
    cells = list(sheet.iter_rows(min_row=2, values_only=True))
    return [(stamp.replace(tzinfo=UTC), *map(float, values)) for stamp, *values in cells]


def parquet() -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pa.table(typed_columns()), file)
    return file.getvalue()


def feather() -> bytes:
    file = io.BytesIO()
    pyarrow.feather.write_feather(pa.table(typed_columns()), file)
    return file.getvalue()


def rows_of_arrow(table: pa.Table) -> list[Row]:
    columns = [table.column(at).to_pylist() for at in range(table.num_columns)]
    return [(stamp.replace(tzinfo=UTC), *values) for stamp, *values in zip(*columns, strict=True)]


def rows_of_parquet(content: bytes) -> list[Row]:
    return rows_of_arrow(pyarrow.parquet.read_table(io.BytesIO(content)))


def rows_of_feather(content: bytes) -> list[Row]:
    return rows_of_arrow(pyarrow.feather.read_table(io.BytesIO(content)))


@pytest.mark.parametrize(
    ("write", "read"),
    [(excel, rows_of_excel), (parquet, rows_of_parquet), (feather, rows_of_feather)],
    ids=["excel", "parquet", "feather"],
)
def test_files_with_types(write: Callable[[], bytes], read: Callable[[bytes], list[Row]]) -> None:
    content = write()
    assert {None: read(content)} == expected_bars("kronos.csv")
    check_reader(read_bars(content), {None: read(content)})


@pytest.mark.parametrize(("key", "symbol"), [("sp500", "^GSPC"), ("nasdaq", "^IXIC")])
def test_bundled_samples(key: str, symbol: str) -> None:
    table = pyarrow.parquet.read_table(BUNDLED / f"{key}.parquet")
    names = ["timestamps", "open", "high", "low", "close", "volume", "amount"]
    assert table.num_rows > 5000
    check_reader([load_sample(key)], {symbol: rows_of_arrow(table.select(names))})
