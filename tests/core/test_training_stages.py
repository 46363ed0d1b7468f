"""What the stages of a run are made of: windows, adapters, averages, micro-batches, guards."""

from dataclasses import replace

import pytest
import torch

from kronos_core.model.zoo import load_bundle
from kronos_core.training.adapters import plain_copy, trainable_copy
from kronos_core.training.checkpoint import load_checkpoint
from kronos_core.training.config import TrainingConfig
from kronos_core.training.loop import Loop
from kronos_core.training.losses import NonFiniteLoss, own_history
from kronos_core.training.memory import OutOfMemory, is_out_of_memory
from kronos_core.training.options import DataShare, Lora, TokenizerStage
from kronos_core.training.tasks import PredictorTask, TokenizerTask
from kronos_core.training.teacher_forcing import TeacherForcing
from kronos_core.training.tokens import WindowTokens
from kronos_core.training.trainer import train
from tests.core.training_runs import (
    CPU,
    SMALL,
    Recorder,
    assert_equal_weights,
    make_bars,
    make_bundle,
    make_run,
    predictor_loop,
    weights,
    without_measures,
)

EVERYTHING = replace(
    SMALL,
    tokenizer=TokenizerStage(learning_rate=1e-3),
    history=TeacherForcing(start=0.7),
    teacher_forcing=TeacherForcing.parse("inverse-sigmoid:1:0@sequence"),
    micro_batch=5,
    ema=0.9,
    lora=Lora(rank=2, dropout=0.1),
    schedule="cosine",
)


def finish(config: TrainingConfig, folder, *, dropout: float = 0.0) -> Recorder:
    recorder = Recorder()
    train(make_bundle(dropout), make_bars(), config, folder=folder, callbacks=recorder)
    return recorder


def gradients(loop) -> dict[str, torch.Tensor]:
    loop._accumulate(torch.arange(10), 1)
    return {name: item.grad.clone() for name, item in loop.module.named_parameters()}


# Resuming with every feature at once


def test_a_run_with_everything_resumes_exactly(tmp_path):
    bundle, bars = make_bundle(dropout=0.1), make_bars()
    whole = Recorder()
    expected = train(bundle, bars, EVERYTHING, folder=tmp_path / "whole", callbacks=whole)
    rows, folder = {}, tmp_path / "parts"
    for stop_after in (0, 1, 3, 4, 2, 3, None):  # the tokenizer stage has six steps
        part = Recorder(stop_after)
        result = train(bundle, bars, EVERYTHING, folder=folder, callbacks=part)
        keys = {(row.stage, row.split, row.step): without_measures(row) for row in part.rows}
        assert not rows.keys() & keys.keys()
        rows |= keys
    assert result == replace(expected, bundle_folder=folder / "best")
    assert list(rows.values()) == [without_measures(row) for row in whole.rows]
    for name in ("best", "last"):
        assert_equal_weights(weights(folder / name), weights(tmp_path / "whole" / name))


# Tokenizer stage


def test_the_tokenizer_stage_comes_first_and_its_tokenizer_is_used(tmp_path):
    config = replace(SMALL, tokenizer=TokenizerStage(epochs=2, learning_rate=3e-3))
    recorder = finish(config, tmp_path)
    stages = [row.stage for row in recorder.rows]
    assert stages == sorted(stages, reverse=True)
    first, *_, last = (r for r in recorder.split("validation") if r.stage == "tokenizer")
    assert last.total < first.total
    assert last.fine < first.fine
    assert 0 < last.codebook_use <= 1
    assert last.s1 is None
    assert recorder.steps == list(range(1, 12 + 12 + 1))
    tuned, best = (load_bundle(tmp_path / name, device="cpu") for name in ("tokenizer", "best"))
    assert_equal_weights(tuned.tokenizer.state_dict(), best.tokenizer.state_dict())
    assert_equal_weights(tuned.predictor.state_dict(), make_bundle().predictor.state_dict())
    assert not torch.equal(tuned.tokenizer.head.weight, make_bundle().tokenizer.head.weight)


