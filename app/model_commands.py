"""The commands about models: what there is, released weights, folders."""

from pathlib import Path
from typing import Annotated

import typer

from app.services import models
from app.storage.models import Model
from app.terminal import table, workspace

cli = typer.Typer()


@cli.command("models")
def list_models() -> None:
    """List the models."""
    with workspace() as store:
        typer.echo(
            table(
                ("ID", "NAME", "KIND", "PARAMETERS", "CONTEXT", "S1", "S2"),
                [_cells(row) for row in models.list_models(store)],
            )
        )


def _cells(row: Model) -> tuple[object, ...]:
    losses = (_number(row.best_s1), _number(row.best_s2))
    return (row.id, row.name, row.kind, row.parameters, row.max_context, *losses)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


@cli.command()
def download(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(models.RELEASED)}.")],
) -> None:
    """Fetch released weights from Hugging Face; Ctrl+C leaves nothing behind."""
    with workspace() as store, typer.progressbar(length=1, label=name) as bar:

        def progress(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        row = models.download(store, name, progress)
    typer.echo(f"{row.name}: {row.parameters:,} parameters, context up to {row.max_context} bars")


@cli.command("import-model")
def import_model(
    folder: Annotated[Path, typer.Argument(help="Folder that holds tokenizer/ and predictor/.")],
    name: Annotated[str, typer.Option(help="Its name; else what the folder calls itself.")] = "",
) -> None:
    """Copy a bundle folder into the workspace."""
    with workspace() as store:
        row = models.import_folder(store, folder, name)
        typer.echo(f"{row.name}: {row.parameters:,} parameters, id {row.id}")
