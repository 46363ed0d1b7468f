"""Figures: what is drawn, where it stands, what survives thinning out."""

import itertools
from typing import get_args

import numpy as np
import pandas as pd
import pytest

from app.ui import (
    charts,
    charts_paths,
    charts_training,
    distribution,
    export,
    forecast_view,
    run_view,
    teaching,
)
from app.ui import format as fmt
from app.ui.chart_style import (
    PALETTES,
    bar_moments,
    bar_times,
    ordinal_axis,
    palette,
    time_labels,
)
from kronos_core.forecast.forecast import Forecast
from kronos_core.training.teacher_forcing import Schedule, TeacherForcing, Unit

COLOURS = PALETTES["colour-blind safe"]


def bars(count: int, *, freq: str = "B", seed: int = 0, volume: float = 1000.0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    close = 100 * np.exp(np.cumsum(rng.normal(0, 0.01, count)))
    opened = close * np.exp(rng.normal(0, 0.002, count))
    return pd.DataFrame(
        {
            "timestamps": pd.date_range("2024-01-01", periods=count, freq=freq, tz="UTC"),
            "open": opened,
            "high": np.maximum(opened, close) * 1.004,
            "low": np.minimum(opened, close) * 0.996,
            "close": close,
            "volume": volume * rng.random(count),
            "amount": volume * rng.random(count) * close,
        }
    )


def forecast(paths: int = 80, horizon: int = 12, after: pd.DataFrame | None = None) -> Forecast:
    known = bars(50) if after is None else after
    rng = np.random.default_rng(1)
    origin = known["timestamps"].iloc[-1]
    last = float(known["close"].iloc[-1])
    steps = np.exp(np.cumsum(rng.normal(0, 0.01, (paths, horizon, 6)), axis=1))
    return Forecast(
        paths=last * steps,
        timestamps=pd.date_range(origin, periods=horizon + 1, freq="B")[1:],
        origin=origin,
        last_close=last,
        context=len(known),
    )


def trace(figure, name):
    return next(item for item in figure.data if item.name == name)


def test_merged_bars_keep_every_extreme():
    frame = bars(10_000)
    merged = charts.merge_bars(frame, 1500)
    assert len(merged) <= 1500
    assert merged["high"].max() == frame["high"].max()
    assert merged["low"].min() == frame["low"].min()
    assert merged["open"].iloc[0] == frame["open"].iloc[0]
    assert merged["close"].iloc[-1] == frame["close"].iloc[-1]
    assert merged["volume"].sum() == pytest.approx(frame["volume"].sum())


def test_few_bars_are_drawn_as_they_are():
    frame = bars(300)
    assert charts.merge_bars(frame) is frame


@pytest.mark.parametrize("count", [11, 12, 13])
def test_merged_bars_are_what_grouping_gives(count):
    frame = bars(count)
    rules = {"timestamps": "first", "open": "first", "high": "max", "low": "min", "close": "last"}
    groups = frame.groupby(np.arange(count) // 3)
    expected = groups.agg({**rules, "volume": "sum", "amount": "sum"})
    pd.testing.assert_frame_equal(charts.merge_bars(frame, 5), expected)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/Sao_Paulo", "Asia/Kolkata"])
@pytest.mark.parametrize(("freq", "seconds"), [("D", 86_400), ("7h", 25_200), ("5s", 5)])
def test_times_at_once_are_those_one_by_one(freq, seconds, zone):
    stamps = pd.date_range("2024-10-20 03:10", periods=100, freq=freq, tz=zone)
    assert bar_times(stamps, seconds) == [fmt.bar_time(stamp, seconds) for stamp in stamps]
    assert bar_moments(stamps, seconds) == [fmt.bar_moment(stamp, seconds) for stamp in stamps]


def test_axis_is_ordinal_in_order_and_without_gaps():
    frame = bars(300)  # business days: a time axis would leave weekends empty
    figure = charts.candles(frame, colours=COLOURS, entity="x")
    labels = list(figure.layout.xaxis.categoryarray)
    assert figure.layout.xaxis.type == "category"
    assert len(labels) == len(set(labels)) == 300
    assert labels == sorted(labels)
    assert list(trace(figure, "bars").x) == labels


def test_hour_repeated_by_a_clock_change_stays_two_bars():
    stamps = pd.date_range("2024-10-26 22:00", periods=8, freq="h", tz="UTC")
    labels = time_labels(stamps.tz_convert("Europe/Berlin"), 3600)
    assert len(set(labels)) == 8


def test_hover_names_time_zone_and_values():
    text = trace(charts.candles(bars(5), colours=COLOURS, entity="x"), "bars").hovertext[0]
    assert "2024-01-01 UTC" in text
    assert "close" in text


def test_no_volume_no_empty_panel():
    with_volume = charts.candles(bars(20), colours=COLOURS, entity="x")
    without = charts.candles(bars(20, volume=0.0), colours=COLOURS, entity="x")
    assert [item.name for item in with_volume.data] == ["bars", "volume"]
    assert [item.name for item in without.data] == ["bars"]


def test_background_is_clear_and_zoom_belongs_to_the_entity():
    figure = charts.candles(bars(20), colours=COLOURS, entity="dataset-1")
    assert figure.layout.paper_bgcolor == figure.layout.plot_bgcolor == "rgba(0,0,0,0)"
    assert figure.layout.uirevision == "dataset-1"


@pytest.mark.parametrize("channel", ["open", "close", "volume"])
def test_bands_are_nested_around_the_median(channel):
    context = bars(50)
    figure = charts.fan(
        context, forecast(after=context), channel=channel, colours=COLOURS, entity="x"
    )
    edges = [np.array(trace(figure, f"{share} % low").y) for share in (95, 80, 50)]
    edges.append(np.array(trace(figure, "median").y))
    edges += [np.array(trace(figure, f"{share} %").y) for share in (50, 80, 95)]
    assert all((lower <= upper).all() for lower, upper in itertools.pairwise(edges))


def test_fan_starts_at_the_last_known_value():
    context = bars(50)
    figure = charts.fan(
        context, forecast(after=context), channel="close", colours=COLOURS, entity="x"
    )
    assert trace(figure, "median").y[0] == context["close"].iloc[-1]
    assert trace(figure, "median").x[0] == trace(figure, "bars").x[-1]


def test_only_the_target_lies_where_it_can_be_dragged():
    context = bars(50)
    figure = charts.fan(
        context, forecast(after=context), channel="close", colours=COLOURS, entity="x"
    )
    charts_paths.mark(figure, bar=3, target=101.5, decimals=2, past=len(context))
    above = [shape for shape in figure.layout.shapes if shape.layer != "below"]
    assert [(shape.y0, shape.y1) for shape in above] == [(101.5, 101.5)]


@pytest.mark.parametrize(("paths", "drawn"), [(7, 7), (30, 30), (500, 30)])
def test_at_most_thirty_paths_are_drawn_singly(paths, drawn):
    context = bars(50)
    figure = charts.fan(
        context, forecast(paths, after=context), channel="close", colours=COLOURS, entity="x"
    )
    assert list(trace(figure, "single paths").y).count(None) == drawn


def test_actual_bars_lie_on_the_forecast_bars():
    every = bars(62)
    context, actual = every.head(50), every.tail(12).reset_index(drop=True)
    figure = charts.fan(
        context,
        forecast(after=context),
        channel="close",
        colours=COLOURS,
        entity="x",
        actual=actual.head(5),
    )
    assert list(trace(figure, "actual bars").x) == list(trace(figure, "median").x[1:6])
    assert figure.layout.yaxis2.overlaying == figure.layout.yaxis2.matches == "y"


def test_svg_traces_only():
    context = bars(50)
    figure = charts.fan(
        context, forecast(after=context), channel="close", colours=COLOURS, entity="x"
    )
    assert {item.type for item in figure.data} <= {"scatter", "candlestick", "bar"}


def test_unknown_colours_are_refused():
    with pytest.raises(ValueError, match="colour-blind safe"):
        palette("rainbow")


def test_ordinal_axis_covers_all_bars():
    low, high = ordinal_axis(["a", "b", "c"])["range"]
    assert low < 0
    assert high > 2


def metric_rows(count: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({name: np.full(count, np.nan) for name in charts_training.COLUMNS})
    frame["split"] = "train"
    frame["step"] = np.arange(1, count + 1)
    frame["s1"] = 4 + rng.normal(0, 0.1, count)
    frame["s2"] = 3 + rng.normal(0, 0.1, count)
    frame["total"] = (frame["s1"] + frame["s2"]) / 2
    frame["epsilon"] = np.linspace(1, 0, count)
    frame["learning_rate"] = 1e-4
    evaluation = frame.iloc[:: max(count // 5, 1)].assign(split="validation", s2_own=3.5)
    return pd.concat([frame, evaluation], ignore_index=True)


def test_downsampling_keeps_minimum_maximum_first_and_last():
    steps = np.arange(1, 200_001)
    values = np.random.default_rng(0).normal(size=200_000)
    values[123_456], values[77_777] = 99.0, -99.0
    kept_steps, kept = charts_training.downsample(steps, values)
    assert len(kept) <= charts_training.DISPLAY_POINTS + 4
    assert (kept.max(), kept.min()) == (99.0, -99.0)
    assert (kept_steps[0], kept_steps[-1]) == (1, 200_000)
    assert kept[-1] == values[-1]
    assert (np.diff(kept_steps) > 0).all()


def test_losses_show_both_splits_in_three_panels_and_the_best_step():
    frame = metric_rows(50)
    figure = charts_training.losses(frame, best_step=11, entity="run")
    names = [item.name for item in figure.data]
    assert names.count("training") == names.count("validation") == 3
    assert names.count("best step 11") == 3
    assert "validation, own draw" in names
    assert figure.layout.uirevision.startswith("run")


def test_losses_of_a_run_that_has_just_begun():
    figure = charts_training.losses(charts_training.history([]), best_step=None, entity="run")
    assert all(len(item.x) == 0 for item in figure.data)


def test_readings_compare_with_the_evaluation_before():
    frame = run_view.validation_rows(metric_rows(50))
    reading = run_view.reading(frame, "s1")
    assert reading.value == frame["s1"].iloc[-1]
    assert reading.change == pytest.approx(frame["s1"].iloc[-1] - frame["s1"].iloc[-2])
    assert run_view.reading(frame.head(0), "s1") == run_view.Reading(None, None)


def test_table_has_a_row_for_each_bar_and_rising_columns():
    table = forecast_view.table(forecast(), "close", 86_400)
    assert list(table["bar"]) == list(range(1, 13))
    levels = table[list(table.columns[2:])].to_numpy()
    assert (np.diff(levels, axis=1) >= 0).all()


def test_outlook_is_that_of_the_last_bar():
    drawn = forecast()
    outlook = forecast_view.outlook(drawn)
    last = drawn.channel("close")[:, -1]
    assert outlook.chance_up == (last > drawn.last_close).mean()
    assert outlook.median_move == pytest.approx(np.median(last) / drawn.last_close - 1)
    assert outlook.low <= outlook.high


@pytest.mark.parametrize(
    ("mode", "shape", "text"),
    [
        (teaching.OWN, "linear", "own"),
        (teaching.TRUE, "linear", "true"),
        (teaching.TRUE_PAST, "linear", "true"),
        (teaching.RATIO, "linear", "0.3@sequence"),
        (teaching.MIXED_PAST, "linear", "0.3@sequence"),
        (teaching.DECAY, "linear", "linear:0.3:0.1@sequence"),
        (teaching.DECAYING_PAST, "exponential", "exponential:0.3:0.1@sequence"),
        (teaching.DECAY, "inverse-sigmoid", "inverse-sigmoid:0.3:0.1@sequence"),
    ],
)
def test_modes_become_settings_and_settings_modes(mode, shape, text):
    chosen = teaching.forcing(mode, 0.3, 0.1, "sequence", shape)
    assert chosen == TeacherForcing.parse(text)
    back = teaching.history_mode_of if mode in teaching.HISTORY_MODES else teaching.mode_of
    assert back(chosen) == mode


def test_every_schedule_and_unit_has_its_sentence():
    assert set(teaching.SHAPE_WORDS) == set(get_args(Schedule))
    assert set(teaching.UNIT_WORDS) == set(teaching.UNITS) == set(get_args(Unit))


def test_epsilon_preview_has_both_ends():
    steps, values = teaching.epsilon_over_steps(
        TeacherForcing(schedule="linear", start=1.0, end=0.2), 5000
    )
    assert (steps[0], steps[-1]) == (1, 5000)
    assert (values[0], values[-1]) == (1.0, pytest.approx(0.2))


# ---------------------------------------------------------------- one bar, one path, one file


def test_a_target_is_a_number_or_nothing():
    assert distribution.parse_target(" 1,234.5 ") == 1234.5
    assert distribution.parse_target("") is None
    for text in ("dear", "inf", "nan", "12..3"):
        with pytest.raises(distribution.TargetError, match=r"Type a price such as 1234\.5"):
            distribution.parse_target(text)


def test_chances_of_a_target_at_a_bar():
    drawn = forecast()
    found = distribution.chances(drawn, drawn.last_close * 1.01, 3)
    assert 0 < found.above <= found.touched <= 1
    assert distribution.chances(drawn, drawn.last_close, 0).touched == 1


def test_single_paths_share_one_range():
    known = bars(50)
    drawn = forecast(after=known)
    figures = [
        charts_paths.single_path(known, drawn, path, colours=COLOURS, decimals=2, entity="x")
        for path in (0, 7)
    ]
    assert len({tuple(figure.layout.yaxis.range) for figure in figures}) == 1
    low, high = figures[0].layout.yaxis.range
    assert low < known["low"].min()
    assert high > known["high"].max()
    assert list(trace(figures[0], "path").close) == list(drawn.candles[0, :, 3])


def test_a_histogram_counts_every_path_once():
    drawn = forecast()
    figure = charts_paths.histogram(drawn, 4, target=110.0, decimals=2, entity="x")
    assert sum(trace(figure, "paths").y) == pytest.approx(1)
    assert [note.text for note in figure.layout.annotations] == ["last close", "median", "target"]
    lines = charts_paths.target_chances(drawn, 110.0, 4, seconds=86_400, entity="x")
    above, touched = (np.array(trace(lines, name).y) for name in ("closes above", "has touched"))
    assert (above <= touched).all()


def test_a_page_of_a_figure_needs_nothing_else():
    figure = charts.sparkline([1, 2, 3], entity="x")
    text = export.html_page(figure, "A & B <fan>", "notes").decode()
    assert "<title>A &amp; B &lt;fan&gt;</title>" in text
    assert 'script src="' not in text


def test_a_picture_without_a_browser_says_what_it_needs(monkeypatch):
    monkeypatch.setenv("BROWSER_PATH", "/nowhere/chrome")
    with pytest.raises(RuntimeError, match="BROWSER_PATH"):
        export.png(charts.sparkline([1, 2], entity="x"), "x")