def test_a_tokenizer_that_only_gets_worse_stays_the_base_one(tmp_path):
    config = replace(SMALL, tokenizer=TokenizerStage(learning_rate=0.3))
    recorder = finish(config, tmp_path)
    rows = [row for row in recorder.split("validation") if row.stage == "tokenizer"]
    assert min(rows, key=lambda row: row.total).step == 0
    kept = load_bundle(tmp_path / "best", device="cpu").tokenizer
    assert_equal_weights(kept.state_dict(), make_bundle().tokenizer.state_dict())


def test_the_tokenizers_loss_equals_the_formula(tmp_path):
    run = make_run(replace(SMALL, tokenizer=TokenizerStage()), tmp_path)
    task = run.tokenizer_loop().task
    x = task.training.batch(torch.arange(6), CPU)
    (coarse, fine), quantiser, _, full = task.module.eval()(x)
    losses = task.module.losses(x)
    expected = ((coarse - x).square().mean() + (fine - x).square().mean() + quantiser) / 2
    assert losses.total.item() == pytest.approx(expected.item(), rel=1e-5)
    joined = task.module.tokenizer.join_ids(losses.s1_ids, losses.s2_ids)
    assert torch.equal(joined, full)


def test_a_tokenizer_that_diverges_stops_the_run(tmp_path, monkeypatch):
    losses = TokenizerTask._losses

    def poisoned(self, rows):
        loss, values = losses(self, rows)
        return loss * float("nan"), {**values, "total": values["total"] * float("nan")}

    monkeypatch.setattr(TokenizerTask, "_losses", poisoned)
    with pytest.raises(NonFiniteLoss, match="tokenizer's training loss became nan at step 1"):
        finish(replace(SMALL, tokenizer=TokenizerStage()), tmp_path)


# Teacher forcing


