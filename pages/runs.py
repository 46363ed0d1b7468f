"""Runs: every fine-tuning job, and one of them live."""

from collections.abc import Callable

import pandas as pd
import streamlit as st

from app.services import datasets, models, runs
from app.services.errors import ServiceError
from app.storage.models import RESUMABLE_STATES, Run
from app.ui import charts_training, components, forecast_view, run_memory, run_view, teaching
from app.ui import format as fmt
from app.ui.live_chart import live_chart
from app.ui.resources import store
from kronos_core.training.config import TrainingConfig

LIVE_SECONDS = 2.0
workspace = store()


def run_table(rows: list[Run]) -> None:
    names = {row.id: row.name for row in datasets.list_datasets(workspace)}
    read = [(run_memory.glance(workspace, row), row) for row in rows]
    frame = pd.DataFrame(
        {
            "name": [row.name for row in rows],
            "state": [[components.state_word(row.state)] for row in rows],
            "progress": [memory.progress(workspace, row).fraction for memory, row in read],
            "loss": [memory.totals for memory, _ in read],
            "best": [fmt.loss(row.best_total) for row in rows],
            "s1": [fmt.loss(row.best_s1) for row in rows],
            "s2": [fmt.loss(row.best_s2) for row in rows],
            "forcing": [
                TrainingConfig.from_dict(row.config).teacher_forcing.to_text() for row in rows
            ],
            "dataset": [names.get(row.dataset_id, fmt.NONE) for row in rows],
            "started": [components.ago(row.started_at) for row in rows],
        }
    )
    event = st.dataframe(
        frame,
        key="runs-table",
        hide_index=True,
        on_select="rerun",
        selection_mode="single-row",
        column_config=table_columns(),
        alt=f"Table of {fmt.plural(len(rows), 'run')}; select a row to open it",
    )
    picked = components.selected_row(event, [row.id for row in rows])
    if picked:
        st.query_params["run"] = picked
        st.rerun()


def table_columns() -> dict[str, object]:
    column = st.column_config
    words = [components.state_word(state) for state in components.STATE_LOOK]
    colours = [look[0] for look in components.STATE_LOOK.values()]
    return {
        "name": "Run",
        "state": column.MultiselectColumn("State", options=words, color=colours, width="small"),
        "progress": column.ProgressColumn("Progress", format="percent", min_value=0, max_value=1),
        "loss": column.LineChartColumn("Validation loss", width="medium"),
        "best": "Best total",
        "s1": "Best s1",
        "s2": "Best s2",
        "forcing": column.TextColumn("Teacher forcing", help=teaching.EPSILON_HELP),
        "dataset": "Dataset",
        "started": "Started",
    }


def live(run_id: str, seen_state: str) -> None:
    """Everything about a run that moves; redrawn alone while the run is active."""
    run = runs.get(workspace, run_id)
    if run.state != seen_state:
        st.rerun()
    memory = run_memory.follow(workspace, run)
    frame = charts_training.history([]) if memory.history is None else memory.history
    progress_line(run, memory.progress(workspace, run))
    numbers(frame)
    curves(run, frame)


def progress_line(run: Run, progress: runs.Progress) -> None:
    parts = [f"step {run.step:,} of {run.total_steps:,}", f"epoch {run.epoch:.2f}"]
    if progress.steps_per_second:
        parts.append(f"{progress.steps_per_second:.2g} steps/s")
    if progress.eta_seconds is not None and run.state in components.BUSY_STATES:
        parts.append(f"{fmt.duration(progress.eta_seconds)} left")
    if run.state == "queued":
        parts = ["waiting for its turn"]
    st.progress(progress.fraction, " · ".join(parts))


def numbers(frame: pd.DataFrame) -> None:
    validation = run_view.validation_rows(frame)
    shown = {
        "Validation s1": ("s1", "Loss of the coarse token, in nats."),
        "Validation s2": ("s2", "Loss of the fine token given the true s1, in nats."),
        "Validation total": ("total", "Mean of s1 and s2; the best step has the lowest."),
        "Exposure gap": ("exposure_gap", teaching.EXPOSURE_HELP),
    }
    for column, (label, (name, words)) in zip(st.columns(4), shown.items(), strict=True):
        reading = run_view.reading(validation, name)
        column.metric(
            label,
            fmt.loss(reading.value),
            fmt.loss_change(reading.change),
            delta_color="inverse",
            help=words,
        )


def curves(run: Run, frame: pd.DataFrame) -> None:
    if frame.empty:
        st.caption("The first losses appear here as soon as the worker has measured them.")
        return
    figure = charts_training.losses(frame, best_step=run.best_step, entity=run.id)
    alt = f"Training and validation losses s1, s2 and total of {run.name} up to step {run.step}"
    live_chart(figure, key="losses", alt=alt)
    st.caption(teaching.CURVES_HELP)
    rates = charts_training.schedule(frame, entity=run.id)
    alt = f"Teacher-forcing ratio and learning rate of {run.name} by step"
    live_chart(rates, key="schedule", alt=alt)


