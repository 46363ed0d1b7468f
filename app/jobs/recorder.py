"""What a training run reports and is asked, exchanged with the database in batches."""

import json
import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from itertools import count
from typing import Any, TypeVar

from app.jobs.launchers import WorkerProcess
from app.storage import repository
from app.storage.files import written_aside
from app.storage.models import Run, utc_now
from app.storage.session import Store
from kronos_core.training.trainer import MetricRow

log = logging.getLogger("app.worker")

R = TypeVar("R")

EXCHANGE_SECONDS = 0.7
INSIST_SECONDS = 120.0
KEPT = 200_000
"""Rows kept in memory while the database does not answer; then the oldest go."""
MINE = ("starting", "running", "stopping", "orphaned")
"""States in which the run is still this process's, if its pid stands there; "orphaned" only if
somebody took a silent worker for dead."""


def insist(work: Callable[[], R], what: str, retried: type[Exception]) -> R:
    """Does `work` on the database, again and again for two minutes while it raises `retried`."""
    deadline = time.monotonic() + INSIST_SECONDS
    while True:
        try:
            return work()
        except retried as error:
            if time.monotonic() > deadline:
                raise
            log.warning("The database does not take %s yet: %s", what, error)
            time.sleep(1)


class Recorder:
    """The callbacks of one run. A thread of its own talks to the database, so that a locked or
    absent database delays what is shown, never the training."""

    def __init__(
        self, store: Store, run: Run, own: WorkerProcess, interval: float = EXCHANGE_SECONDS
    ) -> None:
        self.store = store
        self.run_id = run.id
        self.own = own
        self.lost = False
        """Another process has the run, or it is deleted: nothing may be written any more."""
        self.signalled = False
        """The process was asked to end."""
        self.stop_wished = run.stop_requested
        """A person asked for the stop."""
        self.best = _best_so_far(run)
        self._position: dict[str, Any] = {}
        self._rows: dict[int, MetricRow] = {}
        self._events: dict[int, tuple[str, str]] = {}
        self._serial = count()
        self._lock = threading.Lock()
        self._interval = interval
        self._written_at = time.monotonic()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="recorder", daemon=True)
        self._spool = store.files.run_folder(run.id) / "unrecorded.json"
        self._take_up_spool()

    # What the trainer calls

    def on_metric(self, row: MetricRow) -> None:
        losses = (loss for loss in (row.s1, row.s2, row.total) if loss is not None)
        if not all(map(math.isfinite, losses)):
            log.warning("Step %d has a loss that is not finite; it is not recorded", row.step)
            return
        with self._lock:
            self._keep(self._rows, row)
            self._position["stage"] = row.stage
            if row.split == "validation":
                self._note_validation(row)

    def _note_validation(self, row: MetricRow) -> None:
        parts = {"s1": row.s1, "s2": row.s2, "coarse": row.coarse, "fine": row.fine}
        known = ", ".join(f"{name} {loss:.4f}" for name, loss in parts.items() if loss is not None)
        log.info("Step %d of the %s: validation %s", row.step, row.stage, known)
        best = self.best["best_total"]
        # A tokenizer's loss compares with no other. Step 0 is the untouched base model: a
        # reference, not a result of the run.
        if row.stage == "predictor" and row.step > 0 and (best is None or row.total < best):
            self.best = {
                "best_step": row.step,
                "best_total": row.total,
                "best_s1": row.s1,
                "best_s2": row.s2,
            }

    def on_step(self, step: int, total: int, epoch: float) -> None:
        with self._lock:
            self._position |= {"step": step, "total_steps": total, "epoch": epoch}

    def on_event(self, kind: str, message: str) -> None:
        log.info("%s: %s", kind, message)
        with self._lock:
            self._keep(self._events, (kind, message))
            if kind == "checkpoint":
                self._save_spool()

    def should_stop(self) -> bool:
        return self.signalled or self.stop_wished or self.lost

    # What the worker calls

    def start(self) -> None:
        self._thread.start()

    def finish(self, state: str, reason: str | None, **fields: Any) -> bool:
        """Writes what is left and the final state, insisting for two minutes. -> written?"""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(timeout=60)
        if self.lost:
            return False
        try:
            ending = {"reason": reason, "finished_at": utc_now(), **fields}
            return insist(lambda: self._write(state, **ending), "the end", Exception)
        except Exception:
            log.exception("The end of the run (%s) could not be recorded", state)
            return False

    # The exchange with the database

    def _loop(self) -> None:
        while not self._closing.wait(self._interval) and not self.lost:
            try:
                self.exchange()
            except Exception as error:
                log.warning("The database did not answer; kept for later: %s", error)

    def exchange(self) -> None:
        """One round: writes what is new, or at least a sign of life; reads the wish to stop."""
        idle = time.monotonic() - self._written_at
        if self._rows or self._events or idle >= self.store.settings.heartbeat_seconds:
            self._write(None)
            return
        with self.store.session(write=False) as session:
            self._look(repository.get(session, Run, self.run_id))

    def _write(self, final: str | None, **ending: Any) -> bool:
        with self._lock:
            rows, events = dict(self._rows), dict(self._events)
            fields = {**self._position, **self.best, **ending}
        with self.store.session() as session:
            run = self._look(repository.get(session, Run, self.run_id))
            if run is None:
                return False
            repository.insert_metrics(session, self.run_id, map(asdict, rows.values()))
            for kind, message in events.values():
                repository.append_event(session, self.run_id, kind, message)
            if final is not None:
                repository.set_state(session, run.id, final, allowed_from=MINE)
            elif run.state == "orphaned":
                repository.set_state(
                    session,
                    run.id,
                    "running",
                    allowed_from=("orphaned",),
                    reason=None,
                    finished_at=None,
                )
            if final == "failed":
                repository.append_event(session, self.run_id, final, ending["reason"])
            repository.heartbeat(session, self.run_id, **fields)
        self._forget(rows, events)
        return True

    def _look(self, run: Run | None) -> Run | None:
        """Takes note of what the row asks; None, and `lost` from now on, if it is not ours."""
        mine = run is not None and run.state in MINE and run.pid == self.own.pid
        if run is None or not mine or run.host != self.own.host:
            log.error("Run %s is no longer this process's; stopping", self.run_id)
            self.lost = True
            return None
        self.stop_wished = self.stop_wished or run.stop_requested
        return run

    # What waits to be written

    def _keep(self, waiting: dict[int, Any], item: Any) -> None:
        waiting[next(self._serial)] = item
        if len(waiting) > KEPT:
            waiting.pop(next(iter(waiting)))

    def _forget(self, rows: dict[int, MetricRow], events: dict[int, tuple[str, str]]) -> None:
        self._written_at = time.monotonic()
        with self._lock:
            for serial in rows:
                self._rows.pop(serial, None)
            for serial in events:
                self._events.pop(serial, None)
            if not self._rows:
                self._spool.unlink(missing_ok=True)

    def _save_spool(self) -> None:
        """A resumed run repeats nothing from before its checkpoint, so rows that only this
        process's memory holds at that moment go to a file; no waiting for the database."""
        try:
            with written_aside(self._spool) as aside:
                aside.write_text(json.dumps([asdict(row) for row in self._rows.values()]))
        except OSError as error:
            log.warning("Metrics not yet in the database could not be put aside: %s", error)

    def _take_up_spool(self) -> None:
        if not self._spool.exists():
            return
        try:
            rows = [MetricRow(**row) for row in json.loads(self._spool.read_text())]
        except (ValueError, TypeError) as error:
            log.warning("Metrics put aside by an earlier attempt are unreadable: %s", error)
            return
        for row in rows:
            self.on_metric(row)


def _best_so_far(run: Run) -> dict[str, Any]:
    return {name: getattr(run, name) for name in ("best_step", "best_total", "best_s1", "best_s2")}
