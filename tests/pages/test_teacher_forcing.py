"""Teacher forcing: the empty page, each step of the walk, the state in the URL."""

import threading

import pytest

from app.jobs.threads import short_jobs
from app.services import datasets, lab
from app.ui import lab_view, lab_words
from tests.pages.helpers import button, checked, words


def opened(open_page, **parameters):
    """The page with a short walk, once everything is computed."""
    page = open_page("teacher_forcing", **parameters)
    page.number_input(key="lab-horizon").set_value(4)
    checked(page.run())
    for _ in range(40):
        if page.get("plotly_chart"):
            return page
        checked(page.run())
    raise AssertionError(words(page))


def test_empty_page_opens_the_sample_on_one_click(open_page, store):
    page = open_page("teacher_forcing")
    button(page, "Open the S&P 500 sample").click()
    checked(page.run())
    assert datasets.list_datasets(store)
    assert lab_words.TITLES[0] in words(page) or page.get("progress")


@pytest.mark.parametrize("step", range(1, 8))
def test_every_step_has_a_picture_and_three_sentences(open_page, sample, step):
    page = opened(open_page, step=str(step))
    for _ in range(40):
        if lab_words.TITLES[step - 1] in words(page):
            break
        checked(page.run())
    assert lab_words.TITLES[step - 1] in words(page)
    (said,) = [item.value for item in page.markdown if "  \n" in item.value]
    assert len(said.splitlines()) == 3
    assert page.latex
    assert page.get("plotly_chart")


def test_next_and_back_are_in_the_url(open_page, sample):
    page = opened(open_page, step="2", origin="3000")
    assert page.query_params["origin"] == "3000"
    page.button(key="lab-next").click()
    checked(page.run())
    assert page.query_params["step"] == "3"
    page.button(key="lab-back").click()
    checked(page.run())
    assert page.query_params["step"] == "2"


def test_failure_is_said(open_page, sample, monkeypatch):
    def fail(*_args, **_options):
        raise ValueError("the weights are damaged")

    monkeypatch.setattr(lab, "next_guess", fail)
    page = open_page("teacher_forcing")
    for _ in range(40):
        if page.error:
            break
        checked(page.run())
    assert "The weights are damaged." in page.error[0].value


def test_what_was_cancelled_can_be_asked_for_again(open_page, sample, monkeypatch):
    held, compute = threading.Event(), lab.next_guess

    def slow(*given, progress, **options):
        progress(1, 3)
        held.wait(20)
        return compute(*given, progress=progress, **options)

    monkeypatch.setattr(lab, "next_guess", slow)
    page = open_page("teacher_forcing", origin="2000")
    assert "Computing: 33%" in str(page.get("progress")[0].proto)
    button(page, "Cancel").click()
    checked(page.run())
    held.set()
    assert "Cancelled" in words(page)
    assert not page.get("progress")
    page.button(key="lab-again").click()
    checked(page.run())
    assert "Cancelled" not in words(page)


def test_another_step_is_not_cancelled(open_page, sample):
    page = open_page("teacher_forcing", step="2")
    page.session_state["lab-cancelled"] = page.session_state["lab-asked"]
    checked(page.run())
    assert "Cancelled" in words(page)
    page.button(key="lab-next").click()
    checked(page.run())
    assert "Cancelled" not in words(page)


def test_the_last_step_can_wait_for_two_answers(open_page, sample, monkeypatch):
    monkeypatch.setattr(lab_view, "PATIENCE_SECONDS", 0.0)
    held = threading.Event()
    short_jobs().submit(lambda: held.wait(20))
    page = open_page("teacher_forcing", step="7", origin="1500")
    held.set()
    assert [found.label for found in page.button].count("Cancel") == 2
