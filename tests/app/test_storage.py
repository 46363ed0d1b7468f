"""One test class over both databases, and what is special to one of them."""

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError, OperationalError, StatementError

from app.settings import Settings, get_settings
from app.storage import Store, repository
from app.storage.models import ACTIVE_STATES, Dataset, Forecast, Model, Run, utc_now


def dataset_row(name: str) -> Dataset:
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    return Dataset(
        name=name,
        interval_seconds=86400.0,
        bars=10,
        first=moment,
        last=moment + timedelta(days=9),
        source="sample",
        data_hash="a" * 64,
    )


def add_dataset(store: Store, name: str = "Bars") -> str:
    with store.session() as session:
        return repository.add(session, dataset_row(name)).id


def add_model(store: Store, name: str = "Nano") -> str:
    row = Model(
        name=name,
        kind="imported",
        parameters=1,
        max_context=512,
        s2_rotary="position",
        model_hash="b" * 64,
    )
    with store.session() as session:
        return repository.add(session, row).id


def add_run(store: Store, dataset: str, model: str, **fields: Any) -> str:
    row = Run(name="Run", dataset_id=dataset, base_model_id=model, **fields)
    with store.session() as session:
        return repository.add(session, row).id


def add_forecast(store: Store, dataset: str, model: str, **fields: Any) -> str:
    row = Forecast(name="Forecast", dataset_id=dataset, model_id=model, **fields)
    with store.session() as session:
        return repository.add(session, row).id


@pytest.fixture
def dataset(any_store: Store) -> str:
    return add_dataset(any_store)


@pytest.fixture
def model(any_store: Store) -> str:
    return add_model(any_store)


@pytest.fixture
def run(any_store: Store, dataset: str, model: str) -> str:
    return add_run(any_store, dataset, model)


def get_run(store: Store, run_id: str) -> Run:
    with store.session(write=False) as session:
        found = repository.get(session, Run, run_id)
    assert found is not None
    return found


def metric(step: int, **fields: Any) -> dict[str, Any]:
    row = {"stage": "predictor", "split": "train", "step": step, "epoch": step / 10}
    return {**row, "s1": 2.0, "s2": 3.0, "total": 2.5, **fields}


def same_device(_wish: str) -> str:
    return "cpu"


