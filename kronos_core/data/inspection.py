"""Inspection: a frame of bars that may be unclean, with what several checks need of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from kronos_core.data import defects
from kronos_core.data.bars import CHANNELS, PRICES, DataError, Series, interval_of
from kronos_core.data.calendars import Calendar, infer
from kronos_core.data.findings import PLACES


@lru_cache(maxsize=1)
def schema() -> Any:
    """The pandera schema of a frame of bars: its columns and types. Values are checked apart.

    pandera is imported on first use; a Series needs no check of its types.
    """
    import pandera.pandas as pa

    stamps = pa.Column(
        checks=pa.Check(
            lambda column: isinstance(column.dtype, pd.DatetimeTZDtype) or column.dtype.kind == "M",
            error="timestamps must be datetimes",
        ),
        nullable=True,
    )
    numbers = {
        name: pa.Column(float, nullable=True, coerce=True, required=name in PRICES)
        for name in CHANNELS
    }
    return pa.DataFrameSchema({"timestamps": stamps, **numbers})


def check_schema(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with its numbers as float64. DataError that lists every column that is wrong."""
    import pandera.errors

    try:
        checked: pd.DataFrame = schema().validate(frame, lazy=True)
    except pandera.errors.SchemaErrors as errors:
        cases = errors.failure_cases
        wrong = sorted(
            {
                str(column or case)
                for column, case in zip(
                    cases["column"].where(cases["column"].notna(), None),
                    cases["failure_case"],
                    strict=True,
                )
            }
        )
        raise DataError(
            f"The frame is no table of bars; look at: {', '.join(wrong)}. It needs timestamps "
            f"(datetimes) and {', '.join(PRICES)} (numbers); volume and amount may be left out."
        ) from errors
    return checked


@dataclass(frozen=True)
class Table:
    stamps: pd.DatetimeIndex
    prices: npt.NDArray[np.float64]
    volume: npt.NDArray[np.float64]
    amount: npt.NDArray[np.float64]
    given: Calendar | None
    timezone: str

    @cached_property
    def instants(self) -> npt.NDArray[np.int64]:
        return self.stamps.as_unit("ns").asi8

    @cached_property
    def stamped(self) -> npt.NDArray[np.bool_]:
        return np.asarray(self.stamps.notna())

    @cached_property
    def ordered(self) -> npt.NDArray[np.int64]:
        """Rows with a stamp in time order, the first of each stamp."""
        rows = np.flatnonzero(self.stamped)
        times = self.instants[rows]
        if (np.diff(times) > 0).all():
            return rows
        unique, first = np.unique(times, return_index=True)
        assert len(unique) == len(first)
        return np.asarray(rows[first])

    @cached_property
    def sorted(self) -> pd.DatetimeIndex:
        return self.stamps[self.ordered]

    @cached_property
    def usable(self) -> npt.NDArray[np.int64]:
        """Rows in time order whose prices can be compared."""
        return self.ordered[~defects.unusable_prices(self.prices[self.ordered])]

    @cached_property
    def usable_prices(self) -> npt.NDArray[np.float64]:
        """The prices of these rows [n,4], a column's values side by side in memory."""
        return np.asfortranarray(self.prices[self.usable])

    @cached_property
    def step(self) -> pd.Timedelta | None:
        return interval_of(self.sorted) if len(self.sorted) > 1 else None

    @cached_property
    def calendar(self) -> Calendar | None:
        if self.given is not None or self.step is None:
            return self.given
        return infer(self.sorted, self.timezone)

    @cached_property
    def missing(self) -> pd.DatetimeIndex | None:
        """Bars that the calendar has and the series lacks; None when they cannot be listed."""
        if self.calendar is None:
            return None
        try:
            return self.calendar.missing(self.sorted)
        except ValueError:  # more than can be listed: the gap check says so
            return None

    def places(self, rows: npt.NDArray[np.int64]) -> tuple[pd.Timestamp, ...]:
        stamps = self.stamps[rows[: 2 * PLACES]]
        return tuple(stamps[stamps.notna()][:PLACES])


def table_of(bars: Series | pd.DataFrame, calendar: Calendar | None) -> Table:
    timezone = None
    if isinstance(bars, Series):
        frame, timezone = bars.frame, bars.timezone
    else:
        frame = check_schema(bars)
    stamps = pd.DatetimeIndex(frame["timestamps"])
    zone = timezone or (calendar.timezone if calendar else None)
    zeros = np.zeros(len(frame))
    return Table(
        stamps=stamps,
        prices=np.asfortranarray(frame[list(PRICES)].to_numpy(dtype=np.float64)),
        volume=frame["volume"].to_numpy(dtype=np.float64) if "volume" in frame else zeros,
        amount=frame["amount"].to_numpy(dtype=np.float64) if "amount" in frame else zeros,
        given=calendar,
        timezone=zone or ("UTC" if stamps.tz is None else str(stamps.tz)),
    )
