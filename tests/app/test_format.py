"""Numbers and times as people read them."""

from datetime import UTC, datetime, timedelta

import pytest

from app.ui import format as fmt


@pytest.mark.parametrize(
    ("values", "decimals"),
    [
        ([0.00001234, 0.00001301], 8),
        ([152.3699951171875, 151.0], 2),
        ([2506.850098, 666.789978], 2),
        ([1234.5678, 1200.0], 4),
        ([42123.45678], 5),
        ([148.50183471234567], 4),
        ([0.00000123456789], 12),
        ([100.0, 250.0], 0),
        ([1.5], 2),
        ([], 2),
        ([float("nan"), 0.0], 2),
    ],
)
def test_prices_keep_the_digits_of_the_data(values, decimals):
    assert fmt.price_decimals(values) == decimals


def test_tiny_price_is_not_zero():
    assert fmt.price(0.00001234, fmt.price_decimals([0.00001234])) == "0.00001234"


def test_unknown_numbers_are_a_dash():
    assert {fmt.price(None, 2), fmt.loss(float("nan")), fmt.change(None)} == {fmt.NONE}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (45, "45 s"), (185, "3 min 5 s"), (7_800, "2 h 10 min"), (273_600, "3 d 4 h")],
)
def test_duration_has_two_units_at_most(seconds, text):
    assert fmt.duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(60, "1 min"), (300, "5 min"), (3_600, "1 h"), (86_400, "1 day"), (604_800, "1 week")],
)
def test_interval(seconds, text):
    assert fmt.interval(seconds) == text


def test_moment_names_its_zone():
    noon = datetime(2024, 7, 1, 12, tzinfo=UTC)
    assert fmt.moment(noon, "Europe/Berlin") == "2024-07-01 14:00 CEST"
    assert fmt.moment(noon, "no such zone") == "2024-07-01 12:00 UTC"


def test_daily_bars_have_a_date_and_minutes_a_time():
    stamp = datetime(2024, 7, 1, 9, 35)
    assert fmt.bar_time(stamp, 86_400) == "2024-07-01"
    assert fmt.bar_time(stamp, 300) == "2024-07-01 09:35"


def test_ago():
    now = datetime(2024, 7, 1, tzinfo=UTC)
    assert fmt.ago(now - timedelta(seconds=2), now) == "just now"
    assert fmt.ago(now - timedelta(minutes=3, seconds=7), now) == "3 min ago"


@pytest.mark.parametrize(
    ("value", "text"), [(4_108_032, "4.11 M"), (950, "950"), (5.2e9, "5.2 B"), (None, fmt.NONE)]
)
def test_compact(value, text):
    assert fmt.compact(value) == text


def test_change_too_small_to_show_is_zero():
    changes = [fmt.loss_change(value) for value in (0.00001, -0.00001, 0.25, None)]
    assert changes == ["0", "0", "+0.2500", None]


def test_plain_disarms_markdown():
    assert fmt.plain("*a* [b](c) $d$") == r"\*a\* \[b\]\(c\) \$d\$"
