"""Teacher forcing looked at from close by: what a model says of bars it knows, on the true past
and on a past that it drew itself.

A walk goes over the bars after a context one by one. At each bar the model gives p(s1 | past) and
p(s2 | past, s1); the loss is −log p of the true tokens, and a token pair is drawn as well. A coin
with chance ε then decides whether the true pair or the drawn one goes into the past, and which s1
conditions s2: ε = 1 is the true past all the way, ε = 0 the model's own. The exposure gap is how
much more the truth surprises the model on the mixed past than on the true one (Bengio et al. 2015,
Ranzato et al. 2016). Losses are in nats. Letters: R walks, H horizon, E values of ε, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from kronos_core.data.bars import CHANNELS, as_bars
from kronos_core.data.windows import channel_stats, denormalise, normalise, stamp_features
from kronos_core.forecast.sampling import SamplingConfig, draw, path_noise
from kronos_core.model.cache import PredictorCache, after_context
from kronos_core.model.zoo import Bundle

EPSILONS = (1.0, 0.75, 0.5, 0.25, 0.0)
_COINS = 1
"""Keeps the coins of a seed apart from the noise of its draws."""

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]
Progress = Callable[[int, int], None]
"""Takes (steps done, steps in all) between the steps of a computation; raising there ends it."""
Step = Callable[[], None]
_DECODED_ROWS = 16
"""Rows decoded between two steps: few enough to end soon, enough to be quick."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SequenceProbability:
    """The chance of the true bars after a context, bar by bar, as the chain rule multiplies it.

    timestamps [H]; s1, s2 [H]: the true ids; s1_loss, s2_loss [H]: −log p of each given all
    before it.
    """

    timestamps: pd.DatetimeIndex
    s1: Ids
    s2: Ids
    s1_loss: Floats
    s2_loss: Floats

    @property
    def loss(self) -> Floats:
        """−log p of each bar [H]: the sum of its two tokens'."""
        return self.s1_loss + self.s2_loss

    @property
    def total(self) -> float:
        """−log p of the whole stretch."""
        return float(self.loss.sum())

    @property
    def running_total(self) -> Floats:
        """−log p of the first 1, 2, … H bars [H]."""
        return np.cumsum(self.loss)

    @property
    def running_product(self) -> Floats:
        """p of the first 1, 2, … H bars [H]; soon too small for a number, which is then 0."""
        return np.exp(-self.running_total)

    @property
    def log10_probability(self) -> float:
        """The power of ten of the whole stretch's p."""
        return -self.total / float(np.log(10))


@dataclass(frozen=True, kw_only=True, slots=True)
class Walk:
    """R walks over the H bars after a context, with what the model read, drew and lost.

    epsilon [R]; kept [R, H]: whether the true pair went into the past; s1, s2 [R, H]: the drawn
    ids; true_s1, true_s2 [H]; s1_loss, s2_loss [R, H]: −log p of the true ids on the walk's past,
    s2 given the true s1 where it was kept and the drawn one elsewhere. timestamps [H].
    """

    timestamps: pd.DatetimeIndex
    epsilon: Floats
    kept: npt.NDArray[np.bool_]
    true_s1: Ids
    true_s2: Ids
    s1: Ids
    s2: Ids
    s1_loss: Floats
    s2_loss: Floats

    @property
    def past_s1(self) -> Ids:
        """The s1 that later bars were predicted from [R, H]."""
        return np.where(self.kept, self.true_s1, self.s1)

    @property
    def past_s2(self) -> Ids:
        return np.where(self.kept, self.true_s2, self.s2)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fork:
    """The same stretch on true tokens and on own tokens, with the prices that both give.

    true, own: walks with R = 1 and equal noise. Prices are [H, C] in price units: true_prices what
    the model draws for each bar from the true past; own_prices what it draws from its own;
    known_prices the true tokens decoded, which is all that tokens can say of the bars.
    """

    true: Walk
    own: Walk
    true_prices: Floats
    own_prices: Floats
    known_prices: Floats

    @property
    def s1_gap(self) -> Floats:
        """How much more the true s1 surprises on the own past, by bar [H]."""
        gap: Floats = self.own.s1_loss[0] - self.true.s1_loss[0]
        return gap

    @property
    def s2_gap(self) -> Floats:
        gap: Floats = self.own.s2_loss[0] - self.true.s2_loss[0]
        return gap


