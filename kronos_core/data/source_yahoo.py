"""Yahoo Finance by yfinance: ticker search, and bars with the zone of their exchange."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd

from kronos_core.data.bars import PRICES, Series, make_series
from kronos_core.data.source_base import (
    REMEDY,
    Answer,
    Listing,
    Now,
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

# Interval -> the longest period that Yahoo serves for it.
YAHOO_INTERVALS: dict[str, str] = {
    "1m": "7d",
    "2m": "60d",
    "5m": "60d",
    "15m": "60d",
    "30m": "60d",
    "60m": "730d",
    "90m": "60d",
    "1h": "730d",
    "1d": "max",
    "5d": "max",
    "1wk": "max",
    "1mo": "max",
    "3mo": "max",
}
_MOST_LISTINGS = 10
# The closing auction and delayed feeds still change a session's bar for some minutes.
_SETTLED_AFTER = pd.Timedelta(minutes=15)
_NEVER = pd.Timestamp.max.tz_localize("UTC")
_CLOCK_UNITS = {"m": pd.Timedelta(minutes=1), "h": pd.Timedelta(hours=1)}
_DATE_UNITS = {
    "d": pd.DateOffset(days=1),
    "wk": pd.DateOffset(weeks=1),
    "mo": pd.DateOffset(months=1),
}
_ADJUSTED = {
    True: "Prices are adjusted for splits and dividends (Yahoo Finance).",
    False: "Prices are adjusted for splits, not for dividends (Yahoo Finance).",
}


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of Yahoo: the last `period`, or `start` until before `end`."""

    ticker: str
    interval: str
    period: str | None
    start: pd.Timestamp | None
    end: pd.Timestamp | None
    adjusted: bool

    def __str__(self) -> str:
        until = f" to {self.end:%Y-%m-%d}" if self.end else ""
        return self.period or f"from {self.start:%Y-%m-%d}{until}"


@dataclass(frozen=True, slots=True)
class History:
    """Yahoo's answer: a frame as yfinance's `Ticker.history` returns it, and the time when the
    session that trades or traded last is over, where Yahoo says it."""

    frame: pd.DataFrame
    session_end: pd.Timestamp | None = None


Download = Callable[[Request], History]


def _utc_now() -> pd.Timestamp:
    return pd.Timestamp.now("UTC")


class Yahoo:
    """Yahoo Finance behind the protocol `Source`.

    A request that Yahoo refuses because there were too many is repeated after 1, 3 and 9 seconds.
    download, sleep and now stand in for the network, `time.sleep` and the clock.
    """

    name = "yahoo"

    def __init__(
        self,
        *,
        download: Download | None = None,
        sleep: Sleep = time.sleep,
        now: Now = _utc_now,
    ) -> None:
        self._download = download or _download
        self._sleep = sleep
        self._now = now

    def search(self, text: str) -> list[Listing]:
        """Tickers by symbol or company name, at most ten, Yahoo's best first."""
        text = text.strip()
        if not text:
            raise SourceError("Nothing to search for. Write a ticker or a name, such as Apple.")
        quotes = self._asked(partial(_quotes, text), f"Yahoo found nothing for {text!r}.")
        return [_listing(quote) for quote in quotes]

    def intervals(self) -> dict[str, str | None]:
        """Yahoo's intervals with the longest period of each; None is all there is."""
        return {
            name: None if longest == "max" else longest for name, longest in YAHOO_INTERVALS.items()
        }

    def fetch(
        self,
        symbol: str,
        interval: str,
        *,
        period: str | None = None,
        start: pd.Timestamp | None = None,
        end: pd.Timestamp | None = None,
        adjusted: bool = True,
    ) -> Series:
        """As `Source.fetch`. Without `adjusted`, prices are still adjusted for splits."""
        request = self._checked(Request(symbol, interval, period, start, end, adjusted))
        history = self._asked(partial(self._download, request), _nothing(request))
        if history.frame.empty:
            raise SourceError(_advised(_nothing(request)))
        return self._series(history, request)

    def _checked(self, request: Request) -> Request:
        ticker = request.ticker.strip().upper()
        if not ticker or re.search(r"[\s/,?#]", ticker):
            raise SourceError(f"{ticker!r} is not a ticker. Enter one symbol, for example AAPL.")
        interval = request.interval
        if interval not in YAHOO_INTERVALS:
            raise SourceError(
                f"Yahoo has no interval {interval!r}. Choose one of: {', '.join(YAHOO_INTERVALS)}."
            )
        period = request.period.strip().lower() if request.period is not None else None
        check_span(period, request.start, request.end)
        period = YAHOO_INTERVALS[interval] if period == "max" else period
        self._check_limit(interval, period, request.start)
        return Request(ticker, interval, period, request.start, request.end, request.adjusted)

    def _check_limit(self, interval: str, period: str | None, start: pd.Timestamp | None) -> None:
        if start is not None:
            wanted, asked = self._now() - start, f"a start on {start:%Y-%m-%d}"
        elif period is None or period == "max":
            return
        else:
            wanted, asked = period_length(period), period
        if period is not None and period.endswith("h"):
            raise SourceError(f"{period!r} is not a period of Yahoo's. The shortest is 1d.")
        check_within("Yahoo", interval, self.intervals()[interval], wanted, asked)

    def _asked(self, call: Callable[[], Answer], nothing: str) -> Answer:
        """Yahoo's answer to a call; SourceError says why there is none."""
        _quieten()
        from yfinance.exceptions import YFException, YFRateLimitError

        with captured_log("yfinance"):
            try:
                return retried(call, on=(YFRateLimitError,), sleep=self._sleep)
            except YFRateLimitError as error:
                raise SourceError(
                    "Yahoo is refusing requests for now because there were too many. "
                    "Try again in some minutes, or upload a CSV file instead."
                ) from error
            except (
                YFException,
                OSError,
                ValueError,
                LookupError,
                TypeError,
                AttributeError,
            ) as error:
                raise _explained(error, nothing) from error

    def _series(self, history: History, request: Request) -> Series:
        bars = _columns(history.frame, request.ticker)
        index = pd.DatetimeIndex(bars.index)
        zone = "UTC" if index.tz is None else str(index.tz)
        bars.index = index.tz_localize("UTC") if index.tz is None else index
        bars, broken = without_broken_rows(bars)
        if bars.empty:
            raise SourceError(f"Yahoo's bars for {request.ticker} are all empty. {REMEDY}")
        ends = partial(_bar_end, request.interval, history.session_end)
        bars, unfinished = without_unfinished(bars, ends, self._now())
        if bars.empty:
            raise SourceError(
                f"The only bar of {request.ticker} is not over yet. Choose a longer period."
            )
        findings = (_ADJUSTED[request.adjusted], *broken, *unfinished)
        return make_series(bars, symbol=request.ticker, timezone=zone, findings=findings)


