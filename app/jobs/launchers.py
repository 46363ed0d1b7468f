"""How a worker process is started, watched and ended."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil

from app.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
START_TOLERANCE = 2.0
"""Seconds; clock corrections move the start time that the system reports for a process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerProcess:
    """One process; its start time (Unix seconds) tells it from a later one with the same pid."""

    host: str
    pid: int
    pid_started: float


class Launcher(Protocol):
    """Starts workers for runs; another way to start them (a cluster) is another launcher."""

    host: str

    def launch(self, run_id: str, log: Path) -> WorkerProcess:
        """Starts the run's worker, its output appended to `log`. OSError if it cannot start."""
        ...

    def alive(self, worker: WorkerProcess) -> bool: ...

    def terminate(self, worker: WorkerProcess) -> None:
        """Asks the worker to save and end."""
        ...

    def kill(self, worker: WorkerProcess) -> None:
        """Ends the worker and everything it started, at once."""
        ...

    def reap(self) -> None:
        """Collects workers that have ended."""
        ...


def this_process() -> WorkerProcess:
    own = psutil.Process()
    return WorkerProcess(host=socket.gethostname(), pid=own.pid, pid_started=own.create_time())


def is_alive(worker: WorkerProcess) -> bool:
    """Whether exactly this process still runs on this host; an unreaped dead one does not."""
    return _find(worker) is not None


def _find(worker: WorkerProcess) -> psutil.Process | None:
    try:
        process = psutil.Process(worker.pid)
        same = abs(process.create_time() - worker.pid_started) <= START_TOLERANCE
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def worker_environment(settings: Settings) -> dict[str, str]:
    """The environment in which a worker reads the same settings as its server."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    for name, value in settings.model_dump().items():
        text = str(value.resolve()) if isinstance(value, Path) else str(value)
        environment[f"KRONOS_{name.upper()}"] = text
    return environment


def _own_group() -> Mapping[str, object]:
    """Popen arguments that keep the worker out of the server's process group."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


def _start(command: list[str], log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            **_own_group(),
        )


@dataclass
class LocalLauncher:
    """Workers as processes of this machine, each in a session of its own, so that they outlive
    the server that started them."""

    settings: Settings
    host: str = field(default_factory=socket.gethostname)
    _children: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def command(self, run_id: str) -> list[str]:
        return [sys.executable, "-m", "app.jobs.worker", run_id]

    def launch(self, run_id: str, log: Path) -> WorkerProcess:
        child = _start(self.command(run_id), log, worker_environment(self.settings))
        self._children[child.pid] = child
        return WorkerProcess(host=self.host, pid=child.pid, pid_started=_started(child.pid))

    def alive(self, worker: WorkerProcess) -> bool:
        return is_alive(worker)

    def terminate(self, worker: WorkerProcess) -> None:
        if sys.platform == "win32":
            _send(worker, signal.CTRL_BREAK_EVENT)
        else:
            _send(worker, signal.SIGTERM)

    def kill(self, worker: WorkerProcess) -> None:
        process = _find(worker)
        if process is None:
            return
        with suppress(ProcessLookupError, psutil.NoSuchProcess):  # it may end meanwhile
            if sys.platform != "win32" and os.getpgid(worker.pid) == worker.pid:
                os.killpg(worker.pid, signal.SIGKILL)
                return
            for member in [*process.children(recursive=True), process]:
                member.kill()

    def reap(self) -> None:
        ended = [pid for pid, child in self._children.items() if child.poll() is not None]
        for pid in ended:
            del self._children[pid]


def _started(pid: int) -> float:
    try:
        return psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:  # ended already; the next look at it will say so
        return time.time()


def _send(worker: WorkerProcess, number: int) -> None:
    process = _find(worker)
    if process is not None:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def launcher_for(settings: Settings) -> Launcher:
    return {"local": LocalLauncher}[settings.launcher](settings)
