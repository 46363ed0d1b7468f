"""One fine-tuning run in a process of its own: `python -m app.jobs.worker RUN_ID`."""

import errno
import logging
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pandas as pd
import psutil
import torch

from app.jobs.bundles import bundle_source, register_model
from app.jobs.launchers import WorkerProcess, this_process
from app.jobs.recorder import Recorder, insist
from app.logs import log_to_stderr
from app.settings import get_settings
from app.storage import repository
from app.storage.files import StorageError
from app.storage.models import Dataset, Model, Run, utc_now
from app.storage.session import DatabaseError, Store
from kronos_core.model.zoo import load_bundle
from kronos_core.training.config import TrainingConfig
from kronos_core.training.memory import OutOfMemory, is_out_of_memory
from kronos_core.training.trainer import NonFiniteLoss, TrainingResult, train

log = logging.getLogger("app.worker")

NICENESS = 10
AUTOGROUP = Path("/proc/self/autogroup")
RESUME = "then resume the run: it continues from the last checkpoint."
FULL_DISK_WORDS = ("no space left on device", "disk quota exceeded", "disk is full")
FULL_DISK = tuple(getattr(errno, name) for name in ("ENOSPC", "EDQUOT") if hasattr(errno, name))


class NotMineError(RuntimeError):
    """The run is not this process's to train."""


def main(arguments: list[str]) -> int:
    """Trains the run. -> exit code: 0 finished or stopped, 1 failed, 2 nothing to do here"""
    log_to_stderr("app", "kronos_core")
    store = Store(get_settings())
    own = this_process()
    try:
        run = insist(lambda: claim(store, arguments[0], own), "the start of the run", DatabaseError)
    except NotMineError as error:
        log.error("%s", error)
        return 2
    recorder = Recorder(store, run, own)
    catch_signals(recorder)
    be_considerate()
    recorder.start()
    try:
        return conclude(store, run, recorder, work(store, run, recorder))
    except Exception as error:
        log.exception("Run %s failed", run.id)
        recorder.finish("failed", explain(error))
        return 1
    finally:
        store.close()


def claim(store: Store, run_id: str, own: WorkerProcess) -> Run:
    """Takes a starting run for this process, which makes it running. NotMineError otherwise."""
    with store.session() as session:
        run = repository.get(session, Run, run_id)
        if run is None:
            raise NotMineError(f"There is no run {run_id}.")
        # A virtual environment on Windows starts Python through a parent with a pid of its own.
        if run.pid not in (None, own.pid, os.getppid()):
            raise NotMineError(f"Run {run_id} belongs to process {run.pid} on {run.host}.")
        now = utc_now()
        fields = {"host": own.host, "pid": own.pid, "pid_started": own.pid_started}
        taken = repository.set_state(
            session,
            run_id,
            "stopping" if run.stop_requested else "running",
            allowed_from=("starting", "stopping"),
            started_at=now,
            heartbeat_at=now,
            **fields,
        )
        if not taken:
            raise NotMineError(f"Run {run_id} is {run.state}; only a starting run can be taken.")
        session.refresh(run)
        return run


def catch_signals(recorder: Recorder) -> None:
    """Turns the wish of the system or the supervisor to end into a stop with a checkpoint."""

    def note(_number: int, _frame: FrameType | None) -> None:
        recorder.signalled = True

    for name in ("SIGTERM", "SIGINT", "SIGBREAK"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), note)


def be_considerate() -> None:
    """Leaves the dashboard a core and lets it go first."""
    cores = psutil.cpu_count() or 1
    torch.set_num_threads(min(torch.get_num_threads(), max(1, cores - 1)))
    if sys.platform == "win32":
        psutil.Process().nice(psutil.BELOW_NORMAL_PRIORITY_CLASS)
    else:
        lower_session(os.nice(NICENESS))


def lower_session(niceness: int) -> None:
    """Makes this process's session as considerate as the process.

    Where Linux groups processes by session (sched_autogroup), niceness counts only within the
    session, which the worker has to itself: it would take half of the processor all the same.
    """
    if os.access(AUTOGROUP, os.W_OK) and os.getsid(0) == os.getpid():
        with suppress(OSError):  # a container may forbid it
            AUTOGROUP.write_text(str(niceness))


