"""Fixtures that several test files share."""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import psycopg
import pytest

from app.settings import Settings
from app.storage import Store


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long ones first: at the end there is work for every process, and short work."""
    items.sort(key=lambda item: item.get_closest_marker("browser") is None)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings on an empty temporary workspace with SQLite."""
    return Settings(workspace=tmp_path / "workspace", database_url="")


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty workspace whose SQLite database has all tables: copied faster than migrated."""
    workspace = tmp_path_factory.mktemp("migrated") / "workspace"
    store = Store(Settings(workspace=workspace, database_url=""))
    store.migrate()
    store.close()
    return workspace


@pytest.fixture
def store(settings: Settings, migrated: Path) -> Iterator[Store]:
    """A migrated store on a temporary SQLite workspace."""
    shutil.copytree(migrated, settings.workspace)
    store = Store(settings)
    yield store
    store.close()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.database)])
def any_settings(request: pytest.FixtureRequest, settings: Settings) -> Settings:
    """Settings with an empty database, once for each backend."""
    if request.param == "sqlite":
        return settings
    url: str = request.getfixturevalue("postgres_url")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return settings.model_copy(update={"database_url": url})


@pytest.fixture
def any_store(any_settings: Settings) -> Iterator[Store]:
    """A migrated store, once for each backend."""
    store = Store(any_settings)
    store.migrate()
    yield store
    store.close()


@pytest.fixture
def make_bars() -> Callable[..., pd.DataFrame]:
    """Makes a frame of plausible bars: `make_bars(rows, start=…, step=…, seed=…)`."""
    return random_bars


def random_bars(
    rows: int = 60, start: str = "2024-01-01", step: str = "D", seed: int = 0
) -> pd.DataFrame:
    """A geometric random walk with valid candles, stamped in UTC."""
    rng = np.random.default_rng(seed)
    close = 100.0 * np.exp(np.cumsum(rng.normal(0.0, 0.01, rows)))
    opened = np.concatenate([[100.0], close[:-1]])
    spread = np.abs(rng.normal(0.0, 0.3, (2, rows)))
    volume = rng.uniform(1e3, 1e4, rows).round()
    return pd.DataFrame(
        {
            "timestamps": pd.date_range(start, periods=rows, freq=step, tz="UTC"),
            "open": opened,
            "high": np.maximum(opened, close) + spread[0],
            "low": np.minimum(opened, close) - spread[1],
            "close": close,
            "volume": volume,
            "amount": volume * close,
        }
    )


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """URL of a throw-away PostgreSQL server that lives as long as the tests."""
    binaries = _postgres_binaries()
    if binaries is None:
        reason = "no PostgreSQL server found: initdb and pg_ctl are not installed"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="kronos-postgres-"))
    # The server refuses to run as root.
    as_user = ["runuser", "-u", "postgres", "--"] if os.name == "posix" and _is_root() else []
    if as_user:
        shutil.chown(folder, "postgres")
    data, port = folder / "data", _free_port()

    def call(program: str, *arguments: str) -> None:
        subprocess.run(
            [*as_user, str(binaries / program), "-D", str(data), *arguments],
            check=True,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )

    try:
        call("initdb", "-U", "kronos", "-A", "trust", "-E", "UTF8", "--no-sync")
        options = f"-p {port} -h 127.0.0.1 -k {folder} -F"
        call("pg_ctl", "-w", "-l", str(folder / "log"), "-o", options, "start")
        yield f"postgresql://kronos@127.0.0.1:{port}/postgres"
        call("pg_ctl", "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _postgres_binaries() -> Path | None:
    found = shutil.which("initdb")
    if found and shutil.which("pg_ctl"):
        return Path(found).parent
    installed = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3])
    )
    return installed[-1].parent if installed else None


def _is_root() -> bool:
    return os.geteuid() == 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
