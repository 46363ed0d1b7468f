"""Short jobs under a key: started once, cancelled, asked for again."""

import threading
import time
from collections.abc import Iterator

import pytest

from app.jobs.tasks import Cancelled, Report, Task, Tasks
from app.jobs.threads import ShortJobs


@pytest.fixture
def jobs() -> Iterator[ShortJobs]:
    jobs = ShortJobs()
    yield jobs
    jobs.close()


@pytest.fixture
def tasks(jobs: ShortJobs) -> Tasks:
    return Tasks(jobs)


def until(tasks: Tasks, state: str) -> Task:
    for _ in range(1000):
        task = tasks.poll("key")
        if task is not None and task.state == state:
            return task
        time.sleep(0.01)
    raise AssertionError(f"never {state}: {tasks.poll('key')}")


def test_what_is_done_is_done_again_only_on_demand(tasks: Tasks) -> None:
    results = iter((1, 2))
    for again, expected in ((False, 1), (False, 1), (True, 2)):
        tasks.start("key", lambda _: next(results), again=again)
        assert until(tasks, "finished").result == expected


class Halting:
    """A job that stays at its first step, and takes its time to clean up once cancelled."""

    def __init__(self) -> None:
        self.at_work, self.go_on, self.tidied = (threading.Event() for _ in range(3))

    def __call__(self, report: Report) -> str:
        report(1, 2)
        self.at_work.set()
        self.go_on.wait(10)
        try:
            report(2, 2)
        except Cancelled:
            self.tidied.wait(10)
            raise
        return "done"


def test_a_cancelled_job_does_not_end_the_one_that_was_started_after_it(tasks: Tasks) -> None:
    first = Halting()
    tasks.start("key", first)
    assert first.at_work.wait(10)
    tasks.cancel("key")
    assert until(tasks, "cancelled").reason == "Cancelled on request."
    first.go_on.set()
    time.sleep(0.05)  # it cleans up now
    tasks.start("key", lambda _: "second")
    first.tidied.set()
    assert until(tasks, "finished").result == "second"


def test_a_closing_server_says_why_the_job_ended(jobs: ShortJobs, tasks: Tasks) -> None:
    job = Halting()
    tasks.start("key", job)
    assert job.at_work.wait(10)
    job.tidied.set()
    closing = threading.Thread(target=jobs.close)
    closing.start()
    while not jobs.closing:
        time.sleep(0.01)
    job.go_on.set()
    closing.join()
    assert "restart of the server" in (until(tasks, "cancelled").reason or "")
