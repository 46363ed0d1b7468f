"""Home: the three first steps, what is running, what was made last."""

import streamlit as st
from streamlit.runtime.uploaded_file_manager import UploadedFile

from app.services import datasets, forecasts, models, runs
from app.services.forecasts import ForecastRequest
from app.storage.models import Dataset, Run
from app.ui import charts, components, resources, run_memory, upload
from app.ui import format as fmt

FIRST_FAN = {"horizon": 48, "paths": 100}
SHOWN = 4
THUMBNAIL_BARS = 90
workspace = resources.store()


def bring_bars() -> list[UploadedFile]:
    st.subheader("1 · Bring bars", anchor=False)
    st.caption("Open a bundled sample, or drop files of your own.")
    opened = upload.sample_buttons(workspace, key="home")
    if opened:
        st.toast(f"{opened.name} is open", icon=":material/check:")
        st.rerun()
    return upload.drop(workspace, key="home")


def draw_fan(known: list[Dataset]) -> str | None:
    """The second step; the chosen dataset, which opens at the newest one."""
    st.subheader("2 · Draw a fan", anchor=False)
    st.caption(
        f"{FIRST_FAN['paths']} possible futures of {FIRST_FAN['horizon']} bars, "
        f"drawn with {builtin.name}."
    )
    names = {row.id: row.name for row in known}
    chosen = st.selectbox(
        "Dataset",
        list(names),
        format_func=names.__getitem__,
        placeholder="First bring bars",
        disabled=not known,
        key=f"home-dataset-{known[0].id if known else ''}",
    )
    label, icon = "Draw a fan", ":material/insights:"
    if st.button(label, type="primary", icon=icon, disabled=not known, key="home-draw"):
        with components.problems():
            request = ForecastRequest(
                dataset_id=str(chosen),
                model_id=builtin.id,
                **FIRST_FAN,
            )
            row = forecasts.submit(workspace, request)
            components.go_to("forecast", forecast=row.id)
    return chosen


def fine_tune(dataset: str | None) -> None:
    st.subheader("3 · Fine-tune", anchor=False)
    st.caption(
        "Teach a model your instrument, choose what s2 is conditioned on, "
        "and watch both losses while it learns."
    )
    parameters = {"dataset": dataset} if dataset else {}
    if st.button("Set up a run", icon=":material/tune:", key="home-finetune"):
        components.go_to("finetune", **parameters)
    components.link("runs", "All runs", ":material/monitoring:")
    components.link("models", "All models", ":material/deployed_code:")


@st.fragment(run_every=3)
def running() -> None:
    busy = [run for run in runs.list_runs(workspace) if run.state in components.BUSY_STATES]
    st.subheader("Running", anchor=False)
    if not busy:
        st.caption("Nothing is running.")
    for run in busy:
        run_row(run)


def run_row(run: Run) -> None:
    progress = run_memory.glance(workspace, run).progress(workspace, run)
    parts = [components.state_word(run.state), f"step {run.step:,} of {run.total_steps:,}"]
    if left := components.time_left(progress):
        parts.append(left)
    name, bar = st.columns([1, 3], vertical_alignment="center")
    with name:
        components.link("runs", fmt.plain(run.name), ":material/monitoring:", run=run.id)
    bar.progress(progress.fraction, " · ".join(parts))


def latest_forecasts() -> None:
    rows = [row for row in forecasts.list_forecasts(workspace) if row.state == "finished"][:SHOWN]
    st.subheader("Latest forecasts", anchor=False)
    if not rows:
        st.caption("No forecast yet. Step 2 draws one.")
        return
    for column, row in zip(st.columns(SHOWN), rows, strict=False):
        with column.container(border=True, gap=None), components.problems():
            forecast = forecasts.load(workspace, row)
            context = forecasts.context_bars(workspace, row, THUMBNAIL_BARS)
            figure = charts.small_fan(context, forecast, entity=row.id)
            alt = f"Thumbnail of the fan {row.name}"
            components.chart(figure, key=f"fan-{row.id}", alt=alt, small=True)
            components.link("forecast", fmt.plain(row.name), ":material/insights:", forecast=row.id)
            st.caption(components.ago(row.created_at))


def latest_datasets(known: list[Dataset]) -> None:
    st.subheader("Latest datasets", anchor=False)
    if not known:
        st.caption("No dataset yet. Step 1 brings one.")
        return
    for column, row in zip(st.columns(SHOWN), known[:SHOWN], strict=False):
        with column.container(border=True, gap=None), components.problems():
            figure = charts.sparkline(resources.sparkline(workspace, row), entity=row.id)
            alt = f"Closes of {row.name}"
            components.chart(figure, key=f"spark-{row.id}", alt=alt, small=True)
            icon = ":material/candlestick_chart:"
            components.link("datasets", fmt.plain(row.name), icon, dataset=row.id)
            st.caption(f"{row.bars:,} bars · {fmt.interval(row.interval_seconds)}")


components.page_title(
    "Kronos Workbench", "Sampled futures of your own bars, from a model you can teach."
)
stored = datasets.list_datasets(workspace)
builtin = models.get(workspace, models.BUILTIN)
first, second, third = st.columns(3, border=True)
with first:
    files = bring_bars()
with second:
    chosen_dataset = draw_fan(stored)
with third:
    fine_tune(chosen_dataset)
if saved := upload.review(workspace, files, key="home"):
    components.go_to("datasets", dataset=saved.id)
running()
latest_forecasts()
latest_datasets(stored)
