"""Home: three clicks from nothing to a fan."""

from app.services import datasets, forecasts
from tests.pages.helpers import button, checked, settled, words


def test_empty(open_page):
    page = open_page("home")
    assert page.title[0].value == "Kronos Workbench"
    assert button(page, "Draw a fan").disabled
    assert "No forecast yet" in words(page)


def test_sample_then_fan(open_page, store):
    page = open_page("home")
    button(page, "Open S&P 500").click()
    checked(page.run())
    assert [row.name for row in datasets.list_datasets(store)] == ["S&P 500"]
    assert not button(page, "Draw a fan").disabled
    button(page, "Draw a fan").click()
    checked(page.run())
    (row,) = forecasts.list_forecasts(store)
    assert settled(store, row.id).state == "finished"
    assert (row.settings["paths"], row.settings["horizon"]) == (100, 48)


def test_shows_latest(open_page, drawn):
    page = open_page("home")
    assert f"{5031:,} bars" in words(page)
    assert len(page.get("plotly_chart")) == 2
