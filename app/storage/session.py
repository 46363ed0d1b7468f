"""The store: one engine, one session context that commits or rolls back, and the migrations."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from filelock import FileLock
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError as DatabaseError
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import ConnectionPoolEntry

from app.settings import Settings
from app.storage.files import Files, StorageError

MIGRATIONS = Path(__file__).parent / "migrations"
BUSY_TIMEOUT_MS = 30_000
MIGRATION_LOCK = 0x6B726F6E  # key of the PostgreSQL advisory lock


__all__ = ["DatabaseError", "Store", "open_engine"]


class Store:
    """The database and the workspace folder that belong together."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.files = Files(settings.workspace)
        self._engine = open_engine(settings.resolved_database_url)
        reading = self._engine.execution_options(sqlite_begin="BEGIN")
        self._writers = sessionmaker(self._engine, expire_on_commit=False)
        self._readers = sessionmaker(reading, expire_on_commit=False)

    @contextmanager
    def session(self, *, write: bool = True) -> Iterator[Session]:
        """A transaction that is committed at the end and rolled back on any error.

        On SQLite its first statement takes the write lock, so that what it read stays true until
        it has written; `write=False` only reads and waits for nobody. Do not nest writing sessions.
        """
        with (self._writers if write else self._readers).begin() as session:
            yield session

    def migrate(self) -> None:
        """Brings the tables to the newest revision; safe when several processes start at once."""
        url = self.settings.resolved_database_url
        # Rebuilding a SQLite table with foreign keys on would delete the rows that point at it.
        engine = open_engine(url, foreign_keys=False)
        try:
            with FileLock(self.files.root / "migrate.lock"), engine.begin() as connection:
                _upgrade(connection)
        except OperationalError as error:
            shown = engine.url.render_as_string(hide_password=True)
            raise StorageError(
                f"cannot open the database {shown}: {error.orig}; "
                "check KRONOS_DATABASE_URL and that the server is running"
            ) from error
        except CommandError as error:
            raise StorageError(
                f"the database does not fit this version of the program ({error}); "
                "update the program, or point KRONOS_WORKSPACE at another folder"
            ) from error
        finally:
            engine.dispose()

    def close(self) -> None:
        """Closes all pooled connections."""
        self._engine.dispose()


def open_engine(url: str, *, foreign_keys: bool = True) -> Engine:
    """An engine with our connection settings for SQLite or PostgreSQL."""
    serializer = partial(json.dumps, allow_nan=False)  # PostgreSQL refuses NaN in JSON anyway
    if not url.startswith("sqlite"):
        return create_engine(url, pool_pre_ping=True, json_serializer=serializer)
    engine = create_engine(url, pool_size=20, max_overflow=20, json_serializer=serializer)

    @event.listens_for(engine, "connect")
    def prepare(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
        _prepare_sqlite(connection, foreign_keys=foreign_keys)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        options = connection.get_execution_options()
        connection.exec_driver_sql(options.get("sqlite_begin", "BEGIN IMMEDIATE"))

    return engine


def _prepare_sqlite(connection: DBAPIConnection, *, foreign_keys: bool) -> None:
    # The driver's own BEGIN comes too late and is always deferred; the engine emits ours.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute(f"PRAGMA foreign_keys={'ON' if foreign_keys else 'OFF'}")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _upgrade(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
