"""The command line, over the same services as the dashboard: `python -m app --help`."""

from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from app import data_commands, forecast_commands, run_commands
from app.services import datasets, forecasts, models
from app.services.errors import ServiceError
from app.storage import Store
from app.storage.models import Model
from app.terminal import Commands, table, workspace

SUFFIXES = (".csv", ".parquet")


cli = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Kronos Workbench without a browser.",
)


cli.add_typer(data_commands.cli)
cli.add_typer(run_commands.cli)


# ---------------------------------------------------------------- models


@cli.command("models")
def list_models() -> None:
    """List the models."""
    with workspace() as store:
        typer.echo(
            table(
                ("ID", "NAME", "KIND", "PARAMETERS", "CONTEXT", "S1", "S2"),
                [_model_cells(row) for row in models.list_models(store)],
            )
        )


def _model_cells(row: Model) -> tuple[object, ...]:
    losses = (_number(row.best_s1), _number(row.best_s2))
    return (row.id, row.name, row.kind, row.parameters, row.max_context, *losses)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


# ---------------------------------------------------------------- forecasts


@cli.command()
def forecast(
    dataset: Annotated[
        list[str], typer.Option(help="Name or id of a dataset; give several to draw them together.")
    ],
    horizon: Annotated[int, typer.Option(help="Bars to forecast.")],
    out: Annotated[Path, typer.Option(help="File to write: .csv or .parquet.")],
    model: Annotated[str, typer.Option(help="Name or id of the model.")] = "kronos-nano",
    paths: Annotated[int, typer.Option(help="Number of sample paths.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    temperature: Annotated[float, typer.Option(help="Below 1 is calmer, above 1 wilder.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Keep the k likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Keep this share of probability.")] = None,
    context: Annotated[int | None, typer.Option(help="Bars given to the model.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, or bfloat16 for the predictor.")] = "float32",
    origin: Annotated[
        str | None,
        typer.Option(help="Last context bar: its number from 0, or a date; else the last bar."),
    ] = None,
    calendar: Annotated[
        str | None,
        typer.Option(help="XNYS, 24/7, 24/5 or 09:30-16:00 on weekdays; else the dataset's own."),
    ] = None,
) -> None:
    """Draw sample paths and write them: path, step, timestamp, open … amount.

    Of several datasets the table begins with the column series.
    """
    if out.suffix.lower() not in SUFFIXES:
        raise ServiceError(f"--out must end in {' or '.join(SUFFIXES)}, got {out.name}.")
    if not out.absolute().parent.is_dir():
        raise ServiceError(f"There is no folder {out.parent}. Make it first, or write elsewhere.")
    with workspace() as store:
        request = forecasts.ForecastRequest(
            dataset_id=dataset[0],
            model_id=model,
            horizon=horizon,
            paths=paths,
            origin_index=None if origin is None else _origin(store, dataset[0], origin),
            context=context,
            seed=seed,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            dtype=dtype,
            calendar=forecast_commands.chosen_calendar(store, dataset[0], calendar),
        )
        if len(dataset) > 1:
            origins = [None if origin is None else _origin(store, one, origin) for one in dataset]
            frame = forecast_commands.draw_many(store, request, dataset, origins)
            _write(frame, out)
            return
        row = forecasts.run_now(store, request)
        _write(forecasts.load(store, row).to_frame(), out)
        assert row.summary is not None
        typer.echo(
            f"{out}: {paths} paths of {horizon} bars, median change at the end "
            f"{row.summary['median_change']:+.2f} %"
        )


def _origin(store: Store, dataset: str, text: str) -> int:
    """The index of the bar that `--origin` names: a number, or the last bar up to a moment."""
    if text.isdecimal():
        return int(text)
    stamps = datasets.bars(store, datasets.get(store, dataset))["timestamps"]
    try:
        moment = pd.Timestamp(text)
    except ValueError:
        raise ServiceError(
            f"--origin must be a bar number or a date such as 2024-05-31, got {text!r}."
        ) from None
    if moment.tzinfo is None:
        moment = moment.tz_localize(stamps.dt.tz)
    index = int(stamps.searchsorted(moment, side="right")) - 1
    if index < 0:
        raise ServiceError(f"--origin {text} lies before the first bar, {stamps.iloc[0]}.")
    return index


def _write(frame: pd.DataFrame, out: Path) -> None:
    if out.suffix.lower() == ".csv":
        frame.to_csv(out, index=False)
    else:
        frame.to_parquet(out, index=False)


def main() -> None:
    """Entry point of `python -m app`."""
    cli(prog_name="python -m app")


if __name__ == "__main__":
    main()
