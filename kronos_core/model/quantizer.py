"""Binary spherical quantisation (Zhao et al. 2024): one sign per bit of a unit vector.

Shape letters: B rows, T time, K bits.
"""

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

_LOG_FLOOR = 1e-8


class _Bases(nn.Module):
    """Buffers that the released checkpoints carry; bit weights, most significant first."""

    basis: Tensor
    group_basis: Tensor

    def __init__(self, bits: int, group_size: int) -> None:
        super().__init__()
        self.register_buffer("basis", 2 ** torch.arange(bits - 1, -1, -1))
        self.register_buffer("group_basis", 2 ** torch.arange(group_size - 1, -1, -1))


class BinarySphericalQuantizer(nn.Module):
    """Unit vectors -> ±1/√K per bit, with straight-through gradient and an entropy penalty."""

    def __init__(
        self,
        s1_bits: int,
        s2_bits: int,
        beta: float,
        gamma0: float,
        gamma: float,
        zeta: float,
        group_size: int,
    ) -> None:
        super().__init__()
        self.s1_bits = s1_bits
        self.bits = s1_bits + s2_bits
        self.beta = beta
        self.gamma0 = gamma0
        self.gamma = gamma
        self.zeta = zeta
        self.bsq = _Bases(self.bits, group_size)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Raw codes [B,T,K] -> (quantised [B,T,K], loss, bits in {0,1} as int64 [B,T,K])."""
        unit, quantised, ones = self.quantise(z)
        return unit + (quantised - unit).detach(), self.loss(unit, quantised), ones

    def quantise(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Raw codes [B,T,K] -> unit vectors, their values ±1/√K, and bits, each [B,T,K]."""
        unit = F.normalize(z, dim=-1)
        ones = (unit > 0).long()
        return unit, self.values(ones).type_as(unit), ones

    def values(self, ones: Tensor) -> Tensor:
        """Bits in {0,1} -> ±1/√K."""
        return (ones.float() * 2 - 1) / math.sqrt(self.bits)

    def loss(self, unit: Tensor, quantised: Tensor) -> Tensor:
        """Commitment plus ζ(γ0·H_sample − γ·H_code), a scalar."""
        return self.weigh(*self.terms(unit, quantised))

    def terms(self, unit: Tensor, quantised: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Commitment, H_sample and H_code, unweighted scalars; entropies in nats."""
        commitment = (quantised.detach() - unit).square().sum(-1).mean()
        p = torch.sigmoid(-4 * unit / math.sqrt(self.bits))
        per_sample = _bit_entropy(p).sum(-1).mean()
        per_code = _bit_entropy(p.flatten(0, -2).mean(0)).sum()
        return commitment, per_sample, per_code

    def weigh(self, commitment: Tensor, per_sample: Tensor, per_code: Tensor) -> Tensor:
        """The quantiser loss of the three terms."""
        return self.beta * commitment + self.zeta * (
            self.gamma0 * per_sample - self.gamma * per_code
        )

    def split_ids(self, ones: Tensor) -> tuple[Tensor, Tensor]:
        """Bits [B,T,K] -> s1 ids and s2 ids [B,T], little-endian."""
        return _to_ids(ones[..., : self.s1_bits]), _to_ids(ones[..., self.s1_bits :])

    def join_ids(self, s1_ids: Tensor, s2_ids: Tensor) -> Tensor:
        """The full id over all bits; s1 holds the low ones."""
        return s1_ids + (s2_ids << self.s1_bits)

    def values_of_ids(self, full_ids: Tensor) -> Tensor:
        """Full ids [B,T] -> quantised codes [B,T,K]."""
        weights = torch.arange(self.bits, device=full_ids.device)
        return self.values((full_ids[..., None] >> weights) & 1)


def _to_ids(ones: Tensor) -> Tensor:
    weights = 2 ** torch.arange(ones.shape[-1], device=ones.device)
    return (ones * weights).sum(-1)


def _bit_entropy(p: Tensor) -> Tensor:
    """Entropy in nats of Bernoulli probabilities."""
    return -(p * torch.log(p + _LOG_FLOOR) + (1 - p) * torch.log(1 - p + _LOG_FLOOR))
