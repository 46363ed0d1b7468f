"""Fine-tuning: settings, teacher forcing, the training loop and its checkpoints."""

from kronos_core.training.config import Plan, TrainingConfig, plan
from kronos_core.training.teacher_forcing import TeacherForcing
from kronos_core.training.trainer import (
    MetricRow,
    NonFiniteLoss,
    TrainingCallbacks,
    TrainingResult,
    train,
)

__all__ = [
    "MetricRow",
    "NonFiniteLoss",
    "Plan",
    "TeacherForcing",
    "TrainingCallbacks",
    "TrainingConfig",
    "TrainingResult",
    "plan",
    "train",
]
