"""Datasets: the empty page, samples, uploads good and bad, renaming and deleting."""

import pandas as pd
import pytest

from app.services import datasets
from tests.pages.helpers import button, checked, field, words

ROWS = [f"2024-01-{day:02d},10,11,9,{10 + day / 100},100" for day in range(1, 21)]
GOOD = "\n".join(["date,open,high,low,close,volume", *ROWS])
BAD = {
    "empty": ("", "empty"),
    "prose": ("This is only a letter to a friend.\nIt has no table in it.", ""),
    "no close": (GOOD.replace("close", "colour"), "close"),
    "one bar": ("\n".join(GOOD.splitlines()[:2]), "bar"),
    "NaN": (GOOD.replace("10.05", "NaN"), "close"),
    "word": (GOOD.replace("10.05", "cheap"), "cheap"),
    "conflict": (GOOD + "\n2024-01-20,12,13,11,12,5", "2024-01-20"),
}


def dropped(page, content: bytes, name: str = "bars.csv"):
    page.file_uploader[0].set_value([(name, content, "text/csv")])
    return checked(page.run())


def test_empty_page_opens_the_sample_on_one_click(open_page, store):
    page = open_page("datasets")
    assert "No bars yet" in words(page)
    button(page, "Open the S&P 500 sample").click()
    checked(page.run())
    (row,) = datasets.list_datasets(store)
    assert page.query_params["dataset"] == row.id
    assert page.get("plotly_chart")


def test_upload_shows_a_preview_and_stores_on_save_only(open_page, store):
    page = dropped(open_page("datasets"), GOOD.encode())
    assert "20 bars" in words(page)
    assert datasets.list_datasets(store) == []
    field(page.text_input, "Name of the dataset").set_value("mine")
    button(page, "Save").click()
    checked(page.run())
    (row,) = datasets.list_datasets(store)
    assert (row.name, row.bars, row.provenance["file"]) == ("mine", 20, "bars.csv")
    assert row.reading["dialect"] == "Table with a header"
    assert page.query_params["dataset"] == row.id


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_explained_and_not_stored(open_page, store, case):
    content, expected = BAD[case]
    page = dropped(open_page("datasets"), content.encode())
    (error,) = page.error
    assert "bars.csv" in error.value
    assert expected in error.value.replace("\\", "")
    assert datasets.list_datasets(store) == []
    assert "Save" not in [found.label for found in page.button]


def test_file_above_the_limit_names_limit_and_remedy(open_page, store, monkeypatch):
    monkeypatch.setattr(store.settings, "max_upload_mb", 1)
    page = dropped(open_page("datasets"), b"x" * 1_200_000)
    text = page.error[0].value.replace("\\", "")
    assert "1 MB" in text
    assert "KRONOS_MAX_UPLOAD_MB" in text


def test_synthetic_bars_are_previewed_and_stored_on_save_only(open_page, store):
    page = open_page("datasets")
    page.segmented_control(key="add-way").set_value("Synthetic")
    checked(page.run())
    page.number_input(key="synthetic-bars").set_value(300)
    page.selectbox(key="synthetic-interval").set_value("1 h")
    page.number_input(key="synthetic-volatility").set_value(80.0)
    page.number_input(key="synthetic-seed").set_value(7)
    checked(page.run())
    assert "300 bars" in words(page)
    assert page.get("plotly_chart")
    assert datasets.list_datasets(store) == []
    button(page, "Save").click()
    checked(page.run())
    (row,) = datasets.list_datasets(store)
    assert (row.name, row.source, row.bars) == ("Synthetic 7", "synthetic", 300)
    told = row.provenance["synthetic"]
    assert (told["volatility"], told["interval"], told["seed"]) == (0.8, 3600, 7)
    assert page.query_params["dataset"] == row.id


def test_synthetic_settings_that_run_out_of_bounds_are_explained(open_page, store):
    page = open_page("datasets")
    page.segmented_control(key="add-way").set_value("Synthetic")
    checked(page.run())
    page.number_input(key="synthetic-bars").set_value(100_000)
    checked(page.run())
    assert "between the years" in page.error[0].value
    assert "Save" not in [found.label for found in page.button]


def test_url_names_the_dataset_shown(open_page, store, sample):
    other = datasets.add_sample(store, "nasdaq")
    page = open_page("datasets", dataset=sample.id)
    assert page.selectbox(key=f"picker-{sample.id}").value == sample.id
    page.selectbox(key=f"picker-{sample.id}").set_value(other.id)
    checked(page.run())
    assert page.query_params["dataset"] == other.id


def test_unknown_dataset_in_the_url_is_said(open_page, sample):
    page = open_page("datasets", dataset="gone")
    assert "There is no dataset gone" in page.error[0].value


def test_ranges(open_page, sample):
    page = open_page("datasets", dataset=sample.id)
    for choice, text in (("All", "5,031 bars"), ("Last 1,000", "1,000 bars")):
        page.segmented_control(key="range").set_value(choice)
        checked(page.run())
        assert any(found.value.startswith(text) for found in page.caption)


def test_table_lists_every_dataset(open_page, store, sample):
    datasets.add_sample(store, "nasdaq")
    table = open_page("datasets").dataframe[0].value
    assert isinstance(table, pd.DataFrame)
    assert set(table["name"]) == {"S&P 500", "Nasdaq Composite"}


def test_rename(open_page, store, sample):
    page = open_page("datasets")
    page.text_input(key=f"new-name-{sample.id}").set_value("Index")
    page.button(key="rename").click()
    checked(page.run())
    assert datasets.get(store, sample.id).name == "Index"


def test_delete_names_what_depends_on_it(open_page, store, sample, drawn):
    page = open_page("datasets")
    button(page, "Delete").click()
    checked(page.run())
    assert drawn.name in words(page)
    assert datasets.list_datasets(store)
    page.button(key="confirm-yes").click()
    checked(page.run())
    assert datasets.list_datasets(store) == []
