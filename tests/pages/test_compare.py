"""Compare: the empty page, a sweep, chosen forecasts, and many series."""

import pytest

from app.services import batches, datasets, forecasts, memory, models, sweeps
from app.services.forecasts import ForecastRequest
from tests.pages.helpers import button, checked, settled, words
from tests.tuned import tuned


def charts(page) -> list[str]:
    return [found.key for found in page.get("plotly_chart")]


@pytest.fixture
def swept(store, sample):
    base = ForecastRequest(
        dataset_id=sample.id,
        model_id="kronos-nano",
        horizon=5,
        paths=8,
        context=32,
        origin_index=sample.bars - 4,
    )
    asked = sweeps.requests(store, base, "temperature", [0.5, 1.0, 1.5])
    rows = sweeps.submit(store, asked, "temperature")
    return [settled(store, row.id) for row in rows]


@pytest.fixture
def batch(store, sample):
    other = datasets.add_sample(store, "nasdaq")
    asked = [
        ForecastRequest(dataset_id=one, model_id="kronos-nano", horizon=4, paths=6, context=32)
        for one in (sample.id, other.id)
    ]
    return batches.run_now(store, asked)


def test_empty_workspace(open_page, store):
    page = open_page("compare")
    button(page, "Open the S&P 500 sample").click()
    checked(page.run())
    assert datasets.list_datasets(store)
    assert "vary one setting" in words(page)


def test_three_temperatures_on_one_click(open_page, store, sample):
    page = open_page("compare")
    button(page, "Compare three temperatures").click()
    checked(page.run())
    rows = forecasts.list_forecasts(store)
    assert sorted(row.settings["temperature"] for row in rows) == [0.6, 1.0, 1.4]
    assert set(page.query_params["forecasts"].split(",")) == {row.id for row in rows}


def test_forecasts_side_by_side(open_page, swept):
    page = open_page("compare", forecasts=",".join(row.id for row in swept), bar="2")
    assert charts(page) == ["fans", "distributions"]
    table = page.dataframe[0].value
    assert list(table["Forecast"]) == ["temperature 0.5", "temperature 1.0", "temperature 1.5"]
    assert list(table["Bars scored"]) == [3, 3, 3]
    assert "Close at bar 2" in words(page)
    page.segmented_control(key="view").set_value("Overlay")
    page.segmented_control(key="values").set_value("Change in %")
    checked(page.run())
    assert "medians with bands of 80 %" in words(page)


def test_a_forecast_that_is_gone_is_said(open_page, store, swept):
    store.files.delete_forecast(swept[0].content_hash)
    page = open_page("compare", forecasts=f"{swept[0].id},{swept[1].id},nothing")
    said = " ".join(error.value for error in page.error)
    assert "nothing" in said
    assert "Make the forecast again" in said
    assert len(page.dataframe[0].value) == 1


def test_a_sweep_of_bad_values_is_explained(open_page, store, sample):
    page = open_page("compare")
    page.text_input(key="sweep-values-temperature").set_value("warm, 1")
    button(page, "Queue them").click()
    checked(page.run())
    assert "warm" in page.error[0].value
    assert forecasts.list_forecasts(store) == []


def test_a_sweep_says_what_it_takes(open_page, store, sample, monkeypatch):
    page = open_page("compare")
    assert "3 forecasts. Drawing takes about" in words(page)
    assert "How long it takes is known after the first forecast" in words(page)
    monkeypatch.setattr(memory, "SHARE", 1e-6)
    checked(page.run())
    assert "This cannot be drawn" in words(page)
    assert "GB may be used" in words(page)
    button(page, "Queue them").click()
    checked(page.run())
    assert "shorten the horizon" in page.error[0].value
    assert forecasts.list_forecasts(store) == []


def test_models_are_compared_by_their_teacher_forcing(open_page, store, sample):
    page = open_page("compare")
    page.selectbox(key="sweep-setting").set_value("teacher_forcing")
    checked(page.run())
    assert "No model was fine-tuned yet" in words(page)
    nano = models.get(store, "kronos-nano")
    made = [tuned(store, nano, sample, text, text) for text in ("own", "true")]
    checked(page.run())
    choice = page.multiselect(key="sweep-models-teacher_forcing")
    assert set(choice.options) == {"ε own", "ε true", "untuned"}
    choice.set_value([row.id for row in made])
    page.number_input(key="sweep-horizon").set_value(3)
    page.number_input(key="sweep-paths").set_value(4)
    button(page, "Queue them").click()
    checked(page.run())
    rows = [settled(store, row.id) for row in forecasts.list_forecasts(store)]
    assert {row.model_id for row in rows} == {row.id for row in made}
    page = open_page("compare", forecasts=",".join(row.id for row in rows))
    assert set(page.dataframe[0].value["Forecast"]) == {"ε own", "ε true"}


def test_many_series(open_page, store, batch):
    page = open_page("compare", show="Many series", batch=batch.id)
    table = page.dataframe[0].value
    assert list(table["Series"]) == [row.name.split(",")[0] for row in batch.rows]
    assert table["Fan"].str.startswith("data:image/svg+xml").all()
    assert not page.error


def test_a_series_that_is_not_drawn_has_no_values(open_page, store, sample):
    request = ForecastRequest(dataset_id=sample.id, model_id="kronos-nano", horizon=4, paths=6)
    batch_id = batches._add(store, [request])  # nobody draws it
    page = open_page("compare", show="Many series", batch=batch_id)
    table = page.dataframe[0]
    assert table.value["Median move"].isna().all()
    assert table.value["Median move"].dtype == float  # sorts as a number
    assert table.proto.placeholder == "–"


def test_many_series_are_queued_as_one_job(open_page, store, sample):
    datasets.add_sample(store, "nasdaq")
    page = open_page("compare", show="Many series")
    page.number_input(key="batch-horizon").set_value(3)
    page.number_input(key="batch-paths").set_value(4)
    checked(page.run())
    assert "2 forecasts. Drawing takes about" in words(page)
    button(page, "Forecast all").click()
    checked(page.run())
    (made,) = batches.list_batches(store)
    assert page.query_params["batch"] == made.id
    assert {settled(store, row.id).state for row in made.rows} == {"finished"}


def test_no_series_is_explained(open_page, store, sample):
    page = open_page("compare", show="Many series")
    page.multiselect(key="batch-datasets").set_value([])
    button(page, "Forecast all").click()
    checked(page.run())
    assert "Choose at least one dataset" in page.error[0].value


def test_an_unknown_job_is_said(open_page, batch):
    page = open_page("compare", show="Many series", batch="nothing")
    assert "nothing" in page.error[0].value
    assert len(page.dataframe) == 1
