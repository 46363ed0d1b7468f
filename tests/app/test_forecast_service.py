"""Forecasts from request to stored paths, cancelling, and what a restart leaves behind."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import pytest

from app.jobs import threads
from app.jobs.threads import ShortJobs
from app.services import dataset_care, datasets, forecasts
from app.services.errors import ServiceError
from app.services.forecasts import ForecastRequest
from app.storage import Store, repository
from app.storage.models import Dataset, Forecast, Model
from kronos_core.data.bars import CHANNELS, PRICES, Series, make_series
from kronos_core.data.calendars import Calendar, future_timestamps, weekly

PENDING = ("queued", "running")
MakeBars = Callable[..., pd.DataFrame]


@pytest.fixture(autouse=True)
def jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[ShortJobs]:
    jobs = ShortJobs()
    monkeypatch.setattr(forecasts, "short_jobs", lambda: jobs)
    yield jobs
    jobs.close()


@pytest.fixture
def request_(dataset: Dataset, model: Model) -> ForecastRequest:
    return ForecastRequest(dataset_id=dataset.id, model_id=model.id, horizon=3, paths=4)


def wait_for(store: Store, row: Forecast, states: tuple[str, ...]) -> Forecast:
    deadline = time.monotonic() + 60
    while (current := forecasts.get(store, row.id)).state not in states:
        assert time.monotonic() < deadline, f"still {current.state}"
        time.sleep(0.02)
    return current


# ---------------------------------------------------------------- drawing


def test_a_submitted_forecast_is_drawn_and_stored(store: Store, request_: ForecastRequest) -> None:
    row = forecasts.submit(store, request_)
    assert row.state == "queued"
    done = wait_for(store, row, ("finished", "failed"))
    assert done.state == "finished", done.reason
    assert (done.step, done.total_steps) == (3, 3)
    loaded = forecasts.load(store, done)
    assert loaded.paths.shape == (4, 3, 6)
    assert done.summary is not None
    assert done.summary["context"] == loaded.context == done.settings["context"]
    assert 0 <= done.summary["probability_up"] <= 1
    assert done.summary["low_80"] <= done.summary["median_close"] <= done.summary["high_80"]
    assert [row.id for row in forecasts.list_forecasts(store)] == [done.id]


def test_a_small_forecast_can_be_waited_for(store: Store, request_: ForecastRequest) -> None:
    row = forecasts.submit(store, request_)
    assert forecasts.soon(store, row.id, 60).state == "finished"
    assert forecasts.soon(store, row.id, 60).state == "finished"


def test_drawing_at_once_gives_the_same_paths(store: Store, request_: ForecastRequest) -> None:
    queued = wait_for(store, forecasts.submit(store, request_), ("finished", "failed"))
    steps: list[tuple[int, int]] = []
    at_once = forecasts.run_now(store, request_, lambda *step: steps.append(step))
    first, second = (forecasts.load(store, row).paths for row in (queued, at_once))
    np.testing.assert_array_equal(first, second)
    assert steps[-1] == (3, 3)


def test_timestamps_are_those_of_the_datasets_wall_clock(
    store: Store, request_: ForecastRequest
) -> None:
    loaded = forecasts.load(store, forecasts.run_now(store, request_))
    assert str(loaded.timestamps.tz) == "America/New_York"


def test_bars_after_the_origin_change_nothing(
    store: Store, request_: ForecastRequest, dataset: Dataset
) -> None:
    bars = store.files.read_bars(dataset.data_hash)
    bars.loc[61:, list(CHANNELS)] *= 3
    series = Series(frame=bars, interval=pd.Timedelta(hours=1), timezone=dataset.timezone)
    other = datasets.add(store, series, name="Another future", source="upload")
    drawn = [
        forecasts.load(
            store,
            forecasts.run_now(store, replace(request_, dataset_id=row.id, origin_index=60)),
        )
        for row in (dataset, other)
    ]
    np.testing.assert_array_equal(drawn[0].paths, drawn[1].paths)


def test_known_timestamps_come_before_inferred_ones(
    store: Store, request_: ForecastRequest, dataset: Dataset
) -> None:
    stamps = pd.DatetimeIndex(datasets.bars(store, dataset)["timestamps"])
    request = replace(request_, origin_index=len(stamps) - 3, horizon=5)
    loaded = forecasts.load(store, forecasts.run_now(store, request))
    assert list(loaded.timestamps[:2]) == list(stamps[-2:])
    assert list(loaded.timestamps[2:]) == list(future_timestamps(stamps, 3))


def test_actual_bars_and_context_lie_around_the_origin(
    store: Store, request_: ForecastRequest, dataset: Dataset
) -> None:
    bars = datasets.bars(store, dataset)
    row = forecasts.run_now(store, replace(request_, origin_index=len(bars) - 3))
    known, before = forecasts.actual(store, row), forecasts.context_bars(store, row, 10)
    pd.testing.assert_frame_equal(known, bars.iloc[-2:].reset_index(drop=True))
    pd.testing.assert_frame_equal(before, bars.iloc[-12:-2].reset_index(drop=True))
    at_the_end = forecasts.run_now(store, request_)
    assert forecasts.actual(store, at_the_end).empty


# ---------------------------------------------------------------- what cannot be


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"horizon": 0}, "Horizon must be at least 1"),
        ({"paths": 0}, "Paths must be at least 1"),
        ({"paths": 1001}, "between 1 and 1000"),
        ({"temperature": 0.0}, "Temperature must be above 0"),
        ({"top_p": 1.5}, "Top_p"),
        ({"top_k": 0}, "Top_k"),
        ({"seed": -1}, "Seed"),
        ({"origin_index": 120}, "one of the 120 bars"),
        ({"origin_index": -1}, "one of the 120 bars"),
        ({"origin_index": 0}, "Choose a later origin"),
        ({"origin_index": 10, "context": 12}, "fewer than the context of 12"),
        ({"context": 1}, "between 2 and 512"),
        ({"context": 513}, "between 2 and 512"),
        ({"dataset_id": "gone"}, "no dataset"),
        ({"model_id": "gone"}, "no model"),
    ],
)
def test_bad_requests_are_refused_and_not_stored(
    store: Store, request_: ForecastRequest, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ServiceError, match=message):
        forecasts.submit(store, replace(request_, **fields))
    assert forecasts.list_forecasts(store) == []


def test_files_that_are_gone_are_named(
    store: Store, request_: ForecastRequest, dataset: Dataset, model: Model
) -> None:
    store.files.delete_model(model.id)
    with pytest.raises(ServiceError, match="files of Tiny are gone"):
        forecasts.submit(store, request_)
    store.files.delete_bars(dataset.data_hash)
    with pytest.raises(ServiceError, match=r"gone|missing"):
        forecasts.submit(store, request_)


def test_files_that_go_while_it_waits_fail_it_with_a_remedy(
    store: Store, request_: ForecastRequest, dataset: Dataset
) -> None:
    row = forecasts._add(store, request_)
    store.files.delete_bars(dataset.data_hash)
    forecasts.draw(store, row.id)
    failed = forecasts.get(store, row.id)
    assert failed.state == "failed"
    assert "Import the data again" in (failed.reason or "")
    with pytest.raises(ServiceError, match="Import the data again"):
        forecasts.load(store, failed)


def test_an_unexpected_error_ends_in_the_row_and_the_log(
    store: Store,
    request_: ForecastRequest,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def explode(*_args: object, **_options: object) -> None:
        raise RuntimeError("surprise")

    monkeypatch.setattr(forecasts, "sample_paths", explode)
    with pytest.raises(ServiceError, match="RuntimeError: surprise"):
        forecasts.run_now(store, request_)
    assert "surprise" in caplog.text


# ---------------------------------------------------------------- cancelling and restarts


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    def sample(*_args: object, progress: Callable[[int, int], None], **_options: object) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            progress(0, 3)
            time.sleep(0.01)

    monkeypatch.setattr(forecasts, "sample_paths", sample)


@pytest.mark.usefixtures("endless")
def test_a_running_and_a_queued_forecast_can_be_cancelled(
    store: Store, request_: ForecastRequest
) -> None:
    first, second = forecasts.submit(store, request_), forecasts.submit(store, request_)
    wait_for(store, first, ("running",))
    assert forecasts.cancel(store, second.id).state == "cancelled"
    with pytest.raises(ServiceError, match="Cancel it first"):
        forecasts.delete(store, first.id)
    forecasts.cancel(store, first.id)
    assert wait_for(store, first, ("cancelled",)).reason == "Cancelled on request."


@pytest.mark.usefixtures("endless")
def test_a_long_forecast_is_waited_for_no_longer_than_asked(
    store: Store, request_: ForecastRequest
) -> None:
    row = forecasts.submit(store, request_)
    assert forecasts.soon(store, row.id, 0.05).state in ("queued", "running")
    forecasts.cancel(store, row.id)
    assert forecasts.soon(store, row.id, 60).state == "cancelled"


@pytest.mark.usefixtures("endless")
def test_a_server_that_stops_says_so(
    store: Store, request_: ForecastRequest, jobs: ShortJobs
) -> None:
    row = forecasts.submit(store, request_)
    wait_for(store, row, ("running",))
    jobs.close()
    row = forecasts.get(store, row.id)
    assert row.state == "failed"
    assert "restart" in (row.reason or "")


@pytest.mark.parametrize("state", PENDING)
def test_only_what_a_dead_process_left_is_marked_as_interrupted(
    store: Store, request_: ForecastRequest, state: str
) -> None:
    living, orphan = forecasts._add(store, request_), forecasts._add(store, request_)
    process = {**orphan.settings["process"], "pid_started": 0.0}
    with store.session() as session:
        settings = {**orphan.settings, "process": process}
        repository.update_row(session, Forecast, orphan.id, settings=settings)
        repository.set_forecast_state(session, orphan.id, state, allowed_from=("queued",))
    assert forecasts.fail_abandoned(store) == 1
    assert forecasts.get(store, living.id).state == "queued"
    failed = forecasts.get(store, orphan.id)
    assert (failed.state, failed.reason) == ("failed", forecasts.INTERRUPTED)


# ---------------------------------------------------------------- stored forecasts


def test_a_shared_file_goes_with_its_last_forecast(store: Store, request_: ForecastRequest) -> None:
    first, second = (forecasts.run_now(store, request_) for _ in range(2))
    with store.session() as session:
        shared = {"content_hash": first.content_hash}
        repository.update_row(session, Forecast, second.id, **shared)
    forecasts.delete(store, first.id)
    second = forecasts.get(store, second.id)
    assert forecasts.load(store, second).paths.shape == (4, 3, 6)
    forecasts.delete(store, second.id)
    with pytest.raises(ServiceError, match="missing"):
        forecasts.load(store, second)
    with pytest.raises(ServiceError, match="no forecast"):
        forecasts.get(store, first.id)


def test_a_forecast_is_renamed(store: Store, request_: ForecastRequest) -> None:
    row = forecasts.run_now(store, request_)
    assert row.name.startswith("Walk, Tiny, 2024-01-0")
    assert forecasts.rename(store, row.id, " Mine ").name == "Mine"
    with pytest.raises(ServiceError):
        forecasts.rename(store, row.id, " ")


def test_two_bundles_are_kept_loaded(monkeypatch: pytest.MonkeyPatch, jobs: ShortJobs) -> None:
    loaded: list[str] = []

    def load(source: str, device: str) -> str:
        loaded.append(source)
        return source

    monkeypatch.setattr(threads, "load_bundle", load)
    for name in ("a", "b", "a", "c", "a", "b"):
        assert jobs.bundle(name, name, "cpu") == name  # type: ignore[comparison-overlap]
    assert loaded == ["a", "b", "c", "b"]


def test_the_origin_is_kept_as_a_moment(store: Store, request_: ForecastRequest) -> None:
    row = forecasts.run_now(store, replace(request_, origin_index=24))
    moment = datetime(2024, 1, 2, tzinfo=UTC)
    assert datetime.fromisoformat(row.settings["origin"]) == moment


# ---------------------------------------------------------------- calendars, changed datasets


def daily(store: Store, frame: pd.DataFrame, name: str, symbol: str | None = None) -> Dataset:
    return datasets.add(store, make_series(frame, symbol=symbol), name=name, source="upload")


def test_forecasts_of_a_known_exchange_skip_its_holidays(store: Store, model: Model) -> None:
    dataset = datasets.add_sample(store, "sp500")  # ends on 31 December 2018
    request = ForecastRequest(dataset_id=dataset.id, model_id=model.id, horizon=14, paths=2)
    row = forecasts.run_now(store, request)
    days = forecasts.load(store, row).timestamps.strftime("%m-%d").tolist()
    assert days[0] == "01-02"  # New Year's Day is closed
    assert "01-21" not in days  # Martin Luther King Day
    assert row.summary is not None
    assert row.summary["calendar"]["exchange"] == "XNYS"
    earlier = forecasts.run_now(store, replace(request, origin_index=dataset.bars - 20))
    assert earlier.summary is not None
    assert earlier.summary["calendar"] is None  # every timestamp is known


def test_a_chosen_calendar_places_the_bars(store: Store, dataset: Dataset, model: Model) -> None:
    hours = weekly("America/New_York", "09:00-17:00").to_dict()
    dataset_care.set_calendar(store, dataset.id, hours)
    row = forecasts.run_now(
        store, ForecastRequest(dataset_id=dataset.id, model_id=model.id, horizon=20, paths=2)
    )
    stamps = forecasts.load(store, row).timestamps
    assert set(stamps.hour) <= set(range(9, 18))
    assert set(stamps.day_of_week) <= {0, 1, 2, 3, 4}


def test_a_forecast_may_have_a_calendar_of_its_own(store: Store, model: Model) -> None:
    dataset = datasets.add_sample(store, "sp500")  # ends on 31 December 2018, a Monday
    chosen = {"kind": "24/7", "closed": ["2019-01-03"]}
    request = ForecastRequest(
        dataset_id=dataset.id, model_id=model.id, horizon=5, paths=2, calendar=chosen
    )
    row = forecasts.run_now(store, request)
    days = forecasts.load(store, row).timestamps.strftime("%m-%d").tolist()
    assert days == ["01-01", "01-02", "01-04", "01-05", "01-06"]
    assert row.settings["calendar"] == Calendar.from_dict(chosen).to_dict()
    assert row.summary is not None
    assert row.summary["calendar"] == row.settings["calendar"]
    assert datasets.get(store, dataset.id).calendar is None
    # Known bars keep their times: only what lies after them follows the calendar.
    earlier = forecasts.run_now(store, replace(request, origin_index=dataset.bars - 3))
    days = forecasts.load(store, earlier).timestamps.strftime("%m-%d").tolist()
    assert days == ["12-28", "12-31", "01-01", "01-02", "01-04"]


def test_an_impossible_calendar_is_refused_before_the_draw(
    store: Store, request_: ForecastRequest
) -> None:
    wrong = {"kind": "sessions", "hours": ["nine to five", *[""] * 6]}
    with pytest.raises(ServiceError, match="nine to five"):
        forecasts.submit(store, replace(request_, calendar=wrong))
    assert forecasts.list_forecasts(store) == []


@pytest.mark.parametrize(
    ("factor", "expected"), [(1.0, 3), (0.5, 0)], ids=["continued", "restated after a split"]
)
def test_later_bars_are_shown_only_on_the_scale_of_the_forecast(
    store: Store, model: Model, make_bars: MakeBars, factor: float, expected: int
) -> None:
    whole = make_bars(90)
    dataset = daily(store, whole[:80], "Daily")
    request = ForecastRequest(dataset_id=dataset.id, model_id=model.id, horizon=3, paths=2)
    at_the_end = forecasts.run_now(store, request)
    in_the_past = forecasts.run_now(store, replace(request, origin_index=60))
    before = forecasts.actual(store, in_the_past)
    restated = whole.assign(**{name: whole[name] * factor for name in PRICES})
    restated.loc[79, "close"] *= 1.0001  # the last bar is corrected once
    restated.loc[79, "high"] *= 1.01
    dataset_care.replace_original(store, dataset, restated, [])
    after = forecasts.actual(store, at_the_end)
    assert len(after) == expected
    if expected:
        assert after["close"].tolist() == whole["close"][80:83].tolist()
    # These were known when the forecast was drawn, on its own scale.
    pd.testing.assert_frame_equal(forecasts.actual(store, in_the_past), before)


def test_bars_go_with_the_last_that_needs_them(
    store: Store, model: Model, make_bars: MakeBars
) -> None:
    dataset = daily(store, make_bars(80), "Daily")
    request = ForecastRequest(dataset_id=dataset.id, model_id=model.id, horizon=3, paths=2)
    row = forecasts.run_now(store, request)
    dataset_care.replace_original(store, dataset, make_bars(80, seed=1), [])
    path = store.files.bars_path(row.data_hash)
    assert path.exists()
    forecasts.delete(store, row.id)
    assert not path.exists()
    assert store.files.bars_path(datasets.get(store, dataset.id).data_hash).exists()
