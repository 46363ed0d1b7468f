"""Sweeps, what tells forecasts apart, their figures, and memory known before the start."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from app.jobs.threads import ShortJobs
from app.services import compare, forecast_costs, forecasts, memory, models, runs, sweeps
from app.services.errors import ServiceError
from app.services.forcing_labels import forcing_choices
from app.services.forecasts import ForecastRequest
from app.storage import Store
from app.storage.models import Dataset, Forecast, Model
from app.ui import charts_fans
from kronos_core.model.outline import outline
from kronos_core.model.zoo import load_bundle, resolve_device
from tests.tuned import tuned


@pytest.fixture(autouse=True)
def jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[ShortJobs]:
    jobs = ShortJobs()
    monkeypatch.setattr(forecasts, "short_jobs", lambda: jobs)
    yield jobs
    jobs.close()


@pytest.fixture
def base(dataset: Dataset, model: Model) -> ForecastRequest:
    """A past origin: 20 actual bars are known after it."""
    return ForecastRequest(
        dataset_id=dataset.id, model_id=model.id, horizon=6, paths=40, origin_index=99
    )


def drawn(store: Store, base: ForecastRequest, setting: str, values: list[Any]) -> list[Forecast]:
    return [forecasts.run_now(store, one) for one in sweeps.requests(store, base, setting, values)]


# ---------------------------------------------------------------- sweeps


def test_values_are_read_as_typed() -> None:
    assert sweeps.parse("temperature", "0.6, 1;1.4 2") == [0.6, 1.0, 1.4, 2.0]
    assert sweeps.parse("context", "30 60") == [30, 60]


@pytest.mark.parametrize(
    ("setting", "text", "message"),
    [
        ("temperature", "warm, 1", '"warm" is no number'),
        ("context", "30, 60.5", "no whole number"),
        ("seed", "1", "2 to 8 values"),
        ("seed", "1,2,3,4,5,6,7,8,9", "2 to 8 values"),
        ("top_p", "0.9 0.90", "given twice"),
    ],
)
def test_values_that_are_none(setting: str, text: str, message: str) -> None:
    with pytest.raises(ServiceError, match=message):
        sweeps.parse(setting, text)


def test_a_sweep_is_queued_only_as_a_whole(store: Store, base: ForecastRequest) -> None:
    with pytest.raises(ServiceError, match="Temperature must be above 0"):
        sweeps.submit(
            store, sweeps.requests(store, base, "temperature", [1.0, -1.0]), "temperature"
        )
    with pytest.raises(ServiceError, match="0 to 119 bars before the end"):
        sweeps.requests(store, base, "origin_index", [0, 500])
    assert forecasts.list_forecasts(store) == []
    rows = sweeps.submit(
        store, sweeps.requests(store, base, "origin_index", [20, 10]), "origin_index"
    )
    assert [row.settings["origin_index"] for row in rows] == [99, 109]
    assert rows[0].name == "Walk, origin 20 bars before the end"


def test_models_by_their_teacher_forcing(
    store: Store, base: ForecastRequest, dataset: Dataset, model: Model
) -> None:
    own = tuned(store, model, dataset, "own", "First")
    twin = tuned(store, model, dataset, "own", "Second")
    fading = tuned(store, model, dataset, "linear:1:0.25", "Third")
    stored = models.list_models(store)
    assert {row.id for row in forcing_choices(stored)} == {own.id, twin.id, fading.id, model.id}
    asked = sweeps.requests(store, base, "teacher_forcing", [own.id, fading.id, "Tiny"])
    assert [one.model_id for one in asked] == [own.id, fading.id, model.id]
    rows = sweeps.submit(store, asked, "teacher_forcing")
    assert rows[1].name == "Walk, ε linear:1:0.25"
    assert compare.labels(store, rows) == ["ε own", "ε linear:1:0.25", "untuned"]
    alike = sweeps.requests(store, base, "teacher_forcing", [own.id, twin.id])
    rows = sweeps.submit(store, alike, "teacher_forcing")
    assert compare.labels(store, rows) == ["ε own, First", "ε own, Second"]
    by_name = sweeps.requests(store, base, "model_id", [own.id, fading.id])
    assert compare.labels(store, sweeps.submit(store, by_name, "model_id")) == ["First", "Third"]


def test_teacher_forcing_of_a_deleted_run(
    store: Store, base: ForecastRequest, dataset: Dataset, model: Model
) -> None:
    own = tuned(store, model, dataset, "own", "First")
    asked = sweeps.requests(store, base, "teacher_forcing", [own.id, model.id])
    rows = sweeps.submit(store, asked, "teacher_forcing")
    runs.cancel(store, str(own.run_id))
    runs.delete(store, str(own.run_id))
    assert compare.labels(store, rows) == ["First", "untuned"]
    assert forcing_choices(models.list_models(store)) == []
    with pytest.raises(ServiceError, match="runs that First came from were deleted"):
        sweeps.requests(store, base, "teacher_forcing", [own.id, model.id])


# ---------------------------------------------------------------- what it takes


def test_the_cost_of_a_sweep(
    store: Store, base: ForecastRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = sweeps.requests(store, base, "context", [30, 60])
    cost = forecast_costs.one_by_one(store, asked)
    needs = [forecasts.estimate(store, one) for one in asked]
    assert (cost.forecasts, cost.seconds) == (2, None)
    assert cost.need.total == max(need.total for need in needs)
    row = forecasts.run_now(store, base)
    seconds = (row.summary or {})["seconds"]
    assert forecast_costs.one_by_one(store, asked).seconds == pytest.approx(2 * seconds)
    double = replace(base, paths=2 * base.paths)
    assert forecast_costs.one_by_one(store, [double]).seconds == pytest.approx(2 * seconds)
    monkeypatch.setattr(memory, "SHARE", 1e-9)
    with pytest.raises(ServiceError, match="GB may be used"):
        forecast_costs.one_by_one(store, asked)


# ---------------------------------------------------------------- comparing


def test_the_setting_that_differs_is_the_label(store: Store, base: ForecastRequest) -> None:
    rows = drawn(store, base, "temperature", [0.5, 1.0])
    assert compare.labels(store, rows) == ["temperature 0.5", "temperature 1.0"]
    rows += drawn(store, replace(base, context=16), "seed", [3, 3 + 1])
    assert compare.labels(store, rows)[2] == "context 16, temperature 1.0, seed 3"
    own = forecasts.run_now(store, replace(base, origin_index=None, calendar={"kind": "24/7"}))
    plain = forecasts.run_now(store, replace(base, origin_index=None))
    assert compare.labels(store, [own, plain]) == ["calendar 24/7", "calendar of the dataset"]
    same = [rows[0], rows[0]]
    first, second = compare.labels(store, same)
    assert first != second


def test_figures_and_scores(store: Store, base: ForecastRequest) -> None:
    rows = drawn(store, base, "temperature", [0.3, 1.5])
    rows.append(forecasts.run_now(store, replace(base, origin_index=None)))
    compared, problems = compare.load(store, rows, past=10)
    assert problems == []
    table = compare.figures(compared, step=3)
    assert table["spread"][0] < table["spread"][1]
    assert list(table["scored"].fillna(0)) == [6, 6, 0]
    own = compared[0].forecast.scores(compared[0].actual)
    assert table["crps"][0] == pytest.approx(own.mean_crps / compared[0].forecast.last_close)
    assert table["low_80"][0] <= table["high_80"][0]


def test_what_is_gone_is_said(store: Store, base: ForecastRequest) -> None:
    rows = drawn(store, base, "seed", [0, 1])
    store.files.delete_forecast(str(rows[1].content_hash))
    found, problems = compare.find(store, [rows[0].id, "nothing", rows[1].id])
    assert [row.id for row in found] == [row.id for row in rows]
    assert "nothing" in problems[0]
    compared, problems = compare.load(store, found, past=10)
    assert len(compared) == 1
    assert "Make the forecast again" in problems[0]


@pytest.mark.parametrize("relative", [False, True])
def test_pictures_share_one_range_and_bands_are_nested(
    store: Store, base: ForecastRequest, relative: bool
) -> None:
    compared, _ = compare.load(store, drawn(store, base, "temperature", [0.5, 1.0, 1.5]), past=10)
    scale = charts_fans.scale_for(compared, relative)
    figure = charts_fans.small_multiples(compared, scale, step=2, entity="x")
    ranges = {tuple(axis.range) for axis in figure.select_yaxes()}
    assert len(ranges) == 1
    bottom, top = ranges.pop()
    for one in compared:
        edges = [charts_fans.bands(one, scale)[share] for share in (0.95, 0.8, 0.5)]
        for (low, high), (lower, upper) in itertools.pairwise(edges):
            assert (low <= lower).all()
            assert (upper <= high).all()
        assert bottom <= edges[0][0].min() <= edges[0][1].max() <= top
    assert [note.text for note in figure.layout.annotations] == [one.label for one in compared]
    over = charts_fans.overlay(compared, scale, step=2, entity="x")
    medians = [trace for trace in over.data if trace.name in [one.label for one in compared]]
    assert [trace.line.color for trace in medians] == list(charts_fans.COLOURS[:3])
    violins = charts_fans.distributions(compared, scale, step=2, entity="x")
    assert sum(trace.type == "violin" for trace in violins.data) == 3
    assert sum(trace.name == "actual" for trace in violins.data) == 3


def test_overlay_of_different_origins_lies_on_one_time_axis(
    store: Store, base: ForecastRequest
) -> None:
    compared, _ = compare.load(store, drawn(store, base, "origin_index", [40, 20]), past=10)
    figure = charts_fans.overlay(
        compared, charts_fans.scale_for(compared, False), step=5, entity="x"
    )
    starts = [trace.x[0] for trace in figure.data if trace.name in [c.label for c in compared]]
    assert starts[0] < starts[1]


# ---------------------------------------------------------------- memory and files


def test_an_outline_is_the_bundle_without_its_weights(store: Store, model: Model) -> None:
    folder = store.files.root / model.folder
    shape, whole = outline(folder, resolve_device("cpu")), load_bundle(folder, device="cpu")
    assert shape.parameters == whole.parameters
    assert (shape.max_context, shape.s2_rotary) == (whole.max_context, whole.s2_rotary)
    assert shape.predictor.config == whole.predictor.config
    assert outline("kronos-nano", resolve_device("cpu")).parameters == 209_216


def test_more_paths_than_memory_allows(
    store: Store, base: ForecastRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    need = forecasts.estimate(store, base)
    assert need.drawing > 0
    assert need.total < need.allowed
    half = (need.drawing + need.results // 2) / need.allowed
    monkeypatch.setattr(memory, "SHARE", memory.SHARE * half)
    with pytest.raises(ServiceError, match=r"draw at most \d+ paths, or shorten the horizon"):
        forecasts.submit(store, base)
    monkeypatch.undo()
    monkeypatch.setattr(memory, "default_budget", lambda _: 1000)
    with pytest.raises(ServiceError, match="take a smaller model"):
        forecasts.estimate(store, base)


def test_a_checkpoint_whose_weights_are_gone(
    store: Store, base: ForecastRequest, model: Model
) -> None:
    (store.files.root / model.folder / "predictor" / "model.safetensors").unlink()
    with pytest.raises(ServiceError, match=r"files of Tiny are gone.*import it again"):
        forecasts.submit(store, base)


def test_weights_that_go_while_it_waits(store: Store, base: ForecastRequest, model: Model) -> None:
    row = forecasts._add(store, base)
    (store.files.root / model.folder / "predictor" / "model.safetensors").unlink()
    forecasts.draw(store, row.id)
    row = forecasts.get(store, row.id)
    assert row.state == "failed"
    assert "import it again" in (row.reason or "")


def test_the_number_format_is_kept_and_checked(store: Store, base: ForecastRequest) -> None:
    row = forecasts.run_now(store, replace(base, dtype="bfloat16"))
    assert row.settings["dtype"] == "bfloat16"
    assert forecasts.load(store, row).provenance["dtype"] == "bfloat16"
    with pytest.raises(ServiceError, match="float32, bfloat16"):
        forecasts.submit(store, replace(base, dtype="int3"))
