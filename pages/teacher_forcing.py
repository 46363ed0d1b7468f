"""Teacher forcing: what it is, in seven steps on the user's own bars and model."""

import streamlit as st
from plotly.graph_objects import Figure

from app.services import datasets, models
from app.storage.models import Dataset, Model
from app.ui import charts_lab, components, lab_view, lab_words
from app.ui import format as fmt
from app.ui.lab_view import Place
from app.ui.resources import store
from kronos_core.evaluation.exposure import EPSILONS, Fork

STEPS = lab_words.STEPS
workspace = store()


def seeded(key: str, allowed: list[str], otherwise: str) -> None:
    """Opens a control at what the URL says, when the page is entered."""
    wanted = st.query_params.get(key, otherwise)
    if st.session_state.get(f"lab-{key}") not in allowed:
        st.session_state[f"lab-{key}"] = wanted if wanted in allowed else otherwise


def row_choice(label: str, rows: list[Dataset] | list[Model], key: str) -> str:
    names = {row.id: row.name for row in rows}
    seeded(key, list(names), rows[0].id)
    return str(st.selectbox(label, list(names), format_func=names.__getitem__, key=f"lab-{key}"))


def controls() -> Place:
    """Dataset, model and origin in one row; lengths and drawing behind a button."""
    places = st.columns([3, 3, 2, 2], vertical_alignment="bottom")
    with places[0]:
        dataset = datasets.get(workspace, row_choice("Dataset", stored, "dataset"))
    with places[1]:
        model = models.get(workspace, row_choice("Model", bases, "model"))
    with places[3].popover("Lengths and drawing", icon=":material/settings:", width="stretch"):
        context, horizon, greedy, seed = rare(dataset, model)
    with places[2]:
        origin = origin_control(dataset, context, horizon)
    st.query_params["dataset"], st.query_params["model"] = dataset.id, model.id
    st.query_params["origin"] = str(origin)
    return Place(
        store=workspace,
        dataset=dataset,
        model=model,
        origin=origin,
        context=context,
        horizon=horizon,
        greedy=greedy,
        seed=seed,
    )


