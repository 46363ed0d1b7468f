"""Answers of a source kept for some minutes as Parquet files in a folder that is handed in."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from kronos_core.data.bars import Series, interval_of
from kronos_core.data.source_base import Listing, Source

FRESH_SECONDS = 300.0


class Cached:
    """A source whose answer to the same request within `seconds` comes from a file.

    folder: made when it is not there; holds nothing else. clock returns seconds since the epoch.
    Files that are no longer fresh are removed when a new one is written; a damaged one counts as
    absent.
    """

    def __init__(
        self,
        source: Source,
        folder: Path,
        *,
        seconds: float = FRESH_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = source.name
        self._source = source
        self._folder = folder
        self._seconds = seconds
        self._clock = clock

    def search(self, text: str) -> list[Listing]:
        """As the source; not kept."""
        return self._source.search(text)

    def intervals(self) -> dict[str, str | None]:
        """As the source."""
        return self._source.intervals()

    def fetch(
        self,
        symbol: str,
        interval: str,
        *,
        period: str | None = None,
        start: pd.Timestamp | None = None,
        end: pd.Timestamp | None = None,
        adjusted: bool = True,
    ) -> Series:
        """As the source; a SourceError is not kept."""
        request = {"period": period, "start": start, "end": end, "adjusted": adjusted}
        path = self._path(symbol.strip(), interval, request)
        known = self._read(path)
        if known is not None:
            return known
        series = self._source.fetch(
            symbol, interval, period=period, start=start, end=end, adjusted=adjusted
        )
        self._write(path, series)
        return series

    def _path(self, symbol: str, interval: str, request: dict[str, Any]) -> Path:
        key = json.dumps([self.name, symbol, interval, request], default=str)
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()}.parquet"

    def _read(self, path: Path) -> Series | None:
        try:
            if not self._fresh(path):
                return None
            frame = pd.read_parquet(path)
            facts = frame.attrs["series"]
        except (OSError, ValueError, KeyError):
            return None
        frame.attrs = {}
        stamps = pd.DatetimeIndex(frame["timestamps"])
        return Series(
            frame=frame,
            symbol=facts["symbol"],
            interval=interval_of(stamps),
            timezone=facts["timezone"],
            findings=tuple(facts["findings"]),
        )

    def _write(self, path: Path, series: Series) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._prune()
        frame = series.frame.copy(deep=False)
        facts = {"symbol": series.symbol, "timezone": series.timezone}
        frame.attrs = {"series": {**facts, "findings": list(series.findings)}}
        aside = path.with_name(f".{secrets.token_hex(6)}.parquet")
        try:
            frame.to_parquet(aside, index=False)
            moment = self._clock()
            os.utime(aside, (moment, moment))
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)

    def _prune(self) -> None:
        for path in self._folder.glob("*.parquet"):
            try:
                if not self._fresh(path):
                    path.unlink()
            except OSError:  # another process removed it, or still reads it
                continue

    def _fresh(self, path: Path) -> bool:
        return abs(self._clock() - path.stat().st_mtime) < self._seconds
