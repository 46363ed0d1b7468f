"""Cells -> one series: what is missing, adjusted prices, lots, time zone, order and repeats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from kronos_core.data.bars import PRICES, DataError, Series, make_series
from kronos_core.data.choices import ReadingChoices
from kronos_core.data.mapping import Roles
from kronos_core.data.stamps import Stamps
from kronos_core.data.tables import Grid

_DAY = 86_400_000_000_000

Rows = npt.NDArray[np.int64]
Values = dict[str, npt.NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Columns:
    """What all rows hold: their times, the zone that was chosen or that they carry (None:
    neither), and the number columns by position (NaN where missing)."""

    stamps: Stamps
    zone: str | None
    numbers: dict[int, npt.NDArray[np.float64]]


def columns_of(grid: Grid, stamps: Stamps, zone: str | None) -> Columns:
    """The columns of a grid as arrays, made once for all series in it."""
    numbers = {at: grid.cells[at].to_numpy() for at in grid.layout.numbers}
    return Columns(stamps, zone, numbers)


@dataclass(slots=True)
class _Bars:
    """The bars of one series while they are put in order. rows: where they stand in the grid."""

    grid: Grid
    roles: Roles
    rows: Rows | None  # None while they are all
    times: pd.DatetimeIndex
    values: Values
    notes: list[str]

    def row(self, at: int) -> int:
        return at if self.rows is None else int(self.rows[at])

    def place(self, at: int) -> str:
        return self.grid.place(self.row(at))

    def take(self, chosen: Rows) -> None:
        self.rows = chosen if self.rows is None else self.rows[chosen]
        self.times = self.times[chosen]
        self.values = {role: column[chosen] for role, column in self.values.items()}


def assemble(
    grid: Grid,
    roles: Roles,
    columns: Columns,
    rows: Rows | None,
    symbol: str | None,
    choices: ReadingChoices,
) -> Series | None:
    """The series of some rows (None: of all), or None when none of them has a price.

    Raises DataError with the line for a missing or infinite value, two different bars of one time,
    and what `make_series` refuses.
    """
    held = {role: columns.numbers[at] for role, at in roles.items() if at in columns.numbers}
    stamps = columns.stamps.times
    bars = _Bars(grid, roles, None, stamps, held, [])
    if rows is not None:
        bars.take(rows)
    if not _drop_without_prices(bars):
        return None
    notes = [*_fill_volumes(bars), *_zone_notes(bars, columns)]
    _check_finite(bars)
    notes += _scale(bars, choices)
    _place_in_zone(bars, columns)
    _sort(bars)
    _drop_repeats(bars)
    frame = pd.DataFrame({"timestamps": bars.times, **bars.values}, copy=False)
    return make_series(
        frame,
        symbol=symbol,
        timezone=columns.zone or "UTC",
        findings=(*bars.notes, *notes, *_unused_note(grid), *grid.layout.notes),
        place=bars.place,
    )


def _drop_without_prices(bars: _Bars) -> bool:
    """Leave out rows of days without trading; whether any bar remains."""
    close = bars.values["close"]
    if not np.isnan(close).any():
        return True
    empty = np.all([np.isnan(bars.values[role]) for role in PRICES], axis=0)
    if not empty.any():
        return True
    count, first = int(empty.sum()), bars.place(int(np.argmax(empty)))
    bars.take(np.flatnonzero(~empty))
    verb = "row without prices was" if count == 1 else "rows without prices were"
    bars.notes.append(f"{count:,} {verb} left out (first {_inline(first)}).")
    return len(close) > count


def _fill_volumes(bars: _Bars) -> list[str]:
    """Settle volume and amount; the findings about them."""
    notes = []
    ticks = bars.values.pop("tick volume", None)
    for role in ("volume", "amount"):
        column = bars.values.get(role)
        if column is None or not np.isnan(column).any():
            continue
        if np.isnan(column).all():
            del bars.values[role]
            notes.append(f"The column {_title(bars, role)} is empty and is not used.")
        else:
            notes += _zero_for_markers(bars, role)
    if ticks is not None and not np.any(bars.values.get("volume", 0)):
        bars.values["volume"] = ticks
        notes.append("There is no traded volume; volume is the number of price changes (ticks).")
    if "volume" not in bars.values:
        bars.values.pop("amount", None)
        notes.append("No volume column: volume and amount are 0.")
    elif "amount" not in bars.values:
        notes.append("No amount column: amount is volume × the mean of the four prices.")
    return notes


def _zero_for_markers(bars: _Bars, role: str) -> list[str]:
    markers = (bars.grid.markers or {}).get(bars.roles[role])
    if markers is None:
        return []
    marked = np.asarray(markers.fill_null(False).to_numpy(zero_copy_only=False), dtype=bool)
    marked = marked if bars.rows is None else marked[bars.rows]
    if not marked.any():
        return []
    bars.values[role] = np.where(marked, 0.0, bars.values[role])
    count, first = int(marked.sum()), bars.place(int(np.argmax(marked)))
    rows = "1 row" if count == 1 else f"{count:,} rows"
    return [f"In {rows} the {role} is a dash or N/A and is taken as 0 (first {_inline(first)})."]


def _check_finite(bars: _Bars) -> None:
    """Every number that is used is a finite one."""
    found = [
        (int(np.argmin(finite)), role)
        for role, column in bars.values.items()
        if not (finite := np.isfinite(column)).all()
    ]
    if not found:
        return
    at, role = min(found)
    value = bars.values[role][at]
    problem = "the value is missing" if np.isnan(value) else f"{value} is not a finite number"
    raise bars.grid.fault(
        bars.row(at), bars.roles[role], f"{problem}. Fill it in or delete that line."
    )


def _scale(bars: _Bars, choices: ReadingChoices) -> list[str]:
    notes = [*_adjust(bars, choices), *_lots_note(bars, choices)]
    for role, factor in (("volume", choices.volume_factor), ("amount", choices.amount_factor)):
        if factor is not None and role in bars.values:
            bars.values[role] = bars.values[role] * factor
            notes.append(f"The {role} was multiplied by {factor:g}.")
    return notes


def _adjust(bars: _Bars, choices: ReadingChoices) -> list[str]:
    adjusted = bars.values.pop("adjusted close", None)
    if adjusted is None:
        return []
    title = bars.grid.layout.title(bars.roles["adjusted close"])
    if choices.prices != "adjusted":
        return [f"Prices are raw; the column {title} is there to adjust them by, if chosen."]
    wrong = np.flatnonzero((adjusted <= 0) | (bars.values["close"] <= 0))
    if wrong.size:
        problem = "prices must be above 0 to adjust by. Correct it or read the prices raw."
        raise bars.grid.fault(bars.row(int(wrong[0])), bars.roles["adjusted close"], problem)
    factor = adjusted / bars.values["close"]
    for role in ("open", "high", "low"):
        bars.values[role] = bars.values[role] * factor
    bars.values["close"] = adjusted
    return [f"Prices are adjusted for splits and dividends by the column {title}."]


def _lots_note(bars: _Bars, choices: ReadingChoices) -> list[str]:
    dialect = bars.grid.layout.dialect
    if (
        dialect.lots is None
        or choices.volume_factor is not None
        or choices.amount_factor is not None
    ):
        return []
    lot, thousand = dialect.lots
    if thousand == 1:
        return [
            f"{dialect.name} counts the volume of mainland shares in lots of {lot:g}; it is kept "
            f"as it is. Scale it by {lot:g} to have shares."
        ]
    return [
        f"{dialect.name} counts volume in lots of {lot:g} and amount in thousands; both are kept "
        f"as they are. Scale them by {lot:g} and {thousand:g} to have shares and currency."
    ]


def _zone_notes(bars: _Bars, columns: Columns) -> list[str]:
    if columns.stamps.zoned:
        return [] if columns.zone == "UTC" else [f"Times are shown in the zone {columns.zone}."]
    if columns.zone is not None:
        return [f"Times carry no time zone and are taken as {columns.zone}."]
    if not (bars.times.asi8 % _DAY).any():
        return []
    return ["Times carry no time zone and are taken as UTC."]


def _place_in_zone(bars: _Bars, columns: Columns) -> None:
    if columns.stamps.zoned or columns.zone in (None, "UTC"):
        return
    wall = bars.times.tz_localize(None)
    # Of an hour that comes twice the earlier row in time is the one in summer time.
    newest_first = len(wall) > 1 and wall[0] > wall[-1]
    again = wall.duplicated(keep="last" if newest_first else "first")
    local = wall.tz_localize(columns.zone, ambiguous=~again, nonexistent="NaT")
    if local.hasnans:
        at = int(np.argmax(local.isna()))
        raise DataError(
            f"{bars.place(at)}: {wall[at]} does not exist in {columns.zone}, where the clock was "
            "put forward then. Choose another time zone, for example UTC."
        )
    bars.times = local.tz_convert("UTC")


def _sort(bars: _Bars) -> None:
    instants = bars.times.asi8
    steps = np.diff(instants)
    if (steps >= 0).all():
        return
    if (steps <= 0).all():
        bars.take(np.arange(len(instants))[::-1])
        bars.notes.insert(0, "The rows were newest first; they are sorted oldest first.")
        return
    late = int((steps < 0).sum())
    bars.take(np.argsort(instants, kind="stable"))
    verb = "row was" if late == 1 else "rows were"
    bars.notes.insert(0, f"{late:,} {verb} out of time order; the bars are sorted oldest first.")


def _drop_repeats(bars: _Bars) -> None:
    repeated = np.diff(bars.times.asi8) == 0
    if not repeated.any():
        return
    differs = np.any([column[1:] != column[:-1] for column in bars.values.values()], axis=0)
    if (conflict := np.flatnonzero(repeated & differs)).size:
        at = int(conflict[0])
        first, second = sorted(bars.row(row) for row in (at, at + 1))
        raise DataError(
            f"{_together(bars.grid.place, first, second)} both hold the bar of "
            f"{bars.times[at]:%Y-%m-%d %H:%M} with different values. Delete the wrong one."
        )
    count = int(repeated.sum())
    bars.take(np.flatnonzero(~np.concatenate([[False], repeated])))
    verb = "rows were" if count > 1 else "row was"
    bars.notes.append(f"{count:,} repeated identical {verb} dropped.")


def _together(place: Callable[[int], str], first: int, second: int) -> str:
    word, number = place(first).rsplit(" ", 1)
    return f"{word}s {number} and {place(second).rsplit(' ', 1)[-1]}"


def _unused_note(grid: Grid) -> list[str]:
    titles = [
        title.strip()
        for at, title in enumerate(grid.layout.titles)
        if at not in grid.layout.used and title.strip()
    ]
    more = f" and {len(titles) - 8} more" if len(titles) > 8 else ""
    return [f"Columns not used: {', '.join(titles[:8])}{more}."] if titles else []


def _title(bars: _Bars, role: str) -> str:
    return bars.grid.layout.title(bars.roles[role])


def _inline(place: str) -> str:
    return place[:1].lower() + place[1:]
