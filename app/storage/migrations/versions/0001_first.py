"""First tables: datasets, models, runs with their metrics and events, forecasts."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    _create_datasets()
    _create_models()
    _create_runs()
    _create_run_metrics()
    _create_run_events()
    _create_forecasts()


def downgrade() -> None:
    for name in ("forecasts", "run_events", "run_metrics", "runs", "models", "datasets"):
        op.drop_table(name)


def _create_datasets() -> None:
    op.create_table(
        "datasets",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("symbol", sa.String(), nullable=True),
        sa.Column("interval_seconds", sa.Double(), nullable=False),
        sa.Column("timezone", sa.String(), nullable=False),
        sa.Column("bars", sa.Integer(), nullable=False),
        sa.Column("first", MOMENT, nullable=False),
        sa.Column("last", MOMENT, nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("provenance", sa.JSON(), nullable=False),
        sa.Column("findings", sa.JSON(), nullable=False),
        sa.Column("data_hash", sa.String(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("updated_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_datasets"),
        sa.UniqueConstraint("name", name="uq_datasets_name"),
    )
    op.create_index("ix_datasets_data_hash", "datasets", ["data_hash"])


def _create_models() -> None:
    op.create_table(
        "models",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("folder", sa.String(), nullable=False),
        sa.Column("parent_id", sa.String(), nullable=True),
        sa.Column("run_id", sa.String(), nullable=True),
        sa.Column("dataset_id", sa.String(), nullable=True),
        sa.Column("parameters", sa.Integer(), nullable=False),
        sa.Column("max_context", sa.Integer(), nullable=False),
        sa.Column("s2_rotary", sa.String(), nullable=False),
        sa.Column("model_hash", sa.String(), nullable=False),
        sa.Column("best_s1", sa.Double(), nullable=True),
        sa.Column("best_s2", sa.Double(), nullable=True),
        sa.Column("best_total", sa.Double(), nullable=True),
        sa.Column("provenance", sa.JSON(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_models"),
        sa.UniqueConstraint("name", name="uq_models_name"),
    )


def _create_runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("dataset_id", sa.String(), nullable=False),
        sa.Column("base_model_id", sa.String(), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("device", sa.String(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("queued_at", MOMENT, nullable=False),
        sa.Column("started_at", MOMENT, nullable=True),
        sa.Column("finished_at", MOMENT, nullable=True),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("total_steps", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Double(), nullable=False),
        sa.Column("best_step", sa.Integer(), nullable=True),
        sa.Column("best_total", sa.Double(), nullable=True),
        sa.Column("best_s1", sa.Double(), nullable=True),
        sa.Column("best_s2", sa.Double(), nullable=True),
        sa.Column("stop_requested", sa.Boolean(), nullable=False),
        sa.Column("host", sa.String(), nullable=True),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("pid_started", sa.Double(), nullable=True),
        sa.Column("heartbeat_at", MOMENT, nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("model_id", sa.String(), nullable=True),
        sa.Column("data_hash", sa.String(), nullable=False),
        sa.Column("model_hash", sa.String(), nullable=False),
        sa.Column("code_version", sa.String(), nullable=False),
        sa.Column("resumes", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["base_model_id"], ["models.id"], name="fk_runs_base_model_id"),
        sa.ForeignKeyConstraint(["dataset_id"], ["datasets.id"], name="fk_runs_dataset_id"),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
    )
    op.create_index("ix_runs_base_model_id", "runs", ["base_model_id"])
    op.create_index("ix_runs_dataset_id", "runs", ["dataset_id"])
    op.create_index("ix_runs_state", "runs", ["state"])


def _create_run_metrics() -> None:
    op.create_table(
        "run_metrics",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("stage", sa.String(), nullable=False),
        sa.Column("split", sa.String(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Double(), nullable=False),
        sa.Column("s1", sa.Double(), nullable=False),
        sa.Column("s2", sa.Double(), nullable=False),
        sa.Column("total", sa.Double(), nullable=False),
        sa.Column("epsilon", sa.Double(), nullable=True),
        sa.Column("learning_rate", sa.Double(), nullable=True),
        sa.Column("grad_norm", sa.Double(), nullable=True),
        sa.Column("tokens_per_second", sa.Double(), nullable=True),
        sa.Column("s2_own", sa.Double(), nullable=True),
        sa.Column("exposure_gap", sa.Double(), nullable=True),
        sa.Column("horizon_loss", sa.Double(), nullable=True),
        sa.Column("recorded_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name="fk_run_metrics_run_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_run_metrics"),
        sa.UniqueConstraint(
            "run_id", "stage", "split", "step", name="uq_run_metrics_run_id_stage_split_step"
        ),
    )


def _create_run_events() -> None:
    op.create_table(
        "run_events",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("recorded_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name="fk_run_events_run_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_run_events"),
    )
    op.create_index("ix_run_events_run_id", "run_events", ["run_id"])


def _create_forecasts() -> None:
    op.create_table(
        "forecasts",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("dataset_id", sa.String(), nullable=False),
        sa.Column("model_id", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("total_steps", sa.Integer(), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("content_hash", sa.String(), nullable=True),
        sa.Column("summary", sa.JSON(), nullable=True),
        sa.Column("data_hash", sa.String(), nullable=False),
        sa.Column("model_hash", sa.String(), nullable=False),
        sa.Column("code_version", sa.String(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("finished_at", MOMENT, nullable=True),
        sa.ForeignKeyConstraint(["dataset_id"], ["datasets.id"], name="fk_forecasts_dataset_id"),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_forecasts_model_id"),
        sa.PrimaryKeyConstraint("id", name="pk_forecasts"),
    )
    op.create_index("ix_forecasts_dataset_id", "forecasts", ["dataset_id"])
    op.create_index("ix_forecasts_model_id", "forecasts", ["model_id"])
    op.create_index("ix_forecasts_state", "forecasts", ["state"])
