"""A workspace with a small dataset, a tiny model and what a short run needs."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from app.services import datasets, models, runs
from app.storage import Store
from app.storage.models import Dataset, Model, Run
from kronos_core.data.bars import Series
from kronos_core.training.config import TrainingConfig

GOLDEN = Path(__file__).parents[1] / "fixtures" / "golden"


@pytest.fixture
def dataset(store: Store, make_bars: Callable[..., pd.DataFrame]) -> Dataset:
    """120 hourly bars, read on New York's wall clock."""
    series = Series(
        frame=make_bars(120, step="h"),
        interval=pd.Timedelta(hours=1),
        timezone="America/New_York",
    )
    return datasets.add(store, series, name="Walk", source="upload")


@pytest.fixture
def model(store: Store) -> Model:
    """A model of a few thousand parameters, imported from a folder."""
    return models.import_folder(store, GOLDEN / "tiny5", "Tiny")


@pytest.fixture
def config() -> TrainingConfig:
    """A run of a few seconds at most."""
    return TrainingConfig(
        context=12,
        horizon=4,
        epochs=2,
        batch_size=8,
        learning_rate=1e-3,
        test_fraction=0.0,
        device="cpu",
        evaluations_per_epoch=2,
        max_validation_windows=8,
    )


@pytest.fixture
def run(store: Store, dataset: Dataset, model: Model, config: TrainingConfig) -> Run:
    """A queued run."""
    return runs.queue(store, dataset_id=dataset.id, model_id=model.id, config=config, name="First")
