"""Forecast: drawing, reading and deleting fans."""

from datetime import date, timedelta

import pytest

from app.services import datasets, forecasts, memory
from app.ui import export
from kronos_core.data.bars import CHANNELS
from tests.pages.helpers import button, checked, field, settled, words


def number(page, label: str):
    return next(field for field in page.number_input if field.label == label)


def charts(page) -> list[str]:
    """The keys of the charts; a fan whose target can be dragged is a component of ours."""
    parts = [found.proto.id.rsplit("-", 1)[-1] for found in page.get("bidi_component")]
    return [found.key for found in page.get("plotly_chart")] + parts


def test_empty_page_opens_the_sample_on_one_click(open_page, store):
    page = open_page("forecast")
    button(page, "Open the S&P 500 sample").click()
    checked(page.run())
    assert datasets.list_datasets(store)
    assert "Press Draw" in words(page)


def test_draw(open_page, store, sample):
    page = open_page("forecast", dataset=sample.id)
    number(page, "Horizon").set_value(6)
    number(page, "Paths").set_value(9)
    number(page, "Bars before the end").set_value(3)
    button(page, "Draw").click()
    checked(page.run())
    (row,) = forecasts.list_forecasts(store)
    assert page.query_params["forecast"] == row.id
    row = settled(store, row.id)
    assert row.state == "finished", row.reason
    assert row.settings["origin_index"] == sample.bars - 4
    page = open_page("forecast", forecast=row.id)
    assert number(page, "Bars before the end").value == 3
    assert "fan" in charts(page)


def test_the_origin_by_date(open_page, store, sample):
    stamps = datasets.bars(store, sample)["timestamps"]
    page = open_page("forecast", dataset=sample.id)

    def origin_date():
        return field(page.date_input, "Origin date")

    assert origin_date().value == stamps.iloc[-1].date()
    number(page, "Bars before the end").set_value(7)
    checked(page.run())
    assert origin_date().value == stamps.iloc[-8].date()
    origin_date().set_value(date(2018, 12, 2))  # a Sunday
    checked(page.run())
    assert origin_date().value == date(2018, 11, 30)
    index = int((stamps.dt.date <= date(2018, 12, 2)).sum()) - 1
    assert number(page, "Bars before the end").value == sample.bars - 1 - index
    assert "The model sees the bars up to 2018-11-30" in words(page)


@pytest.mark.parametrize("years", [-1, 1])
def test_an_origin_outside_of_the_data(open_page, store, sample, years):
    stamps = datasets.bars(store, sample)["timestamps"]
    page = open_page("forecast", dataset=sample.id)
    outside = stamps.iloc[0 if years < 0 else -1].date() + timedelta(days=366 * years)
    field(page.date_input, "Origin date").set_value(outside)
    checked(page.run())
    assert f"between {stamps.iloc[1].date()} and {stamps.iloc[-1].date()}" in page.error[0].value
    assert field(page.date_input, "Origin date").value == stamps.iloc[-1].date()
    assert number(page, "Bars before the end").value == 0
    checked(page.run())
    assert not page.error


def test_fan_with_actual_bars(open_page, drawn):
    page = open_page("forecast", forecast=drawn.id, tab="Table")
    assert "3 actual bars drawn over the fan" in words(page)
    assert [found.label for found in page.metric][:2] == ["Median move", "P(up)"]
    assert len(page.dataframe[0].value) == 5


@pytest.mark.parametrize("channel", CHANNELS)
def test_every_channel(open_page, drawn, channel):
    page = open_page("forecast", forecast=drawn.id, tab="Table")
    page.segmented_control(key="channel").set_value(channel)
    checked(page.run())
    assert f"{channel.capitalize()}, times in" in words(page)


def test_scores_of_a_past_origin(open_page, drawn):
    page = open_page("forecast", forecast=drawn.id)
    shown = {found.label: found.value for found in page.metric}
    assert "Close against 3 actual bars" in words(page)
    assert {"CRPS", "MAE of the median", "Inside the 80 % band"} <= set(shown)


def test_the_chosen_bar_and_the_target(open_page, drawn):
    page = open_page("forecast", forecast=drawn.id, tab="Distribution", bar="2", target="2,900")
    assert "At bar 2" in words(page)
    shown = {found.label: found.value for found in page.metric}
    assert shown["P(touch target)"].endswith("%")
    assert {"distribution", "chances"} <= set(charts(page))
    page.text_input(key="target").set_value("dear")
    checked(page.run())
    assert "Type a price such as 1234.5" in page.error[0].value
    assert "P(touch target)" not in [found.label for found in page.metric]


def test_a_target_line_without_typing(open_page, store, drawn):
    page = open_page("forecast", forecast=drawn.id)
    button(page, "Add a target").click()
    checked(page.run())
    edge = forecasts.load(store, drawn).quantiles([0.9])[0, -1]
    assert float(page.text_input(key="target").value) == pytest.approx(edge, rel=1e-4)
    assert "P(touch target)" in [found.label for found in page.metric]
    assert "Add a target" not in [found.label for found in page.button]


