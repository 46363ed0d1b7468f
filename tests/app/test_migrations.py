"""The migrations lead to exactly the tables that the models describe."""

import os
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Connection, MetaData, inspect, text
from sqlalchemy.exc import IntegrityError

from app.settings import ROOT, Settings
from app.storage import StorageError, Store, repository
from app.storage.models import Base, Dataset
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
        assert session.scalar(text("SELECT version_num FROM alembic_version")) == "0003"


def config_on(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    return config


def insert_at_0001(connection: Connection) -> None:
    """A dataset with a model, a run with a metric and a forecast, as revision 0001 stores them."""
    tables = MetaData()
    tables.reflect(connection)
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    if connection.dialect.name == "sqlite":
        moment = moment.replace(tzinfo=None)
    now = {"created_at": moment}
    dataset = {"id": "d1", "name": "Bars", "interval_seconds": 86400.0, "timezone": "UTC"}
    dataset |= {"bars": 10, "first": moment, "last": moment, "source": "yahoo"}
    dataset |= {"provenance": {"ticker": "ABC"}, "findings": ["One."], "data_hash": "a" * 64}
    model = {"id": "m1", "name": "Nano", "kind": "builtin", "folder": "", "parameters": 1}
    model |= {"max_context": 8, "s2_rotary": "origin", "model_hash": "", "provenance": {}}
    facts = {"dataset_id": "d1", "state": "finished", "step": 1, "total_steps": 1}
    facts |= {"data_hash": "a" * 64, "model_hash": "", "code_version": ""}
    run = {"id": "r1", "name": "Run", "base_model_id": "m1", "config": {}, "device": "cpu"}
    run |= {"queued_at": moment, "epoch": 1.0, "stop_requested": False, "resumes": 0}
    metric = {"run_id": "r1", "stage": "predictor", "split": "train", "step": 1, "epoch": 1.0}
    metric |= {"s1": 1.0, "s2": 2.0, "total": 1.5, "recorded_at": moment}
    forecast = {"id": "f1", "name": "Forecast", "model_id": "m1", "settings": {}}
    forecast |= {"cancel_requested": False}
    for name, row in {
        "datasets": dataset | now | {"updated_at": moment},
        "models": model | now,
        "runs": run | facts | now,
        "run_metrics": metric,
        "forecasts": forecast | facts | now,
    }.items():
        connection.execute(tables.tables[name].insert().values(row))


def test_rows_of_0001_are_kept(any_settings: Settings) -> None:
    store = Store(any_settings)
    engine = open_engine(any_settings.resolved_database_url)
    with engine.begin() as connection:
        command.upgrade(config_on(connection), "0001")
        insert_at_0001(connection)
    store.migrate()
    with engine.connect() as connection:
        assert differences(connection) == []
    engine.dispose()
    with store.session() as session:
        dataset = repository.get(session, Dataset, "d1")
        assert dataset is not None
        assert (dataset.name, dataset.findings) == ("Bars", ["One."])
        assert dataset.provenance == {"ticker": "ABC"}
        assert dataset.original_hash == dataset.data_hash == "a" * 64
        assert (dataset.repairs, dataset.reading) == ([], {})
        assert (dataset.quality, dataset.calendar) == (None, None)
        runs, forecasts = repository.dependents_of_dataset(session, "d1")
        assert [row.id for row in (*runs, *forecasts)] == ["r1", "f1"]
        assert [row.total for row in repository.metrics_after(session, "r1")] == [1.5]
        with pytest.raises(IntegrityError), session.begin_nested():
            repository.delete_dataset(session, "d1")
    store.close()


def test_down_and_up_again(any_store: Store) -> None:
    engine = open_engine(any_store.settings.resolved_database_url)
    with engine.begin() as connection:
        command.downgrade(config_on(connection), "base")
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
