"""Short jobs that somebody asks about again: started under a key, watched, cancelled.

Their results live in this process alone, since they can be made again at any time. The key says
what is computed, so asking twice starts one job, and any tab finds it.
"""

import hashlib
import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from app.jobs.threads import ShortJobs, download_jobs, short_jobs
from app.storage import StorageError
from kronos_core.training.memory import OutOfMemory

log = logging.getLogger(__name__)

KEPT_TASKS = 64
State = Literal["queued", "running", "finished", "failed", "cancelled"]
PENDING: tuple[State, ...] = ("queued", "running")
Report = Callable[[int, int], None]
"""Takes (done, total) between the steps of a job; raises `Cancelled` where it should end."""


class Cancelled(Exception):  # noqa: N818 - not an error
    """Somebody does not want the result any more, or the server is going down."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A job as it is now. result: what it returned, once finished. reason: why there is none."""

    key: str
    state: State = "queued"
    done: int = 0
    total: int = 0
    result: Any = None
    reason: str | None = None

    @property
    def pending(self) -> bool:
        return self.state in PENDING


def key_of(kind: str, inputs: Mapping[str, Any]) -> str:
    """The key of what is computed from these JSON-safe inputs."""
    text = json.dumps([kind, dict(inputs)], sort_keys=True)
    return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


class Tasks:
    """Jobs on one thread, the latest ones kept."""

    def __init__(self, jobs: ShortJobs) -> None:
        self._jobs = jobs
        self._tasks: OrderedDict[str, Task] = OrderedDict()
        self._lock = threading.Lock()

    def start(self, key: str, work: Callable[[Report], Any], *, again: bool = False) -> str:
        """Queues `work` unless it waits, runs or has been done already. -> key

        again: also when it has been done, where the result may be another by now.
        """
        kept = PENDING if again else (*PENDING, "finished")
        with self._lock:
            known = self._tasks.get(key)
            if known is not None and known.state in kept:
                self._tasks.move_to_end(key)
                return key
            self._tasks[key] = Task(key=key)
            self._tasks.move_to_end(key)
            self._forget_oldest()
        self._jobs.submit(lambda: self._run(key, work))
        return key

    def poll(self, key: str) -> Task | None:
        """The job as it is now; None if it is unknown, as after a restart of the server."""
        with self._lock:
            return self._tasks.get(key)

    def cancel(self, key: str) -> None:
        """Ends the job before its next step; one that has ended stays as it is."""
        with self._lock:
            task = self._tasks.get(key)
            if task is not None and task.pending:
                self._tasks[key] = replace(task, state="cancelled", reason="Cancelled on request.")

    def _run(self, key: str, work: Callable[[Report], Any]) -> None:
        if not self._move(key, state="running"):
            return
        try:
            result = work(lambda done, total: self._report(key, done, total))
            self._move(key, state="finished", result=result)
        except Cancelled as error:
            # Who cancels says so at once, and may have started it again since.
            if self._jobs.closing:
                self._move(key, state="cancelled", reason=str(error))
        except Exception as error:
            log.exception("The short job %s failed", key)
            self._move(key, state="failed", reason=explain(error))

    def _report(self, key: str, done: int, total: int) -> None:
        if self._jobs.closing:
            raise Cancelled("Interrupted by a restart of the server. Start it again.")
        if not self._move(key, done=done, total=total):
            raise Cancelled("Cancelled on request.")

    def _move(self, key: str, **fields: Any) -> bool:
        """Changes a job that is not over; False if it is."""
        with self._lock:
            task = self._tasks.get(key)
            if task is None or not task.pending:
                return False
            self._tasks[key] = replace(task, **fields)
            return True

    def _forget_oldest(self) -> None:
        over = [key for key, task in self._tasks.items() if not task.pending]
        for key in over[: max(0, len(self._tasks) - KEPT_TASKS)]:
            del self._tasks[key]


@lru_cache(maxsize=1)
def tasks() -> Tasks:
    """The jobs of this process."""
    return Tasks(short_jobs())


@lru_cache(maxsize=1)
def download_tasks() -> Tasks:
    """The downloads of this process."""
    return Tasks(download_jobs())


def explain(error: Exception) -> str:
    """What went wrong, as a sentence."""
    text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    if isinstance(error, ValueError | StorageError | OutOfMemory):
        return f"{text[:1].upper()}{text[1:]}."
    return f"{type(error).__name__}: {text}. The server's log has the details."
