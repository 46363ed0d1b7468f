"""Quality: what is wrong with a series of bars, where, and what that does to a forecast.

Works on bars that are not clean yet. Every check is a pass over whole columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd

from kronos_core.data import defects
from kronos_core.data.bars import Series
from kronos_core.data.calendars import Calendar
from kronos_core.data.findings import PLACES, Finding, QualityReport, Severity
from kronos_core.data.inspection import Table, table_of
from kronos_core.data.template import step_words

_MIXED_RUN = 10
# Zones whose hidden clock changes are looked for in bars that claim to be UTC.
_LIKELY_ZONES = ("America/New_York", "Europe/Berlin", "Europe/London")


def report(bars: Series | pd.DataFrame, calendar: Calendar | None = None) -> QualityReport:
    """Every finding about `bars`, in one pass of under a second for a million bars.

    bars: a Series, or a frame with `timestamps` (datetimes; may be unsorted, repeated, missing),
    the four prices and, where known, volume and amount (may be missing, infinite, negative).
    calendar: for the gaps; inferred from the bars without one. Raises DataError for a frame that
    lacks a column or holds other types.
    """
    table = table_of(bars, calendar)
    findings = [finding for check in _CHECKS for finding in check(table)]
    gravity = ("error", "warning", "note")
    findings.sort(key=lambda finding: gravity.index(finding.severity))
    return QualityReport(
        findings=tuple(findings),
        bars=len(table.stamps),
        expected=None if table.missing is None else len(table.sorted) + len(table.missing),
        calendar=table.calendar,
    )


def _stampless(table: Table) -> Iterator[Finding]:
    rows = np.flatnonzero(~table.stamped)
    if rows.size:
        yield Finding(
            kind="stamps",
            severity="error",
            count=int(rows.size),
            places=(),
            message=f"{_bars(rows.size, 'has', 'have')} no timestamp (row {rows[0]} is the first).",
            effect="They have no place in the series and cannot be used.",
            repair="drop_unusable",
        )


def _unusable(table: Table) -> Iterator[Finding]:
    rows = np.flatnonzero(defects.unusable_prices(table.prices))
    if rows.size:
        yield Finding(
            kind="values",
            severity="error",
            count=int(rows.size),
            places=table.places(rows),
            message=f"{_bars(rows.size, 'has', 'have')} a price that is missing, infinite or not "
            "above 0.",
            effect="A context that holds one of them cannot be normalised, so nothing is forecast.",
            repair="drop_unusable",
        )
    rows = np.flatnonzero(defects.unusable_amounts(table.volume, table.amount))
    if rows.size:
        yield Finding(
            kind="volume",
            severity="error",
            count=int(rows.size),
            places=table.places(rows),
            message=f"{_bars(rows.size, 'has', 'have')} a volume or amount that is missing, "
            "infinite or negative.",
            effect="A context that holds one of them cannot be normalised, so nothing is forecast.",
            repair="clean_volume",
        )


def _order(table: Table) -> Iterator[Finding]:
    times = table.instants[table.stamped]
    back = np.flatnonzero(np.diff(times) < 0) + 1
    if back.size:
        newest_first = back.size == len(times) - 1
        yield Finding(
            kind="order",
            severity="error",
            count=int(back.size),
            places=table.places(np.flatnonzero(table.stamped)[back]),
            message="The bars run from the newest to the oldest."
            if newest_first
            else f"{_bars(back.size, 'comes', 'come')} before the bar above it in time.",
            effect="Read in this order the past would hold the future.",
            repair="sort",
        )


def _duplicates(table: Table) -> Iterator[Finding]:
    present = np.flatnonzero(table.stamped)
    if len(present) == len(table.ordered):
        return
    again = present[pd.Index(table.instants[present]).duplicated()]
    wall = _naive(table.stamps[present], table.timezone)
    clock = {zone: present[defects.repeated_hour(wall, zone)] for zone in _zones(table.timezone)}
    zone, repeats = max(clock.items(), key=lambda item: len(item[1]), default=("", present[:0]))
    if repeats.size and repeats.size >= 0.5 * again.size:
        again = np.setdiff1d(again, repeats)
        yield Finding(
            kind="clock_repeat",
            severity="warning",
            count=int(repeats.size),
            places=table.places(repeats),
            message=f"{_bars(repeats.size, 'repeats', 'repeat')} the hour that the clock of "
            f"{zone} shows twice when summer time ends.",
            effect="One of the two hours is lost, and the bars after it are an hour off.",
            repair="shift_repeated_hour" if zone == table.timezone else "drop_repeats",
            parameters={"timezone": zone} if zone == table.timezone else {},
        )
    if again.size:
        yield _duplicate_finding(table, again)


def _duplicate_finding(table: Table, again: npt.NDArray[np.int64]) -> Finding:
    first = pd.Index(table.instants[table.ordered]).get_indexer(pd.Index(table.instants[again]))
    values = np.column_stack([table.prices, table.volume, table.amount])
    one, other = values[table.ordered[first]], values[again]
    differ = int((~((one == other) | (np.isnan(one) & np.isnan(other))).all(axis=1)).sum())
    return Finding(
        kind="duplicates",
        severity="error",
        count=int(again.size),
        places=table.places(again),
        message=f"{_bars(again.size, 'repeats', 'repeat')} the time of another"
        + (f", {differ:,} of them with other values." if differ else ", with equal values."),
        effect="A moment would count twice, and it is open which values are true.",
        repair="drop_repeats",
    )


def _intervals(table: Table) -> Iterator[Finding]:
    if table.step is None or table.step > pd.Timedelta(days=6):
        return
    steps = np.diff(table.sorted.as_unit("ns").asi8)
    usual = table.step.value
    same = np.r_[False, steps[1:] == steps[:-1]] & (np.abs(steps - usual) > 0.1 * usual)
    runs = defects.long_runs(same, _MIXED_RUN - 1)
    runs[:-1] |= runs[1:]  # the first step of a run has none of its kind before it
    count = int(runs.sum())
    if count:
        rows = table.ordered[np.flatnonzero(runs) + 1]
        other = step_words(pd.Timedelta(int(steps[runs][0]), unit="ns"))
        yield Finding(
            kind="intervals",
            severity="error",
            count=count,
            places=table.places(rows),
            message=f"The interval changes: most bars are {step_words(table.step)} apart, "
            f"{count:,} are {other} apart.",
            effect="Moves of different length look alike to the model. Resample to the longer "
            "interval, or keep one part.",
        )


def _gaps(table: Table) -> Iterator[Finding]:
    calendar, missing = table.calendar, table.missing
    if calendar is None:
        return
    if missing is None:
        yield Finding(
            kind="gaps",
            severity="error",
            count=len(table.sorted),
            places=tuple(table.sorted[:1]),
            message="Far more bars are missing between the first and the last one than there are. "
            f"The first is {table.sorted[0]}, the last {table.sorted[-1]}.",
            effect="Bars that lie far apart look like neighbours. Check the timestamps.",
        )
    elif len(missing):
        yield _gap_finding(table, calendar, missing)


def _gap_finding(table: Table, calendar: Calendar, missing: pd.DatetimeIndex) -> Finding:
    share = len(missing) / (len(missing) + len(table.sorted))
    holes = 1 + int((np.diff(np.searchsorted(table.sorted, missing)) > 0).sum())
    known = calendar.kind in ("exchange", "24/7")
    hint = (
        ""
        if known
        else " Holidays count as missing as long as no exchange is chosen as the calendar."
    )
    severity: Severity = "note" if share < 0.01 or (not known and share < 0.06) else "warning"
    return Finding(
        kind="gaps",
        severity="error" if share > 0.3 else severity,
        count=len(missing),
        places=tuple(missing[:PLACES]),
        message=f"{_bars(len(missing), 'is', 'are')} missing in {holes:,} "
        f"place{'' if holes == 1 else 's'}, {share:.1%} of what the calendar "
        f"({calendar.title}) has.{hint}",
        effect="The bars on both sides look like neighbours, so a move over hours or days seems to "
        "have happened in one bar.",
        repair="fill_gaps",
        parameters={"calendar": calendar.to_dict()},
    )


def _bounds(table: Table) -> Iterator[Finding]:
    rows = np.flatnonzero(defects.out_of_bounds(table.prices))
    if rows.size:
        share = rows.size / len(table.prices)
        yield Finding(
            kind="bounds",
            severity="error" if share > 0.1 else "warning",
            count=int(rows.size),
            places=table.places(rows),
            message=f"{_bars(rows.size, 'has', 'have')} a high below or a low above another price.",
            effect="The model has not seen such candles; it may draw impossible ones itself.",
            repair="fix_bounds",
        )


def _idle(table: Table) -> Iterator[Finding]:
    rows = table.usable
    volume = table.volume[rows]
    if len(rows) and not (np.nan_to_num(volume) > 0).any():
        yield Finding(
            kind="no_volume",
            severity="note",
            count=len(rows),
            places=(),
            message="There is no volume.",
            effect="The model sees 0 for volume and amount, and forecasts of them mean nothing.",
        )
        return
    idle = rows[defects.idle_stretches(volume, table.usable_prices)]
    if idle.size:
        share = idle.size / len(rows)
        yield Finding(
            kind="idle",
            severity="warning" if share > 0.01 else "note",
            count=int(idle.size),
            places=table.places(idle),
            message=f"{_bars(idle.size, 'lies', 'lie')} in stretches without volume and without a "
            "move: the market was closed or the row was filled in.",
            effect="They teach that nothing happens, and a context full of them has no scale.",
            repair="drop_idle",
        )


def _jumps(table: Table) -> Iterator[Finding]:
    rows, prices = table.usable, table.usable_prices
    if len(rows) < 3:
        return
    scaled, factors = defects.scale_errors(prices)
    if scaled.size:
        factor = factors[0] if factors[0] > 1 else 1 / factors[0]
        yield Finding(
            kind="scale",
            severity="error",
            count=int(scaled.size),
            places=table.places(rows[scaled]),
            message=f"{_bars(scaled.size, 'is', 'are')} about {factor:,.0f} times too "
            f"{'large' if factors[0] > 1 else 'small'}: a lost decimal mark, or another unit.",
            effect="One such bar in the context makes all others look flat.",
            repair="rescale",
        )
    sound = np.ones(len(rows), dtype=bool)
    sound[scaled] = False
    kept = (rows[sound], prices[sound]) if scaled.size else (rows, prices)
    yield from _split_findings(table, *kept)
    odd = np.flatnonzero(defects.spikes(prices) & sound)
    if odd.size:
        yield Finding(
            kind="outliers",
            severity="error" if odd.size > 0.1 * len(rows) else "warning",
            count=int(odd.size),
            places=table.places(rows[odd]),
            message=f"{_bars(odd.size, 'jumps', 'jump')} far away and back at once, or "
            "has a high or low far outside the rest.",
            effect="It widens the scale of every context that holds it, and the fan with it. It "
            "may be real: look at it first.",
            repair="flatten_spikes",
        )


def _split_findings(
    table: Table, rows: npt.NDArray[np.int64], prices: npt.NDArray[np.float64]
) -> Iterator[Finding]:
    found = defects.splits(prices)
    if found:
        first = found[0]
        words = f"{1 / first.factor:.0f} for 1" if first.factor < 1 else f"1 for {first.factor:.0f}"
        yield Finding(
            kind="splits",
            severity="warning",
            count=len(found),
            places=table.places(rows[[shift.row for shift in found]]),
            message=f"{len(found)} jump{'' if len(found) == 1 else 's'} of the size of a split "
            f"(the first like {words}).",
            effect="The model takes it for a crash or a rally. Adjusted prices do not show it.",
            repair="adjust_splits",
        )


def _skipped(table: Table) -> Iterator[Finding]:
    step = table.step
    if step is None or step > pd.Timedelta(hours=1) or table.timezone not in ("UTC", "Etc/UTC"):
        return
    wall = _naive(table.sorted, table.timezone)
    for zone in _LIKELY_ZONES:
        rows = defects.skipped_hours(wall, step.value, zone)
        if rows.size:
            yield Finding(
                kind="clock_hole",
                severity="warning",
                count=int(rows.size),
                places=table.places(table.ordered[rows]),
                message=f"{rows.size} hole{'' if rows.size == 1 else 's'} of one hour where the "
                f"clock of {zone} goes forward: the times are probably local, not UTC.",
                effect="Half of the year the model sees the wrong hour of the day. Read the file "
                "again with that time zone.",
            )
            return


def _zones(timezone: str) -> tuple[str, ...]:
    return _LIKELY_ZONES if timezone in ("UTC", "Etc/UTC") else (timezone,)


def _naive(stamps: pd.DatetimeIndex, zone: str) -> pd.DatetimeIndex:
    return stamps if stamps.tz is None else stamps.tz_convert(zone).tz_localize(None)


def _bars(count: int, one: str, many: str) -> str:
    return f"1 bar {one}" if count == 1 else f"{count:,} bars {many}"


_CHECKS: tuple[Callable[[Table], Iterator[Finding]], ...] = (
    _stampless,
    _unusable,
    _order,
    _duplicates,
    _intervals,
    _gaps,
    _bounds,
    _jumps,
    _idle,
    _skipped,
)
