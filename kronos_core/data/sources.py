"""Bars from the network. Nothing is fetched unless a person asks for it."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pandas as pd

from kronos_core.data.bars import PRICES, DataError, Series, make_series

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
_DAYS = {"d": 1, "wk": 7, "mo": 30, "y": 365}
_REMEDY = "Check the connection, or upload a CSV file instead."

Download = Callable[[str, str, str], pd.DataFrame]  # ticker, period, interval


class SourceError(DataError):
    """A source gave no bars. The message says why and what to do."""


def fetch_yahoo(
    ticker: str, period: str, interval: str, *, download: Download | None = None
) -> Series:
    """Bars of one ticker from Yahoo Finance, prices adjusted for splits and dividends.

    period: "5d", "6mo", "2y", "ytd", … or "max" (the longest that the interval allows, see
    YAHOO_INTERVALS). The exchange's zone is kept as `timezone`. `download(ticker, period,
    interval)` replaces the request; it returns a frame as yfinance's `Ticker.history` does.

    Raises SourceError for an unknown interval or period, a period beyond the interval's limit, no
    network, a rate limit, and a ticker without bars; DataError for bars that cannot be used.
    """
    ticker = ticker.strip().upper()
    if not ticker or re.search(r"[\s/,?#]", ticker):
        raise SourceError(f"{ticker!r} is not a ticker. Enter one symbol, for example AAPL.")
    period = _checked_period(period.strip().lower(), interval)
    frame = (download or _history)(ticker, period, interval)
    if frame.empty:
        raise SourceError(_nothing(ticker, period, interval, ""))
    return _to_series(frame, ticker)


def _checked_period(period: str, interval: str) -> str:
    if interval not in YAHOO_INTERVALS:
        raise SourceError(
            f"Yahoo has no interval {interval!r}. Choose one of: {', '.join(YAHOO_INTERVALS)}."
        )
    longest = YAHOO_INTERVALS[interval]
    if period == "max":
        return longest
    days = _days(period)
    if longest != "max" and days > _days(longest):
        raise SourceError(
            f"Yahoo serves {interval} bars for {longest} at most, {period} was asked for. "
            f"Shorten the period to {longest} or choose a longer interval."
        )
    return period


def _days(period: str) -> int:
    if period == "ytd":
        return 366
    match = re.fullmatch(r"([1-9]\d{0,4})(d|wk|mo|y)", period)
    if match is None:
        raise SourceError(
            f"{period!r} is not a period. Write a number with d, wk, mo or y such as 60d, 6mo or "
            "2y, or ytd or max."
        )
    return int(match[1]) * _DAYS[match[2]]


def _history(ticker: str, period: str, interval: str) -> pd.DataFrame:
    import yfinance  # takes most of a second; only a request needs it
    from yfinance.exceptions import YFException, YFRateLimitError

    with _captured_log("yfinance") as messages:
        try:
            frame: pd.DataFrame = yfinance.Ticker(ticker).history(
                period=period, interval=interval, auto_adjust=True, actions=False
            )
        except YFRateLimitError as error:
            raise SourceError(
                "Yahoo is refusing requests for now because there were too many. "
                "Try again in some minutes, or upload a CSV file instead."
            ) from error
        except OSError as error:  # the HTTP library's errors all are
            raise SourceError(f"Yahoo could not be reached. {_REMEDY}") from error
        except (YFException, ValueError, LookupError, TypeError, AttributeError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise SourceError(_nothing(ticker, period, interval, reason)) from error
    if frame.empty and messages:
        raise SourceError(_nothing(ticker, period, interval, messages[-1]))
    return frame


@contextmanager
def _captured_log(name: str) -> Iterator[list[str]]:
    """Collect what a library logs instead of printing it, and leave its logger as it was."""
    messages: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    logger, handler = logging.getLogger(name), Collect(logging.WARNING)
    propagate = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield messages
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


def _nothing(ticker: str, period: str, interval: str, reason: str) -> str:
    said = f" Yahoo's answer: {reason.strip().rstrip('.')}." if reason else ""
    return (
        f"Yahoo returned no bars for {ticker} ({interval}, {period}).{said} Check the ticker's "
        "spelling on finance.yahoo.com and the connection, or upload a CSV file instead."
    )


def _to_series(frame: pd.DataFrame, ticker: str) -> Series:
    bars = frame.rename(columns=lambda title: str(title).lower())
    absent = [name for name in PRICES if name not in bars.columns]
    if absent:
        raise SourceError(f"Yahoo's answer for {ticker} lacks {', '.join(absent)}. {_REMEDY}")
    bars = bars[[*PRICES, *(["volume"] if "volume" in bars.columns else [])]].sort_index()
    index = pd.DatetimeIndex(bars.index)
    zone = "UTC" if index.tz is None else str(index.tz)
    bars.index = index.tz_localize("UTC") if index.tz is None else index
    bars, findings = _cleaned(bars)
    if bars.empty:
        raise SourceError(f"Yahoo's bars for {ticker} are all empty. {_REMEDY}")
    return make_series(bars, symbol=ticker, timezone=zone, findings=findings)


def _cleaned(bars: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Without the unfinished and repeated rows that Yahoo appends for the current day."""
    findings = ["Prices are adjusted for splits and dividends (Yahoo Finance)."]
    whole = np.isfinite(bars[list(PRICES)].to_numpy(dtype=float)).all(axis=1)
    if (count := int((~whole).sum())) > 0:
        findings.append(f"{count:,} row{'s' if count > 1 else ''} without prices left out.")
    bars = bars[whole]
    repeated = np.asarray(bars.index.duplicated(keep="last"))
    if (count := int(repeated.sum())) > 0:
        findings.append(f"{count:,} repeated time{'s' if count > 1 else ''}: the last one is kept.")
    bars = bars[~repeated]
    if "volume" in bars.columns:
        bars = bars.assign(volume=bars["volume"].fillna(0))
    return bars, tuple(findings)
