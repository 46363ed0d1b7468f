"""The weights as decoding reads them: fewer and larger projections, made once per loaded model.

q, k and v of a block become one projection, as do w1 and w3. On a CPU they are laid out for
oneDNN, which computes a few rows in two thirds of the time of the plain layout once the
weights do not fit the cache. The modules and their state dicts stay as they are; these copies take
about as much memory as the model.

Shape letters: G groups, K rows per group, R = G·K rows, T time, N heads, E head width, D width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F  # noqa: N812 (the name everyone knows)
from torch import Tensor, nn

from kronos_core.model.kronos import Kronos
from kronos_core.model.layers import Attention, RMSNorm, RotaryMode, TransformerBlock
from kronos_core.model.tokenizer import KronosTokenizer

Project = Callable[[Tensor], Tensor]
Turn = tuple[Tensor, Tensor]  # cosines and signed sines [G or 1, T, E]


@dataclass(frozen=True, slots=True)
class Format:
    """How weights are kept: their number format, and whether packed for oneDNN (on a CPU only).

    What a compiler shall read is not packed.
    """

    dtype: torch.dtype
    packed: bool


def projection(layers: Sequence[nn.Linear], form: Format) -> Project:
    """One projection that computes what the layers compute, side by side on the last axis."""
    weight = _join([layer.weight for layer in layers], form)
    biases = [layer.bias for layer in layers if layer.bias is not None]
    bias = _join(biases, form) if biases else None
    if not (form.packed and weight.device.type == "cpu" and _has_onednn()):
        return lambda x: F.linear(x, weight, bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight)
    linear = torch.ops.mkldnn._linear_pointwise
    return lambda x: linear(x, packed, bias, "none", [], "")


def _has_onednn() -> bool:
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def _join(parts: Sequence[Tensor], form: Format) -> Tensor:
    # A single tensor is not copied unless its number format changes.
    whole = parts[0] if len(parts) == 1 else torch.cat(list(parts))
    return whole.detach().to(form.dtype) if form.packed else steady(whole.detach().to(form.dtype))


def steady(tensor: Tensor) -> Tensor:
    """Tell the compiler that the tensor stays where it is: a CUDA graph then reads and writes it in
    place instead of copying it at every step."""
    torch._dynamo.mark_static_address(tensor, guard=False)
    return tensor


def normaliser(norm: RMSNorm, form: Format) -> Project:
    """`RMSNorm` in few calls: computed in float32, cast back, times weight."""
    weight, width = norm.weight.detach().to(form.dtype), len(norm.weight)
    eps = torch.full_like(norm.weight, norm.eps, dtype=torch.float32)[:1]

    def normalise(x: Tensor) -> Tensor:
        wide = x.float()
        # On a CPU half as long as rms_norm, which has no kernel of its own there.
        size = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = torch.addcmul(eps, size, size, value=1 / width).rsqrt_()
        return (wide * scale).type_as(x) * weight

    return normalise


class RotaryTable:
    """Cosines and sines of every position up to the longest one asked for."""

    def __init__(self, frequencies: Tensor, form: Format) -> None:
        self.frequencies = frequencies.detach().float()
        self.form = form
        self.cos = self.sin = torch.empty(0)

    def make_room(self, length: int) -> None:
        """Hold positions 0…length − 1 at least."""
        if len(self.cos) >= length:
            return
        positions = torch.arange(length, device=self.frequencies.device, dtype=torch.float32)
        angles = torch.outer(positions, self.frequencies)
        cos, sin = angles.cos(), angles.sin()
        self.cos = torch.cat((cos, cos), dim=-1).to(self.form.dtype)
        self.sin = torch.cat((-sin, sin), dim=-1).to(self.form.dtype)

    def between(self, start: int, stop: int) -> Turn:
        """Positions start…stop − 1, the same for every group: [1,T,E]."""
        self.make_room(stop)
        return self.cos[None, start:stop], self.sin[None, start:stop]

    def at(self, positions: Tensor) -> Turn:
        """One position per group [G], for which there is room: [G,1,E]."""
        return self.cos[positions, None], self.sin[positions, None]


def rotate(x: Tensor, turn: Turn) -> Tensor:
    """x [R,T,N,E] in the half-split form; row r belongs to group r // (R/G)."""
    cos, sin = (part[:, None, :, None] for part in turn)
    grouped = x.view(cos.shape[0], -1, *x.shape[1:])
    first, second = grouped.chunk(2, dim=-1)
    return torch.addcmul(grouped * cos, torch.cat((second, first), dim=-1), sin).view(x.shape)