def actions(run: Run) -> None:
    busy = run.state in components.BUSY_STATES
    if busy and run.state != "stopping":
        words = "Take out of the queue" if run.state == "queued" else "Stop"
        if st.button(words, icon=":material/stop:", key="stop", help="Saves a checkpoint first."):
            act(lambda: runs.stop(workspace, run.id))
    if run.state in RESUMABLE_STATES and st.button(
        "Resume", type="primary", icon=":material/play_arrow:", key="resume"
    ):
        act(lambda: runs.resume(workspace, run.id))
    if run.model_id:
        components.link(
            "forecast",
            "Forecast with it",
            ":material/insights:",
            model=run.model_id,
            dataset=run.dataset_id,
        )
    again = "Queues a new run with the same data, base model and settings."
    if not busy and st.button("Run again", icon=":material/replay:", key="again", help=again):
        run_again(run)
    if not busy and st.button("Delete", icon=":material/delete:", key="delete"):
        ask_delete(run)


def act(action: Callable[[], object]) -> None:
    with components.problems():
        action()
        st.rerun()


def run_again(run: Run) -> None:
    with components.problems():
        queued = runs.queue(
            workspace,
            dataset_id=run.dataset_id,
            model_id=run.base_model_id,
            config=TrainingConfig.from_dict(run.config),
        )
        components.go_to("runs", run=queued.id)


def ask_delete(run: Run) -> None:
    def delete() -> None:
        runs.delete(workspace, run.id)
        st.query_params.pop("run", None)

    body = f"**{fmt.plain(run.name)}**, its curves, its log and its checkpoint will be gone."
    if run.model_id:
        body += " The model that came out of it stays."
    components.confirm("Delete this run?", body, "Delete", delete)


def one_run(run: Run) -> None:
    busy = run.state in components.BUSY_STATES
    with st.container(horizontal=True, vertical_alignment="center"):
        st.title(fmt.plain(run.name), anchor=False, width="content")
        components.state_badge(run.state)
        st.space("stretch")
        if st.button("All runs", icon=":material/arrow_back:", type="tertiary", key="all-runs"):
            components.go_to("runs")
        actions(run)
    st.caption(headline(run))
    if run.reason:
        look = st.info if run.state in ("finished", "stopped", "queued") else st.warning
        look(fmt.plain(run.reason), icon=":material/info:")
    st.fragment(live, run_every=LIVE_SECONDS if busy else None)(run.id, run.state)
    tabs = st.tabs(["Log", "Settings", "Events"], key="tab", bind="query-params")
    with tabs[0]:
        st.fragment(log_tail, run_every=LIVE_SECONDS if busy else None)(run.id)
    with tabs[1]:
        settings(run)
    with tabs[2]:
        events(run)


def headline(run: Run) -> str:
    forcing = TrainingConfig.from_dict(run.config).teacher_forcing
    return (
        f"{fmt.plain(datasets.get(workspace, run.dataset_id).name)} · from "
        f"{fmt.plain(models.get(workspace, run.base_model_id).name)} · on {run.device} · "
        f"{forcing.describe()} · started {components.local_time(run.started_at)}"
    )


def log_tail(run_id: str) -> None:
    text = runs.log_tail(workspace, run_id)
    with st.container(height=300, border=False, autoscroll=True):
        st.code(text or "The log is empty so far.", language=None)


def settings(run: Run) -> None:
    left, right = st.columns([3, 2], gap="large")
    table = run_view.settings_table(run.config)
    left.dataframe(
        table, hide_index=True, height="content", key="settings", alt="Settings of the run"
    )
    with right:
        components.facts(
            {
                "Data hash": f"`{fmt.short_hash(run.data_hash)}`",
                "Base model hash": f"`{fmt.short_hash(run.model_hash)}`",
                "Code version": f"`{run.code_version or fmt.NONE}`",
                "Queued": components.local_time(run.queued_at),
                "Started": components.local_time(run.started_at),
                "Ended": components.local_time(run.finished_at),
                "Resumed": fmt.plural(run.resumes, "time"),
                "Best step": fmt.count(run.best_step),
            },
            columns=1,
        )
        st.download_button(
            "Download curves",
            lambda: forecast_view.csv_bytes(
                charts_training.history(runs.metrics(workspace, run.id))
            ),
            f"{run.name} curves.csv",
            "text/csv",
            icon=":material/download:",
            on_click="ignore",
            key="curves-csv",
        )


def events(run: Run) -> None:
    rows = runs.events(workspace, run.id)
    if not rows:
        st.caption("Nothing happened yet.")
    for row in reversed(rows):
        st.markdown(
            f"`{components.local_time(row.recorded_at)}` **{fmt.plain(row.kind)}** "
            f"{fmt.plain(row.message)}"
        )


def all_runs() -> None:
    components.page_title("Runs", "Fine-tuning jobs. They go on when this page is closed.")
    rows = runs.list_runs(workspace)
    if rows:
        busy = any(row.state in components.BUSY_STATES for row in rows)
        st.fragment(live_table, run_every=LIVE_SECONDS if busy else None)()
        components.link("finetune", "Set up another run", ":material/add:")
    elif components.empty(
        "No run yet. A run teaches a model your bars and shows both losses while it learns.",
        "Set up a run",
        icon=":material/tune:",
        key="empty-finetune",
    ):
        components.go_to("finetune")


def live_table() -> None:
    run_table(runs.list_runs(workspace))


wanted = st.query_params.get("run")
if wanted is None:
    all_runs()
else:
    try:
        found = runs.get(workspace, wanted)
    except ServiceError as problem:
        components.show_problem(str(problem))
        if st.button("All runs", icon=":material/arrow_back:", key="all-runs"):
            components.go_to("runs")
    else:
        one_run(found)
