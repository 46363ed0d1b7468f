"""Train kronos-nano, the model that comes with the workbench, on daily bars that packages ship.

    python -m scripts.train_nano [--minutes 40]

Needs `arch` and `bokeh_sampledata` (requirements-dev.txt). The seed and the number of steps are
fixed, so that the same machine gives the same weights; --minutes only says where to give up.
Writes kronos_core/model/assets/kronos-nano with a model card of what was measured.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import arch.data.nasdaq
import arch.data.sp500
import numpy as np
import pandas as pd
import torch
from bokeh_sampledata import stocks
from torch import Tensor
from torch.nn.functional import mse_loss

from kronos_core import Kronos, KronosTokenizer, load_bundle, save_bundle
from kronos_core.data.bars import CHANNELS, as_bars
from kronos_core.data.windows import channel_stats, normalise, stamp_features
from kronos_core.model.zoo import ASSETS, Bundle

SEED = 7
WINDOW = 256
CONTEXTS = (48, 240)  # statistics come from this many first bars, so that any context works
BATCH = 16
TOKENIZER_STEPS = 1600
PREDICTOR_STEPS = 1500
HELD_OUT = 0.1  # the last tenth of every series is never trained on
MARGIN = 64  # bars between training and held-out bars

TOKENIZER = {
    "d_in": 6, "d_model": 64, "n_heads": 4, "ff_dim": 128, "n_enc_layers": 3, "n_dec_layers": 3,
    "ffn_dropout_p": 0.0, "attn_dropout_p": 0.0, "resid_dropout_p": 0.0, "s1_bits": 7,
    "s2_bits": 7, "beta": 0.05, "gamma0": 1.0, "gamma": 1.1, "zeta": 0.05, "group_size": 7,
}  # fmt: skip
PREDICTOR = {
    "s1_bits": 7, "s2_bits": 7, "n_layers": 3, "d_model": 64, "n_heads": 4, "ff_dim": 160,
    "ffn_dropout_p": 0.1, "attn_dropout_p": 0.1, "resid_dropout_p": 0.1, "token_dropout_p": 0.1,
    "learn_te": True,
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """Values [T,6] and calendar stamps [T,5] of one series."""

    values: np.ndarray
    stamps: np.ndarray


def daily_series() -> dict[str, pd.DataFrame]:
    """Real daily bars, adjusted for splits and dividends where the source says how."""
    series = {
        "S&P 500": _index_bars(arch.data.sp500.load()),
        "Nasdaq": _index_bars(arch.data.nasdaq.load()),
    }
    for ticker in ("AAPL", "FB", "GOOG", "IBM", "MSFT"):
        series[ticker] = _stock_bars(pd.DataFrame(getattr(stocks, ticker)))
    return series


def _index_bars(frame: pd.DataFrame) -> pd.DataFrame:
    frame = frame.rename(columns=str.lower)[["open", "high", "low", "close", "volume"]]
    return as_bars(frame.astype(float))


def _stock_bars(frame: pd.DataFrame) -> pd.DataFrame:
    ratio = frame["adj_close"] / frame["close"]
    columns = {name: frame[name] * ratio for name in ("open", "high", "low", "close")}
    columns["volume"] = frame["volume"] / ratio
    bars = pd.DataFrame(columns).set_index(pd.DatetimeIndex(frame["date"]))
    return as_bars(bars)


def split(bars: pd.DataFrame) -> tuple[Part, Part]:
    values = bars[list(CHANNELS)].to_numpy(float)
    stamps = stamp_features(pd.DatetimeIndex(bars["timestamps"]))
    cut = int(len(bars) * (1 - HELD_OUT))
    return (
        Part(values[: cut - MARGIN], stamps[: cut - MARGIN]),
        Part(values[cut:], stamps[cut:]),
    )


class Windows:
    """Random windows, each normalised by the statistics of a context of random length."""

    def __init__(self, parts: list[Part], seed: int) -> None:
        self.parts = [part for part in parts if len(part.values) > WINDOW]
        sizes = np.array([len(part.values) - WINDOW for part in self.parts])
        self.chances = sizes / sizes.sum()
        self.rng = np.random.default_rng(seed)

    def batch(self, rows: int = BATCH) -> tuple[Tensor, Tensor]:
        """Normalised bars [B,T,6] and stamps [B,T,5]."""
        windows, stamps = zip(*(self._window() for _ in range(rows)), strict=True)
        return torch.from_numpy(np.stack(windows)), torch.from_numpy(np.stack(stamps))

    def _window(self) -> tuple[np.ndarray, np.ndarray]:
        part = self.parts[self.rng.choice(len(self.parts), p=self.chances)]
        start = self.rng.integers(len(part.values) - WINDOW)
        context = self.rng.integers(*CONTEXTS)
        values = part.values[start : start + WINDOW]
        mean, scale = channel_stats(values[:context])
        return normalise(values, mean, scale), part.stamps[start : start + WINDOW]


def optimiser(
    model: torch.nn.Module, rate: float, steps: int
) -> tuple[torch.optim.AdamW, torch.optim.lr_scheduler.OneCycleLR]:
    adam = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.1)
    cycle = torch.optim.lr_scheduler.OneCycleLR(
        adam, rate, total_steps=steps, pct_start=0.03, div_factor=10
    )
    return adam, cycle


def tokenizer_loss(tokenizer: KronosTokenizer, x: Tensor) -> tuple[Tensor, float]:
    (coarse, fine), quantiser_loss, _, _ = tokenizer(x)
    fine_error = mse_loss(fine, x)
    return (mse_loss(coarse, x) + fine_error + quantiser_loss) / 2, fine_error.item()


def train_tokenizer(windows: Windows, deadline: float) -> KronosTokenizer:
    tokenizer = KronosTokenizer(**TOKENIZER).train()
    adam, cycle = optimiser(tokenizer, 2e-3, TOKENIZER_STEPS)
    for step in range(1, TOKENIZER_STEPS + 1):
        loss, fine = tokenizer_loss(tokenizer, windows.batch()[0])
        _update(loss, tokenizer, adam, cycle, 2.0)
        _report("tokenizer", step, {"loss": loss.item(), "fine mse": fine}, deadline)
    return tokenizer.eval()


def predictor_losses(
    model: Kronos, tokenizer: KronosTokenizer, batch: tuple[Tensor, Tensor], own: bool
) -> tuple[Tensor, Tensor, Tensor]:
    x, stamps = batch
    with torch.no_grad():
        s1, s2 = tokenizer.encode(x, half=True)
    logits = model(
        s1[:, :-1],
        s2[:, :-1],
        stamps[:, :-1],
        use_teacher_forcing=not own,
        s1_targets=None if own else s1[:, 1:],
    )
    return model.head.compute_loss(*logits, s1[:, 1:], s2[:, 1:])


def train_predictor(windows: Windows, tokenizer: KronosTokenizer, deadline: float) -> Kronos:
    model = Kronos(**PREDICTOR).train()
    adam, cycle = optimiser(model, 2e-3, PREDICTOR_STEPS)
    for step in range(1, PREDICTOR_STEPS + 1):
        loss, s1, s2 = predictor_losses(model, tokenizer, windows.batch(), own=False)
        _update(loss, model, adam, cycle, 3.0)
        _report("predictor", step, {"s1": s1.item(), "s2": s2.item()}, deadline)
    return model.eval()


def _update(
    loss: Tensor,
    model: torch.nn.Module,
    adam: torch.optim.AdamW,
    cycle: torch.optim.lr_scheduler.OneCycleLR,
    clip: float,
) -> None:
    adam.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    adam.step()
    cycle.step()


def _report(stage: str, step: int, values: dict[str, float], deadline: float) -> None:
    if time.monotonic() > deadline:
        raise SystemExit(f"{stage} step {step}: out of time; allow more with --minutes")
    if step % 100 == 0 or step == 1:
        shown = "  ".join(f"{name} {value:.4f}" for name, value in values.items())
        print(f"{stage} {step:5d}  {shown}", flush=True)


@torch.no_grad()
def evaluate(model: Kronos, tokenizer: KronosTokenizer, parts: list[Part]) -> dict[str, float]:
    """Mean losses over 20 fixed batches of windows."""
    windows = Windows(parts, SEED + 1)
    torch.manual_seed(SEED + 1)
    rows = []
    for _ in range(20):
        batch = windows.batch()
        _, fine = tokenizer_loss(tokenizer, batch[0])
        _, s1, s2 = predictor_losses(model, tokenizer, batch, own=False)
        _, _, s2_own = predictor_losses(model, tokenizer, batch, own=True)
        rows.append([fine, s1.item(), s2.item(), s2_own.item()])
    names = ("fine mse", "s1", "s2 on true s1", "s2 on own s1")
    return dict(zip(names, np.mean(rows, axis=0).tolist(), strict=True))


CARD = """# kronos-nano

