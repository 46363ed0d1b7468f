"""The settings of a run as a form, filled from a preset, a file or an earlier run.

Every widget's key carries the number of the filling, so that a new filling shows new values and
edits between two fillings stay.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import streamlit as st

from app.ui import teaching
from kronos_core.training.config import TrainingConfig
from kronos_core.training.options import LORA_TARGETS, Lora, TokenizerStage
from kronos_core.training.rates import RateSchedule
from kronos_core.training.teacher_forcing import Schedule, TeacherForcing

SCHEDULES: dict[RateSchedule, str] = {
    "onecycle": "One cycle",
    "cosine": "Cosine",
    "constant": "Constant",
}
_BASE, _FILLING, _SHOWN = "finetune-base", "finetune-filling", "finetune-shown"
Values = dict[str, Any]


def base() -> TrainingConfig:
    """What the form was last filled with."""
    return cast(TrainingConfig, st.session_state.get(_BASE, TrainingConfig()))


def fill(settings: TrainingConfig) -> None:
    """Shows other settings in every field."""
    st.session_state[_BASE] = settings
    st.session_state[_FILLING] = st.session_state.get(_FILLING, 0) + 1


def is_fresh() -> bool:
    """Whether the page was just entered: Streamlit forgets the fields of a page that is left."""
    filling = st.session_state.get(_FILLING)
    shown = filling is not None and st.session_state.get(_SHOWN) != filling
    return not shown and key("context") not in st.session_state


def key(name: str) -> str:
    """The key of a widget that shows a setting."""
    return f"finetune-{name}-{st.session_state.get(_FILLING, 0)}"


def training() -> Values:
    """The settings that matter most, and the rare ones behind buttons."""
    start = base()
    st.session_state[_SHOWN] = st.session_state.get(_FILLING)
    left, right = st.columns(2)
    with left:
        chosen: Values = {
            "context": _whole("Context (bars)", "context", 2, 4096, "Bars read in a window."),
            "batch_size": _whole("Batch size", "batch_size", 1, 4096, "Windows in one update."),
        }
        chosen["learning_rate"] = st.number_input(
            "Learning rate",
            0.0,
            1.0,
            float(start.learning_rate),
            1e-5,
            format="%.1e",
            key=key("learning_rate"),
            help="Highest learning rate; 1e-6 to 4e-5 suits released weights.",
        )
    with right:
        chosen["horizon"] = _whole(
            "Horizon (bars)", "horizon", 1, 1024, "Bars after the context in a window."
        )
        chosen["stride"] = _whole("Stride (bars)", "stride", 1, 1024, "Between window starts.")
        chosen |= _length()
    with st.container(horizontal=True, gap="small"):
        for label, icon, part in (
            ("Optimiser", "tune", optimiser),
            ("Stopping", "flag", stopping),
            ("Small memory", "memory", small_memory),
            ("Tokenizer", "token", tokenizer),
            ("Seed, device", "casino", reproducing),
        ):
            with st.popover(label, icon=f":material/{icon}:"):
                chosen |= part()
    return chosen


def _length() -> Values:
    """Epochs or steps: one field, and what it counts."""
    start = base()
    inner = st.columns(2, vertical_alignment="bottom")
    units = ["Epochs", "Steps"]
    unit = inner[1].selectbox(
        "Counted in", units, index=int(start.steps is not None), key=key("length-unit")
    )
    words = "Passes over all training windows." if unit == "Epochs" else "Updates, not passes."
    with inner[0]:
        if unit == "Epochs":
            return {"epochs": _whole("Epochs", "epochs", 1, 1000, words), "steps": None}
        steps = st.number_input(
            "Steps", 1, 10**7, start.steps or 1000, key=key("steps"), help=words
        )
    return {"epochs": start.epochs, "steps": int(steps)}


def optimiser() -> Values:
    start = base()
    names = list(SCHEDULES)
    schedule = st.selectbox(
        "Schedule of the learning rate",
        names,
        index=names.index(start.schedule),
        format_func=SCHEDULES.__getitem__,
        key=key("schedule"),
        help="One cycle rises from a tenth and falls to nearly zero, as in the release.",
    )
    chosen: Values = {"schedule": schedule}
    chosen["warmup"] = st.slider(
        "Warm-up share",
        0.0,
        0.5,
        float(start.warmup),
        0.01,
        key=key("warmup"),
        help="Share of the steps in which the learning rate rises.",
    )
    chosen["weight_decay"] = _real("Weight decay", "weight_decay", 0.0, 10.0)
    chosen["clip_norm"] = _real(
        "Gradient clipping", "clip_norm", 0.01, 1000.0, "Largest gradient norm of an update."
    )
    own = _toggle("Set dropout", "dropout-on", start.dropout is not None, "Else the model's own.")
    chosen["dropout"] = (
        st.slider("Dropout", 0.0, 0.9, start.dropout or 0.1, 0.05, key=key("dropout"))
        if own
        else None
    )
    return chosen


def stopping() -> Values:
    start = base()
    chosen: Values = {
        "evaluations_per_epoch": _whole(
            "Evaluations per epoch",
            "evaluations_per_epoch",
            1,
            100,
            "How often losses are measured.",
        ),
        "max_validation_windows": _whole(
            "Validation windows at most",
            "max_validation_windows",
            1,
            100_000,
            "More make an evaluation more exact and slower.",
        ),
    }
    early = _toggle(
        "Stop early",
        "patience-on",
        start.patience is not None,
        "Ends a stage when its loss stops improving; the best weights are kept either way.",
    )
    chosen["patience"] = None
    if early:
        chosen["patience"] = st.number_input(
            "Evaluations without a better one", 1, 1000, start.patience or 6, key=key("patience")
        )
    chosen["ema"] = _average()
    return chosen


def _average() -> float | None:
    """The decay of the averaged weights, None where there are none."""
    known = base().ema
    average = _toggle(
        "Average the weights (EMA)",
        "ema-on",
        known is not None,
        "A moving average of the weights is what is evaluated and saved.",
    )
    if not average:
        return None
    return float(
        st.number_input("Decay", 0.5, 0.99999, known or 0.999, 0.001, format="%.5f", key=key("ema"))
    )


def small_memory() -> Values:
    start = base()
    chosen: Values = {"micro_batch": None}
    accumulate = _toggle(
        "Compute a batch in pieces",
        "micro-on",
        start.micro_batch is not None,
        "Gradients of the pieces are added up: the same update with less memory.",
    )
    if accumulate:
        chosen["micro_batch"] = st.number_input(
            "Windows at once (micro-batch)", 1, 4096, start.micro_batch or 8, key=key("micro")
        )
    chosen["halve_on_out_of_memory"] = _toggle(
        "Halve the pieces when memory runs out",
        "halve",
        start.halve_on_out_of_memory,
        "The run goes on with smaller pieces instead of failing.",
    )
    chosen["frozen_blocks"] = st.number_input(
        "Frozen blocks",
        0,
        100,
        start.frozen_blocks,
        key=key("frozen"),
        help="The first transformer blocks, which then keep what they know.",
    )
    chosen["freeze_embeddings"] = _toggle(
        "Freeze embeddings", "freeze", start.freeze_embeddings, "Those of tokens and times."
    )
    on = _toggle(
        "LoRA adapters",
        "lora-on",
        start.lora is not None,
        "Trains small matrices beside the weights, which stay as they are.",
    )
    chosen["lora"] = lora(start.lora or Lora()) if on else None
    return chosen


def lora(start: Lora) -> Lora | str:
    """The adapters, or what is wrong with them."""
    left, right = st.columns(2)
    rank = left.number_input("Rank", 1, 512, start.rank, key=key("lora-rank"))
    alpha = right.number_input("Alpha", 0.1, 1024.0, float(start.alpha), key=key("lora-alpha"))
    targets = st.multiselect(
        "Layers", LORA_TARGETS, default=list(start.targets), key=key("lora-targets")
    )
    dropout = st.slider("LoRA dropout", 0.0, 0.9, start.dropout, 0.05, key=key("lora-dropout"))
    try:
        return Lora(rank=rank, alpha=alpha, dropout=dropout, targets=tuple(targets))
    except ValueError as problem:
        return str(problem)


def tokenizer() -> Values:
    start = base().tokenizer
    on = _toggle(
        "Fine-tune the tokenizer first",
        "tokenizer-on",
        start is not None,
        "A stage before the predictor's that fits the tokens themselves to your bars.",
    )
    if not on:
        return {"tokenizer": None}
    start = start or TokenizerStage()
    rate = st.number_input(
        "Tokenizer learning rate",
        1e-7,
        1.0,
        float(start.learning_rate),
        1e-5,
        format="%.1e",
        key=key("tokenizer-rate"),
    )
    epochs = st.number_input("Tokenizer epochs", 1, 1000, start.epochs, key=key("tokenizer-epochs"))
    clip = st.number_input(
        "Tokenizer clipping", 0.01, 1000.0, float(start.clip_norm), key=key("tokenizer-clip")
    )
    decay = st.number_input(
        "Tokenizer weight decay",
        0.0,
        10.0,
        float(start.weight_decay),
        0.01,
        key=key("tokenizer-decay"),
    )
    stage = replace(start, epochs=epochs, learning_rate=rate, clip_norm=clip, weight_decay=decay)
    return {"tokenizer": stage}


def reproducing() -> Values:
    start = base()
    devices = list(dict.fromkeys(["auto", "cpu", "cuda", "mps", start.device]))
    return {
        "seed": _whole("Seed", "seed", 0, 2**31 - 1, "The same seed gives the same run."),
        "device": st.selectbox(
            "Device",
            devices,
            index=devices.index(start.device),
            key=key("device"),
            help="auto takes the fastest there is.",
        ),
    }


def conditioning() -> TeacherForcing:
    """What s2 is conditioned on."""
    start = base().teacher_forcing
    mode = st.segmented_control(
        "s2 is conditioned on",
        list(teaching.MODES),
        default=teaching.mode_of(start),
        required=True,
        key=key("forcing-mode"),
        help=teaching.EPSILON_HELP,
    )
    st.caption(teaching.MODES[mode])
    return _dial(start, mode, "forcing")


def history() -> TeacherForcing:
    """What the inputs hold."""
    start = base().history
    mode = st.segmented_control(
        "The past is read from",
        list(teaching.HISTORY_MODES),
        default=teaching.history_mode_of(start),
        required=True,
        key=key("history-mode"),
        help=teaching.HISTORY_HELP,
    )
    st.caption(teaching.HISTORY_MODES[mode])
    return _dial(start, mode, "history")


def _dial(start: TeacherForcing, mode: str, name: str) -> TeacherForcing:
    constant = mode in (teaching.RATIO, teaching.MIXED_PAST)
    scheduled = mode in (teaching.DECAY, teaching.DECAYING_PAST)
    if not constant and not scheduled:
        return teaching.forcing(mode, 0.0, 0.0, "token")
    first, last, shape, k = start.start, start.end, start.schedule, start.k
    if scheduled:
        shape, first, last, k = _schedule(start, name)
    else:
        first = st.slider(
            "Ratio ε",
            0.0,
            1.0,
            first if start.schedule == "constant" and 0 < first < 1 else 0.5,
            0.05,
            key=key(f"{name}-ratio"),
        )
    unit = st.segmented_control(
        "Decided for each",
        list(teaching.UNITS),
        default=start.unit,
        required=True,
        format_func=teaching.UNITS.__getitem__,
        key=key(f"{name}-unit"),
    )
    words = teaching.SHAPE_WORDS[shape] if scheduled else ""
    st.caption(f"{words} {teaching.UNIT_WORDS[unit]}".strip())
    return teaching.forcing(mode, first, last or 0.0, unit, shape, k)


def _schedule(start: TeacherForcing, name: str) -> tuple[Schedule, float, float, float | None]:
    known = start.schedule != "constant"
    shape = st.segmented_control(
        "Shape",
        list(teaching.SHAPES),
        default=start.schedule if known else "linear",
        required=True,
        format_func=teaching.SHAPES.__getitem__,
        key=key(f"{name}-shape"),
    )
    left, right = st.columns(2)
    first = left.slider(
        "ε at the first step", 0.0, 1.0, start.start if known else 1.0, 0.05, key=key(f"{name}-a")
    )
    last = right.slider(
        "ε at the last step", 0.0, 1.0, start.end or 0.0, 0.05, key=key(f"{name}-b")
    )
    # A k of one's own is kept where a file gave it; otherwise the curve is fitted to the run.
    k = start.k if shape == start.schedule else None
    return shape, first, last, k


def _whole(label: str, name: str, low: int, high: int, words: str) -> int:
    value = min(max(int(getattr(base(), name)), low), high)
    return int(st.number_input(label, low, high, value, key=key(name), help=words))


def _real(label: str, name: str, low: float, high: float, words: str | None = None) -> float:
    value = min(max(float(getattr(base(), name)), low), high)
    return float(st.number_input(label, low, high, value, 0.01, key=key(name), help=words))


def _toggle(label: str, name: str, on: bool, words: str) -> bool:
    return bool(st.toggle(label, on, key=key(name), help=words))


def read(values: Values) -> TrainingConfig | str:
    """The validated settings, or what is wrong with them; what no field holds stays."""
    if isinstance(values.get("lora"), str):
        return str(values["lora"])
    try:
        return replace(base(), **values)
    except ValueError as problem:
        return str(problem)
