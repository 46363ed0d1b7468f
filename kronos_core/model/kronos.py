"""The predictor: a causal transformer over s1/s2 tokens with a dependency-aware s2 head.

Shape letters: B rows, T time, D width, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor, nn

from kronos_core.model.layers import (
    DependencyAwareLayer,
    DualHead,
    FixedEmbedding,
    HierarchicalEmbedding,
    RMSNorm,
    RotaryMode,
    TemporalEmbedding,
    TransformerBlock,
)
from kronos_core.model.pretrained import Pretrained
from kronos_core.model.stamps import expand_stamp
from kronos_core.model.tokenizer import check_ids


class Kronos(Pretrained):
    """Predicts the next bar's s1 from the past, and its s2 from the past and an s1.

    `s2_rotary` says how `decode_s2` rotates a single query: "origin" as the release does at
    inference, "position" as both do in training.
    """

    def __init__(
        self,
        s1_bits: int,
        s2_bits: int,
        n_layers: int,
        d_model: int,
        n_heads: int,
        ff_dim: int,
        ffn_dropout_p: float,
        attn_dropout_p: float,
        resid_dropout_p: float,
        token_dropout_p: float,
        learn_te: bool,
    ) -> None:
        super().__init__()
        self.config: dict[str, Any] = {
            name: value for name, value in locals().items() if name not in ("self", "__class__")
        }
        self.s1_vocab_size = 2**s1_bits
        self.s2_vocab_size = 2**s2_bits
        self.d_model = d_model
        self.s2_rotary: RotaryMode = "origin"
        self.embedding = HierarchicalEmbedding(s1_bits, s2_bits, d_model)
        self.time_emb = TemporalEmbedding(d_model, learn_te)
        self.token_drop = nn.Dropout(token_dropout_p)
        self.transformer = nn.ModuleList(
            TransformerBlock(
                d_model, n_heads, ff_dim, ffn_dropout_p, attn_dropout_p, resid_dropout_p
            )
            for _ in range(n_layers)
        )
        self.norm = RMSNorm(d_model)
        self.dep_layer = DependencyAwareLayer(d_model)
        self.head = DualHead(s1_bits, s2_bits, d_model)
        self._initialise()

    def _initialise(self) -> None:
        fixed = {id(m.emb) for m in self.modules() if isinstance(m, FixedEmbedding)}
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_normal_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding) and id(module) not in fixed:
                nn.init.normal_(module.weight, std=self.d_model**-0.5)

    def forward(
        self,
        s1_ids: Tensor,
        s2_ids: Tensor,
        stamp: Tensor | None = None,
        padding_mask: Tensor | None = None,
        use_teacher_forcing: bool = False,
        s1_targets: Tensor | None = None,
        *,
        teacher_forcing_ratio: float | None = None,
        teacher_forcing_mask: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Logits of the next bar: s1 [B,T,V1] and s2 [B,T,V2].

        s1_ids, s2_ids [B,T]; stamp [B,T,5], or [B,T] whole minutes since 1970; padding_mask [B,T]
        nonzero where padded. s2 is conditioned on s1_targets [B,T] with use_teacher_forcing, on
        one draw from the s1 distribution otherwise, and on a mixture with teacher_forcing_ratio
        (chance of truth per position) or teacher_forcing_mask ([B] or [B,T], True is truth).
        Raises ValueError for ids out of range, shapes that do not fit and missing targets.
        """
        s1_logits, hidden = self.decode_s1(s1_ids, s2_ids, stamp, padding_mask)
        truth = truth_mask(
            s1_ids,
            s1_targets,
            use_teacher_forcing,
            teacher_forcing_ratio,
            teacher_forcing_mask,
            generator,
        )
        condition = self._condition(s1_logits, s1_targets, truth, generator)
        return s1_logits, self.decode_s2(hidden, condition, padding_mask)

    def _condition(
        self,
        s1_logits: Tensor,
        s1_targets: Tensor | None,
        truth: Tensor | None,
        generator: torch.Generator | None,
    ) -> Tensor:
        """The s1 ids [B,T] that condition s2; truth None means own draws everywhere."""
        if s1_targets is not None:
            check_ids("s1 target", s1_targets, self.s1_vocab_size)
            if truth is not None and bool(truth.all()):
                return s1_targets
        drawn = draw_ids(s1_logits, generator)
        if truth is None or s1_targets is None:
            return drawn
        return torch.where(truth, s1_targets, drawn)

    def decode_s1(
        self,
        s1_ids: Tensor,
        s2_ids: Tensor,
        stamp: Tensor | None = None,
        padding_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """s1 logits [B,T,V1] and the hidden states [B,T,D] that decode_s2 needs."""
        self._check_inputs(s1_ids, s2_ids, padding_mask)
        x = self.embed(s1_ids, s2_ids, stamp)
        for block in self.transformer:
            x = block(x, padding_mask)
        hidden = self.norm(x)
        return self.head(hidden), hidden

    def decode_s2(
        self, hidden: Tensor, s1_ids: Tensor, padding_mask: Tensor | None = None
    ) -> Tensor:
        """s2 logits for hidden states [B,T,D] conditioned on s1_ids [B,T], or [B,1] (last bar)."""
        check_ids("s1", s1_ids, self.s1_vocab_size)
        sibling = self.embedding.emb_s1(s1_ids)
        conditioned = self.dep_layer(hidden, sibling, padding_mask, self.s2_rotary)
        return self.head.cond_forward(conditioned)

    def embed(self, s1_ids: Tensor, s2_ids: Tensor, stamp: Tensor | None) -> Tensor:
        """Token and time embeddings [B,T,D] with token dropout."""
        x = self.embedding([s1_ids, s2_ids])
        if stamp is not None:
            x = x + self.time_emb(expand_stamp(stamp, tuple(s1_ids.shape)))
        out: Tensor = self.token_drop(x)
        return out

    def _check_inputs(self, s1_ids: Tensor, s2_ids: Tensor, padding_mask: Tensor | None) -> None:
        if s1_ids.ndim != 2 or s1_ids.shape != s2_ids.shape:
            raise ValueError(
                "s1_ids and s2_ids must share one shape [B,T], "
                f"got {tuple(s1_ids.shape)} and {tuple(s2_ids.shape)}"
            )
        check_ids("s1", s1_ids, self.s1_vocab_size)
        check_ids("s2", s2_ids, self.s2_vocab_size)
        if padding_mask is not None and padding_mask.shape != s1_ids.shape:
            raise ValueError(
                f"padding_mask must have shape {tuple(s1_ids.shape)}, "
                f"got {tuple(padding_mask.shape)}"
            )


def draw_ids(logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """One draw per position from logits [B,T,V] -> ids [B,T], without gradient.

    By inverse transform: one random number per position, where torch.multinomial draws V of them.
    """
    edges = torch.softmax(logits.detach().float(), dim=-1).cumsum(dim=-1)
    total = edges[..., -1:]
    uniform = torch.rand(total.shape, generator=generator, device=logits.device)
    # Rounding must not lift the target onto the last edge, where tokens of weight 0 may lie.
    target = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(edges, target, right=True)[..., 0]


def truth_mask(
    s1_ids: Tensor,
    s1_targets: Tensor | None,
    use_teacher_forcing: bool,
    ratio: float | None,
    mask: Tensor | None,
    generator: torch.Generator | None,
) -> Tensor | None:
    """Where the true s1 conditions s2, as a boolean [B,T]; None means nowhere."""
    if ratio is None and mask is None and not use_teacher_forcing:
        return None
    if ratio is not None and mask is not None:
        raise ValueError("give teacher_forcing_ratio or teacher_forcing_mask, not both")
    if s1_targets is None:
        raise ValueError("teacher forcing needs s1_targets: pass the true s1 ids [B,T]")
    if s1_targets.shape != s1_ids.shape:
        raise ValueError(
            f"s1_targets must have shape {tuple(s1_ids.shape)}, got {tuple(s1_targets.shape)}"
        )
    if ratio is not None:
        if not 0.0 <= ratio <= 1.0:
            raise ValueError(f"teacher_forcing_ratio must lie in [0, 1], got {ratio}")
        if ratio == 0.0:
            return None  # nothing drawn for the coin: the same draws as without teacher forcing
        chances = torch.rand(s1_ids.shape, generator=generator, device=s1_ids.device)
        return chances < ratio
    if mask is not None:
        return _broadcast_mask(mask, s1_ids)
    return torch.ones_like(s1_ids, dtype=torch.bool)


def _broadcast_mask(mask: Tensor, s1_ids: Tensor) -> Tensor:
    rows, length = s1_ids.shape
    if mask.dtype != torch.bool or tuple(mask.shape) not in ((rows,), (rows, length)):
        raise ValueError(
            f"teacher_forcing_mask must be boolean of shape [{rows}] or [{rows}, {length}], "
            f"got {mask.dtype} of shape {list(mask.shape)}"
        )
    mask = mask.to(s1_ids.device)
    return mask[:, None].expand(rows, length) if mask.ndim == 1 else mask