class TestStore:
    """What must hold on every database."""

    def test_ids_are_twelve_hex_characters(self, dataset: str) -> None:
        assert len(dataset) == 12
        int(dataset, 16)

    def test_times_come_back_aware_in_utc(self, any_store: Store, run: str) -> None:
        tokyo = datetime(2024, 3, 1, 9, tzinfo=timezone(timedelta(hours=9)))
        with any_store.session() as session:
            repository.update_row(session, Run, run, started_at=tokyo)
        started = get_run(any_store, run).started_at
        assert started == tokyo
        assert started is not None
        assert started.tzinfo is UTC

    def test_a_time_without_zone_is_refused(self, any_store: Store, run: str) -> None:
        with pytest.raises(StatementError, match="with a zone"), any_store.session() as session:
            repository.update_row(session, Run, run, started_at=datetime(2024, 3, 1))

    def test_an_error_rolls_back(self, any_store: Store, run: str) -> None:
        def write_two_events() -> None:
            with any_store.session() as session:
                repository.append_event(session, run, "note", "never seen")
                repository.append_event(session, "0" * 12, "note", "there is no such run")

        with pytest.raises(IntegrityError):
            write_two_events()
        with any_store.session(write=False) as session:
            assert repository.events_after(session, run) == []

    def test_json_round_trip_and_nan_refused(self, any_store: Store, run: str) -> None:
        config = {"context": 128, "betas": [0.9, 0.95], "text": "é中", "none": None}
        with any_store.session() as session:
            repository.update_row(session, Run, run, config=config)
        assert get_run(any_store, run).config == config
        refused = pytest.raises((StatementError, ValueError), match="not JSON compliant")
        with refused, any_store.session() as session:
            repository.update_row(session, Run, run, config={"loss": math.nan})

    def test_find_by_id_or_name(self, any_store: Store, dataset: str) -> None:
        with any_store.session(write=False) as session:
            by_id = repository.find(session, Dataset, dataset)
            assert by_id is not None
            assert by_id is repository.find(session, Dataset, "Bars")
            assert repository.find(session, Dataset, "bars?") is None
            assert repository.names(session, Dataset) == ["Bars"]

    def test_names_are_unique(self, any_store: Store, dataset: str) -> None:
        with pytest.raises(IntegrityError):
            add_dataset(any_store, "Bars")

    def test_taken_names_are_told(self, any_store: Store, dataset: str) -> None:
        with any_store.session() as session:
            assert repository.add_unless_taken(session, dataset_row("Bars")) is None
            assert repository.add_unless_taken(session, dataset_row("Other")) is not None
        with any_store.session(write=False) as session:
            assert repository.names(session, Dataset) == ["Bars", "Other"]

    def test_newest_first(self, any_store: Store, dataset: str, model: str) -> None:
        start = utc_now()
        ids = [
            add_run(any_store, dataset, model, created_at=start + timedelta(seconds=i))
            for i in range(3)
        ]
        with any_store.session(write=False) as session:
            assert [run.id for run in repository.newest(session, Run)] == ids[::-1]
            assert [run.id for run in repository.newest(session, Run, 1)] == ids[-1:]

    def test_foreign_keys_hold(self, any_store: Store, dataset: str, model: str) -> None:
        with pytest.raises(IntegrityError):
            add_run(any_store, "0" * 12, model)
        add_forecast(any_store, dataset, model)
        with pytest.raises(IntegrityError), any_store.session() as session:
            repository.delete_dataset(session, dataset)

    def test_set_state_compares_first(self, any_store: Store, run: str) -> None:
        with any_store.session() as session:
            assert repository.set_state(
                session, run, "starting", allowed_from=("queued",), host="here"
            )
            assert not repository.set_state(session, run, "starting", allowed_from=("queued",))
            assert not repository.set_state(session, "gone", "failed", allowed_from=("queued",))
        found = get_run(any_store, run)
        assert (found.state, found.host) == ("starting", "here")

    def test_unknown_states_are_refused(self, any_store: Store, run: str) -> None:
        with any_store.session() as session:
            with pytest.raises(ValueError, match="unknown state 'done'"):
                repository.set_state(session, run, "done", allowed_from=("queued",))
            with pytest.raises(ValueError, match="set_state"):
                repository.update_row(session, Run, run, state="finished")

    def test_heartbeat_and_stop(self, any_store: Store, run: str) -> None:
        before = utc_now()
        with any_store.session() as session:
            assert not repository.request_stop(session, run)
            repository.set_state(session, run, "running", allowed_from=("queued",))
            assert not repository.stop_requested(session, run)
            assert repository.request_stop(session, run)
            assert repository.heartbeat(session, run, step=7)
            assert repository.stop_requested(session, run)
            assert repository.stop_requested(session, "gone")
        found = get_run(any_store, run)
        assert found.step == 7
        assert found.heartbeat_at is not None
        assert found.heartbeat_at >= before

    def test_events_in_order(self, any_store: Store, run: str) -> None:
        with any_store.session() as session:
            first = repository.append_event(session, run, "start", "Started.")
            repository.append_event(session, run, "stop", "Stopped.")
            kinds = [event.kind for event in repository.events_after(session, run)]
            later = [event.kind for event in repository.events_after(session, run, first.id)]
        assert kinds == ["start", "stop"]
        assert later == ["stop"]


