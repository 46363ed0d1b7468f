"""The table of `benchmarks.sampling` on a CUDA device, in float32 and bfloat16, to 10,000 paths.

python -m benchmarks.gpu [--compiled]
"""

import argparse
import sys

import torch

from benchmarks.cases import (
    CONTEXT,
    Machine,
    Row,
    against_recomputation,
    many_paths,
    many_series,
    random_bars,
    random_bundle,
)
from kronos_core import estimate_memory, sample_paths

PATHS = 10_000


def memory_row(machine: Machine) -> Row:
    """Peak memory of 10,000 paths beyond the model, over what was estimated before."""
    bundle, bars = random_bundle("small", machine.device), random_bars(CONTEXT)
    sample_paths(bundle, bars, 1, 1, **machine.settings())
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    sample_paths(bundle, bars, 64, PATHS, **machine.settings())
    added = torch.cuda.max_memory_allocated() - before
    dtype = torch.bfloat16 if machine.dtype == "bfloat16" else torch.float32
    estimate = estimate_memory(bundle, CONTEXT, 64, PATHS, dtype=dtype)
    case = f"small, {CONTEXT} + 64 bars, {PATHS:,} paths: memory ÷ estimate"
    return Row(case, f"{added / 1e9:.2f} GB ÷ {estimate / 1e9:.2f} GB", added / estimate, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compiled", action="store_true", help="through torch.compile, as graphs")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("No CUDA device here: run benchmarks.sampling for the CPU's table.")
    for dtype in ("float32", "bfloat16"):
        machine = Machine(device="cuda", dtype=dtype, compiled=args.compiled)
        print(f"{torch.cuda.get_device_name()}, {dtype}, torch {torch.__version__}")
        print(against_recomputation("small", 120, machine, whole=False))
        print(against_recomputation("mini", 80, machine, whole=False))
        print(many_paths("small", 100, 5, machine))
        print(many_paths("small", PATHS, 500, machine))
        print(memory_row(machine))
        print(many_series(machine), flush=True)


if __name__ == "__main__":
    main()
