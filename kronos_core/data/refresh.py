"""New bars joined to known ones: what is new is appended, what changed in the past is said.

A source that adjusts its prices restates all earlier bars by one factor after each split and each
dividend. Where such a factor is found it is named, and bars that the new answer does not cover are
brought to the new scale with it, so that no jump appears where old and new meet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt
import pandas as pd

from kronos_core.data.bars import CHANNELS, PRICES, DataError, as_bars, interval_of

# Relative: adjusted prices differ in their last digits from one answer to the next.
TOLERANCE = 1e-6
# Rounded prices blur a factor a little.
_SAME_FACTOR, _SAME_VOLUME_FACTOR = 1e-4, 1e-3
_ENOUGH = 10  # bars that tell the interval
_FEWEST = 3  # bars that a factor must hold for; fewer are corrections of single bars

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]


class Change(NamedTuple):
    """One value of a known bar that the source now gives differently."""

    timestamp: pd.Timestamp
    channel: str
    old: float
    new: float


class Changes(Sequence[Change]):
    """The values that differ, by time and channel; a Change is made when it is looked at.

    stamps, before, after: [n], channels: [n] positions in CHANNELS.
    """

    def __init__(
        self, stamps: pd.DatetimeIndex, channels: Places, before: Floats, after: Floats
    ) -> None:
        self.stamps, self.channels, self.before, self.after = stamps, channels, before, after

    def __len__(self) -> int:
        return len(self.stamps)

    @overload
    def __getitem__(self, place: int) -> Change: ...

    @overload
    def __getitem__(self, place: slice) -> Changes: ...

    def __getitem__(self, place: int | slice) -> Change | Changes:
        if isinstance(place, slice):
            values = self.channels[place], self.before[place], self.after[place]
            return Changes(pd.DatetimeIndex(self.stamps[place]), *values)
        old, new = float(self.before[place]), float(self.after[place])
        return Change(self.stamps[place], CHANNELS[self.channels[place]], old, new)


@dataclass(frozen=True, kw_only=True, slots=True)
class Restatement:
    """Neighbouring known bars, from `first` to `last`, whose prices all changed by one factor.

    factor: new price / old price. volume_factor: the same of the volume, None where that has no
    constant factor. bars: how many of them both sides have.
    """

    first: pd.Timestamp
    last: pd.Timestamp
    bars: int
    factor: float
    volume_factor: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Refresh:
    """Known bars brought up to date.

    frame: the bars (`timestamps` in UTC and the six channels), the known ones first.
    added: bars that were not known; `filled` of them lie before the last known bar.
    overlap: bars that both sides have and that were compared.
    changed: each value that differs, by time; the frame has the new one.
    restated: where the changes are one factor; see Restatement.
    missing: known bars that the source no longer has although it covers their time. They are kept.
    rescaled: known bars that the new answer lacks and that were brought to its scale.
    """

    frame: pd.DataFrame
    added: int
    filled: int
    overlap: int
    changed: Changes
    restated: tuple[Restatement, ...]
    missing: tuple[pd.Timestamp, ...]
    rescaled: int

    @property
    def findings(self) -> tuple[str, ...]:
        """What happened, one sentence each; the first says how many bars are new."""
        return tuple(_told(self))


def merge_new(old_frame: pd.DataFrame, new_frame: pd.DataFrame) -> Refresh:
    """Join a source's new answer to the bars that are known.

    old_frame, new_frame: bars as `as_bars` takes them, with aware stamps. New bars before the
    first known one are left aside. Where both have a bar the new values win; values that agree
    within TOLERANCE stay exactly as they were.
    Raises DataError for unusable frames and for frames of different intervals.
    """
    old, new = _keyed(old_frame), _keyed(new_frame)
    _check_same_interval(old, new)
    new = new[new.index >= old.index[0]]
    pair = _Pair.of(old, new)
    runs = list(_runs(pair))
    scale = _scale(old.index, pair, runs)
    kept = old * scale
    kept.loc[pair.stamps] = np.where(pair.differs, pair.after, pair.before)
    fresh = new[~new.index.isin(old.index)]
    only_old = ~old.index.isin(pair.stamps)
    covered = (old.index > new.index.min()) & (old.index < new.index.max())  # NaT covers nothing
    return Refresh(
        frame=pd.concat([kept, fresh]).sort_index().rename_axis("timestamps").reset_index(),
        added=len(fresh),
        filled=int((fresh.index < old.index[-1]).sum()),
        overlap=len(pair.stamps),
        changed=pair.changes(),
        restated=tuple(run.told(pair.stamps) for run in runs),
        missing=tuple(old.index[only_old & covered]),
        rescaled=int((scale[only_old] != 1).any(axis=1).sum()),
    )


def _keyed(frame: pd.DataFrame) -> pd.DataFrame:
    bars = as_bars(frame)
    stamps = pd.DatetimeIndex(bars.pop("timestamps"))
    if stamps.tz is None:
        raise DataError("The timestamps have no time zone. Convert them to UTC first.")
    bars.index = stamps.tz_convert("UTC").as_unit("ns")
    return bars


def _check_same_interval(old: pd.DataFrame, new: pd.DataFrame) -> None:
    if min(len(old), len(new)) < _ENOUGH:
        return
    known, got = (interval_of(pd.DatetimeIndex(bars.index)) for bars in (old, new))
    if not 0.5 < got / known < 2:  # months are not equally long
        raise DataError(
            f"The known bars are {known} apart and the new ones {got}. Fetch the same interval."
        )


@dataclass(frozen=True, slots=True)
class _Pair:
    """The bars that both sides have: stamps [n], values [n,6] and where they differ."""

    stamps: pd.DatetimeIndex
    before: Floats
    after: Floats
    differs: Flags

    @classmethod
    def of(cls, old: pd.DataFrame, new: pd.DataFrame) -> _Pair:
        stamps = pd.DatetimeIndex(old.index.intersection(new.index))
        before, after = old.loc[stamps].to_numpy(), new.loc[stamps].to_numpy()
        size = np.maximum(np.abs(before), np.abs(after))
        return cls(stamps, before, after, np.abs(after - before) > TOLERANCE * size)

    @property
    def repriced(self) -> Flags:
        """Bars [n] with a price that differs."""
        return ~_all(~self.differs[:, : len(PRICES)])

    def changes(self) -> Changes:
        rows, columns = np.nonzero(self.differs)
        before, after = self.before[rows, columns], self.after[rows, columns]
        return Changes(self.stamps[rows], columns, before, after)


@dataclass(frozen=True, slots=True)
class _Run:
    """Bars [start, stop) of a pair that changed by one factor; factors [6], 1 where none holds."""

    start: int
    stop: int
    factors: Floats
    volume_known: bool

    def told(self, stamps: pd.DatetimeIndex) -> Restatement:
        return Restatement(
            first=stamps[self.start],
            last=stamps[self.stop - 1],
            bars=self.stop - self.start,
            factor=float(self.factors[0]),
            volume_factor=float(self.factors[4]) if self.volume_known else None,
        )


def _runs(pair: _Pair) -> Iterator[_Run]:
    """The stretches of at least _FEWEST neighbours whose four prices changed by one factor."""
    ratios = _ratios(pair)
    prices = ratios[:, : len(PRICES)]
    factor = np.median(prices, axis=1) if len(prices) else np.array([])
    scaled = pair.repriced & _all(_near(prices, factor[:, None], _SAME_FACTOR))
    breaks = ~scaled[1:] | ~scaled[:-1] | ~_near(factor[1:], factor[:-1], _SAME_FACTOR)
    for start, stop in pairwise([0, *(np.flatnonzero(breaks) + 1).tolist(), len(factor)]):
        if stop - start >= _FEWEST and scaled[start]:
            others = [_constant(ratios[start:stop, column]) for column in (4, 5)]
            price = float(np.median(factor[start:stop]))
            factors = np.array([price] * len(PRICES) + [other or 1.0 for other in others])
            yield _Run(start, stop, factors, volume_known=others[0] is not None)


def _ratios(pair: _Pair) -> Floats:
    """new / old [n,6]; exactly 1 where they agree, NaN where both are 0 and tell nothing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        quotients = pair.after / pair.before
    return np.where(pair.differs | np.isnan(quotients), quotients, 1.0)


