"""Crypto exchanges by ccxt, which is optional: see requirements-crypto.txt."""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pandas as pd

from kronos_core.data.bars import Series, make_series
from kronos_core.data.source_base import (
    REMEDY,
    Answer,
    Listing,
    Sleep,
    SourceError,
    captured_log,
    check_span,
    check_within,
    period_length,
    retried,
    without_broken_rows,
    without_unfinished,
)

INSTALL = (
    "Crypto exchanges need the package ccxt, which is not installed. Install it with "
    "pip install --no-deps -r requirements-crypto.txt and start again, or upload a CSV file."
)
EXCHANGES = ("binance", "bitfinex", "bitstamp", "bybit", "coinbase", "kraken", "kucoin", "okx")
# Exchanges that serve only their newest bars, whatever start is asked for.
NEWEST_ONLY = {"kraken": 720}
_COLUMNS = ("time", "open", "high", "low", "close", "volume")
_KINDS = ("spot", "swap", "future")
_USUAL_PAGE = 500
_MOST_PAGES = 600
_MOST_LISTINGS = 50
_BEGINNING = pd.Timestamp("2010-01-01", tz="UTC")  # no exchange has older bars
_SECOND = pd.Timedelta(seconds=1)


class Crypto:
    """One crypto exchange behind the protocol `Source`.

    exchange: ccxt's id, such as "binance" or "kraken". library and sleep stand in for the module
    ccxt and `time.sleep`. Raises SourceError without ccxt, and for an exchange it does not know.
    A request that is refused because there were too many, or that nobody answers, is repeated
    after 1, 3 and 9 seconds. Not for use by several threads at once.
    """

    def __init__(self, exchange: str, *, library: Any = None, sleep: Sleep = time.sleep) -> None:
        self._ccxt = library if library is not None else _import_ccxt()
        exchange = exchange.strip().lower()
        if exchange not in self._ccxt.exchanges:
            raise SourceError(
                f"There is no exchange {exchange!r}. Write its id, for example one of: "
                f"{', '.join(EXCHANGES)}."
            )
        self.name = f"crypto:{exchange}"
        self._exchange = getattr(self._ccxt, exchange)({"enableRateLimit": True})
        self._title = str(self._exchange.name)
        self._sleep = sleep

    def search(self, text: str) -> list[Listing]:
        """Markets that trade now and whose symbol begins with or holds the text, at most 50."""
        wanted = text.strip().upper()
        if not wanted:
            raise SourceError("Nothing to search for. Write a currency or a pair, such as BTC/USD.")
        found = [_rank(market, wanted) for market in self._markets().values()]
        ranked = sorted((rank, market["symbol"], market) for rank, market in found if rank < 4)
        return [self._listing(market) for _, _, market in ranked[:_MOST_LISTINGS]]

    def intervals(self) -> dict[str, str | None]:
        """The exchange's intervals, the shortest first, with the longest period of each."""
        kept = NEWEST_ONLY.get(self.name.removeprefix("crypto:"))
        steps = sorted((self._step(name), name) for name in self._exchange.timeframes)
        return {name: None if kept is None else _period(kept * step) for step, name in steps}

    def fetch(
        self,
        symbol: str,
        interval: str,
        *,
        period: str | None = None,
        start: pd.Timestamp | None = None,
        end: pd.Timestamp | None = None,
        adjusted: bool = True,  # there is nothing to adjust for
    ) -> Series:
        """As `Source.fetch`, with as many requests as it takes. Stamps are openings in UTC."""
        market = self._market(symbol.strip())
        now = pd.Timestamp(self._exchange.milliseconds(), unit="ms", tz="UTC")
        start, end = self._span(interval, period, start, end, now)
        rows = self._rows(market["symbol"], interval, start, end)
        if not rows:
            raise SourceError(
                f"{self._title} has no {interval} bars of {market['symbol']} between "
                f"{start:%Y-%m-%d} and {end:%Y-%m-%d}. Choose a longer or a later period."
            )
        return self._series(rows, market, interval, start, now)

    def _markets(self) -> dict[str, dict[str, Any]]:
        markets: dict[str, dict[str, Any]] = self._asked(self._exchange.load_markets)
        return markets

    def _market(self, symbol: str) -> dict[str, Any]:
        markets = self._markets()
        market = markets.get(symbol) or markets.get(symbol.upper())
        if market is None:
            raise SourceError(
                f"{self._title} has no market {symbol!r}. Search for it, or write it as "
                "BASE/QUOTE, for example BTC/USDT."
            )
        return market

    def _listing(self, market: dict[str, Any]) -> Listing:
        name = f"{market['base']} in {market['quote']}"
        return Listing(
            symbol=market["symbol"], name=name, exchange=self._title, kind=market["type"]
        )

    def _step(self, interval: str) -> pd.Timedelta:
        """The length of a bar, of a month's the shortest."""
        step = int(self._exchange.parse_timeframe(interval)) * _SECOND
        return step * 28 // 30 if interval.endswith("M") else step

    def _end(self, interval: str, stamp: pd.Timestamp) -> pd.Timestamp:
        if interval.endswith("M"):
            return stamp + pd.DateOffset(months=int(interval[:-1]))
        return stamp + self._step(interval)

    def _span(
        self,
        interval: str,
        period: str | None,
        start: pd.Timestamp | None,
        end: pd.Timestamp | None,
        now: pd.Timestamp,
    ) -> tuple[pd.Timestamp, pd.Timestamp]:
        known = self.intervals()
        if interval not in known:
            raise SourceError(
                f"{self._title} has no interval {interval!r}. Choose one of: {', '.join(known)}."
            )
        period = period.strip().lower() if period is not None else None
        check_span(period, start, end)
        longest = known[interval]
        if period == "max":
            return (_BEGINNING if longest is None else now - period_length(longest)), now
        if period is not None:
            start = now - period_length(period)
        assert start is not None
        asked = period or f"a start on {start:%Y-%m-%d}"
        check_within(self._title, interval, longest, now - start, asked)
        return start, min(end, now) if end is not None else now

    def _rows(
        self, symbol: str, interval: str, start: pd.Timestamp, end: pd.Timestamp
    ) -> list[list[float]]:
        """Candles [n][6] from start until before end: open time in ms, prices, volume."""
        step = self._step(interval) // pd.Timedelta(milliseconds=1)
        page = self._page(symbol)
        since, until = (int(stamp.timestamp() * 1000) for stamp in (start, end))
        if (pages := math.ceil((until - since) / (step * page))) > _MOST_PAGES:
            raise SourceError(
                f"This would take {pages:,} requests of {page} bars; {_MOST_PAGES} are the most. "
                "Choose a later start or a longer interval."
            )
        rows: list[list[float]] = []
        while since < until:
            fetch = partial(self._exchange.fetch_ohlcv, symbol, interval, since, page)
            answer = [row for row in self._asked(fetch) if row[0] >= since]
            rows += [row for row in answer if row[0] < until]
            # Before the first trade ever, and in a long pause, a page may be empty.
            since = int(answer[-1][0]) + step if answer else since + page * step
        return rows

    def _page(self, symbol: str) -> int:
        limit = self._exchange.feature_value(symbol, "fetchOHLCV", "limit", _USUAL_PAGE)
        return int(limit or _USUAL_PAGE)

    def _asked(self, call: Callable[[], Answer]) -> Answer:
        """The exchange's answer to a call; SourceError says why there is none."""
        ccxt = self._ccxt
        again = (ccxt.RateLimitExceeded, ccxt.DDoSProtection, ccxt.RequestTimeout)
        with captured_log("ccxt.base.exchange"):
            try:
                return retried(call, on=again, sleep=self._sleep)
            except (ccxt.RateLimitExceeded, ccxt.DDoSProtection) as error:
                raise SourceError(
                    f"{self._title} is refusing requests for now because there were too many. "
                    "Try again in some minutes, or upload a CSV file instead."
                ) from error
            except (ccxt.NetworkError, OSError) as error:
                raise SourceError(
                    f"{self._title} could not be reached ({_first_line(error)}). {REMEDY}"
                ) from error
            except ccxt.BaseError as error:
                raise SourceError(
                    f"{self._title} refused the request ({_first_line(error)}). Check the symbol "
                    "and the interval, or choose another exchange."
                ) from error

    def _series(
        self,
        rows: list[list[float]],
        market: dict[str, Any],
        interval: str,
        start: pd.Timestamp,
        now: pd.Timestamp,
    ) -> Series:
        bars = pd.DataFrame(rows, columns=list(_COLUMNS)).astype(float)
        bars.index = pd.to_datetime(bars.pop("time").astype("int64"), unit="ms", utc=True)
        bars, broken = without_broken_rows(bars)
        bars, unfinished = without_unfinished(bars, partial(self._end, interval), now)
        if bars.empty:
            raise SourceError(f"No bar of {market['symbol']} is over yet. Choose a longer period.")
        findings = [*broken, *unfinished]
        if (first := bars.index[0]) >= start + 2 * self._step(interval):
            findings.append(f"{self._title} has no bars before {first:%Y-%m-%d %H:%M} UTC.")
        if market.get("contract"):
            findings.append("This is a contract: the exchange may count its volume in contracts.")
        return make_series(bars, symbol=market["symbol"], findings=tuple(findings))


def _import_ccxt() -> Any:
    try:
        return importlib.import_module("ccxt")
    except ImportError as error:
        raise SourceError(INSTALL) from error


def _period(length: pd.Timedelta) -> str:
    hours = length // pd.Timedelta(hours=1)
    return f"{hours}h" if hours % 24 else f"{hours // 24}d"


def _rank(market: dict[str, Any], wanted: str) -> tuple[int, dict[str, Any]]:
    """How well a market fits, 0 best and 4 not at all."""
    if market.get("active") is False or market["type"] not in _KINDS:
        return 4, market
    symbol = str(market["symbol"]).upper()
    if wanted in (symbol, symbol.replace("/", "")):
        return 0, market
    if wanted == market["base"]:
        return 1 if market["type"] == "spot" else 2, market
    return (2 if symbol.startswith(wanted) else 3 if wanted in symbol else 4), market


def _first_line(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return text if len(text) <= 160 else f"{text[:157]}…"
