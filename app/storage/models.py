"""Tables. Identifiers are 12 hexadecimal characters; times are time-zone-aware UTC.

`Model.parent_id`, `Model.run_id`, `Model.dataset_id` and `Run.model_id` say where something came
from. They carry no foreign key, since runs and models point at each other; the repository clears
them when what they name is deleted.
"""

import secrets
from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    DateTime,
    Dialect,
    ForeignKey,
    Index,
    MetaData,
    Text,
    UniqueConstraint,
)
from sqlalchemy.engine.default import DefaultExecutionContext
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

RUN_STATES = (
    "queued",
    "starting",
    "running",
    "finished",
    "stopping",
    "stopped",
    "failed",
    "orphaned",
)
ACTIVE_STATES = ("starting", "running", "stopping")
RESUMABLE_STATES = ("stopped", "failed", "orphaned")
FORECAST_STATES = ("queued", "running", "finished", "failed", "cancelled")
PENDING_FORECAST_STATES = ("queued", "running")


def new_id() -> str:
    """A fresh identifier."""
    return secrets.token_hex(6)


def utc_now() -> datetime:
    """The current time, aware, in UTC."""
    return datetime.now(UTC)


class UtcDateTime(TypeDecorator[datetime]):
    """Stores aware times as UTC and returns them aware, also from SQLite, which has no zones."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"times are stored with a zone, got {value!r}; use utc_now()")
        moment = value.astimezone(UTC)
        return moment.replace(tzinfo=None) if dialect.name == "sqlite" else moment

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    """Base of all tables."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        datetime: UtcDateTime,
        dict[str, Any]: JSON(none_as_null=True),
        list[str]: JSON(none_as_null=True),
        list[dict[str, Any]]: JSON(none_as_null=True),
    }


def _same_hash(context: DefaultExecutionContext) -> str:
    """Bars that were never repaired are their own original."""
    data_hash: str = context.get_current_parameters()["data_hash"]  # type: ignore[no-untyped-call]
    return data_hash


class Dataset(Base):
    """A stored series; its bars are the Parquet file named by `data_hash`.

    `original_hash` names the bars without repairs, `repairs` the steps that lead from them to
    `data_hash`. `reading` is how a file was read (dialect and choices), `quality` the grade and
    the counts of the last report, `calendar` a trading calendar that was chosen (None: inferred).
    """

    __tablename__ = "datasets"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(unique=True)
    symbol: Mapped[str | None]
    interval_seconds: Mapped[float]
    timezone: Mapped[str] = mapped_column(default="UTC")
    bars: Mapped[int]
    first: Mapped[datetime]
    last: Mapped[datetime]
    source: Mapped[str]
    provenance: Mapped[dict[str, Any]] = mapped_column(default=dict)
    findings: Mapped[list[str]] = mapped_column(default=list)
    data_hash: Mapped[str] = mapped_column(index=True)
    original_hash: Mapped[str] = mapped_column(default=_same_hash)
    repairs: Mapped[list[dict[str, Any]]] = mapped_column(default=list)
    reading: Mapped[dict[str, Any]] = mapped_column(default=dict)
    quality: Mapped[dict[str, Any] | None]
    calendar: Mapped[dict[str, Any] | None]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    updated_at: Mapped[datetime] = mapped_column(default=utc_now, onupdate=utc_now)


class Model(Base):
    """A bundle of tokenizer and predictor; `folder` is relative to the workspace."""

    __tablename__ = "models"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(unique=True)
    kind: Mapped[str]
    folder: Mapped[str] = mapped_column(default="")
    parent_id: Mapped[str | None]
    run_id: Mapped[str | None]
    dataset_id: Mapped[str | None]
    parameters: Mapped[int]
    max_context: Mapped[int]
    s2_rotary: Mapped[str]
    model_hash: Mapped[str]
    best_s1: Mapped[float | None]
    best_s2: Mapped[float | None]
    best_total: Mapped[float | None]
    provenance: Mapped[dict[str, Any]] = mapped_column(default=dict)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


def _only_dataset(context: DefaultExecutionContext) -> list[str]:
    """The datasets of a run that names one."""
    return [_given(context, "dataset_id")]


def _only_data_hash(context: DefaultExecutionContext) -> list[str]:
    return [_given(context, "data_hash")]


def _given(context: DefaultExecutionContext, name: str) -> str:
    value: str = context.get_current_parameters()[name]  # type: ignore[no-untyped-call]
    return value