def _near(values: Floats, others: Floats, tolerance: float) -> Flags:
    return np.asarray(np.abs(values - others) <= tolerance * np.abs(others), dtype=np.bool_)


def _all(flags: Flags) -> Flags:
    return np.asarray(flags.all(axis=1), dtype=np.bool_)


def _constant(ratios: Floats) -> float | None:
    """The one factor of these ratios, or None where there is none."""
    ratios = ratios[~np.isnan(ratios)]
    if not len(ratios) or not np.isfinite(ratios).all() or not ratios.all():
        return None
    middle = float(np.median(ratios))
    return middle if _near(ratios, np.array(middle), _SAME_VOLUME_FACTOR).all() else None


def _scale(stamps: pd.Index, pair: _Pair, runs: list[_Run]) -> pd.DataFrame:
    """What each known bar [n,6] is multiplied with to be on the scale of the new answer.

    A bar that the answer lacks follows the next one that is known to be restated or unchanged,
    since an adjustment applies to all bars before its day.
    """
    factors = np.repeat(np.where(pair.repriced, np.nan, 1.0)[:, None], len(CHANNELS), axis=1)
    for run in runs:
        factors[run.start : run.stop] = run.factors
    scale = pd.DataFrame(factors, pair.stamps, list(CHANNELS)).reindex(stamps)
    return scale.bfill().ffill().fillna(1.0)