@dataclass(frozen=True, kw_only=True, slots=True)
class ExposureGap:
    """Losses against ε and the distance from the origin, means over origins and walks.

    epsilons [E]; s1_loss, s2_loss [E, H]; s1_true, s2_true [H]: the losses on the true past.
    """

    epsilons: Floats
    s1_loss: Floats
    s2_loss: Floats
    s1_true: Floats
    s2_true: Floats
    origins: int
    walks: int

    @property
    def s1_gap(self) -> Floats:
        """[E, H]; the first bar's is 0, since its past is the context."""
        return self.s1_loss - self.s1_true

    @property
    def s2_gap(self) -> Floats:
        """[E, H]; the first bar's comes from the drawn s1 that conditions it."""
        return self.s2_loss - self.s2_true


def sequence_probability(
    bundle: Bundle,
    bars: pd.DataFrame,
    *,
    context: int,
    horizon: int,
    progress: Progress | None = None,
) -> SequenceProbability:
    """The model's probability of the last ``horizon`` bars, given the ``context`` before them.

    Raises:
        ValueError: too few bars, or more than the model takes at once.
    """
    stretch = stretch_of(bundle, bars, context, horizon)
    walk = _walk(bundle, stretch, np.ones(1), stepper(progress, horizon), greedy=True)
    return SequenceProbability(
        timestamps=walk.timestamps,
        s1=walk.true_s1,
        s2=walk.true_s2,
        s1_loss=walk.s1_loss[0],
        s2_loss=walk.s2_loss[0],
    )


