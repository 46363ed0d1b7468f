"""Many series in one job: stored like single forecasts, cancelled, and what goes wrong alone."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from app.jobs.threads import ShortJobs
from app.services import batches, datasets, forecast_costs, forecasts, memory
from app.services.errors import ServiceError
from app.services.forecasts import ForecastRequest
from app.storage import Store
from app.storage.models import Dataset, Model
from app.ui import small_fan
from kronos_core.data.bars import Series


@pytest.fixture(autouse=True)
def jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[ShortJobs]:
    jobs = ShortJobs()
    for module in (forecasts, batches):
        monkeypatch.setattr(module, "short_jobs", lambda: jobs)
    yield jobs
    jobs.close()


@pytest.fixture
def requests(
    store: Store, dataset: Dataset, model: Model, make_bars: Callable[..., pd.DataFrame]
) -> list[ForecastRequest]:
    """Three series of different lengths."""
    ids = [dataset.id]
    for number, length in enumerate((20, 64), start=1):
        frame = make_bars(length, step="h", seed=number)
        series = Series(frame=frame, interval=pd.Timedelta(hours=1), timezone="UTC")
        ids.append(datasets.add(store, series, name=f"Other {number}", source="upload").id)
    shared = {"model_id": model.id, "horizon": 4, "paths": 5}
    return [ForecastRequest(dataset_id=one, **shared) for one in ids]  # type: ignore[arg-type]


def test_each_series_equals_its_own_forecast(store: Store, requests: list[ForecastRequest]) -> None:
    steps: list[tuple[int, int]] = []
    batch = batches.run_now(store, requests, lambda *step: steps.append(step))
    assert [row.dataset_id for row in batch.rows] == [one.dataset_id for one in requests]
    assert steps[-1][0] == steps[-1][1]
    for row, request in zip(batch.rows, requests, strict=True):
        together = forecasts.load(store, row)
        alone = forecasts.load(store, forecasts.run_now(store, request))
        np.testing.assert_allclose(together.paths, alone.paths, rtol=1e-5)
        assert list(together.timestamps) == list(alone.timestamps)


def test_a_short_series_gives_what_it_has(store: Store, requests: list[ForecastRequest]) -> None:
    batch = batches.run_now(store, [replace(one, context=32) for one in requests])
    assert [row.settings["context"] for row in batch.rows] == [32, 20, 32]
    assert [forecasts.load(store, row).context for row in batch.rows] == [32, 20, 32]


def test_table_and_export(store: Store, requests: list[ForecastRequest]) -> None:
    batch = batches.get(store, batches.run_now(store, requests).id)
    table = batches.table(store, batch)
    assert list(table["series"]) == ["Walk", "Other 1", "Other 2"]
    assert (table["band"] > 0).all()
    row = batch.rows[0]
    assert row.summary is not None
    assert table["median_change"][0] == pytest.approx(row.summary["median_change"] / 100)
    drawn = table["sketch"][0]
    assert drawn["low"] <= drawn["median"] <= drawn["high"]
    assert str(small_fan.picture(drawn)).startswith("data:image/svg+xml")
    paths = batches.all_paths(store, batch)
    assert len(paths) == 3 * 5 * 4
    assert list(paths.columns[:4]) == ["series", "path", "step", "timestamp"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda asked: [], "at least one dataset"),
        (lambda asked: [asked[0], asked[0]], "named twice"),
        (lambda asked: [asked[0], replace(asked[1], seed=9)], "share all settings"),
        (lambda asked: [replace(one, horizon=0) for one in asked], "Walk: Horizon must be"),
        (lambda asked: [asked[0], replace(asked[1], dataset_id="gone")], "no dataset"),
        (lambda asked: [asked[0], replace(asked[1], origin_index=0)], "later origin"),
    ],
)
def test_what_cannot_be_queues_nothing(
    store: Store,
    requests: list[ForecastRequest],
    change: Callable[[list[ForecastRequest]], list[ForecastRequest]],
    message: str,
) -> None:
    with pytest.raises(ServiceError, match=message):
        batches.submit(store, change(requests))
    assert forecasts.list_forecasts(store) == []


def test_too_much_for_the_memory_together(
    store: Store, requests: list[ForecastRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = forecasts.estimate(store, requests[0])
    cost = forecast_costs.together(store, requests)
    assert (cost.forecasts, cost.seconds) == (3, None)
    assert cost.need.total > 1.5 * one.total, (cost, one)
    share = memory.SHARE * 1.5 * one.total / one.allowed  # free memory changes meanwhile
    monkeypatch.setattr(memory, "SHARE", share)
    for ask in (batches.submit, forecast_costs.together):
        with pytest.raises(ServiceError, match="for 3 series need about"):
            ask(store, requests)


def test_files_that_are_gone_fail_their_series_alone(
    store: Store, requests: list[ForecastRequest], dataset: Dataset
) -> None:
    batch_id = batches._add(store, requests)
    store.files.delete_bars(dataset.data_hash)
    batches.draw(store, batch_id)
    rows = batches.get(store, batch_id).rows
    assert [row.state for row in rows] == ["failed", "finished", "finished"]
    assert "Import the data again" in (rows[0].reason or "")


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    def sample(*_args: object, progress: Callable[[int, int], None], **_options: object) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            progress(1, 4)
            time.sleep(0.01)

    monkeypatch.setattr(batches, "sample_many", sample)


def wait_for(store: Store, batch_id: str, states: set[str]) -> None:
    deadline = time.monotonic() + 30
    while {row.state for row in batches.get(store, batch_id).rows} != states:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.usefixtures("endless")
def test_cancel_ends_all_and_one_alone_ends_nothing_else(
    store: Store, requests: list[ForecastRequest]
) -> None:
    batch_id = batches.submit(store, requests)
    wait_for(store, batch_id, {"running"})
    first = batches.get(store, batch_id).rows[0]
    forecasts.cancel(store, first.id)
    time.sleep(3 * forecasts.PROGRESS_SECONDS)
    assert batches.get(store, batch_id).rows[1].state == "running"
    batches.cancel(store, batch_id)
    wait_for(store, batch_id, {"cancelled"})


@pytest.mark.usefixtures("endless")
def test_a_server_that_stops_says_so(
    store: Store, requests: list[ForecastRequest], jobs: ShortJobs
) -> None:
    batch_id = batches.submit(store, requests)
    wait_for(store, batch_id, {"running"})
    jobs.close()
    rows = batches.get(store, batch_id).rows
    assert {row.state for row in rows} == {"failed"}
    assert "restart" in (rows[0].reason or "")
