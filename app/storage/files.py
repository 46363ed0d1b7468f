"""The workspace folder: bars and forecasts as Parquet named by content, models, runs and logs.

Nothing is ever named by a user's string. Files are written aside, flushed and renamed, so a reader
sees a whole file or none.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

from app.storage.models import new_id
from kronos_core.data.bars import DataError, as_bars, bars_hash
from kronos_core.forecast.forecast import Forecast

_HASH = re.compile(r"[0-9a-f]{64}")
_IDENTIFIER = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")


class StorageError(RuntimeError):
    """Something in the workspace or the database is missing or damaged; the message says what."""


class Files:
    """Paths and atomic reads and writes below one workspace folder."""

    def __init__(self, workspace: Path) -> None:
        self.root = workspace
        for name in ("bars", "forecasts", "models", "runs"):
            (workspace / name).mkdir(parents=True, exist_ok=True)

    def bars_path(self, data_hash: str) -> Path:
        """Where bars with this hash lie."""
        return self.root / "bars" / f"{_checked(data_hash, _HASH)}.parquet"

    def write_bars(self, frame: pd.DataFrame) -> str:
        """Stores bars (`timestamps` and the six channels); returns their hash, which names them."""
        bars = as_bars(frame)
        data_hash = bars_hash(bars)
        with written_aside(self.bars_path(data_hash)) as aside:
            bars.to_parquet(aside, index=False, compression="zstd")
        return data_hash

    def read_bars(self, data_hash: str) -> pd.DataFrame:
        """The stored bars; StorageError when the file is missing or its content has changed."""
        path = self.bars_path(data_hash)
        try:
            bars = as_bars(pd.read_parquet(path))
        except FileNotFoundError:
            raise StorageError(_missing("bars", path, "Import the data again.")) from None
        except (DataError, OSError, ValueError) as error:
            raise StorageError(_damaged("bars", path, str(error))) from error
        if bars_hash(bars) != data_hash:
            raise StorageError(_damaged("bars", path, "the content does not match its name"))
        return bars

    def read_closes(self, data_hash: str) -> list[float]:
        """The closes alone, unchecked, for small pictures; StorageError when there is no file."""
        path = self.bars_path(data_hash)
        try:
            closes = pd.read_parquet(path, columns=["close"])["close"]
        except FileNotFoundError:
            raise StorageError(_missing("bars", path, "Import the data again.")) from None
        except (OSError, ValueError) as error:
            raise StorageError(_damaged("bars", path, str(error))) from error
        return [float(close) for close in closes]

    def delete_bars(self, data_hash: str) -> None:
        """Removes stored bars, if they are there."""
        self.bars_path(data_hash).unlink(missing_ok=True)

    @property
    def fetched(self) -> Path:
        """The folder for answers of sources, which may be deleted at any time."""
        return self.root / "fetched"

    def forecast_path(self, content_hash: str) -> Path:
        """Where the forecast with this hash lies."""
        return self.root / "forecasts" / f"{_checked(content_hash, _HASH)}.parquet"

    def write_forecast(self, forecast: Forecast) -> str:
        """Stores a forecast; returns the SHA-256 of its file, which names it."""
        aside = self.root / "forecasts" / f".{new_id()}.parquet"
        try:
            forecast.save(aside)
            _flush(aside)
            content_hash = _file_hash(aside)
            publish(aside, self.forecast_path(content_hash))
        finally:
            aside.unlink(missing_ok=True)
        return content_hash

    def read_forecast(self, content_hash: str) -> Forecast:
        """The stored forecast; StorageError when it is missing or its content has changed."""
        path = self.forecast_path(content_hash)
        try:
            found = _file_hash(path)
        except FileNotFoundError:
            raise StorageError(_missing("forecast", path, "Make the forecast again.")) from None
        if found != content_hash:
            raise StorageError(_damaged("forecast", path, "the content does not match its name"))
        return Forecast.load(path)

    def delete_forecast(self, content_hash: str) -> None:
        """Removes a stored forecast, if it is there."""
        self.forecast_path(content_hash).unlink(missing_ok=True)

    def run_folder(self, run_id: str) -> Path:
        """The folder of a run (checkpoints, bundles, log); made when it is not there."""
        folder = self.root / "runs" / _checked(run_id, _IDENTIFIER)
        folder.mkdir(exist_ok=True)
        return folder

    def log_path(self, run_id: str) -> Path:
        """The log file of a run."""
        return self.run_folder(run_id) / "worker.log"

    def delete_run(self, run_id: str) -> None:
        """Removes the folder of a run."""
        _remove_folder(self.root / "runs" / _checked(run_id, _IDENTIFIER))

    def model_folder(self, model_id: str) -> Path:
        """Where a model's bundle lies; not made here."""
        return self.root / "models" / _checked(model_id, _IDENTIFIER)

    def delete_model(self, model_id: str) -> None:
        """Removes a model's bundle."""
        _remove_folder(self.model_folder(model_id))


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """Gives a temporary name in the same folder; what was written there becomes `path` at the end.

    On an error nothing is left behind and an older `path` stays as it was.
    """
    aside = path.with_name(f".{new_id()}{path.suffix}")
    try:
        yield aside
        _flush(aside)
        publish(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def publish(aside: Path, path: Path) -> None:
    """Renames a finished file into place and makes the new name durable."""
    os.replace(aside, path)
    _flush(path.parent)


def _flush(path: Path) -> None:
    # POSIX opens folders only for reading; Windows flushes only what is open for writing.
    if path.is_dir() and os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checked(name: str, pattern: re.Pattern[str]) -> str:
    if not pattern.fullmatch(name):
        raise ValueError(f"{name!r} does not name anything in the workspace")
    return name


def _remove_folder(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _missing(kind: str, path: Path, remedy: str) -> str:
    return f"The {kind} file {path.name} is missing from the workspace. {remedy}"


def _damaged(kind: str, path: Path, why: str) -> str:
    return (
        f"The {kind} file {path.name} in the workspace is damaged ({why}). "
        "Restore it from a copy, or delete the entry and make it again."
    )