def work(store: Store, run: Run, recorder: Recorder) -> TrainingResult:
    """Loads what the run needs and trains."""
    config = TrainingConfig.from_dict(run.config)
    model, datasets = insist(lambda: inputs(store, run), "a question", DatabaseError)
    frames = [
        bars_of(store, dataset, data_hash)
        for dataset, data_hash in zip(datasets, run.data_hashes, strict=True)
    ]
    data = ", ".join(f"{item.name} ({item.bars} bars)" for item in datasets)
    log.info("Training %s on %s, run %s", model.name, data, run.id)
    bundle = load_bundle(bundle_source(store, model), device=config.device)
    folder = store.files.run_folder(run.id)
    return train(bundle, frames, config, folder=folder, callbacks=recorder)


def inputs(store: Store, run: Run) -> tuple[Model, list[Dataset]]:
    """The base model and the datasets, in the run's order. StorageError if one was deleted."""
    with store.session(write=False) as session:
        model = repository.get(session, Model, run.base_model_id)
        found = [repository.get(session, Dataset, row_id) for row_id in run.dataset_ids]
    datasets = [dataset for dataset in found if dataset is not None]
    if model is None or len(datasets) < len(found):
        what = "model" if model is None else "dataset"
        raise StorageError(f"The run's {what} has been deleted. Queue a new run with another.")
    return model, datasets


def bars_of(store: Store, dataset: Dataset, data_hash: str) -> pd.DataFrame:
    """The data as it was when the run was queued, even if the dataset has been updated since."""
    bars = store.files.read_bars(data_hash or dataset.data_hash)
    return bars.assign(timestamps=bars["timestamps"].dt.tz_convert(dataset.timezone))


def conclude(store: Store, run: Run, recorder: Recorder, result: TrainingResult) -> int:
    """Registers the model that came of the run, then writes how it ended. -> exit code"""
    if recorder.lost:
        return 2
    fields: dict[str, Any] = {"step": result.step, "total_steps": result.total_steps}
    saved = ""
    if result.bundle_folder is not None:
        fields["model_id"] = _registered(store, run, result.bundle_folder, recorder.best)
        saved = f" The best weights so far (step {result.best_step}) are saved as a model."
    if result.outcome == "finished":
        return 0 if recorder.finish("finished", None, **fields) else 1
    cause = "on request" if recorder.stop_wished else "because its process was asked to end"
    position = f"at step {result.step} of {result.total_steps}"
    reason = f"Stopped {cause} {position}.{saved} Resume continues from here."
    return 0 if recorder.finish("stopped", reason, **fields) else 1


def _registered(store: Store, run: Run, folder: Path, best: dict[str, Any]) -> str:
    return insist(lambda: register_model(store, run, folder, best), "the model", DatabaseError)


def explain(error: Exception) -> str:
    """Why the run failed and what the user can do about it, in a sentence or two."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, NonFiniteLoss):
        return f"{_sentence(text)} Queue a new run with a lower learning rate."
    if _disk_is_full(error):
        return f"The disk of the workspace is full. Free some space, {RESUME}"
    if isinstance(error, OutOfMemory):
        return _sentence(text)
    if is_out_of_memory(error):
        return (
            "Out of memory. Queue a new run with half the batch size or a shorter context, or "
            f"end other programs, {RESUME}"
        )
    if isinstance(error, DatabaseError):
        return (
            f"The database did not answer ({' '.join(str(error.orig).split())}). End other "
            f"programs that use it, {RESUME}"
        )
    if isinstance(error, FileNotFoundError):
        return f"A file is missing: {error.filename or text}. Put it back, {RESUME}"
    if isinstance(error, ValueError | StorageError):
        return _sentence(text)
    return (
        f"{type(error).__name__}: {text.rstrip('.')}. The log has the details. "
        f"Correct the cause, {RESUME}"
    )


def _disk_is_full(error: Exception) -> bool:
    """Weights are written by a library whose errors are no OSErrors and say it in words alone."""
    text = str(error).lower()
    numbered = isinstance(error, OSError) and error.errno in FULL_DISK
    return numbered or any(sign in text for sign in FULL_DISK_WORDS)


def _sentence(text: str) -> str:
    if "_" in text.partition(" ")[0]:  # the name of a setting
        return f"{text.rstrip('.')}."
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