class FusedBlock:
    """A transformer block in four projections."""

    def __init__(self, block: TransformerBlock, table: int, form: Format) -> None:
        attention, ffn = block.self_attn, block.ffn
        self.n_heads = attention.n_heads
        self.table = table  # which rotary table of the model it turns by
        self.norm1, self.norm2 = normaliser(block.norm1, form), normaliser(block.norm2, form)
        self.qkv = projection((attention.q_proj, attention.k_proj, attention.v_proj), form)
        self.out = projection((attention.out_proj,), form)
        self.gates = projection((ffn.w1, ffn.w3), form)
        self.down = projection((ffn.w2,), form)

    def heads(self, x: Tensor, turn: Turn) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys and plain values, each [R,N,T,E], of x [R,T,D]."""
        split = self.qkv(self.norm1(x)).view(*x.shape[:2], 3 * self.n_heads, -1)
        turned = rotate(split[:, :, : 2 * self.n_heads], turn).transpose(1, 2)
        queries, keys = turned.chunk(2, dim=1)
        return queries, keys, split[:, :, 2 * self.n_heads :].transpose(1, 2)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """x [R,T,D] after attention [R,N,T,E] and feed-forward."""
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        gate, value = self.gates(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * value)


class Tables:
    """The rotary tables of a model: blocks with the same frequencies share one."""

    def __init__(self, form: Format) -> None:
        self.form = form
        self.all: list[RotaryTable] = []

    def index(self, attention: Attention) -> int:
        frequencies = attention.rotary.inv_freq.float()
        for index, table in enumerate(self.all):
            if torch.equal(table.frequencies, frequencies):
                return index
        self.all.append(RotaryTable(frequencies, self.form))
        return len(self.all) - 1

    def make_room(self, length: int) -> None:
        for table in self.all:
            table.make_room(length)

    def between(self, start: int, stop: int) -> list[Turn]:
        return [table.between(start, stop) for table in self.all]

    def at(self, positions: Tensor) -> list[Turn]:
        return [table.at(positions) for table in self.all]


class FusedPredictor:
    """The predictor's weights for decoding."""

    def __init__(self, model: Kronos, form: Format) -> None:
        cross = model.dep_layer.cross_attn
        self.rotary: RotaryMode = model.s2_rotary
        self.form = form
        self.tables = Tables(form)
        self.blocks = [
            FusedBlock(block, self.tables.index(block.self_attn), form)
            for block in model.transformer
            if isinstance(block, TransformerBlock)
        ]
        self.norm = normaliser(model.norm, form)
        self.tokens = (model.embedding.emb_s1, model.embedding.emb_s2)
        self.token_scale = model.embedding.scale
        self.fusion = projection((model.embedding.fusion_proj,), form)
        self.time_emb = model.time_emb
        self.n_cross = cross.n_heads
        self.cross_table = self.tables.index(cross)
        self.cross_query = projection((cross.q_proj,), form)
        self.cross_source = projection((cross.k_proj, cross.v_proj), form)
        self.cross_out = projection((cross.out_proj,), form)
        self.cross_norm = normaliser(model.dep_layer.norm, form)
        self.head_s1 = projection((model.head.proj_s1,), form)
        self.head_s2 = projection((model.head.proj_s2,), form)

    def embed(self, s1_ids: Tensor, s2_ids: Tensor, time: Tensor) -> Tensor:
        """Ids [R,T] and their times embedded [G,T,D] -> [R,T,D]."""
        ids = zip(self.tokens, (s1_ids, s2_ids), strict=True)
        pair = torch.cat([table(own) for table, own in ids], dim=-1)
        x = self.fusion(pair.to(self.form.dtype) * self.token_scale)
        grouped = x.view(time.shape[0], -1, *x.shape[1:]) + time[:, None]
        return grouped.view(x.shape)

    def times(self, stamps: Tensor) -> Tensor:
        """Stamps [G,T,5] -> [G,T,D]."""
        out: Tensor = self.time_emb(stamps).to(self.form.dtype)
        return out

    def source(self, hidden: Tensor, turn: Turn) -> tuple[Tensor, Tensor]:
        """Keys and values [R,N,T,E] of hidden states [R,T,D] for the s2 queries."""
        split = self.cross_source(hidden).view(*hidden.shape[:2], 2 * self.n_cross, -1)
        keys, values = split.chunk(2, dim=2)
        if self.rotary == "position":
            keys = rotate(keys, turn)
        return keys.transpose(1, 2), values.transpose(1, 2)

    def query(self, s1_ids: Tensor, turn: Turn) -> Tensor:
        """Query [R,N,1,E] of the next s1 ids [R] at the last position."""
        sibling = self.tokens[0](s1_ids)[:, None].to(self.form.dtype)
        split = self.cross_query(sibling).view(len(s1_ids), 1, self.n_cross, -1)
        if self.rotary == "position":
            split = rotate(split, turn)
        return split.transpose(1, 2)

    def s2_logits(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """Hidden [R,1,D] and attention over the past [R,N,1,E] -> logits [R,V2]."""
        out = self.cross_out(attended.transpose(1, 2).flatten(2))
        return self.head_s2(self.cross_norm(hidden + out))[:, 0]


class FusedDecoder:
    """The tokenizer's decoder for decoding, in float32 whatever the predictor computes in."""

    def __init__(self, tokenizer: KronosTokenizer, form: Format) -> None:
        self.tables = Tables(form)
        self.blocks = [
            FusedBlock(block, self.tables.index(block.self_attn), form)
            for block in tokenizer.decoder
            if isinstance(block, TransformerBlock)
        ]
        self.head = projection((tokenizer.head,), form)


FLOAT32 = Format(torch.float32, packed=True)
_Fused = TypeVar("_Fused", FusedPredictor, FusedDecoder)
_made: WeakKeyDictionary[nn.Module, dict[Format, tuple[object, Any]]] = WeakKeyDictionary()


def fused_predictor(model: Kronos, form: Format = FLOAT32) -> FusedPredictor:
    """The predictor's weights for decoding, made once per model and format.

    They are made anew when the weights, their device or `s2_rotary` have changed. Raises
    RuntimeError for a model in training mode.
    """
    return _once(model, form, model.s2_rotary, lambda: FusedPredictor(model, form))


def fused_decoder(tokenizer: KronosTokenizer) -> FusedDecoder:
    """The same for the tokenizer's decoder."""
    return _once(tokenizer, FLOAT32, None, lambda: FusedDecoder(tokenizer, FLOAT32))


def _once(
    module: nn.Module, form: Format, setting: str | None, make: Callable[[], _Fused]
) -> _Fused:
    if module.training:
        raise RuntimeError("sampling needs the model in evaluation mode: call model.eval()")
    # Writing into a parameter raises its version; moving it to a device changes its address.
    version = (setting, [(p.data_ptr(), p._version) for p in module.parameters()])
    kept = _made.setdefault(module, {})
    if form not in kept or kept[form][0] != version:
        with torch.no_grad():
            kept[form] = (version, make())
    fused: _Fused = kept[form][1]
    return fused
