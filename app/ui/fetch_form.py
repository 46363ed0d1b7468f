"""Bars from a source: search, listing, interval with what can be had of it, then fetch."""

from __future__ import annotations

import streamlit as st

from app.services import dataset_fetch
from app.services.dataset_fetch import FetchRequest
from app.storage.models import Dataset
from app.storage.session import Store
from app.ui import components
from app.ui import format as fmt
from kronos_core.data.sources import EXCHANGES, Listing, SourceError, period_length

PERIODS = ("1d", "5d", "7d", "1mo", "3mo", "6mo", "1y", "2y", "5y", "10y", "max")
ADJUSTED_HELP = (
    "Adjusted prices do not jump at splits and dividends; raw ones are what was traded. Past "
    "adjusted prices change with each dividend: Refresh says so."
)


def yahoo(store: Store) -> Dataset | None:
    """Fetching from Yahoo. The stored dataset after the click."""
    return _source(store, "yahoo", "Name or ticker", "Apple, ^GSPC, BTC-USD, EURUSD=X")


def crypto(store: Store) -> Dataset | None:
    """Fetching from a crypto exchange, or how to install what that needs."""
    exchange = st.selectbox("Exchange", EXCHANGES, key="crypto-exchange", width=220)
    return _source(store, f"crypto:{exchange}", "Currency or pair", "BTC/USDT")


def _source(store: Store, source: str, label: str, example: str) -> Dataset | None:
    try:
        intervals = dataset_fetch.intervals(store, source)
    except SourceError as problem:
        st.info(fmt.plain(str(problem)), icon=":material/info:")
        return None
    _search(store, source, label, example)
    listings: list[Listing] = st.session_state.get(f"{source}-found", [])
    if not listings:
        return None
    return _fetch(store, source, listings, intervals)


def _search(store: Store, source: str, label: str, example: str) -> None:
    row = {"horizontal": True, "vertical_alignment": "bottom"}
    with st.form(f"{source}-search", border=False), st.container(**row):  # type: ignore[arg-type]
        text = st.text_input(label, placeholder=example, key=f"{source}-text", width=320)
        wanted = st.form_submit_button("Search", icon=":material/search:")
    if not wanted:
        return
    st.session_state.pop(f"{source}-found", None)
    with components.problems(), st.spinner("Searching"):
        st.session_state[f"{source}-found"] = _found(store, source, text.strip())


def _found(store: Store, source: str, text: str) -> list[Listing]:
    """The listings, and the text itself as a symbol: a source may not list all that it has."""
    try:
        found = dataset_fetch.search(store, source, text)
    except SourceError as problem:
        if not text:
            raise
        found = []
        st.caption(fmt.plain(f"{problem} What you wrote can be fetched as a symbol."))
    as_written = Listing(symbol=text, name="as written", exchange="", kind="")
    known = {listing.symbol.upper() for listing in found}
    return found if text.upper() in known else [*found, as_written]


def _fetch(
    store: Store, source: str, listings: list[Listing], intervals: dict[str, str | None]
) -> Dataset | None:
    columns = st.columns([3, 1.6, 1, 1.6], vertical_alignment="bottom")
    listing = columns[0].selectbox(
        "Listing", listings, format_func=_listing_words, key=f"{source}-listing"
    )
    names = list(intervals)
    interval = columns[1].selectbox(
        "Interval",
        names,
        index=names.index("1d") if "1d" in names else 0,
        format_func=lambda name: f"{name} · {_longest_words(intervals[name])}",
        key=f"{source}-interval",
        help="With the longest period that can be had of it.",
    )
    periods = _periods(intervals[interval])
    period = columns[2].selectbox(
        "Period", periods, index=len(periods) - 1, key=f"{source}-period-{interval}"
    )
    adjusted = True
    if source == "yahoo":
        kind = columns[3].segmented_control(
            "Prices", ["Adjusted", "Raw"], default="Adjusted", required=True, help=ADJUSTED_HELP
        )
        adjusted = kind == "Adjusted"
    request = FetchRequest(
        source=source, symbol=listing.symbol, interval=interval, period=period, adjusted=adjusted
    )
    return _named(store, request)


def _named(store: Store, request: FetchRequest) -> Dataset | None:
    raw = "" if request.adjusted else " raw"
    suggestion = f"{request.symbol} {request.interval}{raw}"
    with st.container(horizontal=True, vertical_alignment="bottom"):
        key = f"{request.source}-name-{suggestion}"
        name = st.text_input("Name of the dataset", suggestion, key=key, width=320)
        icon = ":material/download:"
        if not st.button("Fetch", type="primary", icon=icon, key=f"{request.source}-fetch"):
            return None
    with components.problems(), st.spinner(f"Fetching {request.symbol}"):
        series = dataset_fetch.fetch(store, request)
        stored = dataset_fetch.add(store, series, request, name=name.strip())
        st.session_state.pop(f"{request.source}-found", None)
        return stored
    return None


def _listing_words(listing: Listing) -> str:
    return " · ".join(filter(None, (listing.symbol, listing.name, listing.exchange, listing.kind)))


def _longest_words(longest: str | None) -> str:
    return "all there is" if longest is None else f"at most {longest}"


def _periods(longest: str | None) -> list[str]:
    """The periods that an interval allows; "max" is the longest of them."""
    if longest is None:
        return list(PERIODS)
    most = period_length(longest)
    return [name for name in PERIODS if name == "max" or period_length(name) <= most]
