"""What the benchmarks measure: random weights of the released shapes, each row a ratio of one run.

"Recomputation" is what the release does: the model runs over the whole context for every new bar
of every path, and whole windows are decoded at the end.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from kronos_core import Bundle, Forecast, Kronos, KronosTokenizer, sample_many, sample_paths
from kronos_core.data.bars import CHANNELS
from kronos_core.data.calendars import future_timestamps
from kronos_core.data.windows import channel_stats, denormalise, normalise, stamp_features
from kronos_core.model.zoo import ZOO

SHAPES = Path(__file__).parents[1] / "tests" / "fixtures" / "golden" / "release_shapes.json"
CONTEXT = 400
REPEATS = 5  # each side counts with its best of these
SAMPLED_STEPS = (0, 8, 16, 23)  # of the recomputation that are measured and scaled


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where and how the engine computes."""

    device: str = "cpu"
    dtype: str = "float32"
    compiled: bool = False

    def settings(self) -> dict[str, object]:
        return {"dtype": self.dtype, "compiled": self.compiled}


@dataclass(frozen=True)
class Row:
    """One line of the table: what was measured, and the bar it must reach."""

    case: str
    measured: str
    value: float
    bar: float
    at_least: bool = False

    @property
    def reached(self) -> bool:
        return self.value >= self.bar if self.at_least else self.value <= self.bar

    def __str__(self) -> str:
        sign, verdict = "≥" if self.at_least else "≤", "reached" if self.reached else "missed"
        return (
            f"{self.case:<58}{self.measured:<34}{self.value:8.2f}   {sign} {self.bar:g}, {verdict}"
        )


@cache
def random_bundle(size: str, device: str = "cpu") -> Bundle:
    shapes = json.loads(SHAPES.read_text())
    torch.manual_seed(0)
    return Bundle(
        name=f"random {size}",
        tokenizer=KronosTokenizer(**shapes["kronos-tokenizer-base"]["config"]).eval().to(device),
        predictor=Kronos(**shapes[f"kronos-{size}"]["config"]).eval().to(device),
        max_context=ZOO[f"kronos-{size}"].max_context,
        s2_rotary="origin",
    )


