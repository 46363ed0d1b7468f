"""Synthetic bars are valid whatever is asked, the same for a seed, and as volatile as asked."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kronos_core.data.bars import CHANNELS, DataError, make_series
from kronos_core.data.synthetic import JUMP_SIZE, YEAR, SyntheticSettings, make_synthetic

HOUR = pd.Timedelta(hours=1)
ANY = st.builds(
    SyntheticSettings,
    bars=st.integers(2, 600),
    interval=st.sampled_from([pd.Timedelta(seconds=1), pd.Timedelta(minutes=7), HOUR, 24 * HOUR]),
    start=st.sampled_from(
        [pd.Timestamp("1980-02-29", tz="UTC"), pd.Timestamp("2024-10-26 23:30", tz="Asia/Kolkata")]
    ),
    first_price=st.floats(1e-8, 1e9),
    drift=st.floats(-5, 5),
    volatility=st.floats(0, 10),
    clustering=st.floats(0, 2),
    cycle=st.floats(0, 1),
    jumps=st.floats(0, 1),
    seed=st.integers(0, 2**63 - 1),
)


def log_returns(made: SyntheticSettings) -> np.ndarray[Any, np.dtype[np.float64]]:
    frame = make_synthetic(made).frame
    return np.log(frame["close"].to_numpy() / frame["open"].to_numpy())


@given(ANY)
@settings(max_examples=150, deadline=None)
def test_valid_bars_for_any_settings(made: SyntheticSettings) -> None:
    series = make_synthetic(made)
    frame = series.frame
    assert list(frame.columns) == ["timestamps", *CHANNELS]
    assert str(frame["timestamps"].dtype) == "datetime64[ns, UTC]"
    assert len(frame) == made.bars
    assert frame["timestamps"].iloc[0] == made.start
    assert (np.diff(frame["timestamps"]) == made.interval).all()
    assert (series.interval, series.timezone) == (made.interval, "UTC")
    assert np.isfinite(frame[list(CHANNELS)].to_numpy()).all()
    assert (frame["low"] > 0).all()
    assert (frame["high"] >= frame[["open", "close"]].max(axis=1)).all()
    assert (frame["low"] <= frame[["open", "close"]].min(axis=1)).all()
    assert (frame[["volume", "amount"]] >= 0).all(axis=None)
    assert frame["open"].iloc[0] == made.first_price
    assert (frame["open"].to_numpy()[1:] == frame["close"].to_numpy()[:-1]).all()
    assert make_series(frame).findings == ()


@given(ANY)
@settings(max_examples=25, deadline=None)
def test_same_settings_same_bars(made: SyntheticSettings) -> None:
    pd.testing.assert_frame_equal(
        make_synthetic(made).frame, make_synthetic(made).frame, check_exact=True
    )


def test_another_seed_is_another_walk() -> None:
    one, two = (make_synthetic(SyntheticSettings(seed=seed)).frame for seed in (1, 2))
    assert (one["close"] != two["close"]).all()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("clustering", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("jumps", [0.0, 0.01])
@pytest.mark.parametrize("interval", [HOUR, 24 * HOUR])
def test_volatility_is_what_was_asked(
    seed: int, clustering: float, jumps: float, interval: pd.Timedelta
) -> None:
    count = 20_000
    made = SyntheticSettings(
        bars=count,
        interval=interval,
        volatility=0.3,
        clustering=clustering,
        jumps=jumps,
        seed=seed,
    )
    measured = log_returns(made).std() * math.sqrt(YEAR / interval)
    # The variance of a mean of squares: of independent draws by their kurtosis, and of the
    # variances themselves, of which about a hundred that follow each other are alike.
    fourth = (1 + jumps * (JUMP_SIZE**4 - 1)) / (1 + jumps * (JUMP_SIZE**2 - 1)) ** 2
    unlike = math.exp(clustering**2) - 1
    error = math.sqrt((3 * fourth * (unlike + 1) - 1) / count + 100 * unlike / count) / 2
    assert abs(measured / 0.3 - 1) < 4 * error


@pytest.mark.parametrize("seed", range(4))
def test_drift_is_the_mean_growth(seed: int) -> None:
    made = SyntheticSettings(
        bars=40_000, drift=0.1, volatility=0.2, clustering=0, jumps=0, seed=seed
    )
    growth = log_returns(made).sum() / made.years
    assert abs(growth - (0.1 - 0.2**2 / 2)) < 4 * 0.2 / math.sqrt(made.years)


def test_clusters_and_jumps_make_large_moves_likelier() -> None:
    def kurtosis(**asked: float) -> float:
        moves = log_returns(SyntheticSettings(bars=20_000, **{"clustering": 0, "jumps": 0} | asked))
        return float((moves**4).mean() / (moves**2).mean() ** 2)

    assert kurtosis() == pytest.approx(3, abs=0.2)
    assert kurtosis(clustering=1.0) > 5
    assert kurtosis(jumps=0.01) > 10
    moves = log_returns(SyntheticSettings(bars=20_000, clustering=1.0, jumps=0))
    assert np.corrcoef(np.abs(moves[1:]), np.abs(moves[:-1]))[0, 1] > 0.15


def test_volume_swings_with_the_day_only_below_a_day() -> None:
    def hourly(cycle: float) -> pd.Series:
        frame = make_synthetic(SyntheticSettings(bars=24 * 400, interval=HOUR, cycle=cycle)).frame
        return frame.groupby(frame["timestamps"].dt.hour)["volume"].mean()

    assert hourly(0.0).max() / hourly(0.0).min() < 1.3
    assert hourly(0.8).idxmax() in (14, 15, 16)
    assert hourly(0.8).max() / hourly(0.8).min() > 5
    daily = [make_synthetic(SyntheticSettings(cycle=cycle)).frame["volume"] for cycle in (0, 1)]
    assert (daily[0] == daily[1]).all()


def test_the_settings_are_plain_values() -> None:
    told = SyntheticSettings(interval=HOUR, seed=3).to_dict()
    assert json.loads(json.dumps(told)) == told
    assert (told["interval"], told["start"]) == (3600, "2020-01-01T00:00:00+00:00")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"bars": 1}, "bars must be between 2 and 1e.06, got 1"),
        ({"interval": pd.Timedelta(0)}, "interval must be between 1 and"),
        ({"first_price": 0.0}, "first_price must be between"),
        ({"drift": 9.0}, "drift must be between -5 and 5, got 9"),
        ({"volatility": -0.1}, "volatility must be between 0 and 10, got -0.1"),
        ({"volatility": math.nan}, "volatility must be between 0 and 10, got nan"),
        ({"clustering": 3.0}, "clustering must be"),
        ({"cycle": 1.5}, "cycle must be"),
        ({"jumps": -1.0}, "jumps must be"),
        ({"seed": -1}, "seed must be"),
        ({"start": pd.Timestamp("2024-01-01")}, "needs a time zone"),
        ({"start": pd.Timestamp("1700-01-01", tz="UTC")}, "between the years"),
        ({"bars": 100_000}, "100,000 bars from 2020-01-01 on do not lie between the years"),
        ({"bars": 20_000, "volatility": 5.0}, "lead to prices beyond all bounds"),
    ],
)
def test_impossible_settings_say_what_to_change(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        SyntheticSettings(**asked)
