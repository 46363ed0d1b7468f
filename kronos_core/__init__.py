"""Engine for Kronos candlestick models: tokenizer, predictor, sampling and fine-tuning."""

from kronos_core.data.bars import DataError
from kronos_core.forecast.forecast import Forecast
from kronos_core.forecast.forecaster import Cancelled, sample_paths
from kronos_core.forecast.sampling import SamplingConfig
from kronos_core.model.files import BundleError
from kronos_core.model.kronos import Kronos
from kronos_core.model.layers import DependencyAwareLayer, DualHead, HierarchicalEmbedding
from kronos_core.model.tokenizer import KronosTokenizer
from kronos_core.model.zoo import Bundle, load_bundle, save_bundle

__all__ = [
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
    "SamplingConfig",
    "load_bundle",
    "sample_paths",
    "save_bundle",
]
