"""What a forecast says, as numbers, tables and files. Pure functions over its paths."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import pandas as pd
from streamlit import column_config

from app.ui import format as fmt
from kronos_core.data.bars import CHANNELS, PRICES
from kronos_core.forecast.forecast import Forecast

LEVELS = (0.025, 0.1, 0.25, 0.5, 0.75, 0.9, 0.975)


@dataclass(frozen=True, slots=True)
class Outlook:
    """One bar of a fan: moves are relative to the last known close."""

    median_move: float
    chance_up: float
    low: float
    high: float


def outlook(forecast: Forecast, step: int = -1) -> Outlook:
    """Median move, chance of a close above the last known one, 80 % range at bar `step`."""
    low, median, high = (float(row[step]) for row in forecast.quantiles([0.1, 0.5, 0.9], "close"))
    above = float(forecast.probability_above(forecast.last_close, "close")[step])
    return Outlook(median / forecast.last_close - 1, above, low, high)


def table(forecast: Forecast, channel: str, seconds: float) -> pd.DataFrame:
    """One row a bar: its time, the median, the edges of the 50, 80 and 95 % bands."""
    rows = forecast.quantiles(list(LEVELS), channel)
    names = ["95 % low", "80 % low", "50 % low", "median", "50 % high", "80 % high", "95 % high"]
    frame = pd.DataFrame(dict(zip(names, rows, strict=True)))
    frame.insert(0, "time", [fmt.bar_time(stamp, seconds) for stamp in forecast.timestamps])
    frame.insert(0, "bar", range(1, len(frame) + 1))
    return frame


def band_columns(decimals: int | None, names: list[str]) -> dict[str, Any]:
    """Column settings of `table`; without decimals the values are volumes or amounts."""
    shape = "compact" if decimals is None else f"%.{decimals}f"
    columns: dict[str, Any] = {"bar": column_config.NumberColumn(width=60)}
    return columns | {name: column_config.NumberColumn(format=shape) for name in names}


def channel_columns(decimals: int) -> dict[str, Any]:
    """Column settings of a table of bars."""
    prices: dict[str, Any] = band_columns(decimals, list(PRICES))
    return prices | {
        name: column_config.NumberColumn(format="compact")
        for name in CHANNELS
        if name not in PRICES
    }


def csv_bytes(frame: pd.DataFrame) -> bytes:
    """A frame as CSV without its index."""
    return frame.to_csv(index=False).encode()


def parquet_bytes(frame: pd.DataFrame) -> bytes:
    """A frame as Parquet."""
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    return buffer.getvalue()
