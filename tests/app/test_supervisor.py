"""The supervisor against real processes that know nothing of training."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from app.jobs.launchers import LocalLauncher, WorkerProcess, is_alive, this_process
from app.jobs.supervisor import REMOTE_SILENCE, START_GRACE, Supervisor
from app.services import runs
from app.settings import Settings
from app.storage import Store, repository
from app.storage.models import Run, utc_now

SLEEP = "import time; time.sleep(600)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); {SLEEP}"


@dataclass
class ScriptLauncher(LocalLauncher):
    """Starts a script in place of the worker."""

    script: str = SLEEP
    launched: list[WorkerProcess] = field(default_factory=list)

    def command(self, run_id: str) -> list[str]:
        return [sys.executable, "-u", "-c", self.script]

    def launch(self, run_id: str, log: Path) -> WorkerProcess:
        self.launched.append(super().launch(run_id, log))
        return self.launched[-1]


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def launcher(settings: Settings) -> Iterator[ScriptLauncher]:
    launcher = ScriptLauncher(settings)
    yield launcher
    for worker in launcher.launched:
        launcher.kill(worker)
    eventually(lambda: not any(map(is_alive, launcher.launched)))


@pytest.fixture
def supervisor(store: Store, launcher: ScriptLauncher) -> Iterator[Supervisor]:
    supervisor = Supervisor(store, launcher)
    yield supervisor
    supervisor.close()


def eventually(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def change(store: Store, run: Run, state: str, **fields: object) -> None:
    with store.session() as session:
        assert repository.set_state(session, run.id, state, allowed_from=(run.state,), **fields)


def test_a_queued_run_gets_a_worker_in_a_session_of_its_own(
    store: Store, run: Run, supervisor: Supervisor, launcher: ScriptLauncher
) -> None:
    supervisor.tick()
    row = runs.get(store, run.id)
    assert (row.state, row.device) == ("starting", "cpu")
    assert (row.host, row.pid) == (launcher.host, launcher.launched[0].pid)
    assert is_alive(launcher.launched[0])
    if sys.platform != "win32":
        assert os.getsid(launcher.launched[0].pid) == launcher.launched[0].pid


def test_one_run_per_device(
    store: Store, run: Run, supervisor: Supervisor, launcher: ScriptLauncher
) -> None:
    second = runs.queue(
        store,
        dataset_id=run.dataset_id,
        model_id=run.base_model_id,
        config=runs.config_of(run),
    )
    supervisor.tick()
    supervisor.tick()
    assert len(launcher.launched) == 1
    assert runs.get(store, second.id).state == "queued"
    launcher.kill(launcher.launched[0])
    eventually(lambda: not is_alive(launcher.launched[0]))
    supervisor.tick()
    assert runs.get(store, run.id).state == "orphaned"
    assert runs.get(store, second.id).state == "starting"


def test_a_worker_that_cannot_be_started_fails_its_run(
    store: Store, run: Run, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScriptLauncher, "command", lambda *_: ["/nowhere/python"])
    supervisor.tick()
    row = runs.get(store, run.id)
    assert row.state == "failed"
    assert "could not be started" in (row.reason or "")


def test_a_process_that_is_gone_leaves_an_orphan_with_a_remedy(
    store: Store, run: Run, supervisor: Supervisor, launcher: ScriptLauncher
) -> None:
    supervisor.tick()
    launcher.kill(launcher.launched[0])
    eventually(lambda: not is_alive(launcher.launched[0]))
    assert supervisor.reconcile() == [run.id]
    row = runs.get(store, run.id)
    assert row.state == "orphaned"
    assert row.finished_at is not None
    assert "Resume continues" in (row.reason or "")
    assert [event.kind for event in runs.events(store, run.id)] == ["queued", "orphaned"]


def test_a_reused_pid_is_not_mistaken_for_the_worker(
    store: Store, run: Run, supervisor: Supervisor
) -> None:
    own = this_process()
    change(store, run, "running", host=own.host, pid=own.pid, pid_started=own.pid_started - 1000)
    assert supervisor.reconcile() == [run.id]


def test_a_living_worker_is_left_alone_by_another_supervisor(
    store: Store, run: Run, supervisor: Supervisor, settings: Settings
) -> None:
    supervisor.tick()
    assert Supervisor(store, LocalLauncher(settings)).reconcile() == []


@pytest.mark.parametrize("margin", [timedelta(seconds=-30), timedelta(seconds=30)])
def test_a_worker_of_another_host_is_judged_by_its_heartbeat(
    store: Store, run: Run, supervisor: Supervisor, margin: timedelta
) -> None:
    seen = utc_now() - REMOTE_SILENCE - margin
    change(store, run, "running", host="elsewhere", pid=1, pid_started=0.0, heartbeat_at=seen)
    assert bool(supervisor.reconcile()) == (margin > timedelta(0))


@pytest.mark.parametrize("margin", [timedelta(seconds=-30), timedelta(seconds=30)])
def test_a_claim_whose_server_died_before_the_launch(
    store: Store, run: Run, supervisor: Supervisor, margin: timedelta
) -> None:
    change(store, run, "starting", heartbeat_at=utc_now() - START_GRACE - margin)
    assert bool(supervisor.reconcile()) == (margin > timedelta(0))


def test_stop_escalates_to_term_and_then_to_kill(
    store: Store, run: Run, launcher: ScriptLauncher, settings: Settings
) -> None:
    clock = Clock()
    launcher.script = STUBBORN
    supervisor = Supervisor(store, launcher, clock=clock)
    supervisor.tick()
    worker = launcher.launched[0]
    eventually(lambda: "up" in runs.log_tail(store, run.id))
    runs.stop(store, run.id)
    supervisor.tick()
    grace = settings.stop_grace_seconds
    for clock.now in (grace - 1, grace + 1, 2 * grace - 1):
        supervisor.tick()
        assert is_alive(worker)
    clock.now = 2 * grace + 1
    supervisor.tick()
    eventually(lambda: not is_alive(worker))
    supervisor.tick()
    row = runs.get(store, run.id)
    assert row.state == "stopped"
    assert "did not stop by itself" in (row.reason or "")


def test_term_is_enough_for_a_process_that_heeds_it(
    store: Store, run: Run, launcher: ScriptLauncher, settings: Settings
) -> None:
    clock = Clock()
    supervisor = Supervisor(store, launcher, clock=clock)
    supervisor.tick()
    runs.stop(store, run.id)
    supervisor.tick()
    clock.now = settings.stop_grace_seconds + 1
    supervisor.tick()
    eventually(lambda: not is_alive(launcher.launched[0]))


def test_kill_takes_the_whole_group(launcher: ScriptLauncher, tmp_path: Path) -> None:
    launcher.script = (
        "import subprocess, sys, time;"
        f"child = subprocess.Popen([sys.executable, '-c', {SLEEP!r}]);"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    log = tmp_path / "worker.log"
    worker = launcher.launch("run", log)
    eventually(lambda: log.read_text().strip() != "")
    child = int(log.read_text())
    launcher.kill(worker)
    eventually(lambda: not is_alive(worker))
    eventually(lambda: not _running(child))


def _running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_the_thread_survives_an_error_in_a_tick(
    supervisor: Supervisor, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.settings.poll_seconds = 0.01
    ticks = []

    def tick() -> None:
        ticks.append(1)
        raise RuntimeError("database is locked")

    monkeypatch.setattr(supervisor, "tick", tick)
    supervisor.start()
    eventually(lambda: len(ticks) >= 3)
    assert supervisor.alive
    supervisor.close()
    assert not supervisor.alive


def test_workers_outlive_the_process_that_launched_them(settings: Settings) -> None:
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, '.');"
        "from app.jobs.launchers import LocalLauncher; from app.settings import get_settings;"
        "LocalLauncher.command = lambda *_: [sys.executable, '-c', 'import time; time.sleep(600)'];"
        "w = LocalLauncher(get_settings()).launch('x', Path(sys.argv[1]));"
        "print(w.host, w.pid, w.pid_started)"
    )
    log = settings.workspace / "log"
    shown = subprocess.run(
        [sys.executable, "-c", code, str(log)], capture_output=True, text=True, check=True
    )
    host, pid, started = shown.stdout.split()
    worker = WorkerProcess(host=host, pid=int(pid), pid_started=float(started))
    try:
        assert is_alive(worker)
    finally:
        LocalLauncher(settings).kill(worker)
