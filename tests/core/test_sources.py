"""Yahoo without a network: recorded answers go through yfinance itself, the rest is made here."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kronos_core.data.bars import DataError
from kronos_core.data.source_base import period_length
from kronos_core.data.source_yahoo import History, Request
from kronos_core.data.sources import (
    YAHOO_INTERVALS,
    Cached,
    Listing,
    Source,
    SourceError,
    Yahoo,
    open_source,
)

RECORDED = Path(__file__).parents[1] / "fixtures" / "sources"
NEW_YORK = "America/New_York"


def moment(text: str) -> pd.Timestamp:
    return pd.Timestamp(text, tz=NEW_YORK)


def frame(rows: int = 5, zone: str | None = NEW_YORK) -> pd.DataFrame:
    """The shape of yfinance's Ticker.history(actions=False)."""
    close = 180.0 + np.arange(rows)
    index = pd.date_range("2024-03-07", periods=rows, freq="D", tz=zone, name="Date")
    prices = {"Open": close - 1, "High": close + 2, "Low": close - 2, "Close": close}
    return pd.DataFrame(prices | {"Volume": np.arange(rows) + 1000}, index=index)


def answering(answer: pd.DataFrame, now: str = "2025-01-01") -> tuple[Yahoo, list[Request]]:
    """Yahoo with one answer to everything, and what it was asked."""
    asked: list[Request] = []

    def download(request: Request) -> History:
        asked.append(request)
        return History(answer)

    return Yahoo(download=download, now=lambda: moment(now)), asked


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], None]:
    """Replaces yfinance's requests: each answers with a recorded file, or raises an error."""
    import yfinance.base
    import yfinance.data
    from curl_cffi.requests.exceptions import HTTPError
    from yfinance.cache import _TzCacheDummy

    class Response:
        status_code = 200

        def __init__(self, name: str) -> None:
            self.text = (RECORDED / name).read_text()

        def json(self) -> Any:
            return json.loads(self.text)

        def raise_for_status(self) -> None:
            self.status_code = 404
            raise HTTPError("HTTP Error 404: Not Found", response=self)

    def answer_with(result: object) -> None:
        def get(_self: object, *_request: object, **_options: object) -> Response:
            if isinstance(result, Exception):
                raise result
            return Response(str(result))

        for name in ("get", "cache_get"):
            monkeypatch.setattr(yfinance.data.YfData, name, get)

    monkeypatch.setattr(yfinance.base.cache, "get_tz_cache", _TzCacheDummy)
    return answer_with


# ---------------------------------------------------------------- recorded answers


def test_a_recorded_day_chart(recorded: Callable[[object], None]) -> None:
    recorded("yahoo_daily.json")
    series = Yahoo(now=lambda: moment("2024-03-13 11:08")).fetch("test", "1d", period="1mo")
    assert (series.symbol, series.timezone) == ("TEST", NEW_YORK)
    local = series.frame["timestamps"].dt.tz_convert(NEW_YORK)
    assert local.dt.strftime("%m-%d %H:%M").tolist() == [
        f"03-{day} 00:00" for day in ("06", "07", "08", "11", "12")
    ]
    assert series.frame["close"].tolist() == pytest.approx([99.0, 100.98, 102.96, 103.0, 105.0])
    assert series.frame["open"].iloc[0] == pytest.approx(99.5 * 0.99)
    assert series.frame["volume"].tolist() == [1000, 1100, 1200, 1300, 1400]
    assert series.findings == (
        "Prices are adjusted for splits and dividends (Yahoo Finance).",
        "The bar of 2024-03-13 is not over yet and was left out.",
    )


def test_raw_prices_are_a_choice(recorded: Callable[[object], None]) -> None:
    recorded("yahoo_daily.json")
    source = Yahoo(now=lambda: moment("2024-03-13 11:08"))
    series = source.fetch("TEST", "1d", period="1mo", adjusted=False)
    assert series.frame["close"].tolist() == [100.0, 102.0, 104.0, 103.0, 105.0]
    assert "not for dividends" in series.findings[0]


@pytest.mark.parametrize(
    ("now", "bars"),
    [("2024-03-13 16:10", 5), ("2024-03-13 16:15", 6), ("2024-03-14 02:00", 6)],
)
def test_a_day_is_over_when_its_session_is(
    recorded: Callable[[object], None], now: str, bars: int
) -> None:
    recorded("yahoo_daily.json")
    series = Yahoo(now=lambda: moment(now)).fetch(
        "TEST", "1d", start=moment("2024-03-06"), end=moment("2024-03-14")
    )
    assert len(series.frame) == bars
    assert series.frame["close"].iloc[-1] == (105.0 if bars == 5 else 105.5)


def test_a_recorded_intraday_chart(recorded: Callable[[object], None]) -> None:
    recorded("yahoo_5m.json")
    series = Yahoo(now=lambda: moment("2024-03-13 09:54:40")).fetch("TEST", "5m", period="1d")
    local = series.frame["timestamps"].dt.tz_convert(NEW_YORK)
    assert local.dt.strftime("%H:%M").tolist() == ["09:30", "09:35", "09:45"]
    assert series.frame["close"].tolist() == [100.0, 100.5, 101.0]
    assert series.interval == pd.Timedelta(minutes=5)
    assert "The bar of 2024-03-13 09:50 is not over yet and was left out." in series.findings


