"""Fine-tune: choose data, model and teacher forcing, see what it will take, queue the run."""

from typing import TypeVar

import streamlit as st

from app.services import datasets, models, runs
from app.storage.models import Dataset, Model
from app.ui import charts_training, components, teaching
from app.ui import format as fmt
from app.ui.resources import store
from kronos_core.training.config import Plan, TrainingConfig
from kronos_core.training.teacher_forcing import TeacherForcing

DEFAULTS = TrainingConfig()
Row = TypeVar("Row", Dataset, Model)
workspace = store()


def choose(label: str, rows: list[Row], key: str) -> Row:
    """A select box over stored rows, opened at the one that the URL names."""
    by_id = {row.id: row for row in rows}
    wanted = st.query_params.get(key)
    start = next((i for i, row in enumerate(rows) if wanted in (row.id, row.name)), 0)
    chosen = st.selectbox(
        label,
        list(by_id),
        index=start,
        format_func=lambda row_id: by_id[row_id].name,
        key=f"finetune-{key}-{wanted}",
    )
    return by_id[str(chosen)]


def data_and_model() -> tuple[Dataset, Model, dict[str, float]]:
    st.subheader("Data and model", anchor=False)
    dataset = choose("Dataset", stored, "dataset")
    st.caption(
        f"{dataset.bars:,} bars · {fmt.interval(dataset.interval_seconds)} · "
        + fmt.span(dataset.first, dataset.last, dataset.interval_seconds, dataset.timezone)
    )
    model = choose("Base model", bases, "model")
    st.caption(
        f"{fmt.compact(model.parameters)} parameters · context up to {model.max_context:,} bars"
    )
    validation = st.slider(
        "Validation share",
        0.02,
        0.4,
        DEFAULTS.validation_fraction,
        0.01,
        help="Share of the bars, by time, on which losses are measured but nothing is learned.",
    )
    test = st.slider(
        "Test share",
        0.0,
        0.4,
        DEFAULTS.test_fraction,
        0.01,
        help="The newest bars, kept away from training and from choosing the best step.",
    )
    return dataset, model, {"validation_fraction": validation, "test_fraction": test}


def training_settings() -> dict[str, float | int | str]:
    st.subheader("Training", anchor=False)
    left, right = st.columns(2)
    chosen: dict[str, float | int | str] = {
        "context": left.number_input(
            "Context (bars)", 2, 4096, DEFAULTS.context, help="Bars the model reads in a window."
        ),
        "horizon": right.number_input(
            "Horizon (bars)", 1, 1024, DEFAULTS.horizon, help="Bars after the context in a window."
        ),
        "epochs": left.number_input(
            "Epochs", 1, 1000, DEFAULTS.epochs, help="Passes over all training windows."
        ),
        "batch_size": right.number_input(
            "Batch size", 1, 4096, DEFAULTS.batch_size, help="Windows in one optimiser step."
        ),
        "learning_rate": left.number_input(
            "Learning rate",
            0.0,
            1.0,
            DEFAULTS.learning_rate,
            1e-5,
            format="%.1e",
            help="Peak of the one-cycle schedule; 1e-6 to 4e-5 suits released weights.",
        ),
        "stride": right.number_input(
            "Stride (bars)", 1, 1024, DEFAULTS.stride, help="Bars between two window starts."
        ),
    }
    with st.popover("More settings", icon=":material/settings:"):
        chosen |= rare_settings()
    return chosen


def rare_settings() -> dict[str, float | int | str]:
    return {
        "weight_decay": st.number_input("Weight decay", 0.0, 10.0, DEFAULTS.weight_decay, 0.01),
        "clip_norm": st.number_input(
            "Gradient clipping", 0.01, 100.0, DEFAULTS.clip_norm, help="Largest gradient norm."
        ),
        "warmup": st.slider(
            "Warm-up share",
            0.0,
            0.5,
            DEFAULTS.warmup,
            0.01,
            help="Share of the steps in which the learning rate rises.",
        ),
        "evaluations_per_epoch": st.number_input(
            "Evaluations per epoch", 1, 100, DEFAULTS.evaluations_per_epoch
        ),
        "seed": st.number_input("Seed", 0, 2**31 - 1, DEFAULTS.seed),
        "device": st.selectbox(
            "Device", ["auto", "cpu", "cuda", "mps"], help="auto takes the fastest there is."
        ),
    }


