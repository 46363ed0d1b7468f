"""Runs and metrics from before the training studio are kept by its migration, and back."""

from datetime import UTC, datetime

from alembic import command
from sqlalchemy import Connection, MetaData, text

from app.services import runs
from app.settings import Settings
from app.storage import Store, repository
from app.storage.session import open_engine
from tests.app.test_migrations import config_on, differences


def insert_before_0003(connection: Connection) -> None:
    """A run with a dataset, a model, a metric and an event, as revision 0001 stores them."""
    tables = MetaData()
    tables.reflect(connection)
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    if connection.dialect.name == "sqlite":
        moment = moment.replace(tzinfo=None)
    dataset = {"id": "d1", "name": "Bars", "interval_seconds": 60.0, "timezone": "UTC"}
    dataset |= {"bars": 10, "first": moment, "last": moment, "source": "upload"}
    dataset |= {"provenance": {}, "findings": [], "data_hash": "a" * 64}
    model = {"id": "m1", "name": "Nano", "kind": "builtin", "folder": "", "parameters": 1}
    model |= {"max_context": 8, "s2_rotary": "origin", "model_hash": "", "provenance": {}}
    run = {"id": "r1", "name": "Old", "state": "stopped", "dataset_id": "d1"}
    run |= {"base_model_id": "m1", "config": {"epochs": 2}, "device": "cpu", "step": 5}
    run |= {"queued_at": moment, "total_steps": 9, "epoch": 1.0, "stop_requested": False}
    run |= {"data_hash": "a" * 64, "model_hash": "", "code_version": "", "resumes": 0}
    metric = {"run_id": "r1", "stage": "predictor", "split": "train", "step": 1, "epoch": 1.0}
    metric |= {"s1": 1.0, "s2": 2.0, "total": 1.5, "recorded_at": moment}
    created = {"created_at": moment}
    for name, row in {
        "datasets": dataset | created | {"updated_at": moment},
        "models": model | created,
        "runs": run | created,
        "run_metrics": metric,
        "run_events": {
            "run_id": "r1",
            "kind": "queued",
            "message": "Queued.",
            "recorded_at": moment,
        },
    }.items():
        connection.execute(tables.tables[name].insert().values(row))


def test_runs_from_before_the_studio_are_kept(any_settings: Settings) -> None:
    store = Store(any_settings)
    engine = open_engine(any_settings.resolved_database_url)
    with engine.begin() as connection:
        command.upgrade(config_on(connection), "0001")
        insert_before_0003(connection)
    store.migrate()
    with engine.connect() as connection:
        assert differences(connection) == []
    engine.dispose()
    run, (metric,) = runs.get(store, "r1"), runs.metrics(store, "r1")
    assert (run.dataset_ids, run.data_hashes) == (["d1"], ["a" * 64])
    assert (run.notes, run.tags, run.queue_position, run.stage) == ("", [], 0, None)
    assert (metric.s1, metric.total, metric.coarse) == (1.0, 1.5, None)
    assert [event.message for event in runs.events(store, "r1")] == ["Queued."]
    assert runs.resume(store, "r1").queue_position == 1
    with store.session() as session:
        row = {"stage": "tokenizer", "split": "train", "step": 1, "epoch": 0.1, "total": 1.0}
        repository.insert_metrics(session, "r1", [row])
        repository.delete_run(session, "r1")
    assert runs.metrics(store, "r1") == []
    store.close()


def test_a_downgrade_keeps_what_has_a_place(any_store: Store) -> None:
    engine = open_engine(any_store.settings.resolved_database_url, foreign_keys=False)
    with engine.begin() as connection:
        command.downgrade(config_on(connection), "0001")
        insert_before_0003(connection)
    any_store.migrate()
    with any_store.session() as session:
        row = {"stage": "tokenizer", "split": "train", "step": 1, "epoch": 0.1, "total": 1.0}
        repository.insert_metrics(session, "r1", [row])
    with engine.begin() as connection:
        command.downgrade(config_on(connection), "0001")
        kept = connection.execute(text("SELECT stage, s1 FROM run_metrics")).all()
        assert [tuple(row) for row in kept] == [("predictor", 1.0)]
    engine.dispose()
