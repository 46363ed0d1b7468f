"""Repairs: they mend what they name, leave valid bars alone, and can be undone."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kronos_core.data.bars import CHANNELS, as_bars, bars_hash
from kronos_core.data.calendars import exchange
from kronos_core.data.quality import report
from kronos_core.data.repair import REPAIRS, RepairStep, apply, preview
from kronos_core.data.samples import load_sample
from tests.core.test_quality import DEFECTS, kinds, walk


def steps(*names: str) -> list[RepairStep]:
    return [RepairStep(name=name) for name in names]


@pytest.mark.parametrize("name", [name for name in DEFECTS if DEFECTS[name][4]])
def test_the_offered_repair_removes_the_finding(name: str) -> None:
    change, kind, _, _, repair = DEFECTS[name]
    assert repair is not None
    frame = change(walk())
    mended = apply(frame, steps(repair))
    assert kind not in kinds(report(mended))
    assert len(mended) >= len(frame) - 20


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("hundredfold bar", slice(30, 30)),
        ("hundredth stretch", slice(30, 49)),
        ("thousandfold tail", slice(390, None)),
    ],
)
def test_rescaled_bars_are_the_true_ones(name: str, rows: slice) -> None:
    mended = apply(DEFECTS[name][0](walk()), steps("rescale"))
    assert np.allclose(mended.iloc[:, 1:], walk().iloc[:, 1:], rtol=1e-12)
    others = walk().drop(index=walk().loc[rows].index).index
    assert mended.loc[others].equals(walk().loc[others])


def test_only_the_wrong_prices_of_a_bar_are_rescaled() -> None:
    frame = walk()
    frame.loc[30, ["high", "close"]] *= 100
    assert np.allclose(apply(frame, steps("rescale")).iloc[:, 1:], walk().iloc[:, 1:], rtol=1e-12)


def test_splits_are_adjusted_backwards() -> None:
    frame = walk()
    frame.loc[200:, list(CHANNELS[:4])] *= 0.25
    frame.loc[200:, "volume"] *= 4
    frame.loc[300:, list(CHANNELS[:4])] *= 0.5
    frame.loc[300:, "volume"] *= 2
    mended = apply(frame, steps("adjust_splits"))
    assert np.allclose(mended[list(CHANNELS[:4])], walk()[list(CHANNELS[:4])] / 8)
    assert np.allclose(mended["volume"], walk()["volume"] * 8)
    assert mended["amount"].equals(walk()["amount"])


def test_a_messy_frame_becomes_bars() -> None:
    frame = walk()
    frame.loc[7, "close"] = np.nan
    frame.loc[8, ["volume", "amount"]] = np.inf, np.nan
    frame.loc[9, "high"] = 1.0
    messy = pd.concat([frame, frame.iloc[[20]]]).sample(frac=1, random_state=1)
    mended = apply(
        messy,
        steps("sort", "drop_repeats", "drop_unusable", "clean_volume", "fix_bounds", "fill_gaps"),
    )
    bars = as_bars(mended)
    assert len(bars) == 400
    assert report(bars).findings == ()
    kept = [row for row in range(400) if row not in (7, 8, 9)]
    assert bars.loc[kept].equals(walk().loc[kept])
    assert list(bars.loc[7, list(CHANNELS)]) == [frame.loc[6, "close"]] * 4 + [0.0, 0.0]
    assert list(bars.loc[8, ["volume", "amount"]]) == [0.0, 0.0]


def test_only_short_gaps_are_filled() -> None:
    frame = walk().drop(index=[20, 21, *range(50, 60)]).reset_index(drop=True)
    assert len(apply(frame, steps("fill_gaps"))) == 390
    step = RepairStep(name="fill_gaps", parameters={"longest": 10})
    assert apply(frame, [step])["timestamps"].equals(walk()["timestamps"])
    index = load_sample("sp500").frame
    step = RepairStep(name="fill_gaps", parameters={"calendar": exchange("XNYS").to_dict()})
    assert len(apply(index.drop(index=[5]), [step])) == len(index)


def test_the_repeated_hour_is_moved() -> None:
    true = pd.date_range("2024-11-01", periods=96, freq="h", tz="America/New_York", unit="ns")
    lost = true.tz_localize(None).tz_localize("America/New_York", ambiguous=np.ones(96, bool))
    step = RepairStep(name="shift_repeated_hour", parameters={"timezone": "America/New_York"})
    mended = apply(walk(96).assign(timestamps=lost), [step])
    assert pd.DatetimeIndex(mended["timestamps"]).equals(true)
    with pytest.raises(ValueError, match="no zone"):
        apply(walk(96).assign(timestamps=lost.tz_localize(None)), [step])


def test_a_preview_says_what_would_change() -> None:
    frame = walk().drop(index=[50]).reset_index(drop=True)
    frame.loc[9, "high"] = 1.0
    frame.loc[7, "close"] = np.nan
    first, second, third = preview(frame, steps("fix_bounds", "drop_unusable", "fill_gaps"))
    assert (first.changed, first.dropped, first.added) == (1, 0, 0)
    assert list(first.before.index) == list(first.after.index) == [9]
    assert first.before.loc[9, "high"] == 1.0
    assert first.after.loc[9, "high"] == frame.loc[9, ["open", "low", "close"]].max()
    assert (second.dropped, second.count, len(second.after)) == (1, 1, 0)
    assert (third.added, len(third.before), len(third.after)) == (2, 0, 2)
    (moved,) = preview(walk().iloc[[1, 0, 2]], steps("sort"))
    assert (moved.moved, moved.changed) == (1, 0)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    bars=st.integers(1, 300),
    freq=st.sampled_from(["min", "h", "D"]),
    name=st.sampled_from(sorted(REPAIRS)),
)
def test_valid_bars_are_never_changed(seed: int, bars: int, freq: str, name: str) -> None:
    frame = walk(bars, freq, seed=seed)
    if bars > 1 or name != "fill_gaps":
        assert apply(frame, steps(name)).equals(frame)
    if bars > 60:
        broken = frame.copy()
        broken.loc[20, "close"] = np.nan
        broken.loc[30, "high"] = broken.loc[30, "low"] / 2
        broken.loc[40, "volume"] = -1.0
        mended = apply(broken, steps(name))
        joined = mended.set_index("timestamps")
        for row in set(range(bars)) - {20, 30, 40}:
            stamp = frame["timestamps"][row]
            assert joined.loc[stamp].equals(frame.loc[row, list(CHANNELS)].rename(stamp))


def raw(frame: pd.DataFrame) -> bytes:
    stamps = pd.DatetimeIndex(frame["timestamps"]).asi8
    return stamps.tobytes() + frame[list(CHANNELS)].to_numpy().tobytes()


@settings(max_examples=25, deadline=None)
@given(
    chosen=st.lists(st.sampled_from([name for name in REPAIRS if name != "fill_gaps"]), max_size=5),
    undone=st.integers(0, 4),
)
def test_undo_gives_the_bytes_back(chosen: list[str], undone: int) -> None:
    original = DEFECTS["hundredth stretch"][0](walk())
    original.loc[9, "high"] = 1.0
    original = pd.concat([original, original.iloc[[100]]])[::-1]
    kept = original.copy(deep=True)
    done = steps(*chosen)
    once = apply(original, done)
    assert apply(
        original, [RepairStep.from_dict(json.loads(json.dumps(step.to_dict()))) for step in done]
    ).equals(once)
    assert original.equals(kept)
    back = apply(original, [])
    assert back.equals(kept)
    assert raw(back) == raw(kept)
    less = done[:undone] + done[undone + 1 :]
    assert apply(original, less).equals(apply(kept, less))


def test_a_restored_dataset_has_the_hash_of_the_original() -> None:
    frame = load_sample("nasdaq").frame
    broken = DEFECTS["spike"][0](frame.copy())
    assert bars_hash(apply(broken, steps("flatten_spikes"))) != bars_hash(broken)
    assert bars_hash(apply(broken, [])) == bars_hash(broken)


def test_unknown_repairs_and_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="no repair 'polish'"):
        RepairStep(name="polish")
    with pytest.raises(ValueError, match="no parameter much"):
        RepairStep(name="sort", parameters={"much": 1})
    with pytest.raises(ValueError, match="first or last"):
        apply(walk(), [RepairStep(name="drop_repeats", parameters={"keep": "both"})])
    with pytest.raises(ValueError, match="at least 1 bar"):
        apply(walk(), [RepairStep(name="fill_gaps", parameters={"longest": 0})])
    with pytest.raises(ValueError, match="sorted bars"):
        apply(walk()[::-1], steps("fill_gaps"))


def test_every_repair_explains_itself() -> None:
    for name, repair in REPAIRS.items():
        assert repair.name == name
        assert repair.title
        assert repair.sentence.endswith(".")
        json.dumps(dict(repair.parameters))