A very small model in the Kronos format, so that the workbench forecasts and fine-tunes without a
network. It shows how everything works. It is not a useful predictor of markets.

- Tokenizer: {tokenizer:,} parameters, {s1} + {s2} bits. Predictor: {predictor:,} parameters,
  {context} bars of context.
- Trained on real daily bars that two Python packages ship: S&P 500 and Nasdaq 1999–2018
  (`arch`), and AAPL, FB, GOOG, IBM, MSFT 2000–2013 (`bokeh_sampledata`), {bars:,} bars in all,
  adjusted for splits and dividends. The last {held:.0%} of every series was held out. **The sample
  datasets of the workbench are part of this training data**: on bars before mid-2016 its
  forecasts of them are forecasts of what it has seen.
- Only daily bars: the embeddings of hours and minutes were never trained, so expect little on
  intraday data before fine-tuning.
- s2 was conditioned on the true s1 (teacher forcing) in training, positions as in training
  ("position").

| mean over 20 batches of windows | training bars | held-out bars | uniform guess |
|---|---|---|---|
{rows}

Cross-entropies in nats per token; fine mse is the tokenizer's reconstruction error in squared
standard deviations of the context. Made by `python -m scripts.train_nano` in {minutes:.0f}
minutes of one CPU core, seed {seed}.
"""


def write_card(
    bundle: Bundle, measured: tuple[dict[str, float], dict[str, float]], bars: int, minutes: float
) -> None:
    train, held = measured
    guess = {"s1": TOKENIZER["s1_bits"], "s2 on true s1": TOKENIZER["s2_bits"]}
    guess["s2 on own s1"] = guess["s2 on true s1"]
    rows = [
        f"| {name} | {train[name]:.3f} | {held[name]:.3f} | "
        + (f"{guess[name] * np.log(2):.3f} |" if name in guess else "– |")
        for name in train
    ]
    card = CARD.format(
        tokenizer=sum(p.numel() for p in bundle.tokenizer.parameters()),
        s1=TOKENIZER["s1_bits"],
        s2=TOKENIZER["s2_bits"],
        predictor=bundle.parameters,
        context=bundle.max_context,
        bars=bars,
        held=HELD_OUT,
        rows="\n".join(rows),
        minutes=minutes,
        seed=SEED,
    )
    (ASSETS / "kronos-nano" / "README.md").write_text(card, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=40.0, help="give up after this long")
    deadline = time.monotonic() + 60 * parser.parse_args().minutes
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    series = daily_series()
    train, held = zip(*(split(bars) for bars in series.values()), strict=True)
    windows = Windows(list(train), SEED)
    tokenizer = train_tokenizer(windows, deadline)
    model = train_predictor(windows, tokenizer, deadline)
    measured = (evaluate(model, tokenizer, list(train)), evaluate(model, tokenizer, list(held)))
    bundle = Bundle(
        name="kronos-nano",
        tokenizer=tokenizer,
        predictor=model,
        max_context=WINDOW,
        s2_rotary="position",
        provenance={
            "script": Path(__file__).name,
            "data": sorted(series),
            "seed": SEED,
            "held_out": measured[1],
        },
    )
    save_bundle(bundle, ASSETS / "kronos-nano")
    minutes = time.process_time() / 60
    write_card(bundle, measured, sum(map(len, series.values())), minutes)
    assert load_bundle("kronos-nano", device="cpu").hash == bundle.hash
    print(f"kronos-nano in {minutes:.1f} minutes: {measured}")


if __name__ == "__main__":
    main()
