"""Runs: every fine-tuning job, one of them live, or several side by side."""

from collections.abc import Callable

import pandas as pd
import streamlit as st

from app.services import datasets, models, runs
from app.services.errors import ServiceError
from app.storage.models import RESUMABLE_STATES, Run
from app.ui import components, run_compare, run_memory, run_panel, run_view, teaching
from app.ui import format as fmt
from app.ui.resources import store

LIVE_SECONDS = 2.0
MOST_COMPARED = 8
workspace = store()


def run_table(rows: list[Run]) -> None:
    """All runs; a click on a cell opens its run, ticked rows are compared."""
    event = st.dataframe(
        table(rows),
        key="runs-table",
        hide_index=True,
        on_select="rerun",
        selection_mode=["multi-row", "single-cell"],
        column_config=table_columns(),
        alt=f"Table of {fmt.plural(len(rows), 'run')}; a click on a cell opens its run",
    )
    cells = event.selection.get("cells", [])
    if cells and cells[0][0] < len(rows):
        st.query_params["run"] = rows[cells[0][0]].id
        st.rerun()
    ticked = [rows[place].id for place in event.selection.rows if place < len(rows)]
    with st.container(horizontal=True, vertical_alignment="center"):
        if st.button(
            f"Compare {len(ticked)} runs" if len(ticked) > 1 else "Compare",
            icon=":material/stacked_line_chart:",
            key="compare",
            disabled=not 2 <= len(ticked) <= MOST_COMPARED,
            help=f"Tick 2 to {MOST_COMPARED} rows to see their curves over one axis.",
        ):
            st.query_params["compare"] = ",".join(ticked)
            st.rerun()
        components.link("finetune", "Set up another run", ":material/add:")


def table(rows: list[Run]) -> pd.DataFrame:
    names = {row.id: row.name for row in datasets.list_datasets(workspace)}
    read = [(run_memory.glance(workspace, row), row) for row in rows]
    return pd.DataFrame(
        {
            "name": [row.name for row in rows],
            "state": [[components.state_word(row.state)] for row in rows],
            "progress": [memory.progress(workspace, row).fraction for memory, row in read],
            "loss": [memory.totals for memory, _ in read],
            "best": [fmt.loss(row.best_total) for row in rows],
            "s1": [fmt.loss(row.best_s1) for row in rows],
            "s2": [fmt.loss(row.best_s2) for row in rows],
            "forcing": [runs.config_of(row).teacher_forcing.to_text() for row in rows],
            "tags": [row.tags for row in rows],
            "dataset": [
                ", ".join(names.get(data, fmt.NONE) for data in row.dataset_ids) for row in rows
            ],
            "started": [components.ago(row.started_at) for row in rows],
        }
    )


def table_columns() -> dict[str, object]:
    column = st.column_config
    words = [components.state_word(state) for state in components.STATE_LOOK]
    colours = [look[0] for look in components.STATE_LOOK.values()]
    return {
        "name": "Run",
        "state": column.MultiselectColumn("State", options=words, color=colours, width="small"),
        "progress": column.ProgressColumn("Progress", format="percent", min_value=0, max_value=1),
        "loss": column.LineChartColumn("Validation loss", width="small"),
        "best": "Best total",
        "s1": "Best s1",
        "s2": "Best s2",
        "forcing": column.TextColumn("Teacher forcing", help=teaching.EPSILON_HELP),
        "tags": column.ListColumn("Tags", width="small"),
        "dataset": "Dataset",
        "started": "Started",
    }


def queue(rows: list[Run]) -> None:
    """The runs that wait for the device, with what moves or cancels them."""
    st.subheader("Queue", anchor=False)
    for place, run in enumerate(rows):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(f"{place + 1}. {fmt.plain(run.name)}", width="stretch")
            queue_buttons(run, first=place == 0, last=place == len(rows) - 1)


def queue_buttons(run: Run, *, first: bool, last: bool) -> None:
    for move, label, icon, off in (
        ("up", "Earlier", "arrow_upward", first),
        ("down", "Later", "arrow_downward", last),
    ):
        if st.button(label, icon=f":material/{icon}:", key=f"{move}-{run.id}", disabled=off):
            act(lambda move=move: runs.reorder(workspace, run.id, move))
    if st.button("Cancel", icon=":material/close:", key=f"cancel-{run.id}"):
        act(lambda: runs.stop(workspace, run.id))


def actions(run: Run) -> None:
    """What can be done with a run. Its state changes by itself while a person aims, so what
    starts and ends it always stands first, where the rest cannot shift it."""
    busy = run.state in components.BUSY_STATES
    if busy:
        words = "Take out of the queue" if run.state == "queued" else "Stop"
        if st.button(
            words,
            icon=":material/stop:",
            key="stop",
            disabled=run.state == "stopping",
            help="Saves a checkpoint first.",
        ):
            act(lambda: runs.stop(workspace, run.id))
    if run.state == "queued":
        words = "Before all others that wait."
        if st.button("To the front", icon=":material/vertical_align_top:", key="front", help=words):
            act(lambda: runs.reorder(workspace, run.id, "first"))
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
    more_actions(run, busy=busy)


