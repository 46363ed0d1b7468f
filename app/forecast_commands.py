"""Commands over several series at once."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import typer

from app.services import batches, datasets
from app.services.forecasts import ForecastRequest
from app.storage import Store
from kronos_core.data.calendars import Calendar, exchange, weekly


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
