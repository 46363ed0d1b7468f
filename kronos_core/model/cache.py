"""Cached decoding with a prefix that all sample paths of a group share.

Shape letters: G groups (one prefix each), R rows (sample paths, R = G times paths per group),
N heads, T new positions, P prefix length, L suffix length, E head width, D width, V vocabulary.
Queries attend to the shared prefix and to their own suffix; the two softmaxes are merged by
their log-sum-exp (as flash attention merges its blocks, Dao et al. 2022), so that the prefix is
never copied per path. Prefixes of different lengths are padded at their end, and what is padded
gets no weight.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F  # noqa: N812 (the name everyone knows)
from torch import Tensor

from kronos_core.model.fused import (
    FusedBlock,
    FusedDecoder,
    FusedPredictor,
    Turn,
    fused_decoder,
    fused_predictor,
    steady,
)
from kronos_core.model.kronos import Kronos
from kronos_core.model.tokenizer import KronosTokenizer

KeysValues = tuple[Tensor, Tensor]
_BLOCK = 16  # positions of a suffix block
_BLOCKED_ROWS = 32  # fewer rows fit a processor's caches
DECODE_TOKENS = 8192  # how many positions are decoded to bars at once


def attend_part(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention over a part of the past, [B,N,T,E], and its log-sum-exp, float32 [B,N,T,1].

    mask is added to the scores and must broadcast to [B,N,T,L].
    """
    few = queries.shape[0] < _BLOCKED_ROWS and mask is None
    if queries.device.type == "cpu" and (queries.shape[2] > 1 or few):
        # The kernel behind scaled_dot_product_attention: it never writes the scores out. For one
        # query of each of many rows it is slower than products of whole blocks.
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, total = flash(queries, keys, values, attn_mask=mask)
        return out, total[..., None]
    return attend_blocks(queries, [keys], [values], mask)


