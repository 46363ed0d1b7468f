"""Bars of a market that does not exist: a seeded random walk, to try things on known ground.

The log price is a geometric Brownian motion (Black and Scholes 1973), whose variance may cluster
(a stochastic volatility after Taylor 1986) and jump. Letters: T bars.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from kronos_core.data.bars import DataError, Series, make_series
from kronos_core.data.template import DAY

MOST_BARS = 1_000_000
JUMP_SIZE = 8.0  # how many times further than usual a bar with a jump moves
YEAR = pd.Timedelta(days=365.25)
_START = pd.Timestamp("2020-01-01", tz="UTC")
_EARLIEST, _LATEST = (pd.Timestamp(day, tz="UTC") for day in ("1800-01-01", "2200-01-01"))
_MEMORY = 0.98  # of the volatility from one bar to the next: half of it is gone after 34 bars
_MEAN_VOLUME = 10_000.0
_BUSIEST_HOUR = 15.0  # UTC, when Europe and America both trade
_REACH = 300.0  # e-folds of the price; a float64 ends at 700

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class SyntheticSettings:
    """What to make. Bars follow each other round the clock, so a year has 365.25 days of them.

    start: time of the first bar, with a time zone. first_price: its open.
    drift: what the price grows by a year on average, as a logarithm (0.05 is about 5 %).
    volatility: standard deviation of a year's log return, jumps and clusters included.
    clustering: standard deviation of the log of the variance, 0 to 2; 0 is the same at all times.
    cycle: how far volume swings around its mean over a day, 0 to 1; for bars below a day.
    jumps: the chance that a bar moves JUMP_SIZE times further than usual, 0 to 1.

    Raises DataError for what lies outside these ranges, or lets time or price run out of bounds.
    """

    bars: int = 2000
    interval: pd.Timedelta = DAY
    start: pd.Timestamp = _START
    first_price: float = 100.0
    drift: float = 0.05
    volatility: float = 0.2
    clustering: float = 0.5
    cycle: float = 0.5
    jumps: float = 0.005
    seed: int = 0

    def __post_init__(self) -> None:
        _check_range("bars", self.bars, 2, MOST_BARS)
        _check_range("interval", self.interval / pd.Timedelta(seconds=1), 1, 28 * 86_400)
        _check_range("first_price", self.first_price, 1e-8, 1e9)
        _check_range("drift", self.drift, -5, 5)
        _check_range("volatility", self.volatility, 0, 10)
        _check_range("clustering", self.clustering, 0, 2)
        _check_range("cycle", self.cycle, 0, 1)
        _check_range("jumps", self.jumps, 0, 1)
        _check_range("seed", self.seed, 0, 2**63 - 1)
        self._check_times()
        self._check_reach()

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it: the interval in seconds, the start as ISO 8601."""
        seconds = self.interval.total_seconds()
        return {**asdict(self), "interval": seconds, "start": self.start.isoformat()}

    @property
    def years(self) -> float:
        """The length of all bars together."""
        return self.bars * (self.interval / YEAR)

    def _check_times(self) -> None:
        if self.start.tz is None:
            raise DataError(f"The start ({self.start}) needs a time zone, for example UTC.")
        left = (_LATEST - self.start) / self.interval
        if self.start < _EARLIEST or self.bars > left:
            raise DataError(
                f"{self.bars:,} bars from {self.start:%Y-%m-%d} on do not lie between the years "
                "1800 and 2200. Make fewer bars or shorter ones, or choose another start."
            )

    def _check_reach(self) -> None:
        trend = abs(self.drift - self.volatility**2 / 2) * self.years
        if trend + 8 * self.volatility * math.sqrt(self.years) > _REACH:
            raise DataError(
                f"Over {self.years:,.0f} years a volatility of {self.volatility:g} and a drift of "
                f"{self.drift:g} lead to prices beyond all bounds. Make fewer bars or shorter "
                "ones, or lower the volatility or the drift."
            )


def make_synthetic(settings: SyntheticSettings) -> Series:
    """The bars of these settings, the same ones each time; every bar opens at the last close."""
    rng = np.random.default_rng(settings.seed)
    step = settings.interval / YEAR
    spread = _spread(settings, rng) * settings.volatility * math.sqrt(step)
    shocks = rng.standard_normal(settings.bars)
    moves = (settings.drift - settings.volatility**2 / 2) * step + spread * shocks
    highest, lowest = _extremes(moves, spread, rng)
    close = settings.first_price * np.exp(np.cumsum(moves))
    opened = np.concatenate([[settings.first_price], close[:-1]])
    stamps = pd.date_range(settings.start, periods=settings.bars, freq=settings.interval)
    frame = pd.DataFrame(
        {
            "timestamps": stamps.tz_convert("UTC").as_unit("ns"),
            "open": opened,
            # Rounding must not put a bound within the bar.
            "high": np.maximum(opened * np.exp(highest), np.maximum(opened, close)),
            "low": np.minimum(opened * np.exp(lowest), np.minimum(opened, close)),
            "close": close,
        }
    )
    frame["volume"] = _volumes(settings, shocks, rng) * _daily_cycle(settings, stamps)
    finding = f"A random walk (seed {settings.seed}): no market is behind these bars."
    return make_series(frame, findings=(finding,))


def _spread(settings: SyntheticSettings, rng: np.random.Generator) -> Floats:
    """How much further than usual each bar moves [T]; the mean of the squares is 1."""
    noise = rng.standard_normal(settings.bars)
    # An exponential mean is the autoregression h[t] = m h[t-1] + (1 - m) e[t]; the factors give it
    # variance 1 from the first bar on.
    usual = math.sqrt((1 - _MEMORY) / (1 + _MEMORY))
    noise[0] *= usual
    log_variance = pd.Series(noise).ewm(alpha=1 - _MEMORY, adjust=False).mean().to_numpy() / usual
    width = settings.clustering
    spread = np.exp((width * log_variance - width**2 / 2) / 2)
    jumps = np.where(rng.random(settings.bars) < settings.jumps, JUMP_SIZE, 1.0)
    return np.asarray(spread * jumps / math.sqrt(1 + settings.jumps * (JUMP_SIZE**2 - 1)))


def _extremes(moves: Floats, spread: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Highest and lowest log price of each bar over its open [T], from its move and spread [T].

    Each is drawn from the distribution of a Brownian bridge's extreme (Glasserman 2003, 6.4).
    """
    up, down = (2 * spread**2 * rng.standard_exponential(len(moves)) for _ in range(2))
    return (moves + np.sqrt(moves**2 + up)) / 2, (moves - np.sqrt(moves**2 + down)) / 2


def _volumes(settings: SyntheticSettings, shocks: Floats, rng: np.random.Generator) -> Floats:
    """Volumes [T], larger where the price moves further than it would."""
    unevenness = np.exp(0.4 * rng.standard_normal(settings.bars) - 0.08)
    return np.asarray(_MEAN_VOLUME * unevenness * (0.5 + np.abs(shocks) / 1.6))


def _daily_cycle(settings: SyntheticSettings, stamps: pd.DatetimeIndex) -> Floats:
    """Factors of the volume by the hour [T]; 1 for bars of a day and longer."""
    if settings.interval >= DAY:
        return np.ones(settings.bars)
    utc = stamps.tz_convert("UTC")
    hours = np.asarray(utc.hour + utc.minute / 60)
    return np.asarray(1 + settings.cycle * np.cos(2 * np.pi * (hours - _BUSIEST_HOUR) / 24))


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # also for NaN
        raise DataError(f"{name} must be between {low:g} and {high:g}, got {value:g}.")
