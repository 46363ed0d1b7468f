import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from kronos_core.model.zoo import Bundle, load_bundle
from kronos_core.training import loop as loop_module
from kronos_core.training.checkpoint import FILE_NAME, load_checkpoint
from kronos_core.training.config import TrainingConfig, plan
from kronos_core.training.loop import Loop, Speed
from kronos_core.training.losses import evaluate
from kronos_core.training.sampler import evenly_spaced
from kronos_core.training.teacher_forcing import TeacherForcing
from kronos_core.training.tokens import encode_windows
from kronos_core.training.trainer import NonFiniteLoss, train
from tests.core.training_runs import (
    CPU,
    SMALL,
    Recorder,
    assert_equal_weights,
    make_bars,
    make_bundle,
    predictor_loop,
    weights,
    without_measures,
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder, recorder = tmp_path_factory.mktemp("run"), Recorder()
    result = train(make_bundle(), make_bars(), SMALL, folder=folder, callbacks=recorder)
    return result, recorder, folder


def test_every_step_and_evaluation_is_recorded_once(finished):
    result, recorder, _ = finished
    counted = plan(140, SMALL, 64)
    assert result.outcome == "finished"
    assert result.step == result.total_steps == counted.total_steps
    steps = list(range(1, counted.total_steps + 1))
    assert [row.step for row in recorder.split("train")] == steps == recorder.steps
    assert recorder.rows[0].step == 0
    assert len(recorder.split("validation")) == 1 + 2 * SMALL.epochs
    assert recorder.rows[-1].epoch == SMALL.epochs


def test_training_lowers_both_losses(finished):
    _, recorder, _ = finished
    first, *_, last = recorder.split("validation")
    assert last.s1 < first.s1
    assert last.s2 < first.s2


def test_the_fields_of_the_rows_fit_together(finished):
    _, recorder, _ = finished
    for row in recorder.rows:
        assert row.total == pytest.approx((row.s1 + row.s2) / 2, rel=1e-5)
        if row.split == "train":
            assert row.epsilon == 0.0
            assert row.grad_norm > 0
            assert row.tokens_per_second > 0
        else:
            assert row.exposure_gap == row.s2_own - row.s2
            assert row.horizon_loss > 0
    rates = [row.learning_rate for row in recorder.split("train")]
    assert rates[0] <= SMALL.learning_rate
    assert rates[-1] < rates[0]


def test_the_best_bundle_has_the_lowest_validation_loss(finished):
    result, recorder, folder = finished
    rows = [row for row in recorder.split("validation") if row.step >= 1]
    best = min(rows, key=lambda row: row.total)
    assert (result.best_step, result.best_loss) == (best.step, best.total)
    assert result.bundle_folder == folder / "best"
    bundle = load_bundle(result.bundle_folder, device="cpu")
    assert bundle.s2_rotary == "position"
    assert bundle.max_context == 64
    assert bundle.provenance["base"] == {"name": "tiny", "hash": make_bundle().hash}
    assert bundle.provenance["step"] == best.step
    assert bundle.provenance["validation"]["total"] == best.total
    assert TrainingConfig.from_dict(bundle.provenance["config"]) == SMALL
    again = evaluate(bundle.predictor, *validation_of(bundle))
    assert again.total == best.total


def validation_of(bundle: Bundle):
    bars = make_bars()
    starts = plan(len(bars), SMALL, 64).split.validation
    tokens = encode_windows(bundle.tokenizer, [(bars, starts)], SMALL, CPU, lambda done: None)
    return tokens, SMALL, CPU


def test_the_callers_bundle_and_random_state_stay_as_they_were(tmp_path):
    bundle, before = make_bundle(), torch.get_rng_state()
    untouched = copy.deepcopy(bundle.predictor.state_dict())
    config = replace(SMALL, epochs=1)
    train(bundle, make_bars(), config, folder=tmp_path, callbacks=Recorder())
    assert_equal_weights(bundle.predictor.state_dict(), untouched)
    assert not bundle.predictor.training
    assert bundle.predictor.s2_rotary == "origin"
    assert torch.equal(torch.get_rng_state(), before)


def test_a_finished_run_finishes_again_without_a_step(finished, tmp_path):
    result, _, folder = finished
    recorder = Recorder()
    again = train(make_bundle(), make_bars(), SMALL, folder=folder, callbacks=recorder)
    assert again == result
    assert recorder.rows == []


@pytest.mark.parametrize("text", ["0.5", "own", "linear:1:0@sequence"])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, text):
    bundle, bars = make_bundle(dropout=0.1), make_bars()
    config = replace(SMALL, teacher_forcing=TeacherForcing.parse(text))
    whole = Recorder()
    expected = train(bundle, bars, config, folder=tmp_path / "whole", callbacks=whole)
    rows, folder = {}, tmp_path / "parts"
    for stop_after in [0, *np.random.default_rng(1).integers(1, 5, size=3), None]:
        part = Recorder(stop_after)
        result = train(bundle, bars, config, folder=folder, callbacks=part)
        assert not rows.keys() & {(row.split, row.step) for row in part.rows}
        rows |= {(row.split, row.step): row for row in part.rows}
    assert result == replace(expected, bundle_folder=folder / "best")
    for split in ("train", "validation"):
        sent = [without_measures(row) for row in rows.values() if row.split == split]
        assert sent == whole.split(split)
    for name in ("best", "last"):
        assert_equal_weights(weights(folder / name), weights(tmp_path / "whole" / name))