def attend_blocks(
    queries: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`attend_part` over keys and values that lie in several blocks along their time."""
    scores = _cat([queries @ block.transpose(-1, -2) for block in keys]).float()
    scores = scores / math.sqrt(queries.shape[-1])
    if mask is not None:
        scores = scores + mask
    top = scores.amax(-1, keepdim=True)
    weights = scores.sub_(top).exp_()
    total = weights.sum(-1, keepdim=True)
    shares = torch.split(weights.type_as(queries), [block.shape[2] for block in values], dim=-1)
    sums = (share @ block for share, block in zip(shares, values, strict=True))
    out = functools.reduce(Tensor.add, sums) / total.type_as(queries)
    return out, total.log_().add_(top)


def _cat(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=-1)


def merge_parts(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> Tensor:
    """Attention over two parts together, from what `attend_part` gives for each."""
    share = torch.sigmoid(other[1] - one[1]).type_as(one[0])
    return torch.lerp(one[0], other[0], share)


@dataclass(slots=True)
class PrefixCache:
    """Keys and values of one layer: prefix [G,N,P,E], suffix filled to `used`.

    The suffix lies in blocks [R,N,block,E], the last one perhaps shorter. mask [G,1,1,P] hides
    the padding of shorter prefixes; None where there is none.
    """

    prefix_keys: Tensor
    prefix_values: Tensor
    suffix_keys: list[Tensor]
    suffix_values: list[Tensor]
    block: int
    mask: Tensor | None = None
    used: int = 0

    @classmethod
    def over(
        cls,
        prefix: KeysValues,
        rows: int,
        capacity: int,
        mask: Tensor | None = None,
        block: int | None = None,
    ) -> "PrefixCache":
        """Room for `capacity` new positions of `rows` rows, in one block unless told otherwise."""
        block = max(1, capacity if block is None else block)
        keys, values = (_room(part, rows, capacity, block) for part in prefix)
        return cls(*prefix, keys, values, block, mask)

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Add keys and values [R,N,T,E] of new positions."""
        done, length = 0, keys.shape[2]
        while done < length:
            index, offset = divmod(self.used, self.block)
            count = min(length - done, self.block - offset)
            for blocks, new in ((self.suffix_keys, keys), (self.suffix_values, values)):
                blocks[index][:, :, offset : offset + count] = new[:, :, done : done + count]
            done, self.used = done + count, self.used + count

    def filled(self) -> tuple[list[Tensor], list[Tensor], Tensor | None]:
        """The blocks of keys and of values written so far, and a mask over them."""
        full, rest = divmod(self.used, self.block)
        keys, values = (
            parts[:full] + [part[:, :, :rest] for part in parts[full : full + 1] if rest]
            for parts in (self.suffix_keys, self.suffix_values)
        )
        return keys, values, None

    def attend(self, queries: Tensor) -> Tensor:
        """Queries [R,N,T,E] of the last T positions -> attended values [R,N,T,E]."""
        prefix = self._attend_prefix(queries)
        if not self.used:
            return prefix[0]
        return merge_parts(prefix, self._attend_suffix(queries))

    def _attend_suffix(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        length = queries.shape[2]
        keys, values, mask = self.filled()
        if length == 1 and len(keys) > 1:
            return attend_blocks(queries, keys, values, mask)
        if length == 1:
            return attend_part(queries, keys[0], values[0], mask)
        later = torch.full((length, self.used), -torch.inf, device=queries.device)
        later = later.triu(self.used - length + 1).to(queries.dtype)
        return attend_part(queries, torch.cat(keys, dim=2), torch.cat(values, dim=2), later)

    def _attend_prefix(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        groups = self.prefix_keys.shape[0]
        rows, heads, length, width = queries.shape
        by_group = queries.reshape(groups, -1, heads, length, width).transpose(1, 2)
        grouped = by_group.reshape(groups, heads, -1, width)
        mask = None if self.mask is None else self.mask.expand(-1, -1, grouped.shape[2], -1)
        out, total = attend_part(grouped, self.prefix_keys, self.prefix_values, mask)
        return _by_row(out, rows, length), _by_row(total, rows, length)


def _room(like: Tensor, rows: int, capacity: int, block: int) -> list[Tensor]:
    """Empty blocks for `capacity` positions, for rows of the heads and width of [G,N,P,E]."""
    sizes = [min(block, capacity - first) for first in range(0, capacity, block)]
    return [like.new_zeros(rows, like.shape[1], size, like.shape[3]) for size in sizes]


def _by_row(x: Tensor, rows: int, length: int) -> Tensor:
    """[G,N,K·T,X] -> [R,N,T,X]."""
    groups, heads, _, width = x.shape
    by_row = x.view(groups, heads, -1, length, width).transpose(1, 2)
    return by_row.reshape(rows, heads, length, width)


@dataclass(slots=True)
class StaticCache(PrefixCache):
    """A cache whose shapes never change, for compiled steps of one position: every step reads the
    whole suffix, and a mask hides what is not drawn yet."""

    written: Tensor = field(init=False)  # [1], positions written so far

    def __post_init__(self) -> None:
        assert len(self.suffix_keys) == 1
        self.used = self.block
        self.written = torch.zeros(1, dtype=torch.long, device=self.prefix_keys.device)
        kept = (self.prefix_keys, self.prefix_values, *self.suffix_keys, *self.suffix_values)
        for tensor in (*kept, self.written):
            steady(tensor)

    def append(self, keys: Tensor, values: Tensor) -> None:
        self.suffix_keys[0].index_copy_(2, self.written, keys)
        self.suffix_values[0].index_copy_(2, self.written, values)
        self.written += 1

    def filled(self) -> tuple[list[Tensor], list[Tensor], Tensor | None]:
        places = torch.arange(self.used, device=self.prefix_keys.device)
        # Finite, so that an empty suffix has a log-sum-exp: a very small one.
        mask = torch.where(places < self.written, 0.0, torch.finfo(torch.float32).min / 2)
        return self.suffix_keys, self.suffix_values, mask


@dataclass(slots=True)
class Prefix:
    """What is kept of contexts: per layer keys and values [G,N,P,E], and the last hidden state.

    The dependency layer's come last. hidden is [G,1,D].
    """

    layers: list[KeysValues]
    hidden: Tensor
    lengths: list[int]


def prefill(weights: FusedPredictor, s1_ids: Tensor, s2_ids: Tensor, time: Tensor) -> Prefix:
    """Take in contexts of one length: ids [G,P] and their embedded times [G or 1,P,D]."""
    groups, length = s1_ids.shape
    turns = weights.tables.between(0, length)
    x = weights.embed(s1_ids, s2_ids, time)
    layers = []
    for block in weights.blocks:
        queries, keys, values = block.heads(x, turns[block.table])
        layers.append((keys.contiguous(), values.contiguous()))  # they are read at every step
        x = block.finish(x, F.scaled_dot_product_attention(queries, keys, values, is_causal=True))
    hidden = weights.norm(x)
    layers.append(weights.source(hidden, turns[weights.cross_table]))
    return Prefix(layers, hidden[:, -1:], [length] * groups)


def join(prefixes: Sequence[Prefix]) -> Prefix:
    """Prefixes of different lengths as one, padded at the end; the parts are used up."""
    if len(prefixes) == 1:
        return prefixes[0]
    layers = []
    for _ in range(len(prefixes[0].layers)):
        keys, values = zip(*(prefix.layers.pop(0) for prefix in prefixes), strict=True)
        layers.append((_stack(keys), _stack(values)))
    lengths = [length for prefix in prefixes for length in prefix.lengths]
    return Prefix(layers, torch.cat([prefix.hidden for prefix in prefixes]), lengths)


def _stack(parts: Sequence[Tensor]) -> Tensor:
    longest = max(part.shape[2] for part in parts)
    return torch.cat([F.pad(part, (0, 0, 0, longest - part.shape[2])) for part in parts])


def _padding_mask(lengths: Sequence[int], like: Tensor) -> Tensor | None:
    if len(set(lengths)) == 1:
        return None
    places = torch.arange(max(lengths), device=like.device)
    hidden = places >= torch.tensor(lengths, device=like.device)[:, None]
    mask = torch.zeros(hidden.shape, device=like.device, dtype=like.dtype)
    return mask.masked_fill_(hidden, -torch.inf)[:, None, None]


class PredictorCache:
    """The predictor after a prefix, advanced one bar at a time for all rows together."""

    def __init__(
        self,
        weights: FusedPredictor,
        prefix: Prefix,
        rows: int,
        capacity: int,
        compiled: bool = False,
    ) -> None:
        """rows must be a multiple of the prefix's groups; capacity is in bars.

        With compiled the steps run through torch.compile, on CUDA as one graph.
        """
        self.weights = weights
        self.compiled = compiled
        self.length = max(prefix.lengths)  # bars taken in so far, of the longest prefix
        mask = _padding_mask(prefix.lengths, prefix.hidden)
        lengths = prefix.lengths if mask is not None else prefix.lengths[:1]
        self.places = torch.tensor(lengths, device=prefix.hidden.device)  # [G or 1], of the next
        kind = StaticCache if compiled else PrefixCache
        # A processor streams full blocks twice as fast as one large block that is partly filled.
        blocked = prefix.hidden.device.type == "cpu" and rows >= _BLOCKED_ROWS and not compiled
        block = _BLOCK if blocked else None
        self.layers = [kind.over(layer, rows, capacity, mask, block) for layer in prefix.layers]
        self.hidden = prefix.hidden.repeat_interleave(rows // len(prefix.hidden), dim=0)
        weights.tables.make_room(self.length + capacity)

    def s1_logits(self) -> Tensor:
        """Logits of the next s1, [R,V1]."""
        return self.weights.head_s1(self.hidden[:, 0])

    def s2_logits(self, s1_ids: Tensor) -> Tensor:
        """Logits of the next s2 given the next s1 ids [R], [R,V2]."""
        turn = self.weights.tables.at(self.places - 1)[self.weights.cross_table]
        query = self.weights.query(s1_ids, turn)
        return self.weights.s2_logits(self.hidden, self.layers[-1].attend(query))

    def advance(self, s1_ids: Tensor, s2_ids: Tensor, time: Tensor) -> None:
        """Take in one more bar: ids [R] and its embedded time [G or 1,D]."""
        step = compiled_step(self.hidden.device.type) if self.compiled else take_in
        turns = self.weights.tables.at(self.places)
        self.hidden = step(self.weights, self.layers, s1_ids, s2_ids, time, turns)
        self.length += 1
        self.places = self.places + 1


def after_context(
    model: Kronos, s1_ids: Tensor, s2_ids: Tensor, stamps: Tensor, rows: int, capacity: int
) -> PredictorCache:
    """The predictor in float32 after one context: ids [1,P] and stamps [1,P,5]."""
    weights = fused_predictor(model)
    prefix = prefill(weights, s1_ids, s2_ids, weights.times(stamps))
    return PredictorCache(weights, prefix, rows, capacity)


def take_in(
    weights: FusedPredictor,
    layers: Sequence[PrefixCache],
    s1_ids: Tensor,
    s2_ids: Tensor,
    time: Tensor,
    turns: list[Turn],
) -> Tensor:
    """One bar of every row through the model -> hidden states [R,1,D]; the caches grow."""
    x = weights.embed(s1_ids[:, None], s2_ids[:, None], time[:, None])
    for block, cache in zip(weights.blocks, layers, strict=False):
        x = extend_block(block, x, cache, turns[block.table])
    hidden = weights.norm(x)
    layers[-1].append(*weights.source(hidden, turns[weights.cross_table]))
    return hidden


def extend_block(block: FusedBlock, x: Tensor, cache: PrefixCache, turn: Turn) -> Tensor:
    """Run new positions x [R,T,D] through a block after what the cache holds."""
    queries, keys, values = block.heads(x, turn)
    cache.append(keys, values)
    return block.finish(x, cache.attend(queries))


@functools.cache
def compiled_step(device: str) -> Callable[..., Tensor]:
    """`take_in` through torch.compile; on CUDA its kernels are replayed as one graph."""
    mode = "reduce-overhead" if device == "cuda" else "default"
    compiled: Callable[..., Tensor] = torch.compile(take_in, mode=mode)
    return compiled


def decode_after_prefix(
    tokenizer: KronosTokenizer, prefix: tuple[Tensor, Tensor], suffix: tuple[Tensor, Tensor]
) -> Tensor:
    """Decode suffix ids [R,T] of all rows after one shared prefix of ids [1,P] -> bars [R,T,C].

    Equal to decoding prefix and suffix together, row by row, since the decoder is causal.
    """
    weights = fused_decoder(tokenizer)
    start, length = prefix[0].shape[1], suffix[0].shape[1]
    layers = _decoder_prefix(weights, tokenizer.embed_ids(prefix, half=True))
    turns = weights.tables.between(start, start + length)
    rows = max(1, DECODE_TOKENS // length)
    decoded = []
    for part in zip(*(torch.split(ids, rows) for ids in suffix), strict=True):
        x = tokenizer.embed_ids(part, half=True)
        for block, layer in zip(weights.blocks, layers, strict=True):
            cache = PrefixCache.over(layer, len(x), length)
            x = extend_block(block, x, cache, turns[block.table])
        decoded.append(weights.head(x))
    return torch.cat(decoded)


def _decoder_prefix(weights: FusedDecoder, x: Tensor) -> list[KeysValues]:
    """Keys and values of each decoder block for a prefix x [1,P,D]."""
    layers: list[KeysValues] = []
    turns = weights.tables.between(0, x.shape[1])
    for block in weights.blocks:
        queries, keys, values = block.heads(x, turns[block.table])
        layers.append((keys, values))
        if len(layers) < len(weights.blocks):  # nobody reads the prefix behind the last block
            attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
            x = block.finish(x, attended)
    return layers
