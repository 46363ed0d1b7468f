"""How much faster fine-tuning is than a plain loop over the same windows, in one run.

    python -m benchmarks.training [--model mini] [--window 256] [--batch 16] [--windows 64]

Random weights of a released shape, float32, on the CPU, own draws of s1 (the release's way). The
plain loop slices every window from the data frame, normalises it, and encodes every batch again;
ours encodes every window once, which is part of its time. Both take the same windows in the same
order for the same epochs, turn by turn, so that other work on the machine slows both alike.
Evaluations and checkpoints are left out of both.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from kronos_core import Bundle, Kronos, KronosTokenizer
from kronos_core.data.bars import CHANNELS, as_bars
from kronos_core.data.windows import channel_stats, normalise, stamp_features
from kronos_core.training.config import TrainingConfig
from kronos_core.training.probe import Silent
from kronos_core.training.sampler import epoch_batches
from kronos_core.training.trainer import Run

SHAPES = Path(__file__).parents[1] / "tests" / "fixtures" / "golden" / "release_shapes.json"
HORIZON = 16


def random_bundle(size: str, max_context: int) -> Bundle:
    shapes = json.loads(SHAPES.read_text())
    torch.manual_seed(0)
    return Bundle(
        name=f"random {size}",
        tokenizer=KronosTokenizer(**shapes["kronos-tokenizer-base"]["config"]).eval(),
        predictor=Kronos(**shapes[f"kronos-{size}"]["config"]).eval(),
        max_context=max_context,
        s2_rotary="position",
    )


def random_bars(count: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    close = 100 * np.exp(np.cumsum(rng.normal(0, 0.01, count)))
    frame = pd.DataFrame(dict.fromkeys(CHANNELS, close))
    frame["volume"] = rng.uniform(1e3, 1e4, count)
    frame["amount"] = frame["volume"] * close
    frame["timestamps"] = pd.date_range("2024-01-01", periods=count, freq="h", tz="UTC")
    return as_bars(frame)


class PlainLoop:
    """Slice, normalise, encode, forward, backward, step: nothing kept between epochs."""

    def __init__(self, bundle: Bundle, bars: pd.DataFrame, config: TrainingConfig) -> None:
        self.bars, self.config, self.tokenizer = bars, config, bundle.tokenizer
        self.predictor = Kronos(**bundle.predictor.config)
        self.predictor.load_state_dict(bundle.predictor.state_dict())
        self.optimiser = torch.optim.AdamW(
            self.predictor.parameters(), lr=config.learning_rate, betas=config.betas
        )

    def window(self, start: int) -> tuple[np.ndarray, np.ndarray]:
        rows = self.bars.iloc[start : start + self.config.window]
        values = rows[list(CHANNELS)].to_numpy()
        mean, scale = channel_stats(values[: self.config.context])
        stamp = stamp_features(pd.DatetimeIndex(rows["timestamps"]))
        return normalise(values, mean, scale), stamp

    def epoch(self, batches: list[Tensor]) -> None:
        for rows in batches:
            pairs = [self.window(int(row)) for row in rows]
            z = torch.from_numpy(np.stack([values for values, _ in pairs]))
            stamp = torch.from_numpy(np.stack([stamp for _, stamp in pairs]))[:, :-1]
            with torch.no_grad():
                s1, s2 = self.tokenizer.encode(z, half=True)
            logits = self.predictor(s1[:, :-1], s2[:, :-1], stamp)
            loss, _, _ = self.predictor.head.compute_loss(*logits, s1[:, 1:], s2[:, 1:])
            self.optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.predictor.parameters(), self.config.clip_norm)
            self.optimiser.step()


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(arguments: argparse.Namespace, folder: Path) -> tuple[float, float]:
    """Tokens per second of the plain loop and of ours."""
    window, count = arguments.window, arguments.windows
    bundle = random_bundle(arguments.model, window)
    # Two parts more for validation (one window) and the gap before it.
    bars = random_bars(count + 2 * (window - 1) + 1 + HORIZON)
    config = TrainingConfig(
        context=window - HORIZON,
        horizon=HORIZON,
        batch_size=arguments.batch,
        epochs=arguments.epochs,
        validation_fraction=1e-9,
        test_fraction=0.0,
        device="cpu",
    )
    run = Run(bundle, [bars], config, folder=folder, callbacks=Silent())
    windows = run.plan.train_windows
    plain = PlainLoop(bundle, bars, config)
    first = epoch_batches(windows, config.batch_size, config.seed, 0)[:1]
    plain.epoch(first)  # warm up
    began = time.perf_counter()
    loop = run.predictor_loop(bundle.tokenizer, *run.encode(bundle.tokenizer))
    ours, slow = time.perf_counter() - began, 0.0
    for epoch in range(config.epochs):
        batches = epoch_batches(windows, config.batch_size, config.seed, epoch)
        slow += seconds(lambda batches=batches: plain.epoch(batches))
        ours += seconds(lambda batches=batches: [loop.update(rows) for rows in batches])
    tokens = config.epochs * run.plan.tokens_per_epoch
    return tokens / slow, tokens / ours


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="mini", choices=("mini", "small", "base"))
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--windows", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        plain, ours = measure(arguments, Path(folder))
    print(f"Kronos-{arguments.model}, W={arguments.window}, B={arguments.batch}, ", end="")
    print(f"{arguments.epochs} epochs, {torch.get_num_threads()} threads")
    print(f"{'plain loop':<22}{plain:10,.0f} tokens/s")
    print(f"{'ours':<22}{ours:10,.0f} tokens/s")
    print(f"{'ratio':<22}{ours / plain:10.2f}")


if __name__ == "__main__":
    main()