def _quieten() -> None:
    """Import yfinance, which takes most of a second, with its errors raised and nothing printed."""
    import yfinance

    # Otherwise it turns "no network" into "possibly delisted".
    yfinance.config.debug.hide_exceptions = False
    # It asks for its deprecation warnings to be shown; they are of no use to our users.
    warnings.filterwarnings("ignore", category=DeprecationWarning, module="^yfinance")


def _download(request: Request) -> History:
    import yfinance

    ticker = yfinance.Ticker(request.ticker)
    span: dict[str, Any] = (
        {"period": request.period}
        if request.period
        else {"start": request.start, "end": request.end}
    )
    frame = ticker.history(
        interval=request.interval, auto_adjust=request.adjusted, actions=False, **span
    )
    sessions = ticker.history_metadata.get("currentTradingPeriod") or {}
    return History(frame, (sessions.get("regular") or {}).get("end"))


def _quotes(text: str) -> list[dict[str, Any]]:
    import yfinance

    found = yfinance.Search(
        text, max_results=_MOST_LISTINGS, news_count=0, lists_count=0, recommended=0
    )
    return list(found.quotes)


def _listing(quote: dict[str, Any]) -> Listing:
    symbol = str(quote["symbol"])
    return Listing(
        symbol=symbol,
        name=str(quote.get("longname") or quote.get("shortname") or symbol),
        exchange=str(quote.get("exchDisp") or quote.get("exchange") or ""),
        kind=str(quote.get("typeDisp") or quote.get("quoteType") or "").lower(),
    )


def _columns(frame: pd.DataFrame, ticker: str) -> pd.DataFrame:
    bars = frame.rename(columns=lambda title: str(title).lower())
    absent = [name for name in PRICES if name not in bars.columns]
    if absent:
        raise SourceError(f"Yahoo's answer for {ticker} lacks {', '.join(absent)}. {REMEDY}")
    return bars[[*PRICES, *(["volume"] if "volume" in bars.columns else [])]]


def _bar_end(interval: str, session_end: pd.Timestamp | None, stamp: pd.Timestamp) -> pd.Timestamp:
    """When the bar of a stamp is over. A day is over when its session is."""
    count, unit = int(re.sub(r"\D", "", interval)), interval.lstrip("0123456789")
    if unit in _CLOCK_UNITS:
        # Yahoo appends the last trade, at an odd second, as if it were a bar.
        return _NEVER if stamp.second else stamp + count * _CLOCK_UNITS[unit]
    if interval == "1d" and session_end is not None:
        session_end = session_end.tz_convert(stamp.tz)
        if session_end.date() == stamp.date():
            return session_end + _SETTLED_AFTER
    return stamp + count * _DATE_UNITS[unit]


def _explained(error: Exception, nothing: str) -> SourceError:
    # The HTTP library's errors are all OSErrors; where Yahoo did answer there is a status.
    status = getattr(getattr(error, "response", None), "status_code", 0)
    if isinstance(error, OSError) and not status:
        return SourceError(f"Yahoo could not be reached. {REMEDY}")
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return SourceError(_advised(nothing, reason))


def _nothing(request: Request) -> str:
    return f"Yahoo returned no bars for {request.ticker} ({request.interval}, {request})."


def _advised(message: str, reason: str = "") -> str:
    said = f" Yahoo's answer: {reason.strip().rstrip('.')}." if reason else ""
    return (
        f"{message}{said} Check the spelling on finance.yahoo.com and the connection, "
        "or upload a CSV file instead."
    )
