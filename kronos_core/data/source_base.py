"""What all sources share: the protocol, periods, patience with rate limits, finished bars."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import pandas as pd

from kronos_core.data.bars import PRICES, DataError, Series

RETRY_WAITS = (1.0, 3.0, 9.0)  # seconds before the second, third and fourth try
REMEDY = "Check the connection, or upload a CSV file instead."
_HOURS = {"h": 1, "d": 24, "wk": 7 * 24, "mo": 30 * 24, "y": 365 * 24}
_CENTURY = 100 * _HOURS["y"]

Answer = TypeVar("Answer")
Sleep = Callable[[float], None]
Now = Callable[[], pd.Timestamp]


class SourceError(DataError):
    """A source gave no bars. The message says why and what to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """One thing that a source has bars of.

    exchange: where it is traded, in words ("NASDAQ", "Binance"). kind: in lower case ("equity",
    "etf", "index", "spot", "swap", …).
    """

    symbol: str
    name: str
    exchange: str
    kind: str


class Source(Protocol):
    """Where bars can be fetched. Nothing is asked of the network unless a person wants it."""

    @property
    def name(self) -> str:
        """The name by which `open_source` finds it again: "yahoo", "crypto:kraken"."""
        ...

    def search(self, text: str) -> list[Listing]:
        """What there is by a name or symbol, best first; empty when nothing fits.

        Raises SourceError when the source cannot be asked.
        """
        ...

    def intervals(self) -> dict[str, str | None]:
        """Interval -> the longest period that can be had of it; None is no limit. Asks nobody."""
        ...

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
        """The bars of a symbol: of the last `period`, or from `start` until before `end`.

        period: "5d", "6mo", "2y", … or "max", the longest that the interval allows. start, end:
        with a time zone; no end means until now. adjusted: for splits and dividends, where the
        source has both. A bar that is not over yet is left out, and a finding says so.
        Raises SourceError for what cannot be had, with the reason and the remedy, and DataError
        for bars that cannot be used.
        """
        ...


def period_length(period: str) -> pd.Timedelta:
    """The length of "12h", "60d", "3wk", "6mo" or "2y"; a month counts 30 days, a year 365.

    More than a century counts as one. Raises SourceError for anything else.
    """
    if period == "ytd":
        return pd.Timedelta(days=366)
    match = re.fullmatch(r"([1-9]\d{0,4})(h|d|wk|mo|y)", period)
    if match is None:
        raise SourceError(
            f"{period!r} is not a period. Write a number with d, wk, mo or y such as 60d, 6mo or "
            "2y, or ytd or max."
        )
    return pd.Timedelta(hours=min(int(match[1]) * _HOURS[match[2]], _CENTURY))


def check_span(period: str | None, start: pd.Timestamp | None, end: pd.Timestamp | None) -> None:
    """SourceError unless it is either a period or a start, with aware times in order."""
    if (period is None) == (start is None) or (period is not None and end is not None):
        raise SourceError("Give either a period, or a start with or without an end.")
    if any(stamp is not None and stamp.tz is None for stamp in (start, end)):
        raise SourceError("The start and the end need a time zone, for example UTC.")
    if start is not None and end is not None and end <= start:
        raise SourceError(f"The end ({end}) is not after the start ({start}). Exchange them.")


def check_within(
    source: str, interval: str, longest: str | None, wanted: pd.Timedelta, asked: str
) -> None:
    """SourceError when more is wanted than the longest period of the interval."""
    if longest is not None and wanted > period_length(longest):
        raise SourceError(
            f"{source} serves {interval} bars for {longest} at most, {asked} was asked for. "
            f"Shorten the period to {longest} or choose a longer interval."
        )


def retried(call: Callable[[], Answer], *, on: tuple[type[Exception], ...], sleep: Sleep) -> Answer:
    """The answer of a call that is repeated, with growing waits, while it raises one of `on`."""
    for wait in RETRY_WAITS:
        try:
            return call()
        except on:
            sleep(wait)
    return call()


@contextmanager
def captured_log(name: str) -> Iterator[list[str]]:
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


def without_broken_rows(bars: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Bars by time without rows that lack a price or repeat a time, and what was left out.

    bars: a DatetimeIndex, the four prices and perhaps volume; a missing volume becomes 0.
    """
    findings = []
    bars = bars.sort_index(kind="stable")
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
    return bars, findings


def without_unfinished(
    bars: pd.DataFrame, ends: Callable[[pd.Timestamp], pd.Timestamp], now: pd.Timestamp
) -> tuple[pd.DataFrame, list[str]]:
    """Bars (DatetimeIndex) without the last ones that are not over yet, and a finding for each.

    ends(stamp) is when the bar of that stamp is over.
    """
    findings = []
    while len(bars) and ends(stamp := bars.index[-1]) > now:
        findings.append(f"The bar of {_shown(stamp)} is not over yet and was left out.")
        bars = bars.iloc[:-1]
    return bars, findings


def _shown(stamp: pd.Timestamp) -> str:
    midnight = stamp == stamp.normalize()
    return f"{stamp:%Y-%m-%d}" if midnight else f"{stamp:%Y-%m-%d %H:%M}"
