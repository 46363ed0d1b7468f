"""Files that are no bars: a message with the remedy in the page, nothing stored, no traceback."""

from pathlib import Path

import pytest
from playwright.sync_api import expect

from app.services import datasets
from app.settings import Settings
from app.storage import Store
from tests.e2e import driver

pytestmark = pytest.mark.browser

HEAD = "timestamps,open,high,low,close,volume"
ROWS = [f"2024-01-{day:02d},10,11,9,{10 + day / 100},100" for day in range(1, 21)]
GOOD = "\n".join([HEAD, *ROWS])
BAD = {
    "empty.csv": ("", "empty"),
    "letter.txt": ("Dear friend,\nthis is no table.\nYours", ""),
    "picture.png": ("\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00", ""),
    "no-close.csv": (GOOD.replace("close", "colour"), "close"),
    "one-bar.csv": ("\n".join([HEAD, ROWS[0]]), "bar"),
    "nan.csv": (GOOD.replace("10.05", "NaN"), "close"),
    "conflict.csv": (GOOD + "\n2024-01-20,12,13,11,12,5", "2024-01-20"),
}


def stored(workspace: Path) -> list[str]:
    store = Store(Settings(workspace=workspace, database_url=""))
    try:
        return [row.name for row in datasets.list_datasets(store)]
    finally:
        store.close()


def test_bad_files_are_explained_and_nothing_is_stored(page, server):
    driver.open_page(page, f"{server.url}/datasets", "Datasets")
    for name, (content, expected) in BAD.items():
        page.reload()
        driver.settle(page)
        driver.upload(page, name, content.encode("latin-1"))
        alert = page.get_by_role("alert").first
        expect(alert).to_contain_text(name)
        expect(alert).to_contain_text(expected)
        assert driver.button(page, "Save").count() == 0
        driver.no_traceback(page)
    assert stored(server.workspace) == []
    assert not list((server.workspace / "bars").glob("*.parquet"))


def test_unsorted_and_doubled_rows_are_repaired_and_said(page, server):
    driver.open_page(page, f"{server.url}/datasets", "Datasets")
    content = "\n".join([HEAD, *reversed(ROWS), ROWS[3]])
    driver.upload(page, "shuffled.csv", content.encode())
    expect(page.get_by_text("20 bars").first).to_be_visible()
    text = page.inner_text("body").lower()
    assert "sorted" in text or "order" in text
    assert "duplicate" in text or "identical" in text


def test_a_file_of_300_mb_names_the_limit_and_the_remedy(page, server, tmp_path):
    large = tmp_path / "large.csv"
    with large.open("wb") as file:
        file.write(GOOD.encode())
        file.truncate(300 * 1024 * 1024)
    driver.open_page(page, f"{server.url}/datasets", "Datasets")
    driver.upload(page, large.name, large)
    alert = page.get_by_role("alert").first
    expect(alert).to_contain_text("200 MB")
    expect(alert).to_contain_text("KRONOS_MAX_UPLOAD_MB")
    driver.no_traceback(page)
    assert stored(server.workspace) == []
