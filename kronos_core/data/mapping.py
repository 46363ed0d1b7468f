"""Column titles -> what the columns hold, and by them the program that wrote the file."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kronos_core.data.bars import CHANNELS, PRICES, DataError
from kronos_core.data.choices import DateOrder, ReadingChoices

Roles = dict[str, int]  # role (one of choices.ROLES) -> position of its column
NUMBERS = (*CHANNELS, "adjusted close", "tick volume")


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# The first name of a role that a file has is taken. Names are as `normalised` gives them.
_ALIASES: dict[str, tuple[str, ...]] = {
    "timestamps": _words(
        "timestamps timestamp datetime date_time open_time opentime gmt_time local_time utc_time "
        "unix unix_time unix_timestamp ts date trade_date trading_date data datum fecha time t "
        "day index unnamed:_0 "
        "_index_level_0_ 日期 交易日期 日期时间 时间 日付 日時 일자 날짜"
    ),
    "open": _words(
        "open o open_price opening_price openprice abertura apertura erster eroffn eroffnung "
        "otwarcie ouv ouverture 开盘 开盘价 今开 始値 시가"
    ),
    "high": _words(
        "high h high_price highprice max maxima maximo massimo hoch plus_haut najwyzszy haut "
        "最高 最高价 高値 고가"
    ),
    "low": _words(
        "low l low_price lowprice min minima minimo tief plus_bas najnizszy bas "
        "最低 最低价 安値 저가"
    ),
    "close": _words(
        "close c close_price closing_price closeprice close/last last price ultimo zuletzt "
        "dernier schlusskurs schluss zamkniecie fechamento cierre chiusura cloture "
        "收盘 收盘价 終値 종가"
    ),
    "symbol": _words(
        "symbol ticker tickers instrument ts_code code asset pair 股票代码 代码 证券代码"
    ),
    "adjusted close": ("adj_close", "adjclose", "adjusted_close", "adjusted"),
    "volume": _words(
        "volume vol v base_volume trade_volume volume_base wolumen stuecke stucke stuck "
        "成交量 出来高 거래량 volumen tick_volume tickvol"
    ),
    "tick volume": ("tickvol", "tick_volume"),
    "amount": _words(
        "amount turnover quote_volume quotevolume quote_asset_volume volume_quote money "
        "成交额 成交金额 volumen"
    ),
}
_DATES = {"date", "data", "datum", "fecha", "日期", "交易日期", "trade_date", "trading_date"}
_CLOCKS = ("time", "czas", "zeit", "uhrzeit", "hora", "heure", "ora", "时间", "trade_time")
_OF_CURRENCY = re.compile(r"vol(?:ume)?_\(?([a-z0-9]{2,6})\)?")
_MONEY = {"usd", "usdt", "usdc", "busd", "fdusd", "tusd", "dai", "eur", "gbp", "jpy", "krw", "try"}


@dataclass(frozen=True, slots=True)
class Dialect:
    """The way in which one program or site writes bars.

    titles: the normalised titles that it is known by. date_order, decimal: how it writes what can
    be read in two ways; doubt_monthly: its pages of some countries order dates otherwise.
    timezone: the zone that its naive times are known to be in. lots: the factors that bring its
    volume and amount to shares and currency.
    """

    name: str
    titles: frozenset[str] = frozenset()
    date_order: DateOrder | None = None
    decimal: Literal[".", ","] | None = None
    doubt_monthly: bool = False
    timezone: str | None = None
    lots: tuple[float, float] | None = None


def _known_by(titles: str) -> frozenset[str]:
    return frozenset(_words(titles))


BINANCE = Dialect("Binance klines", _known_by("open_time high"))
METATRADER_4 = Dialect("MetaTrader 4")
HISTDATA = Dialect("HistData", timezone="Etc/GMT+5")
TICKER_TABLE = Dialect("yfinance table")
WITHOUT_TITLES = Dialect("Table without a header")
WITH_TITLES = Dialect("Table with a header")
# The first whose titles are all there is taken.
_DIALECTS = (
    Dialect("Kronos", _known_by("timestamps open high low close volume amount")),
    Dialect("Yahoo Finance", _known_by("date open high low close adj_close")),
    BINANCE,
    Dialect("MetaTrader 5", _known_by("date open tickvol")),
    Dialect("Stooq", _known_by("ticker per date")),
    Dialect("Stooq (Polish)", _known_by("data otwarcie zamkniecie")),
    Dialect(
        "Investing.com",
        _known_by("date price open high low change_%"),
        date_order="MDY",
        doubt_monthly=True,
    ),
    Dialect("Investing.com (Portuguese)", _known_by("data ultimo abertura"), "DMY", ","),
    Dialect("Investing.com (Spanish)", _known_by("fecha ultimo apertura"), "DMY", ","),
    Dialect("Investing.com (Italian)", _known_by("data ultimo apertura"), "DMY", ","),
    Dialect("Investing.com (French)", _known_by("date dernier ouv"), "DMY", ","),
    Dialect("Investing.com (German)", _known_by("datum zuletzt eroffn"), "DMY", ","),
    Dialect("Ariva", _known_by("datum erster schlusskurs"), "DMY", ","),
    Dialect("Nasdaq", _known_by("date close/last"), "MDY", "."),
    Dialect("akshare", _known_by("日期 开盘 收盘"), timezone="Asia/Shanghai", lots=(100.0, 1.0)),
    Dialect(
        "akshare minutes", _known_by("时间 开盘 收盘"), timezone="Asia/Shanghai", lots=(100.0, 1.0)
    ),
    Dialect(
        "Tushare",
        _known_by("ts_code trade_date vol"),
        timezone="Asia/Shanghai",
        lots=(100.0, 1000.0),
    ),
    Dialect("Dukascopy", _known_by("gmt_time open")),
    Dialect("CryptoDataDownload", _known_by("unix date symbol")),
    Dialect("TradingView", _known_by("time open high low close")),
)


def normalised(title: str) -> str:
    """A title in lower case without accents, brackets, numbering and final dots, words joined."""
    text = "".join(
        letter
        for letter in unicodedata.normalize("NFKD", title.lower())
        if not unicodedata.combining(letter)
    )
    text = unicodedata.normalize("NFC", text)
    text = re.sub(r"^\d+\.\s+", "", text.strip(" \t<>\"'.\ufeff"))
    return re.sub(r"[\s_.]+", "_", text)


def dialect_of(titles: Sequence[str]) -> Dialect:
    """The dialect that these titles are known from."""
    names = {normalised(title) for title in titles}
    return next((known for known in _DIALECTS if known.titles <= names), WITH_TITLES)


def assign(titles: Sequence[str], choices: ReadingChoices) -> Roles:
    """Which column has which role, by its title or as chosen. Roles without a column are absent.

    Raises DataError when a chosen column is not there.
    """
    names = [normalised(title) for title in titles]
    chosen = {
        role: _position(titles, title) for role, title in (choices.columns or {}).items() if title
    }
    roles = dict(chosen)
    places: dict[str, int] = {}
    for at, name in enumerate(names):
        # Without a name only a first column can be the saved index.
        if at not in chosen.values() and (name or at == 0):
            places.setdefault(name or "index", at)
    for role, aliases in _ALIASES.items():
        if role not in (choices.columns or {}):
            _take(role, aliases, places, roles)
    if "time of day" not in (choices.columns or {}) and "timestamps" not in chosen:
        _add_clock(names, roles)
    _add_volumes_of_currencies(names, roles, choices)
    return roles


def check_roles(titles: Sequence[str], roles: Roles, where: str) -> None:
    """Raise DataError when a needed column is missing or a title in use stands twice."""
    absent = [role for role in ("timestamps", *PRICES) if role not in roles]
    plural = "s" if len(absent) > 1 else ""
    if absent:
        shown = ", ".join(title.strip()[:40] for title in titles[:12])
        raise DataError(
            f"{where}: missing column{plural} {', '.join(absent)}; found {shown}. "
            f"Add or rename the column{plural}."
        )
    clean = [title.strip().lower() for title in titles]
    for at in roles.values():
        if clean.count(clean[at]) > 1:
            raise DataError(
                f"{where}: two columns are called {titles[at].strip()}. Remove or rename one."
            )


def _take(role: str, aliases: Sequence[str], places: dict[str, int], roles: Roles) -> None:
    for alias in aliases:
        at = places.get(alias)
        # Only the tick volume may be the volume as well.
        if at is not None and (at not in roles.values() or role == "tick volume"):
            roles[role] = at
            return


def _add_clock(names: Sequence[str], roles: Roles) -> None:
    at = roles.get("timestamps")
    if at is None or names[at] not in _DATES:
        return
    for clock in _CLOCKS:
        if clock in names:
            roles["time of day"] = names.index(clock)
            return


def _add_volumes_of_currencies(names: Sequence[str], roles: Roles, choices: ReadingChoices) -> None:
    """Volume BTC and Volume USDT: the one in money is the amount."""
    if "volume" in roles or "volume" in (choices.columns or {}):
        return
    found = [
        (at, match[1]) for at, name in enumerate(names) if (match := _OF_CURRENCY.fullmatch(name))
    ]
    # The quote currency stands second; a list of money settles it where the order is another.
    found.sort(key=lambda place: place[1] in _MONEY)
    for role, (at, _) in zip(("volume", "amount"), found[:2], strict=False):
        if role not in (choices.columns or {}):
            roles.setdefault(role, at)


def _position(titles: Sequence[str], wanted: str) -> int:
    clean = [title.strip().lower() for title in titles]
    if wanted.strip().lower() not in clean:
        shown = ", ".join(title.strip()[:40] for title in titles[:12])
        raise DataError(f"There is no column {wanted!r}; found {shown}. Choose one of them.")
    return clean.index(wanted.strip().lower())
