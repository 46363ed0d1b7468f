"""Short work inside the server: one worker thread that keeps the models it used loaded."""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from kronos_core.model.zoo import Bundle, load_bundle

log = logging.getLogger(__name__)
KEPT_BUNDLES = 2


class ShortJobs:
    """Runs jobs one after the other. A job must look at `closing` between its steps and end."""

    def __init__(self, name: str = "short-jobs", kept: int = KEPT_BUNDLES) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._bundles: OrderedDict[tuple[str, str], Bundle] = OrderedDict()
        self._lock = threading.Lock()
        self._kept = kept
        self._closing = threading.Event()
        self._change = threading.Condition()
        self._ended = 0

    @property
    def closing(self) -> bool:
        return self._closing.is_set()

    @property
    def ended(self) -> int:
        """How many jobs have ended so far."""
        return self._ended

    def submit(self, job: Callable[[], None]) -> Future[None]:
        """Queues the job. RuntimeError after `close`."""
        future = self._executor.submit(_logged, job)
        future.add_done_callback(self._count)
        return future

    def _count(self, _job: Future[None]) -> None:
        with self._change:
            self._ended += 1
            self._change.notify_all()

    def wait(self, ended: int, seconds: float) -> None:
        """Returns when more than `ended` jobs have ended, after `seconds` at the latest."""
        with self._change:
            self._change.wait_for(lambda: self._ended > ended, seconds)

    def bundle(self, model_hash: str, source: str | Path, device: str) -> Bundle:
        """The model loaded from `source`, or the one kept from an earlier job."""
        key = (model_hash, device)
        with self._lock:
            if key not in self._bundles:
                self._bundles[key] = load_bundle(source, device=device)
            self._bundles.move_to_end(key)
            while len(self._bundles) > self._kept:
                self._bundles.popitem(last=False)
            return self._bundles[key]

    def close(self) -> None:
        """Drops queued jobs and waits for the running one to notice `closing`."""
        self._closing.set()
        self._executor.shutdown(wait=True, cancel_futures=True)


def _logged(job: Callable[[], None]) -> None:
    try:
        job()
    except Exception:
        log.exception("A short job ended with an error that it did not handle")
        raise


@lru_cache(maxsize=1)
def short_jobs() -> ShortJobs:
    """The short jobs of this process."""
    return ShortJobs()


@lru_cache(maxsize=1)
def download_jobs() -> ShortJobs:
    """What waits for the network for minutes, and must not keep forecasts waiting."""
    return ShortJobs("downloads")