def test_a_killed_run_repeats_the_steps_after_its_checkpoint_exactly(tmp_path):
    class Killed(Recorder):
        def on_step(self, step, total, epoch):
            super().on_step(step, total, epoch)
            if step == 6:
                raise KeyboardInterrupt

    config = replace(SMALL, teacher_forcing=TeacherForcing(start=0.5))
    bundle, bars, whole = make_bundle(dropout=0.1), make_bars(), Recorder()
    train(bundle, bars, config, folder=tmp_path / "whole", callbacks=whole)
    killed, rest = Killed(), Recorder()
    with pytest.raises(KeyboardInterrupt):
        train(bundle, bars, config, folder=tmp_path / "killed", callbacks=killed)
    train(bundle, bars, config, folder=tmp_path / "killed", callbacks=rest)
    first = rest.split("train")[0].step
    assert 1 < first <= 7
    assert killed.split("train")[: first - 1] + rest.split("train") == whole.split("train")
    assert_equal_weights(weights(tmp_path / "killed/last"), weights(tmp_path / "whole/last"))


def test_rows_up_to_a_checkpoint_are_sent_before_it_is_announced(finished):
    _, recorder, folder = finished
    announced = [message for kind, message in recorder.events if kind == "checkpoint"]
    assert announced[-1].endswith(f"at step {recorder.steps[-1]}.")
    assert load_checkpoint(folder / "checkpoint").progress["step"] == recorder.steps[-1]


def test_a_stop_keeps_the_best_so_far(tmp_path):
    recorder = Recorder(stop_after=5)
    result = train(make_bundle(), make_bars(), SMALL, folder=tmp_path, callbacks=recorder)
    assert (result.outcome, result.step) == ("stopped", 5)
    assert (
        result.best_step
        == min(
            (row for row in recorder.rows if row.split == "validation" and row.step),
            key=lambda r: r.total,
        ).step
    )
    assert load_bundle(result.bundle_folder, device="cpu").provenance["step"] == result.best_step
    assert not (tmp_path / "last").exists()
    assert recorder.events[-1][0] == "stopped"


def test_a_stop_while_encoding_ends_before_the_first_step(tmp_path):
    recorder = Recorder(stop_after=0)
    result = train(make_bundle(), make_bars(), SMALL, folder=tmp_path, callbacks=recorder)
    assert (result.outcome, result.step, result.bundle_folder) == ("stopped", 0, None)


