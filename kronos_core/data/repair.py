"""Repairs: opt-in, pure, and recorded as steps, so that undoing one is applying the others again.

A repair touches only bars that are wrong in its own sense; a valid bar keeps every value. The
frames may be unclean: `timestamps`, the four prices, volume and amount.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from kronos_core.data import defects
from kronos_core.data.bars import CHANNELS, PRICES, fill_amount
from kronos_core.data.calendars import Calendar, infer
from kronos_core.data.clocks import check_zone

_SAMPLE_ROWS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Repair:
    """name: key and kind of step. parameters: what can be set, with the defaults.

    change(frame, **parameters) keeps the index labels of rows that it keeps and gives rows that it
    adds negative ones.
    """

    name: str
    title: str
    sentence: str
    change: Callable[..., pd.DataFrame]
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class RepairStep:
    """One applied repair. Raises ValueError for an unknown name or parameter."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name not in REPAIRS:
            raise ValueError(
                f"There is no repair {self.name!r}. Choose one of {', '.join(REPAIRS)}."
            )
        known = REPAIRS[self.name].parameters
        unknown = sorted(set(self.parameters) - set(known))
        if unknown:
            raise ValueError(
                f"The repair {self.name} has no parameter {', '.join(unknown)}; it has "
                f"{', '.join(known) or 'none'}."
            )

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe; `from_dict` of it is equal to self."""
        return {"name": self.name, "parameters": dict(self.parameters)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RepairStep:
        """Inverse of `to_dict`."""
        return cls(name=values["name"], parameters=dict(values.get("parameters") or {}))


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """What a step does. before, after: the first rows concerned, by their label in the original
    (rows that are dropped are only in `before`, added ones only in `after`)."""

    step: RepairStep
    changed: int
    dropped: int
    added: int
    moved: int
    before: pd.DataFrame
    after: pd.DataFrame

    @property
    def count(self) -> int:
        """Bars that the step touches."""
        return self.changed + self.dropped + self.added + self.moved


def apply(frame: pd.DataFrame, steps: Sequence[RepairStep]) -> pd.DataFrame:
    """The frame after the steps, one on the other; `frame` itself is left alone.

    Steps are deterministic, so the same steps on the same frame give the same bytes, and no steps
    give the frame back. Raises ValueError for a parameter that makes no sense.
    """
    if not steps:
        return frame.copy()
    result = frame.reset_index(drop=True)
    for step in steps:
        result = _run(result, step).reset_index(drop=True)
    return result


def preview(frame: pd.DataFrame, steps: Sequence[RepairStep]) -> list[Change]:
    """What each step would do after those before it."""
    changes = []
    current = frame.reset_index(drop=True)
    for step in steps:
        result = _run(current, step)
        changes.append(_change(step, current, result))
        current = result.reset_index(drop=True)
    return changes


def _run(frame: pd.DataFrame, step: RepairStep) -> pd.DataFrame:
    repair = REPAIRS[step.name]
    return repair.change(frame, **{**repair.parameters, **step.parameters})


def _change(step: RepairStep, before: pd.DataFrame, after: pd.DataFrame) -> Change:
    kept = after.index[after.index >= 0]
    dropped = before.index.difference(kept)
    added = after.index[after.index < 0]
    old, new = before.loc[kept], after.loc[kept]
    differs = ~((old == new) | (old.isna() & new.isna())).all(axis=1)
    changed = kept[differs.to_numpy()]
    moved = int((np.diff(kept.to_numpy()) < 0).sum())
    shown = changed.union(dropped)[:_SAMPLE_ROWS]
    return Change(
        step=step,
        changed=len(changed),
        dropped=len(dropped),
        added=len(added),
        moved=moved,
        before=before.loc[shown],
        after=after.loc[shown.intersection(kept).append(added[: _SAMPLE_ROWS - len(shown)])],
    )


def _sort(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.sort_values("timestamps", kind="stable", na_position="last")


def _drop_repeats(frame: pd.DataFrame, keep: str) -> pd.DataFrame:
    if keep not in ("first", "last"):
        raise ValueError(f"keep must be first or last, got {keep!r}")
    stamps = frame["timestamps"]
    again = stamps.duplicated(keep="first") if keep == "first" else stamps.duplicated(keep="last")
    return frame[~(again & stamps.notna())]


def _drop_unusable(frame: pd.DataFrame) -> pd.DataFrame:
    wrong = defects.unusable_prices(_prices(frame)) | frame["timestamps"].isna().to_numpy()
    return frame[~wrong]


def _clean_volume(frame: pd.DataFrame) -> pd.DataFrame:
    """A volume that means nothing becomes 0; such an amount follows from volume and prices."""
    volume, amount = (frame[name].to_numpy(dtype=np.float64).copy() for name in CHANNELS[4:])
    wrong = defects.unusable_amounts(volume)
    volume[wrong] = 0.0
    wrong_amount = defects.unusable_amounts(amount)
    prices = np.where(defects.unusable_prices(_prices(frame))[:, None], 0.0, _prices(frame))
    amount[wrong_amount] = fill_amount(prices, volume)[wrong_amount]
    amount[~np.isfinite(amount)] = 0.0
    return frame.assign(volume=volume, amount=amount)


def _fix_bounds(frame: pd.DataFrame) -> pd.DataFrame:
    prices = _prices(frame)
    wrong = defects.out_of_bounds(prices)
    prices[wrong, 1] = prices[wrong].max(axis=1)
    prices[wrong, 2] = prices[wrong].min(axis=1)
    return _with_prices(frame, prices)


def _flatten_spikes(frame: pd.DataFrame) -> pd.DataFrame:
    """Prices of a spike that lie beyond its neighbours' closes and its own sound ones are cut."""
    rows = _comparable(frame)
    prices = _prices(frame)
    values = prices[rows]
    for row in np.flatnonzero(defects.spikes(values)):
        near = values[max(row - 1, 0) : row + 2 : 2] if row else values[1:2]
        values[row] = np.clip(values[row], near.min(), near.max())
    prices[rows] = values
    return _with_prices(frame, prices)


