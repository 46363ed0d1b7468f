"""Curves as they are looked at: axes, smoothing, clipping, thinning, overlays."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ui import charts_compare, charts_training, run_view
from app.ui.charts_compare import SplitBar
from app.ui.curves import (
    Clipping,
    View,
    axis_values,
    clip_limits,
    downsample,
    smoothed,
    trained_minutes,
)
from app.ui.data_form import split_bar
from kronos_core.data.windows import split_windows

NUMBERS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=80)


def history(count: int = 40, **columns: object) -> pd.DataFrame:
    """A run of one row a second; every tenth row is an evaluation as well."""
    frame = charts_training.history([]).reindex(range(count))
    frame["stage"], frame["split"] = "predictor", "train"
    frame["step"] = np.arange(1, count + 1)
    frame["epoch"] = frame["step"] / 10
    frame["recorded_at"] = pd.date_range("2024-01-01", periods=count, freq="s", tz="UTC")
    for name in ("s1", "s2", "total"):
        frame[name] = 3 - np.log(frame["step"]) / 10
    frame = frame.assign(**columns)
    evaluation = frame.iloc[9::10].assign(split="validation", s2_own=3.5)
    return pd.concat([frame, evaluation], ignore_index=True)


@given(NUMBERS, st.integers(0, 200))
def test_smoothing_keeps_ends_and_stays_within_the_values(values, width):
    raw = np.array(values)
    calm = smoothed(raw, width)
    room = 1e-6 * max(1.0, np.abs(raw).max())
    assert calm[[0, -1]] == pytest.approx(raw[[0, -1]], abs=room)
    assert calm.min() >= raw.min() - room
    assert calm.max() <= raw.max() + room


def test_smoothing_leaves_a_straight_line_and_gaps_alone():
    line = np.linspace(3, 1, 50)
    assert smoothed(line, 9) == pytest.approx(line)
    gappy = np.where(np.arange(50) % 7 == 3, np.nan, line)
    assert (np.isnan(smoothed(gappy, 9)) == np.isnan(gappy)).all()
    noisy = line + np.random.default_rng(0).normal(0, 0.1, 50)
    assert np.diff(smoothed(noisy, 15)).std() < np.diff(noisy).std() / 3


@given(NUMBERS)
def test_clipping_hides_only_what_it_says(values):
    raw = np.array(values)
    clipping = Clipping()
    limits = clipping.range_of("s1", raw, log=False)
    if limits is None:
        assert clipping.hidden == 0
        assert "nothing is cut off" in clipping.sentence()
    else:
        outside = (raw < limits[0]) | (raw > limits[1])
        assert clipping.hidden == outside.sum() > 0
        assert f"{clipping.hidden:,} of {len(raw):,} values" in clipping.sentence()


def test_a_spike_is_clipped_and_named():
    values = np.append(np.random.default_rng(0).normal(3, 0.1, 500), 250.0)
    low, high = clip_limits(values)
    assert high < 5
    assert low >= values.min()
    clipping = Clipping()
    figure = charts_training.losses(
        history(501, s1=values),
        best_step=None,
        entity="run",
        view=View(clip=True),
        clipping=clipping,
    )
    assert figure.layout.yaxis.range[1] == pytest.approx(high, abs=0.3)
    assert "to 250." in clipping.sentence()
    assert max(max(trace.y) for trace in figure.data if trace.name == "training") == 250.0


def test_logarithmic_axis_clips_in_powers_of_ten():
    limits = Clipping().range_of("s1", np.append(np.linspace(1, 2, 99), 1000.0), log=True)
    assert limits[0] == 0
    assert limits[1] < 1


def test_smoothing_draws_the_raw_curve_behind():
    figure = charts_training.losses(history(), best_step=None, entity="run", view=View(smooth=5))
    names = [trace.name for trace in figure.data]
    assert names.count("training") == names.count("training, as recorded") == 3
    assert names.index("training, as recorded") < names.index("training")


def test_axes_are_step_epoch_time_and_clock():
    frame = history(5)
    assert list(axis_values(frame, View())) == list(frame["step"])
    assert list(axis_values(frame, View(axis="epoch"))) == list(frame["epoch"])
    assert axis_values(frame, View(axis="relative")).iloc[-1] == pytest.approx(4 / 60)
    clock = axis_values(frame, View(axis="wall", timezone="Europe/Berlin"))
    assert str(clock.iloc[0]) == "2024-01-01 01:00:00"


def test_pauses_do_not_count_as_time_trained():
    moments = pd.Series(
        pd.to_datetime(["2024-01-01 10:00:00", "2024-01-01 10:00:30", "2024-01-03 09:00:00"])
    )
    assert list(trained_minutes(moments)) == [0, 0.5, 0.5]


def test_thinned_curves_keep_order_and_extremes_of_every_axis():
    steps, values = np.arange(50_000), np.random.default_rng(0).normal(size=50_000)
    values[::9] = np.nan
    kept_steps, kept = downsample(steps, values)
    assert (np.diff(kept_steps) > 0).all()
    assert (kept.min(), kept.max()) == (np.nanmin(values), np.nanmax(values))


def test_overlay_has_both_splits_of_every_run_in_one_colour_each():
    frames = {"a": history(), "b": history(30)}
    figure = charts_compare.overlay(frames, "total", view=View(), entity="x")
    by_run = {name: [item for item in figure.data if item.name == name] for name in frames}
    assert all(len(items) == 2 for items in by_run.values())
    colours = {name: {item.line.color for item in items} for name, items in by_run.items()}
    assert len(set.union(*colours.values())) == 2
    empty = charts_compare.overlay(
        {"a": charts_training.history([])}, "s1", view=View(), entity="x"
    )
    assert len(empty.data) == 0


def test_split_timeline_shows_the_gaps():
    class Row:
        name, bars, interval_seconds = "bars", 500, 86_400

    stamps = pd.Series(pd.date_range("2020-01-01", periods=500, tz="UTC"))
    split = split_windows(
        500, context=20, horizon=5, stride=1, validation_fraction=0.1, test_fraction=0.1
    )
    bar = split_bar(Row, split, stamps)
    assert [part for part, _, _ in bar.parts] == ["training", "gap", "validation", "gap", "test"]
    assert [stop - first for part, first, stop in bar.parts if part == "gap"] == [5, 5]
    figure = charts_compare.split_timeline([bar], entity="x")
    ends = [item.base[0] + item.x[0] for item in figure.data]
    starts = [item.base[0] for item in figure.data]
    assert starts[1:] == pytest.approx(ends[:-1])
    assert (starts[0], ends[-1]) == (0, pytest.approx(1))


def test_timeline_names_each_part_once():
    rows = [
        SplitBar(name=name, parts=[("training", 0, 9)], bars=10, labels={0: "a", 8: "b"})
        for name in ("x", "y")
    ]
    figure = charts_compare.split_timeline(rows, entity="x")
    assert [item.showlegend for item in figure.data] == [True, False]


def test_runs_of_one_name_are_told_apart():
    class Run:
        def __init__(self, name: str, identifier: str) -> None:
            self.name, self.id = name, identifier

    names = run_view.unique_names([Run("a", "1234567"), Run("a", "7654321"), Run("b", "0")])
    assert names == ["a (1234)", "a (7654)", "b"]


def test_tokenizer_losses_have_their_own_panels():
    frame = history(20, coarse=0.3, fine=0.1, codebook_use=0.5)
    figure = charts_training.losses(
        frame, best_step=None, entity="x", panels=charts_training.TOKENIZER_LOSSES
    )
    assert {trace.name for trace in figure.data} >= {"training", "validation"}
    more = charts_training.small_curves(frame, charts_training.TOKENIZER_MORE, entity="x")
    assert len(more.data) == 2  # the codebook's use, of both splits
