"""Crypto exchanges without a network and without ccxt: a stand-in with its documented shapes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from kronos_core.data.source_crypto import INSTALL, Crypto
from kronos_core.data.sources import Listing, SourceError, open_source

RECORDED = Path(__file__).parents[1] / "fixtures" / "sources"
CANDLES = pd.read_csv(RECORDED / "crypto_1h.csv").to_numpy().tolist()
NOW = pd.Timestamp("2024-03-10 05:30", tz="UTC")


# ccxt's errors: its name, and the one it is a kind of.
ERRORS: dict[str, type[Exception]] = {"BaseError": type("BaseError", (Exception,), {})}
for _name, _kind in {
    "BadRequest": "BaseError",
    "NetworkError": "BaseError",
    "DDoSProtection": "NetworkError",
    "RateLimitExceeded": "NetworkError",
    "RequestTimeout": "NetworkError",
}.items():
    ERRORS[_name] = type(_name, (ERRORS[_kind],), {})


class Exchange:
    """The part of ccxt's Exchange that is used; candles and markets come from recorded files."""

    name = "Kraken"
    timeframes = {"1h": 60, "1m": 1, "1d": 1440, "1w": 10080, "1M": "1M"}  # noqa: RUF012
    page = 10

    def __init__(self, options: dict[str, Any]) -> None:
        assert options == {"enableRateLimit": True}
        self.calls: list[tuple[Any, ...]] = []
        self.failures: list[Exception] = []
        self.candles = CANDLES

    def load_markets(self) -> dict[str, Any]:
        self._answer()
        markets: dict[str, Any] = json.loads((RECORDED / "crypto_markets.json").read_text())
        return markets

    def fetch_ohlcv(
        self, symbol: str, timeframe: str, since: int, limit: int
    ) -> list[list[float | None]]:
        self._answer()
        self.calls.append((symbol, timeframe, since, limit))
        until = since + limit * self.parse_timeframe(timeframe) * 1000
        return [row for row in self.candles if since <= row[0] < until]

    def feature_value(self, _symbol: str, _method: str, _parameter: str, _default: int) -> int:
        return self.page

    def parse_timeframe(self, timeframe: str) -> int:
        units = {"m": 60, "h": 3600, "d": 86400, "w": 604800, "M": 2592000}
        return int(timeframe[:-1]) * units[timeframe[-1]]

    def milliseconds(self) -> int:
        return int(NOW.timestamp() * 1000)

    def _answer(self) -> None:
        if self.failures:
            raise self.failures.pop(0)


class Newest(Exchange):
    """Serves its newest candles only, whatever is asked for."""

    def fetch_ohlcv(
        self, symbol: str, timeframe: str, since: int, limit: int
    ) -> list[list[float | None]]:
        self.calls.append((symbol, timeframe, since, limit))
        return self.candles[-8:]


@pytest.fixture
def library() -> Any:
    return SimpleNamespace(
        exchanges=["binance", "kraken", "newest"],
        binance=Exchange,
        kraken=Exchange,
        newest=Newest,
        **ERRORS,
    )


@pytest.fixture
def source(library: Any) -> Crypto:
    return Crypto("Binance", library=library, sleep=lambda _seconds: None)


def exchange_of(source: Crypto) -> Exchange:
    exchange = source._exchange
    assert isinstance(exchange, Exchange)
    return exchange


def test_a_day_of_candles_over_several_pages(source: Crypto) -> None:
    series = source.fetch("btc/usdt", "1h", start=NOW.floor("D") - pd.Timedelta(days=1))
    frame = series.frame
    assert (series.symbol, series.timezone, source.name) == ("BTC/USDT", "UTC", "crypto:binance")
    assert len(frame) == len(CANDLES) - 1
    assert frame["timestamps"].iloc[0] == pd.Timestamp("2024-03-09 02:00", tz="UTC")
    assert frame["timestamps"].iloc[-1] == pd.Timestamp("2024-03-10 04:00", tz="UTC")
    assert frame.loc[0, ["open", "high", "low", "close", "volume"]].tolist() == CANDLES[0][1:]
    assert series.findings == (
        "The bar of 2024-03-10 05:00 is not over yet and was left out.",
        "Kraken has no bars before 2024-03-09 02:00 UTC.",
    )
    hours = [
        (pd.Timestamp(since, unit="ms") - pd.Timestamp("2024-03-09")).total_seconds() / 3600
        for _, _, since, _ in exchange_of(source).calls
    ]
    assert hours == [0, 10, 20]
    assert len(frame[frame["timestamps"].dt.hour.isin([10, 11, 12])]) == 0


def test_leading_and_empty_pages_are_passed(source: Crypto) -> None:
    series = source.fetch("BTC/USDT", "1h", start=NOW - pd.Timedelta(days=4), end=NOW)
    assert len(series.frame) == len(CANDLES) - 1
    assert len(exchange_of(source).calls) == 10


def test_an_end_cuts_before_it(source: Crypto) -> None:
    start = pd.Timestamp("2024-03-09 04:00", tz="UTC")
    series = source.fetch("BTC/USDT", "1h", start=start, end=start + pd.Timedelta(hours=5))
    assert series.frame["timestamps"].dt.hour.tolist() == [4, 5, 6, 7, 8]
    assert series.findings == ()