def test_a_recorded_search(recorded: Callable[[object], None]) -> None:
    recorded("yahoo_search.json")
    assert Yahoo().search(" testing ") == [
        Listing(symbol="TEST", name="Testing Works Inc.", exchange="NASDAQ", kind="equity"),
        Listing(symbol="TST.DE", name="TESTING WORKS", exchange="XETRA", kind="equity"),
        Listing(symbol="TEST-USD", name="TEST-USD", exchange="CCC", kind="cryptocurrency"),
    ]
    with pytest.raises(SourceError, match="Nothing to search for"):
        Yahoo().search("  ")


def test_failures_say_what_to_do(
    recorded: Callable[[object], None],
    waits: list[float],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    from curl_cffi.requests.exceptions import DNSError
    from yfinance.exceptions import YFRateLimitError

    # yfinance looks for an unknown ticker elsewhere too, but only twice in the life of a process.
    monkeypatch.setattr("yfinance.base._tz_info_fetch_ctr", 1)
    logger = logging.getLogger("yfinance")
    before = (list(logger.handlers), logger.propagate)
    source = Yahoo(sleep=waits.append)
    for result, message in (
        (OSError("Could not resolve host"), "could not be reached. Check the connection"),
        (socket.gaierror("no"), "could not be reached"),
        (DNSError("curl: (6)", response=SimpleNamespace(status_code=0)), "could not be reached"),
        ("yahoo_unknown.json", "answer: HTTP Error 404: Not Found. Check the spelling"),
        ("yahoo_unknown.json", "answer: .*symbol may be delisted. Check the spelling"),
        (KeyError("chart"), "returned no bars"),
        (YFRateLimitError(), "too many"),
    ):
        recorded(result)
        with pytest.raises(SourceError, match=message):
            source.fetch("NOSUCH", "1d", period="5d")
    assert waits == [1.0, 3.0, 9.0]
    with pytest.raises(SourceError, match="too many"):
        source.search("apple")
    assert capfd.readouterr() == ("", "")
    assert (list(logger.handlers), logger.propagate) == before


def test_a_rate_limit_that_passes(waits: list[float]) -> None:
    from yfinance.exceptions import YFRateLimitError

    answers = [YFRateLimitError(), YFRateLimitError(), None]

    def download(_request: Request) -> History:
        if error := answers.pop(0):
            raise error
        return History(frame())

    source = Yahoo(download=download, sleep=waits.append)
    assert len(source.fetch("AAPL", "1d", period="5d").frame) == 5
    assert waits == [1.0, 3.0]


# ---------------------------------------------------------------- requests


def test_the_request_and_the_exchanges_zone_are_kept() -> None:
    source, asked = answering(frame())
    series = source.fetch(" aapl ", "1d", period="5D")
    assert asked == [Request("AAPL", "1d", "5d", None, None, adjusted=True)]
    assert (series.symbol, series.timezone) == ("AAPL", NEW_YORK)
    assert series.frame["close"].tolist() == [180.0, 181.0, 182.0, 183.0, 184.0]
    naive = answering(frame(zone=None))[0].fetch("X", "1d", period="5d")
    assert naive.timezone == "UTC"


def test_max_becomes_the_longest_period_of_the_interval() -> None:
    source, asked = answering(frame())
    for interval in YAHOO_INTERVALS:
        source.fetch("X", interval, period="max")
    assert [request.period for request in asked] == list(YAHOO_INTERVALS.values())
    assert source.intervals() == {
        name: None if longest == "max" else longest for name, longest in YAHOO_INTERVALS.items()
    }


@pytest.mark.parametrize(
    ("interval", "now", "left"),
    [("1wk", "2024-03-15", 0), ("1wk", "2024-03-18", 2), ("1mo", "2024-03-31", 0)],
)
def test_weeks_and_months_that_are_not_over(interval: str, now: str, left: int) -> None:
    step = "W-MON" if interval == "1wk" else "MS"
    bars = frame(3).set_axis(pd.date_range("2024-03-04", periods=3, freq=step, tz=NEW_YORK))
    source, _ = answering(bars, now)
    if left:
        assert len(source.fetch("X", interval, period="1y").frame) == left
    else:
        with pytest.raises(DataError, match=r"only (bar|one bar)"):
            source.fetch("X", interval, period="1y")


def test_broken_and_repeated_rows_are_left_out_with_a_finding() -> None:
    bars = frame()
    bars.iloc[1, :4] = np.nan
    repeated = bars.iloc[[-1]].assign(Close=999.0, High=1000.0)
    series = answering(pd.concat([bars, repeated]))[0].fetch("X", "1d", period="5d")
    assert len(series.frame) == 4
    assert series.frame["close"].iloc[-1] == 999.0
    assert any("1 row without prices" in finding for finding in series.findings)
    assert any("1 repeated time" in finding for finding in series.findings)


@pytest.mark.parametrize(
    ("ticker", "interval", "span", "message"),
    [
        ("", "1d", {"period": "1y"}, "not a ticker"),
        ("AAPL MSFT", "1d", {"period": "1y"}, "not a ticker"),
        ("AAPL", "7m", {"period": "1y"}, "no interval '7m'"),
        ("AAPL", "1d", {"period": "1 year"}, "not a period"),
        ("AAPL", "1d", {"period": "0d"}, "not a period"),
        ("AAPL", "1h", {"period": "12h"}, "The shortest is 1d"),
        ("AAPL", "1m", {"period": "1mo"}, "7d at most"),
        ("AAPL", "15m", {"period": "1y"}, "60d at most"),
        ("AAPL", "1h", {"period": "5y"}, "730d at most"),
        ("AAPL", "5m", {"period": "ytd"}, "60d at most"),
        ("AAPL", "5m", {"start": moment("2024-01-02")}, "60d at most, a start on 2024-01-02"),
        ("AAPL", "1d", {}, "either a period, or a start"),
        ("AAPL", "1d", {"period": "1y", "start": moment("2024-01-02")}, "either a period"),
        ("AAPL", "1d", {"start": pd.Timestamp("2024-01-02")}, "need a time zone"),
        (
            "AAPL",
            "1d",
            {"start": moment("2024-01-02"), "end": moment("2024-01-01")},
            "not after the start",
        ),
    ],
)
def test_impossible_requests_are_refused_before_any_download(
    ticker: str, interval: str, span: dict[str, Any], message: str
) -> None:
    source, asked = answering(frame())
    with pytest.raises(SourceError, match=message):
        source.fetch(ticker, interval, **span)
    assert asked == []


def test_answers_without_usable_bars() -> None:
    for answer, message in (
        (frame().iloc[:0], r"no bars for X .*upload a CSV"),
        (frame().drop(columns="Close"), "lacks close"),
        (frame() * np.nan, "all empty"),
        (frame(1), "only one bar"),
    ):
        with pytest.raises(DataError, match=message):
            answering(answer)[0].fetch("X", "1d", period="5d")


@pytest.mark.parametrize(
    ("text", "days"), [("12h", 0.5), ("7d", 7), ("3wk", 21), ("6mo", 180), ("99999y", 36500)]
)
def test_periods(text: str, days: float) -> None:
    assert period_length(text) == pd.Timedelta(days=days)


# ---------------------------------------------------------------- names and the cache


def test_sources_by_name(tmp_path: Path) -> None:
    assert isinstance(open_source("Yahoo"), Yahoo)
    kept = open_source("yahoo", tmp_path)
    assert isinstance(kept, Cached)
    assert kept.name == "yahoo"
    for name in ("", "bloomberg", "crypto:"):
        with pytest.raises(SourceError, match="Write yahoo, or crypto:"):
            open_source(name)


class Counting:
    """A source that counts its requests."""

    name = "counting"

    def __init__(self) -> None:
        self.requests = 0
        self._source, _ = answering(frame())

    def search(self, text: str) -> list[Listing]:
        return [Listing(symbol=text, name=text, exchange="", kind="")]

    def intervals(self) -> dict[str, str | None]:
        return self._source.intervals()

    def fetch(self, symbol: str, interval: str, **options: Any) -> Any:
        self.requests += 1
        return self._source.fetch(symbol, interval, **options)


def test_identical_requests_come_from_a_file(tmp_path: Path) -> None:
    clock = [1000.0]
    source = Counting()
    cached: Source = Cached(source, tmp_path / "answers", seconds=300, clock=lambda: clock[0])
    first = cached.fetch("AAPL", "1d", period="1y")
    again = cached.fetch(" AAPL", "1d", period="1y")
    assert source.requests == 1
    pd.testing.assert_frame_equal(again.frame, first.frame)
    assert again.frame.attrs == {}
    for name in ("symbol", "interval", "timezone", "findings"):
        assert getattr(again, name) == getattr(first, name)
    for options in (
        {"period": "2y"},
        {"period": "1y", "adjusted": False},
        {"start": moment("2024-03-01")},
    ):
        cached.fetch("AAPL", "1d", **options)
    assert source.requests == 4
    assert len(list((tmp_path / "answers").iterdir())) == 4
    clock[0] += 301
    cached.fetch("AAPL", "1d", period="1y")
    assert source.requests == 5
    assert len(list((tmp_path / "answers").iterdir())) == 1
    assert cached.search("x")[0].symbol == "x"
    assert cached.intervals() == source.intervals()


def test_a_damaged_answer_is_asked_for_again(tmp_path: Path) -> None:
    source = Counting()
    cached = Cached(source, tmp_path)
    cached.fetch("AAPL", "1d", period="1y")
    (path,) = tmp_path.iterdir()
    path.write_bytes(b"half a file")
    assert len(cached.fetch("AAPL", "1d", period="1y").frame) == 5
    assert source.requests == 2
    frame().to_parquet(path)
    assert len(cached.fetch("AAPL", "1d", period="1y").frame) == 5
    assert source.requests == 3
    with pytest.raises(SourceError):
        cached.fetch("AAPL", "1d", period="a while")
