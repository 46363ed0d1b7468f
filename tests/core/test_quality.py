"""Quality: each defect is found at its place, and sound bars are left in peace."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kronos_core.data.bars import CHANNELS, DataError, Series, make_series
from kronos_core.data.calendars import Calendar, exchange
from kronos_core.data.findings import Finding, QualityReport
from kronos_core.data.quality import report
from kronos_core.data.samples import load_sample


def walk(
    bars: int = 400, freq: str = "h", start: str = "2024-01-01", seed: int = 0
) -> pd.DataFrame:
    """Sound bars around the clock: a frame with aware stamps."""
    rng = np.random.default_rng(seed)
    close = 100 * np.exp(np.cumsum(rng.normal(0, 0.004, bars)))
    opens = np.r_[100.0, close[:-1]]
    wick = np.abs(rng.normal(0, 0.002, (bars, 2)))
    volume = rng.uniform(1, 9, bars)
    return pd.DataFrame(
        {
            "timestamps": pd.date_range(start, periods=bars, freq=freq, tz="UTC", unit="ns"),
            "open": opens,
            "high": np.maximum(opens, close) * (1 + wick[:, 0]),
            "low": np.minimum(opens, close) * (1 - wick[:, 1]),
            "close": close,
            "volume": volume,
            "amount": volume * close,
        }
    )


def kinds(found: QualityReport) -> dict[str, Finding]:
    return {finding.kind: finding for finding in found.findings}


def test_sound_bars_have_no_findings() -> None:
    found = report(walk())
    assert found.findings == ()
    assert (found.grade, found.bars, found.expected) == ("good", 400, 400)
    assert found.calendar == Calendar(kind="24/7")


@pytest.mark.parametrize("key", ["sp500", "nasdaq"])
def test_real_index_bars_are_good(key: str) -> None:
    assert report(load_sample(key), exchange("XNYS")).findings == ()
    assert report(load_sample(key)).grade == "good"  # holidays are unknown: a note


def put(row: int, column: str, value: float) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        frame.loc[row, column] = value
        return frame

    return change


def scale(rows: slice, factor: float) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        frame.loc[rows, ["open", "high", "low", "close"]] *= factor
        return frame

    return change


def still(frame: pd.DataFrame) -> pd.DataFrame:
    frame.loc[50:69, ["open", "high", "low", "close"]] = frame.loc[49, "close"]
    frame.loc[50:69, ["volume", "amount"]] = 0.0
    return frame


def widen(frame: pd.DataFrame) -> pd.DataFrame:
    tail = pd.date_range("2024-02-01", periods=20, freq="D", tz="UTC", unit="ns")
    return pd.concat([frame, walk(20).assign(timestamps=tail)], ignore_index=True)


DEFECTS: dict[str, tuple[Callable[[pd.DataFrame], pd.DataFrame], str, int, int, str | None]] = {
    "missing price": (put(7, "close", np.nan), "values", 1, 7, "drop_unusable"),
    "infinite price": (put(7, "high", np.inf), "values", 1, 7, "drop_unusable"),
    "zero price": (put(7, "low", 0.0), "values", 1, 7, "drop_unusable"),
    "negative volume": (put(9, "volume", -1.0), "volume", 1, 9, "clean_volume"),
    "high too low": (put(9, "high", 1.0), "bounds", 1, 9, "fix_bounds"),
    "hundredfold bar": (scale(slice(30, 30), 100), "scale", 1, 30, "rescale"),
    "hundredth stretch": (scale(slice(30, 49), 0.01), "scale", 20, 30, "rescale"),
    "thousandfold tail": (scale(slice(390, None), 1000), "scale", 10, 390, "rescale"),
    "split": (scale(slice(200, None), 0.25), "splits", 1, 200, "adjust_splits"),
    "reverse split": (scale(slice(200, None), 10), "splits", 1, 200, "adjust_splits"),
    "spike": (scale(slice(60, 60), 1.4), "outliers", 1, 60, "flatten_spikes"),
    "wick": (put(61, "low", 50.0), "outliers", 1, 61, "flatten_spikes"),
    "idle": (still, "idle", 20, 50, "drop_idle"),
    "mixed": (widen, "intervals", 19, 401, None),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_found_where_it_is(name: str) -> None:
    change, kind, count, row, repair = DEFECTS[name]
    frame = change(walk())
    found = kinds(report(frame))
    assert kind in found
    finding = found[kind]
    assert (finding.count, finding.repair) == (count, repair)
    assert finding.places[0] == frame["timestamps"][row]
    assert finding.message[0].isupper() or finding.message[0].isdigit()
    assert finding.effect.endswith(".")
    assert len(finding.places) <= 5


def test_order_and_repeats_are_told_apart() -> None:
    frame = walk()
    assert (
        kinds(report(frame[::-1]))["order"].message == "The bars run from the newest to the oldest."
    )
    swapped = frame.iloc[[*range(10), 11, 10, *range(12, 400)]]
    found = kinds(report(swapped))
    assert list(found) == ["order"]
    assert found["order"].places == (frame["timestamps"][10],)
    again = pd.concat([frame, frame.iloc[[4, 5]], frame.iloc[[6]].assign(close=99.0)])
    finding = kinds(report(again))["duplicates"]
    assert finding.count == 3
    assert "1 of them with other values" in finding.message
    nameless = frame.assign(timestamps=frame["timestamps"].where(frame.index != 3))
    assert kinds(report(nameless))["stamps"].count == 1


def test_gaps_are_counted_against_the_calendar() -> None:
    frame = walk()
    found = report(frame.drop(index=[20, 21, 22, 50]))
    finding = kinds(found)["gaps"]
    assert (finding.count, finding.severity) == (4, "warning")
    assert "in 2 places" in finding.message
    assert finding.places == tuple(frame["timestamps"][[20, 21, 22, 50]])
    assert (found.bars, found.expected, found.grade) == (396, 400, "usable")
    assert finding.parameters["calendar"]["kind"] == "24/7"


def test_a_span_that_cannot_be_true_is_an_error() -> None:
    frame = walk(60, "min")
    frame.loc[59, "timestamps"] = pd.Timestamp("2199-01-01", tz="UTC")
    found = report(frame, Calendar(kind="24/7"))
    assert kinds(found)["gaps"].severity == "error"
    assert found.expected is None


def test_an_index_without_volume_is_told_so() -> None:
    found = report(walk().assign(volume=0.0, amount=0.0))
    assert list(kinds(found)) == ["no_volume"]
    assert found.grade == "good"
    assert list(kinds(report(walk().drop(columns=["volume", "amount"])))) == ["no_volume"]


def test_the_hour_that_the_clock_repeats_is_recognised() -> None:
    true = pd.date_range("2024-11-01", periods=96, freq="h", tz="America/New_York", unit="ns")
    lost = true.tz_localize(None).tz_localize("America/New_York", ambiguous=np.ones(96, bool))
    frame = walk(96).assign(timestamps=lost)
    finding = kinds(report(frame, Calendar(kind="24/7", timezone="America/New_York")))[
        "clock_repeat"
    ]
    assert (finding.count, finding.repair) == (1, "shift_repeated_hour")
    assert finding.places == (lost[50],)
    assert finding.parameters == {"timezone": "America/New_York"}
    local = frame.assign(timestamps=true.tz_localize(None).tz_localize("UTC"))
    finding = kinds(report(local))["clock_repeat"]  # local times that claim to be UTC
    assert "America/New_York" in finding.message
    assert finding.repair == "drop_repeats"


def test_the_hour_that_the_clock_skips_is_recognised() -> None:
    true = pd.date_range("2024-03-29", periods=96, freq="h", tz="Europe/Berlin", unit="ns")
    frame = walk(96).assign(timestamps=true.tz_localize(None).tz_localize("UTC"))
    finding = kinds(report(frame))["clock_hole"]
    assert "Europe/Berlin" in finding.message
    assert finding.places == (pd.Timestamp("2024-03-31 03:00", tz="UTC"),)


def test_a_series_and_its_frame_have_one_report() -> None:
    series = make_series(walk())
    assert isinstance(series, Series)
    assert report(series) == report(series.frame)


def test_a_frame_without_prices_is_refused() -> None:
    with pytest.raises(DataError, match="close"):
        report(walk().drop(columns="close"))
    with pytest.raises(DataError, match="open"):
        report(walk().astype({"open": object}).assign(open="high"))
    with pytest.raises(DataError, match="timestamps"):
        report(walk().assign(timestamps=1.0))


def test_one_bar_or_none_is_no_reason_to_fail() -> None:
    assert report(walk(1)).findings == ()
    assert report(walk(1).iloc[:0]).bars == 0


def test_a_report_is_json() -> None:
    frame = walk()
    frame.loc[3, "close"] = np.nan
    values = json.loads(json.dumps(report(frame.drop(index=[8])).to_dict()))
    assert values["grade"] == "poor"
    assert values["findings"][0]["kind"] == "values"
    assert values["findings"][0]["places"] == ["2024-01-01T03:00:00+00:00"]


def test_two_series_in_one_are_no_errors_of_scale() -> None:
    frame = walk(4000)
    frame.loc[::2, ["open", "high", "low", "close"]] *= 100
    found = report(frame)
    assert list(kinds(found)) == ["outliers"]
    assert kinds(found)["outliers"].count > 3900
    assert found.grade == "poor"


NUMBERS = st.sampled_from([0.0, 1.0, 5.0, 100.0, 1e4, 1e-300, 1e300, -2.0, np.nan, np.inf, -np.inf])


@settings(max_examples=60, deadline=None)
@given(data=st.data(), bars=st.integers(0, 40))
def test_any_frame_has_a_report(data: st.DataObject, bars: int) -> None:
    hours = data.draw(st.lists(st.integers(0, 50), min_size=bars, max_size=bars))
    values = data.draw(
        st.lists(st.lists(NUMBERS, min_size=6, max_size=6), min_size=bars, max_size=bars)
    )
    frame = pd.DataFrame(np.array(values, dtype=float).reshape(bars, 6), columns=list(CHANNELS))
    stamps = pd.Timestamp("2024-03-30", tz="UTC") + pd.to_timedelta(hours, unit="h")
    frame.insert(0, "timestamps", pd.DatetimeIndex(stamps, tz="UTC"))
    found = report(frame)
    assert found.grade in ("good", "usable", "poor")
    assert json.dumps(found.to_dict())
