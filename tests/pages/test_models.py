"""Models: the built-in one, released ones, importing."""

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.services import models
from kronos_core.model.files import BundleError
from tests.pages.helpers import button, checked, words

GOLDEN = Path(__file__).parents[1] / "fixtures" / "golden" / "tiny5"


def test_shows_builtin_card_and_released(open_page):
    page = open_page("models")
    text = words(page)
    assert "Kronos-nano" in text
    assert "Kronos-small" in text
    assert [found.label for found in page.button].count("Download") == 3


class SlowHub:
    """Half-way it waits for `go_on`, then delivers the tiny bundle or fails as offline."""

    def __init__(self) -> None:
        self.go_on, self.offline, self.asked = threading.Event(), False, 0

    def fetch(self, _name, target, progress):
        self.asked += 1
        progress(10_000_000, 40_000_000)
        self.go_on.wait(20)
        if self.offline:
            raise BundleError("could not fetch config.json; place the files by hand")
        progress(40_000_000, 40_000_000)
        return shutil.copytree(GOLDEN, target)


@pytest.fixture
def hub(store, monkeypatch) -> Iterator[SlowHub]:
    slow = SlowHub()
    monkeypatch.setattr(models, "download_bundle", slow.fetch)
    yield slow
    slow.go_on.set()
    until(store, lambda task: task is None or not task.pending)


def until(store, reached):
    for _ in range(2000):
        if reached(models.download_task(store, "kronos-small")):
            return
        time.sleep(0.01)
    raise AssertionError(models.download_task(store, "kronos-small"))


def half_way(open_page, store):
    """The page after the click, once the first bytes are here."""
    page = open_page("models")
    page.button(key="get-kronos-small").click()
    checked(page.run())
    until(store, lambda task: task.total > 0)
    return checked(page.run())


def test_download_shows_bytes_and_survives_a_reload(open_page, store, hub):
    half_way(open_page, store)
    page = open_page("models")
    (bar,) = page.get("progress")
    assert "10.0 MB of 40.0 MB" in str(bar.proto)
    assert "Cancel" in [found.label for found in page.button]
    hub.go_on.set()
    until(store, lambda task: not task.pending)
    checked(page.run())
    assert models.get(store, "kronos-small").kind == "released"
    assert [found.label for found in page.button].count("Download") == 2
    assert hub.asked == 1


def test_cancelled_download_can_be_asked_for_again(open_page, store, hub):
    page = half_way(open_page, store)
    page.button(key="cancel-kronos-small").click()
    checked(page.run())
    assert [found.label for found in page.button].count("Download") == 3
    assert not page.get("progress")
    assert len(models.list_models(store)) == 1


def test_failed_download_says_what_to_do(open_page, store, hub):
    hub.offline = True
    page = half_way(open_page, store)
    hub.go_on.set()
    until(store, lambda task: not task.pending)
    checked(page.run())
    assert "place the files by hand" in page.error[0].value
    assert [found.label for found in page.button].count("Download") == 3


def test_import_a_folder(open_page, store):
    page = open_page("models")
    page.text_input[0].set_value(str(GOLDEN))
    page.text_input[1].set_value("mine")
    button(page, "Import").click()
    checked(page.run())
    assert models.get(store, "mine").kind == "imported"
    assert "mine" in words(page)


def test_wrong_folder_is_explained(open_page, store, tmp_path):
    page = open_page("models")
    page.text_input[0].set_value(str(tmp_path))
    page.text_input[1].set_value("mine")
    button(page, "Import").click()
    checked(page.run())
    assert page.error
    assert len(models.list_models(store)) == 1


def test_delete_an_imported_model(open_page, store):
    row = models.import_folder(store, GOLDEN, "mine")
    page = open_page("models")
    page.button(key=f"delete-{row.id}").click()
    checked(page.run())
    page.button(key="confirm-yes").click()
    checked(page.run())
    assert [model.id for model in models.list_models(store)] == ["kronos-nano"]
