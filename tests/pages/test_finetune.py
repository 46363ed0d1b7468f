"""Fine-tune: pre-flight, modes of teacher forcing, queueing."""

import time
from functools import partial

import pytest

from app.services import datasets, runs
from app.ui import teaching
from kronos_core.training import Lora, TeacherForcing, TokenizerStage, TrainingConfig
from kronos_core.training import probe as measuring
from kronos_core.training.presets import PRESETS
from tests.pages.helpers import button, checked, words


def test_empty_page_opens_the_sample_on_one_click(open_page, store):
    page = open_page("finetune")
    button(page, "Open the S&P 500 sample").click()
    checked(page.run())
    assert datasets.list_datasets(store)
    assert not button(page, "Queue run").disabled


def control(page, name: str, kind: str = "segmented_control"):
    """A field of the form by the setting that it shows."""
    found = [item for item in getattr(page, kind) if item.key.startswith(f"finetune-{name}-")]
    return found[0]


def field(page, label: str):
    return next(item for item in page.number_input if item.label == label)


@pytest.mark.parametrize(
    ("mode", "text"),
    [(teaching.OWN, None), (teaching.TRUE, "true"), (teaching.DECAY, "linear:1:0")],
)
def test_queue_run(open_page, store, sample, mode, text):
    page = open_page("finetune")
    control(page, "forcing-mode").set_value(mode)
    checked(page.run())
    assert teaching.MODES[mode] in words(page)
    command = page.code[1].value
    assert (f"--teacher-forcing {text}" in command) if text else ("--teacher" not in command)
    button(page, "Queue run").click()
    checked(page.run())
    (run,) = runs.list_runs(store)
    chosen = TrainingConfig.from_dict(run.config).teacher_forcing
    assert chosen == TeacherForcing.parse(text or "own")


def test_every_schedule_and_the_history(open_page, sample):
    page = open_page("finetune")
    control(page, "forcing-mode").set_value(teaching.DECAY)
    control(page, "history-mode").set_value(teaching.DECAYING_PAST)
    checked(page.run())
    for shape in ("exponential", "inverse-sigmoid"):
        control(page, "forcing-shape").set_value(shape)
        control(page, "history-unit").set_value("sequence")
        checked(page.run())
        assert teaching.SHAPE_WORDS[shape] in words(page)
        assert f"--teacher-forcing {shape}:1:0" in page.code[1].value
        assert "--history linear:1:0@sequence" in page.code[1].value


def test_rare_settings_reach_the_config(open_page, sample):
    page = open_page("finetune")
    for name in ("tokenizer-on", "lora-on", "ema-on", "micro-on", "dropout-on"):
        control(page, name, "toggle").set_value(True)
    checked(page.run())
    config = TrainingConfig.from_yaml(page.code[0].value)
    assert config.tokenizer == TokenizerStage()
    assert config.lora == Lora()
    assert (config.ema, config.micro_batch, config.dropout) == (0.999, 8, 0.1)
    control(page, "lora-targets", "multiselect").set_value([])
    checked(page.run())
    assert "lora targets" in page.error[0].value
    assert button(page, "Queue run").disabled


def test_preset_fills_the_form_and_pressed_again_undoes_changes(open_page, sample):
    page = open_page("finetune")
    control(page, "preset").set_value("thorough")
    checked(page.run())
    assert field(page, "Epochs").value == 10
    assert PRESETS["thorough"].cost in words(page)
    field(page, "Epochs").set_value(11)
    checked(page.run())
    assert field(page, "Epochs").value == 11
    control(page, "preset").set_value(None)
    checked(page.run())
    assert field(page, "Epochs").value == 10


def test_yaml_fills_the_form(open_page, store, sample):
    page = open_page("finetune")
    text = "steps: 90\ncontext: 50\nhistory: {start: 0.25}\nlora: {rank: 3}\n"
    next(item for item in page.text_area if item.label == "Or its text").set_value(text)
    button(page, "Fill the form").click()
    checked(page.run())
    config = TrainingConfig.from_yaml(page.code[0].value)
    assert (config.steps, config.context, config.lora) == (90, 50, Lora(rank=3))
    assert config.history == TeacherForcing(start=0.25)
    next(item for item in page.text_area if item.label == "Or its text").set_value("epoch: 3")
    button(page, "Fill the form").click()
    checked(page.run())
    assert "epoch" in page.error[0].value


def test_several_datasets_with_weights(open_page, store, sample):
    other = datasets.add_sample(store, "nasdaq")
    page = open_page("finetune", dataset=f"{sample.id},{other.id}")
    field(page, other.name).set_value(2.0)
    checked(page.run())
    button(page, "Queue run").click()
    checked(page.run())
    (run,) = runs.list_runs(store)
    shares = TrainingConfig.from_dict(run.config).data
    assert {share.name: share.weight for share in shares} == {sample.name: 1.0, other.name: 2.0}
    assert set(run.dataset_ids) == {sample.id, other.id}


def test_split_by_date(open_page, sample):
    page = open_page("finetune")
    control(page, "by-date", "toggle").set_value(True)
    checked(page.run())
    config = TrainingConfig.from_yaml(page.code[0].value)
    assert config.validation_from < config.test_from
    assert not button(page, "Queue run").disabled


def test_what_was_chosen_is_there_again(open_page, sample):
    page = open_page("finetune")
    field(page, "Context (bars)").set_value(66)
    checked(page.run())
    page.switch_page("../pages/home.py")
    checked(page.run())
    page.switch_page("../pages/finetune.py")
    checked(page.run())
    assert field(page, "Context (bars)").value == 66


def test_probe_measures_time_and_memory(open_page, sample, monkeypatch):
    monkeypatch.setattr(measuring, "probe", partial(measuring.probe, seconds=0.05))
    page = open_page("finetune")
    field(page, "Context (bars)").set_value(16)
    checked(page.run())
    for label in ("Measure time and memory", "Measure again"):
        button(page, label).click()
        checked(page.run())
        measured(page)
        facts = "".join(item.proto.body for item in page.get("html"))
        assert "Time, estimated" in facts
        assert "Memory, estimated" in facts
    field(page, "Context (bars)").set_value(20)
    checked(page.run())
    assert button(page, "Measure time and memory")


def measured(page) -> None:
    """Waits until the measurement is over."""
    deadline = time.monotonic() + 60
    while "Measuring" in words(page) or "Waiting for other work" in words(page):
        assert time.monotonic() < deadline
        time.sleep(0.2)
        checked(page.run())


def test_impossible_settings_say_the_numbers_and_cannot_be_queued(open_page, sample):
    page = open_page("finetune")
    field(page, "Context (bars)").set_value(4000)
    checked(page.run())
    assert "4000" in page.error[0].value
    assert button(page, "Queue run").disabled


def test_url_chooses_the_dataset(open_page, store, sample):
    other = datasets.add_sample(store, "nasdaq")
    for row in (sample, other):
        page = open_page("finetune", dataset=row.id)
        assert page.multiselect[0].value == [row.id]