def toy_task(config: TrainingConfig, steps: int) -> PredictorTask:
    """An endless cycle in which each pair of tokens follows from the one before."""
    time = torch.arange(60)[:, None] + torch.arange(config.window)
    tokens = WindowTokens(
        s1=(time % 6).to(torch.int16),
        s2=(time * 5 % 6 + 3).to(torch.int16),
        starts=torch.arange(60),
        stamp=torch.zeros(60 + config.window, 5, dtype=torch.int8),
        sizes=(60,),
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        module = trainable_copy(make_bundle().predictor, config)
    return PredictorTask(module, config, steps, tokens, tokens, CPU)


@pytest.mark.parametrize(
    ("conditioning", "history"),
    [
        ("true", "true"),
        ("own", "true"),
        ("0.5@batch", "true"),
        ("linear:1:0", "true"),
        ("exponential:1:0@sequence", "true"),
        ("inverse-sigmoid:1:0", "true"),
        ("true", "0.5"),
        ("own", "linear:1:0@sequence"),
        ("own", "own"),
    ],
)
def test_an_exactly_predictable_series_is_learned_under_each_mode(tmp_path, conditioning, history):
    config = replace(
        SMALL,
        learning_rate=1e-2,
        teacher_forcing=TeacherForcing.parse(conditioning),
        history=TeacherForcing.parse(history),
    )
    task, usual = toy_task(config, 120), predictor_loop(config, tmp_path)
    loop = Loop(task, usual.setting, usual.keep)
    order = torch.Generator().manual_seed(0)
    for _ in range(120):
        row = loop.update(torch.randperm(60, generator=order)[:16])
    assert row.total < 0.05
    after = task.evaluate(task.module, 120, 16)
    assert after["total"] < 0.05
    assert abs(after["exposure_gap"]) < 0.05


def test_history_ratio_one_leaves_the_inputs_untouched_and_draws_nothing(tmp_path, monkeypatch):
    plain = finish(SMALL, tmp_path / "plain")

    def never(*arguments):
        raise AssertionError("a first pass was made")

    monkeypatch.setattr("kronos_core.training.tasks.own_history", never)
    config = replace(SMALL, history=TeacherForcing(schedule="linear", start=1.0, end=1.0))
    assert [r.total for r in finish(config, tmp_path / "one").rows] == [r.total for r in plain.rows]


def test_history_replaces_the_share_of_inputs_that_its_ratio_says(tmp_path, monkeypatch):
    seen = []
    original = PredictorTask.losses

    def watch(self, rows, truth, step, random):
        seen.append(truth["epsilon_history"])
        return original(self, rows, truth, step, random)

    monkeypatch.setattr(PredictorTask, "losses", watch)
    finish(replace(SMALL, history=TeacherForcing(start=0.3), epochs=8), tmp_path)
    coins = torch.cat([mask.flatten() for mask in seen]).double()
    assert abs(coins.mean().item() - 0.3) < 5 * (0.3 * 0.7 / len(coins)) ** 0.5


def test_own_history_is_the_models_draw_for_the_same_bar(tmp_path):
    loop = predictor_loop(SMALL, tmp_path)
    batch = loop.task.training.batch(torch.arange(6), CPU)
    kept = torch.rand(batch.s1.shape, generator=torch.Generator().manual_seed(3)) < 0.5
    draws = torch.Generator().manual_seed(4)
    mixed = own_history(loop.module, batch, kept, draws, 1)
    again = own_history(loop.module, batch, None, torch.Generator().manual_seed(4), 1)
    assert torch.equal(mixed.s1[kept], batch.s1[kept])
    assert torch.equal(mixed.s2[kept], batch.s2[kept])
    drawn = ~kept
    drawn[:, 0] = False
    assert torch.equal(mixed.s1[drawn], again.s1[drawn])
    assert torch.equal(again.s1[:, 0], batch.s1[:, 0])
    assert torch.equal(mixed.s1_targets, batch.s1_targets)
    # A model that is sure of the truth draws the truth.
    sure = torch.nn.functional.one_hot(batch.s1_targets, 16).float() * 1e4
    loop.module.decode_s1 = lambda *inputs: (sure, loop.module.embed(*inputs))
    assert torch.equal(own_history(loop.module, batch, None, draws, 1).s1, batch.s1)


# Batches and memory


def test_micro_batches_give_the_gradient_of_the_whole_batch(tmp_path):
    forced = replace(SMALL, teacher_forcing=TeacherForcing(start=1.0))
    whole = gradients(predictor_loop(forced, tmp_path))
    parts = gradients(predictor_loop(replace(forced, micro_batch=3), tmp_path))
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name], gradient, rtol=1e-4, atol=1e-6)


def test_memory_that_runs_out_halves_the_micro_batch_and_nothing_else(tmp_path, monkeypatch):
    config = replace(SMALL, teacher_forcing=TeacherForcing(start=0.5))
    parts = PredictorTask.parts

    def tight(self, rows, micro_batch, step, random):
        for part in parts(self, rows, micro_batch, step, random):
            if micro_batch > 4 and step >= 3:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
            yield part

    with monkeypatch.context() as patch:
        patch.setattr(PredictorTask, "parts", tight)
        recorder = finish(config, tmp_path / "tight", dropout=0.1)
    told = [message for kind, message in recorder.events if kind == "out_of_memory"]
    assert [message.split(" windows")[0] for message in told] == ["16", "8"]
    assert load_checkpoint(tmp_path / "tight/checkpoint").progress["micro_batch"] == 4
    steps = [row.step for row in recorder.split("train")]
    assert steps == list(range(1, len(steps) + 1))


