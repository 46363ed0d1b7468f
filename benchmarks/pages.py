"""How much longer a page takes while a run trains on the CPU, against an idle server, in one run.

    python -m benchmarks.pages [--reruns 40]

Whole reruns of a page's script, in this process, over a temporary workspace with a sample and a
run of kronos-nano that a real worker trains, started by a real supervisor. For the idle reruns the
worker is suspended, so that the pages show as much in both. Both take turns, so that other work on
the machine slows both alike. Printed is the 95th percentile of the reruns while training over that
of the idle ones.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import psutil

from app.jobs.supervisor import Supervisor, worker_of
from app.services import datasets, runs
from app.settings import get_settings
from app.storage import Store
from app.storage.models import Dataset
from app.ui import components, resources
from benchmarks.cases import Row
from benchmarks.training import seconds
from kronos_core.training.config import TrainingConfig
from tests.pages.helpers import checked, opened

PAGES = ("home", "datasets", "forecast", "runs")
TARGET = 3.0
WARM_UP = 3
BLOCK = 10
"""Reruns in a row before the other side has its turn."""
STEPS_BEFORE = 20
PATIENCE_SECONDS = 300.0
ENDLESS = TrainingConfig(steps=1_000_000, device="cpu")


@contextmanager
def workspace() -> Iterator[tuple[Store, Dataset]]:
    """An empty workspace with a sample, which the pages open as well."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["KRONOS_WORKSPACE"] = folder
        os.environ.pop("KRONOS_DATABASE_URL", None)
        get_settings.cache_clear()
        store = resources.store()
        yield store, datasets.add_sample(store, "sp500")
        store.close()


@contextmanager
def supervised(store: Store) -> Iterator[Supervisor]:
    """A supervisor at work; no worker of it is left behind."""
    supervisor = Supervisor(store)
    supervisor.start()
    try:
        yield supervisor
    finally:
        supervisor.close()
        for run in runs.list_runs(store):
            if worker := worker_of(run):
                supervisor.launcher.kill(worker)
        supervisor.launcher.reap()


def training(store: Store, dataset: Dataset) -> psutil.Process:
    """The worker of a run that has taken some steps, and takes more than anybody waits for."""
    run = runs.queue(store, dataset_id=dataset.id, model_id="kronos-nano", config=ENDLESS)
    wait_for_step(store, run.id, STEPS_BEFORE)
    worker = worker_of(runs.get(store, run.id))
    assert worker is not None
    return psutil.Process(worker.pid)


def wait_for_step(store: Store, run_id: str, step: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (run := runs.get(store, run_id)).step < step:
        if run.state not in components.BUSY_STATES or time.monotonic() > deadline:
            raise RuntimeError(f"{run.state}: {run.reason}\n{runs.log_tail(store, run_id)}")
        time.sleep(0.1)


def compare(name: str, worker: psutil.Process, reruns: int) -> Row:
    """The row of one page."""
    page = opened(name)
    for _ in range(WARM_UP):
        checked(page.run())
    idle: list[float] = []
    busy: list[float] = []
    while len(busy) < reruns:
        worker.suspend()
        idle += [seconds(page.run) for _ in range(BLOCK)]
        worker.resume()
        busy += [seconds(page.run) for _ in range(BLOCK)]
    slow, fast = (float(np.quantile(taken, 0.95)) for taken in (busy, idle))
    measured = f"{slow * 1000:.0f} ms ÷ {fast * 1000:.0f} ms"
    return Row(f"{name}: p95 of a rerun, training ÷ idle", measured, slow / fast, TARGET)


def measure(reruns: int) -> Iterator[Row]:
    """One row a page."""
    with workspace() as (store, dataset), supervised(store):
        worker = training(store, dataset)
        for name in PAGES:
            yield compare(name, worker, reruns)
        (run,) = runs.list_runs(store)
        wait_for_step(store, run.id, run.step + 1)  # it trained until the end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reruns", type=int, default=40, help=f"a multiple of {BLOCK}")
    arguments = parser.parse_args()
    load = ", ".join(f"{value:.1f}" for value in psutil.getloadavg())
    print(f"{arguments.reruns} reruns a page, {psutil.cpu_count()} cores, load {load} before")
    for row in measure(arguments.reruns):
        print(row, flush=True)


if __name__ == "__main__":
    main()
