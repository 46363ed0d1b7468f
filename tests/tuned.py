"""Models that look as fine-tuning leaves them, without the training."""

from dataclasses import replace
from pathlib import Path

from app.jobs.bundles import register_model
from app.services import models, runs
from app.storage import Store
from app.storage.models import Dataset, Model
from kronos_core.training.config import TrainingConfig
from kronos_core.training.teacher_forcing import TeacherForcing

TINY = Path(__file__).parent / "fixtures" / "golden" / "tiny5"
CONFIG = TrainingConfig(context=12, horizon=4, batch_size=8, test_fraction=0.0, device="cpu")
LOSSES = {"best_step": 1, "best_s1": 2.0, "best_s2": 3.0, "best_total": 2.5}


def tuned(store: Store, base: Model, dataset: Dataset, forcing: str, name: str) -> Model:
    """A model of the run `name` with that teacher forcing, as text."""
    config = replace(CONFIG, teacher_forcing=TeacherForcing.parse(forcing))
    run = runs.queue(store, dataset_id=dataset.id, model_id=base.id, config=config, name=name)
    return models.get(store, register_model(store, run, TINY, LOSSES))
