import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from kronos_core.training import checkpoint
from kronos_core.training.checkpoint import (
    FILE_NAME,
    CheckpointError,
    load_checkpoint,
    save_checkpoint,
)


def model_and_optimiser(seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    model[2].bias.requires_grad_(False)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return model, torch.optim.AdamW(trainable, lr=0.01)


def step(model: nn.Module, optimiser: torch.optim.Optimizer, seed: int) -> None:
    inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(seed))
    optimiser.zero_grad()
    model(inputs).square().mean().backward()
    optimiser.step()


def save(folder, model, optimiser, **progress) -> None:
    random = {"coins": torch.Generator().manual_seed(5).get_state()}
    save_checkpoint(folder, module=model, optimiser=optimiser, random=random, progress=progress)


def test_a_restored_run_goes_on_exactly_as_the_saved_one(tmp_path):
    model, optimiser = model_and_optimiser()
    for seed in range(3):
        step(model, optimiser, seed)
    save(tmp_path, model, optimiser, step=3)
    other, other_optimiser = model_and_optimiser(seed=1)
    load_checkpoint(tmp_path).restore(other, other_optimiser)
    for seed in range(3, 6):
        step(model, optimiser, seed)
        step(other, other_optimiser, seed)
    for name, expected in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], expected), name


def test_scalars_and_generators_come_back_equal(tmp_path):
    progress = {"step": 3, "best": {"total": 0.1 + 0.2, "step": 2}, "latest": None}
    save(tmp_path, *model_and_optimiser(), **progress)
    found = load_checkpoint(tmp_path)
    assert found.progress == progress
    restored = torch.Generator()
    restored.set_state(found.random["coins"])
    expected = torch.rand(5, generator=torch.Generator().manual_seed(5))
    assert torch.equal(torch.rand(5, generator=restored), expected)


def test_an_optimiser_that_has_not_stepped_can_be_saved(tmp_path):
    save(tmp_path, *model_and_optimiser(), step=0)
    model, optimiser = model_and_optimiser(seed=1)
    load_checkpoint(tmp_path).restore(model, optimiser)
    assert optimiser.state_dict()["state"] == {}


def test_there_is_none_in_an_empty_or_missing_folder(tmp_path):
    assert load_checkpoint(tmp_path) is None
    assert load_checkpoint(tmp_path / "missing") is None


def test_only_the_latest_is_kept(tmp_path):
    model, optimiser = model_and_optimiser()
    for number in (1, 2):
        save(tmp_path, model, optimiser, step=number)
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]
    assert load_checkpoint(tmp_path).progress == {"step": 2}


@pytest.mark.parametrize("failing", ["save_file", "_flush"])
def test_a_failed_write_leaves_the_old_checkpoint(tmp_path, monkeypatch, failing):
    def full_disk(*arguments, **settings):
        raise OSError("No space left on device")

    model, optimiser = model_and_optimiser()
    save(tmp_path, model, optimiser, step=1)
    monkeypatch.setattr(checkpoint, failing, full_disk)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path, model, optimiser, step=2)
    assert load_checkpoint(tmp_path).progress == {"step": 1}
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_a_half_written_file_aside_is_ignored(tmp_path):
    save(tmp_path, *model_and_optimiser(), step=1)
    (tmp_path / f".{FILE_NAME}.new").write_bytes(b"half")
    assert load_checkpoint(tmp_path).progress == {"step": 1}


def test_a_damaged_file_is_an_error_with_a_remedy(tmp_path):
    (tmp_path / FILE_NAME).write_bytes(b"not a checkpoint")
    with pytest.raises(CheckpointError, match="delete it to start the run from the base model"):
        load_checkpoint(tmp_path)


def test_a_foreign_file_is_an_error(tmp_path):
    header = {"format": "pt", "progress": json.dumps({})}
    save_file({"weight": torch.zeros(2)}, tmp_path / FILE_NAME, metadata=header)
    with pytest.raises(CheckpointError, match="format 'pt'"):
        load_checkpoint(tmp_path)


def test_another_model_is_refused(tmp_path):
    save(tmp_path, *model_and_optimiser(), step=1)
    other = nn.Linear(3, 3)
    with pytest.raises(CheckpointError, match="another model"):
        load_checkpoint(tmp_path).restore(other, torch.optim.AdamW(other.parameters()))