def test_other_settings_data_or_model_cannot_resume(finished):
    _, _, folder = finished
    other = replace(SMALL, learning_rate=1e-3, epochs=5)
    with pytest.raises(ValueError, match=r"epochs \(was 2, now 5\), learning_rate \(was 0.003"):
        train(make_bundle(), make_bars(), other, folder=folder, callbacks=Recorder())
    with pytest.raises(ValueError, match="another run: data_hash"):
        train(make_bundle(), make_bars(141), SMALL, folder=folder, callbacks=Recorder())
    bundle = make_bundle()
    bundle.hash = "other"
    with pytest.raises(ValueError, match="another run: base_hash"):
        train(bundle, make_bars(), SMALL, folder=folder, callbacks=Recorder())


@pytest.mark.parametrize("text", ["true", "own"])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_loss_that_is_not_finite_stops_with_the_checkpoint_intact(
    tmp_path, monkeypatch, text, value
):
    update = Loop.update

    def poisoned(self, rows):
        if self.step == 4:
            with torch.no_grad():
                self.module.norm.weight.fill_(float(value))
        return update(self, rows)

    monkeypatch.setattr(Loop, "update", poisoned)
    config = replace(SMALL, teacher_forcing=TeacherForcing.parse(text))
    recorder = Recorder()
    with pytest.raises(NonFiniteLoss, match=r"became \w+ at step 5; lower the learning rate"):
        train(make_bundle(), make_bars(), config, folder=tmp_path, callbacks=recorder)
    assert [row.step for row in recorder.split("train")] == [1, 2, 3, 4]
    saved = load_checkpoint(tmp_path / "checkpoint")
    assert 0 < saved.progress["step"] <= 4
    assert all(tensor.isfinite().all() for tensor in saved.weights.values())
    assert all(tensor.isfinite().all() for tensor in weights(tmp_path / "best").values())


def test_a_validation_loss_that_is_not_finite_is_not_saved(tmp_path, monkeypatch):
    evaluation = Loop._evaluate

    def poisoned(self):
        if self.step > 0:
            with torch.no_grad():
                self.module.norm.weight.fill_(float("nan"))
        evaluation(self)

    monkeypatch.setattr(Loop, "_evaluate", poisoned)
    with pytest.raises(NonFiniteLoss, match="The last checkpoint and the best weights are kept"):
        train(make_bundle(), make_bars(), SMALL, folder=tmp_path, callbacks=Recorder())
    assert load_checkpoint(tmp_path / "checkpoint").progress["step"] == 0
    assert not (tmp_path / "best").exists()


def test_checkpoints_are_also_written_by_the_clock(tmp_path, monkeypatch):
    monkeypatch.setattr(loop_module, "CHECKPOINT_SECONDS", 0.0)
    recorder = Recorder(stop_after=3)
    config = replace(SMALL, evaluations_per_epoch=1)
    train(make_bundle(), make_bars(), config, folder=tmp_path, callbacks=recorder)
    assert [kind for kind, _ in recorder.events].count("checkpoint") == 5
    assert [path.name for path in (tmp_path / "checkpoint").iterdir()] == [FILE_NAME]


def test_validation_neither_depends_on_nor_disturbs_the_random_state():
    bundle = make_bundle(dropout=0.3)
    arguments = validation_of(bundle)
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        bundle.predictor.train(seed == 1)
        before = torch.get_rng_state()
        results.append(evaluate(bundle.predictor, *arguments))
        assert torch.equal(torch.get_rng_state(), before)
    assert results[0] == results[1]


def test_validation_losses_equal_compute_loss_over_the_same_windows():
    bundle = make_bundle()
    tokens, config, device = validation_of(bundle)
    rows = evenly_spaced(len(tokens), config.max_validation_windows)
    batch = tokens.batch(rows, device)
    targets = batch.s1_targets, batch.s2_targets
    logits = bundle.predictor(
        batch.s1, batch.s2, batch.stamp, use_teacher_forcing=True, s1_targets=targets[0]
    )
    total, s1, s2 = (loss.item() for loss in bundle.predictor.head.compute_loss(*logits, *targets))
    horizon = [part[:, -config.horizon :] for part in (*logits, *targets)]
    losses = evaluate(bundle.predictor, tokens, config, device)
    assert (losses.s1, losses.s2, losses.total) == pytest.approx((s1, s2, total), rel=1e-5)
    expected = bundle.predictor.head.compute_loss(*horizon)[0].item()
    assert losses.horizon_loss == pytest.approx(expected, rel=1e-5)


