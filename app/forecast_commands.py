"""The commands that draw: one forecast, several series at once, or one setting varied."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

from app.services import batches, datasets, forecasts, sweeps
from app.services.errors import ServiceError
from app.services.forecasts import ForecastRequest
from app.storage import Store
from app.storage.models import Forecast
from app.terminal import workspace
from kronos_core.data.calendars import Calendar, exchange, weekly

SUFFIXES = (".csv", ".parquet")

cli = typer.Typer()

Horizon = Annotated[int, typer.Option(help="Bars to forecast.")]
Out = Annotated[Path, typer.Option(help="File to write: .csv or .parquet.")]
ModelName = Annotated[str, typer.Option(help="Name or id of the model.")]
Paths = Annotated[int, typer.Option(help="Number of sample paths.")]
Seed = Annotated[int, typer.Option(help="Seed of the draws.")]
Temperature = Annotated[float, typer.Option(help="Below 1 is calmer, above 1 wilder.")]
TopK = Annotated[int | None, typer.Option(help="Keep the k likeliest tokens.")]
TopP = Annotated[float | None, typer.Option(help="Keep this share of probability.")]
Context = Annotated[int | None, typer.Option(help="Bars given to the model.")]
Dtype = Annotated[str, typer.Option(help="float32, or bfloat16 for the predictor.")]
Origin = Annotated[
    str | None,
    typer.Option(help="Last context bar: its number from 0, or a date; else the last bar."),
]
CalendarName = Annotated[
    str | None,
    typer.Option(help="XNYS, 24/7, 24/5 or 09:30-16:00 on weekdays; else the dataset's own."),
]


@dataclass(frozen=True, slots=True)
class Drawing:
    """How to draw, as the options of both commands say it."""

    context: int | None
    seed: int
    temperature: float
    top_k: int | None
    top_p: float | None
    dtype: str

    def request(
        self, store: Store, dataset: str, origin: str | None, model: str, horizon: int, paths: int
    ) -> ForecastRequest:
        """For one dataset, given by name or id, as the model."""
        return ForecastRequest(
            dataset_id=datasets.get(store, dataset).id,
            model_id=model,
            horizon=horizon,
            paths=paths,
            origin_index=origin_index(store, dataset, origin),
            **asdict(self),
        )


@cli.command()
def forecast(
    dataset: Annotated[
        list[str], typer.Option(help="Name or id of a dataset; give several to draw them together.")
    ],
    horizon: Horizon,
    out: Out,
    model: ModelName = "kronos-nano",
    paths: Paths = 100,
    seed: Seed = 0,
    temperature: Temperature = 1.0,
    top_k: TopK = None,
    top_p: TopP = None,
    context: Context = None,
    dtype: Dtype = "float32",
    origin: Origin = None,
    calendar: CalendarName = None,
) -> None:
    """Draw sample paths and write them: path, step, timestamp, open … amount.

    Of several datasets the table begins with the column series.
    """
    check_target(out)
    with workspace() as store:
        drawing = Drawing(context, seed, temperature, top_k, top_p, dtype)
        request = drawing.request(store, dataset[0], origin, model, horizon, paths)
        request = replace(request, calendar=chosen_calendar(store, dataset[0], calendar))
        if len(dataset) > 1:
            origins = [origin_index(store, one, origin) for one in dataset]
            write(draw_many(store, request, dataset, origins), out)
            return
        row = forecasts.run_now(store, request)
        write(forecasts.load(store, row).to_frame(), out)
        typer.echo(f"{out}: {paths} paths of {horizon} bars, {_change(row)}")


@cli.command()
def sweep(
    dataset: Annotated[str, typer.Option(help="Name or id of a dataset.")],
    vary: Annotated[str, typer.Option(help=f"One of {', '.join(sweeps.SETTINGS)}.")],
    values: Annotated[
        str, typer.Option(help='Its values, as "0.6, 1.0, 1.4"; names of models, with commas.')
    ],
    horizon: Horizon,
    out: Out,
    model: ModelName = "kronos-nano",
    paths: Paths = 100,
    seed: Seed = 0,
    temperature: Temperature = 1.0,
    top_k: TopK = None,
    top_p: TopP = None,
    context: Context = None,
    dtype: Dtype = "float32",
    origin: Origin = None,
) -> None:
    """Draw one forecast for each value of a setting and write all of them, with a column forecast.

    They are stored, so that the page Compare shows them too. Values of origin_index are counted
    in bars before the end.
    """
    check_target(out)
    with workspace() as store:
        drawing = Drawing(context, seed, temperature, top_k, top_p, dtype)
        base = drawing.request(store, dataset, origin, model, horizon, paths)
        asked = sweeps.requests(store, base, vary, _values(vary, values))
        drawn = [forecasts.run_now(store, request, varied=vary) for request in asked]
        for row in drawn:
            typer.echo(f"{row.name}: {_change(row)}")
        frames = {row.name: forecasts.load(store, row).to_frame() for row in drawn}
        write(pd.concat(frames, names=["forecast"]).reset_index(level=0), out)


def _values(vary: str, text: str) -> Sequence[Any]:
    if vary not in sweeps.SETTINGS:
        raise ServiceError(f"--vary must be one of {', '.join(sweeps.SETTINGS)}, got {vary}.")
    if sweeps.SETTINGS[vary].example:
        return sweeps.parse(vary, text)
    return [name for word in text.split(",") if (name := word.strip())]


def _change(row: Forecast) -> str:
    assert row.summary is not None
    return f"median change at the end {row.summary['median_change']:+.2f} %"


def check_target(out: Path) -> None:
    """Before anything is drawn: ServiceError for a file that could not be written."""
    if out.suffix.lower() not in SUFFIXES:
        raise ServiceError(f"--out must end in {' or '.join(SUFFIXES)}, got {out.name}.")
    if not out.absolute().parent.is_dir():
        raise ServiceError(f"There is no folder {out.parent}. Make it first, or write elsewhere.")


def write(frame: pd.DataFrame, out: Path) -> None:
    if out.suffix.lower() == ".csv":
        frame.to_csv(out, index=False)
    else:
        frame.to_parquet(out, index=False)


def origin_index(store: Store, dataset: str, text: str | None) -> int | None:
    """The index of the bar that `--origin` names: a number, or the last bar up to a moment."""
    if text is None:
        return None
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


def chosen_calendar(store: Store, dataset: str, text: str | None) -> dict[str, Any] | None:
    """What `--calendar` names, hours in this dataset's zone; None leaves it to each dataset."""
    if text is None:
        return None
    zone = datasets.get(store, dataset).timezone
    if "/" in text:
        return Calendar.from_dict({"kind": text, "timezone": zone}).to_dict()
    chosen = weekly(zone, text) if ":" in text else exchange(text.upper())
    return chosen.to_dict()


def draw_many(
    store: Store, request: ForecastRequest, names: Sequence[str], origins: Sequence[int | None]
) -> pd.DataFrame:
    """Draws all series in one job, prints a line for each, and returns every path with its series.

    names: of datasets, or their ids; origins: the index of each one's last context bar.
    """
    asked = [
        replace(request, dataset_id=datasets.get(store, name).id, origin_index=origin)
        for name, origin in zip(names, origins, strict=True)
    ]
    batch = batches.run_now(store, asked)
    for row in batches.table(store, batch).itertuples():
        typer.echo(_line(row))
    return batches.all_paths(store, batch)


def _line(row: object) -> str:
    series, state, reason = (getattr(row, name) for name in ("series", "state", "reason"))
    if state != "finished":
        return f"{series}: {state}. {reason or ''}".rstrip()
    change, up, band = (
        100 * getattr(row, name) for name in ("median_change", "probability_up", "band")
    )
    return f"{series}: median change {change:+.2f} %, up {up:.0f} %, 80 % range {band:.2f} % wide"
