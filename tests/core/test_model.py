"""What must hold for any weights: causality, teacher forcing, padding, refusals."""

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kronos_core.model.layers import TemporalEmbedding
from kronos_core.model.stamps import calendar_fields, expand_stamp
from tests.core.models import (
    PREDICTOR,
    random_ids,
    random_stamp,
    tiny_predictor,
    tiny_tokenizer,
)

ROWS, LENGTH = 3, 12
V1, V2 = 2 ** PREDICTOR["s1_bits"], 2 ** PREDICTOR["s2_bits"]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("bar", [1, 5, LENGTH - 1])
def test_no_logit_sees_a_later_bar(training: bool, bar: int) -> None:
    model = tiny_predictor().train(training)
    s1, s2 = random_ids(ROWS, LENGTH)
    stamp, targets = random_stamp(ROWS, LENGTH), random_ids(ROWS, LENGTH, seed=1)[0]
    forced = {"use_teacher_forcing": True}
    before = model(s1, s2, stamp, s1_targets=targets, **forced)
    s1, s2, stamp, targets = (t.clone() for t in (s1, s2, stamp, targets))
    s1[:, bar] = (s1[:, bar] + 1) % V1
    s2[:, bar] = (s2[:, bar] + 1) % V2
    stamp[:, bar] = 0
    targets[:, bar] = (targets[:, bar] + 1) % V1
    after = model(s1, s2, stamp, s1_targets=targets, **forced)
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old[:, :bar], new[:, :bar])
        assert not torch.allclose(old[:, bar:], new[:, bar:])


def test_tokenizer_is_causal() -> None:
    tokenizer = tiny_tokenizer()
    x = torch.randn(2, LENGTH, 6, generator=torch.Generator().manual_seed(0))
    changed = x.clone()
    changed[:, 7] += 1
    (_, fine), _, codes, _ = tokenizer(x)
    (_, fine_changed), _, codes_changed, _ = tokenizer(changed)
    assert torch.equal(codes[:, :7], codes_changed[:, :7])
    assert torch.equal(fine[:, :7], fine_changed[:, :7])


@given(st.integers(0, 2**31), st.integers(1, 6), st.integers(1, 6))
@settings(max_examples=20, deadline=None)
def test_ids_round_trip_through_bits(seed: int, s1_bits: int, s2_bits: int) -> None:
    tokenizer = tiny_tokenizer(s1_bits=s1_bits, s2_bits=s2_bits)
    generator = torch.Generator().manual_seed(seed)
    full = torch.randint(0, 2 ** (s1_bits + s2_bits), (2, 5), generator=generator)
    ones = (tokenizer.tokenizer.values_of_ids(full) > 0).long()
    s1, s2 = tokenizer.tokenizer.split_ids(ones)
    assert torch.equal(s1, full % 2**s1_bits)
    assert torch.equal(s2, full // 2**s1_bits)
    assert torch.equal(tokenizer.tokenizer.join_ids(s1, s2), full)
    assert torch.equal(tokenizer.decode(full), tokenizer.decode([s1, s2], half=True))


def test_quantiser_passes_the_gradient_straight_through() -> None:
    tokenizer = tiny_tokenizer()
    x = torch.randn(2, LENGTH, 6, generator=torch.Generator().manual_seed(0))
    (coarse, fine), loss, _, _ = tokenizer(x)
    (coarse.square().mean() + fine.square().mean() + loss).backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in tokenizer.parameters())


