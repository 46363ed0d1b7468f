"""Bars, a tiny bundle, and callbacks that keep everything, for the tests of training."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from kronos_core.data.bars import as_bars
from kronos_core.model.kronos import Kronos
from kronos_core.model.tokenizer import KronosTokenizer
from kronos_core.model.zoo import Bundle, load_bundle
from kronos_core.training.config import TrainingConfig
from kronos_core.training.loop import Loop
from kronos_core.training.trainer import MetricRow, Run

CPU = torch.device("cpu")
SMALL = TrainingConfig(
    context=12,
    horizon=4,
    epochs=2,
    batch_size=16,
    learning_rate=3e-3,
    test_fraction=0.0,
    device="cpu",
    evaluations_per_epoch=2,
    max_validation_windows=20,
)


def make_bars(count: int = 140) -> pd.DataFrame:
    draws = np.random.default_rng(3)
    close = 100 * np.exp(np.cumsum(draws.normal(0, 0.01, count)))
    opened = close * (1 + draws.normal(0, 0.003, count))
    return as_bars(
        pd.DataFrame(
            {
                "timestamps": pd.date_range("2024-01-01", periods=count, freq="h", tz="UTC"),
                "open": opened,
                "high": np.maximum(opened, close) * 1.002,
                "low": np.minimum(opened, close) * 0.998,
                "close": close,
                "volume": draws.uniform(1e3, 1e4, count),
            }
        )
    )


def make_bundle(dropout: float = 0.0) -> Bundle:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        tokenizer = KronosTokenizer(
            d_in=6,
            d_model=16,
            n_heads=2,
            ff_dim=32,
            n_enc_layers=2,
            n_dec_layers=2,
            ffn_dropout_p=0.0,
            attn_dropout_p=0.0,
            resid_dropout_p=0.0,
            s1_bits=4,
            s2_bits=4,
            beta=0.05,
            gamma0=1.0,
            gamma=1.1,
            zeta=0.05,
            group_size=4,
        )
        predictor = Kronos(4, 4, 1, 32, 2, 64, dropout, dropout, dropout, dropout, True)
    return Bundle(
        name="tiny",
        tokenizer=tokenizer.eval(),
        predictor=predictor.eval(),
        max_context=64,
        s2_rotary="origin",
        provenance={},
    )


def without_measures(row: MetricRow) -> MetricRow:
    """The row without what depends on the machine."""
    return replace(row, tokens_per_second=None, memory_mb=None)


class Recorder:
    """Callbacks that keep everything and stop before the given step."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.rows: list[MetricRow] = []
        self.events: list[tuple[str, str]] = []
        self.steps: list[int] = []
        self.stop_after = stop_after

    def on_metric(self, row: MetricRow) -> None:
        self.rows.append(row)

    def on_step(self, step: int, total: int, epoch: float) -> None:
        self.steps.append(step)

    def on_event(self, kind: str, message: str) -> None:
        self.events.append((kind, message))

    def should_stop(self) -> bool:
        return self.stop_after is not None and len(self.steps) >= self.stop_after

    def split(self, name: str) -> list[MetricRow]:
        return [without_measures(row) for row in self.rows if row.split == name]


def weights(folder) -> dict[str, torch.Tensor]:
    return load_bundle(folder, device="cpu").predictor.state_dict()


def assert_equal_weights(first, second) -> None:
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


def make_run(config: TrainingConfig, folder: Path, **given: Any) -> Run:
    return Run(
        given.get("bundle") or make_bundle(),
        given.get("frames") or [make_bars()],
        config,
        folder=folder,
        callbacks=given.get("callbacks") or Recorder(),
    )


def predictor_loop(config: TrainingConfig, folder: Path, **given: Any) -> Loop[Kronos]:
    """The predictor stage at its beginning; the global random state is seeded."""
    run = make_run(config, folder, **given)
    return run.predictor_loop(run.bundle.tokenizer, *run.encode(run.bundle.tokenizer))