def test_an_exchange_that_serves_only_its_newest_bars(library: Any) -> None:
    source = Crypto("newest", library=library)
    series = source.fetch("BTC/USDT", "1h", period="1d")
    assert len(series.frame) == 7
    assert "Kraken has no bars before 2024-03-09 22:00 UTC." in series.findings


def test_intervals_say_what_is_kept(library: Any, source: Crypto) -> None:
    assert source.intervals() == dict.fromkeys(("1m", "1h", "1d", "1w", "1M"))
    kraken = Crypto("kraken", library=library)
    assert list(kraken.intervals().items())[:3] == [("1m", "12h"), ("1h", "30d"), ("1d", "720d")]
    with pytest.raises(SourceError, match="30d at most, 2y was asked for"):
        kraken.fetch("BTC/USDT", "1h", period="2y")
    assert len(kraken.fetch("BTC/USDT", "1h", period="max").frame) == len(CANDLES) - 1
    exchange_of(source).page = 1000
    assert len(source.fetch("BTC/USDT", "1h", period="max").frame) == len(CANDLES) - 1


def test_months_are_over_at_their_end(source: Crypto) -> None:
    exchange = exchange_of(source)
    starts = pd.date_range("2023-12-01", "2024-03-01", freq="MS", tz="UTC")
    exchange.candles = [[stamp.timestamp() * 1000, 1, 2, 1, 2, 3] for stamp in starts]
    series = source.fetch("BTC/USDT", "1M", period="1y")
    assert series.frame["timestamps"].dt.month.tolist() == [12, 1, 2]


def test_search_ranks_and_leaves_out_what_does_not_trade(source: Crypto) -> None:
    found = source.search(" btc ")
    assert [(listing.symbol, listing.kind) for listing in found] == [
        ("BTC/USDT", "spot"),
        ("BTC/USDT:USDT", "swap"),
        ("ETH/BTC", "spot"),
        ("WBTC/USDT", "spot"),
    ]
    assert found[0] == Listing(
        symbol="BTC/USDT", name="BTC in USDT", exchange="Kraken", kind="spot"
    )
    assert source.search("ethbtc")[0].symbol == "ETH/BTC"
    assert source.search("nothing") == []
    with pytest.raises(SourceError, match="Nothing to search for"):
        source.search("")


def test_a_contract_says_how_its_volume_counts(source: Crypto) -> None:
    series = source.fetch("BTC/USDT:USDT", "1h", period="1d")
    assert "may count its volume in contracts" in series.findings[-1]


def test_impossible_requests(library: Any, source: Crypto) -> None:
    for symbol, interval, period, message in (
        ("BTC/GOLD", "1h", "1d", "no market 'BTC/GOLD'. Search for it"),
        ("BTC/USDT", "7m", "1d", "no interval '7m'. Choose one of: 1m, 1h"),
        ("BTC/USDT", "1h", "a day", "not a period"),
        ("BTC/USDT", "1m", "max", "requests of 10 bars; 600 are the most"),
        ("BTC/USDT", "1h", "1h", "No bar of BTC/USDT is over yet"),
    ):
        with pytest.raises(SourceError, match=message):
            source.fetch(symbol, interval, period=period)
    exchange_of(source).candles = []
    with pytest.raises(SourceError, match="no 1h bars of BTC/USDT between 2024-03-09"):
        source.fetch("BTC/USDT", "1h", period="1d")
    with pytest.raises(SourceError, match=r"no exchange 'nowhere'\. Write its id"):
        Crypto("nowhere", library=library)


def test_failures_say_what_to_do(library: Any) -> None:
    for failure, message in (
        (ERRORS["RateLimitExceeded"]("slow"), "too many"),
        (ERRORS["DDoSProtection"]("blocked"), "too many"),
        (
            ERRORS["RequestTimeout"]("kraken GET timed out"),
            r"not be reached \(kraken GET timed out\)",
        ),
        (ERRORS["NetworkError"]("no route"), "not be reached.*Check the connection"),
        (OSError("no route"), "not be reached"),
        (ERRORS["BadRequest"]("limit\nmore"), r"refused the request \(limit\)"),
        (ERRORS["BaseError"](), r"\(BaseError\)"),
    ):
        source = Crypto("binance", library=library, sleep=lambda _seconds: None)
        exchange_of(source).failures = [failure] * 4
        with pytest.raises(SourceError, match=message):
            source.fetch("BTC/USDT", "1h", period="1d")


def test_a_rate_limit_that_passes(library: Any) -> None:
    waits: list[float] = []
    source = Crypto("binance", library=library, sleep=waits.append)
    exchange_of(source).failures = [
        ERRORS["RateLimitExceeded"]("slow"),
        ERRORS["RequestTimeout"]("slow"),
    ]
    assert len(source.fetch("BTC/USDT", "1h", period="1d").frame) == 20
    assert waits == [1.0, 3.0]


def test_without_ccxt_it_says_how_to_install_it(
    library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ccxt", None)
    with pytest.raises(SourceError, match=r"requirements-crypto\.txt"):
        open_source("crypto:kraken")
    assert "ccxt" in INSTALL
    monkeypatch.setitem(sys.modules, "ccxt", library)
    assert open_source("crypto:kraken").name == "crypto:kraken"
