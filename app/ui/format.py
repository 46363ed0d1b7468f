"""Numbers, times and names as text. Pure functions, no streamlit."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

import numpy as np
import numpy.typing as npt

NONE = "–"
_MAX_DECIMALS = 12
_EXACT_DECIMALS = 8
_SIGNIFICANT = 7  # float32 sources carry about seven digits; more would print noise
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~$:<>])")


def price_decimals(values: Iterable[float]) -> int:
    """Fewest decimals that show every price as the data hold it (0.00001234 keeps all eight).

    A price that went through float32 counts as what it was before: 2506.850098 is 2506.85. Prices
    that no eight decimals hold, such as adjusted ones, are shown to seven significant digits.
    Two decimals at least where there is a fraction.
    """
    prices = np.abs(np.asarray(list(values), dtype=float))
    prices = prices[np.isfinite(prices) & (prices > 0)]
    if prices.size == 0:
        return 2
    held = (d for d in range(_EXACT_DECIMALS + 1) if _hold(prices, d))
    decimals = next(held, None)
    if decimals is None:
        digits = _SIGNIFICANT - 1 - int(np.floor(np.log10(prices.max())))
        decimals = min(max(digits, 0), _MAX_DECIMALS)
    return decimals if decimals == 0 else max(decimals, 2)


def _hold(prices: npt.NDArray[np.float64], decimals: int) -> bool:
    """Whether that many decimals say all that is in the prices."""
    rounded = np.round(prices, decimals)
    exact = np.abs(rounded - prices) <= 1e-13 * prices
    once_single = np.abs(rounded.astype(np.float32).astype(float) - prices)
    return bool(np.all(exact | (once_single <= np.minimum(5.1e-7, 6e-8 * prices))))


def price(value: float | None, decimals: int) -> str:
    """1234.5 with 2 decimals -> "1,234.50"; nothing known -> an en dash."""
    if value is None or not math.isfinite(value):
        return NONE
    return f"{value:,.{decimals}f}"


def change(fraction: float | None, digits: int = 2) -> str:
    """0.0123 -> "+1.23 %"."""
    if fraction is None or not math.isfinite(fraction):
        return NONE
    return f"{100 * fraction:+.{digits}f} %".replace("-", "−")


def percent(fraction: float | None, digits: int = 0) -> str:
    """0.613 -> "61 %"."""
    if fraction is None or not math.isfinite(fraction):
        return NONE
    return f"{100 * fraction:.{digits}f} %"


def count(value: int | None) -> str:
    """12345 -> "12,345"."""
    return NONE if value is None else f"{value:,}"


def compact(value: float | None) -> str:
    """4100000 -> "4.1 M"; 950 -> "950"."""
    if value is None or not math.isfinite(value):
        return NONE
    for factor, suffix in ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g}{suffix}"
    return f"{value:.3g}"


def megabytes(count: int) -> str:
    """16400000 -> "16.4 MB"; 409000000 -> "409 MB"."""
    return f"{count / 1e6:.1f} MB" if count < 1e8 else f"{count / 1e6:,.0f} MB"


def loss(value: float | None) -> str:
    """Cross-entropy in nats with four digits after the point; a zero loss is shown, not hidden."""
    return NONE if value is None or not math.isfinite(value) else f"{value:.4f}"


def loss_change(value: float | None) -> str | None:
    """A difference of losses with its sign, as a metric's change: "0" where nothing shows."""
    if value is None or not math.isfinite(value):
        return None
    text = f"{value:+.4f}"
    return "0" if float(text) == 0 else text


