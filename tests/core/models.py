"""Small random models for tests."""

from typing import Any

import torch

from kronos_core import Bundle, Kronos, KronosTokenizer

TOKENIZER: dict[str, Any] = {
    "d_in": 6, "d_model": 16, "n_heads": 2, "ff_dim": 24, "n_enc_layers": 2, "n_dec_layers": 3,
    "ffn_dropout_p": 0.0, "attn_dropout_p": 0.0, "resid_dropout_p": 0.0, "s1_bits": 4,
    "s2_bits": 3, "beta": 0.05, "gamma0": 1.0, "gamma": 1.1, "zeta": 0.05, "group_size": 7,
}  # fmt: skip
PREDICTOR: dict[str, Any] = {
    "s1_bits": 4, "s2_bits": 3, "n_layers": 2, "d_model": 16, "n_heads": 2, "ff_dim": 24,
    "ffn_dropout_p": 0.0, "attn_dropout_p": 0.0, "resid_dropout_p": 0.0, "token_dropout_p": 0.0,
    "learn_te": True,
}  # fmt: skip


def tiny_tokenizer(seed: int = 0, **changes: Any) -> KronosTokenizer:
    torch.manual_seed(seed)
    return KronosTokenizer(**(TOKENIZER | changes)).eval()


def tiny_predictor(seed: int = 0, **changes: Any) -> Kronos:
    torch.manual_seed(seed)
    return Kronos(**(PREDICTOR | changes)).eval()


def tiny_bundle(seed: int = 0, **settings: Any) -> Bundle:
    """A bundle whose s1 and s2 widths differ, so that mixing them up shows."""
    return Bundle(
        name="tiny",
        tokenizer=tiny_tokenizer(seed),
        predictor=tiny_predictor(seed),
        **({"max_context": 64, "s2_rotary": "position"} | settings),
    )


def random_ids(rows: int, length: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    s1 = torch.randint(0, 2 ** PREDICTOR["s1_bits"], (rows, length), generator=generator)
    s2 = torch.randint(0, 2 ** PREDICTOR["s2_bits"], (rows, length), generator=generator)
    return s1, s2


def random_stamp(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    limits = (60, 24, 7, 32, 13)
    fields = [torch.randint(0, limit, (rows, length), generator=generator) for limit in limits]
    return torch.stack(fields, dim=-1)
