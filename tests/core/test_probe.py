import re
from dataclasses import replace

import pytest
import torch

from kronos_core.training.config import TrainingConfig
from kronos_core.training.memory import MEBIBYTE, watched
from kronos_core.training.options import Lora, TokenizerStage
from kronos_core.training.probe import disk_mb, preflight, probe
from kronos_core.training.trainer import train
from tests.core.training_runs import CPU, SMALL, Recorder, make_bars, make_bundle


def failed(config: TrainingConfig, folder, **given) -> dict[str, str]:
    checks = preflight(make_bundle(), make_bars(), config, folder=folder, **given)
    return {check.name: check.message for check in checks if not check.ok}


@pytest.mark.parametrize("tokenizer", [None, TokenizerStage()])
def test_a_probe_measures_and_estimates_and_leaves_no_trace(tmp_path, monkeypatch, tokenizer):
    monkeypatch.chdir(tmp_path)
    bundle, before = make_bundle(), torch.get_rng_state()
    config = replace(SMALL, tokenizer=tokenizer, micro_batch=4)
    measured = probe(bundle, make_bars(), config, seconds=0.2)
    assert measured.device == "cpu"
    assert measured.step_seconds > 0
    assert measured.tokens_per_second == pytest.approx(16 * 15 / measured.step_seconds)
    assert measured.estimated_seconds > 12 * measured.step_seconds
    assert measured.estimated_memory_mb > measured.peak_memory_mb > 10
    assert (measured.predictor_seconds < measured.estimated_seconds) == (tokenizer is not None)
    assert measured.micro_batch == 4
    assert list(tmp_path.iterdir()) == []
    assert torch.equal(torch.get_rng_state(), before)
    assert bundle.hash == make_bundle().hash


def test_the_disk_estimate_covers_what_a_run_leaves(tmp_path):
    config = replace(SMALL, tokenizer=TokenizerStage(), ema=0.9)
    train(make_bundle(), make_bars(), config, folder=tmp_path, callbacks=Recorder())
    used = sum(path.stat().st_size for path in tmp_path.rglob("*.safetensors")) / MEBIBYTE
    assert used < disk_mb(make_bundle(), config) < 4 * used


def test_a_run_that_can_work_passes_every_check(tmp_path):
    measured = probe(make_bundle(), make_bars(), SMALL, seconds=0.0)
    checks = preflight(
        make_bundle(), make_bars(), SMALL, folder=tmp_path / "not/yet", measured=measured
    )
    assert [check.name for check in checks] == [
        "context", "parameters", "windows", "batch", "disk", "memory",
    ]  # fmt: skip
    assert all(check.ok and check.message.endswith(".") for check in checks)


@pytest.mark.parametrize(
    ("change", "name", "message"),
    [
        ({"context": 80}, "context", r"84 bars.*context of 64 bars.*shorten.*by 19 bars\.$"),
        ({"horizon": 45}, "windows", r"140 bars are too few for windows of 57.*use at least 159"),
        ({"batch_size": 300}, "batch", r"give 95 training windows.*lower the batch size to 95"),
        ({"frozen_blocks": 3}, "parameters", "has 1 transformer block"),
    ],
)
def test_what_cannot_work_is_named_with_numbers_and_remedy(tmp_path, change, name, message):
    assert re.search(message, failed(replace(SMALL, **change), tmp_path)[name])


def test_a_full_disk_is_refused_before_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr("kronos_core.training.probe.DISK_RESERVE_MB", 1e12)
    message = failed(SMALL, tmp_path)["disk"]
    assert re.search(r"up to 1 MiB of disk, [\d,]+ MiB are free; free [\d,]+ MiB", message)


def test_too_little_memory_is_refused_after_a_probe(tmp_path):
    measured = probe(make_bundle(), make_bars(), SMALL, seconds=0.0)
    huge = replace(measured, estimated_memory_mb=1e9)
    problems = failed(SMALL, tmp_path, measured=huge)
    assert "take a smaller micro-batch" in problems["memory"]


def test_adapters_show_in_the_number_of_trained_parameters(tmp_path):
    config = replace(SMALL, lora=Lora(rank=2))
    checks = preflight(make_bundle(), make_bars(), config, folder=tmp_path)
    message = next(check.message for check in checks if check.name == "parameters")
    assert message == "512 of the predictor's 23,232 parameters are trained."


def test_the_peak_of_memory_is_seen():
    with watched(CPU) as peak:
        block = torch.ones(2**23)
        del block
    with watched(CPU) as low:
        pass
    assert peak.mb >= low.mb > 0
