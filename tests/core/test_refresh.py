"""New bars joined to known ones: what is kept, what is said, and that no scale is mixed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kronos_core.data.bars import CHANNELS, PRICES, DataError, bars_hash
from kronos_core.data.refresh import TOLERANCE, Change, merge_new
from tests.conftest import random_bars

MakeBars = Callable[..., pd.DataFrame]
Bars = pd.DataFrame


def values(frame: Bars) -> np.ndarray:
    return frame[list(CHANNELS)].to_numpy()


def scaled(frame: Bars, factor: float, volume: float = 1.0) -> Bars:
    frame = frame.copy()
    frame[list(PRICES)] *= factor
    frame["volume"] *= volume
    frame["amount"] *= factor * volume
    return frame


def joined(*frames: Bars) -> Bars:
    return pd.concat(frames, ignore_index=True)


def test_only_what_is_new_is_appended(make_bars: MakeBars) -> None:
    whole = make_bars(50)
    refresh = merge_new(whole.iloc[:40], whole.iloc[30:])
    assert (refresh.added, refresh.filled, refresh.overlap) == (10, 0, 10)
    assert (list(refresh.changed), refresh.restated, refresh.missing) == ([], (), ())
    assert bars_hash(refresh.frame) == bars_hash(whole)
    assert refresh.findings == ("10 new bars; the last is 2024-02-19 00:00 UTC.",)


def test_nothing_new_changes_nothing(make_bars: MakeBars) -> None:
    bars = make_bars(30)
    noisy = bars.copy()
    noisy[list(CHANNELS)] *= 1 + TOLERANCE / 10
    refresh = merge_new(bars, noisy.iloc[10:])
    assert refresh.added == 0
    assert bars_hash(refresh.frame) == bars_hash(bars)
    assert refresh.findings[0].startswith("Nothing new: 2024-01-30")


def test_restated_values_are_named(make_bars: MakeBars) -> None:
    bars = make_bars(20)
    new = bars.iloc[10:].copy()
    new.loc[15, "close"] += 1.0
    new.loc[19, "volume"] = 7.0
    refresh = merge_new(bars, new)
    stamps = bars["timestamps"]
    close, volume = bars.loc[15, "close"], bars.loc[19, "volume"]
    assert list(refresh.changed) == [
        Change(stamps[15], "close", close, close + 1.0),
        Change(stamps[19], "volume", volume, 7.0),
    ]
    assert list(refresh.changed[1:]) == [refresh.changed[-1]]
    assert refresh.frame.loc[15, "close"] == close + 1.0
    assert refresh.restated == ()
    assert refresh.rescaled == 0
    assert refresh.findings[1].startswith("2 values of 2 past bars changed; the first is the close")


def test_a_dividend_restates_all_earlier_bars(make_bars: MakeBars) -> None:
    whole = make_bars(60)
    old, new = whole.iloc[:50], joined(scaled(whole.iloc[30:52], 0.995), whole.iloc[52:])
    refresh = merge_new(old, new)
    (restated,) = refresh.restated
    assert restated.factor == pytest.approx(0.995)
    assert restated.volume_factor == 1.0
    assert (restated.bars, refresh.rescaled, refresh.overlap) == (20, 30, 20)
    expected = joined(scaled(whole.iloc[:52], 0.995), whole.iloc[52:])
    np.testing.assert_allclose(values(refresh.frame), values(expected), rtol=1e-12)
    assert any("factor 0.995 (as a dividend does)" in text for text in refresh.findings)
    assert any("30 bars that the source did not send again" in text for text in refresh.findings)


def test_a_split_restates_the_volume_too(make_bars: MakeBars) -> None:
    whole = make_bars(40)
    quiet = whole.assign(volume=whole["volume"].where(whole.index != 33, 0.0))
    quiet["amount"] = quiet["volume"] * quiet["close"]
    split = scaled(quiet, 0.25, 4.0)
    refresh = merge_new(quiet, split.iloc[30:])
    (restated,) = refresh.restated
    assert (restated.factor, restated.volume_factor) == pytest.approx((0.25, 4.0))
    np.testing.assert_allclose(values(refresh.frame), values(split), rtol=1e-12)
    assert any("as a split does" in text for text in refresh.findings)


def test_two_dividends_in_the_compared_bars(make_bars: MakeBars) -> None:
    whole = make_bars(60)
    new = joined(
        scaled(whole.iloc[20:30], 0.98 * 0.99), scaled(whole.iloc[30:45], 0.98), whole.iloc[45:]
    )
    refresh = merge_new(whole, new)
    assert [part.bars for part in refresh.restated] == [10, 15]
    assert [part.factor for part in refresh.restated] == pytest.approx([0.9702, 0.98])
    assert refresh.rescaled == 20
    np.testing.assert_allclose(
        values(refresh.frame)[:20], values(scaled(whole.iloc[:20], 0.9702)), rtol=1e-12
    )


def test_a_corrected_first_bar_is_no_new_scale(make_bars: MakeBars) -> None:
    bars = make_bars(30)
    new = joined(scaled(bars.iloc[10:11], 0.01), bars.iloc[11:])
    refresh = merge_new(bars, new)
    assert refresh.restated == ()
    assert refresh.rescaled == 0
    assert len(refresh.changed) == 5  # four prices and the amount


def test_bars_that_the_source_lost_are_kept_on_the_new_scale(make_bars: MakeBars) -> None:
    bars = make_bars(30)
    new = scaled(bars, 0.5, 2.0).drop(index=[12, 13])
    refresh = merge_new(bars, new)
    assert refresh.missing == tuple(bars["timestamps"][[12, 13]])
    np.testing.assert_allclose(values(refresh.frame), values(scaled(bars, 0.5, 2.0)), rtol=1e-12)
    assert "The source no longer has 2 known bars, first 2024-01-13 00:00. Kept." in (
        refresh.findings
    )


def test_gaps_are_filled_and_older_bars_left_aside(make_bars: MakeBars) -> None:
    bars = make_bars(30)
    old = bars.iloc[5:25].drop(index=[10, 11])
    refresh = merge_new(old, bars)
    assert (refresh.added, refresh.filled) == (7, 2)
    assert bars_hash(refresh.frame) == bars_hash(bars.iloc[5:])
    assert refresh.findings[0] == "7 new bars, 2 of them in gaps; the last is 2024-01-30 00:00 UTC."


def test_without_an_overlap_it_says_so(make_bars: MakeBars) -> None:
    bars = make_bars(30)
    refresh = merge_new(bars.iloc[:10], bars.iloc[15:])
    assert (refresh.added, refresh.overlap) == (15, 0)
    assert "cannot be seen" in refresh.findings[1]


def test_months_of_different_length_fit(make_bars: MakeBars) -> None:
    bars = make_bars(40, step="MS")
    assert merge_new(bars.iloc[:30], bars.iloc[25:38]).added == 8


def test_frames_that_do_not_fit(make_bars: MakeBars) -> None:
    with pytest.raises(DataError, match="Fetch the same interval"):
        merge_new(make_bars(20), make_bars(20, step="h"))
    naive = make_bars(20)
    naive["timestamps"] = naive["timestamps"].dt.tz_localize(None)
    with pytest.raises(DataError, match="no time zone"):
        merge_new(naive, make_bars(20))


def test_zones_and_resolutions_do_not_matter(make_bars: MakeBars) -> None:
    bars = make_bars(20)
    local = bars.copy()
    local["timestamps"] = local["timestamps"].dt.tz_convert("Asia/Tokyo").dt.as_unit("s")
    refresh = merge_new(bars, local)
    assert (refresh.overlap, refresh.added) == (20, 0)
    assert str(refresh.frame["timestamps"].dt.tz) == "UTC"


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(4, 60),
    known=st.floats(0.1, 1.0),
    resent=st.floats(0.0, 1.0),
    edits=st.lists(st.tuples(st.integers(0, 59), st.integers(0, 5)), max_size=6),
    lost=st.sets(st.integers(0, 59), max_size=5),
)
def test_every_value_is_the_sources_or_the_known_one(
    rows: int,
    known: float,
    resent: float,
    edits: list[tuple[int, int]],
    lost: set[int],
) -> None:
    whole = random_bars(rows)
    old = whole.iloc[: max(2, int(rows * known))]
    new = whole.iloc[int((rows - 2) * resent) :].copy()
    for row, column in edits:
        if row in new.index:
            new.loc[row, CHANNELS[column]] *= 1.5
    new = new.drop(index=[row for row in lost if row in new.index][: len(new) - 1])
    refresh = merge_new(old, new)
    frame = refresh.frame.set_index("timestamps")
    sent, had = new.set_index("timestamps"), old.set_index("timestamps")
    assert frame.index.equals(had.index.union(sent[sent.index >= had.index[0]].index))
    shared = sent.index.intersection(frame.index)
    np.testing.assert_allclose(frame.loc[shared], sent.loc[shared], rtol=TOLERANCE)
    both = had.index.intersection(sent.index)
    differing = {
        (stamp, name)
        for stamp in both
        for name in CHANNELS
        if had.loc[stamp, name] != sent.loc[stamp, name]
    }
    assert {(change.timestamp, change.channel) for change in refresh.changed} == differing
    assert refresh.added == len(frame) - len(had)
    again = merge_new(refresh.frame, new)
    assert (again.added, len(again.changed)) == (0, 0)
    assert bars_hash(again.frame) == bars_hash(refresh.frame)


@settings(max_examples=40, deadline=None)
@given(
    factor=st.floats(0.05, 20.0).filter(lambda value: abs(value - 1) > 1e-3),
    volume=st.sampled_from([1.0, 2.0, 0.1]),
    start=st.integers(0, 50),
    known=st.integers(56, 60),
)
def test_a_constant_factor_is_always_found_and_applied(
    factor: float, volume: float, start: int, known: int
) -> None:
    whole = random_bars(60)
    restated = scaled(whole, factor, volume)
    refresh = merge_new(whole.iloc[:known], restated.iloc[start:])
    (found,) = refresh.restated
    assert found.factor == pytest.approx(factor)
    assert found.volume_factor == pytest.approx(volume)
    np.testing.assert_allclose(values(refresh.frame), values(restated), rtol=1e-9)
