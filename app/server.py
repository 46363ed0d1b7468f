"""The dashboard's server: `streamlit run app/server.py`."""

import asyncio
import logging
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# `streamlit run` puts only this file's own folder on the path, and the packages lie one above.
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import streamlit as st  # noqa: E402
from starlette.requests import Request  # noqa: E402
from starlette.responses import JSONResponse  # noqa: E402
from starlette.routing import Route  # noqa: E402

from app.jobs.supervisor import Supervisor  # noqa: E402
from app.jobs.threads import download_jobs, short_jobs  # noqa: E402
from app.logs import log_to_stderr  # noqa: E402
from app.services import forecasts, models, status  # noqa: E402
from app.services.errors import ServiceError  # noqa: E402
from app.settings import get_settings  # noqa: E402
from app.storage.session import Store  # noqa: E402
from kronos_core import BundleError, DataError  # noqa: E402

log = logging.getLogger("app.server")


def open_workspace() -> tuple[Store, Supervisor]:
    """Brings the database up to date and the runs of an earlier server back under watch."""
    store = Store(get_settings())
    store.migrate()
    try:
        models.ensure_builtin(store)
    except BundleError as error:
        log.error("The built-in model cannot be used, the others can: %s", error)
    interrupted = forecasts.fail_abandoned(store)
    supervisor = Supervisor(store)
    orphans = supervisor.reconcile()
    supervisor.start()
    log.info("Workspace %s, database ready", store.settings.workspace)
    if interrupted or orphans:
        log.info("Found interrupted: %d forecasts, %d runs", interrupted, len(orphans))
    return store, supervisor


def close_workspace(store: Store, supervisor: Supervisor) -> None:
    """Ends this server's threads; workers go on, and the next server finds them again."""
    supervisor.close()
    download_jobs().close()
    short_jobs().close()
    store.close()
    log.info("Server stopped; runs continue in their own processes")


@asynccontextmanager
async def lifespan(_: st.App) -> AsyncIterator[dict[str, Any]]:
    log_to_stderr("app", "kronos_core")
    store, supervisor = await asyncio.to_thread(open_workspace)
    try:
        yield {"store": store, "supervisor": supervisor}
    finally:
        await asyncio.to_thread(close_workspace, store, supervisor)


def health(store: Store, supervisor: Supervisor) -> tuple[dict[str, Any], int]:
    """What /healthz answers, and its HTTP status: 503 unless database and supervisor work."""
    try:
        status.status(store)
        database = "ok"
    except Exception as error:
        log.exception("The database does not answer")
        database = f"failed: {type(error).__name__}"
    healthy = database == "ok" and supervisor.alive
    body = {
        "status": "ok" if healthy else "failing",
        "version": status.version(),
        "database": database,
        "supervisor": "alive" if supervisor.alive else "not running",
    }
    return body, 200 if healthy else 503


async def healthz(_: Request) -> JSONResponse:
    body, code = await asyncio.to_thread(health, app.state["store"], app.state["supervisor"])
    return JSONResponse(body, status_code=code)


def show_error(error: Exception) -> bool:
    """Shows a page's uncaught error: its words where it is ours, else an id to find in the log."""
    if isinstance(error, ServiceError | DataError):
        st.error(str(error))
        return True
    identifier = secrets.token_hex(3)
    log.error("Page error %s", identifier, exc_info=error)
    st.error(f"Something went wrong ({identifier}). The server's log has the details.")
    return True


app = st.App(
    Path(__file__).with_name("main.py"),
    lifespan=lifespan,
    routes=[Route("/healthz", healthz)],
    on_script_error=show_error,
)
