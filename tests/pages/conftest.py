"""Pages run by Streamlit's own test harness, each test over an empty workspace."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from app.services import datasets, forecasts
from app.services.forecasts import ForecastRequest
from app.settings import get_settings
from app.storage import Store
from app.storage.models import Dataset, Forecast
from app.ui import resources
from tests.pages.helpers import opened, settled

OpenPage = Callable[..., AppTest]


@pytest.fixture
def store(tmp_path: Path, migrated: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """The store that the pages open, on an empty workspace."""
    shutil.copytree(migrated, tmp_path / "workspace")
    monkeypatch.setenv("KRONOS_WORKSPACE", str(tmp_path / "workspace"))
    monkeypatch.delenv("KRONOS_DATABASE_URL", raising=False)
    get_settings.cache_clear()
    yield resources.store()
    get_settings.cache_clear()


@pytest.fixture
def open_page(store: Store) -> OpenPage:
    """Opens a page by the name of its file, over the workspace of the test."""
    return opened


@pytest.fixture
def sample(store: Store) -> Dataset:
    """The bundled S&P 500."""
    return datasets.add_sample(store, "sp500")


@pytest.fixture
def drawn(store: Store, sample: Dataset) -> Forecast:
    """A small forecast from an origin in the past."""
    request = ForecastRequest(
        dataset_id=sample.id,
        model_id="kronos-nano",
        horizon=5,
        paths=8,
        context=32,
        origin_index=sample.bars - 4,
    )
    row = settled(store, forecasts.submit(store, request).id)
    assert row.state == "finished", row.reason
    return row
