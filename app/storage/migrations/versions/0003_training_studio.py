"""The fine-tuning studio: stages, several datasets, a queue in an order, notes and tags."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

RUN_COLUMNS: dict[str, type[sa.Text | sa.JSON | sa.Integer]] = {
    "notes": sa.Text,
    "tags": sa.JSON,
    "queue_position": sa.Integer,
    "dataset_ids": sa.JSON,
    "data_hashes": sa.JSON,
}
METRIC_COLUMNS = (
    "epsilon_history",
    "memory_mb",
    "s1_own",
    "coarse",
    "fine",
    "commitment",
    "entropy_sample",
    "entropy_code",
    "codebook_use",
)
INDEX = "ix_run_metrics_run_id"


def upgrade() -> None:
    for name, kind in RUN_COLUMNS.items():
        op.add_column("runs", sa.Column(name, kind(), nullable=True))
    op.add_column("runs", sa.Column("stage", sa.String(), nullable=True))
    _fill_runs()
    with op.batch_alter_table("runs") as table:
        for name, kind in RUN_COLUMNS.items():
            table.alter_column(name, existing_type=kind(), nullable=False)
    with op.batch_alter_table("run_metrics") as table:
        for name in ("s1", "s2"):
            table.alter_column(name, existing_type=sa.Double(), nullable=True)
        for name in METRIC_COLUMNS:
            table.add_column(sa.Column(name, sa.Double(), nullable=True))
    op.create_index(INDEX, "run_metrics", ["run_id", "id"])


def _fill_runs() -> None:
    runs = sa.table(
        "runs",
        *(sa.column(name, sa.String()) for name in ("id", "dataset_id", "data_hash")),
        *(sa.column(name, kind()) for name, kind in RUN_COLUMNS.items()),
    )
    connection = op.get_bind()
    for run in connection.execute(sa.select(runs.c.id, runs.c.dataset_id, runs.c.data_hash)):
        values = {
            "notes": "",
            "tags": [],
            "queue_position": 0,
            "dataset_ids": [run.dataset_id],
            "data_hashes": [run.data_hash],
        }
        connection.execute(runs.update().where(runs.c.id == run.id).values(values))


def downgrade() -> None:
    op.drop_index(INDEX, "run_metrics")
    # The older tables have no place for the rows of a tokenizer stage.
    op.execute("DELETE FROM run_metrics WHERE s1 IS NULL OR s2 IS NULL")
    with op.batch_alter_table("run_metrics") as table:
        for name in METRIC_COLUMNS:
            table.drop_column(name)
        for name in ("s1", "s2"):
            table.alter_column(name, existing_type=sa.Double(), nullable=False)
    # Not in a batch: that would drop the table, and on SQLite the metrics with it.
    for name in (*RUN_COLUMNS, "stage"):
        op.drop_column("runs", name)
