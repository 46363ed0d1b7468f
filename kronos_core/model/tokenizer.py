"""The tokenizer: bars to coarse and fine ids, and back.

Shape letters: B rows, T time, C channels, D width, K bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from kronos_core.model.layers import TransformerBlock
from kronos_core.model.pretrained import Pretrained
from kronos_core.model.quantizer import BinarySphericalQuantizer


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerLosses:
    """Losses of a batch, scalars; coarse and fine are mean squared errors in normalised units.

    total = (coarse + fine + quantiser loss) / 2. commitment and the entropies (nats) are the
    unweighted terms of the quantiser loss. s1_ids, s2_ids [B,T] are the tokens of the batch.
    """

    total: Tensor
    coarse: Tensor
    fine: Tensor
    commitment: Tensor
    entropy_sample: Tensor
    entropy_code: Tensor
    s1_ids: Tensor
    s2_ids: Tensor


class KronosTokenizer(Pretrained):
    """Causal auto-encoder with a binary spherical bottleneck of s1_bits + s2_bits."""

    def __init__(
        self,
        d_in: int,
        d_model: int,
        n_heads: int,
        ff_dim: int,
        n_enc_layers: int,
        n_dec_layers: int,
        ffn_dropout_p: float,
        attn_dropout_p: float,
        resid_dropout_p: float,
        s1_bits: int,
        s2_bits: int,
        beta: float,
        gamma0: float,
        gamma: float,
        zeta: float,
        group_size: int,
    ) -> None:
        super().__init__()
        self.config = {
            name: value for name, value in locals().items() if name not in ("self", "__class__")
        }
        self.d_in = d_in
        self.s1_bits = s1_bits
        self.s2_bits = s2_bits
        bits = s1_bits + s2_bits
        dropouts = (ffn_dropout_p, attn_dropout_p, resid_dropout_p)

        # The release counts the linear layer beside the blocks as one of its layers.
        def blocks(layers: int) -> nn.ModuleList:
            return nn.ModuleList(
                TransformerBlock(d_model, n_heads, ff_dim, *dropouts) for _ in range(layers - 1)
            )

        self.embed = nn.Linear(d_in, d_model)
        self.encoder = blocks(n_enc_layers)
        self.quant_embed = nn.Linear(d_model, bits)
        self.tokenizer = BinarySphericalQuantizer(
            s1_bits, s2_bits, beta, gamma0, gamma, zeta, group_size
        )
        self.post_quant_embed_pre = nn.Linear(s1_bits, d_model)
        self.post_quant_embed = nn.Linear(bits, d_model)
        self.decoder = blocks(n_dec_layers)
        self.head = nn.Linear(d_model, d_in)

    def forward(self, x: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor, Tensor]:
        """Normalised bars [B,T,C] -> ((coarse, fine) [B,T,C] each, loss, codes [B,T,K], full ids).

        The coarse reconstruction sees the s1 bits alone.
        """
        codes, loss, ones = self.tokenizer(self._encode(x))
        coarse = self._decode(self.post_quant_embed_pre(codes[..., : self.s1_bits]))
        fine = self._decode(self.post_quant_embed(codes))
        full = self.tokenizer.join_ids(*self.tokenizer.split_ids(ones))
        return (coarse, fine), loss, codes, full

    def losses(self, x: Tensor) -> TokenizerLosses:
        """The training loss of normalised bars [B,T,C] and its parts."""
        unit, quantised, ones = self.tokenizer.quantise(self._encode(x))
        codes = unit + (quantised - unit).detach()
        terms = self.tokenizer.terms(unit, quantised)
        coarse = F.mse_loss(self._decode(self.post_quant_embed_pre(codes[..., : self.s1_bits])), x)
        fine = F.mse_loss(self._decode(self.post_quant_embed(codes)), x)
        s1_ids, s2_ids = self.tokenizer.split_ids(ones)
        return TokenizerLosses(
            total=(coarse + fine + self.tokenizer.weigh(*terms)) / 2,
            coarse=coarse,
            fine=fine,
            commitment=terms[0],
            entropy_sample=terms[1],
            entropy_code=terms[2],
            s1_ids=s1_ids,
            s2_ids=s2_ids,
        )

    def encode(self, x: Tensor, half: bool = False) -> list[Tensor] | Tensor:
        """Normalised bars [B,T,C] -> full ids [B,T], or with half [s1 ids, s2 ids].

        Raises ValueError for a wrong shape or values that are not finite.
        """
        if x.ndim != 3 or x.shape[-1] != self.d_in:
            raise ValueError(f"bars must have shape [B,T,{self.d_in}], got {tuple(x.shape)}")
        if not bool(torch.isfinite(x).all()):
            raise ValueError("bars hold NaN or infinite values: repair them before encoding")
        _, _, ones = self.tokenizer.quantise(self._encode(x))
        s1_ids, s2_ids = self.tokenizer.split_ids(ones)
        return [s1_ids, s2_ids] if half else self.tokenizer.join_ids(s1_ids, s2_ids)

    def decode(self, token_ids: Sequence[Tensor] | Tensor, half: bool = False) -> Tensor:
        """Full ids [B,T], or with half [s1 ids, s2 ids], -> normalised bars [B,T,C]."""
        return self._decode(self.embed_ids(token_ids, half))

    def embed_ids(self, token_ids: Sequence[Tensor] | Tensor, half: bool) -> Tensor:
        """Ids -> inputs of the decoder blocks [B,T,D]; ValueError when an id is out of range."""
        if half:
            s1_ids, s2_ids = token_ids
            check_ids("s1", s1_ids, 2**self.s1_bits)
            check_ids("s2", s2_ids, 2**self.s2_bits)
            full = self.tokenizer.join_ids(s1_ids, s2_ids)
        elif isinstance(token_ids, Tensor):
            full = token_ids
            check_ids("full", full, 2 ** (self.s1_bits + self.s2_bits))
        else:
            raise ValueError("two id tensors need half=True")
        codes = self.tokenizer.values_of_ids(full).to(self.head.weight.dtype)
        out: Tensor = self.post_quant_embed(codes)
        return out

    def _encode(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.encoder:
            x = block(x)
        out: Tensor = self.quant_embed(x)
        return out

    def _decode(self, x: Tensor) -> Tensor:
        for block in self.decoder:
            x = block(x)
        out: Tensor = self.head(x)
        return out


def check_ids(name: str, ids: Tensor, vocabulary: int) -> None:
    """ValueError unless ids is a tensor of whole numbers in [0, vocabulary)."""
    if ids.dtype.is_floating_point or ids.dtype == torch.bool:
        raise ValueError(f"{name} ids must be whole numbers, got {ids.dtype}")
    if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= vocabulary):
        raise ValueError(
            f"{name} ids must lie in 0…{vocabulary - 1}, "
            f"got {int(ids.min())}…{int(ids.max())}: are they from this tokenizer?"
        )
