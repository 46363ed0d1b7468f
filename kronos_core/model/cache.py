"""Cached decoding with a prefix that all sample paths of a group share.

Shape letters: G groups (one prefix each), R rows (sample paths, R = G times paths per group),
N heads, T new positions, P prefix length, L suffix length, E head width, D width, V vocabulary.
Queries attend to the shared prefix and to their own suffix; the two softmaxes are merged by
their common maximum and sum (the log-sum-exp merge of flash attention, Dao et al. 2022), so that
the prefix is never copied per path.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kronos_core.model.kronos import Kronos
from kronos_core.model.layers import CrossAttention, TransformerBlock
from kronos_core.model.tokenizer import KronosTokenizer


@dataclass(slots=True)
class PrefixCache:
    """Keys and values of one layer: prefix [G,N,P,E], suffix [R,N,capacity,E] filled to `used`."""

    prefix_keys: Tensor
    prefix_values: Tensor
    suffix_keys: Tensor
    suffix_values: Tensor
    used: int = 0

    @classmethod
    def over(cls, keys: Tensor, values: Tensor, rows: int, capacity: int) -> "PrefixCache":
        shape = (rows, keys.shape[1], capacity, keys.shape[3])
        return cls(keys, values, keys.new_empty(shape), values.new_empty(shape))

    @property
    def length(self) -> int:
        """Positions seen so far, which is the position of the next one."""
        return self.prefix_keys.shape[2] + self.used

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Add keys and values [R,N,T,E] of new positions."""
        end = self.used + keys.shape[2]
        self.suffix_keys[:, :, self.used : end] = keys
        self.suffix_values[:, :, self.used : end] = values
        self.used = end

    def attend(self, queries: Tensor) -> Tensor:
        """Queries [R,N,T,E] of the last T positions -> attended values [R,N,T,E]."""
        groups = self.prefix_keys.shape[0]
        rows, heads, length, width = queries.shape
        scaled = queries / math.sqrt(width)
        by_group = scaled.view(groups, -1, heads, length, width)
        grouped = by_group.transpose(1, 2).flatten(2, 3)
        prefix_scores = grouped @ self.prefix_keys.transpose(-1, -2)
        prefix_top = prefix_scores.amax(-1, keepdim=True)
        prefix_weights = (prefix_scores - prefix_top).exp()
        prefix_sum = prefix_weights.sum(-1, keepdim=True)
        parts = [prefix_weights @ self.prefix_values, prefix_sum, prefix_top]
        out, total, top = (
            part.view(groups, heads, -1, length, part.shape[-1])
            .transpose(1, 2)
            .reshape(rows, heads, length, -1)
            for part in parts
        )
        if self.used:
            out, total = self._merge_suffix(scaled, out, total, top)
        return out / total

    def _merge_suffix(
        self, scaled: Tensor, out: Tensor, total: Tensor, top: Tensor
    ) -> tuple[Tensor, Tensor]:
        length = scaled.shape[2]
        scores = scaled @ self.suffix_keys[:, :, : self.used].transpose(-1, -2)
        if length > 1:
            seen = torch.ones(length, self.used, dtype=torch.bool, device=scores.device)
            scores = scores.masked_fill(~seen.tril(self.used - length), -torch.inf)
        new_top = torch.maximum(top, scores.amax(-1, keepdim=True))
        rescale = (top - new_top).exp()
        weights = (scores - new_top).exp()
        out = out * rescale + weights @ self.suffix_values[:, :, : self.used]
        return out, total * rescale + weights.sum(-1, keepdim=True)


def prefill_block(
    block: TransformerBlock, x: Tensor, rows: int, capacity: int
) -> tuple[Tensor, PrefixCache]:
    """Run x [G,P,D] through a block as usual and keep its keys and values for `rows` rows."""
    normed = block.norm1(x)
    keys, values = block.self_attn.keys_values(normed)
    attended = torch.nn.functional.scaled_dot_product_attention(
        block.self_attn.queries(normed), keys, values, is_causal=True
    )
    x = x + block.self_attn.merge_heads(attended)
    return x + block.ffn(block.norm2(x)), PrefixCache.over(keys, values, rows, capacity)