class TestTeacherForcing:
    s1, s2 = random_ids(ROWS, LENGTH)
    targets = random_ids(ROWS, LENGTH, seed=1)[0]

    def run(self, **how: object) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(5)
        return tiny_predictor()(self.s1, self.s2, generator=generator, **how)

    def test_targets_do_not_change_s1(self) -> None:
        own = self.run()
        forced = self.run(use_teacher_forcing=True, s1_targets=self.targets)
        assert torch.equal(own[0], forced[0])
        assert not torch.allclose(own[1], forced[1])

    def test_ratio_one_is_teacher_forcing(self) -> None:
        forced = self.run(use_teacher_forcing=True, s1_targets=self.targets)
        ratio = self.run(teacher_forcing_ratio=1.0, s1_targets=self.targets)
        assert torch.equal(forced[1], ratio[1])

    def test_ratio_zero_is_own_draws(self) -> None:
        ratio = self.run(teacher_forcing_ratio=0.0, s1_targets=self.targets)
        assert torch.equal(self.run()[1], ratio[1])

    def test_mask_per_token_picks_the_condition_of_each_position(self) -> None:
        generator = torch.Generator().manual_seed(0)
        mask = torch.rand(ROWS, LENGTH, generator=generator) < 0.5
        mixed = self.run(teacher_forcing_mask=mask, s1_targets=self.targets)[1]
        forced = self.run(use_teacher_forcing=True, s1_targets=self.targets)[1]
        own = self.run()[1]
        torch.testing.assert_close(mixed, torch.where(mask[..., None], forced, own))

    def test_mask_per_sequence_picks_whole_rows(self) -> None:
        mask = torch.tensor([True, False, True])
        mixed = self.run(teacher_forcing_mask=mask, s1_targets=self.targets)[1]
        forced = self.run(use_teacher_forcing=True, s1_targets=self.targets)[1]
        own = self.run()[1]
        torch.testing.assert_close(mixed, torch.where(mask[:, None, None], forced, own))

    def test_own_draws_follow_the_generator(self) -> None:
        assert torch.equal(self.run()[1], self.run()[1])

    @pytest.mark.parametrize(
        ("how", "reason"),
        [
            ({"use_teacher_forcing": True}, "needs s1_targets"),
            ({"teacher_forcing_ratio": 0.5}, "needs s1_targets"),
            ({"teacher_forcing_ratio": 1.5, "s1_targets": targets}, r"\[0, 1\], got 1.5"),
            ({"use_teacher_forcing": True, "s1_targets": targets[:, :3]}, "s1_targets must have"),
            ({"use_teacher_forcing": True, "s1_targets": targets + V1}, "s1 target ids"),
            (
                {"teacher_forcing_mask": torch.ones(2, dtype=torch.bool), "s1_targets": targets},
                "teacher_forcing_mask must be boolean",
            ),
        ],
    )
    def test_refusals(self, how: dict[str, object], reason: str) -> None:
        with pytest.raises(ValueError, match=reason):
            self.run(**how)


def test_padded_keys_get_no_weight() -> None:
    model = tiny_predictor()
    s1, s2 = random_ids(1, LENGTH)
    padding = torch.zeros(1, LENGTH, dtype=torch.long)
    padding[:, :4] = 1
    targets = random_ids(1, LENGTH, seed=2)[0]
    forced = {"use_teacher_forcing": True, "padding_mask": padding}
    before = model(s1, s2, s1_targets=targets, **forced)
    changed = s1.clone()
    changed[:, :4] = (changed[:, :4] + 3) % V1
    after = model(changed, s2, s1_targets=targets, **forced)
    for old, new in zip(before, after, strict=True):
        assert bool(torch.isfinite(old).all())
        assert torch.equal(old[:, 4:], new[:, 4:])


def test_left_padding_changes_nothing_for_the_real_bars() -> None:
    model = tiny_predictor()
    s1, s2 = random_ids(1, LENGTH)
    plain, _ = model(s1, s2)
    wide = [torch.cat((ids.new_zeros(1, 5), ids), dim=1) for ids in (s1, s2)]
    padding = torch.cat((torch.ones(1, 5), torch.zeros(1, LENGTH)), dim=1)
    padded, _ = model(*wide, padding_mask=padding)
    torch.testing.assert_close(padded[:, 5:], plain, atol=1e-5, rtol=0)


def test_fixed_time_embeddings_stay_sinusoids() -> None:
    model = tiny_predictor(learn_te=False)
    fresh = TemporalEmbedding(PREDICTOR["d_model"], learn_te=False)
    for name, table in fresh.state_dict().items():
        assert torch.equal(model.time_emb.state_dict()[name], table)
    assert not any(p.requires_grad for p in model.time_emb.parameters())


def test_initialisation_of_the_predictor() -> None:
    model = tiny_predictor(d_model=64, n_heads=4)
    assert model.embedding.emb_s2.weight.std().item() == pytest.approx(64**-0.5, rel=0.1)
    assert not model.transformer[0].self_attn.q_proj.bias.any()
    expected = (2 / (64 + 64)) ** 0.5
    assert model.transformer[0].self_attn.q_proj.weight.std().item() == pytest.approx(
        expected, rel=0.1
    )


@given(st.lists(st.datetimes(pd.Timestamp("1900-01-01"), pd.Timestamp("2199-12-31")), min_size=1))
@settings(max_examples=50, deadline=None)
def test_minutes_since_1970_expand_to_the_calendar(moments: list[pd.Timestamp]) -> None:
    stamps = pd.DatetimeIndex(moments).floor("min")
    minutes = (stamps - pd.Timestamp("1970-01-01")) // pd.Timedelta(minutes=1)
    fields = calendar_fields(torch.tensor([list(minutes)]))[0].tolist()
    assert fields == [[t.minute, t.hour, t.weekday(), t.day, t.month] for t in stamps]