def _adjust_splits(frame: pd.DataFrame) -> pd.DataFrame:
    """Bars before a split are brought to the new scale; their amount stays what it was."""
    rows = _comparable(frame)
    prices = _prices(frame)
    volume = frame["volume"].to_numpy(dtype=np.float64).copy()
    scaled, _ = defects.scale_errors(prices[rows])
    sound = np.delete(rows, scaled)
    for shift in defects.splits(prices[sound]):
        before = sound[: shift.row]
        prices[before] *= shift.factor
        volume[before] /= shift.factor
    return frame.assign(**_columns(prices), volume=volume)


def _rescale(frame: pd.DataFrame) -> pd.DataFrame:
    """Of a bar that is 100 times off, the prices near its close are divided."""
    rows = _comparable(frame)
    prices = _prices(frame)
    wrong, factors = defects.scale_errors(prices[rows])
    values = prices[rows[wrong]]
    off = np.abs(np.log(values / values[:, 3:])) < 0.5 * np.abs(np.log(factors))[:, None]
    prices[rows[wrong]] = np.where(off, values / factors[:, None], values)
    return _with_prices(frame, prices)


def _drop_idle(frame: pd.DataFrame) -> pd.DataFrame:
    rows = _comparable(frame)
    volume = frame["volume"].to_numpy(dtype=np.float64)[rows]
    idle = np.zeros(len(frame), dtype=bool)
    idle[rows] = defects.idle_stretches(volume, _prices(frame)[rows])
    return frame[~idle]


def _shift_repeated_hour(frame: pd.DataFrame, timezone: str) -> pd.DataFrame:
    """The second of two equal hours at the end of summer time is an hour later than the first."""
    check_zone(timezone)
    stamps = pd.DatetimeIndex(frame["timestamps"])
    if stamps.tz is None:
        raise ValueError(
            "The times have no zone, so the repeated hour cannot be told apart. Read the file with "
            "its time zone first."
        )
    rows = np.flatnonzero(stamps.notna())
    wall = stamps[rows].tz_convert(timezone).tz_localize(None)
    second = rows[defects.repeated_hour(wall, timezone)]
    moved = frame["timestamps"].copy()
    moved.iloc[second] += pd.Timedelta(hours=1)
    return frame.assign(timestamps=moved)


def _fill_gaps(
    frame: pd.DataFrame, calendar: Mapping[str, Any] | None, longest: int
) -> pd.DataFrame:
    """Missing bars become flat ones at the last close, without volume, in gaps up to `longest`."""
    if longest < 1:
        raise ValueError(f"longest must be at least 1 bar, got {longest}")
    stamps = pd.DatetimeIndex(frame["timestamps"])
    if stamps.hasnans or not (stamps.is_monotonic_increasing and stamps.is_unique):
        raise ValueError(
            "Gaps can be filled only in sorted bars without repeats. Repair those first."
        )
    chosen = Calendar.from_dict(calendar) if calendar else infer(stamps)
    missing = chosen.missing(stamps)
    after = np.searchsorted(stamps, missing)
    lengths = np.bincount(after, minlength=1)
    kept = lengths[after] <= longest
    missing, before = missing[kept], after[kept] - 1
    close = frame["close"].to_numpy(dtype=np.float64)[before]
    filled = pd.DataFrame(dict.fromkeys(PRICES, close) | dict.fromkeys(CHANNELS[4:], 0.0))
    filled.insert(0, "timestamps", missing)
    filled.index = -1 - np.arange(len(filled))
    if filled.empty:
        return frame
    return _sort(pd.concat([frame, filled.astype(frame.dtypes.to_dict())]))