def test_a_step_is_repeated_from_the_same_random_state(tmp_path, monkeypatch):
    config = replace(SMALL, teacher_forcing=TeacherForcing(start=0.5))
    parts = PredictorTask.parts

    def tight(self, rows, micro_batch, step, random):
        for number, part in enumerate(parts(self, rows, micro_batch, step, random)):
            yield part
            if micro_batch > 4 and number == 0:
                raise MemoryError

    small = finish(replace(config, micro_batch=4), tmp_path / "small", dropout=0.1)
    monkeypatch.setattr(PredictorTask, "parts", tight)
    halved = finish(config, tmp_path / "halved", dropout=0.1)
    assert halved.split("train") == small.split("train")
    assert_equal_weights(weights(tmp_path / "halved/last"), weights(tmp_path / "small/last"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"halve_on_out_of_memory": False}, "16 windows of 16 bars.*a smaller micro-batch"),
        ({"micro_batch": 1}, "1 windows of 16 bars at once on cpu; use a shorter context"),
    ],
)
def test_memory_that_never_suffices_is_an_error_with_a_remedy(
    tmp_path, monkeypatch, change, message
):
    def full(self, *arguments):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate")

    monkeypatch.setattr(PredictorTask, "losses", full)
    with pytest.raises(OutOfMemory, match=message) as error:
        finish(replace(SMALL, **change), tmp_path)
    assert is_out_of_memory(error.value)
    assert load_checkpoint(tmp_path / "checkpoint").progress["step"] == 0
    assert not is_out_of_memory(RuntimeError("shapes do not fit"))


# What is trained, and what is saved