def fork(
    bundle: Bundle,
    bars: pd.DataFrame,
    *,
    context: int,
    horizon: int,
    greedy: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> Fork:
    """Walk the last ``horizon`` bars on true tokens and on own tokens.

    Tokens are drawn with ``seed``, the same noise on both; greedy takes the likeliest instead.

    Raises:
        ValueError: too few bars, or more than the model takes at once.
    """
    stretch = stretch_of(bundle, bars, context, horizon)
    step = stepper(progress, 2 * (horizon + decodings(horizon)) + decodings(1))
    true, own = (
        _walk(bundle, stretch, np.full(1, e), step, greedy=greedy, seed=seed) for e in (1.0, 0)
    )
    return Fork(
        true=true,
        own=own,
        true_prices=_prices(bundle, stretch, true, step),
        own_prices=_prices(bundle, stretch, own, step),
        known_prices=decoded_prices(bundle, stretch, stretch.s1, stretch.s2, step)[0, context:],
    )


def walks(
    bundle: Bundle,
    bars: pd.DataFrame,
    *,
    context: int,
    horizon: int,
    epsilon: float,
    count: int = 1,
    greedy: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> Walk:
    """``count`` walks over the last ``horizon`` bars with one ε; walk r has noise of its own.

    Raises:
        ValueError: ε outside [0, 1], too few bars, or more than the model takes at once.
    """
    _require_epsilons([epsilon])
    stretch = stretch_of(bundle, bars, context, horizon)
    step = stepper(progress, horizon)
    return _walk(bundle, stretch, np.full(count, epsilon), step, greedy=greedy, seed=seed)


def exposure_gap(
    bundle: Bundle,
    bars: pd.DataFrame,
    *,
    context: int,
    horizon: int,
    epsilons: Sequence[float] = EPSILONS,
    origins: int = 4,
    walks: int = 8,
    seed: int = 0,
    progress: Progress | None = None,
) -> ExposureGap:
    """The gap for each ε, from ``walks`` walks at each of ``origins`` origins over the bars.

    Origins are spread evenly. The walks of all ε share their noise and their coins, so that the
    curves differ by ε alone. A step of ``progress`` is a bar of an origin.

    Raises:
        ValueError: ε outside [0, 1], too few bars, or more than the model takes at once.
    """
    _require_epsilons(epsilons)
    frame, window = as_bars(bars), context + horizon
    _require_room(len(frame), window, bundle.max_context)
    starts = np.unique(np.linspace(0, len(frame) - window, origins).round().astype(int))
    rows = np.repeat(np.array([1.0, *epsilons]), walks)
    sums = np.zeros((2, 1 + len(epsilons), horizon))
    step = stepper(progress, len(starts) * horizon)
    for number, start in enumerate(starts):
        stretch = stretch_of(bundle, frame.iloc[start : start + window], context, horizon)
        walk = _walk(bundle, stretch, rows, step, seed=seed + number, shared=walks)
        losses = np.stack((walk.s1_loss, walk.s2_loss))
        sums += losses.reshape(2, -1, walks, horizon).mean(axis=2)
    means = sums / len(starts)
    return ExposureGap(
        epsilons=np.asarray(epsilons, dtype=np.float64),
        s1_loss=means[0, 1:],
        s2_loss=means[1, 1:],
        s1_true=means[0, 0],
        s2_true=means[1, 0],
        origins=len(starts),
        walks=walks,
    )


def stepper(progress: Progress | None, total: int) -> Step:
    """What to call after each of ``total`` steps; it raises what ``progress`` raises."""
    counted = iter(range(1, total + 1))

    def step() -> None:
        done = next(counted)
        if progress is not None:
            progress(done, total)

    return step


def decodings(rows: int) -> int:
    """The steps that ``decoded_prices`` takes for so many rows."""
    return -(-rows // _DECODED_ROWS)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Context and horizon as tokens [1, W], with what turns them back into prices."""

    s1: Tensor
    s2: Tensor
    stamps: Tensor
    mean: Floats
    scale: Floats
    context: int
    timestamps: pd.DatetimeIndex

    @property
    def horizon(self) -> int:
        return self.s1.shape[1] - self.context


@torch.inference_mode()
def stretch_of(bundle: Bundle, bars: pd.DataFrame, context: int, horizon: int) -> Stretch:
    if context < 2 or horizon < 1:
        raise ValueError(
            f"context must be at least 2 bars and horizon at least 1, got {context} and {horizon}"
        )
    frame = as_bars(bars)
    _require_room(len(frame), context + horizon, bundle.max_context)
    kept = frame.iloc[-(context + horizon) :]
    values = kept[list(CHANNELS)].to_numpy(np.float64)
    mean, scale = channel_stats(values[:context])
    z = torch.from_numpy(normalise(values, mean, scale))[None].to(bundle.device)
    s1, s2 = bundle.tokenizer.encode(z, half=True)
    timestamps = pd.DatetimeIndex(kept["timestamps"])
    stamps = torch.from_numpy(stamp_features(timestamps)).to(bundle.device)
    return Stretch(s1, s2, stamps, mean, scale, context, timestamps[context:])


def _require_room(bars: int, window: int, max_context: int) -> None:
    if window > max_context:
        raise ValueError(
            f"context and horizon are {window} bars together, but the model takes {max_context} "
            f"at once; shorten them by {window - max_context} bars"
        )
    if bars < window:
        raise ValueError(
            f"{bars} bars are fewer than context and horizon together ({window}); give "
            f"{window - bars} more, or shorten the context or the horizon"
        )


def _require_epsilons(epsilons: Sequence[float]) -> None:
    outside = [epsilon for epsilon in epsilons if not 0 <= epsilon <= 1]
    if outside or not len(epsilons):
        raise ValueError(f"epsilons must be ratios from 0 to 1, got {list(epsilons)}")


@torch.inference_mode()
def _walk(
    bundle: Bundle,
    stretch: Stretch,
    epsilon: Floats,
    step: Step,
    *,
    greedy: bool = False,
    seed: int = 0,
    shared: int | None = None,
) -> Walk:
    """One walk per entry of ``epsilon`` [R]; every ``shared`` of them repeat noise and coins.

    ``step`` is called after each of the H bars.
    """
    rows, horizon, first = len(epsilon), stretch.horizon, stretch.context
    noise, coins = _chance(seed, shared or rows, rows, horizon)
    kept = torch.from_numpy(coins < epsilon[:, None]).to(bundle.device)
    config = SamplingConfig(horizon=horizon, paths=rows, seed=seed, top_k=1 if greedy else None)
    s1, s2, stamps = stretch.s1[:, :first], stretch.s2[:, :first], stretch.stamps[None, :first]
    cache = after_context(bundle.predictor, s1, s2, stamps, rows, horizon)
    drawn, losses = [], []
    for bar in range(horizon):
        truth = (stretch.s1[0, first + bar], stretch.s2[0, first + bar])
        pair, loss = _look(cache, truth, kept[:, bar], noise[:, bar], config)
        drawn.append(pair)
        losses.append(loss)
        if bar + 1 < horizon:
            next_s1, next_s2 = (
                torch.where(kept[:, bar], true, own) for true, own in zip(truth, pair, strict=True)
            )
            time = cache.weights.times(stretch.stamps[None, first + bar, None])[:, 0]
            cache.advance(next_s1, next_s2, time)
        step()
    ids, nats = (torch.stack(each).permute(1, 2, 0).cpu().numpy() for each in (drawn, losses))
    return Walk(
        timestamps=stretch.timestamps,
        epsilon=epsilon,
        kept=kept.cpu().numpy(),
        true_s1=stretch.s1[0, first:].cpu().numpy(),
        true_s2=stretch.s2[0, first:].cpu().numpy(),
        s1=ids[0],
        s2=ids[1],
        s1_loss=nats[0],
        s2_loss=nats[1],
    )


def _chance(seed: int, own: int, rows: int, horizon: int) -> tuple[Tensor, Floats]:
    """Noise [R, H, 2] and coins [R, H], both in [0, 1), the same for every ``own`` rows."""
    noise = path_noise(seed, range(own), horizon).repeat(rows // own, 1, 1)
    coins = np.random.default_rng([seed, _COINS]).random((own, horizon))
    return noise, np.tile(coins, (rows // own, 1))


def _look(
    cache: PredictorCache,
    truth: tuple[Tensor, Tensor],
    kept: Tensor,
    noise: Tensor,
    config: SamplingConfig,
) -> tuple[Tensor, Tensor]:
    """The next bar: drawn ids [2, R] and the losses of the truth [2, R], float64."""
    s1_logits = cache.s1_logits()
    s1 = draw(s1_logits, noise[:, 0], config)
    own = cache.s2_logits(s1)
    s2 = draw(own, noise[:, 1], config)
    s2_logits = torch.where(kept[:, None], cache.s2_logits(truth[0].expand_as(s1)), own)
    losses = [
        -torch.log_softmax(logits.float(), dim=-1)[:, true].cpu().double()
        for logits, true in zip((s1_logits, s2_logits), truth, strict=True)
    ]
    return torch.stack((s1, s2)), torch.stack(losses)


def _prices(bundle: Bundle, stretch: Stretch, walk: Walk, step: Step) -> Floats:
    """What the only walk drew, as prices [H, C]: each bar decoded behind the past it was drawn on.

    The decoder is causal, so bar h is decoded in a row of its own in which only bar h is drawn.
    """
    horizon, first = stretch.horizon, stretch.context
    rows = []
    for known, past, drawn in (
        (stretch.s1, walk.past_s1, walk.s1),
        (stretch.s2, walk.past_s2, walk.s2),
    ):
        ids = known.repeat(horizon, 1)
        ids[:, first:] = torch.from_numpy(past[0]).to(ids)
        ids[:, first:].diagonal().copy_(torch.from_numpy(drawn[0]).to(ids))
        rows.append(ids)
    decoded = decoded_prices(bundle, stretch, rows[0], rows[1], step)[:, first:]
    return decoded[np.arange(horizon), np.arange(horizon)]


@torch.inference_mode()
def decoded_prices(bundle: Bundle, stretch: Stretch, s1: Tensor, s2: Tensor, step: Step) -> Floats:
    """Ids [R, W] -> [R, W, C] in price units; ``step`` is called after each of `decodings(R)`."""
    pieces = []
    for first in range(0, len(s1), _DECODED_ROWS):
        ids = [each[first : first + _DECODED_ROWS] for each in (s1, s2)]
        pieces.append(bundle.tokenizer.decode(ids, half=True).float().cpu().numpy())
        step()
    return denormalise(np.concatenate(pieces), stretch.mean, stretch.scale)
