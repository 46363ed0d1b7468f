"""Models: the built-in one, released ones, importing."""

from pathlib import Path

from app.services import models
from tests.pages.helpers import button, checked, words

GOLDEN = Path(__file__).parents[1] / "fixtures" / "golden" / "tiny5"


def test_shows_builtin_card_and_released(open_page):
    page = open_page("models")
    text = words(page)
    assert "Kronos-nano" in text
    assert "Kronos-small" in text
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