def test_adapters_alone_are_trained_and_merged_into_plain_weights(tmp_path):
    loop = predictor_loop(replace(SMALL, lora=Lora(rank=2)), tmp_path)
    before = {name: item.clone() for name, item in loop.module.state_dict().items()}
    for _ in range(3):
        loop.update(torch.arange(16))
    changed = {
        name for name, item in loop.module.state_dict().items() if not item.equal(before[name])
    }
    assert changed
    assert all("lora_" in name for name in changed)
    plain = plain_copy(loop.module)
    base = make_bundle().predictor
    assert plain.state_dict().keys() == base.state_dict().keys()
    batch = loop.task.training.batch(torch.arange(4), CPU)
    inputs = batch.s1, batch.s2, batch.stamp
    loop.module.eval()
    merged, adapted = plain.decode_s1(*inputs)[0], loop.module.decode_s1(*inputs)[0]
    torch.testing.assert_close(merged, adapted, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(merged, base.decode_s1(*inputs)[0])


def test_a_run_with_adapters_saves_a_bundle_that_the_loader_reads(tmp_path):
    recorder = finish(replace(SMALL, lora=Lora()), tmp_path)
    first, *_, last = recorder.split("validation")
    assert last.total < first.total
    assert weights(tmp_path / "best").keys() == make_bundle().predictor.state_dict().keys()


def test_frozen_layers_stay_as_they_were(tmp_path):
    config = replace(SMALL, frozen_blocks=1, freeze_embeddings=True)
    finish(config, tmp_path)
    base, tuned = make_bundle().predictor.state_dict(), weights(tmp_path / "last")
    frozen = ("transformer.0.", "embedding.", "time_emb.")
    for name, tensor in tuned.items():
        if name.startswith(frozen) or name.endswith("inv_freq"):
            assert torch.equal(tensor, base[name]), name
    assert not torch.equal(tuned["head.proj_s1.weight"], base["head.proj_s1.weight"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"frozen_blocks": 2}, "frozen_blocks is 2, but the model has 1"),
        ({"frozen_blocks": 1, "lora": Lora(targets=("w1",))}, "nothing is trained"),
    ],
)
def test_settings_that_the_model_cannot_have_are_refused(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        finish(replace(SMALL, **change), tmp_path)


def test_dropout_is_overridden_outside_the_dependency_layer():
    tuned = trainable_copy(make_bundle().predictor, replace(SMALL, dropout=0.25))
    assert tuned.token_drop.p == tuned.transformer[0].ffn.dropout.p == 0.25
    assert tuned.transformer[0].self_attn.attn_dropout == 0.25
    assert tuned.dep_layer.cross_attn.resid_dropout.p == 0.0
    assert tuned.dep_layer.cross_attn.attn_dropout == 0.0


def test_the_average_is_what_is_evaluated_and_saved(tmp_path):
    loop = predictor_loop(replace(SMALL, ema=0.8), tmp_path)
    name, expected = "head.proj_s1.weight", None
    for step in range(1, 6):
        before = loop.module.state_dict()[name].clone()
        loop.update(torch.arange(16))
        decay = min(0.8, (1 + step) / (10 + step))
        expected = before if expected is None else expected
        expected = decay * expected + (1 - decay) * loop.module.state_dict()[name]
    torch.testing.assert_close(loop.shown.state_dict()[name], expected)
    assert loop.shown is not loop.module
    finish(replace(SMALL, ema=0.8), tmp_path / "run")
    averaged = load_checkpoint(tmp_path / "run/checkpoint").average
    torch.testing.assert_close(weights(tmp_path / "run/last")[name], averaged[name])


def test_a_stage_ends_early_when_nothing_becomes_better(tmp_path):
    config = replace(SMALL, learning_rate=0.5, epochs=20, patience=2, evaluations_per_epoch=3)
    recorder = Recorder()
    arguments = make_bundle(), make_bars(), config
    result = train(*arguments, folder=tmp_path, callbacks=recorder)
    assert result.outcome == "finished"
    assert result.step < result.total_steps
    evaluated = [row.step for row in recorder.split("validation")]
    assert evaluated.index(result.best_step) == len(evaluated) - 3
    kinds = [kind for kind, _ in recorder.events]
    assert kinds[-2:] == ["early_stop", "finished"]
    assert train(*arguments, folder=tmp_path, callbacks=Recorder()) == result


# Several datasets


def test_several_datasets_are_trained_on_together(tmp_path):
    shares = (DataShare(name="a", weight=1.0), DataShare(name="b", weight=0.5))
    config = replace(SMALL, data=shares)
    frames = [make_bars(140), make_bars(110)]
    run = make_run(config, tmp_path, frames=frames)
    sizes = [len(split.train) for split in run.plan.splits]
    assert run.plan.windows_per_epoch == sizes[0] + round(sizes[1] / 2)
    recorder = Recorder(stop_after=4)
    train(make_bundle(), frames, config, folder=tmp_path / "parts", callbacks=recorder)
    rest, whole = Recorder(), Recorder()
    train(make_bundle(), frames, config, folder=tmp_path / "parts", callbacks=rest)
    train(make_bundle(), frames, config, folder=tmp_path / "whole", callbacks=whole)
    assert recorder.split("train") + rest.split("train") == whole.split("train")
    provenance = load_bundle(tmp_path / "whole/best", device="cpu").provenance
    assert [item["weight"] for item in provenance["data"]] == [1.0, 0.5]


def test_the_number_of_datasets_must_be_that_of_the_settings(tmp_path):
    config = replace(SMALL, data=(DataShare(name="a"), DataShare(name="b")))
    with pytest.raises(ValueError, match="name 2 datasets, but 1 are given"):
        finish(config, tmp_path)


def test_windows_of_the_second_dataset_have_its_own_bars_and_calendar(tmp_path):
    first, second = make_bars(140), make_bars(110)
    second["timestamps"] += second["timestamps"].diff().iloc[1] * 7
    run = make_run(SMALL, tmp_path, frames=[first, second])
    both, _ = run.encode(run.bundle.tokenizer)
    alone, _ = make_run(SMALL, tmp_path, frames=[second]).encode(run.bundle.tokenizer)
    offset = both.sizes[0]
    joined, single = (
        both.batch(torch.tensor([offset + 5]), CPU),
        alone.batch(torch.tensor([5]), CPU),
    )
    assert torch.equal(joined.s1, single.s1)
    assert torch.equal(joined.stamp, single.stamp)
