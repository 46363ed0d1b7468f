"""Teacher forcing as it is offered on the pages: the choices, their words and their settings."""

from __future__ import annotations

import numpy as np

from kronos_core.training.teacher_forcing import Schedule, TeacherForcing, Unit

OWN, TRUE, RATIO, DECAY = "Own draw", "True s1", "Ratio ε", "Schedule"
MODES = {
    OWN: "s2 is always predicted from the s1 that the model itself drew, as when it forecasts; "
    "this is how the release fine-tunes (ε = 0).",
    TRUE: "s2 is always predicted from the true s1: the clearest signal, but the model never "
    "practises on its own mistakes (ε = 1).",
    RATIO: "A coin decides between the two: with chance ε the true s1 conditions s2, otherwise the "
    "model's own draw does.",
    DECAY: "Scheduled sampling: ε changes over the run, usually from the truth towards the model's "
    "own draws.",
}
TRUE_PAST, MIXED_PAST, DECAYING_PAST = "True past", "Mixed, ε", "Mixed, schedule"
HISTORY_MODES = {
    TRUE_PAST: "The model reads the true bars before each bar it predicts: one pass, the usual "
    "way (ε = 1).",
    MIXED_PAST: "A first pass draws tokens; then each token of the past is the true one with "
    "chance ε and the drawn one otherwise. A step takes about twice as long.",
    DECAYING_PAST: "The same mixture with an ε that changes over the run, usually from the truth "
    "towards the model's own past. A step takes about twice as long.",
}
SHAPES: dict[Schedule, str] = {
    "linear": "Linear",
    "exponential": "Exponential",
    "inverse-sigmoid": "Inverse sigmoid",
}
SHAPE_WORDS: dict[Schedule, str] = {
    "constant": "ε stays the same.",
    "linear": "ε moves by the same amount at every step.",
    "exponential": "ε moves fast at first and ever more slowly afterwards.",
    "inverse-sigmoid": "ε stays near its start for a while, moves in the middle, and settles.",
}
UNITS: dict[Unit, str] = {"token": "Bar", "sequence": "Window", "batch": "Batch"}
UNIT_WORDS: dict[Unit, str] = {
    "token": "A coin is tossed for every bar, so that truth and own tokens mix in a window.",
    "sequence": "One coin decides for all bars of a window.",
    "batch": "One coin decides for all windows of a step.",
}
EPSILON_HELP = (
    "ε is the chance that the true coarse token s1, instead of the model's own draw, conditions "
    "the fine token s2."
)
HISTORY_HELP = "ε is the chance that a token of the past which the model reads is the true one."
EXPOSURE_HELP = (
    "Exposure gap: the s2 loss on the model's own s1 draws minus the s2 loss on the true s1; "
    "large values mean that the model is lost once it must rely on itself."
)
CURVES_HELP = (
    "Validation s2 is measured on the true s1, training s2 as the run conditions it: it rises when "
    "ε falls. A click on a name in the legend shows or hides its curves."
)
PREVIEW_POINTS = 200


def forcing(
    mode: str,
    start: float,
    end: float,
    unit: Unit,
    shape: Schedule = "linear",
    k: float | None = None,
) -> TeacherForcing:
    """The setting behind a mode; start is the ratio of the constant modes."""
    if mode == OWN:
        return TeacherForcing(start=0.0)
    if mode in (TRUE, TRUE_PAST):
        return TeacherForcing(start=1.0)
    if mode in (RATIO, MIXED_PAST):
        return TeacherForcing(start=start, unit=unit)
    k = None if shape == "linear" else k
    return TeacherForcing(schedule=shape, start=start, end=end, unit=unit, k=k)


def mode_of(chosen: TeacherForcing) -> str:
    """The mode of a conditioning."""
    if chosen.schedule != "constant":
        return DECAY
    return {0.0: OWN, 1.0: TRUE}.get(float(chosen.start), RATIO)


def history_mode_of(chosen: TeacherForcing) -> str:
    """The mode of a history."""
    if chosen.always_true:
        return TRUE_PAST
    return MIXED_PAST if chosen.schedule == "constant" else DECAYING_PAST


def epsilon_over_steps(chosen: TeacherForcing, total: int) -> tuple[list[int], list[float]]:
    """ε at up to 200 steps of a run, first and last included."""
    steps = np.unique(np.linspace(1, total, min(total, PREVIEW_POINTS)).astype(int)).tolist()
    return steps, [chosen.epsilon(step, total) for step in steps]
