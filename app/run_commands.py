"""The commands about fine-tuning: queueing, watching, stopping, resuming and exporting runs."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from app.jobs.supervisor import Supervisor
from app.services import models, runs
from app.services.errors import ServiceError
from app.storage import Store
from app.storage.models import ACTIVE_STATES, Run, RunMetric
from app.terminal import table, workspace
from kronos_core.training.config import TrainingConfig
from kronos_core.training.options import DataShare, Lora, TokenizerStage
from kronos_core.training.presets import PRESETS
from kronos_core.training.probe import Probe
from kronos_core.training.teacher_forcing import TeacherForcing
from kronos_core.training.yaml_text import read_yaml

cli = typer.Typer()
runs_cli = typer.Typer(invoke_without_command=True)
cli.add_typer(runs_cli, name="runs")

RunId = Annotated[str, typer.Argument(help="Id of the run, or its beginning.")]
Follow = Annotated[bool, typer.Option(help="Wait, and print each evaluation.")]
FORCING = '"true", "own", a ratio such as 0.3, or "linear:1:0".'


# ---------------------------------------------------------------- queueing


@cli.command()
def finetune(
    dataset: Annotated[
        list[str] | None, typer.Option(help="Name or id of a dataset. Repeatable.")
    ] = None,
    weight: Annotated[
        list[float] | None, typer.Option(help="How often an epoch shows each dataset's windows.")
    ] = None,
    model: Annotated[str, typer.Option(help="Name or id of the base model.")] = "kronos-nano",
    config: Annotated[
        Path | None, typer.Option(help="Settings as YAML, as `runs export --config` writes them.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="Settings to start from: quick, balanced or thorough.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the windows.")] = None,
    steps: Annotated[int | None, typer.Option(help="Updates, instead of epochs.")] = None,
    context: Annotated[int | None, typer.Option(help="Bars given to the model.")] = None,
    horizon: Annotated[int | None, typer.Option(help="Bars to forecast.")] = None,
    stride: Annotated[int | None, typer.Option(help="Bars between window starts.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Windows per step.")] = None,
    micro_batch: Annotated[
        int | None, typer.Option(help="Windows computed at once; gradients are added up.")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Highest learning rate.")] = None,
    schedule: Annotated[
        str | None, typer.Option(help="Of the rate: onecycle, cosine or constant.")
    ] = None,
    warmup: Annotated[float | None, typer.Option(help="Share of steps to warm up.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Of AdamW.")] = None,
    clip_norm: Annotated[float | None, typer.Option(help="Largest gradient norm.")] = None,
    dropout: Annotated[float | None, typer.Option(help="Instead of the model's own.")] = None,
    ema: Annotated[float | None, typer.Option(help="Decay of averaged weights.")] = None,
    patience: Annotated[
        int | None, typer.Option(help="End after so many evaluations without a better one.")
    ] = None,
    freeze_blocks: Annotated[
        int | None, typer.Option(help="First transformer blocks that are not trained.")
    ] = None,
    freeze_embeddings: Annotated[
        bool | None, typer.Option("--freeze-embeddings", help="Do not train the embeddings.")
    ] = None,
    lora_rank: Annotated[
        int | None, typer.Option(help="Train low-rank adapters of this rank alone.")
    ] = None,
    tokenizer_epochs: Annotated[
        int | None, typer.Option(help="Fine-tune the tokenizer first, for so many passes.")
    ] = None,
    teacher_forcing: Annotated[str | None, typer.Option(help=f"What gives s2: {FORCING}")] = None,
    history: Annotated[str | None, typer.Option(help=f"What the inputs hold: {FORCING}")] = None,
    validation_fraction: Annotated[
        float | None, typer.Option(help="Share of windows to validate on.")
    ] = None,
    test_fraction: Annotated[
        float | None, typer.Option(help="Share of windows kept from the run.")
    ] = None,
    validation_from: Annotated[
        str | None, typer.Option(help="First day to validate on, instead of a share.")
    ] = None,
    test_from: Annotated[str | None, typer.Option(help="First day kept from the run.")] = None,
    evaluations_per_epoch: Annotated[
        int | None, typer.Option(help="How often to validate in a pass.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps.")] = None,
    assign: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any setting as in the YAML: lora={rank: 4}. Repeatable."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run.")] = None,
    notes: Annotated[str, typer.Option(help="What you want to remember of it.")] = "",
    tag: Annotated[list[str] | None, typer.Option(help="A tag. Repeatable.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Print the checks and an estimate; queue nothing.")
    ] = False,
    follow: Follow = False,
) -> None:
    """Queue a fine-tuning run; its worker starts at once if the device is free."""
    chosen = {
        "epochs": epochs,
        "steps": steps,
        "context": context,
        "horizon": horizon,
        "stride": stride,
        "batch_size": batch_size,
        "micro_batch": micro_batch,
        "learning_rate": learning_rate,
        "schedule": schedule,
        "warmup": warmup,
        "weight_decay": weight_decay,
        "clip_norm": clip_norm,
        "dropout": dropout,
        "ema": ema,
        "patience": patience,
        "frozen_blocks": freeze_blocks,
        "freeze_embeddings": freeze_embeddings,
        "lora": None if lora_rank is None else Lora(rank=lora_rank),
        "tokenizer": None if tokenizer_epochs is None else TokenizerStage(epochs=tokenizer_epochs),
        "teacher_forcing": None if teacher_forcing is None else _forcing(teacher_forcing),
        "history": None if history is None else _forcing(history),
        "validation_fraction": validation_fraction,
        "test_fraction": test_fraction,
        "validation_from": validation_from,
        "test_from": test_from,
        "evaluations_per_epoch": evaluations_per_epoch,
        "seed": seed,
        "device": device,
    }
    with workspace() as store:
        wanted: dict[str, Any] = {
            "datasets": dataset,
            "model_id": model,
            "config": _weighted(
                _settings(_base(store, model, config, preset), chosen, assign or ()),
                dataset,
                weight,
            ),
        }
        if check:
            raise typer.Exit(0 if _check(store, wanted) else 1)
        run = runs.queue(store, **wanted, name=name, notes=notes, tags=tag or ())
        typer.echo(f"Run {run.id} queued: {run.total_steps} steps")
        _start(store, run, follow)


_forcing = TeacherForcing.parse


def _base(store: Store, model: str, config: Path | None, preset: str | None) -> TrainingConfig:
    """The settings that the options change: a file's, a preset's or the defaults."""
    if config is not None and preset is not None:
        raise ServiceError("Give either --config or --preset, not both.")
    if config is not None:
        return TrainingConfig.from_yaml(config.read_text(encoding="utf-8"))
    device = store.settings.device
    if preset is None:
        return TrainingConfig(device=device)
    if preset not in PRESETS:
        raise ServiceError(f"--preset must be one of {', '.join(PRESETS)}, got {preset!r}.")
    settings = PRESETS[preset].settings(models.get(store, model).max_context)
    return replace(settings, device=device)


def _settings(
    base: TrainingConfig, chosen: Mapping[str, Any], assignments: Sequence[str]
) -> TrainingConfig:
    """The base with the options that were given, then with what `--set` says."""
    changed = replace(base, **{key: value for key, value in chosen.items() if value is not None})
    values = changed.to_dict()
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise ServiceError(f"--set takes name=value, got {assignment!r}.")
        values[name.strip()] = read_yaml(f"value: {text}")["value"]
    return TrainingConfig.from_dict(values)


def _weighted(
    config: TrainingConfig, dataset: Sequence[str] | None, weight: Sequence[float] | None
) -> TrainingConfig:
    if not weight:
        return config
    names = dataset or [share.name for share in config.data]
    if len(weight) != len(names):
        raise ServiceError(
            f"There are {len(names)} datasets and {len(weight)} weights. "
            "Give each --dataset one --weight."
        )
    shares = (DataShare(name=name, weight=w) for name, w in zip(names, weight, strict=True))
    return replace(config, data=tuple(shares))


def _check(store: Store, wanted: Mapping[str, Any]) -> bool:
    """Prints the pre-flight, and what a measured piece of the run says. -> whether it can work"""
    found = runs.preflight(store, **wanted)
    if found.ok:
        measured = runs.probe(store, **wanted)
        found = runs.preflight(store, **wanted, measured=measured)
    for item in found.checks:
        typer.echo(f"{'ok ' if item.ok else 'NO '} {item.name}: {item.message}")
    if found.ok:
        assert found.plan is not None
        typer.echo(f"{found.plan.total_steps:,} steps, {_estimate(measured)}")
    return found.ok


def _estimate(measured: Probe) -> str:
    return (
        f"about {measured.estimated_seconds / 60:,.1f} minutes on {measured.device} "
        f"at {measured.tokens_per_second:,.0f} tokens/s, "
        f"{measured.estimated_memory_mb:,.0f} MiB of memory, {measured.disk_mb:,.0f} MiB of disk"
    )


# ---------------------------------------------------------------- watching


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
        for row in runs.metrics(store, run_id, after_id=seen, split="validation"):
            seen = row.id
            typer.echo(_evaluation(row))
        if run.state not in (*ACTIVE_STATES, "queued"):
            typer.echo(f"Run {run.id} {run.state}. {run.reason or ''}".strip())
            return run.state == "finished"
        time.sleep(store.settings.poll_seconds)


def _evaluation(row: RunMetric) -> str:
    parts = {"s1": row.s1, "s2": row.s2, "coarse": row.coarse, "fine": row.fine, "total": row.total}
    losses = "  ".join(f"{key} {loss:.4f}" for key, loss in parts.items() if loss is not None)
    gap = "" if row.exposure_gap is None else f"  exposure gap {row.exposure_gap:+.4f}"
    return f"step {row.step:>6} of the {row.stage}  epoch {row.epoch:.2f}  {losses}{gap}"


@runs_cli.callback()
def list_runs(context: typer.Context) -> None:
    """List the fine-tuning runs, newest first."""
    if context.invoked_subcommand is not None:
        return
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
                ", ".join(run.tags),
                run.reason or "",
            )
            for run in runs.list_runs(store)
        ]
        headers = ("ID", "NAME", "STATE", "STEP", "BEST S1", "BEST S2", "CREATED (UTC)")
        typer.echo(table((*headers, "TAGS", "REASON"), rows))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


# ---------------------------------------------------------------- changing


@cli.command()
def stop(run: RunId) -> None:
    """Let a run save and stop; take a queued one out of the queue."""
    with workspace() as store:
        stopped = runs.stop(store, run)
        typer.echo(f"Run {stopped.id} is {stopped.state}")


@cli.command()
def resume(
    run: RunId,
    micro_batch: Annotated[
        int | None, typer.Option(help="Windows computed at once from now on.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Another device from now on.")] = None,
    follow: Follow = False,
) -> None:
    """Continue a stopped, failed or orphaned run from its last checkpoint."""
    with workspace() as store:
        Supervisor(store).reconcile()
        queued = runs.resume(store, run, micro_batch=micro_batch, device=device)
        typer.echo(f"Run {queued.id} queued again")
        _start(store, queued, follow)


@runs_cli.command()
def move(
    run: RunId, where: Annotated[runs.Move, typer.Argument(help="up, down or first.")] = "first"
) -> None:
    """Move a queued run within the queue, and print the queue."""
    with workspace() as store:
        order = runs.reorder(store, run, where)
        rows = [(place, item.id, item.name) for place, item in enumerate(order, start=1)]
        typer.echo(table(("PLACE", "ID", "NAME"), rows))


@runs_cli.command()
def note(
    run: RunId,
    name: Annotated[str | None, typer.Option(help="Another name.")] = None,
    notes: Annotated[str | None, typer.Option(help="What you want to remember of it.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="The tags from now on.")] = None,
) -> None:
    """Change the name, the notes or the tags of a run."""
    with workspace() as store:
        changed = runs.update(store, run, name=name, notes=notes, tags=tag)
        typer.echo(f"Run {changed.id}: {changed.name} [{', '.join(changed.tags)}]")


@runs_cli.command()
def command(run: RunId) -> None:
    """Print the command that queues the same run again."""
    with workspace() as store:
        typer.echo(runs.command_of(store, runs.get(store, run)))


@runs_cli.command()
def export(
    run: RunId,
    config: Annotated[Path | None, typer.Option(help="YAML file for the settings.")] = None,
    curves: Annotated[Path | None, typer.Option(help="CSV file for the metric rows.")] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Zip for the best weights, as the released loader reads.")
    ] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Folder for event files of TensorBoard.")
    ] = None,
) -> None:
    """Write what a run holds to files of your choice."""
    if not any((config, curves, checkpoint, tensorboard)):
        raise ServiceError("Say what to write: --config, --curves, --checkpoint or --tensorboard.")
    with workspace() as store:
        row = runs.get(store, run)
        if config is not None:
            _write(config, runs.export_config(row).encode())
        if curves is not None:
            _write(curves, runs.export_curves(store, row.id))
        if checkpoint is not None:
            _write(checkpoint, runs.export_checkpoint(store, row.id).read_bytes())
        if tensorboard is not None:
            typer.echo(runs.export_tensorboard(store, row.id, tensorboard))


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    typer.echo(path)