def extend_block(block: TransformerBlock, x: Tensor, cache: PrefixCache) -> Tensor:
    """Run new positions x [R,T,D] through a block after what the cache holds."""
    normed = block.norm1(x)
    start = cache.length
    cache.append(*block.self_attn.keys_values(normed, start))
    x = x + block.self_attn.merge_heads(cache.attend(block.self_attn.queries(normed, start)))
    out: Tensor = x + block.ffn(block.norm2(x))
    return out


class PredictorCache:
    """The predictor after a prefix, advanced one bar at a time for all rows together."""

    def __init__(
        self, model: Kronos, s1_ids: Tensor, s2_ids: Tensor, stamp: Tensor, rows: int, capacity: int
    ) -> None:
        """Prefix ids [G,P] and stamp [G,P,5]; rows must be a multiple of G."""
        if model.training:
            raise RuntimeError("sampling needs the model in evaluation mode: call model.eval()")
        self.model = model
        self.blocks: list[PrefixCache] = []
        x = model.embed(s1_ids, s2_ids, stamp)
        for block in model.transformer:
            assert isinstance(block, TransformerBlock)
            x, cache = prefill_block(block, x, rows, capacity)
            self.blocks.append(cache)
        hidden = model.norm(x)
        self.cross: CrossAttention = model.dep_layer.cross_attn
        self.dependency = PrefixCache.over(
            *self.cross.source(hidden, model.s2_rotary), rows, capacity
        )
        self.hidden = hidden[:, -1:].repeat_interleave(rows // s1_ids.shape[0], dim=0)

    @property
    def length(self) -> int:
        """Bars processed so far."""
        return self.dependency.length

    def s1_logits(self) -> Tensor:
        """Logits of the next s1, [R,V1]."""
        logits: Tensor = self.model.head(self.hidden[:, 0])
        return logits

    def s2_logits(self, s1_ids: Tensor) -> Tensor:
        """Logits of the next s2 given the next s1 ids [R], [R,V2]."""
        model = self.model
        sibling = model.embedding.emb_s1(s1_ids)[:, None]
        query = self.cross.single_query(sibling, model.s2_rotary, self.length - 1)
        attended = self.cross.merge_heads(self.dependency.attend(query))
        conditioned = model.dep_layer.norm(self.hidden + attended)
        return model.head.cond_forward(conditioned[:, 0])

    def advance(self, s1_ids: Tensor, s2_ids: Tensor, stamp: Tensor) -> None:
        """Take in one more bar: ids [R] and its stamp [5], the same for every row."""
        model = self.model
        rows = s1_ids.shape[0]
        x = model.embed(s1_ids[:, None], s2_ids[:, None], stamp.expand(rows, 1, -1))
        for block, cache in zip(model.transformer, self.blocks, strict=True):
            assert isinstance(block, TransformerBlock)
            x = extend_block(block, x, cache)
        self.hidden = model.norm(x)
        self.dependency.append(
            *self.cross.source(self.hidden, model.s2_rotary, self.dependency.length)
        )


def decode_after_prefix(
    tokenizer: KronosTokenizer, prefix: tuple[Tensor, Tensor], suffix: tuple[Tensor, Tensor]
) -> Tensor:
    """Decode suffix ids [R,T] of all rows after one shared prefix of ids [1,P] -> bars [R,T,C].

    Equal to decoding prefix and suffix together, row by row, since the decoder is causal.
    """
    rows, length = suffix[0].shape
    x = tokenizer.embed_ids(prefix, half=True)
    new = tokenizer.embed_ids(suffix, half=True)
    for block in tokenizer.decoder:
        assert isinstance(block, TransformerBlock)
        x, cache = prefill_block(block, x, rows, length)
        new = extend_block(block, new, cache)
    out: Tensor = tokenizer.head(new)
    return out
