"""The bundled datasets are real, clean and what their description says."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from kronos_core.data.bars import CHANNELS, DataError, make_series
from kronos_core.data.samples import ASSETS, SAMPLES, load_sample


@pytest.mark.parametrize("key", SAMPLES)
def test_a_sample_is_a_clean_daily_series(key: str) -> None:
    series = load_sample(key)
    assert series.symbol == SAMPLES[key].symbol
    assert series.interval == pd.Timedelta(days=1)
    assert len(series.frame) == 5031
    assert list(series.frame.columns) == ["timestamps", *CHANNELS]
    assert str(series.frame["timestamps"].dtype) == "datetime64[ns, UTC]"
    assert make_series(series.frame).findings == ()
    assert (ASSETS / f"{key}.parquet").stat().st_size < 300_000


def test_a_known_day() -> None:
    frame = load_sample("sp500").frame.set_index("timestamps")
    bar = frame.loc[pd.Timestamp("2018-12-31", tz="UTC")]
    assert bar["close"] == 2506.850098
    assert bar["volume"] == 3442870000
    mean_price = bar[["open", "high", "low", "close"]].mean()
    np.testing.assert_allclose(bar["amount"], 3442870000 * mean_price, rtol=1e-14)


@pytest.mark.parametrize("key", SAMPLES)
def test_the_files_are_what_the_script_writes(key: str) -> None:
    arch_data = pytest.importorskip(f"arch.data.{key}")
    raw = arch_data.load()
    frame = load_sample(key).frame
    np.testing.assert_array_equal(frame["close"], raw["Close"])
    np.testing.assert_array_equal(frame["volume"], raw["Volume"])
    dates = frame["timestamps"].dt.tz_localize(None).to_numpy()
    np.testing.assert_array_equal(dates, raw.index.to_numpy())


def test_an_unknown_sample_lists_the_known_ones() -> None:
    with pytest.raises(DataError, match="sp500, nasdaq"):
        load_sample("dax")
