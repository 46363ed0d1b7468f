"""The result type, and what sample_paths accepts and refuses."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from kronos_core import Forecast, sample_paths
from kronos_core.data.bars import CHANNELS
from kronos_core.forecast.forecaster import context_length
from tests.core.models import tiny_bundle
from tests.core.test_cache import bars


def forecast(zone: str | None = None, **changes: object) -> Forecast:
    rng = np.random.default_rng(0)
    paths = rng.normal(100, 1, (7, 4, 6))
    paths[..., 4] = rng.normal(0, 1, (7, 4))
    values = {
        "paths": paths,
        "timestamps": pd.date_range("2024-03-08", periods=4, freq="D", tz=zone),
        "origin": pd.Timestamp("2024-03-07", tz=zone),
        "last_close": 100.0,
        "context": 30,
        "settings": {"seed": 1},
        "provenance": {"model": "tiny"},
    }
    return Forecast(**(values | changes))


def test_candles_are_valid_and_raw_paths_are_kept() -> None:
    result = forecast()
    raw = result.paths.copy()
    opened, high, low, close, volume, _ = np.moveaxis(result.candles, -1, 0)
    assert (high >= np.maximum(opened, close)).all()
    assert (low <= np.minimum(opened, close)).all()
    assert (volume >= 0).all()
    assert np.array_equal(result.paths, raw)
    assert np.array_equal(opened, raw[..., 0])
    assert np.array_equal(close, raw[..., 3])


def test_violation_rate_counts_drawn_bars() -> None:
    good = np.tile([10.0, 12, 9, 11, 5, 50], (2, 2, 1))
    stamps = pd.date_range("2024-01-02", periods=2)
    assert forecast(paths=good, timestamps=stamps).violation_rate == 0
    good[0, 1, 1] = 10.5
    assert forecast(paths=good, timestamps=stamps).violation_rate == 0.25


def test_quantiles_and_probabilities() -> None:
    result = forecast()
    close = result.channel("close")
    bands = result.quantiles([0.1, 0.5, 0.9])
    assert bands.shape == (3, 4)
    assert (np.diff(bands, axis=0) >= 0).all()
    np.testing.assert_allclose(bands[1], np.median(close, axis=0))
    assert result.probability_above(close.min() - 1).tolist() == [1.0] * 4
    assert result.probability_above(float(np.median(close[:, 2])))[2] == pytest.approx(3 / 7)
    assert result.gap == pytest.approx(np.median(result.paths[:, 0, 0]) / 100 - 1)
    with pytest.raises(ValueError, match="unknown channel"):
        result.quantiles([0.5], "price")
    with pytest.raises(ValueError, match="levels must lie"):
        result.quantiles([50])


def test_long_form_has_a_row_for_each_bar_of_each_path() -> None:
    result = forecast()
    frame = result.to_frame()
    assert list(frame.columns) == ["path", "step", "timestamp", *CHANNELS]
    assert len(frame) == 7 * 4
    row = frame[(frame["path"] == 5) & (frame["step"] == 3)].iloc[0]
    assert row["timestamp"] == result.timestamps[2]
    assert row[list(CHANNELS)].tolist() == result.candles[5, 2].tolist()


@pytest.mark.parametrize("zone", [None, "UTC", "America/New_York"])
def test_stored_and_loaded_again_it_is_equal(tmp_path: Path, zone: str | None) -> None:
    result = forecast(zone)
    result.save(tmp_path / "forecast.parquet")
    again = Forecast.load(tmp_path / "forecast.parquet")
    assert np.array_equal(again.paths, result.paths)
    assert again.timestamps.equals(result.timestamps)
    assert str(again.timestamps.tz) == str(result.timestamps.tz)
    assert again.origin == result.origin
    for name in ("last_close", "context", "settings", "provenance"):
        assert getattr(again, name) == getattr(result, name)


def test_other_files_are_not_forecasts(tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("hello")
    bars().to_parquet(tmp_path / "bars.parquet")
    for name in ("text", "bars"):
        with pytest.raises(ValueError, match="not a stored forecast"):
            Forecast.load(tmp_path / f"{name}.parquet")


def test_sample_paths_tells_what_it_did() -> None:
    bundle = tiny_bundle()
    result = sample_paths(bundle, bars(), 6, 3, seed=9, temperature=0.7, top_k=5, top_p=0.9)
    assert result.paths.shape == (3, 6, 6)
    assert np.isfinite(result.paths).all()
    assert result.origin == bars().index[-1]
    assert result.timestamps[0] == result.origin + pd.Timedelta(hours=1)
    assert result.last_close == bars()["close"].iloc[-1]
    assert result.context == 40
    assert result.settings == {
        "horizon": 6, "paths": 3, "seed": 9, "temperature": 0.7, "top_k": 5, "top_p": 0.9,
        "stride": 1,
    }  # fmt: skip
    assert result.provenance["model_hash"] == bundle.hash


def test_only_the_context_counts() -> None:
    bundle = tiny_bundle()
    frame = bars(60)
    changed = frame.copy()
    changed.iloc[:20] *= 3
    future = pd.date_range(frame.index[-1], periods=5, freq="h")[1:]
    kwargs = {"future": future, "context": 40}
    one = sample_paths(bundle, frame, 4, 3, **kwargs)
    other = sample_paths(bundle, changed, 4, 3, **kwargs)
    assert np.array_equal(one.paths, other.paths)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_paths_scale_with_the_prices(scale: float) -> None:
    bundle = tiny_bundle()
    frame = bars()
    scaled = frame.copy()
    scaled[["open", "high", "low", "close"]] *= scale
    one = sample_paths(bundle, frame, 4, 3, top_k=1)
    other = sample_paths(bundle, scaled, 4, 3, top_k=1)
    np.testing.assert_allclose(other.paths[..., :4] / scale, one.paths[..., :4], rtol=1e-4)


def test_a_series_that_never_moves_stays_where_it_is() -> None:
    frame = bars()
    frame[["open", "high", "low", "close"]] = 3.5
    frame["volume"] = 0.0
    result = sample_paths(tiny_bundle(), frame, 4, 3)
    np.testing.assert_allclose(result.paths[..., :4], 3.5, rtol=1e-3)


@pytest.mark.parametrize(
    ("count", "horizon", "given", "expected"),
    [(40, 10, None, 40), (500, 10, None, 54), (500, 1000, None, 32), (500, 10, 64, 64)],
)
def test_context_length(count: int, horizon: int, given: int | None, expected: int) -> None:
    assert context_length(count, horizon, 64, given) == expected


@pytest.mark.parametrize("horizon", [64, 150])
def test_horizon_beyond_the_context(horizon: int) -> None:
    result = sample_paths(tiny_bundle(), bars(), horizon, 2)
    assert result.paths.shape == (2, horizon, 6)
    assert np.isfinite(result.paths).all()


def test_what_sample_paths_refuses() -> None:
    bundle = tiny_bundle()
    good = bars()
    broken = good.copy()
    broken.iloc[7, 3] = np.nan
    cases = [
        (broken, {}, "close"),
        (good.iloc[:1], {}, "at least 2 bars"),
        (good.drop(columns="close"), {}, "close"),
        (good.iloc[::-1], {}, "not sorted"),
        (good, {"context": 65}, r"context must lie in 2…40"),
        (good, {"stride": 0}, "stride must lie in"),
        (good, {"future": good.index[-4:]}, "start after the last bar"),
        (good, {"future": good.index[:3]}, "must hold 4 timestamps"),
        (good, {"future": pd.date_range("2030", periods=4, tz="UTC")}, "time zone"),
    ]
    for frame, settings, reason in cases:
        with pytest.raises(ValueError, match=reason):
            sample_paths(bundle, frame, 4, 2, **settings)
