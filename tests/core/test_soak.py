"""A run that is killed at random moments. KRONOS_SOAK sets how often (10 in the usual tests)."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.core.training_runs import assert_equal_weights, weights

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("KRONOS_SOAK", "10"))
STEPS = 13 * KILLS
MEASURES = ("tokens_per_second", "memory_mb")
Rows = dict[tuple[str, str, int], dict[str, Any]]


class Forge:
    """Starts the run of a folder in a new process, again and again."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.core.killed_run", str(STEPS)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, folder: Path) -> int:
        """-> process id"""
        self.process.stdin.write(f"{folder}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def ended(self) -> int:
        """Waits for the process started last. -> its status as os.waitpid gives it"""
        return int(self.process.stdout.readline())

    def kill_at_a_random_moment(self, folder: Path, seconds: float) -> bool:
        """Start or resume the run, kill it ``seconds`` after its first row. -> was it running?"""
        before, process = size_of(folder), self.start(folder)
        deadline = time.monotonic() + 60
        while size_of(folder) == before and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(seconds)
        os.kill(process, signal.SIGKILL)
        return os.WIFSIGNALED(self.ended())


@pytest.fixture
def forge():
    forge = Forge()
    yield forge
    forge.process.stdin.close()
    forge.process.wait(timeout=60)
    forge.process.stdout.close()


def size_of(folder: Path) -> int:
    path = folder / "rows.jsonl"
    return path.stat().st_size if path.exists() else 0


def rows_of(folder: Path) -> Rows:
    """Rows by stage, split and step, as a table with that key holds them; repeats must be equal."""
    rows: Rows = {}
    for line in (folder / "rows.jsonl").read_text().splitlines():
        if not line.endswith("}"):  # cut off by a kill
            continue
        row = {name: value for name, value in json.loads(line).items() if name not in MEASURES}
        key = (row["stage"], row["split"], row["step"])
        assert rows.setdefault(key, row) == row
    return rows


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
def test_a_run_killed_at_random_moments_equals_an_uninterrupted_one(tmp_path, forge):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    forge.start(whole)
    assert forge.ended() == 0
    for number, seconds in enumerate(np.random.default_rng().uniform(0.0, 0.3, size=KILLS)):
        running = forge.kill_at_a_random_moment(killed, float(seconds))
        assert running, f"the run was over before kill {number + 1}"
    forge.start(killed)
    assert forge.ended() == 0
    expected, rows = rows_of(whole), rows_of(killed)
    assert rows == expected
    assert [key[2] for key in expected if key[:2] == ("predictor", "train")] == list(
        range(1, STEPS + 1)
    )
    for name in ("tokenizer", "best", "last"):
        assert_equal_weights(weights(killed / name), weights(whole / name))
    assert not list(killed.glob(".new-*"))