def _prices(frame: pd.DataFrame) -> npt.NDArray[np.float64]:
    """A copy of the prices [T, 4]."""
    return frame[list(PRICES)].to_numpy(dtype=np.float64, copy=True)


def _with_prices(frame: pd.DataFrame, prices: npt.NDArray[np.float64]) -> pd.DataFrame:
    """The frame with other prices. An amount that followed from the old ones follows from them."""
    old = _prices(frame)
    rows = np.flatnonzero(((old != prices) & ~np.isnan(prices)).any(axis=1))
    volume, amount = (frame[name].to_numpy(dtype=np.float64).copy() for name in CHANNELS[4:])
    rows = rows[np.isclose(amount[rows], fill_amount(old[rows], volume[rows]), rtol=1e-9, atol=0)]
    amount[rows] = fill_amount(prices[rows], volume[rows])
    return frame.assign(**_columns(prices), amount=amount)


def _columns(prices: npt.NDArray[np.float64]) -> dict[str, npt.NDArray[np.float64]]:
    return {name: prices[:, column] for column, name in enumerate(PRICES)}


def _comparable(frame: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Positions of rows with usable prices, in time order, the first of each stamp."""
    stamps = frame["timestamps"]
    usable = ~defects.unusable_prices(_prices(frame)) & stamps.notna().to_numpy()
    rows = np.flatnonzero(usable & ~stamps.duplicated().to_numpy())
    times = pd.DatetimeIndex(stamps.iloc[rows]).asi8
    return rows[np.argsort(times, kind="stable")]


REPAIRS: dict[str, Repair] = {
    repair.name: repair
    for repair in (
        Repair(
            name="sort",
            title="Sort by time",
            sentence="Put the bars in order, the oldest first.",
            change=_sort,
        ),
        Repair(
            name="shift_repeated_hour",
            title="Separate the repeated hour",
            sentence="Move the second of two equal hours at the end of summer time an hour later.",
            change=_shift_repeated_hour,
            parameters={"timezone": "UTC"},
        ),
        Repair(
            name="drop_repeats",
            title="Drop repeated bars",
            sentence="Of several bars with one time keep the first (or the last).",
            change=_drop_repeats,
            parameters={"keep": "first"},
        ),
        Repair(
            name="drop_unusable",
            title="Drop unusable bars",
            sentence="Drop bars without a time, or with a price that is missing, infinite or not "
            "above 0.",
            change=_drop_unusable,
        ),
        Repair(
            name="clean_volume",
            title="Clean the volume",
            sentence="Set a volume that is missing, infinite or negative to 0, and compute such an "
            "amount from volume and prices.",
            change=_clean_volume,
        ),
        Repair(
            name="rescale",
            title="Undo 100-fold errors",
            sentence="Bring prices that are 100 or 1000 times too large or small back to scale.",
            change=_rescale,
        ),
        Repair(
            name="adjust_splits",
            title="Adjust for splits",
            sentence="Bring prices and volume before each suspected split to the scale after it.",
            change=_adjust_splits,
        ),
        Repair(
            name="flatten_spikes",
            title="Flatten outliers",
            sentence="Cut prices of a spike to the range of the bars beside it.",
            change=_flatten_spikes,
        ),
        Repair(
            name="fix_bounds",
            title="Widen high and low",
            sentence="Where the high or the low does not bound a bar, set it to the highest or "
            "lowest of its prices.",
            change=_fix_bounds,
        ),
        Repair(
            name="drop_idle",
            title="Drop idle bars",
            sentence="Drop stretches of five and more bars without volume and without a move.",
            change=_drop_idle,
        ),
        Repair(
            name="fill_gaps",
            title="Fill short gaps",
            sentence="Put flat bars at the last close, without volume, where the calendar has bars "
            "and the series has none.",
            change=_fill_gaps,
            parameters={"calendar": None, "longest": 5},
        ),
    )
}
