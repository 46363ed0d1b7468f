"""How fast and how small sampling is on the CPU, as ratios measured in one run.

    python -m benchmarks.sampling [--whole] [--threads N] [--only small]

Full recomputation takes minutes, so some of its steps are measured and scaled up; --whole runs
all of it and checks that both draw the same greedy bars.
"""

import argparse
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator

import psutil
import torch

from benchmarks.cases import (
    CONTEXT,
    Machine,
    Row,
    added_memory,
    against_recomputation,
    many_paths,
    many_series,
    random_bars,
    random_bundle,
)
from kronos_core import estimate_memory, sample_paths

CPU = Machine()


def measure_memory() -> None:
    """In a child process: print the bytes that 1,000 paths add, and the estimate undivided."""
    bundle, bars = random_bundle("small"), random_bars(CONTEXT)
    before = psutil.Process().memory_info().rss
    sample_paths(bundle, bars, 64, 1000)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before)
    print(estimate_memory(bundle, CONTEXT, 64, 1000))


def memory_row() -> Row:
    child = [sys.executable, "-m", "benchmarks.sampling", "--measure-memory"]
    printed = subprocess.run(child, check=True, capture_output=True, text=True).stdout
    return added_memory(iter(printed.split()))


def cases(whole: bool) -> Iterator[tuple[str, Callable[[], Row]]]:
    yield "small", lambda: against_recomputation("small", 120, CPU, whole)
    yield "mini", lambda: against_recomputation("mini", 80, CPU, whole)
    yield "paths", lambda: many_paths("small", 100, 5, CPU)
    yield "memory", memory_row
    yield "series", lambda: many_series(CPU)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [name for name, _ in cases(whole=False)]
    parser.add_argument("--whole", action="store_true", help="run all of the recomputation")
    parser.add_argument("--only", choices=names, action="append", help="a case; may be repeated")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--measure-memory", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.measure_memory:
        measure_memory()
        return
    print(f"CPU, float32, random weights, {args.threads} threads, torch {torch.__version__}")
    for name, case in cases(args.whole):
        if args.only is None or name in args.only:
            print(case(), flush=True)


if __name__ == "__main__":
    main()
