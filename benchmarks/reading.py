"""How fast a CSV file of a million bars is read, against a bare pandas.read_csv in the same run.

Run `python -m benchmarks.reading [BARS]`. Prints rows per second of reading alone, of reading with
the quality report (an import) and of pandas (the best of five, taken in turns so that all meet the
same load), the time that a chart of all bars takes, and the peak memory of a child process that
only reads, as a multiple of the file's size (on Linux).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from app.services.dataset_checks import report_on
from app.ui.chart_style import palette
from app.ui.charts import candles
from kronos_core import read_bars

ROUNDS = 5
TARGET_RATIO, TARGET_MEMORY, TARGET_CHART = 0.5, 6.0, 0.2
# The peak of the process itself: ru_maxrss would begin at what the parent held when it forked.
MEASURE = """
import sys
from kronos_core import read_bars

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

before = peak()
series = read_bars(sys.argv[1])
print(before, peak())
"""


def make_bars(count: int) -> pd.DataFrame:
    """A random walk of one-minute bars with four decimals, as exchanges write them."""
    rng = np.random.default_rng(0)
    close = 100 * np.exp(np.cumsum(rng.normal(0, 1e-4, count)))
    stamps = pd.date_range("2020-01-01", periods=count, freq="min")
    prices = {"open": 1.0, "high": 1.001, "low": 0.999, "close": 1.0}
    return pd.DataFrame(
        {
            "timestamps": stamps,
            **{name: (close * factor).round(4) for name, factor in prices.items()},
            "volume": rng.uniform(1, 1e4, count).round(3),
            "amount": rng.uniform(1, 1e6, count).round(2),
        }
    )


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def fastest(path: Path) -> dict[str, float]:
    """Seconds of each kind of work."""
    colours = palette("colour-blind safe")
    (series,) = read_bars(path)
    work: dict[str, Callable[[], object]] = {
        "read_bars": lambda: read_bars(path),
        "read_bars with report": lambda: [report_on(one) for one in read_bars(path)],
        "bare pandas.read_csv": lambda: pd.read_csv(path, parse_dates=["timestamps"]),
        "chart of all bars": lambda: candles(series.frame, colours=colours, entity="bench"),
    }
    rounds = [{name: seconds(call) for name, call in work.items()} for _ in range(ROUNDS)]
    return {name: min(taken[name] for taken in rounds) for name in work}


def peak_kilobytes(path: Path) -> tuple[int, int]:
    """Peak memory of a process that has imported the engine, and after it has read the file."""
    command = [sys.executable, "-c", MEASURE, str(path)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    before, after = map(int, run.stdout.split())
    return before, after


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bars.csv"
        make_bars(count).to_csv(path, index=False)
        size = path.stat().st_size
        taken = fastest(path)
        before, after = peak_kilobytes(path)
    print(f"CSV of {count:,} bars, {size / 1e6:.1f} MB")
    print(f"{'':24}{'seconds':>10}{'rows/s':>14}")
    for name, duration in taken.items():
        print(f"{name:24}{duration:>10.3f}{count / duration:>14,.0f}")
    imported, bare = taken["read_bars with report"], taken["bare pandas.read_csv"]
    print(f"import with report: {bare / imported:.2f} of pandas (aim: at least {TARGET_RATIO})")
    share = taken["chart of all bars"] / imported
    print(f"chart: {share:.2f} of the import's time (aim: at most {TARGET_CHART})")
    print(
        f"peak memory {after * 1024 / 1e6:.0f} MB, {after * 1024 / size:.1f} × the file (aim: at "
        f"most {TARGET_MEMORY:g}); of it {before * 1024 / 1e6:.0f} MB are there before reading"
    )


if __name__ == "__main__":
    main()
