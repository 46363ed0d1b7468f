"""Building blocks shared by the tokenizer and the predictor.

Shape letters: B rows, T time, D width, N heads, E head width, V vocabulary.
Attribute names follow the released checkpoints, so that their state dicts load strictly.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812 (the name everyone knows)
from torch import Tensor, nn

RotaryMode = Literal["origin", "position"]
DEPENDENCY_HEADS = 4  # the release builds its dependency layer with four heads at every width


class RMSNorm(nn.Module):
    """Root-mean-square normalisation over the last axis, computed in float32."""

    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale).type_as(x) * self.weight


class FeedForward(nn.Module):
    """Gated feed-forward layer, w2(silu(w1 x) · w3 x), without biases."""

    def __init__(self, d_model: int, ff_dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.w1 = nn.Linear(d_model, ff_dim, bias=False)
        self.w3 = nn.Linear(d_model, ff_dim, bias=False)
        self.w2 = nn.Linear(ff_dim, d_model, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.dropout(self.w2(F.silu(self.w1(x)) * self.w3(x)))
        return out


class Rotary(nn.Module):
    """Rotary position embedding over the whole head, in the half-split form (Su et al. 2021)."""

    inv_freq: Tensor

    def __init__(self, head_dim: int, base: float = 10000.0) -> None:
        super().__init__()
        exponent = torch.arange(0, head_dim, 2).float() / head_dim
        self.register_buffer("inv_freq", 1.0 / base**exponent)

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """Rotate x [B,N,T,E], whose first row stands at position `start`."""
        positions = torch.arange(start, start + x.shape[-2], device=x.device, dtype=torch.float32)
        angles = torch.outer(positions, self.inv_freq.float())
        cos = torch.cat((angles, angles), dim=-1).cos().type_as(x)
        sin = torch.cat((angles, angles), dim=-1).sin().type_as(x)
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-second, first), dim=-1) * sin


def attention_mask(padding_mask: Tensor | None, length: int) -> Tensor | None:
    """Boolean mask [B,1,T,T], True where a query may look; None means plain causal.

    padding_mask [B,T] is nonzero where a bar is padding. Every position may look at itself, so
    that a padded row has a finite (and unused) output.
    """
    if padding_mask is None:
        return None
    causal = torch.ones(length, length, dtype=torch.bool, device=padding_mask.device).tril()
    real_keys = (padding_mask == 0)[:, None, None, :]
    itself = torch.eye(length, dtype=torch.bool, device=padding_mask.device)
    return (causal & real_keys) | itself


class Attention(nn.Module):
    """Multi-head attention with rotary positions; queries and keys may come from two sources."""

    def __init__(
        self, d_model: int, n_heads: int, attn_dropout: float = 0.0, resid_dropout: float = 0.0
    ) -> None:
        super().__init__()
        if d_model % n_heads or (d_model // n_heads) % 2:
            raise ValueError(
                f"d_model {d_model} must split into {n_heads} heads of an even width; "
                "change d_model or n_heads"
            )
        self.n_heads = n_heads
        self.attn_dropout = attn_dropout
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        self.rotary = Rotary(d_model // n_heads)
        self.resid_dropout = nn.Dropout(resid_dropout)

    def split_heads(self, x: Tensor) -> Tensor:
        """[B,T,D] -> [B,N,T,E]."""
        rows, length, _ = x.shape
        return x.view(rows, length, self.n_heads, -1).transpose(1, 2)

    def queries(self, x: Tensor, start: int = 0) -> Tensor:
        """Rotated queries [B,N,T,E] of x [B,T,D] standing at positions start, start+1, …"""
        rotated: Tensor = self.rotary(self.split_heads(self.q_proj(x)), start)
        return rotated

    def keys_values(self, x: Tensor, start: int = 0) -> tuple[Tensor, Tensor]:
        """Rotated keys and plain values, each [B,N,T,E]."""
        keys = self.rotary(self.split_heads(self.k_proj(x)), start)
        return keys, self.split_heads(self.v_proj(x))

    def merge_heads(self, x: Tensor) -> Tensor:
        """[B,N,T,E] -> output [B,T,D]."""
        out: Tensor = self.resid_dropout(self.out_proj(x.transpose(1, 2).flatten(2)))
        return out

    def causal(self, query: Tensor, source: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Query t looks at the source up to t, in training and in evaluation alike."""
        keys, values = self.keys_values(source)
        mask = attention_mask(padding_mask, source.shape[1])
        out = F.scaled_dot_product_attention(
            self.queries(query),
            keys,
            values,
            attn_mask=mask,
            is_causal=mask is None,
            dropout_p=self.attn_dropout if self.training else 0.0,
        )
        return self.merge_heads(out)