def random_bars(count: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    close = 100 * np.exp(np.cumsum(rng.normal(0, 0.01, count)))
    frame = pd.DataFrame(dict.fromkeys(CHANNELS, close))
    frame["volume"] = rng.uniform(1e3, 1e4, count)
    frame["amount"] = frame["volume"] * close
    frame.index = pd.date_range("2024-01-01", periods=count, freq="h")
    return frame


def seconds(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """The best of some runs."""

    def once() -> float:
        began = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - began

    return min(once() for _ in range(repeats))


@dataclass
class Recomputation:
    """One greedy path by full recomputation at every step, in float32."""

    bundle: Bundle
    bars: pd.DataFrame
    horizon: int

    def __post_init__(self) -> None:
        values = self.bars.to_numpy(float)
        self.mean, self.scale = channel_stats(values)
        stamps = self.bars.index.append(future_timestamps(self.bars.index, self.horizon))
        device = self.bundle.device
        self.z = torch.from_numpy(normalise(values, self.mean, self.scale))[None].to(device)
        self.stamp = torch.from_numpy(stamp_features(stamps))[None].to(device)

    @torch.inference_mode()
    def encode(self) -> tuple[torch.Tensor, torch.Tensor]:
        s1, s2 = self.bundle.tokenizer.encode(self.z, half=True)
        return s1, s2

    @torch.inference_mode()
    def step(self, s1: torch.Tensor, s2: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits, hidden = self.bundle.predictor.decode_s1(s1, s2, self.stamp[:, : s1.shape[1]])
        next_s1 = logits[:, -1:].argmax(-1)
        next_s2 = self.bundle.predictor.decode_s2(hidden, next_s1)[:, -1:].argmax(-1)
        return torch.cat((s1, next_s1), 1), torch.cat((s2, next_s2), 1)

    @torch.inference_mode()
    def decode(self, s1: torch.Tensor, s2: torch.Tensor) -> np.ndarray:
        z = self.bundle.tokenizer.decode([s1, s2], half=True)[:, -self.horizon :]
        return denormalise(z.cpu().numpy(), self.mean, self.scale)

    def path(self) -> np.ndarray:
        """The whole of it -> [1,H,C]."""
        ids = self.encode()
        for _ in range(self.horizon):
            ids = self.step(*ids)
        return self.decode(*ids)

    def estimated_seconds(self) -> float:
        """Of one path, from some of its steps."""
        s1, s2 = (torch.nn.functional.pad(ids, (0, self.horizon)) for ids in self.encode())
        known = len(self.bars)
        steps = [
            seconds(lambda now=known + step: self.step(s1[:, :now], s2[:, :now]))
            for step in SAMPLED_STEPS
        ]
        around = seconds(self.encode) + seconds(lambda: self.decode(s1, s2))
        return self.horizon * float(np.mean(steps)) + around


def against_recomputation(size: str, bar: float, machine: Machine, whole: bool) -> Row:
    """Full recomputation per path and step over ours, 20 paths of 24 bars."""
    horizon, paths = 24, 20
    bundle, bars = random_bundle(size, machine.device), random_bars(CONTEXT)
    plain = Recomputation(bundle, bars, horizon)
    ours = draw_seconds(bundle, bars, horizon, paths, machine)
    if whole:
        slow = seconds(lambda: [plain.path() for _ in range(paths)], 1)
        check_equal(bundle, bars, plain, machine)
    else:
        slow = paths * plain.estimated_seconds()
    # Before and after, since a machine's pace changes while the other side is measured.
    ours = min(ours, draw_seconds(bundle, bars, horizon, paths, machine))
    measured = f"{slow:.1f} s ÷ {ours:.3f} s" + ("" if whole else " (scaled)")
    case = f"{size}, {CONTEXT} + {horizon} bars, {paths} paths: recomputation ÷ ours"
    return Row(case, measured, slow / ours, bar, at_least=True)


def check_equal(bundle: Bundle, bars: pd.DataFrame, plain: Recomputation, machine: Machine) -> None:
    if machine.dtype != "float32":
        return
    ours = sample_paths(bundle, bars, plain.horizon, 1, top_k=1, **machine.settings())
    np.testing.assert_allclose(ours.paths, plain.path(), rtol=1e-4)


def draw_seconds(
    bundle: Bundle, bars: pd.DataFrame, horizon: int, paths: int, machine: Machine
) -> float:
    def draw() -> Forecast:
        return sample_paths(bundle, bars, horizon, paths, **machine.settings())

    draw()  # fuse, compile and warm up
    return seconds(draw)


def many_paths(size: str, paths: int, bar: float, machine: Machine) -> Row:
    """Time of many paths over the time of one."""
    horizon = 112
    bundle, bars = random_bundle(size, machine.device), random_bars(CONTEXT)
    one = draw_seconds(bundle, bars, horizon, 1, machine)
    many = draw_seconds(bundle, bars, horizon, paths, machine)
    one = min(one, draw_seconds(bundle, bars, horizon, 1, machine))
    case = f"{size}, {CONTEXT} + {horizon} bars: {paths:,} paths ÷ 1 path"
    return Row(case, f"{many:.2f} s ÷ {one:.2f} s", many / one, bar)


def many_series(machine: Machine, bar: float = 0.6) -> Row:
    """64 series of different lengths in one batch over one by one."""
    bundle, horizon, paths = random_bundle("mini", machine.device), 24, 20
    lengths = np.random.default_rng(0).integers(100, CONTEXT + 1, 64)
    series = [random_bars(int(length), seed) for seed, length in enumerate(lengths)]

    def together() -> object:
        return sample_many(bundle, series, horizon, paths, **machine.settings())

    def alone() -> object:
        return [sample_paths(bundle, bars, horizon, paths, **machine.settings()) for bars in series]

    sample_paths(bundle, series[0], horizon, paths, **machine.settings())
    batch, single = seconds(together), seconds(alone, 2)
    case = f"mini, 64 series of 100–{CONTEXT} bars × {paths} paths: batch ÷ single"
    return Row(case, f"{batch:.2f} s ÷ {single:.2f} s", batch / single, bar)


def added_memory(rows: Iterator[str]) -> Row:
    """What a child process printed: gigabytes added by 1,000 paths."""
    added, estimate = (float(text) / 1e9 for text in rows)
    case = f"small, {CONTEXT} + 64 bars: memory added by 1,000 paths, GB"
    return Row(case, f"{estimate:.2f} GB if drawn at once", added, 2.5)
