"""Write the bundled sample datasets from the daily index bars that the package `arch` ships.

Run `python -m scripts.build_samples`; the files land in kronos_core/data/assets.
`arch` is a development dependency, the dashboard itself only reads the Parquet files.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pandas as pd
from arch.data import nasdaq, sp500

from kronos_core.data.bars import CHANNELS, as_bars

ASSETS = Path(__file__).resolve().parent.parent / "kronos_core" / "data" / "assets"
SOURCES: dict[str, ModuleType] = {"sp500": sp500, "nasdaq": nasdaq}


def build(source: ModuleType) -> pd.DataFrame:
    """Daily bars stamped 00:00 UTC of the trading date, so that the shown date is that date."""
    raw = source.load().rename(columns=str.lower)[["open", "high", "low", "close", "volume"]]
    raw.index = pd.DatetimeIndex(raw.index).tz_localize("UTC").as_unit("ms")
    return as_bars(raw)


def main() -> None:
    ASSETS.mkdir(parents=True, exist_ok=True)
    for key, source in SOURCES.items():
        path = ASSETS / f"{key}.parquet"
        bars = build(source)
        bars[["timestamps", *CHANNELS]].to_parquet(path, compression="zstd", index=False)
        print(f"{path.name}: {len(bars)} bars, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
