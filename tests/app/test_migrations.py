"""The migrations lead to exactly the tables that the models describe."""

import os
import subprocess
import sys

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Connection, inspect, text

from app.settings import ROOT, Settings
from app.storage import StorageError, Store
from app.storage.models import Base
from app.storage.session import MIGRATIONS, open_engine


def differences(connection: Connection) -> list[object]:
    options = {"compare_type": True, "compare_server_default": True}
    return list(
        compare_metadata(MigrationContext.configure(connection, opts=options), Base.metadata)
    )


def test_migrated_tables_equal_the_models(any_store: Store) -> None:
    engine = open_engine(any_store.settings.resolved_database_url)
    with engine.connect() as connection:
        assert differences(connection) == []
        assert set(inspect(connection).get_table_names()) == {
            *Base.metadata.tables,
            "alembic_version",
        }
    engine.dispose()


def test_migrating_twice_changes_nothing(any_store: Store) -> None:
    any_store.migrate()
    with any_store.session(write=False) as session:
        assert session.scalar(text("SELECT version_num FROM alembic_version")) == "0001"


def test_down_and_up_again(any_store: Store) -> None:
    engine = open_engine(any_store.settings.resolved_database_url)
    with engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
        assert inspect(connection).get_table_names() == ["alembic_version"]
    any_store.migrate()
    with engine.connect() as connection:
        assert differences(connection) == []
    engine.dispose()


MIGRATE = """
from app.settings import Settings
from app.storage import Store
Store(Settings()).migrate()
"""


def test_processes_that_start_at_once(any_settings: Settings) -> None:
    environment = {
        **os.environ,
        "KRONOS_WORKSPACE": str(any_settings.workspace),
        "KRONOS_DATABASE_URL": any_settings.database_url,
    }
    command_line = [sys.executable, "-c", MIGRATE]
    started = [subprocess.Popen(command_line, cwd=ROOT, env=environment) for _ in range(2)]
    assert [process.wait(timeout=120) for process in started] == [0, 0]
    engine = open_engine(any_settings.resolved_database_url)
    with engine.connect() as connection:
        assert differences(connection) == []
    engine.dispose()


def test_a_newer_database_is_explained(any_store: Store) -> None:
    with any_store.session() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StorageError, match="update the program"):
        any_store.migrate()


def test_a_server_that_is_not_there_is_explained(settings: Settings) -> None:
    url = "postgresql://someone:secret@127.0.0.1:1/nothing"
    store = Store(settings.model_copy(update={"database_url": url}))
    with pytest.raises(StorageError, match="KRONOS_DATABASE_URL") as caught:
        store.migrate()
    assert "secret" not in str(caught.value)