def rare(dataset: Dataset, model: Model) -> tuple[int, int, bool, int]:
    # A quarter of a short series for the context leaves room for origins to choose from.
    room = min(model.max_context, dataset.bars) - 1
    horizon = st.number_input("Horizon (bars)", 2, 64, min(16, room // 3), key="lab-horizon")
    most = max(2, room - horizon)
    context = st.number_input(
        "Context (bars)",
        2,
        most,
        min(96, most),
        key=f"lab-context-{most}",
        help="Bars that the model reads before the origin.",
    )
    how = st.segmented_control(
        "Tokens are", ["Sampled", "Likeliest"], default="Sampled", required=True, key="lab-draw"
    )
    words = "Another seed draws other tokens."
    seed = st.number_input("Seed", 0, 10**6, 0, key="lab-seed", help=words)
    return context, horizon, how == "Likeliest", seed


def origin_control(dataset: Dataset, context: int, horizon: int) -> int:
    last, first = dataset.bars - 1 - horizon, context - 1
    asked = st.query_params.get("origin", "")
    start = min(max(int(asked), first), last) if asked.isdecimal() else last
    key = f"lab-before-{dataset.id}-{horizon}-{context}"
    before = st.number_input(
        "Bars before the end",
        horizon,
        dataset.bars - 1 - first,
        dataset.bars - 1 - start,
        key=key,
        help="The origin is the last bar that is given; those after it are in question.",
    )
    return int(dataset.bars - 1 - before)


def navigation() -> int:
    """The step, with its neighbours one click away."""
    seeded("step", [str(number + 1) for number in range(len(STEPS))], "1")
    with st.container(horizontal=True, vertical_alignment="center"):
        chosen = st.segmented_control(
            "Step",
            [str(number + 1) for number in range(len(STEPS))],
            required=True,
            format_func=lambda number: f"{number} {STEPS[int(number) - 1]}",
            key="lab-step",
            label_visibility="collapsed",
            width="content",
        )
        step = int(chosen)
        st.button(
            "Back",
            icon=":material/arrow_back:",
            disabled=step == 1,
            on_click=go,
            args=(step - 1,),
            key="lab-back",
        )
        st.button(
            "Next",
            icon=":material/arrow_forward:",
            icon_position="right",
            disabled=step == len(STEPS),
            on_click=go,
            args=(step + 1,),
            key="lab-next",
        )
    st.query_params["step"] = str(step)
    return step


def go(step: int) -> None:
    st.session_state["lab-step"] = str(step)


def guess(place: Place) -> None:
    if found := lab_view.answers([place.guess()]):
        say(1, lab_words.guess(found[0]))
        figure = charts_lab.guess(place.past(lab_view.FEW_BARS), found[0], entity=place.entity)
        draw(figure, f"Closes and the {len(found[0].s1)} likeliest tokens of the next bar")


def product(place: Place) -> None:
    if found := lab_view.answers([place.probability()]):
        say(2, lab_words.product(found[0]))
        figure = charts_lab.product(found[0], entity=place.entity)
        draw(figure, f"Chances of {place.horizon} bars and their product")


def logs(place: Place) -> None:
    if found := lab_view.answers([place.probability()]):
        say(3, lab_words.logs(found[0]))
        figure = charts_lab.logs(found[0], entity=place.entity)
        draw(figure, f"Minus log p of {place.horizon} bars, and the sum so far")


def parting(place: Place) -> None:
    if not (found := lab_view.answers([place.fork()])):
        return
    branches = found[0]
    if both := lab_view.answers(place.second_guesses(branches)):
        say(4, lab_words.parting(branches, *both))
        past = place.past(lab_view.FEW_BARS)
        figure = charts_lab.parting(past, branches, *both, entity=place.entity)
        draw(figure, "The true and the drawn first bar, and what is expected after each")


def true_past(place: Place) -> None:
    if found := lab_view.answers([place.fork()]):
        say(5, lab_words.true_past(found[0]))
        stretch(place, found[0], own=False, shown=place.horizon)


def own_past(place: Place) -> None:
    if not (found := lab_view.answers([place.fork()])):
        return
    words, horizon = st.container(), place.horizon
    shown = st.slider(
        "Bars walked",
        1,
        horizon,
        horizon,
        key=f"lab-shown-{horizon}",
        help="Go back to 1 and on again to see the mistakes arise one after the other.",
    )
    decimals = fmt.price_decimals(place.past()["close"])
    with words:
        say(6, lab_words.own_past(found[0], shown, decimals))
    stretch(place, found[0], own=True, shown=shown)


def stretch(place: Place, branches: Fork, *, own: bool, shown: int) -> None:
    past = place.past()
    figure = charts_lab.stretch(past, branches, own=own, shown=shown, entity=place.entity)
    whose = "its own" if own else "the true"
    draw(figure, f"{shown} bars on {whose} past: closes, tokens that match, and losses")


def dial(place: Place) -> None:
    words = st.container()
    epsilon = st.select_slider(
        "Ratio ε",
        sorted(EPSILONS),
        0.5,
        key="lab-epsilon",
        help="The chance that a bar of the past is the true one: 1 is the truth, 0 its own.",
    )
    if walked := lab_view.answers([place.walk(epsilon)]):
        figure = charts_lab.coins(walked[0], entity=f"{place.entity}-coins")
        alt = f"Bars kept true in one walk with ε {epsilon:g}"
        components.chart(figure, key="lab-coins", alt=alt, small=True)
    if found := lab_view.answers([place.gap()]):
        with words:
            say(7, lab_words.dial(found[0], epsilon))
        figure = charts_lab.gaps(found[0], epsilon=epsilon, entity=place.entity)
        draw(figure, "Exposure gap against ε and against the distance from the origin")


def say(step: int, text: lab_words.Text) -> None:
    """The title of a step and its sentences."""
    st.subheader(lab_words.TITLES[step - 1], anchor=False)
    st.markdown("  \n".join(fmt.plain(sentence) for sentence in text.sentences))


def draw(figure: Figure, alt: str) -> None:
    components.chart(figure, key="lab-picture", alt=alt)


def formulas(step: int) -> None:
    with st.expander("Formulas", icon=":material/function:"):
        for formula in lab_words.FORMULAS[step - 1]:
            st.latex(formula)


PICTURES = (guess, product, logs, parting, true_past, own_past, dial)

components.page_title(
    "Teacher forcing", "What a model learns from, in seven steps on your own bars and model."
)
stored = datasets.list_datasets(workspace)
bases = models.list_models(workspace)
if not stored:
    components.offer_sample(
        workspace,
        "The walk needs bars. Start with a sample, or upload your own on the Datasets page.",
    )
elif not bases:
    components.show_problem("There is no model to look at. Get one on the Models page.")
else:
    here = controls()
    number = navigation()
    with components.problems():
        if not lab_view.is_cancelled(here, number):
            PICTURES[number - 1](here)
    formulas(number)
