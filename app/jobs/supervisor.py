"""Starts queued runs, ends those that must stop, and notices those whose process is gone."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from app.jobs.launchers import Launcher, WorkerProcess, launcher_for
from app.storage import repository
from app.storage.models import ACTIVE_STATES, Run, utc_now
from app.storage.session import Store
from kronos_core.model.zoo import resolve_device

log = logging.getLogger(__name__)

START_GRACE = timedelta(seconds=60)
"""How long a claimed run may stand without a process before its supervisor counts as gone."""
REMOTE_SILENCE = timedelta(minutes=5)
"""How long a worker of another host may stay silent; its process cannot be looked at from here."""
RESUME_HINT = "Resume continues from the last checkpoint; everything recorded so far is kept."


def device_name(wish: str) -> str:
    """The device that a wish ("auto") means on this host. ValueError if it has none such."""
    return str(resolve_device(wish))


@dataclass(slots=True)
class Stopping:
    """How far the ending of one run has gone; `since` is on the supervisor's clock, in seconds."""

    since: float
    sent: Literal["request", "terminate", "kill"] = "request"


class Supervisor:
    """Watches over the runs of a workspace. Several may do so at once: each change is a
    compare-and-set in the database."""

    def __init__(
        self,
        store: Store,
        launcher: Launcher | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self.launcher = launcher or launcher_for(store.settings)
        self._clock = clock
        self._stopping: dict[str, Stopping] = {}
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        if self.alive:
            return
        self._closing.clear()
        self._thread = threading.Thread(target=self._loop, name="supervisor", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread. Workers go on."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(timeout=30)

    def _loop(self) -> None:
        while not self._closing.is_set():
            try:
                self.tick()
            except Exception:
                log.exception("A supervisor tick failed; the next one tries again")
            self._closing.wait(self.store.settings.poll_seconds)

    def tick(self) -> None:
        self.launcher.reap()
        self.reconcile()
        self.escalate()
        self.launch_queued()

    def launch_queued(self) -> list[str]:
        """Claims queued runs, one per free device, and starts their workers. -> run ids"""
        launched = []
        while (run := self._claim()) is not None:
            if self._launch(run):
                launched.append(run.id)
        return launched

    def _claim(self) -> Run | None:
        with self.store.session() as session:
            return repository.claim_next_run(session, resolve_device=device_name)

    def _launch(self, run: Run) -> bool:
        try:
            worker = self.launcher.launch(run.id, self.store.files.log_path(run.id))
        except OSError as error:
            reason = f"The worker could not be started: {error}. Correct that, then resume the run."
            self._end(run, "failed", reason)
            return False
        self._record_worker(run, worker)
        log.info("Run %s started as process %d", run.id, worker.pid)
        return True

    def _record_worker(self, run: Run, worker: WorkerProcess) -> None:
        """The worker may be ahead and have recorded itself; then its own record stands."""
        with self.store.session() as session:
            repository.set_state(
                session,
                run.id,
                "starting",
                allowed_from=("starting",),
                host=worker.host,
                pid=worker.pid,
                pid_started=worker.pid_started,
            )

    def reconcile(self) -> list[str]:
        """Marks active runs whose process is gone as orphaned. -> their ids"""
        active = self._active_runs()
        for identifier in set(self._stopping) - {run.id for run in active}:
            del self._stopping[identifier]
        return [run.id for run in active if self._end_if_gone(run)]

    def _active_runs(self) -> list[Run]:
        with self.store.session(write=False) as session:
            return repository.runs_in(session, ACTIVE_STATES)

    def _end_if_gone(self, run: Run) -> bool:
        problem = self._problem(run)
        if problem is None:
            return False
        stopping = self._stopping.get(run.id)
        if stopping is not None and stopping.sent != "request":
            grace = self.store.settings.stop_grace_seconds
            reason = f"The run did not stop by itself within {grace:g} s, so its process was ended."
            return self._end(run, "stopped", f"{reason} {RESUME_HINT}")
        return self._end(run, "orphaned", f"{problem} {RESUME_HINT}")

    def _problem(self, run: Run) -> str | None:
        """Why the run has no living worker, or None if it has one, as far as this host can tell."""
        now = utc_now()
        last_sign = run.heartbeat_at or run.queued_at
        worker = worker_of(run)
        if worker is None:
            late = run.state != "running" and now - last_sign > START_GRACE
            return "The server ended before it had started the worker." if late else None
        if worker.host != self.launcher.host:
            silence = f"No sign of life from host {worker.host} since {last_sign:%H:%M} UTC."
            return silence if now - last_sign > REMOTE_SILENCE else None
        if self.launcher.alive(worker):
            return None
        return (
            f"The worker process {worker.pid} ended without a word: it was killed, or memory ran "
            "out; the log may say more."
        )

    def _end(self, run: Run, state: str, reason: str) -> bool:
        with self.store.session() as session:
            ended = repository.set_state(
                session,
                run.id,
                state,
                allowed_from=(run.state,),
                reason=reason,
                finished_at=utc_now(),
            )
            if ended:
                repository.append_event(session, run.id, state, reason)
        if ended:
            log.warning("Run %s %s: %s", run.id, state, reason)
        return ended

    def escalate(self) -> None:
        """Runs that were asked to stop and did not: TERM after a grace, KILL after another."""
        for run in self._active_runs():
            worker = worker_of(run)
            if run.stop_requested and worker is not None and worker.host == self.launcher.host:
                stopping = self._stopping.setdefault(run.id, Stopping(self._clock()))
                self._press(run, worker, stopping)

    def _press(self, run: Run, worker: WorkerProcess, stopping: Stopping) -> None:
        grace = self.store.settings.stop_grace_seconds
        waited = self._clock() - stopping.since
        if stopping.sent == "request" and waited >= grace:
            stopping.sent = "terminate"
            log.warning("Run %s did not stop within %g s: sending TERM", run.id, grace)
            self.launcher.terminate(worker)
        elif stopping.sent == "terminate" and waited >= 2 * grace:
            stopping.sent = "kill"
            log.warning("Run %s ignored TERM for %g s: ending its process", run.id, grace)
            self.launcher.kill(worker)


def worker_of(run: Run) -> WorkerProcess | None:
    if run.host is None or run.pid is None or run.pid_started is None:
        return None
    return WorkerProcess(host=run.host, pid=run.pid, pid_started=run.pid_started)
