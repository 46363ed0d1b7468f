"""The command line, over the same services as the dashboard: `python -m app --help`."""

import time
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from app import data_commands
from app.jobs.supervisor import Supervisor
from app.services import datasets, forecasts, models, runs
from app.services.errors import ServiceError
from app.storage import Store
from app.storage.models import ACTIVE_STATES, Model, Run, RunMetric
from app.terminal import Commands, table, workspace
from kronos_core.training.config import TrainingConfig
from kronos_core.training.teacher_forcing import TeacherForcing

SUFFIXES = (".csv", ".parquet")


cli = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Kronos Workbench without a browser.",
)


cli.add_typer(data_commands.cli)


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


# ---------------------------------------------------------------- fine-tuning


@cli.command()
def finetune(
    dataset: Annotated[str, typer.Option(help="Name or id of the dataset.")],
    model: Annotated[str, typer.Option(help="Name or id of the base model.")] = "kronos-nano",
    epochs: Annotated[int | None, typer.Option(help="Passes over the windows.")] = None,
    context: Annotated[int | None, typer.Option(help="Bars given to the model.")] = None,
    horizon: Annotated[int | None, typer.Option(help="Bars to forecast.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Windows per step.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Highest learning rate.")] = None,
    stride: Annotated[int | None, typer.Option(help="Bars between window starts.")] = None,
    validation_fraction: Annotated[
        float | None, typer.Option(help="Share of windows to validate on.")
    ] = None,
    test_fraction: Annotated[
        float | None, typer.Option(help="Share of windows kept from the run.")
    ] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Of AdamW.")] = None,
    clip_norm: Annotated[float | None, typer.Option(help="Largest gradient norm.")] = None,
    warmup: Annotated[float | None, typer.Option(help="Share of steps to warm up.")] = None,
    evaluations_per_epoch: Annotated[
        int | None, typer.Option(help="How often to validate in a pass.")
    ] = None,
    teacher_forcing: Annotated[
        str, typer.Option(help='"true", "own", a ratio such as 0.3, or "linear:1:0".')
    ] = "own",
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run.")] = None,
    follow: Annotated[bool, typer.Option(help="Wait, and print each evaluation.")] = False,
) -> None:
    """Queue a fine-tuning run; its worker starts at once if the device is free."""
    chosen = {
        "epochs": epochs,
        "context": context,
        "horizon": horizon,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "stride": stride,
        "validation_fraction": validation_fraction,
        "test_fraction": test_fraction,
        "weight_decay": weight_decay,
        "clip_norm": clip_norm,
        "warmup": warmup,
        "evaluations_per_epoch": evaluations_per_epoch,
        "seed": seed,
    }
    with workspace() as store:
        config = TrainingConfig(
            teacher_forcing=TeacherForcing.parse(teacher_forcing),
            device=device or store.settings.device,
            **{key: value for key, value in chosen.items() if value is not None},  # type: ignore[arg-type]
        )
        run = runs.queue(store, dataset_id=dataset, model_id=model, config=config, name=name)
        typer.echo(f"Run {run.id} queued: {run.total_steps} steps")
        _start(store, run, follow)


def _start(store: Store, run: Run, follow: bool) -> None:
    supervisor = Supervisor(store)
    supervisor.tick()
    if follow:
        raise typer.Exit(0 if _follow(store, supervisor, run.id) else 1)
    if runs.get(store, run.id).state == "queued":
        typer.echo("Another run has the device; a running dashboard or --follow starts this one.")


def _follow(store: Store, supervisor: Supervisor, run_id: str) -> bool:
    """Prints each evaluation until the run has ended. -> whether it finished"""
    seen = 0
    while True:
        supervisor.tick()
        run = runs.get(store, run_id)
        for row in runs.metrics(store, run_id, after_id=seen):
            seen = row.id
            if row.split == "validation":
                typer.echo(_evaluation(run, row))
        if run.state not in (*ACTIVE_STATES, "queued"):
            typer.echo(f"Run {run.id} {run.state}. {run.reason or ''}".strip())
            return run.state == "finished"
        time.sleep(store.settings.poll_seconds)


def _evaluation(run: Run, row: RunMetric) -> str:
    gap = "" if row.exposure_gap is None else f"  exposure gap {row.exposure_gap:+.4f}"
    return (
        f"step {row.step:>6}/{run.total_steps}  epoch {row.epoch:.2f}  "
        f"s1 {row.s1:.4f}  s2 {row.s2:.4f}  total {row.total:.4f}{gap}"
    )


@cli.command("runs")
def list_runs() -> None:
    """List the fine-tuning runs, newest first."""
    with workspace() as store:
        Supervisor(store).reconcile()
        rows = [
            (
                run.id,
                run.name,
                run.state,
                f"{run.step}/{run.total_steps}",
                _number(run.best_s1),
                _number(run.best_s2),
                f"{run.created_at:%Y-%m-%d %H:%M}",
                run.reason or "",
            )
            for run in runs.list_runs(store)
        ]
        headers = ("ID", "NAME", "STATE", "STEP", "BEST S1", "BEST S2", "CREATED (UTC)", "REASON")
        typer.echo(table(headers, rows))


@cli.command()
def stop(run: Annotated[str, typer.Argument(help="Id of the run, or its beginning.")]) -> None:
    """Let a run save and stop; take a queued one out of the queue."""
    with workspace() as store:
        stopped = runs.stop(store, run)
        typer.echo(f"Run {stopped.id} is {stopped.state}")


@cli.command()
def resume(
    run: Annotated[str, typer.Argument(help="Id of the run, or its beginning.")],
    follow: Annotated[bool, typer.Option(help="Wait, and print each evaluation.")] = False,
) -> None:
    """Continue a stopped, failed or orphaned run from its last checkpoint."""
    with workspace() as store:
        Supervisor(store).reconcile()
        queued = runs.resume(store, run)
        typer.echo(f"Run {queued.id} queued again")
        _start(store, queued, follow)


# ---------------------------------------------------------------- forecasts


@cli.command()
def forecast(
    dataset: Annotated[str, typer.Option(help="Name or id of the dataset.")],
    horizon: Annotated[int, typer.Option(help="Bars to forecast.")],
    out: Annotated[Path, typer.Option(help="File to write: .csv or .parquet.")],
    model: Annotated[str, typer.Option(help="Name or id of the model.")] = "kronos-nano",
    paths: Annotated[int, typer.Option(help="Number of sample paths.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    temperature: Annotated[float, typer.Option(help="Below 1 is calmer, above 1 wilder.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Keep the k likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Keep this share of probability.")] = None,
    context: Annotated[int | None, typer.Option(help="Bars given to the model.")] = None,
    origin: Annotated[
        str | None,
        typer.Option(help="Last context bar: its number from 0, or a date; else the last bar."),
    ] = None,
) -> None:
    """Draw sample paths and write them: path, step, timestamp, open … amount."""
    if out.suffix.lower() not in SUFFIXES:
        raise ServiceError(f"--out must end in {' or '.join(SUFFIXES)}, got {out.name}.")
    if not out.absolute().parent.is_dir():
        raise ServiceError(f"There is no folder {out.parent}. Make it first, or write elsewhere.")
    with workspace() as store:
        request = forecasts.ForecastRequest(
            dataset_id=dataset,
            model_id=model,
            horizon=horizon,
            paths=paths,
            origin_index=None if origin is None else _origin(store, dataset, origin),
            context=context,
            seed=seed,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
        )
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
