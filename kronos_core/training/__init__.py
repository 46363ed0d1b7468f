"""Fine-tuning: settings, teacher forcing, the stages of a run, and checkpoints."""

from kronos_core.training.config import Plan, TrainingConfig, plan
from kronos_core.training.memory import OutOfMemory, is_out_of_memory
from kronos_core.training.options import DataShare, Lora, TokenizerStage
from kronos_core.training.presets import PRESETS, Preset
from kronos_core.training.teacher_forcing import TeacherForcing
from kronos_core.training.trainer import (
    MetricRow,
    NonFiniteLoss,
    TrainingCallbacks,
    TrainingResult,
    train,
)

__all__ = [
    "PRESETS",
    "DataShare",
    "Lora",
    "MetricRow",
    "NonFiniteLoss",
    "OutOfMemory",
    "Plan",
    "Preset",
    "TeacherForcing",
    "TokenizerStage",
    "TrainingCallbacks",
    "TrainingConfig",
    "TrainingResult",
    "is_out_of_memory",
    "plan",
    "train",
]