def _told(refresh: Refresh) -> Iterator[str]:
    stamps = refresh.frame["timestamps"]
    yield _told_new(refresh, stamps)
    if refresh.overlap == 0 and refresh.added:
        yield (
            "The new bars begin after the last known one, so a change of scale between them "
            "cannot be seen."
        )
    for restated in refresh.restated:
        yield _told_restated(restated)
    if single := _told_single(refresh):
        yield single
    if refresh.missing:
        yield (
            f"The source no longer has {_counted(len(refresh.missing), 'known bar')}, first "
            f"{refresh.missing[0]:%Y-%m-%d %H:%M}. Kept."
        )
    if refresh.rescaled:
        yield (
            f"{_counted(refresh.rescaled, 'bar')} that the source did not send again "
            "brought to the same scale."
        )


def _told_new(refresh: Refresh, stamps: pd.Series[pd.Timestamp]) -> str:
    if not refresh.added:
        return f"Nothing new: {stamps.iloc[-1]:%Y-%m-%d %H:%M} UTC is still the last bar."
    gaps = f", {refresh.filled:,} of them in gaps" if refresh.filled else ""
    count = _counted(refresh.added, "new bar")
    return f"{count}{gaps}; the last is {stamps.iloc[-1]:%Y-%m-%d %H:%M} UTC."


def _told_restated(restated: Restatement) -> str:
    factor, volume = restated.factor, restated.volume_factor
    cause = "the source changed its scale"
    if volume is not None and factor != 1 and abs(factor * volume - 1) < _SAME_VOLUME_FACTOR:
        cause = "as a split does"
    elif 0.5 < factor < 1 and volume is not None and abs(volume - 1) < _SAME_VOLUME_FACTOR:
        cause = "as a dividend does"
    return (
        f"Prices of {_counted(restated.bars, 'past bar')} up to {restated.last:%Y-%m-%d} were "
        f"restated by the factor {factor:.6g} ({cause})."
    )


def _told_single(refresh: Refresh) -> str:
    """The changes that no restatement explains, or "" where there are none."""
    stamps = refresh.changed.stamps
    single = np.ones(len(stamps), dtype=bool)
    for part in refresh.restated:
        single &= (stamps < part.first) | (stamps > part.last)
    if not single.any():
        return ""
    first = refresh.changed[int(single.argmax())]
    bars = stamps[single].nunique()
    return (
        f"{_counted(int(single.sum()), 'value')} of {_counted(bars, 'past bar')} changed; the "
        f"first is the {first.channel} of {first.timestamp:%Y-%m-%d %H:%M}: {first.old:g}, now "
        f"{first.new:g}."
    )


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
