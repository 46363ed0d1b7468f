"""Queries. Each function works inside the caller's transaction and commits nothing."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import (
    CursorResult,
    Row,
    Select,
    String,
    Update,
    cast,
    delete,
    func,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.storage.models import (
    ACTIVE_STATES,
    FORECAST_STATES,
    RUN_STATES,
    Base,
    Dataset,
    Forecast,
    Model,
    Run,
    RunEvent,
    RunMetric,
    utc_now,
)

QUEUE_LOCK = 0x6B726F6F  # key of the PostgreSQL advisory lock
METRIC_KEY = ("run_id", "stage", "split", "step")
_NOT_MEASURED = {"id", "recorded_at", *METRIC_KEY}
METRIC_VALUES = tuple(
    column.name for column in RunMetric.__table__.columns if column.name not in _NOT_MEASURED
)
_IDS_AT_ONCE = 5_000
_REQUIRED_METRICS = ("epoch", "total")
_STAGE_METRICS = ("s1", "s2")

AnyRow = TypeVar("AnyRow", bound=Base)
TopRow = TypeVar("TopRow", Dataset, Model, Run, Forecast)
NamedRow = TypeVar("NamedRow", Dataset, Model)


# ---------------------------------------------------------------- any table


def add(session: Session, row: AnyRow) -> AnyRow:
    """Inserts a row at once, so that its id and defaults are filled in."""
    session.add(row)
    session.flush()
    return row


def add_unless_taken(session: Session, row: AnyRow) -> AnyRow | None:
    """Inserts a row at once; None, and nothing inserted, where its id or unique name is taken."""
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError:
        return None
    return row


def get(session: Session, kind: type[TopRow], row_id: str) -> TopRow | None:
    """The row with this id, or None."""
    return session.get(kind, row_id)


def find(session: Session, kind: type[NamedRow], id_or_name: str) -> NamedRow | None:
    """A dataset or model by id, else by name, or None."""
    return session.get(kind, id_or_name) or find_by_name(session, kind, id_or_name)


def find_by_name(session: Session, kind: type[NamedRow], name: str) -> NamedRow | None:
    """The dataset or model with exactly this name, or None."""
    return session.scalar(select(kind).where(kind.name == name))


def newest(session: Session, kind: type[TopRow], limit: int | None = None) -> list[TopRow]:
    """All rows, newest first, at most `limit`."""
    query = select(kind).order_by(kind.created_at.desc(), kind.id).limit(limit)
    return list(session.scalars(query))


def names(session: Session, kind: type[NamedRow]) -> list[str]:
    """All names in alphabetical order."""
    return list(session.scalars(select(kind.name).order_by(kind.name)))


def update_row(session: Session, kind: type[TopRow], row_id: str, **fields: Any) -> bool:
    """Sets columns of one row without touching its state; False if it does not exist."""
    if "state" in fields:
        raise ValueError("a state is changed with set_state, which checks the old one")
    return _changed(session, update(kind).where(kind.id == row_id).values(**fields))


# ---------------------------------------------------------------- runs


def runs_in(session: Session, states: Collection[str]) -> list[Run]:
    """Runs in any of these states, in the order of the queue."""
    query = select(Run).where(Run.state.in_(states))
    query = query.order_by(Run.queue_position, Run.queued_at, Run.id)
    return list(session.scalars(query))


def count_runs(session: Session, states: Collection[str]) -> int:
    """How many runs are in any of these states."""
    query = select(func.count()).select_from(Run).where(Run.state.in_(states))
    return session.scalar(query) or 0


def set_state(
    session: Session, run_id: str, new: str, *, allowed_from: Collection[str], **fields: Any
) -> bool:
    """Moves a run to `new` and sets `fields`, only if its state is one of `allowed_from`.

    Returns whether it did: False means that somebody else moved it first, or that it is gone.
    """
    _check_states(RUN_STATES, new, *allowed_from)
    query = update(Run).where(Run.id == run_id, Run.state.in_(allowed_from))
    return _changed(session, query.values(state=new, **fields))


def claim_next_run(session: Session, *, resolve_device: Callable[[str], str]) -> Run | None:
    """Moves the first queued run whose device is free to "starting" and returns it.

    `resolve_device` turns a run's wish ("auto") into a device name and raises ValueError when
    there is none: that run fails with the message as reason. Needs a writing session.
    """
    lock_queue(session)
    busy = {run.device for run in runs_in(session, ACTIVE_STATES)}
    for run in runs_in(session, ("queued",)):
        try:
            device = resolve_device(run.device)
        except ValueError as error:
            _fail_queued(session, run.id, str(error))
            continue
        now = utc_now()
        if device not in busy and set_state(
            session, run.id, "starting", allowed_from=("queued",), device=device, heartbeat_at=now
        ):
            session.refresh(run)
            return run
    return None


def lock_queue(session: Session) -> None:
    """Keeps others from claiming or reordering queued runs until this transaction ends."""
    # A writing SQLite session already holds the only write lock.
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": QUEUE_LOCK})


def last_queue_position(session: Session) -> int:
    """The position of the last queued run; 0 when none is queued."""
    query = select(func.max(Run.queue_position)).where(Run.state == "queued")
    return session.scalar(query) or 0


def heartbeat(session: Session, run_id: str, **fields: Any) -> bool:
    """Notes that a run is alive now, with whatever else changed; False if it is gone."""
    return update_row(session, Run, run_id, heartbeat_at=utc_now(), **fields)


def request_stop(session: Session, run_id: str) -> bool:
    """Writes the wish that an active run stops; False if it is not active."""
    query = update(Run).where(Run.id == run_id, Run.state.in_(ACTIVE_STATES))
    return _changed(session, query.values(stop_requested=True))


def stop_requested(session: Session, run_id: str) -> bool:
    """Whether somebody wishes that this run stops; a deleted run should stop too."""
    wish = session.scalar(select(Run.stop_requested).where(Run.id == run_id))
    return True if wish is None else wish


def append_event(session: Session, run_id: str, kind: str, message: str) -> RunEvent:
    """Adds a line to a run's history."""
    return add(session, RunEvent(run_id=run_id, kind=kind, message=message))


