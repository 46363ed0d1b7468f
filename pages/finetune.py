"""Fine-tune: choose data, model and teacher forcing, see what it will take, queue the run."""

from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.services import datasets, models, runs
from app.storage.models import Dataset, Model
from app.ui import (
    charts_compare,
    charts_training,
    components,
    data_form,
    preflight_view,
    settings_text,
    teaching,
    training_form,
)
from app.ui import format as fmt
from app.ui.resources import store
from app.ui.training_form import key
from kronos_core.training.config import Plan, TrainingConfig
from kronos_core.training.presets import PRESETS

PRESET, LAST = "finetune-preset", "finetune-last"
DATA, BASE = "finetune-data", "finetune-base-model"
workspace = store()


@dataclass(frozen=True, slots=True)
class Choice:
    """What the form says; ``config`` is a text where the settings contradict each other."""

    data: list[Dataset]
    model: Model
    config: TrainingConfig | str

    @property
    def inputs(self) -> dict[str, object]:
        """As the services of runs take them."""
        ids = [row.id for row in self.data]
        return {"datasets": ids, "model_id": self.model.id, "config": self.config}

    @property
    def problem(self) -> str | None:
        """Why there is nothing to check yet."""
        if not self.data:
            return "The run has no dataset. Choose at least one."
        return self.config if isinstance(self.config, str) else None


def open_form() -> None:
    """Fills the form as it was left, as the run of the URL, or as the first preset."""
    run_id = st.query_params.get("run")
    if run_id and st.session_state.get("finetune-run") != run_id:
        st.session_state["finetune-run"] = run_id
        with components.problems():
            run = runs.get(workspace, run_id)
            show(runs.config_of(run), run.dataset_ids, run.base_model_id)
            return
    if training_form.is_fresh():
        if last := st.session_state.get(LAST):
            used = st.session_state.get(PRESET)
            show(*last)
            st.session_state[PRESET] = used
        else:
            st.session_state[PRESET] = "balanced"
            training_form.fill(PRESETS["balanced"].settings(bases[0].max_context))


def show(config: TrainingConfig, data: Sequence[str] = (), model: str | None = None) -> None:
    """Fills the form with settings from elsewhere."""
    st.session_state[PRESET] = None
    if named := list(data) or [share.name for share in config.data]:
        st.session_state[DATA] = named
    if model:
        st.session_state[BASE] = model
    training_form.fill(config)


def data_and_model() -> tuple[list[Dataset], Model, dict[str, object], DeltaGenerator]:
    """Data, model and preset; the last of what it returns is the place of the split's picture."""
    st.subheader("Data and model", anchor=False)
    named = st.query_params.get("dataset", "").split(",")
    chosen = data_form.datasets(stored, known_ids(named) or st.session_state.get(DATA, []))
    values: dict[str, object] = {"data": data_form.weights(chosen)}
    timeline = st.empty()
    values |= data_form.split(chosen)
    model = base_model()
    preset(model)
    return chosen, model, values, timeline


def known_ids(names: Sequence[str]) -> list[str]:
    return [row.id for row in stored if row.id in names or row.name in names]


def base_model() -> Model:
    by_id = {row.id: row for row in bases}
    wanted = st.query_params.get("model") or st.session_state.get(BASE)
    start = next((i for i, row in enumerate(bases) if wanted in (row.id, row.name)), 0)
    chosen = st.selectbox(
        "Base model",
        list(by_id),
        index=start,
        format_func=lambda row_id: by_id[row_id].name,
        key=key(f"model-{wanted}"),
    )
    model = by_id[str(chosen)]
    st.caption(
        f"{fmt.compact(model.parameters)} parameters · context up to {model.max_context:,} bars"
    )
    return model


def preset(model: Model) -> None:
    """A choice fills the form; pressed once more it undoes what was changed since."""
    used = st.session_state.get(PRESET)
    chosen = st.segmented_control(
        "Preset",
        list(PRESETS),
        default=used,
        format_func=lambda name: PRESETS[name].title,
        key=key("preset"),
    )
    if chosen != used:
        name = chosen or used
        st.session_state[PRESET] = name
        training_form.fill(PRESETS[name].settings(model.max_context))
        st.rerun()
    if used:
        st.caption(f"{PRESETS[used].description} {PRESETS[used].cost}")