class SelfAttention(Attention):
    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        return self.causal(x, x, padding_mask)


class CrossAttention(Attention):
    """Attention of s1 embeddings over the transformer's hidden states."""

    def single_query(self, query: Tensor, rotary: RotaryMode, position: int) -> Tensor:
        """Query [B,N,1,E] of the last bar; "origin" leaves it and its keys unrotated (release)."""
        return self.queries(query, 0 if rotary == "origin" else position)

    def source(self, hidden: Tensor, rotary: RotaryMode, start: int = 0) -> tuple[Tensor, Tensor]:
        """Keys and values [B,N,T,E] of hidden states for single queries."""
        if rotary == "position":
            return self.keys_values(hidden, start)
        return self.split_heads(self.k_proj(hidden)), self.split_heads(self.v_proj(hidden))

    def forward(
        self,
        query: Tensor,
        source: Tensor,
        padding_mask: Tensor | None = None,
        rotary: RotaryMode = "origin",
    ) -> Tensor:
        """Query [B,T,D], causal over source [B,T,D]; or [B,1,D], the last bar over all of it."""
        length = source.shape[1]
        if query.shape[1] == length:
            return self.causal(query, source, padding_mask)
        if query.shape[1] != 1:
            raise ValueError(
                f"{query.shape[1]} s1 ids for {length} hidden states: "
                "pass one per state, or a single one for the last state"
            )
        keys, values = self.source(source, rotary)
        mask = None if padding_mask is None else (padding_mask == 0)[:, None, None, :]
        heads = self.single_query(query, rotary, length - 1)
        return self.merge_heads(F.scaled_dot_product_attention(heads, keys, values, mask))


class TransformerBlock(nn.Module):
    """Pre-norm block: x + attention(norm1 x), then x + feed-forward(norm2 x)."""

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        ff_dim: int,
        ffn_dropout: float = 0.0,
        attn_dropout: float = 0.0,
        resid_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm1 = RMSNorm(d_model)
        self.self_attn = SelfAttention(d_model, n_heads, attn_dropout, resid_dropout)
        self.norm2 = RMSNorm(d_model)
        self.ffn = FeedForward(d_model, ff_dim, ffn_dropout)

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        x = x + self.self_attn(self.norm1(x), padding_mask)
        out: Tensor = x + self.ffn(self.norm2(x))
        return out


class DependencyAwareLayer(nn.Module):
    """Conditions the hidden states on s1: RMSNorm(hidden + cross-attention(s1 over hidden))."""

    def __init__(self, d_model: int, n_heads: int = DEPENDENCY_HEADS) -> None:
        super().__init__()
        self.cross_attn = CrossAttention(d_model, n_heads)
        self.norm = RMSNorm(d_model)

    def forward(
        self,
        hidden_states: Tensor,
        sibling_embed: Tensor,
        key_padding_mask: Tensor | None = None,
        rotary: RotaryMode = "origin",
    ) -> Tensor:
        """Hidden states [B,T,D] and s1 embeddings [B,T,D] -> [B,T,D].

        With one s1 embedding [B,1,D] the result [B,1,D] belongs to the last state.
        """
        attended = self.cross_attn(sibling_embed, hidden_states, key_padding_mask, rotary)
        out: Tensor = self.norm(hidden_states[:, -attended.shape[1] :] + attended)
        return out


class HierarchicalEmbedding(nn.Module):
    """Embeds pairs of s1 and s2 ids and fuses them into one vector per bar."""

    def __init__(self, s1_bits: int, s2_bits: int, d_model: int) -> None:
        super().__init__()
        self.scale = math.sqrt(d_model)
        self.emb_s1 = nn.Embedding(2**s1_bits, d_model)
        self.emb_s2 = nn.Embedding(2**s2_bits, d_model)
        self.fusion_proj = nn.Linear(2 * d_model, d_model)

    def forward(self, token_ids: Sequence[Tensor]) -> Tensor:
        """[s1 ids [B,T], s2 ids [B,T]] -> [B,T,D]."""
        s1_ids, s2_ids = token_ids
        pair = torch.cat((self.emb_s1(s1_ids), self.emb_s2(s2_ids)), dim=-1)
        out: Tensor = self.fusion_proj(pair * self.scale)
        return out