def events_after(session: Session, run_id: str, after_id: int = 0) -> list[RunEvent]:
    """A run's events with an id above `after_id`, in order."""
    query = select(RunEvent).where(RunEvent.run_id == run_id, RunEvent.id > after_id)
    return list(session.scalars(query.order_by(RunEvent.id)))


def insert_metrics(session: Session, run_id: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Inserts rows with the columns of `RunMetric`; one that exists already is overwritten.

    `stage`, `split`, `step`, `epoch` and `total` are needed, the rest may be missing or None.
    ValueError for other keys, missing ones, or a total that is not finite.
    """
    values = [_metric_values(run_id, row) for row in rows]
    if not values:
        return
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    query = insert(RunMetric)
    changed = {name: query.excluded[name] for name in (*METRIC_VALUES, "recorded_at")}
    upsert = query.on_conflict_do_update(index_elements=METRIC_KEY, set_=changed)
    session.connection().execute(upsert, values)


def metrics_after(
    session: Session,
    run_id: str,
    after_id: int = 0,
    limit: int | None = None,
    split: str | None = None,
) -> list[RunMetric]:
    """A run's metrics with an id above `after_id`, in the order in which they were recorded."""
    query = select(RunMetric).where(RunMetric.run_id == run_id, RunMetric.id > after_id)
    if split is not None:
        query = query.where(RunMetric.split == split)
    return list(session.scalars(query.order_by(RunMetric.id).limit(limit)))


def plain_metrics(session: Session, run_id: str, after_id: int, limit: int) -> list[Row[Any]]:
    """As `metrics_after`, but rows with the same names that are no objects of the session."""
    table = RunMetric.__table__.c
    query = select(*table).where(table.run_id == run_id, table.id > after_id)
    return list(session.execute(query.order_by(table.id).limit(limit)))


def latest_metrics(session: Session, run_id: str, limit: int) -> list[RunMetric]:
    """A run's last `limit` metrics, in the order in which they were recorded."""
    query = select(RunMetric).where(RunMetric.run_id == run_id)
    return list(session.scalars(query.order_by(RunMetric.id.desc()).limit(limit)))[::-1]


def validation_totals(session: Session, run_ids: Collection[str]) -> list[tuple[str, float]]:
    """(run id, total) of each evaluation of these runs' predictors, by run and step."""
    query = select(RunMetric.run_id, RunMetric.total).where(
        RunMetric.run_id.in_(run_ids),
        RunMetric.stage == "predictor",
        RunMetric.split == "validation",
    )
    query = query.order_by(RunMetric.run_id, RunMetric.step)
    return [(run_id, total) for run_id, total in session.execute(query)]


def metrics_with(session: Session, run_id: str, ids: Collection[int]) -> list[RunMetric]:
    """The run's metric rows with these ids, in the order in which they were recorded."""
    found: list[RunMetric] = []
    wanted = sorted(ids)
    # Databases limit how many values one statement may carry.
    for start in range(0, len(wanted), _IDS_AT_ONCE):
        few = wanted[start : start + _IDS_AT_ONCE]
        query = select(RunMetric).where(RunMetric.run_id == run_id, RunMetric.id.in_(few))
        found.extend(session.scalars(query.order_by(RunMetric.id)))
    return found


def metric_columns(
    session: Session, run_id: str, split: str, columns: Sequence[str], after_id: int = 0
) -> list[tuple[float | None, ...]]:
    """The id and some numeric columns of a split's rows above `after_id`, in order of the id.

    Straight from the driver: a long run has hundreds of thousands of rows.
    """
    table = RunMetric.__table__.c
    query = select(table.id, *(table[name] for name in columns)).where(
        table.run_id == run_id, table.split == split, table.id > after_id
    )
    result = session.connection().execute(query.order_by(table.id))
    assert isinstance(result, CursorResult)
    assert result.cursor is not None
    return list(result.cursor.fetchall())


def delete_run(session: Session, run_id: str) -> None:
    """Deletes a run with its metrics and events; the model that came of it stays."""
    session.execute(update(Model).where(Model.run_id == run_id).values(run_id=None))
    session.execute(delete(Run).where(Run.id == run_id))


# ---------------------------------------------------------------- forecasts


def set_forecast_state(
    session: Session, forecast_id: str, new: str, *, allowed_from: Collection[str], **fields: Any
) -> bool:
    """As `set_state`, for a forecast."""
    _check_states(FORECAST_STATES, new, *allowed_from)
    query = update(Forecast).where(Forecast.id == forecast_id, Forecast.state.in_(allowed_from))
    return _changed(session, query.values(state=new, **fields))


def forecasts_in(session: Session, states: Collection[str]) -> list[Forecast]:
    """Forecasts in any of these states, oldest first."""
    query = select(Forecast).where(Forecast.state.in_(states))
    return list(session.scalars(query.order_by(Forecast.created_at, Forecast.id)))


def forecasts_with_content(session: Session, content_hash: str) -> int:
    """How many forecasts share this stored file."""
    query = select(func.count()).select_from(Forecast)
    return session.scalar(query.where(Forecast.content_hash == content_hash)) or 0


def delete_forecast(session: Session, forecast_id: str) -> None:
    """Deletes a forecast's row; its file is the caller's to remove."""
    session.execute(delete(Forecast).where(Forecast.id == forecast_id))


# ---------------------------------------------------------------- datasets and models


def datasets_with(session: Session, **columns: Any) -> list[Dataset]:
    """The datasets with these values, oldest first."""
    query = select(Dataset).filter_by(**columns).order_by(Dataset.created_at, Dataset.id)
    return list(session.scalars(query))


def bars_in_use(session: Session, data_hash: str) -> bool:
    """Whether a dataset, a run or a forecast refers to these bars."""
    queries = (
        select(Dataset.id).where(
            (Dataset.data_hash == data_hash) | (Dataset.original_hash == data_hash)
        ),
        # A run on several datasets lists their hashes as JSON, which both backends cast to text.
        select(Run.id).where(
            (Run.data_hash == data_hash) | cast(Run.data_hashes, String).contains(data_hash)
        ),
        select(Forecast.id).where(Forecast.data_hash == data_hash),
    )
    return any(session.scalar(query.limit(1)) is not None for query in queries)


def replace_bars(
    session: Session, dataset_id: str, *, known: tuple[str, str], **fields: Any
) -> bool:
    """Sets columns of a dataset only if its original and data hash are still the `known` ones.

    Returns whether it did: False means that somebody else changed it first, or that it is gone.
    """
    original_hash, data_hash = known
    unchanged = (Dataset.original_hash == original_hash, Dataset.data_hash == data_hash)
    query = update(Dataset).where(Dataset.id == dataset_id, *unchanged)
    return _changed(session, query.values(**fields))


def dependents_of_dataset(session: Session, dataset_id: str) -> tuple[list[Run], list[Forecast]]:
    """The runs and forecasts that use a dataset, alone or among others."""
    listed = cast(Run.dataset_ids, String).contains(f'"{dataset_id}"', autoescape=True)
    return (
        _all(session, select(Run).where((Run.dataset_id == dataset_id) | listed)),
        _all(session, select(Forecast).where(Forecast.dataset_id == dataset_id)),
    )


def dependents_of_model(session: Session, model_id: str) -> tuple[list[Run], list[Forecast]]:
    """The runs that start from a model, and the forecasts made with it."""
    return (
        _all(session, select(Run).where(Run.base_model_id == model_id)),
        _all(session, select(Forecast).where(Forecast.model_id == model_id)),
    )


def delete_dataset(session: Session, dataset_id: str) -> None:
    """Deletes a dataset that no run or forecast uses (a foreign key refuses otherwise)."""
    session.execute(update(Model).where(Model.dataset_id == dataset_id).values(dataset_id=None))
    session.execute(delete(Dataset).where(Dataset.id == dataset_id))


def delete_model(session: Session, model_id: str) -> None:
    """Deletes a model that no run or forecast uses (a foreign key refuses otherwise)."""
    session.execute(update(Model).where(Model.parent_id == model_id).values(parent_id=None))
    session.execute(update(Run).where(Run.model_id == model_id).values(model_id=None))
    session.execute(delete(Model).where(Model.id == model_id))


def delete_dependents(session: Session, runs: Iterable[Run], forecasts: Iterable[Forecast]) -> None:
    """Deletes these runs and forecasts; their files are the caller's to remove."""
    for run in runs:
        delete_run(session, run.id)
    for forecast in forecasts:
        delete_forecast(session, forecast.id)


# ---------------------------------------------------------------- helpers


def _all(session: Session, query: Select[AnyRow]) -> list[AnyRow]:
    return list(session.scalars(query))


def _changed(session: Session, query: Update) -> bool:
    result = session.execute(query)
    assert isinstance(result, CursorResult)
    return result.rowcount == 1


def _check_states(known: Collection[str], *states: str) -> None:
    for state in states:
        if state not in known:
            raise ValueError(f"unknown state {state!r}; known are {', '.join(known)}")


def _fail_queued(session: Session, run_id: str, reason: str) -> None:
    now = utc_now()
    if set_state(
        session, run_id, "failed", allowed_from=("queued",), reason=reason, finished_at=now
    ):
        append_event(session, run_id, "failed", reason)


def _metric_values(run_id: str, row: Mapping[str, Any]) -> dict[str, Any]:
    unknown = set(row) - {*METRIC_KEY, *METRIC_VALUES}
    if unknown:
        raise ValueError(f"unknown metric columns: {', '.join(sorted(unknown))}")
    values: dict[str, Any] = {name: _finite(row.get(name)) for name in METRIC_VALUES}
    for name in (*_REQUIRED_METRICS, *_STAGE_METRICS):
        # A loss that another stage has is missing; one that is not a number is a mistake.
        if values[name] is None and (name in _REQUIRED_METRICS or row.get(name) is not None):
            raise ValueError(f"metric row of step {row.get('step')}: {name} is {row.get(name)}")
    recorded: datetime = utc_now()
    key = {name: row[name] for name in ("stage", "split", "step")}
    return {"run_id": run_id, **key, **values, "recorded_at": recorded}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
