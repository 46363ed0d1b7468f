"""Datasets: calendar, how they were read, their quality, and repairs that can be undone."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

DATASETS = sa.table(
    "datasets",
    sa.column("data_hash", sa.String()),
    sa.column("original_hash", sa.String()),
    sa.column("repairs", sa.JSON()),
    sa.column("reading", sa.JSON()),
)


def upgrade() -> None:
    for name in ("calendar", "repairs", "reading", "quality"):
        op.add_column("datasets", sa.Column(name, sa.JSON(), nullable=True))
    op.add_column("datasets", sa.Column("original_hash", sa.String(), nullable=True))
    # Bars that are there were never repaired, and nothing is known of how they were read.
    original = DATASETS.c.data_hash
    op.execute(DATASETS.update().values(original_hash=original, repairs=[], reading={}))
    with op.batch_alter_table("datasets") as table:
        for name in ("repairs", "reading"):
            table.alter_column(name, existing_type=sa.JSON(), nullable=False)
        table.alter_column("original_hash", existing_type=sa.String(), nullable=False)


def downgrade() -> None:
    with op.batch_alter_table("datasets") as table:
        for name in ("calendar", "repairs", "reading", "quality", "original_hash"):
            table.drop_column(name)
