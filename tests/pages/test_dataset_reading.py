"""Datasets, uploads: readings that are asked for, changed, and several files or series at once."""

import io
import zipfile

import pytest

from app.services import datasets
from tests.pages.helpers import button, checked, field, words

HEAD = "Date,Open,High,Low,Close,Volume"
ROWS = [f"2024-01-{day:02d},10,11,9,{10 + day / 100},100" for day in range(1, 21)]
GOOD = "\n".join([HEAD, *ROWS])
UNDECIDED = "\n".join([HEAD, *(f"{day:02d}/02/2024,10,11,9,10.5,100" for day in range(1, 13))])
ADJUSTED = "\n".join(
    [
        "Date,Open,High,Low,Close,Adj Close,Volume",
        *(f"2024-01-{day:02d},10,12,8,10,5,100" for day in range(1, 21)),
    ]
)
LONG = "\n".join([f"Symbol,{HEAD}", *(f"{symbol},{row}" for symbol in "AB" for row in ROWS)])


def dropped(page, *files: tuple[str, str | bytes]):
    contents = [
        (name, content if isinstance(content, bytes) else content.encode(), "")
        for name, content in files
    ]
    page.file_uploader[0].set_value(contents)
    return checked(page.run())


def stored(store) -> dict[str, datasets.Dataset]:
    return {row.name: row for row in datasets.list_datasets(store)}


@pytest.mark.parametrize(
    ("answer", "first"), [("Day first", "2024-02-01"), ("Month first", "2024-01-02")]
)
def test_two_readings_are_shown_and_asked(open_page, store, answer, first):
    page = dropped(open_page("datasets"), ("dates.csv", UNDECIDED))
    text = words(page).replace("\\", "")
    assert "Day first**: 01/02/2024 is 1 February 2024" in text
    assert "Month first**: 01/02/2024 is 2 January 2024" in text
    assert page.dataframe[0].value["Date"][1] != page.dataframe[1].value["Date"][0]
    assert "Save" not in [found.label for found in page.button]
    button(page, answer).click()
    checked(page.run())
    assert datasets.list_datasets(store) == []
    button(page, "Save").click()
    checked(page.run())
    row = stored(store)["dates"]
    assert f"{row.first:%Y-%m-%d}" == first
    assert row.reading["choices"]["date_order"] == ("DMY" if answer == "Day first" else "MDY")


def test_an_unknown_title_is_assigned_by_hand(open_page, store):
    content = GOOD.replace("Close", "Kurs").replace("Open", "Beginn")
    page = dropped(open_page("datasets"), ("bars.csv", content))
    assert "open, close" in page.error[0].value
    for role, title in (("Open", "Beginn"), ("Close", "Kurs")):
        field(page.selectbox, role).set_value(title)
        checked(page.run())
    assert not page.error
    button(page, "Save").click()
    checked(page.run())
    assert stored(store)["bars"].reading["choices"]["columns"]["close"] == "Kurs"


def test_a_choice_can_be_changed_and_taken_back(open_page, store):
    page = dropped(open_page("datasets"), ("yahoo.csv", ADJUSTED))
    assert "Yahoo Finance" in words(page)
    field(page.selectbox, "Prices").set_value("adjusted")
    checked(page.run())
    assert "adjusted prices" in words(page)
    field(page.selectbox, "Close").set_value("Open")
    checked(page.run())
    assert "missing column open" in page.error[0].value
    button(page, "Read it as detected").click()
    checked(page.run())
    assert "raw prices" in words(page)
    button(page, "Adjust the prices for splits and dividends by the adjusted close").click()
    checked(page.run())
    field(page.selectbox, "Time zone").set_value("Europe/Berlin")
    checked(page.run())
    button(page, "Save").click()
    checked(page.run())
    row = stored(store)["yahoo"]
    assert row.timezone == "Europe/Berlin"
    assert datasets.bars(store, row)["close"].iloc[0] == 5


def test_several_files_are_saved_together(open_page, store):
    page = dropped(
        open_page("datasets"), ("one.csv", GOOD), ("bad.csv", "no table"), ("two.csv", ADJUSTED)
    )
    assert "bad.csv" in page.error[0].value
    button(page, "Save all 2 files").click()
    checked(page.run())
    assert set(stored(store)) == {"one", "two"}
    checked(page.run())
    assert "one.csv** is stored" in words(page).replace("\\", "")


def test_one_of_two_files_is_saved_and_the_other_stays(open_page, store):
    page = dropped(open_page("datasets"), ("one.csv", GOOD), ("two.csv", ADJUSTED))
    [found for found in page.button if found.label == "Save"][1].click()
    checked(page.run())
    assert set(stored(store)) == {"two"}
    button(page, "Save").click()
    checked(page.run())
    assert set(stored(store)) == {"one", "two"}
    assert page.query_params["dataset"] in {row.id for row in stored(store).values()}


def test_a_taken_name_is_said_and_nothing_is_lost(open_page, store, sample):
    page = dropped(open_page("datasets"), ("bars.csv", GOOD))
    field(page.text_input, "Name of the dataset").set_value(sample.name)
    button(page, "Save").click()
    checked(page.run())
    assert "already a dataset" in page.error[0].value
    assert len(datasets.list_datasets(store)) == 1


def test_each_symbol_becomes_a_dataset(open_page, store):
    page = dropped(open_page("datasets"), ("long.csv", LONG))
    assert "2 series" in words(page)
    field(page.selectbox, "Series shown below").set_value(1)
    checked(page.run())
    button(page, "Save 2 series").click()
    checked(page.run())
    assert {row.symbol for row in stored(store).values()} == {"A", "B"}


def test_tables_of_an_archive_are_named_after_their_files(open_page, store):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("early.csv", GOOD)
        archive.writestr("late.csv", GOOD.replace("2024", "2025"))
    page = dropped(open_page("datasets"), ("both.zip", packed.getvalue()))
    button(page, "Save 2 series").click()
    checked(page.run())
    assert set(stored(store)) == {"early", "late"}


def test_files_are_read_on_the_home_page_too(open_page, store):
    page = dropped(open_page("home"), ("bars.csv", GOOD))
    button(page, "Save").click()
    checked(page.run())
    assert set(stored(store)) == {"bars"}
