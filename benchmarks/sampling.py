"""How much faster cached sampling is than recomputing the whole context, in one run.

    python -m benchmarks.sampling [--model mini] [--context 400] [--horizon 24] [--paths 20]

Random weights of a released shape, float32, on the CPU. The baseline runs the transformer over
the whole context for every new bar of all paths as one batch, as the release does, and decodes
whole windows at the end; both draw greedily, so that they must draw the same ids.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from kronos_core import Bundle, Kronos, KronosTokenizer, sample_paths
from kronos_core.data.bars import CHANNELS
from kronos_core.data.calendars import future_timestamps
from kronos_core.data.windows import channel_stats, denormalise, normalise, stamp_features

SHAPES = Path(__file__).parents[1] / "tests" / "fixtures" / "golden" / "release_shapes.json"


def random_bundle(size: str) -> Bundle:
    shapes = json.loads(SHAPES.read_text())
    torch.manual_seed(0)
    return Bundle(
        name=f"random {size}",
        tokenizer=KronosTokenizer(**shapes["kronos-tokenizer-base"]["config"]).eval(),
        predictor=Kronos(**shapes[f"kronos-{size}"]["config"]).eval(),
        max_context=512,
        s2_rotary="origin",
    )


def random_bars(count: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    close = 100 * np.exp(np.cumsum(rng.normal(0, 0.01, count)))
    frame = pd.DataFrame(dict.fromkeys(CHANNELS, close))
    frame["volume"] = rng.uniform(1e3, 1e4, count)
    frame["amount"] = frame["volume"] * close
    frame.index = pd.date_range("2024-01-01", periods=count, freq="h")
    return frame


@torch.inference_mode()
def recompute(bundle: Bundle, bars: pd.DataFrame, horizon: int, paths: int) -> np.ndarray:
    """Greedy paths [S,H,6] by full recomputation at every step."""
    values = bars.to_numpy(float)
    mean, scale = channel_stats(values)
    z = torch.from_numpy(normalise(values, mean, scale))[None].repeat(paths, 1, 1)
    s1, s2 = bundle.tokenizer.encode(z, half=True)
    stamps = bars.index.append(future_timestamps(bars.index, horizon))
    stamp = torch.from_numpy(stamp_features(stamps))[None].repeat(paths, 1, 1)
    for _ in range(horizon):
        logits, hidden = bundle.predictor.decode_s1(s1, s2, stamp[:, : s1.shape[1]])
        next_s1 = logits[:, -1:].argmax(-1)
        next_s2 = bundle.predictor.decode_s2(hidden, next_s1)[:, -1:].argmax(-1)
        s1, s2 = torch.cat((s1, next_s1), 1), torch.cat((s2, next_s2), 1)
    decoded = bundle.tokenizer.decode([s1, s2], half=True)[:, -horizon:]
    return denormalise(decoded.numpy(), mean, scale)


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="mini", choices=("mini", "small", "base"))
    parser.add_argument("--context", type=int, default=400)
    parser.add_argument("--horizon", type=int, default=24)
    parser.add_argument("--paths", type=int, default=20)
    args = parser.parse_args()
    bundle, bars = random_bundle(args.model), random_bars(args.context)
    sample_paths(bundle, bars, 2, args.paths)  # warm up
    ours: list[np.ndarray] = []
    fast = seconds(
        lambda: ours.append(sample_paths(bundle, bars, args.horizon, args.paths, top_k=1).paths)
    )
    plain: list[np.ndarray] = []
    slow = seconds(lambda: plain.append(recompute(bundle, bars, args.horizon, args.paths)))
    np.testing.assert_allclose(ours[0], plain[0], rtol=1e-4)
    print(f"Kronos-{args.model}, context {args.context}, horizon {args.horizon}, ", end="")
    print(f"{args.paths} paths, {torch.get_num_threads()} threads")
    print(f"{'full recomputation':<22}{slow:8.2f} s")
    print(f"{'cached':<22}{fast:8.2f} s")
    print(f"{'ratio':<22}{slow / fast:8.1f}")


if __name__ == "__main__":
    main()
