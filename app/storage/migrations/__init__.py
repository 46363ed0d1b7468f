"""Alembic migrations; `Store.migrate` runs them."""