def teacher_forcing() -> TeacherForcing:
    st.subheader("Teacher forcing", anchor=False)
    mode = st.segmented_control(
        "What s2 is conditioned on",
        list(teaching.MODES),
        default=teaching.OWN,
        required=True,
        key="forcing-mode",
        help=teaching.EPSILON_HELP,
    )
    st.caption(teaching.MODES[mode])
    start, end = 0.5, 0.0
    if mode == teaching.RATIO:
        start = st.slider("Ratio ε", 0.0, 1.0, 0.5, 0.05, help=teaching.EPSILON_HELP)
    elif mode == teaching.DECAY:
        left, right = st.columns(2)
        start = left.slider("ε at the first step", 0.0, 1.0, 1.0, 0.05)
        end = right.slider("ε at the last step", 0.0, 1.0, 0.0, 0.05)
    unit = "token"
    if mode in (teaching.RATIO, teaching.DECAY):
        unit = st.segmented_control(
            "Decided for each",
            list(teaching.UNITS),
            default="token",
            required=True,
            format_func=teaching.UNITS.__getitem__,
            key="forcing-unit",
            help="How far one coin reaches: a single bar, a whole window or a whole batch.",
        )
    return teaching.forcing(mode, start, end, unit)


def epsilon_plot(forcing: TeacherForcing, plan: Plan | None) -> None:
    steps, shown = teaching.epsilon_over_steps(forcing, plan.total_steps if plan else 100)
    figure = charts_training.epsilon_preview(steps, shown, entity="preview")
    alt = f"Teacher-forcing ratio over the run, from {shown[0]:g} to {shown[-1]:g}"
    components.chart(figure, key="epsilon", alt=alt, small=True)


def preflight(dataset: Dataset, model: Model, config: TrainingConfig | str) -> Plan | None:
    if isinstance(config, str):
        components.show_problem(config)
        return None
    with components.problems():
        plan = runs.preflight(workspace, dataset.id, model.id, config)
        components.facts(
            {
                "Training windows": fmt.count(plan.train_windows),
                "Validation windows": fmt.count(plan.validation_windows),
                "Test windows": fmt.count(plan.test_windows),
                "Steps per epoch": fmt.count(plan.steps_per_epoch),
                "Steps": fmt.count(plan.total_steps),
                "Tokens per epoch": fmt.compact(plan.tokens_per_epoch),
                "Gap": f"{plan.split.gap} bars",
                "Device": str(config.device),
            },
            columns=1,
        )
        return plan
    return None


def read_config(
    settings: dict[str, float | int | str], forcing: TeacherForcing
) -> TrainingConfig | str:
    """The validated settings, or what is wrong with them."""
    try:
        return TrainingConfig(teacher_forcing=forcing, **settings)  # type: ignore[arg-type]
    except ValueError as problem:
        return str(problem)


def queue(dataset: Dataset, model: Model, config: TrainingConfig, name: str) -> None:
    with components.problems():
        run = runs.queue(
            workspace, dataset_id=dataset.id, model_id=model.id, config=config, name=name or None
        )
        components.go_to("runs", run=run.id)


def set_up() -> None:
    left, middle, right = st.columns([3, 4, 3], gap="large")
    with left:
        dataset, model, shares = data_and_model()
    with middle:
        settings = training_settings() | shares
        forcing = teacher_forcing()
        config = read_config(settings, forcing)
        plot = st.container()
    with right, st.container(key="preflight", border=True):
        st.subheader("Before it starts", anchor=False)
        plan = preflight(dataset, model, config)
        name = st.text_input("Name of the run", placeholder="chosen for you", key="run-name")
        wanted = st.button(
            "Queue run",
            type="primary",
            icon=":material/play_arrow:",
            key="queue",
            disabled=plan is None,
            width="stretch",
        )
        if wanted and isinstance(config, TrainingConfig):
            queue(dataset, model, config, name.strip())
    with plot:
        epsilon_plot(forcing, plan)
    if isinstance(config, TrainingConfig):
        equal_command(dataset, model, config)


def equal_command(dataset: Dataset, model: Model, config: TrainingConfig) -> None:
    st.caption("The same from a command line")
    st.code(teaching.command(dataset.name, model.name, config), language="bash", wrap_lines=True)
    if missing := teaching.unsaid(config):
        names = ", ".join(name.replace("_", " ") for name in missing)
        st.caption(f"The command line has no option for {names}; there the default is used.")


components.page_title("Fine-tune", "Continue the training of a model on one of your datasets.")
stored = datasets.list_datasets(workspace)
bases = models.list_models(workspace)
if not stored:
    if components.empty(
        "Fine-tuning needs bars. Start with a sample, or upload your own on the Datasets page.",
        "Open the S&P 500 sample",
        icon=":material/candlestick_chart:",
        key="empty-sample",
    ):
        with components.problems():
            st.query_params["dataset"] = datasets.add_sample(workspace, "sp500").id
            st.rerun()
elif not bases:
    components.show_problem("There is no model to start from. Get one on the Models page.")
else:
    set_up()
