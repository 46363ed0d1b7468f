"""The controls of the sampler, opened at what a stored forecast was drawn with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from kronos_core.forecast.forecaster import DTYPES

TEMPERATURE_HELP = "Below 1 the fan gets narrower than the model believes, above 1 wider."
TOP_P_HELP = "Keeps the smallest set of tokens whose chances add up to top-p; 1 keeps all."
TOP_K_HELP = "Keeps the k likeliest tokens; 0 keeps all, 1 always takes the likeliest."
CONTEXT_HELP = "Bars before the origin that the model reads; 0 takes all it can."
DTYPE_HELP = "bfloat16 halves the memory of the predictor and is fast on a recent GPU."
SEED_HELP = "The same seed, data, model and settings draw the same paths."


def whole(settings: Mapping[str, Any], name: str, default: int, low: int, high: int) -> int:
    """A stored whole number, within what its field takes: a command line may have gone beyond."""
    value = settings.get(name)
    return default if value is None else min(max(int(value), low), high)


def ratio(settings: Mapping[str, Any], name: str, default: float, low: float, high: float) -> float:
    """The same for a slider."""
    value = settings.get(name)
    return default if value is None else min(max(float(value), low), high)


def sampling(settings: Mapping[str, Any], suffix: str) -> dict[str, Any]:
    """The rare settings, as ForecastRequest takes them; `suffix` names what they belong to."""
    context = _number("Context (bars)", settings, "context", 4096, CONTEXT_HELP, suffix)
    start = ratio(settings, "temperature", 1.0, 0.1, 2.0)
    key = f"temperature-{suffix}"
    temperature = st.slider("Temperature", 0.1, 2.0, start, 0.05, key=key, help=TEMPERATURE_HELP)
    start = ratio(settings, "top_p", 1.0, 0.05, 1.0)
    top_p = st.slider("Top-p", 0.05, 1.0, start, 0.01, key=f"top-p-{suffix}", help=TOP_P_HELP)
    top_k = _number("Top-k", settings, "top_k", 4096, TOP_K_HELP, suffix)
    dtype = settings.get("dtype", "float32")
    start = list(DTYPES).index(dtype) if dtype in DTYPES else 0
    dtype = st.selectbox(
        "Number format", list(DTYPES), index=start, key=f"dtype-{suffix}", help=DTYPE_HELP
    )
    return {
        "context": context or None,
        "temperature": temperature,
        "top_p": top_p if top_p < 1 else None,
        "top_k": top_k or None,
        "dtype": dtype,
        "seed": _number("Seed", settings, "seed", 2**31 - 1, SEED_HELP, suffix),
    }


def _number(
    label: str, settings: Mapping[str, Any], name: str, high: int, words: str, suffix: str
) -> int:
    start = whole(settings, name, 0, 0, high)
    return st.number_input(label, 0, high, start, key=f"{name}-{suffix}", help=words)
