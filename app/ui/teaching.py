"""Teacher forcing as it is offered on the page: the modes, their words and their settings."""

from __future__ import annotations

import shlex

import numpy as np

from kronos_core.training.config import TrainingConfig
from kronos_core.training.teacher_forcing import TeacherForcing, Unit

OWN, TRUE, RATIO, DECAY = "Own draw", "True s1", "Ratio ε", "Linear decay"
MODES = {
    OWN: "s2 is always predicted from the s1 that the model itself drew, as when it forecasts; "
    "this is how the release fine-tunes (ε = 0).",
    TRUE: "s2 is always predicted from the true s1: the clearest signal, but the model never "
    "practises on its own mistakes (ε = 1).",
    RATIO: "A coin decides between the two: with chance ε the true s1 conditions s2, otherwise the "
    "model's own draw does.",
    DECAY: "Scheduled sampling: ε goes in a straight line from the first to the last step, usually "
    "from the truth towards the model's own draws.",
}
UNITS: dict[Unit, str] = {"token": "bar", "sequence": "window", "batch": "batch"}
EPSILON_HELP = (
    "ε is the chance that the true coarse token s1, instead of the model's own draw, conditions "
    "the fine token s2."
)
EXPOSURE_HELP = (
    "Exposure gap: the s2 loss on the model's own s1 draws minus the s2 loss on the true s1; "
    "large values mean that the model is lost once it must rely on itself."
)
CURVES_HELP = (
    "Validation s2 is measured on the true s1, training s2 as the run conditions it: it rises when "
    "ε falls. A click on a name in the legend shows or hides its curves."
)
PREVIEW_POINTS = 200
OPTIONS = (
    "context",
    "horizon",
    "epochs",
    "batch_size",
    "learning_rate",
    "stride",
    "validation_fraction",
    "test_fraction",
    "weight_decay",
    "clip_norm",
    "warmup",
    "evaluations_per_epoch",
    "seed",
    "device",
)


def forcing(mode: str, start: float, end: float, unit: Unit) -> TeacherForcing:
    """The setting behind a mode; start is the ratio of the constant mode."""
    if mode == OWN:
        return TeacherForcing(start=0.0)
    if mode == TRUE:
        return TeacherForcing(start=1.0)
    if mode == RATIO:
        return TeacherForcing(start=start, unit=unit)
    return TeacherForcing(schedule="linear", start=start, end=end, unit=unit)


def epsilon_over_steps(chosen: TeacherForcing, total: int) -> tuple[list[int], list[float]]:
    """ε at up to 200 steps of a run, first and last included."""
    steps = np.unique(np.linspace(1, total, min(total, PREVIEW_POINTS)).astype(int)).tolist()
    return steps, [chosen.epsilon(step, total) for step in steps]


def command(dataset: str, model: str, config: TrainingConfig) -> str:
    """The command that queues the same run; settings at their default are left out."""
    defaults = TrainingConfig()
    words = ["python", "-m", "app", "finetune", "--dataset", dataset, "--model", model]
    for option in OPTIONS:
        value = getattr(config, option)
        if value != getattr(defaults, option):
            words += [f"--{option.replace('_', '-')}", str(value)]
    words += ["--teacher-forcing", config.teacher_forcing.to_text(), "--follow"]
    return shlex.join(words)


def unsaid(config: TrainingConfig) -> list[str]:
    """Settings off their default that the command line has no option for."""
    known = {*OPTIONS, "teacher_forcing"}
    values, defaults = config.to_dict(), TrainingConfig().to_dict()
    return [name for name in values if name not in known and values[name] != defaults[name]]
