"""Fine-tune: pre-flight, modes of teacher forcing, queueing."""

import pytest

from app.services import datasets, runs
from app.ui import teaching
from tests.pages.helpers import button, checked, words


def test_empty_page_opens_the_sample_on_one_click(open_page, store):
    page = open_page("finetune")
    button(page, "Open the S&P 500 sample").click()
    checked(page.run())
    assert datasets.list_datasets(store)
    assert not button(page, "Queue run").disabled


@pytest.mark.parametrize(
    ("mode", "text"),
    [(teaching.OWN, "own"), (teaching.TRUE, "true"), (teaching.DECAY, "linear:1:0")],
)
def test_queue_run(open_page, store, sample, mode, text):
    page = open_page("finetune")
    page.segmented_control(key="forcing-mode").set_value(mode)
    checked(page.run())
    assert teaching.MODES[mode] in words(page)
    assert f"--teacher-forcing {text} " in page.code[0].value
    button(page, "Queue run").click()
    checked(page.run())
    (run,) = runs.list_runs(store)
    assert run.config["teacher_forcing"]["schedule"] == ("linear" if ":" in text else "constant")


def test_impossible_settings_say_the_numbers_and_cannot_be_queued(open_page, sample):
    page = open_page("finetune")
    next(field for field in page.number_input if field.label == "Context (bars)").set_value(4000)
    checked(page.run())
    assert "4000" in page.error[0].value
    assert button(page, "Queue run").disabled


def test_url_chooses_the_dataset(open_page, store, sample):
    other = datasets.add_sample(store, "nasdaq")
    for row in (sample, other):
        page = open_page("finetune", dataset=row.id)
        box = next(box for box in page.selectbox if box.label == "Dataset")
        assert box.value == row.id
