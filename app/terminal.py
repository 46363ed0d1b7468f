"""What the commands of `python -m app` share: the workspace, errors in one line, tables."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from app.services import models
from app.settings import get_settings
from app.storage import StorageError, Store
from kronos_core import BundleError


class Commands(TyperGroup):
    """Turns what the user can correct into one line on standard error and exit code 1."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        # ServiceError, DataError and BundleError are ValueErrors.
        except (ValueError, StorageError, OSError) as error:
            typer.echo(f"Error: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(1) from error


@contextmanager
def workspace() -> Iterator[Store]:
    """The store of the configured workspace, its tables up to date."""
    store = Store(get_settings())
    try:
        store.migrate()
        _offer_builtin(store)
        yield store
    finally:
        store.close()


def _offer_builtin(store: Store) -> None:
    try:
        models.ensure_builtin(store)
    except BundleError as error:
        typer.echo(f"Warning: the built-in model cannot be used: {error}", err=True)


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Plain text with aligned columns."""
    cells = [[str(cell) for cell in row] for row in (headers, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)
    return "\n".join(lines)
