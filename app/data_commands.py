"""The commands about data: bringing bars in, their quality, repairs and calendar."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

import pandas as pd
import typer

from app.services import dataset_care, dataset_checks, dataset_fetch, datasets
from app.services.errors import ServiceError
from app.storage import Store
from app.storage.models import Dataset
from app.terminal import table, workspace
from kronos_core import AmbiguityError, ReadingChoices
from kronos_core.data import calendars
from kronos_core.data.dialects import Reading
from kronos_core.data.findings import Finding
from kronos_core.data.repair import REPAIRS, RepairStep
from kronos_core.data.synthetic import SyntheticSettings

cli = typer.Typer()
Parsed = TypeVar("Parsed")
Name = Annotated[str, typer.Argument(help="Name or id of the dataset.")]
NewName = Annotated[str | None, typer.Option("--name", help="Name of the new dataset.")]


# ---------------------------------------------------------------- bringing bars in


@cli.command("import")
def import_files(
    files: Annotated[
        list[Path], typer.Argument(help="Tables with timestamps and open, high, low, close.")
    ],
    name: Annotated[str | None, typer.Option(help="Name of the dataset; else the file's.")] = None,
    columns: Annotated[
        list[str] | None, typer.Option(help="Which column is what: open=Otwarcie. Repeatable.")
    ] = None,
    date_order: Annotated[str | None, typer.Option(help="DMY, MDY or YMD.")] = None,
    decimal: Annotated[str | None, typer.Option(help='Decimal mark: "." or ",".')] = None,
    timezone: Annotated[str | None, typer.Option(help="Such as Europe/Berlin.")] = None,
    delimiter: Annotated[str | None, typer.Option(help="The sign between columns.")] = None,
    encoding: Annotated[str | None, typer.Option(help="Such as utf-8 or gb18030.")] = None,
    header_line: Annotated[int | None, typer.Option(help="Line of the titles; 0: none.")] = None,
    epoch_unit: Annotated[str | None, typer.Option(help="Of Unix times: s, ms, us, ns.")] = None,
    prices: Annotated[str | None, typer.Option(help="raw or adjusted.")] = None,
    volume_factor: Annotated[float | None, typer.Option(help="100 for lots.")] = None,
    amount_factor: Annotated[float | None, typer.Option(help="1000 for thousands.")] = None,
) -> None:
    """Read files of bars and store each series as a dataset."""
    made = {key: value for key, value in locals().items() if key not in ("files", "name")}
    choices = ReadingChoices(**{**made, "columns": _columns(columns)})
    with workspace() as store:
        for file in files:
            label = " ".join(filter(None, (name, file.stem if len(files) > 1 else "")))
            _import(store, file, label or file.stem, choices)


def _columns(pairs: Sequence[str] | None) -> dict[str, str] | None:
    """["open=Otwarcie"] -> {"open": "Otwarcie"}; "time" may stand for "timestamps"."""
    if not pairs:
        return None
    if wrong := [pair for pair in pairs if "=" not in pair]:
        raise ServiceError(f"--columns {wrong[0]}: write it as open=Otwarcie.")
    parts = [pair.partition("=") for pair in pairs]
    return {{"time": "timestamps"}.get(role, role): title for role, _, title in parts}


def _import(store: Store, file: Path, label: str, choices: ReadingChoices) -> None:
    limit = store.settings.max_upload_mb
    try:
        readings = datasets.inspect_upload(file.read_bytes(), file.name, limit, choices)
    except AmbiguityError as question:
        raise ServiceError(_question(question, choices)) from question
    names = datasets.suggested_names(readings, file.name)
    several = sum(map(len, names)) > 1
    for reading, own in zip(readings, names, strict=True):
        _store(store, file, reading, [f"{label} {one}" if several else label for one in own])


def _store(store: Store, file: Path, reading: Reading, names: Sequence[str]) -> None:
    for series, name in zip(reading.series, names, strict=True):
        row = datasets.add(
            store,
            series,
            name=name,
            source="upload",
            provenance={"file": file.name},
            reading=datasets.described(reading),
        )
        _report(row)


def _question(question: AmbiguityError, choices: ReadingChoices) -> str:
    """The question with the option that gives each answer."""
    ways = []
    for reading in question.readings:
        answer = next(
            f"--{item.name.replace('_', '-')} {getattr(reading.choices, item.name)}"
            for item in fields(ReadingChoices)
            if getattr(reading.choices, item.name) != getattr(choices, item.name)
        )
        ways.append(f"{answer} ({reading.sentence.rstrip('.')})")
    return f"{question} Say {' or '.join(ways)}."


@cli.command()
def sample(
    key: Annotated[str, typer.Argument(help="Bundled sample: sp500 or nasdaq.")],
) -> None:
    """Add a bundled sample as a dataset."""
    with workspace() as store:
        _report(datasets.add_sample(store, key))


@cli.command()
def synthetic(
    bars: Annotated[int, typer.Option(help="How many.")] = 2000,
    interval: Annotated[str, typer.Option(help="Such as 5min, 4h or 1D.")] = "1D",
    start: Annotated[str, typer.Option(help="Time of the first bar (UTC).")] = "2020-01-01",
    first_price: Annotated[float, typer.Option(help="Open of the first bar.")] = 100.0,
    drift: Annotated[float, typer.Option(help="Mean growth a year: 0.05 is 5 %.")] = 0.05,
    volatility: Annotated[float, typer.Option(help="Of a year's return: 0.2 is 20 %.")] = 0.2,
    clustering: Annotated[float, typer.Option(help="Of volatility, 0 to 2.")] = 0.5,
    cycle: Annotated[float, typer.Option(help="Of volume over a day, 0 to 1.")] = 0.5,
    jumps: Annotated[float, typer.Option(help="Chance that a bar jumps, 0 to 1.")] = 0.005,
    seed: Annotated[int, typer.Option(help="The same seed makes the same bars.")] = 0,
    name: NewName = None,
) -> None:
    """Make bars by a random walk and store them as a dataset."""
    settings = SyntheticSettings(
        bars=bars,
        interval=_parsed("--interval", interval, pd.Timedelta, "5min, 4h or 1D"),
        start=_parsed("--start", start, _utc, "2020-01-01 or 2020-01-01 09:30"),
        first_price=first_price,
        drift=drift,
        volatility=volatility,
        clustering=clustering,
        cycle=cycle,
        jumps=jumps,
        seed=seed,
    )
    with workspace() as store:
        _report(datasets.add_synthetic(store, settings, name=name or f"Synthetic {seed}"))


def _utc(text: str) -> pd.Timestamp:
    stamp = pd.Timestamp(text)
    return stamp.tz_localize("UTC") if stamp.tz is None else stamp


def _parsed(option: str, text: str, parse: Callable[[str], Parsed], example: str) -> Parsed:
    try:
        return parse(text)
    except ValueError as error:
        raise ServiceError(f"{option} {text}: write it as {example}.") from error


@cli.command()
def fetch(
    source: Annotated[str, typer.Argument(help="yahoo, or crypto: and an exchange.")],
    symbol: Annotated[str, typer.Argument(help="Such as AAPL, ^GSPC or BTC/USDT.")],
    interval: Annotated[str, typer.Option(help="Such as 1d or 5m.")] = "1d",
    period: Annotated[str, typer.Option(help="Such as 60d, 2y or max.")] = "2y",
    raw: Annotated[bool, typer.Option(help="Prices without adjustment.")] = False,
    name: NewName = None,
) -> None:
    """Fetch bars and store them as a dataset that can be refreshed."""
    request = dataset_fetch.FetchRequest(
        source=source, symbol=symbol, interval=interval, period=period, adjusted=not raw
    )
    with workspace() as store:
        series = dataset_fetch.fetch(store, request)
        label = name or f"{symbol} {interval}{' raw' if raw else ''}"
        _report(dataset_fetch.add(store, series, request, name=label))


@cli.command()
def search(
    source: Annotated[str, typer.Argument(help="yahoo, or crypto: and an exchange.")],
    text: Annotated[str, typer.Argument(help="A name or the beginning of a symbol.")],
) -> None:
    """List what a source has by a name."""
    with workspace() as store:
        found = dataset_fetch.search(store, source, text)
    rows = [(one.symbol, one.name, one.exchange, one.kind) for one in found]
    typer.echo(table(("SYMBOL", "NAME", "EXCHANGE", "KIND"), rows))


@cli.command()
def refresh(name: Name) -> None:
    """Fetch what is new for a fetched dataset, and say what changed in the past."""
    with workspace() as store:
        row, result = dataset_fetch.refresh(store, name)
        typer.echo(_summary(row))
        for finding in result.findings:
            typer.echo(f"  {finding}")


def _report(row: Dataset) -> None:
    typer.echo(_summary(row))
    for finding in row.findings:
        typer.echo(f"  {finding}")


def _summary(row: Dataset) -> str:
    grade = f", quality {row.quality['grade']}" if row.quality else ""
    return f"{row.name}: {row.bars} bars, {row.first:%Y-%m-%d} to {row.last:%Y-%m-%d}{grade}"


@cli.command("datasets")
def list_datasets() -> None:
    """List the datasets."""
    with workspace() as store:
        rows = [_cells(row) for row in datasets.list_datasets(store)]
        typer.echo(table(("ID", "NAME", "BARS", "FIRST", "LAST", "QUALITY", "CALENDAR"), rows))


def _cells(row: Dataset) -> tuple[object, ...]:
    span = (f"{row.first:%Y-%m-%d}", f"{row.last:%Y-%m-%d}")
    grade = row.quality["grade"] if row.quality else ""
    return row.id, row.name, row.bars, *span, grade, datasets.calendar_title(row) or ""


# ---------------------------------------------------------------- taking care of it


@cli.command()
def quality(name: Name) -> None:
    """Say what is wrong with the bars, where, and what repairs it."""
    with workspace() as store:
        report = dataset_care.quality(store, name)
        calendar = f", calendar {report.calendar.title}" if report.calendar else ""
        typer.echo(f"Quality {report.grade}: {report.bars} bars{calendar}")
        for finding in report.findings:
            _tell(finding)


def _tell(finding: Finding) -> None:
    typer.echo(f"{finding.severity.upper()}: {finding.message}")
    if finding.places:
        typer.echo(f"  first: {', '.join(f'{stamp:%Y-%m-%d %H:%M}' for stamp in finding.places)}")
    typer.echo(f"  {finding.effect}")
    if finding.repair:
        typer.echo(f"  repair: {finding.repair} ({REPAIRS[finding.repair].sentence})")


@cli.command()
def repair(
    name: Name,
    steps: Annotated[
        str | None,
        typer.Option(help="Names of repairs with commas between: rescale,fill_gaps:longest=3."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that is offered.")] = False,
    preview: Annotated[bool, typer.Option(help="Only say what would change.")] = False,
    undo: Annotated[bool, typer.Option(help="Go back to the original bars.")] = False,
) -> None:
    """Repair the bars; the original is kept."""
    if (steps is not None) + everything + undo != 1:
        raise ServiceError("Give one of --steps, --all and --undo.")
    with workspace() as store:
        if undo:
            typer.echo(_summary(dataset_care.undo_repairs(store, name)))
            return
        chosen = dataset_care.offered_steps(dataset_care.quality(store, name))
        if steps is not None:
            chosen = [_step(text, chosen) for text in steps.split(",")]
        for change in dataset_care.preview_repairs(store, name, chosen):
            counts = f"{change.changed} changed, {change.dropped} dropped, {change.added} added"
            typer.echo(f"{change.step.name}: {counts}")
        if not preview and chosen:
            typer.echo(_summary(dataset_care.apply_repairs(store, name, chosen)))


def _step(text: str, offered: Sequence[RepairStep]) -> RepairStep:
    """ "fill_gaps:longest=3" -> its step, with what the report says for this repair."""
    key, _, setting = text.strip().partition(":")
    known = next((step.parameters for step in offered if step.name == key), {})
    parameters: dict[str, Any] = dict(known)
    if setting:
        parameter, _, value = setting.partition("=")
        parameters[parameter] = int(value) if value.isdecimal() else value
    return RepairStep(name=key, parameters=parameters)


@cli.command()
def resample(
    name: Name,
    to: Annotated[str, typer.Option(help="Coarser interval: 15min, 4h, 1D, 1W or 1M.")],
    new_name: NewName = None,
) -> None:
    """Make a dataset with bars of a coarser interval."""
    with workspace() as store:
        label = new_name or f"{datasets.get(store, name).name} {to}"
        _report(dataset_care.resample(store, name, to, label))


@cli.command()
def calendar(
    name: Name,
    exchange: Annotated[str | None, typer.Option(help="Its ISO code, such as XNYS.")] = None,
    kind: Annotated[str | None, typer.Option(help="24/7 or 24/5.")] = None,
    hours: Annotated[str | None, typer.Option(help='"09:30-16:00" on --days.')] = None,
    days: Annotated[str, typer.Option(help="Monday first, 1 for open.")] = "1111100",
    timezone: Annotated[str | None, typer.Option(help="Of the hours.")] = None,
    automatic: Annotated[bool, typer.Option(help="By symbol, else by the bars.")] = False,
) -> None:
    """Show the trading calendar of a dataset and its next bars, or choose another."""
    with workspace() as store:
        row = datasets.get(store, name)
        zone = timezone or row.timezone
        if exchange:
            chosen = calendars.exchange(exchange)
        elif kind:
            chosen = calendars.Calendar.from_dict({"kind": kind, "timezone": zone})
        elif hours:
            chosen = calendars.weekly(zone, hours, days)
        if exchange or kind or hours or automatic:
            row = dataset_care.set_calendar(store, row.id, None if automatic else chosen.to_dict())
        now = dataset_checks.upcoming(datasets.series_of(store, row), row.calendar)
        typer.echo(f"{now.calendar.describe()} ({now.origin})")
        for stamp in now.stamps:
            typer.echo(f"  {stamp:%a %Y-%m-%d %H:%M %Z}")
