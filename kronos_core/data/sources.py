"""Bars from the network, behind one protocol. Nothing is fetched unless a person asks for it."""

from __future__ import annotations

from pathlib import Path

from kronos_core.data.source_base import Listing, Source, SourceError, period_length
from kronos_core.data.source_cache import Cached
from kronos_core.data.source_crypto import EXCHANGES, Crypto
from kronos_core.data.source_yahoo import YAHOO_INTERVALS, Yahoo

__all__ = [
    "EXCHANGES",
    "YAHOO_INTERVALS",
    "Cached",
    "Crypto",
    "Listing",
    "Source",
    "SourceError",
    "Yahoo",
    "open_source",
    "period_length",
]


def open_source(name: str, folder: Path | None = None) -> Source:
    """The source of a name: "yahoo", or "crypto:" with an exchange's id such as "crypto:kraken".

    folder: where its answers are kept for some minutes; without it nothing is kept.
    Raises SourceError for other names, and for crypto without ccxt.
    """
    source = _named(name.strip().lower())
    return Cached(source, folder) if folder is not None else source


def _named(name: str) -> Source:
    if name == "yahoo":
        return Yahoo()
    kind, _, exchange = name.partition(":")
    if kind == "crypto" and exchange:
        return Crypto(exchange)
    raise SourceError(
        f"There is no source {name!r}. Write yahoo, or crypto: and an exchange, for example "
        "crypto:kraken."
    )