def more_actions(run: Run, *, busy: bool) -> None:
    """What is wanted now and then."""
    with st.popover("More", icon=":material/more_horiz:"):
        words = "Opens these settings on the Fine-tune page."
        if st.button("Change and rerun", icon=":material/tune:", key="change", help=words):
            components.go_to("finetune", run=run.id)
        words = "Queues a new run with the same data, base model and settings."
        if not busy and st.button("Run again", icon=":material/replay:", key="again", help=words):
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
            datasets=run.dataset_ids,
            model_id=run.base_model_id,
            config=runs.config_of(run),
            tags=run.tags,
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
        all_runs_button()
    st.caption(headline(run))
    with st.container(horizontal=True, vertical_alignment="center"):
        actions(run)
    written(run)
    if run.reason:
        look = st.info if run.state in ("finished", "stopped", "queued") else st.warning
        look(fmt.plain(run.reason), icon=":material/info:")
    every = LIVE_SECONDS if busy else None
    st.fragment(run_panel.live, run_every=every)(workspace, run.id, run.state)
    tabs = st.tabs(
        ["Log", "Settings", "Events", "Notes", "Downloads"], key="tab", bind="query-params"
    )
    with tabs[0]:
        st.fragment(log_tail, run_every=every)(run.id)
    for tab, content in zip(tabs[1:], (settings, events, notes, downloads), strict=True):
        with tab:
            content(run)


def all_runs_button() -> None:
    if st.button("All runs", icon=":material/arrow_back:", type="tertiary", key="all-runs"):
        components.go_to("runs")


def headline(run: Run) -> str:
    forcing = runs.config_of(run).teacher_forcing
    names = ", ".join(fmt.plain(datasets.get(workspace, data).name) for data in run.dataset_ids)
    return (
        f"{names} · from "
        f"{fmt.plain(models.get(workspace, run.base_model_id).name)} · on {run.device} · "
        f"{forcing.describe()}"
    )


def written(run: Run) -> None:
    """Tags and the first line of the notes, where there are any."""
    if not run.tags and not run.notes:
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        for tag in run.tags:
            st.badge(fmt.plain(tag), icon=":material/sell:", color="gray")
        if run.notes:
            st.caption(fmt.plain(run.notes.splitlines()[0]))


def notes(run: Run) -> None:
    """Name, notes and tags, which can be changed at any time."""
    with st.form(f"notes-{run.id}", border=False):
        name = st.text_input("Name", run.name)
        known = sorted({tag for row in runs.list_runs(workspace) for tag in row.tags})
        tags = st.multiselect("Tags", known, default=run.tags, accept_new_options=True)
        text = st.text_area("Notes", run.notes, placeholder="What this run is to show")
        if st.form_submit_button("Save", icon=":material/save:"):
            act(lambda: runs.update(workspace, run.id, name=name, notes=text, tags=tags))


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
        st.caption("The same from a command line")
        st.code(runs.command_of(workspace, run), language="bash", wrap_lines=True)


def downloads(run: Run) -> None:
    """Everything of a run; what takes a moment to pack is packed on the click."""
    weights = run.best_step is None
    offers = (
        ("Curves (CSV)", "curves.csv", lambda: runs.export_curves(workspace, run.id), False),
        ("Settings (YAML)", "run.yaml", lambda: runs.export_config(run), False),
        ("Log", "log.txt", lambda: runs.log_tail(workspace, run.id, 10**6), False),
        ("Weights (zip)", "weights.zip", lambda: packed(runs.export_checkpoint, run), weights),
        ("TensorBoard (zip)", "tb.zip", lambda: packed(runs.export_tensorboard, run), False),
    )
    st.caption(
        "The weights are a folder that the released loader reads too; they are there after the "
        "first evaluation of the predictor."
    )
    with st.container(horizontal=True):
        for label, ending, content, disabled in offers:
            st.download_button(
                label,
                content,
                f"{run.name} {ending}",
                icon=":material/download:",
                on_click="ignore",
                disabled=disabled,
                key=f"download-{ending}",
            )


def packed(pack: Callable[..., object], run: Run) -> bytes:
    path = pack(workspace, run.id)
    return path.read_bytes()  # type: ignore[attr-defined, no-any-return]


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
    elif components.empty(
        "No run yet. A run teaches a model your bars and shows both losses while it learns.",
        "Set up a run",
        icon=":material/tune:",
        key="empty-finetune",
    ):
        components.go_to("finetune")


def live_table() -> None:
    run_table(runs.list_runs(workspace))
    if waiting := runs.queued_runs(workspace):
        queue(waiting)


def compared(wanted: str) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.title("Compare runs", anchor=False, width="content")
        st.space("stretch")
        all_runs_button()
    with components.problems():
        run_compare.page(workspace, [runs.get(workspace, key) for key in wanted.split(",") if key])


def shown(wanted: str) -> None:
    try:
        run = runs.get(workspace, wanted)
    except ServiceError as problem:
        components.show_problem(str(problem))
        all_runs_button()
    else:
        one_run(run)


if "run" in st.query_params:
    shown(st.query_params["run"])
elif "compare" in st.query_params:
    compared(st.query_params["compare"])
else:
    all_runs()
