"""The server's start and end, its health, and what a page's error looks like."""

import logging
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app import server
from app.jobs.launchers import this_process
from app.jobs.supervisor import Supervisor
from app.jobs.threads import ShortJobs
from app.services import forecasts, models, runs, status
from app.storage import Store, repository
from app.storage.models import Dataset, Forecast, Model, Run

ROOT = Path(__file__).parents[2]


@pytest.fixture
def opened(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Store, Supervisor]]:
    monkeypatch.setattr(server, "get_settings", lambda: store.settings)
    monkeypatch.setattr(models, "ensure_builtin", lambda _: None)
    monkeypatch.setattr(server, "short_jobs", ShortJobs)
    monkeypatch.setattr(server, "download_jobs", ShortJobs)
    workspace = server.open_workspace()
    yield workspace
    server.close_workspace(*workspace)


@pytest.fixture
def left_behind(store: Store, run: Run, dataset: Dataset, model: Model) -> tuple[str, str]:
    """A run and a forecast of processes that are gone. -> their ids"""
    process = {**asdict(this_process()), "pid_started": 0.0}
    with store.session() as session:
        assert repository.set_state(session, run.id, "running", allowed_from=("queued",), **process)
        row = Forecast(
            name="Cut off",
            dataset_id=dataset.id,
            model_id=model.id,
            state="running",
            settings={"process": process},
        )
        return run.id, repository.add(session, row).id


def test_a_new_server_finds_what_was_interrupted(
    left_behind: tuple[str, str], opened: tuple[Store, Supervisor]
) -> None:
    store, supervisor = opened
    run_id, forecast_id = left_behind
    assert supervisor.alive
    assert runs.get(store, run_id).state == "orphaned"
    assert forecasts.get(store, forecast_id).reason == forecasts.INTERRUPTED


def test_health_is_200_only_while_database_and_supervisor_work(
    opened: tuple[Store, Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, supervisor = opened
    body, code = server.health(store, supervisor)
    assert (body["status"], body["database"], code) == ("ok", "ok", 200)
    assert body["version"] == status.version()
    supervisor.close()
    body, code = server.health(store, supervisor)
    assert (body["status"], body["supervisor"], code) == ("failing", "not running", 503)

    def fail(_: Store) -> None:
        raise OSError("disk gone")

    monkeypatch.setattr(status, "status", fail)
    body, code = server.health(store, supervisor)
    assert (body["database"], code) == ("failed: OSError", 503)


def failing_page(kind: str) -> None:
    from app import server as dashboard

    ours = dashboard.ServiceError("Choose fewer bars.")
    dashboard.show_error(ours if kind == "ours" else KeyError("secret"))


def page_errors(kind: str) -> list[str]:
    page = AppTest.from_function(failing_page, args=(kind,)).run(timeout=30)
    assert not page.exception
    return [error.value for error in page.error]


def test_our_own_errors_are_shown_in_their_words() -> None:
    assert page_errors("ours") == ["Choose fewer bars."]


def test_other_errors_get_an_id_that_the_log_knows(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        (shown,) = page_errors("theirs")
    identifier = shown.split("(")[1].split(")")[0]
    assert "secret" not in shown
    assert f"Page error {identifier}" in caplog.text
    assert "KeyError" in caplog.text


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answer(url: str) -> str | None:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return str(response.read().decode())
    except OSError:
        return None


def test_streamlit_serves_it_from_any_folder(tmp_path: Path) -> None:
    port = free_port()
    environment: dict[str, Any] = {**os.environ, "KRONOS_WORKSPACE": str(tmp_path / "workspace")}
    command = [sys.executable, "-m", "streamlit", "run", str(ROOT / "app" / "server.py")]
    options = ["--server.port", str(port), "--server.headless", "true"]
    log = tmp_path / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *options], cwd=tmp_path, env=environment, stdout=output, stderr=output
        )
    try:
        deadline = time.monotonic() + 120
        while (body := answer(f"http://127.0.0.1:{port}/healthz")) is None:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        assert '"status":"ok"' in body
        assert "<html" in (answer(f"http://127.0.0.1:{port}/") or "")
    finally:
        process.terminate()
        process.wait(timeout=60)
    assert "runs continue in their own processes" in log.read_text()