class Run(Base):
    """One fine-tuning job: its wish (`stop_requested`), its state and how far it came.

    `dataset_ids` and `data_hashes` stand in the order of the datasets in `config`; `dataset_id`
    and `data_hash` are the first of each. `step` counts over all stages, `stage` is the present
    one. Of queued runs the one with the lowest `queue_position` comes first.
    """

    __tablename__ = "runs"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    name: Mapped[str]
    state: Mapped[str] = mapped_column(default="queued", index=True)
    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"), index=True)
    base_model_id: Mapped[str] = mapped_column(ForeignKey("models.id"), index=True)
    config: Mapped[dict[str, Any]] = mapped_column(default=dict)
    device: Mapped[str] = mapped_column(default="auto")
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    queued_at: Mapped[datetime] = mapped_column(default=utc_now)
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    step: Mapped[int] = mapped_column(default=0)
    total_steps: Mapped[int] = mapped_column(default=0)
    epoch: Mapped[float] = mapped_column(default=0.0)
    best_step: Mapped[int | None]
    best_total: Mapped[float | None]
    best_s1: Mapped[float | None]
    best_s2: Mapped[float | None]
    stop_requested: Mapped[bool] = mapped_column(default=False)
    host: Mapped[str | None]
    pid: Mapped[int | None]
    pid_started: Mapped[float | None]
    heartbeat_at: Mapped[datetime | None]
    reason: Mapped[str | None] = mapped_column(Text)
    model_id: Mapped[str | None]
    data_hash: Mapped[str] = mapped_column(default="")
    model_hash: Mapped[str] = mapped_column(default="")
    code_version: Mapped[str] = mapped_column(default="")
    resumes: Mapped[int] = mapped_column(default=0)
    notes: Mapped[str] = mapped_column(Text, default="")
    tags: Mapped[list[str]] = mapped_column(default=list)
    queue_position: Mapped[int] = mapped_column(default=0)
    dataset_ids: Mapped[list[str]] = mapped_column(default=_only_dataset)
    data_hashes: Mapped[list[str]] = mapped_column(default=_only_data_hash)
    stage: Mapped[str | None]


class RunMetric(Base):
    """What one training step or one evaluation measured; the losses of the stage alone are set."""

    __tablename__ = "run_metrics"
    __table_args__ = (
        UniqueConstraint("run_id", "stage", "split", "step"),
        # For "what is new": the rows of one run in the order in which they came.
        Index(None, "run_id", "id"),
    )

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    stage: Mapped[str]
    split: Mapped[str]
    step: Mapped[int]
    epoch: Mapped[float]
    s1: Mapped[float | None]
    s2: Mapped[float | None]
    total: Mapped[float]
    epsilon: Mapped[float | None]
    epsilon_history: Mapped[float | None]
    learning_rate: Mapped[float | None]
    grad_norm: Mapped[float | None]
    tokens_per_second: Mapped[float | None]
    memory_mb: Mapped[float | None]
    s1_own: Mapped[float | None]
    s2_own: Mapped[float | None]
    exposure_gap: Mapped[float | None]
    horizon_loss: Mapped[float | None]
    coarse: Mapped[float | None]
    fine: Mapped[float | None]
    commitment: Mapped[float | None]
    entropy_sample: Mapped[float | None]
    entropy_code: Mapped[float | None]
    codebook_use: Mapped[float | None]
    recorded_at: Mapped[datetime] = mapped_column(default=utc_now)


class RunEvent(Base):
    """Something that happened to a run, in words."""

    __tablename__ = "run_events"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    kind: Mapped[str]
    message: Mapped[str] = mapped_column(Text)
    recorded_at: Mapped[datetime] = mapped_column(default=utc_now)


class Forecast(Base):
    """A forecast that was asked for; its paths are the Parquet file named by `content_hash`."""

    __tablename__ = "forecasts"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    name: Mapped[str]
    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"), index=True)
    model_id: Mapped[str] = mapped_column(ForeignKey("models.id"), index=True)
    state: Mapped[str] = mapped_column(default="queued", index=True)
    settings: Mapped[dict[str, Any]] = mapped_column(default=dict)
    step: Mapped[int] = mapped_column(default=0)
    total_steps: Mapped[int] = mapped_column(default=0)
    cancel_requested: Mapped[bool] = mapped_column(default=False)
    reason: Mapped[str | None] = mapped_column(Text)
    content_hash: Mapped[str | None]
    summary: Mapped[dict[str, Any] | None]
    data_hash: Mapped[str] = mapped_column(default="")
    model_hash: Mapped[str] = mapped_column(default="")
    code_version: Mapped[str] = mapped_column(default="")
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    finished_at: Mapped[datetime | None]
