"""A small run in processes of their own, to be killed: `python -m tests.core.killed_run STEPS`.

For every folder named on a line of its input it forks a process that starts or resumes the run
there, prints that process's id, and when it has ended its exit status; so that what a start costs,
importing, is paid once. The run appends what it reports to rows.jsonl, one JSON line per row, and
writes a checkpoint every few steps, so that a kill at a random moment also meets half-written
files.
"""

import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

import torch

from kronos_core.training import loop
from kronos_core.training.config import TrainingConfig
from kronos_core.training.options import TokenizerStage
from kronos_core.training.teacher_forcing import TeacherForcing
from kronos_core.training.trainer import MetricRow, train
from tests.core.training_runs import SMALL, make_bars, make_bundle

STEP_SECONDS = 0.01


def settings(steps: int) -> TrainingConfig:
    return replace(
        SMALL,
        steps=steps,
        tokenizer=TokenizerStage(steps=steps // 4),
        teacher_forcing=TeacherForcing.parse("linear:1:0"),
        history=TeacherForcing(start=0.8),
        micro_batch=7,
        ema=0.95,
        patience=steps,
        evaluations_per_epoch=1,
        max_validation_windows=7,
    )


class Log:
    """Callbacks that write every row at once."""

    def __init__(self, folder: Path) -> None:
        self.file = (folder / "rows.jsonl").open("a", buffering=1)

    def on_metric(self, row: MetricRow) -> None:
        self.file.write(json.dumps(asdict(row)) + "\n")
        time.sleep(STEP_SECONDS)

    def on_step(self, step: int, total: int, epoch: float) -> None:
        return None

    def on_event(self, kind: str, message: str) -> None:
        return None

    def should_stop(self) -> bool:
        return False


def run(folder: Path, steps: int) -> None:
    torch.set_num_threads(1)
    loop.CHECKPOINT_SECONDS = 0.1
    folder.mkdir(parents=True, exist_ok=True)
    bundle = make_bundle(dropout=0.1)
    train(bundle, make_bars(), settings(steps), folder=folder, callbacks=Log(folder))


def main(steps: int) -> None:
    # A first run loads what torch imports only when it is used, so that the forks have it.
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), 8)
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            run(Path(line.strip()), steps)
            os._exit(0)
        print(process, flush=True)
        print(os.waitpid(process, 0)[1], flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