class TestMetrics:
    def test_same_step_is_overwritten(self, any_store: Store, run: str) -> None:
        with any_store.session() as session:
            repository.insert_metrics(session, run, [metric(1), metric(2), metric(2, s1=9.0)])
            repository.insert_metrics(session, run, [metric(2, s1=1.5), metric(3, split="other")])
            rows = repository.metrics_after(session, run)
        assert [(row.split, row.step, row.s1) for row in rows] == [
            ("train", 1, 2.0),
            ("train", 2, 1.5),
            ("other", 3, 2.0),
        ]

    def test_only_new_rows(self, any_store: Store, run: str) -> None:
        with any_store.session() as session:
            repository.insert_metrics(session, run, [metric(step) for step in range(1, 6)])
            rows = repository.metrics_after(session, run)
            later = repository.metrics_after(session, run, rows[2].id)
            two = repository.metrics_after(session, run, limit=2)
        assert [row.step for row in later] == [4, 5]
        assert [row.step for row in two] == [1, 2]

    def test_optional_values(self, any_store: Store, run: str) -> None:
        with any_store.session() as session:
            repository.insert_metrics(session, run, [])
            repository.insert_metrics(session, run, [metric(1, epsilon=0.5, grad_norm=math.inf)])
            (row,) = repository.metrics_after(session, run)
        assert (row.epsilon, row.grad_norm, row.s2_own) == (0.5, None, None)
        assert row.recorded_at.tzinfo is UTC

    @pytest.mark.parametrize(
        ("fields", "message"),
        [({"s1": math.nan}, "step 4: s1 is nan"), ({"loss": 1.0}, "unknown metric columns: loss")],
    )
    def test_bad_rows_are_refused(
        self, any_store: Store, run: str, fields: dict[str, float], message: str
    ) -> None:
        with any_store.session() as session, pytest.raises(ValueError, match=message):
            repository.insert_metrics(session, run, [metric(4, **fields)])

    def test_they_go_with_their_run(self, any_store: Store, run: str) -> None:
        with any_store.session() as session:
            repository.insert_metrics(session, run, [metric(1)])
            repository.append_event(session, run, "start", "Started.")
            repository.delete_run(session, run)
        with any_store.session(write=False) as session:
            assert repository.get(session, Run, run) is None
            assert repository.metrics_after(session, run) == []
            assert repository.events_after(session, run) == []


class TestClaim:
    def test_oldest_first_and_one_for_each_device(
        self, any_store: Store, dataset: str, model: str
    ) -> None:
        start = utc_now()
        wishes = ["cpu", "cpu", "cuda", "cuda"]
        ids = [
            add_run(
                any_store, dataset, model, device=wish, queued_at=start + timedelta(seconds=-number)
            )
            for number, wish in enumerate(wishes)
        ]
        claimed = []
        for _ in range(3):
            with any_store.session() as session:
                run = repository.claim_next_run(session, resolve_device=lambda wish: f"{wish}:0")
                claimed.append(run and (run.id, run.device, run.state))
        assert claimed == [(ids[3], "cuda:0", "starting"), (ids[1], "cpu:0", "starting"), None]

    def test_a_device_that_is_not_there_fails_the_run(
        self, any_store: Store, dataset: str, model: str
    ) -> None:
        bad = add_run(any_store, dataset, model, device="cuda")
        good = add_run(any_store, dataset, model, device="cpu")

        def resolve(wish: str) -> str:
            if wish == "cuda":
                raise ValueError("there is no CUDA device; choose cpu")
            return wish

        with any_store.session() as session:
            claimed = repository.claim_next_run(session, resolve_device=resolve)
        assert claimed is not None
        assert claimed.id == good
        failed = get_run(any_store, bad)
        assert (failed.state, failed.reason) == ("failed", "there is no CUDA device; choose cpu")
        assert failed.finished_at is not None

    def test_nothing_queued(self, any_store: Store, run: str) -> None:
        with any_store.session() as session:
            repository.set_state(session, run, "stopped", allowed_from=("queued",))
            assert repository.claim_next_run(session, resolve_device=same_device) is None

    @pytest.mark.parametrize("stores", [1, 2])
    def test_two_claimers_never_both_win(
        self, any_store: Store, dataset: str, model: str, stores: int
    ) -> None:
        for _ in range(4):
            add_run(any_store, dataset, model)
        claimers = [any_store] + [Store(any_store.settings) for _ in range(stores - 1)]
        together = threading.Barrier(8)

        def claim(number: int) -> str | None:
            together.wait()
            with claimers[number % stores].session() as session:
                run = repository.claim_next_run(session, resolve_device=same_device)
                return run.id if run else None

        with ThreadPoolExecutor(8) as pool:
            won = [run_id for run_id in pool.map(claim, range(8)) if run_id]
        for other in claimers[1:]:
            other.close()
        assert len(won) == 1
        with any_store.session(write=False) as session:
            assert repository.count_runs(session, ACTIVE_STATES) == 1
            assert repository.count_runs(session, ("queued",)) == 3

    def test_concurrent_writers_lose_nothing(self, any_store: Store, run: str) -> None:
        def write(first: int) -> None:
            for step in range(first, first + 10):
                with any_store.session() as session:
                    repository.insert_metrics(session, run, [metric(step)])

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(write, range(1, 41, 10)))
        with any_store.session(write=False) as session:
            steps = {row.step for row in repository.metrics_after(session, run)}
        assert steps == set(range(1, 41))


