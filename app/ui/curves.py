"""How recorded curves are looked at: over which axis, how smooth, with which outliers cut off.

Pure functions of arrays and frames; nothing here changes what was recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from tsdownsample import MinMaxLTTBDownsampler

DISPLAY_POINTS = 1500
PAUSE_SECONDS = 60.0
OUTER = 0.02
"""Share of the values at either end that does not count for the range of a clipped axis."""
ROOM = 0.5

Axis = Literal["step", "epoch", "relative", "wall"]
Floats = npt.NDArray[np.float64]

AXES: dict[Axis, str] = {
    "step": "Step",
    "epoch": "Epoch",
    "relative": "Time trained",
    "wall": "Clock",
}
AXIS_TITLES: dict[Axis, str] = {
    "step": "step",
    "epoch": "epoch",
    "relative": "minutes trained, pauses left out",
    "wall": "time",
}
SMOOTHINGS = (0, 5, 20, 50, 200, 1000)


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """How curves are drawn. ``smooth``: steps that one point is a mean of (0: none)."""

    axis: Axis = "step"
    log: bool = False
    smooth: int = 0
    clip: bool = False
    timezone: str | None = None


@dataclass(slots=True)
class Clipping:
    """What clipped axes leave out; ``range_of`` collects it panel by panel."""

    hidden: int = 0
    total: int = 0
    lowest: float = np.inf
    highest: float = -np.inf
    panels: list[str] = field(default_factory=list)

    def range_of(self, name: str, values: Floats, *, log: bool) -> list[float] | None:
        """The range of a panel's axis, or None where nothing has to be cut off."""
        limits = clip_limits(values)
        self.total += int(np.isfinite(values).sum())
        if limits is None:
            return None
        outside = values[(values < limits[0]) | (values > limits[1])]
        self.hidden += len(outside)
        self.lowest = min(self.lowest, float(outside.min()))
        self.highest = max(self.highest, float(outside.max()))
        self.panels.append(name)
        if log:
            return [float(np.log10(limit)) for limit in limits] if limits[0] > 0 else None
        return [float(limit) for limit in limits]

    def sentence(self) -> str:
        """What is out of sight, in words."""
        if not self.hidden:
            return "No value lies far from the others, so nothing is cut off."
        return (
            f"{self.hidden:,} of {self.total:,} values lie outside the ranges shown "
            f"({', '.join(self.panels)}), from {self.lowest:.4g} to {self.highest:.4g}."
        )


def clip_limits(values: Floats) -> tuple[float, float] | None:
    """Limits around the bulk of the values; None where no value lies outside of them."""
    known = values[np.isfinite(values)]
    if len(known) < 3:
        return None
    low, high = np.quantile(known, (OUTER, 1 - OUTER))
    room = ROOM * (high - low)
    low, high = float(low - room), float(high + room)
    if high <= low or (known.min() >= low and known.max() <= high):
        return None
    return max(low, float(known.min())), min(high, float(known.max()))


def smoothed(values: Floats, width: int) -> Floats:
    """A centred moving mean over about ``width`` values.

    Towards the ends it narrows until it is the value itself, so that first and last stay what they
    are and a straight line stays straight. Unknown values stay unknown and count for nothing.
    """
    known = np.isfinite(values)
    held = values[known]
    places = np.arange(len(held))
    radius = np.minimum(width // 2, np.minimum(places, places[::-1]))
    sums = np.concatenate([[0.0], np.cumsum(held)])
    out = np.array(values, dtype=np.float64)
    out[known] = (sums[places + radius + 1] - sums[places - radius]) / (2 * radius + 1)
    return out


def axis_values(frame: pd.DataFrame, view: View) -> pd.Series:
    """Where the rows of a history stand on the axis of the view, in the order of the rows."""
    if view.axis in ("step", "epoch"):
        return pd.Series(frame[view.axis])
    moments = pd.to_datetime(frame["recorded_at"], utc=True)
    if view.axis == "wall":
        # Plotly knows no zones: the wall clock itself is what it draws.
        return pd.Series(moments.dt.tz_convert(view.timezone or "UTC").dt.tz_localize(None))
    return trained_minutes(moments)


def trained_minutes(moments: pd.Series) -> pd.Series:
    """Minutes since the first moment; longer pauses, when the run stood still, do not count."""
    ordered = moments.sort_values(kind="stable")
    seconds = ordered.diff().dt.total_seconds().fillna(0.0)
    passed = seconds.where(seconds <= PAUSE_SECONDS, 0.0).cumsum() / 60
    return pd.Series(passed.reindex(moments.index))


def downsample(
    steps: np.ndarray, values: np.ndarray, limit: int = DISPLAY_POINTS
) -> tuple[np.ndarray, np.ndarray]:
    """At most about `limit` points of a curve; minimum, maximum, first and last always survive."""
    index = thinned_places(np.asarray(values, dtype=np.float64), limit)
    return np.asarray(steps)[index], np.asarray(values)[index]


def thinned_places(values: Floats, limit: int = DISPLAY_POINTS) -> npt.NDArray[np.int64]:
    """Places of the known values that a thinned curve keeps, in order."""
    known = np.flatnonzero(np.isfinite(values))
    if len(known) <= limit:
        return known
    y = np.ascontiguousarray(values[known])
    downsampler = MinMaxLTTBDownsampler()  # type: ignore[no-untyped-call]
    kept = downsampler.downsample(np.arange(len(y), dtype=np.float64), y, n_out=limit)
    ends = [0, len(y) - 1, int(y.argmin()), int(y.argmax())]
    places: npt.NDArray[np.int64] = np.unique(np.concatenate([kept.astype(np.int64), ends]))
    return known[places]
