"""Engine for Kronos candlestick models: tokenizer, predictor, sampling and fine-tuning."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kronos_core.data.bars import DataError, Series
from kronos_core.data.choices import AmbiguityError, ReadingChoices
from kronos_core.data.dialects import Reading, inspect_bars, read_bars

if TYPE_CHECKING:
    from kronos_core.forecast.forecast import Forecast
    from kronos_core.forecast.forecaster import Cancelled, sample_many, sample_paths
    from kronos_core.forecast.memory import MemoryBudgetError, estimate_memory
    from kronos_core.forecast.sampling import SamplingConfig
    from kronos_core.model.files import BundleError
    from kronos_core.model.kronos import Kronos
    from kronos_core.model.layers import DependencyAwareLayer, DualHead, HierarchicalEmbedding
    from kronos_core.model.tokenizer import KronosTokenizer
    from kronos_core.model.zoo import Bundle, load_bundle, save_bundle

__all__ = [
    "AmbiguityError",
    "Bundle",
    "BundleError",
    "Cancelled",
    "DataError",
    "DependencyAwareLayer",
    "DualHead",
    "Forecast",
    "HierarchicalEmbedding",
    "Kronos",
    "KronosTokenizer",
    "MemoryBudgetError",
    "Reading",
    "ReadingChoices",
    "SamplingConfig",
    "Series",
    "estimate_memory",
    "inspect_bars",
    "load_bundle",
    "read_bars",
    "sample_many",
    "sample_paths",
    "save_bundle",
]

# What needs torch is imported when it is first asked for: reading files starts in a third of the
# time and in less than half of the memory without it.
_HOMES = {
    "Bundle": "model.zoo",
    "BundleError": "model.files",
    "Cancelled": "forecast.forecaster",
    "DependencyAwareLayer": "model.layers",
    "DualHead": "model.layers",
    "Forecast": "forecast.forecast",
    "HierarchicalEmbedding": "model.layers",
    "Kronos": "model.kronos",
    "KronosTokenizer": "model.tokenizer",
    "MemoryBudgetError": "forecast.memory",
    "SamplingConfig": "forecast.sampling",
    "estimate_memory": "forecast.memory",
    "load_bundle": "model.zoo",
    "sample_many": "forecast.forecaster",
    "sample_paths": "forecast.forecaster",
    "save_bundle": "model.zoo",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