class TestDependents:
    def test_they_are_named(self, any_store: Store, dataset: str, model: str, run: str) -> None:
        forecast = add_forecast(any_store, dataset, model, content_hash="c" * 64)
        with any_store.session(write=False) as session:
            for runs, forecasts in (
                repository.dependents_of_dataset(session, dataset),
                repository.dependents_of_model(session, model),
            ):
                assert [row.id for row in runs] == [run]
                assert [row.id for row in forecasts] == [forecast]
            assert repository.forecasts_with_content(session, "c" * 64) == 1
            (found,) = repository.datasets_with(session, name="Bars", data_hash="a" * 64)
            assert found.id == dataset
            assert repository.datasets_with(session, name="Bars", data_hash="d" * 64) == []

    def test_origins_are_forgotten_with_what_they_name(
        self, any_store: Store, dataset: str, model: str, run: str
    ) -> None:
        child = add_model(any_store, "Child")
        with any_store.session() as session:
            repository.update_row(
                session, Model, child, parent_id=model, run_id=run, dataset_id=dataset
            )
            repository.update_row(session, Run, run, model_id=child)
        with any_store.session() as session:
            repository.delete_run(session, run)
            repository.delete_model(session, model)
            repository.delete_dataset(session, dataset)
            found = repository.get(session, Model, child)
        assert found is not None
        assert (found.parent_id, found.run_id, found.dataset_id) == (None, None, None)

    def test_forecast_states(self, any_store: Store, dataset: str, model: str) -> None:
        forecast = add_forecast(any_store, dataset, model)
        with any_store.session() as session:
            assert repository.set_forecast_state(
                session, forecast, "running", allowed_from=("queued",), step=1
            )
            assert [row.id for row in repository.forecasts_in(session, ("running",))] == [forecast]
            repository.delete_forecast(session, forecast)
            assert repository.forecasts_in(session, ("running",)) == []


class TestSqlite:
    def test_every_connection_is_prepared(self, store: Store) -> None:
        expected = {"busy_timeout": 30000, "journal_mode": "wal", "foreign_keys": 1}
        with store.session() as session:
            for name, value in {**expected, "synchronous": 1}.items():
                assert session.scalar(text(f"PRAGMA {name}")) == value

    def test_readers_do_not_wait_for_a_writer(self, store: Store) -> None:
        with store.session() as writer:
            repository.add(writer, dataset_row("Unseen"))
            with store.session(write=False) as reader:
                assert repository.names(reader, Dataset) == []

    def test_a_writing_session_locks_before_it_writes(self, store: Store) -> None:
        with store.session() as writer, store.session(write=False) as other:
            repository.names(writer, Dataset)
            other.execute(text("PRAGMA busy_timeout=0"))
            with pytest.raises(OperationalError, match="locked"):
                other.execute(text("DELETE FROM runs"))
            other.execute(text("PRAGMA busy_timeout=30000"))


class TestSettings:
    @pytest.fixture
    def fresh(self) -> Any:
        get_settings.cache_clear()
        yield
        get_settings.cache_clear()

    def test_environment(
        self, fresh: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("KRONOS_WORKSPACE", "elsewhere")
        monkeypatch.setenv("KRONOS_DEVICE", "cpu")
        monkeypatch.setenv("KRONOS_MAX_UPLOAD_MB", "5")
        monkeypatch.setenv("KRONOS_POLL_SECONDS", "0.25")
        settings = get_settings()
        assert settings.workspace == tmp_path / "elsewhere"
        assert (settings.device, settings.max_upload_mb) == ("cpu", 5)
        assert settings.poll_seconds == 0.25
        assert settings.resolved_database_url.endswith("/elsewhere/kronos.db")

    def test_bad_values_name_the_field(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KRONOS_MAX_PATHS", "0")
        with pytest.raises(ValueError, match="max_paths"):
            Settings()

    @pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
    def test_postgresql_uses_psycopg(self, settings: Settings, scheme: str) -> None:
        other = settings.model_copy(update={"database_url": f"{scheme}://u@h:1/d"})
        assert other.resolved_database_url == "postgresql+psycopg://u@h:1/d"

    def test_workspace_stands_in_the_repository_by_default(
        self, make_default: Callable[[], Settings]
    ) -> None:
        assert make_default().workspace == Path(__file__).parents[2] / "workspace"

    @pytest.fixture
    def make_default(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Settings]:
        monkeypatch.delenv("KRONOS_WORKSPACE", raising=False)
        return Settings
