"""Any bars written in any dialect and read back equal themselves, to the last bit."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import openpyxl
import pandas as pd
import pyarrow.feather
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kronos_core import AmbiguityError, ReadingChoices, read_bars
from kronos_core.data.bars import CHANNELS

Write = Callable[[pd.DataFrame], bytes]
DAY, HOUR = pd.Timedelta(days=1), pd.Timedelta(hours=1)


@dataclass(frozen=True)
class Writer:
    """How a dialect writes bars: titles -> channel, the form of times, and the rest of the file.

    amount, volume: whether it writes them. choices: for the question that it leaves open.
    """

    titles: dict[str, str] | list[str]
    time: str | Callable[[pd.Series], pd.Series]
    step: pd.Timedelta = DAY
    sep: str = ","
    decimal: str = "."
    encoding: str = "utf-8"
    quote: bool = False
    before: str = ""
    newest_first: bool = False
    number: Callable[[float], str] = repr
    volume: Callable[[float], str] | None = None
    extra: dict[str, str] = field(default_factory=dict)
    choices: ReadingChoices | None = None

    def write(self, frame: pd.DataFrame) -> bytes:
        titles = self.titles
        headed = isinstance(titles, dict)
        channels = list(titles.values()) if isinstance(titles, dict) else titles
        columns = {}
        for at, channel in enumerate(channels):
            columns[at] = self._column(frame, channel)
        table = pd.DataFrame(columns)
        rows = table[::-1] if self.newest_first else table
        text = rows.to_csv(
            index=False,
            header=list(titles) if headed else False,
            sep=self.sep,
            quoting=1 if self.quote else 0,
        )
        return (self.before + text).encode(self.encoding)

    def _column(self, frame: pd.DataFrame, channel: str) -> pd.Series:
        if channel in ("timestamps", "clock"):
            stamps = frame["timestamps"].dt.tz_localize(None)
            if channel == "clock":
                return stamps.dt.strftime("%H:%M:%S")
            return (
                stamps.dt.strftime(self.time) if isinstance(self.time, str) else self.time(stamps)
            )
        if channel not in CHANNELS:
            return pd.Series([channel] * len(frame))
        form = self.volume if channel == "volume" and self.volume else self.number
        texts = frame[channel].map(lambda value: form(float(value)))
        if self.decimal == ",":
            texts = texts.str.replace(",", "x").str.replace(".", ",").str.replace("x", ".")
        return texts


def unix(unit: str) -> Callable[[pd.Series], pd.Series]:
    return lambda stamps: stamps.dt.as_unit(unit).astype("int64").astype(str)


def mixed_units(stamps: pd.Series) -> pd.Series:
    units = ["s", "ms", "us", "ns"]
    values = [unix(unit)(stamps) for unit in units]
    return pd.Series([values[at % 4][at] for at in range(len(stamps))])


def grouped(value: float) -> str:
    return f"{value:,.6f}"


def dollars(value: float) -> str:
    return f"${value!r}"


def millions(value: float) -> str:
    return f"{value / 1e6:.2f}M"


def english(**others: str) -> dict[str, str]:
    names = {"Date": "timestamps", **{name.title(): name for name in CHANNELS[:4]}}
    return {**names, **others}


OHLC = list(CHANNELS[:4])
OHLCV = list(CHANNELS[:5])
WRITERS = {
    "Kronos": Writer({name: name for name in ["timestamps", *CHANNELS]}, "%Y/%m/%d %H:%M", HOUR),
    "Yahoo": Writer(english(**{"Adj Close": "1.5", "Volume": "volume"}), "%Y-%m-%d"),
    "Binance, ms": Writer(
        ["timestamps", *OHLCV, "1704070799999", "amount", "1", "1", "1", "0"], unix("ms"), HOUR
    ),
    "Binance, µs": Writer(
        ["timestamps", *OHLCV, "1735693199999999", "amount", "1", "1", "1", "0"], unix("us"), HOUR
    ),
    "Binance, mixed": Writer(
        {"open_time": "timestamps", **{name: name for name in OHLCV}, "quote_volume": "amount"},
        mixed_units,
        HOUR,
    ),
    "MetaTrader 5": Writer(
        {
            "<DATE>": "timestamps",
            "<TIME>": "clock",
            **{f"<{name.upper()}>": name for name in OHLC},
            "<TICKVOL>": "volume",
            "<VOL>": "0",
        },
        "%Y.%m.%d",
        HOUR,
        sep="\t",
        encoding="utf-16",
    ),
    "MetaTrader 4": Writer(["timestamps", "clock", *OHLCV], "%Y.%m.%d", HOUR),
    "TradingView": Writer(
        {"time": "timestamps", **{name: name for name in OHLC}, "Volume": "volume", "RSI": "50.5"},
        unix("s"),
        HOUR,
    ),
    "TradingView, ISO": Writer(
        {"time": "timestamps", **{name: name for name in OHLC}, "Volume": "volume"},
        lambda stamps: (stamps - pd.Timedelta(hours=5)).dt.strftime("%Y-%m-%dT%H:%M:%S") + "-05:00",
        HOUR,
    ),
    "Stooq": Writer(
        {
            "<TICKER>": "X.US",
            "<PER>": "60",
            "<DATE>": "timestamps",
            "<TIME>": "clock",
            **{f"<{name.upper()}>": name for name in OHLC},
            "<VOL>": "volume",
            "<OPENINT>": "0",
        },
        "%Y%m%d",
        HOUR,
    ),
    "Stooq, Polish": Writer(
        {
            "Data": "timestamps",
            "Otwarcie": "open",
            "Najwyzszy": "high",
            "Najnizszy": "low",
            "Zamkniecie": "close",
            "Wolumen": "volume",
        },
        "%Y-%m-%d",
    ),
    "Investing.com": Writer(
        {
            "Date": "timestamps",
            "Price": "close",
            **{name.title(): name for name in OHLC[:3]},
            "Vol.": "volume",
            "Change %": "0.50%",
        },
        "%b %d, %Y",
        quote=True,
        newest_first=True,
        number=grouped,
        volume=millions,
    ),
    "Investing.com, numbers": Writer(
        {
            "Date": "timestamps",
            "Price": "close",
            **{name.title(): name for name in OHLC[:3]},
            "Vol.": "volume",
            "Change %": "0.50%",
        },
        "%m/%d/%Y",
        quote=True,
        newest_first=True,
        volume=millions,
        choices=ReadingChoices(date_order="MDY"),
    ),
    "Investing.com, Portuguese": Writer(
        {
            "Data": "timestamps",
            "Último": "close",
            "Abertura": "open",
            "Máxima": "high",
            "Mínima": "low",
            "Vol.": "volume",
            "Var%": "0,50%",
        },
        "%d.%m.%Y",
        quote=True,
        newest_first=True,
        decimal=",",
        number=grouped,
        volume=millions,
        encoding="latin-1",
    ),
    "Ariva": Writer(
        {
            "Datum": "timestamps",
            "Erster": "open",
            "Hoch": "high",
            "Tief": "low",
            "Schlusskurs": "close",
            "Stuecke": "volume",
            "Volumen": "amount",
        },
        "%Y-%m-%d",
        sep=";",
        decimal=",",
        newest_first=True,
    ),
    "Nasdaq": Writer(
        {
            "Date": "timestamps",
            "Close/Last": "close",
            "Volume": "volume",
            "Open": "open",
            "High": "high",
            "Low": "low",
        },
        "%m/%d/%Y",
        number=dollars,
        volume=repr,
        newest_first=True,
    ),
    "akshare": Writer(
        {
            "日期": "timestamps",
            "开盘": "open",
            "收盘": "close",
            "最高": "high",
            "最低": "low",
            "成交量": "volume",
            "成交额": "amount",
        },
        "%Y-%m-%d",
        encoding="gbk",
    ),
    "Tushare": Writer(
        {
            "ts_code": "000001.SZ",
            "trade_date": "timestamps",
            **{name: name for name in OHLC},
            "vol": "volume",
            "amount": "amount",
        },
        "%Y%m%d",
        newest_first=True,
    ),
    "Dukascopy": Writer(
        {"Gmt time": "timestamps", **{name.title(): name for name in OHLCV}},
        "%d.%m.%Y %H:%M:%S.000",
        HOUR,
    ),
    "HistData": Writer(["timestamps", *OHLCV], "%Y%m%d %H%M%S", HOUR, sep=";"),
    "CryptoDataDownload": Writer(
        {
            "Unix": "timestamps",
            "Date": "2024-01-01 00:00:00",
            "Symbol": "BTC/USDT",
            **{name.title(): name for name in OHLC},
            "Volume BTC": "volume",
            "Volume USDT": "amount",
            "tradecount": "3",
        },
        unix("ms"),
        HOUR,
        before="https://www.CryptoDataDownload.com\n",
        newest_first=True,
    ),
}


@st.composite
def frames(draw: st.DrawFn, step: pd.Timedelta) -> pd.DataFrame:
    count = draw(st.integers(2, 12))
    numbers = st.floats(1e-4, 1e7, allow_subnormal=False).map(lambda value: round(value, 6))
    values = draw(hnp.arrays(np.float64, (count, 6), elements=numbers))
    values = np.maximum(values, 1e-4)
    prices = values[:, :4]
    values[:, 1], values[:, 2] = prices.max(axis=1), prices.min(axis=1)
    days = draw(st.integers(0, 20_000))
    start = pd.Timestamp("1974-01-01", tz="UTC") + pd.Timedelta(days=days)
    frame = pd.DataFrame(values, columns=list(CHANNELS))
    frame.insert(0, "timestamps", pd.date_range(start, periods=count, freq=step, unit="ns"))
    return frame


def prepared(frame: pd.DataFrame, writer: Writer) -> pd.DataFrame:
    """The bars as far as the dialect can write them."""
    frame = frame.copy()
    if writer.volume is millions:
        frame["volume"] = (frame["volume"] // 10_000 + 1) * 10_000
    titles = writer.titles
    channels = list(titles.values()) if isinstance(titles, dict) else titles
    if "amount" not in channels:
        frame["amount"] = frame["volume"] * frame[OHLC].to_numpy().mean(axis=1)
    return frame


def read_one(content: bytes, choices: ReadingChoices | None) -> pd.DataFrame:
    try:
        (series,) = read_bars(content)
    except AmbiguityError:
        if choices is None:
            raise
        (series,) = read_bars(content, mapping=choices)
    return series.frame


@pytest.mark.parametrize("name", WRITERS)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_dialect_reads_back_what_it_wrote(name: str, data: st.DataObject) -> None:
    writer = WRITERS[name]
    frame = prepared(data.draw(frames(writer.step)), writer)
    read = read_one(writer.write(frame), writer.choices)
    pd.testing.assert_frame_equal(read, frame, check_exact=True)


def yfinance_table(tickers: dict[str, pd.DataFrame]) -> bytes:
    fields = ["Close", "High", "Low", "Open", "Volume"]
    parts = {
        (name, ticker): frame.set_index("timestamps")[name.lower()]
        for name in fields
        for ticker, frame in tickers.items()
    }
    table = pd.DataFrame(parts)
    table.columns.names = ["Price", "Ticker"]
    table.index = pd.DatetimeIndex(table.index.tz_localize(None), name="Date")
    return table.to_csv().encode()


@settings(max_examples=30, deadline=None)
@given(first=frames(DAY), second=frames(DAY))
def test_tickers_side_by_side(first: pd.DataFrame, second: pd.DataFrame) -> None:
    first, second = (prepared(frame, WRITERS["Yahoo"]) for frame in (first, second))
    for frames_of in ({"AAPL": first}, {"AAPL": first, "BTC-USD": second}):
        found = {one.symbol: one.frame for one in read_bars(yfinance_table(frames_of))}
        assert list(found) == list(frames_of)
        for ticker, frame in frames_of.items():
            pd.testing.assert_frame_equal(found[ticker], frame, check_exact=True)


def excel(frame: pd.DataFrame) -> bytes:
    book = openpyxl.Workbook()
    naive = frame.assign(timestamps=frame["timestamps"].dt.tz_localize(None))
    for row in [list(naive.columns), *naive.to_numpy(dtype=object).tolist()]:
        book.active.append(row)
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


def parquet(frame: pd.DataFrame) -> bytes:
    file = io.BytesIO()
    frame.to_parquet(file)
    return file.getvalue()


def feather(frame: pd.DataFrame) -> bytes:
    file = io.BytesIO()
    pyarrow.feather.write_feather(frame, file)
    return file.getvalue()


def records(frame: pd.DataFrame) -> bytes:
    texts = frame.assign(timestamps=frame["timestamps"].astype(str))
    return json.dumps(texts.to_dict(orient="records")).encode()


def zipped(frame: pd.DataFrame) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("bars.csv", frame.to_csv(index=False))
    return file.getvalue()


CONTAINERS: dict[str, Write] = {
    "excel": excel,
    "parquet": parquet,
    "feather": feather,
    "json": records,
    "zip": zipped,
    "gzip": lambda frame: gzip.compress(frame.to_csv(index=False).encode()),
}


@pytest.mark.parametrize("name", CONTAINERS)
@settings(max_examples=20, deadline=None)
@given(frame=frames(HOUR))
def test_a_container_gives_back_what_it_holds(name: str, frame: pd.DataFrame) -> None:
    (series,) = read_bars(CONTAINERS[name](frame))
    pd.testing.assert_frame_equal(series.frame, frame, check_exact=True)