def test_a_new_draw_beside_a_chosen_bar_and_target(open_page, store, drawn):
    page = open_page("forecast", forecast=drawn.id, bar="4", target="2900", tab="Table")
    number(page, "Horizon").set_value(1)
    button(page, "Draw").click()
    checked(page.run())
    row = settled(store, page.query_params["forecast"])
    assert row.id != drawn.id
    page = open_page("forecast", forecast=row.id)
    assert "At bar 1" in words(page)


def test_paths_start_with_the_most_typical_one(open_page, store, drawn):
    typical = forecasts.load(store, drawn).medoid()
    page = open_page("forecast", forecast=drawn.id)
    assert number(page, "Path").value == typical
    assert "the most typical" in words(page)
    button(page, "Next").click()
    checked(page.run())
    assert number(page, "Path").value == (typical + 1) % 8
    button(page, "Most typical").click()
    checked(page.run())
    assert number(page, "Path").value == typical


def test_downloads_say_what_a_picture_needs(open_page, drawn, monkeypatch):
    monkeypatch.setattr(export, "browser", lambda: None)
    page = open_page("forecast", forecast=drawn.id, tab="Download")
    assert "Install one or name it in BROWSER_PATH" in words(page)


def test_memory_is_said_before_and_refused_with_the_remedy(open_page, store, sample, monkeypatch):
    page = open_page("forecast", dataset=sample.id)
    assert "Drawing takes about" in words(page)
    monkeypatch.setattr(memory, "SHARE", 1e-6)
    button(page, "Draw").click()
    checked(page.run())
    assert "GB may be used" in page.error[0].value
    assert "shorten the horizon" in page.error[0].value
    assert forecasts.list_forecasts(store) == []


def test_a_dataset_that_goes_meanwhile(open_page, store, sample):
    page = open_page("forecast", dataset=sample.id)
    datasets.delete(store, sample.id)
    button(page, "Draw").click()
    checked(page.run())
    assert "A forecast needs bars" in words(page)


def test_impossible_wish_is_explained(open_page, store, sample):
    page = open_page("forecast")
    number(page, "Bars before the end").set_value(sample.bars - 2)
    number(page, "Context (bars)").set_value(64)
    button(page, "Draw").click()
    checked(page.run())
    assert "later origin" in page.error[0].value
    assert forecasts.list_forecasts(store) == []


def test_settings_beyond_the_fields_can_still_be_looked_at(open_page, store, sample):
    """A command line may draw what the page's fields do not offer."""
    request = forecasts.ForecastRequest(
        dataset_id=sample.id,
        model_id="kronos-nano",
        horizon=2,
        paths=3,
        context=16,
        seed=2**33,
        temperature=3.5,
        top_k=9000,
    )
    row = settled(store, forecasts.submit(store, request).id)
    assert row.state == "finished", row.reason
    page = open_page("forecast", forecast=row.id)
    assert "fan" in charts(page)


def test_a_calendar_for_this_forecast_alone(open_page, store, sample):
    page = open_page("forecast", dataset=sample.id)
    number(page, "Horizon").set_value(4)
    number(page, "Paths").set_value(3)
    assert field(page.selectbox, "Calendar").value == "The dataset's own"
    field(page.selectbox, "Calendar").set_value("Own hours")
    checked(page.run())
    field(page.text_input, "Monday").set_value("nine to five")
    button(page, "Draw").click()
    checked(page.run())
    assert "nine to five" in page.error[0].value
    assert forecasts.list_forecasts(store) == []
    field(page.text_input, "Monday").set_value("09:30-16:00")
    field(page.text_input, "Further closed days").set_value("2019-01-02")
    button(page, "Draw").click()
    checked(page.run())
    row = settled(store, page.query_params["forecast"])
    assert row.state == "finished", row.reason
    days = forecasts.load(store, row).timestamps.strftime("%m-%d").tolist()
    assert days == ["01-01", "01-03", "01-04", "01-07"]
    assert datasets.get(store, sample.id).calendar is None
    page = open_page("forecast", forecast=row.id, tab="Settings")
    assert field(page.selectbox, "Calendar").value == "Own hours"
    assert field(page.text_input, "Further closed days").value == "2019-01-02"
    facts = "".join(item.proto.body for item in page.get("html"))
    assert "chosen for this forecast" in facts
    button(page, "Draw").click()
    checked(page.run())
    again = settled(store, page.query_params["forecast"])
    assert again.id != row.id
    assert again.settings["calendar"] == row.settings["calendar"]


def test_delete(open_page, store, drawn):
    page = open_page("forecast", forecast=drawn.id)
    button(page, "Delete the shown forecast").click()
    checked(page.run())
    page.button(key="confirm-yes").click()
    checked(page.run())
    assert forecasts.list_forecasts(store) == []


def test_unknown_forecast_is_said_and_the_page_still_draws(open_page, sample):
    page = open_page("forecast", forecast="nothing")
    assert "nothing" in page.error[0].value
    assert button(page, "Draw")


def test_paths_gone_from_the_workspace(open_page, store, drawn):
    store.files.delete_forecast(drawn.content_hash)
    page = open_page("forecast", forecast=drawn.id)
    assert page.error