def set_up() -> None:
    left, middle, right = st.columns([3, 4, 3], gap="large")
    with left:
        data, model, values, timeline = data_and_model()
    with middle:
        st.subheader("Training", anchor=False)
        values |= training_form.training()
        st.subheader("Teacher forcing", anchor=False)
        curve = st.empty()
        values["teacher_forcing"] = training_form.conditioning()
        values["history"] = training_form.history()
    choice = Choice(data, model, training_form.read(values))
    if isinstance(choice.config, TrainingConfig):
        st.session_state[LAST] = (choice.config, [row.id for row in data], model.id)
    with right, st.container(key="preflight", border=True):
        plan = before_it_starts(choice)
    if plan is not None:
        with timeline:
            split_picture(choice.data, plan)
    if isinstance(choice.config, TrainingConfig):
        with curve:
            epsilon_plot(choice.config, plan)
        as_text(choice)


def before_it_starts(choice: Choice) -> Plan | None:
    """Pre-flight, and the button that queues; what the run would do, where it can work."""
    st.subheader("Before it starts", anchor=False)
    found = preflight(choice)
    name = st.text_input("Name of the run", placeholder="chosen for you", key="run-name")
    with st.popover("Notes and tags", icon=":material/sell:", width="stretch"):
        notes = st.text_area("Notes", key="run-notes", placeholder="What this run is to show")
        tags = st.multiselect("Tags", known_tags(), accept_new_options=True, key="run-tags")
    wanted = st.button(
        "Queue run",
        type="primary",
        icon=":material/play_arrow:",
        key="queue",
        disabled=found is None or not found.ok,
        width="stretch",
    )
    if wanted:
        with components.problems():
            run = runs.queue(workspace, **choice.inputs, name=name, notes=notes, tags=tags)
            components.go_to("runs", run=run.id)
    return found.plan if found else None


def preflight(choice: Choice) -> runs.Preflight | None:
    if choice.problem:
        components.show_problem(choice.problem)
        return None
    with components.problems():
        probe = preflight_view.measured(choice.inputs)
        found = runs.preflight(workspace, **choice.inputs, measured=probe)
        preflight_view.numbers(found, probe)
        if found.ok:
            preflight_view.probing(workspace, choice.inputs)
        return found
    return None


def known_tags() -> list[str]:
    return sorted({tag for run in runs.list_runs(workspace) for tag in run.tags})


def split_picture(data: list[Dataset], plan: Plan) -> None:
    rows = [
        data_form.split_bar(row, split, datasets.bars(workspace, row)["timestamps"])
        for row, split in zip(data, plan.splits, strict=True)
    ]
    figure = charts_compare.split_timeline(rows, entity="split")
    alt = "; ".join(data_form.split_words(row) for row in rows)
    components.chart(figure, key="split", alt=alt)


def epsilon_plot(config: TrainingConfig, plan: Plan | None) -> None:
    total = plan.predictor_steps if plan else config.steps or 100
    steps, shown = teaching.epsilon_over_steps(config.teacher_forcing, total)
    curves = {"conditioning": shown}
    if not config.history.always_true:
        curves["history"] = teaching.epsilon_over_steps(config.history, total)[1]
    figure = charts_training.epsilon_preview(steps, curves, entity="preview")
    alt = "Teacher-forcing ratio over the run: " + "; ".join(
        f"{name} from {values[0]:.3g} to {values[-1]:.3g}" for name, values in curves.items()
    )
    components.chart(figure, key="epsilon", alt=alt, small=True)


def as_text(choice: Choice) -> None:
    """The same settings as text, and the way back."""
    wide, narrow = st.columns([7, 3], gap="large")
    with wide, components.problems():
        settings_text.both(choice.config, runs.command(workspace, **choice.inputs))
    with narrow, st.expander("Load settings", icon=":material/upload:"):
        loaded = settings_text.uploaded(key("upload"))
    if loaded is not None:
        show(loaded)
        for name in ("dataset", "model"):  # what the URL asked for is over
            st.query_params.pop(name, None)
        st.rerun()


components.page_title("Fine-tune", "Continue the training of a model on your datasets.")
stored = datasets.list_datasets(workspace)
bases = models.list_models(workspace)
if not stored:
    components.offer_sample(
        workspace,
        "Fine-tuning needs bars. Start with a sample, or upload your own on the Datasets page.",
    )
elif not bases:
    components.show_problem("There is no model to start from. Get one on the Models page.")
else:
    open_form()
    set_up()