def duration(seconds: float | None) -> str:
    """Two units at most: "45 s", "3 min 5 s", "2 h 10 min", "3 d 4 h"."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    left = max(0, round(seconds))
    days, left = divmod(left, 86_400)
    hours, left = divmod(left, 3_600)
    minutes, left = divmod(left, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (left, "s")]
    shown = [index for index, (size, _) in enumerate(parts) if size]
    if not shown:
        return "0 s"
    chosen = parts[shown[0] : shown[0] + 2]
    return " ".join(f"{size} {unit}" for size, unit in chosen if size)


def interval(seconds: float) -> str:
    """Bar length: 300 -> "5 min", 86400 -> "1 day", 604800 -> "1 week"."""
    days = seconds / 86_400
    if 28 <= days <= 31:
        return "1 month"
    if 89 <= days <= 92:
        return "1 quarter"
    for size, name in ((604_800, "week"), (86_400, "day"), (3_600, "h"), (60, "min"), (1, "s")):
        amount = seconds / size
        if amount >= 1 and amount == int(amount):
            plural = "s" if amount > 1 and name in ("week", "day") else ""
            return f"{int(amount)} {name}{plural}"
    return f"{seconds:g} s"


def zone(name: str | None) -> tzinfo:
    """The zone of a name; UTC where the name is unknown on this machine."""
    try:
        return ZoneInfo(name or "UTC")
    except (ZoneInfoNotFoundError, ValueError):
        return UTC


@lru_cache(maxsize=1)
def zones() -> tuple[str, ...]:
    """The names of all places' zones, and UTC first."""
    places = (name for name in available_timezones() if "/" in name)
    left_out = ("Etc/", "SystemV/", "posix/", "right/")
    return "UTC", *sorted(name for name in places if not name.startswith(left_out))


def moment(value: datetime | None, timezone: str | None = None) -> str:
    """ "2024-03-05 14:30 CET" in the given zone (UTC by default)."""
    if value is None:
        return NONE
    aware = value if value.tzinfo else value.replace(tzinfo=UTC)
    local = aware.astimezone(zone(timezone))
    return f"{local:%Y-%m-%d %H:%M} {zone_name(local)}"


def zone_name(local: datetime) -> str:
    """CET, or UTC-03:00 where a zone has no letters of its own."""
    name = local.tzname() or "UTC"
    return f"UTC{name}" if name[:1] in "+-" else name


def bar_time(value: datetime, seconds: float) -> str:
    """Label of a bar: the date for daily and longer bars, else date and wall-clock time."""
    if seconds >= 86_400:
        return f"{value:%Y-%m-%d}"
    if seconds >= 60:
        return f"{value:%Y-%m-%d %H:%M}"
    return f"{value:%Y-%m-%d %H:%M:%S}"


def bar_moment(value: datetime, seconds: float) -> str:
    """The label of a bar with the zone of its wall clock."""
    return f"{bar_time(value, seconds)} {zone_name(value)}"


def span(first: datetime, last: datetime, seconds: float, timezone: str) -> str:
    """ "2010-01-04 to 2019-12-31", in the zone of the data."""
    there = zone(timezone)
    ends = (first.astimezone(there), last.astimezone(there))
    return " to ".join(bar_time(end, seconds) for end in ends)


def ago(value: datetime | None, now: datetime) -> str:
    """ "3 min ago"; "just now" within five seconds."""
    if value is None:
        return NONE
    aware = value if value.tzinfo else value.replace(tzinfo=UTC)
    seconds = (now - aware).total_seconds()
    if seconds < 5:
        return "just now"
    return " ".join(duration(seconds).split(" ")[:2]) + " ago"


def flat(values: Mapping[str, object], above: str = "") -> dict[str, str]:
    """Nested values as names and texts; what is empty is left out, lists only say how many."""
    found: dict[str, str] = {}
    for key, value in values.items():
        name = f"{above} {key}".strip().replace("_", " ")
        if isinstance(value, Mapping):
            found |= flat(value, name)
        elif isinstance(value, list):
            found[name] = count(len(value))
        elif value not in (None, ""):
            found[name] = str(value)
    return found


def short_hash(value: str | None) -> str:
    """The first ten characters of a hash, as users compare them."""
    return NONE if not value else value[:10]


def plain(text: str) -> str:
    """A user's own words, with the signs escaped that Markdown would read."""
    return _SPECIAL.sub(r"\\\1", text)


def plural(amount: int, one: str, many: str | None = None) -> str:
    """1 -> "1 run", 3 -> "3 runs"."""
    return f"{amount:,} {one if amount == 1 else many or one + 's'}"


def plain_html(text: str) -> str:
    """A user's own words within the small markup of a chart's hover text."""
    return html.escape(text, quote=False)
