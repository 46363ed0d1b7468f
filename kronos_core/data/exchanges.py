"""Exchanges: their names and zones, how symbols point to them, and their timetables.

The timetables come from the package exchange_calendars, which is imported on first use because
that takes half a second.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

Dates = npt.NDArray[np.datetime64]  # [n] of datetime64[D]
Times = npt.NDArray[np.int64]  # [n] nanoseconds of a naive wall clock

# Lunar holidays and elections are announced late: a further end would hold guesses.
FIRST, LAST = pd.Timestamp("1960-01-04"), pd.Timestamp("2039-12-31")


@dataclass(frozen=True, slots=True)
class Exchange:
    """code: ISO 10383. suffixes: those of Yahoo symbols, without the dot."""

    code: str
    title: str
    timezone: str
    suffixes: tuple[str, ...] = ()


_ROWS = """
XNYS|New York Stock Exchange and Nasdaq|America/New_York|
CMES|CME Globex futures|America/Chicago|
XTSE|Toronto Stock Exchange|America/Toronto|TO V NE CN
XMEX|Mexican Stock Exchange|America/Mexico_City|MX
BVMF|B3, São Paulo|America/Sao_Paulo|SA
XBUE|Buenos Aires Stock Exchange|America/Argentina/Buenos_Aires|BA
XSGO|Santiago Stock Exchange|America/Santiago|SN
XLON|London Stock Exchange|Europe/London|L IL
XDUB|Euronext Dublin|Europe/Dublin|IR
XPAR|Euronext Paris|Europe/Paris|PA NX
XAMS|Euronext Amsterdam|Europe/Amsterdam|AS
XBRU|Euronext Brussels|Europe/Brussels|BR
XLIS|Euronext Lisbon|Europe/Lisbon|LS
XETR|Xetra|Europe/Berlin|DE
XFRA|Frankfurt Stock Exchange|Europe/Berlin|F
XMIL|Borsa Italiana|Europe/Rome|MI
XMAD|Madrid Stock Exchange|Europe/Madrid|MC
XSWX|SIX Swiss Exchange|Europe/Zurich|SW
XWBO|Vienna Stock Exchange|Europe/Vienna|VI
XSTO|Nasdaq Stockholm|Europe/Stockholm|ST
XCSE|Nasdaq Copenhagen|Europe/Copenhagen|CO
XHEL|Nasdaq Helsinki|Europe/Helsinki|HE
XOSL|Oslo Stock Exchange|Europe/Oslo|OL
XWAR|Warsaw Stock Exchange|Europe/Warsaw|WA
XPRA|Prague Stock Exchange|Europe/Prague|PR
XBUD|Budapest Stock Exchange|Europe/Budapest|BD
XIST|Borsa Istanbul|Europe/Istanbul|IS
XJSE|Johannesburg Stock Exchange|Africa/Johannesburg|JO
XSAU|Saudi Exchange|Asia/Riyadh|SR
XBOM|BSE and NSE, India|Asia/Kolkata|BO NS
XSHG|Shanghai and Shenzhen Stock Exchanges|Asia/Shanghai|SS SH SZ BJ XSHG XSHE
XHKG|Hong Kong Stock Exchange|Asia/Hong_Kong|HK
XTAI|Taiwan Stock Exchange|Asia/Taipei|TW TWO
XTKS|Tokyo Stock Exchange|Asia/Tokyo|T
XKRX|Korea Exchange|Asia/Seoul|KS KQ
XSES|Singapore Exchange|Asia/Singapore|SI
XKLS|Bursa Malaysia|Asia/Kuala_Lumpur|KL
XIDX|Indonesia Stock Exchange|Asia/Jakarta|JK
XBKK|Stock Exchange of Thailand|Asia/Bangkok|BK
XASX|Australian Securities Exchange|Australia/Sydney|AX
XNZE|New Zealand Exchange|Pacific/Auckland|NZ
"""


def _exchange(row: str) -> Exchange:
    code, title, timezone, suffixes = row.split("|")
    return Exchange(code, title, timezone, tuple(suffixes.split()))


EXCHANGES: dict[str, Exchange] = {
    exchange.code: exchange for exchange in map(_exchange, _ROWS.split("\n")[1:-1])
}
_BY_SUFFIX = {suffix: item.code for item in EXCHANGES.values() for suffix in item.suffixes}
# The first exchange of a zone is its main one; futures never go by the zone alone.
_BY_ZONE = {item.timezone: item.code for item in reversed(EXCHANGES.values())} | {
    "US/Eastern": "XNYS"
}
del _BY_ZONE["America/Chicago"]

_INDEX_ROWS = """
XNYS|GSPC SPX DJI IXIC NDX RUT VIX NYA W5000 SOX DJT DJU OEX
XLON|FTSE FTMC FTLC
XETR|GDAXI MDAXI TECDAX SDAXI STOXX50E STOXX
XPAR|FCHI SBF120
XHKG|HSI HSCE HSTECH
XBOM|BSESN NSEI NSEBANK
XKRX|KS11 KQ11 KS200
XASX|AXJO AORD
XTKS|N225
XTAI|TWII
XSES|STI
XIDX|JKSE
XKLS|KLSE
XNZE|NZ50
XTSE|GSPTSE
BVMF|BVSP
XMEX|MXX
XBUE|MERV
XAMS|AEX
XBRU|BFX
XMAD|IBEX
XSWX|SSMI
XWBO|ATX
XSTO|OMX
"""
_INDICES = {
    name: code
    for code, _, names in (row.partition("|") for row in _INDEX_ROWS.split("\n")[1:-1])
    for name in names.split()
}
_FIAT_NAMES = """
USD EUR JPY GBP CHF AUD NZD CAD CNY CNH HKD SGD SEK NOK DKK PLN CZK HUF TRY ZAR MXN BRL INR
KRW THB ILS RUB TWD XAU XAG XPT XPD
"""
_FIAT = frozenset(_FIAT_NAMES.split())
_COINS = frozenset(("USDT", "USDC", "BUSD", "FDUSD", "TUSD", "DAI", "BTC", "ETH", "BNB"))
_STOCK = re.compile(r"[A-Z]{1,5}([.-][A-Z]{1,2})?|\d{4,6}")


def market_of(symbol: str | None, timezone: str | None = None) -> str | None:
    """The market that a symbol points to: an exchange's code, "24/7", "24/5", or None.

    Reads Yahoo symbols (^GSPC, 0700.HK, BTC-USD, EURUSD=X, ES=F), Chinese ones (sh600519,
    600519.SH), and pairs (EUR/USD, BTCUSDT). A plain ticker needs its zone: AAPL is a New York
    stock only when `timezone` says so.
    """
    text = (symbol or "").strip().upper()
    if not text:
        return None
    if text.startswith("^"):
        return _INDICES.get(text[1:]) or _BY_ZONE.get(timezone or "")
    if text.endswith("=F"):
        return "CMES"
    return _pair(text) or _listed(text) or _plain(text, timezone)


def _pair(text: str) -> str | None:
    """ "24/5" for two currencies, "24/7" for a coin and what it is priced in."""
    if text.endswith("=X"):
        return "24/5"
    parts = re.split(r"[-/_]", text)
    if len(parts) == 1:
        found = re.fullmatch(r"([A-Z0-9]{2,10}?)(USDT|USDC|BUSD|FDUSD|TUSD|[A-Z]{3})", text)
        if not found or not (len(found[2]) > 3 or _both_fiat(found[1], found[2])):
            return None
        parts = [found[1], found[2]]
    if len(parts) != 2 or not all(re.fullmatch("[A-Z0-9]{2,10}", part) for part in parts):
        return None
    if _both_fiat(*parts):
        return "24/5"
    return "24/7" if parts[1] in _FIAT | _COINS else None


def _both_fiat(base: str, quote: str) -> bool:
    return base in _FIAT and quote in _FIAT


def _listed(text: str) -> str | None:
    """By the suffix of a listing, or the prefix that Chinese providers write."""
    if re.fullmatch(r"(SH|SZ|BJ)\.?\d{6}", text):
        return "XSHG"
    name, dot, suffix = text.rpartition(".")
    return _BY_SUFFIX.get(suffix) if dot and name else None


def _plain(text: str, timezone: str | None) -> str | None:
    return _BY_ZONE.get(timezone or "") if _STOCK.fullmatch(text) else None


@dataclass(frozen=True, slots=True)
class Timetable:
    """The known sessions of an exchange on its own wall clock.

    dates [n]: trading days, ascending. opens, closes [m]: when trading runs, two stretches on a
    day with a lunch break; owner [m]: the index of each stretch's day. until: the last day known.
    week: for each weekday (Monday first) the usual stretches, as offsets from its midnight.
    """

    dates: Dates
    opens: Times
    closes: Times
    owner: npt.NDArray[np.int64]
    until: np.datetime64
    week: tuple[tuple[tuple[int, int], ...], ...]


def check_code(code: str) -> None:
    """Raise ValueError unless `code` is one of EXCHANGES."""
    if code not in EXCHANGES:
        raise ValueError(f"There is no exchange {code!r}. Choose one of {', '.join(EXCHANGES)}.")


@lru_cache(maxsize=16)
def timetable(code: str) -> Timetable:
    """Every session of an exchange from 1960 (or its first known one) on. Slow the first time.

    Raises ValueError for a code that is not in EXCHANGES.
    """
    check_code(code)
    import exchange_calendars

    # The bounds of what is known belong to the class, which only an instance leads to.
    kind = type(exchange_calendars.get_calendar(code, start="2024-01-02", end="2024-03-01"))
    earliest, latest = kind.bound_min(), kind.bound_max()
    end = LAST if latest is None else min(LAST, latest)
    whole = kind(start=FIRST if earliest is None else max(FIRST, earliest), end=end)
    return _tabulate(whole.schedule, str(whole.tz), np.datetime64(end, "D"))


def _tabulate(schedule: Any, zone: str, until: np.datetime64) -> Timetable:
    dates = schedule.index.to_numpy().astype("datetime64[D]")
    wall = {
        name: pd.DatetimeIndex(schedule[name]).tz_convert(zone).tz_localize(None).as_unit("ns")
        for name in ("open", "break_start", "break_end", "close")
    }
    whole, breaks = (np.flatnonzero(wall["break_start"].isna() == none) for none in (True, False))
    opens = [wall["open"].asi8, wall["break_end"].asi8[breaks]]
    closes = [wall["close"].asi8[whole], wall["break_start"].asi8[breaks]]
    first_close = np.empty(len(dates), np.int64)
    first_close[whole], first_close[breaks] = closes
    ends = np.concatenate([first_close, wall["close"].asi8[breaks]])
    owner = np.concatenate([np.arange(len(dates)), breaks])
    order = np.argsort(np.concatenate(opens), kind="stable")
    begins = np.concatenate(opens)[order]
    table = (dates, begins, ends[order], owner[order])
    return Timetable(*table, until, _usual_week(*table))


def _usual_week(
    dates: Dates, opens: Times, closes: Times, owner: npt.NDArray[np.int64]
) -> tuple[tuple[tuple[int, int], ...], ...]:
    """What most of the last 250 sessions look like, weekday by weekday."""
    midnight = dates.astype("datetime64[ns]").astype(np.int64)
    seen: list[Counter[tuple[tuple[int, int], ...]]] = [Counter() for _ in range(7)]
    first = max(0, len(dates) - 250)
    for day in range(first, len(dates)):
        own = slice(*np.searchsorted(owner, [day, day + 1]))
        offsets = zip(opens[own] - midnight[day], closes[own] - midnight[day], strict=True)
        seen[int(weekdays(dates[day]))][tuple((int(a), int(b)) for a, b in offsets)] += 1
    rare = 0.05 * (len(dates) - first)  # Saturdays that make up for a holiday
    return tuple(found.most_common(1)[0][0] if found.total() > rare else () for found in seen)


def weekdays(dates: Any) -> Any:
    """Weekday of datetime64[D] values, Monday 0."""
    return (np.asarray(dates).astype(np.int64) + 3) % 7
