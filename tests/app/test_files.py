"""The workspace: named by content, written whole or not at all, checked when read."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from app.storage.files import Files, StorageError, written_aside
from kronos_core.data.bars import bars_hash
from kronos_core.forecast.forecast import Forecast

MakeBars = Callable[..., pd.DataFrame]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "workspace")


@pytest.fixture
def forecast() -> Forecast:
    origin = pd.Timestamp("2024-01-05", tz="UTC")
    return Forecast(
        paths=np.random.default_rng(0).uniform(1, 2, (3, 4, 6)),
        timestamps=pd.date_range("2024-01-08", periods=4, tz="UTC"),
        origin=origin,
        last_close=1.5,
        context=32,
        settings={"seed": 7},
        provenance={"model": "tiny"},
    )


def everything(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_bars_round_trip(files: Files, make_bars: MakeBars) -> None:
    bars = make_bars(50)
    data_hash = files.write_bars(bars)
    assert data_hash == bars_hash(bars)
    assert everything(files.root) == [f"{data_hash}.parquet"]
    stored = files.read_bars(data_hash)
    pd.testing.assert_frame_equal(stored, bars, check_dtype=False)
    assert bars_hash(stored) == data_hash
    assert files.read_closes(data_hash) == bars["close"].tolist()
    assert files.write_bars(bars) == data_hash


def test_bars_that_are_gone_or_changed(files: Files, make_bars: MakeBars) -> None:
    first, second = files.write_bars(make_bars(20)), files.write_bars(make_bars(20, seed=1))
    files.bars_path(first).write_bytes(files.bars_path(second).read_bytes())
    with pytest.raises(StorageError, match="does not match its name"):
        files.read_bars(first)
    files.bars_path(first).write_bytes(b"no table")
    for read in (files.read_bars, files.read_closes):
        with pytest.raises(StorageError, match="is damaged"):
            read(first)
    files.delete_bars(first)
    for read in (files.read_bars, files.read_closes):
        with pytest.raises(StorageError, match="Import the data again"):
            read(first)
    files.delete_bars(first)


def test_forecast_round_trip(files: Files, forecast: Forecast) -> None:
    content_hash = files.write_forecast(forecast)
    assert everything(files.root) == [f"{content_hash}.parquet"]
    stored = files.read_forecast(content_hash)
    np.testing.assert_array_equal(stored.paths, forecast.paths)
    assert stored.settings == forecast.settings
    assert stored.origin == forecast.origin


def test_forecast_that_is_gone_or_changed(files: Files, forecast: Forecast) -> None:
    content_hash = files.write_forecast(forecast)
    path = files.forecast_path(content_hash)
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(StorageError, match="is damaged"):
        files.read_forecast(content_hash)
    files.delete_forecast(content_hash)
    with pytest.raises(StorageError, match="Make the forecast again"):
        files.read_forecast(content_hash)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "value.txt"
    path.write_text("old")

    def fail_halfway() -> None:
        with written_aside(path) as aside:
            aside.write_text("ne")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail_halfway()
    assert path.read_text() == "old"
    assert everything(tmp_path) == ["value.txt"]


def test_it_is_flushed_before_it_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (order.append("flush"), fsync(handle)))
    monkeypatch.setattr(os, "replace", lambda *paths: (order.append("rename"), replace(*paths)))
    with written_aside(tmp_path / "value.txt") as aside:
        aside.write_text("new")
    assert order[:2] == ["flush", "rename"]
    assert (tmp_path / "value.txt").read_text() == "new"


@pytest.mark.parametrize("name", ["../x", "a/b", "", "A b", ".hidden", "x" * 65, "ü"])
def test_no_path_comes_from_a_users_string(files: Files, name: str) -> None:
    for place in (files.run_folder, files.log_path, files.model_folder, files.bars_path):
        with pytest.raises(ValueError, match="does not name anything"):
            place(name)


def test_runs_and_models(files: Files) -> None:
    log = files.log_path("0123456789ab")
    assert log.parent == files.run_folder("0123456789ab")
    log.write_text("line")
    files.delete_run("0123456789ab")
    assert not log.parent.exists()
    model = files.model_folder("kronos-small")
    model.mkdir()
    files.delete_model("kronos-small")
    files.delete_model("kronos-small")
    assert everything(files.root) == []
