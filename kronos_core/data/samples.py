"""Bundled datasets, so that everything can be tried without a file or a network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from kronos_core.data.bars import DataError, Series, as_bars, interval_of

ASSETS = Path(__file__).with_name("assets")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """A bundled dataset: what it is called, what it holds and where it comes from."""

    key: str
    title: str
    symbol: str
    description: str
    source: str


_SOURCE = "The index data of the Python package arch (arch.data), originally from Yahoo Finance"

SAMPLES: dict[str, Sample] = {
    sample.key: sample
    for sample in (
        Sample(
            key="sp500",
            title="S&P 500",
            symbol="^GSPC",
            description="Daily bars of the S&P 500 index, January 1999 to December 2018.",
            source=_SOURCE,
        ),
        Sample(
            key="nasdaq",
            title="Nasdaq Composite",
            symbol="^IXIC",
            description="Daily bars of the Nasdaq Composite index, January 1999 to December 2018.",
            source=_SOURCE,
        ),
    )
}


def load_sample(key: str) -> Series:
    """The bundled series called `key` (one of SAMPLES); DataError lists the keys otherwise."""
    if key not in SAMPLES:
        raise DataError(f"There is no sample {key!r}. Choose one of: {', '.join(SAMPLES)}.")
    bars = as_bars(pd.read_parquet(ASSETS / f"{key}.parquet"))
    bars["timestamps"] = bars["timestamps"].dt.as_unit("ns")
    return Series(
        frame=bars,
        symbol=SAMPLES[key].symbol,
        interval=interval_of(pd.DatetimeIndex(bars["timestamps"])),
    )
