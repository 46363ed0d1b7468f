"""Runs migrations on the connection that `Store.migrate` (or a test) hands over."""

from alembic import context
from sqlalchemy import Connection

from app.storage.models import Base

connection: Connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    render_as_batch=connection.dialect.name == "sqlite",
    compare_server_default=True,
)
with context.begin_transaction():
    context.run_migrations()
