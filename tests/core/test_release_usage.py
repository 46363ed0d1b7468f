"""What users of the release do with the model works here, with the import changed alone."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from kronos_core import (
    DependencyAwareLayer,
    DualHead,
    HierarchicalEmbedding,
    Kronos,
    KronosTokenizer,
)

BITS, WIDTH, BATCH, LENGTH = 8, 32, 3, 10
VOCABULARY = 2**BITS


@pytest.fixture
def model() -> Kronos:
    torch.manual_seed(0)
    return Kronos(
        s1_bits=BITS, s2_bits=BITS, n_layers=2, d_model=WIDTH, n_heads=4, ff_dim=64,
        ffn_dropout_p=0.1, attn_dropout_p=0.1, resid_dropout_p=0.1, token_dropout_p=0.05,
        learn_te=True,
    )  # fmt: skip


@pytest.fixture
def ids() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return tuple(torch.randint(0, VOCABULARY, (BATCH, LENGTH)) for _ in range(2))


def test_training_step_with_a_stamp_of_minutes_and_two_losses(
    model: Kronos, ids: tuple[torch.Tensor, torch.Tensor]
) -> None:
    s1, s2 = ids
    minutes = torch.arange(LENGTH).expand(BATCH, LENGTH)
    s1_logits, s2_logits = model.forward(
        s1, s2, stamp=minutes, use_teacher_forcing=True, s1_targets=s1.clone()
    )
    first = cross_entropy(s1_logits.view(-1, model.s1_vocab_size), s1.view(-1))
    second = cross_entropy(s2_logits.view(-1, model.s2_vocab_size), s2.view(-1))
    (first + second).backward()
    reached = {name for name, p in model.named_parameters() if p.grad is not None}
    assert reached == dict(model.named_parameters()).keys()


@torch.no_grad()
def test_generation_without_targets(model: Kronos, ids: tuple[torch.Tensor, torch.Tensor]) -> None:
    s1_logits, s2_logits = model.eval().forward(*ids, use_teacher_forcing=False)
    assert s1_logits.shape == s2_logits.shape == (BATCH, LENGTH, VOCABULARY)
    assert s1_logits.argmax(-1).shape == (BATCH, LENGTH)


@torch.no_grad()
def test_staged_decoding_equals_the_forward_pass(
    model: Kronos, ids: tuple[torch.Tensor, torch.Tensor]
) -> None:
    model.eval()
    s1_logits, context = model.decode_s1(*ids, stamp=None, padding_mask=None)
    picked = s1_logits.argmax(-1)
    s2_logits = model.decode_s2(context, picked)
    forward = model(*ids, use_teacher_forcing=True, s1_targets=picked)
    assert torch.equal(forward[0], s1_logits)
    assert torch.equal(forward[1], s2_logits)


@torch.no_grad()
def test_conditioning_by_hand_equals_the_forward_pass(
    model: Kronos, ids: tuple[torch.Tensor, torch.Tensor]
) -> None:
    model.eval()
    assert isinstance(model.embedding, HierarchicalEmbedding)
    assert isinstance(model.dep_layer, DependencyAwareLayer)
    x = model.token_drop(model.embedding([*ids]))
    for layer in model.transformer:
        x = layer(x)
    x = model.norm(x)
    s1_logits = model.head(x)
    probabilities = torch.softmax(s1_logits, dim=-1).view(-1, model.s1_vocab_size)
    drawn = torch.multinomial(probabilities, 1).view(BATCH, LENGTH)
    conditioned = model.dep_layer(x, model.embedding.emb_s1(drawn))
    s2_logits = model.head.cond_forward(conditioned)
    expected = model(*ids, use_teacher_forcing=True, s1_targets=drawn)
    assert torch.equal(expected[0], s1_logits)
    assert torch.equal(expected[1], s2_logits)


def test_loss_of_a_head_alone() -> None:
    torch.manual_seed(0)
    s1_logits, s2_logits = (
        torch.randn(BATCH, LENGTH, VOCABULARY, requires_grad=True) for _ in range(2)
    )
    s1, s2 = (torch.randint(0, VOCABULARY, (BATCH, LENGTH)) for _ in range(2))
    head = DualHead(BITS, BITS, WIDTH)
    total, first, second = head.compute_loss(s1_logits, s2_logits, s1, s2)
    total.backward()
    assert total.item() == pytest.approx((first.item() + second.item()) / 2)
    assert first.item() == pytest.approx(
        cross_entropy(s1_logits.flatten(0, 1), s1.flatten()).item(), rel=1e-5
    )
    assert s1_logits.grad is not None
    assert s2_logits.grad is not None


def test_training_loop_over_encoded_bars(model: Kronos) -> None:
    tokenizer = KronosTokenizer(
        d_in=6, d_model=WIDTH, n_heads=4, ff_dim=64, n_enc_layers=2, n_dec_layers=2,
        ffn_dropout_p=0.0, attn_dropout_p=0.0, resid_dropout_p=0.0, s1_bits=BITS, s2_bits=BITS,
        beta=0.05, gamma0=1.0, gamma=1.1, zeta=0.05, group_size=4,
    ).eval()  # fmt: skip
    model.train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    bars = torch.randn(BATCH, LENGTH, 6)
    stamp = torch.zeros(BATCH, LENGTH, 5, dtype=torch.long)
    losses = []
    for _ in range(30):
        with torch.no_grad():
            s1, s2 = tokenizer.encode(bars, half=True)
        logits = model(s1[:, :-1], s2[:, :-1], stamp[:, :-1, :])
        loss, _, _ = model.head.compute_loss(*logits, s1[:, 1:], s2[:, 1:])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
