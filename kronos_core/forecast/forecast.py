"""The result of sampling: a set of futures of one series, in price units.

Shape letters: S paths, H horizon, C=6 channels.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from kronos_core.data.bars import CHANNELS, PRICES
from kronos_core.evaluation.metrics import Scores, score
from kronos_core.forecast import figures

_META = b"kronos_forecast"
_OPEN, _HIGH, _LOW, _CLOSE = range(4)


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Sample paths of one series.

    paths: float64 [S,H,6] in price units, as the model drew them. timestamps: of the H bars.
    origin: time of the last context bar. last_close: its close. context: bars given to the model.
    settings: how it was sampled. provenance: model, data hash, versions.
    """

    paths: npt.NDArray[np.float64]
    timestamps: pd.DatetimeIndex
    origin: pd.Timestamp
    last_close: float
    context: int
    settings: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        expected = (len(self.timestamps), len(CHANNELS))
        if self.paths.ndim != 3 or self.paths.shape[1:] != expected:
            raise ValueError(
                f"paths must have shape [S, {expected[0]}, {expected[1]}], got {self.paths.shape}"
            )

    @property
    def candles(self) -> npt.NDArray[np.float64]:
        """Paths [S,H,6] made into valid candles: high and low enclose, volumes are not negative."""
        candles = self.paths.copy()
        prices = self.paths[..., :4]
        candles[..., _HIGH] = prices.max(-1)
        candles[..., _LOW] = prices.min(-1)
        candles[..., 4:] = np.maximum(self.paths[..., 4:], 0.0)
        return candles

    @property
    def violation_rate(self) -> float:
        """Share of drawn bars that were no valid candle before `candles` repaired them."""
        return float((self.candles != self.paths).any(-1).mean())

    @property
    def gap(self) -> float:
        """Median first open over the last known close, minus 1."""
        return float(np.median(self.paths[:, 0, _OPEN]) / self.last_close - 1)

    def channel(self, name: str) -> npt.NDArray[np.float64]:
        """One channel of the candles, [S,H]. Raises ValueError for an unknown name."""
        if name not in CHANNELS:
            raise ValueError(f'unknown channel "{name}": choose one of {", ".join(CHANNELS)}')
        return self.candles[..., CHANNELS.index(name)]

    def quantiles(self, levels: Sequence[float], channel: str = "close") -> npt.NDArray[np.float64]:
        """Quantiles over the paths, [len(levels), H]; levels in [0, 1]."""
        if any(not 0 <= level <= 1 for level in levels):
            raise ValueError(f"quantile levels must lie in [0, 1], got {list(levels)}")
        return np.asarray(np.quantile(self.channel(channel), levels, axis=0))

    def probability_above(self, value: float, channel: str = "close") -> npt.NDArray[np.float64]:
        """Share of paths above `value` at each bar, [H]."""
        return np.asarray((self.channel(channel) > value).mean(axis=0))

    def probability_touch(self, value: float, channel: str = "close") -> npt.NDArray[np.float64]:
        """Share of paths that reach `value` by each bar, [H]; the last is within the horizon.

        A price is reached within a bar's low and high, or by jumping over it, from the last known
        close on. Volume and amount are reached at the bars' own values. Raises ValueError for an
        unknown channel or a value that is no number.
        """
        if not np.isfinite(value):
            raise ValueError(f"the value to touch must be a number, got {value}")
        own = self.channel(channel)
        low, high = (self.channel("low"), self.channel("high")) if channel in PRICES else (own, own)
        if channel in PRICES:
            low, high = np.minimum(low, self.last_close), np.maximum(high, self.last_close)
        return np.asarray(figures.touched(low, high, value).mean(axis=0))

    def expected_range(self) -> npt.NDArray[np.float64]:
        """Mean over the paths of highest high minus lowest low up to each bar, [H], in prices."""
        candles = self.candles
        return np.asarray(figures.ranges(candles[..., _LOW], candles[..., _HIGH]).mean(axis=0))

    def drawdowns(self) -> npt.NDArray[np.float64]:
        """Maximum drawdown of each path, [S]: largest fall from a close so far, a share of it."""
        return figures.drawdowns(self.paths[..., _CLOSE], self.last_close)

    def volatilities(self) -> npt.NDArray[np.float64]:
        """Realised volatility of each path over the horizon, [S]: root of summed squared log
        returns of the closes. Raises ValueError when a close is not above 0."""
        return figures.volatilities(self.paths[..., _CLOSE], self.last_close)

    def changes(self, step: int = -1) -> npt.NDArray[np.float64]:
        """Close of bar `step` (from 0, −1 is the last) over the last known close, minus 1; [S]."""
        return np.asarray(self.paths[:, step, _CLOSE] / self.last_close - 1)

    def shape(self, step: int = -1) -> figures.Shape:
        """Spread, skew and tail of the changes at bar `step` (from 0, −1 is the last)."""
        return figures.shape(self.changes(step))

    def medoid(self) -> int:
        """Index of the most typical path: its closes are nearest to all others'."""
        return figures.medoid(self.paths[..., _CLOSE] / self.last_close)

    def scores(self, actual: pd.DataFrame) -> Scores:
        """Score the closes against known bars (columns timestamps and close), in price units.

        Bars are matched by their timestamps, others are left out. Raises ValueError when none of
        the forecast's bars is known.
        """
        stamps = pd.DatetimeIndex(actual["timestamps"])
        if (stamps.tz is None) != (self.timestamps.tz is None):
            raise ValueError("the actual bars and the forecast must both have a time zone, or none")
        places = self.timestamps.get_indexer(stamps)
        known = places >= 0
        if not known.any():
            raise ValueError("none of the forecast's bars is known yet: score it when some are")
        close = actual["close"].to_numpy(np.float64)
        return score(self.paths[:, places[known], _CLOSE], close[known])

    def to_frame(self) -> pd.DataFrame:
        """Long form: path (from 0), step (from 1), timestamp, open … amount; S×H rows."""
        return self._long_frame(self.candles)

    def _long_frame(self, values: npt.NDArray[np.float64]) -> pd.DataFrame:
        paths, horizon, _ = values.shape
        flat = values.reshape(paths * horizon, len(CHANNELS))
        frame = pd.DataFrame(flat, columns=list(CHANNELS))
        step = np.tile(np.arange(1, horizon + 1), paths)
        frame.insert(0, "path", np.repeat(np.arange(paths), horizon))
        frame.insert(1, "step", step)
        frame.insert(2, "timestamp", self.timestamps[step - 1])
        return frame

    def save(self, path: Path) -> None:
        """Write a Parquet file of the raw paths; `load` gives an equal forecast."""
        table = pa.Table.from_pandas(self._long_frame(self.paths), preserve_index=False)
        meta = {
            "origin": self.origin.isoformat(),
            "zone": str(self.timestamps.tz) if self.timestamps.tz is not None else None,
            "last_close": self.last_close,
            "context": self.context,
            "settings": self.settings,
            "provenance": self.provenance,
        }
        extra = {_META: json.dumps(meta).encode()}
        pq.write_table(table.replace_schema_metadata((table.schema.metadata or {}) | extra), path)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote. Raises ValueError for any other file."""
        try:
            table = pq.read_table(path)
            meta = json.loads(table.schema.metadata[_META])
        except (pa.ArrowInvalid, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not a stored forecast: draw it again") from error
        frame = table.to_pandas()
        horizon = int(frame["step"].max())
        first = frame.iloc[:horizon]
        origin = pd.Timestamp(meta["origin"])
        return cls(
            paths=frame[list(CHANNELS)].to_numpy(np.float64).reshape(-1, horizon, len(CHANNELS)),
            timestamps=pd.DatetimeIndex(first["timestamp"], name="timestamp"),
            origin=origin if meta["zone"] is None else origin.tz_convert(meta["zone"]),
            last_close=meta["last_close"],
            context=meta["context"],
            settings=meta["settings"],
            provenance=meta["provenance"],
        )