class FixedEmbedding(nn.Module):
    """Sinusoids of Vaswani et al. 2017 in a table; never trained, never re-initialised."""

    def __init__(self, size: int, d_model: int) -> None:
        super().__init__()
        position = torch.arange(size).float()[:, None]
        rate = torch.exp(torch.arange(0, d_model, 2).float() * -(math.log(10000.0) / d_model))
        table = torch.zeros(size, d_model)
        table[:, 0::2] = torch.sin(position * rate)
        table[:, 1::2] = torch.cos(position * rate)
        self.emb = nn.Embedding(size, d_model)
        self.emb.weight = nn.Parameter(table, requires_grad=False)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.emb(ids)
        return out


class TemporalEmbedding(nn.Module):
    """Sum of the embeddings of minute, hour, weekday, day and month."""

    SIZES = (60, 24, 7, 32, 13)

    def __init__(self, d_model: int, learn_te: bool) -> None:
        super().__init__()
        table = nn.Embedding if learn_te else FixedEmbedding
        self.minute_embed, self.hour_embed, self.weekday_embed, self.day_embed, self.month_embed = (
            table(size, d_model) for size in self.SIZES
        )

    def forward(self, stamp: Tensor) -> Tensor:
        """Stamp [B,T,5] -> [B,T,D]."""
        minute, hour, weekday, day, month = stamp.long().unbind(-1)
        out: Tensor = (
            self.hour_embed(hour)
            + self.weekday_embed(weekday)
            + self.day_embed(day)
            + self.month_embed(month)
            + self.minute_embed(minute)
        )
        return out


class DualHead(nn.Module):
    """Projections to s1 and s2 logits, and the loss over both."""

    def __init__(self, s1_bits: int, s2_bits: int, d_model: int) -> None:
        super().__init__()
        self.vocab_s1 = 2**s1_bits
        self.vocab_s2 = 2**s2_bits
        self.proj_s1 = nn.Linear(d_model, self.vocab_s1)
        self.proj_s2 = nn.Linear(d_model, self.vocab_s2)

    def forward(self, x: Tensor) -> Tensor:
        """Hidden states [B,T,D] -> s1 logits [B,T,V]."""
        out: Tensor = self.proj_s1(x)
        return out

    def cond_forward(self, x2: Tensor) -> Tensor:
        """Conditioned states [B,T,D] -> s2 logits [B,T,V]."""
        out: Tensor = self.proj_s2(x2)
        return out

    def compute_loss(
        self,
        s1_logits: Tensor,
        s2_logits: Tensor,
        s1_targets: Tensor,
        s2_targets: Tensor,
        padding_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Cross-entropies in nats: (mean of the two, s1, s2), scalars.

        Logits [B,T,V], targets [B,T]; positions where padding_mask [B,T] is nonzero are ignored.
        Raises ValueError when nothing is left to score.
        """
        for name, logits, targets in (("s1", s1_logits, s1_targets), ("s2", s2_logits, s2_targets)):
            if logits.shape[:-1] != targets.shape:
                raise ValueError(
                    f"{name} logits of shape {tuple(logits.shape)} do not fit "
                    f"targets of shape {tuple(targets.shape)}"
                )
        if padding_mask is not None and not bool((padding_mask == 0).any()):
            raise ValueError("every position is padding: there is nothing to compute a loss on")
        ce_s1 = _mean_cross_entropy(s1_logits, s1_targets, padding_mask)
        ce_s2 = _mean_cross_entropy(s2_logits, s2_targets, padding_mask)
        return (ce_s1 + ce_s2) / 2, ce_s1, ce_s2


def _mean_cross_entropy(logits: Tensor, targets: Tensor, padding_mask: Tensor | None) -> Tensor:
    """Over all positions, or over those where padding_mask is zero."""
    if padding_mask is None:  # without the copy of the logits that selecting rows would make
        return F.cross_entropy(logits.flatten(0, -2), targets.flatten())
    keep = padding_mask == 0
    return F.cross_entropy(logits[keep], targets[keep])