def test_minute_stamps_equal_their_fields_in_the_model() -> None:
    model = tiny_predictor()
    s1, s2 = random_ids(ROWS, LENGTH)
    minutes = torch.arange(LENGTH).repeat(ROWS, 1) * 1440 + 28_000_000
    torch.testing.assert_close(
        model.decode_s1(s1, s2, minutes)[0], model.decode_s1(s1, s2, calendar_fields(minutes))[0]
    )


@pytest.mark.parametrize(
    ("stamp", "reason"),
    [
        (torch.zeros(2, 3, 4), "5 fields, got 4"),
        (torch.zeros(2, 4, 5), "stamp must have shape"),
        (torch.zeros(2, 3), "whole minutes"),
        (torch.tensor([60, 0, 0, 1, 1]).expand(2, 3, 5), "minute must lie in 0…59"),
        (torch.tensor([0, 0, 0, 1, 13]).expand(2, 3, 5), "month must lie in 0…12"),
    ],
)
def test_stamps_that_cannot_be(stamp: torch.Tensor, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        expand_stamp(stamp, (2, 3))


@pytest.mark.parametrize(
    ("s1", "s2", "reason"),
    [
        (torch.full((1, 4), V1), torch.zeros(1, 4, dtype=torch.long), "s1 ids must lie in 0…15"),
        (torch.zeros(1, 4, dtype=torch.long), torch.full((1, 4), -1), "s2 ids must lie in"),
        (torch.zeros(1, 4), torch.zeros(1, 4), "whole numbers"),
        (torch.zeros(1, 4, dtype=torch.long), torch.zeros(1, 5, dtype=torch.long), "one shape"),
        (torch.zeros(4, dtype=torch.long), torch.zeros(4, dtype=torch.long), "one shape"),
    ],
)
def test_ids_that_cannot_be(s1: torch.Tensor, s2: torch.Tensor, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        tiny_predictor()(s1, s2)


def test_bars_that_cannot_be_encoded() -> None:
    tokenizer = tiny_tokenizer()
    with pytest.raises(ValueError, match=r"\[B,T,6\], got \(2, 4, 5\)"):
        tokenizer.encode(torch.zeros(2, 4, 5))
    with pytest.raises(ValueError, match="NaN"):
        tokenizer.encode(torch.full((1, 4, 6), torch.nan))
    with pytest.raises(ValueError, match="full ids must lie in"):
        tokenizer.decode(torch.full((1, 4), 2**7))
    with pytest.raises(ValueError, match="half=True"):
        tokenizer.decode([torch.zeros(1, 4, dtype=torch.long)] * 2)


def test_losses_that_cannot_be() -> None:
    head = tiny_predictor().head
    s1, s2 = random_ids(1, 4)
    logits = (torch.zeros(1, 4, V1), torch.zeros(1, 4, V2))
    with pytest.raises(ValueError, match="every position is padding"):
        head.compute_loss(*logits, s1, s2, torch.ones(1, 4))
    with pytest.raises(ValueError, match="s2 logits of shape"):
        head.compute_loss(*logits, s1, s2[:, :3])


def test_one_s1_or_one_per_state() -> None:
    model = tiny_predictor()
    s1, s2 = random_ids(1, 6)
    _, hidden = model.decode_s1(s1, s2)
    assert model.decode_s2(hidden, s1).shape == (1, 6, V2)
    assert model.decode_s2(hidden, s1[:, -1:]).shape == (1, 1, V2)
    with pytest.raises(ValueError, match="2 s1 ids for 6 hidden states"):
        model.decode_s2(hidden, s1[:, :2])


def test_single_query_by_position_equals_training() -> None:
    model = tiny_predictor()
    model.s2_rotary = "position"
    s1, s2 = random_ids(2, 6)
    _, hidden = model.decode_s1(s1, s2)
    torch.testing.assert_close(
        model.decode_s2(hidden, s1[:, -1:])[:, 0], model.decode_s2(hidden, s1)[:, -1]
    )


def test_widths_that_cannot_be_split() -> None:
    with pytest.raises(ValueError, match="d_model 18 must split into 4 heads"):
        tiny_predictor(d_model=18, n_heads=4)