def loss_of(loop: Loop, rows: torch.Tensor, config: TrainingConfig) -> float:
    loop.task.config = config
    loop.random.draws.manual_seed(11)
    ((_, loss, _),) = loop.task.parts(rows, len(rows), 1, loop.random)
    return loss.item()


def test_ratio_one_is_teacher_forcing_and_zero_the_models_own_draw(tmp_path, monkeypatch):
    loop, rows = predictor_loop(SMALL, tmp_path), torch.arange(8)
    batch, model = loop.task.training.batch(rows, CPU), loop.module
    targets = batch.s1_targets, batch.s2_targets
    inputs = batch.s1, batch.s2, batch.stamp
    forced = model(*inputs, use_teacher_forcing=True, s1_targets=targets[0])
    own = model(*inputs, generator=torch.Generator().manual_seed(11))
    for ratio, logits in ((1.0, forced), (0.0, own)):
        expected = model.head.compute_loss(*logits, *targets)[0].item()
        exactly = replace(SMALL, teacher_forcing=TeacherForcing(start=ratio))
        assert loss_of(loop, rows, exactly) == expected
        # a ratio strictly between takes the way through the mask, here all truth or none
        with monkeypatch.context() as patch:
            mask = torch.full((8, 15), bool(ratio))
            patch.setattr(TeacherForcing, "mask", lambda *arguments, mask=mask: mask)
            between = replace(SMALL, teacher_forcing=TeacherForcing(start=0.5))
            assert loss_of(loop, rows, between) == expected


def test_four_windows_are_learned_by_heart(tmp_path):
    config = TrainingConfig(
        context=16,
        horizon=4,
        epochs=200,
        batch_size=4,
        learning_rate=1e-2,
        weight_decay=0.0,
        test_fraction=0.0,
        validation_fraction=0.01,
        stride=1,
        device="cpu",
        evaluations_per_epoch=1,
        teacher_forcing=TeacherForcing(start=1.0),
    )
    loop = predictor_loop(config, tmp_path)
    loop.task.total_steps = 200
    rows = torch.tensor([0, 30, 60, 80])
    measured = [loop.update(rows) for _ in range(200)]
    assert measured[-1].s1 < 0.05


def test_tokens_come_from_context_statistics_alone():
    bundle, bars = make_bundle(), make_bars()
    changed = bars.copy()
    changed.loc[changed.index >= 12, "close"] *= 3
    first, second = (
        encode_windows(bundle.tokenizer, [(frame, range(1))], SMALL, CPU, lambda done: None)
        for frame in (bars, changed)
    )
    assert torch.equal(first.s1[:, :12], second.s1[:, :12])
    assert torch.equal(first.s2[:, :12], second.s2[:, :12])
    assert not torch.equal(first.s1[:, 12:], second.s1[:, 12:])


def test_a_batch_is_shifted_by_one_bar_and_stamped_by_its_inputs():
    bundle, bars = make_bundle(), make_bars()
    tokens = encode_windows(
        bundle.tokenizer, [(bars, range(0, 90, 3))], SMALL, CPU, lambda done: None
    )
    assert tokens.s1.dtype == tokens.s2.dtype == torch.int16
    batch = tokens.batch(torch.tensor([0, 7]), CPU)
    assert batch.s1.shape == batch.s1_targets.shape == (2, 15)
    assert torch.equal(batch.s1[:, 1:], batch.s1_targets[:, :-1])
    assert torch.equal(batch.s2[:, 1:], batch.s2_targets[:, :-1])
    hours = bars["timestamps"].dt.hour.to_numpy()
    assert batch.stamp[1, :, 1].tolist() == hours[21:36].tolist()


def test_speed_forgets_what_is_long_ago():
    speed = Speed()
    for _ in range(10):
        speed.add(100, 1.0)
    speed.add(1000, 1.0)
    assert speed.per_second == pytest.approx((4 * 100 + 1000) / 5)
