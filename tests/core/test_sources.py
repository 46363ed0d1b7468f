"""Yahoo without a network: what a request becomes, and what a failure says."""

from __future__ import annotations

import logging
import socket

import numpy as np
import pandas as pd
import pytest

from kronos_core.data.bars import DataError
from kronos_core.data.sources import YAHOO_INTERVALS, SourceError, fetch_yahoo


def answer(rows: int = 5, zone: str | None = "America/New_York") -> pd.DataFrame:
    """The shape of yfinance's Ticker.history(auto_adjust=True, actions=False)."""
    close = 180.0 + np.arange(rows)
    index = pd.date_range("2024-03-07", periods=rows, freq="D", tz=zone, name="Date")
    return pd.DataFrame(
        {
            "Open": close - 1,
            "High": close + 2,
            "Low": close - 2,
            "Close": close,
            "Volume": np.arange(rows) + 1000,
        },
        index=index,
    )


def test_the_request_and_the_exchanges_zone_are_kept() -> None:
    asked: list[tuple[str, str, str]] = []

    def download(*request: str) -> pd.DataFrame:
        asked.append(request)
        return answer()

    series = fetch_yahoo(" aapl ", "5D", "1d", download=download)
    assert asked == [("AAPL", "5d", "1d")]
    assert (series.symbol, series.timezone) == ("AAPL", "America/New_York")
    local = series.frame["timestamps"].dt.tz_convert(series.timezone)
    assert (local.dt.hour == 0).all()
    assert str(local.iloc[0].date()) == "2024-03-07"
    assert series.frame["close"].tolist() == [180.0, 181.0, 182.0, 183.0, 184.0]
    assert "adjusted" in series.findings[0]


def test_max_becomes_the_longest_period_of_the_interval() -> None:
    periods: list[str] = []

    def download(_ticker: str, period: str, _interval: str) -> pd.DataFrame:
        periods.append(period)
        return answer()

    for interval in YAHOO_INTERVALS:
        fetch_yahoo("X", "max", interval, download=download)
    assert periods == list(YAHOO_INTERVALS.values())


def test_unfinished_and_repeated_rows_are_left_out_with_a_finding() -> None:
    frame = answer()
    frame.iloc[1, :4] = np.nan
    repeated = frame.iloc[[-1]].assign(Close=999.0, High=1000.0)
    series = fetch_yahoo("X", "5d", "1d", download=lambda *_request: pd.concat([frame, repeated]))
    assert len(series.frame) == 4
    assert series.frame["close"].iloc[-1] == 999.0
    assert any("1 row without prices" in finding for finding in series.findings)
    assert any("1 repeated time" in finding for finding in series.findings)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (("", "1y", "1d"), "not a ticker"),
        (("AAPL MSFT", "1y", "1d"), "not a ticker"),
        (("AAPL", "1y", "7m"), "no interval '7m'"),
        (("AAPL", "1 year", "1d"), "not a period"),
        (("AAPL", "0d", "1d"), "not a period"),
        (("AAPL", "1mo", "1m"), "7d at most"),
        (("AAPL", "1y", "15m"), "60d at most"),
        (("AAPL", "5y", "1h"), "730d at most"),
        (("AAPL", "ytd", "5m"), "60d at most"),
    ],
)
def test_impossible_requests_are_refused_before_any_download(
    request_: tuple[str, str, str], message: str
) -> None:
    def download(*_request: str) -> pd.DataFrame:
        raise AssertionError("asked the network")

    with pytest.raises(SourceError, match=message):
        fetch_yahoo(*request_, download=download)


def test_no_bars_say_what_to_check() -> None:
    with pytest.raises(SourceError, match=r"no bars for NOSUCH .*upload a CSV"):
        fetch_yahoo("NOSUCH", "1y", "1d", download=lambda *_request: answer().iloc[:0])


def test_an_answer_without_prices_is_refused() -> None:
    with pytest.raises(SourceError, match="lacks close"):
        fetch_yahoo("X", "1y", "1d", download=lambda *_request: answer().drop(columns="Close"))
    with pytest.raises(SourceError, match="all empty"):
        fetch_yahoo("X", "1y", "1d", download=lambda *_request: answer() * np.nan)
    with pytest.raises(DataError, match="only one bar"):
        fetch_yahoo("X", "1d", "1d", download=lambda *_request: answer(1))


@pytest.fixture
def yahoo_ticker(monkeypatch: pytest.MonkeyPatch) -> type:
    """Replaces yfinance.Ticker: `result` is returned, raised, or logged and left empty."""
    import yfinance

    class Ticker:
        result: object = None

        def __init__(self, _ticker: str) -> None: ...

        def history(self, **_options: object) -> pd.DataFrame:
            if isinstance(self.result, Exception):
                raise self.result
            if isinstance(self.result, str):
                logging.getLogger("yfinance").error(self.result)
                return pd.DataFrame()
            return answer()

    monkeypatch.setattr(yfinance, "Ticker", Ticker)
    return Ticker


def test_the_default_download_is_yfinance(yahoo_ticker: type) -> None:
    assert len(fetch_yahoo("AAPL", "5d", "1d").frame) == 5


def test_failures_of_yfinance_become_source_errors(
    yahoo_ticker: type, capfd: pytest.CaptureFixture[str]
) -> None:
    from yfinance.exceptions import YFPricesMissingError, YFRateLimitError

    logger = logging.getLogger("yfinance")
    before = (list(logger.handlers), logger.propagate)
    for result, message in (
        (YFRateLimitError(), "too many"),
        (OSError("Could not resolve host"), "could not be reached. Check the connection"),
        (socket.gaierror("no"), "could not be reached"),
        (YFPricesMissingError("NOSUCH", "(1d)"), "possibly delisted"),
        (KeyError("chart"), "returned no bars"),
        ("$NOSUCH: possibly delisted; no price data found", "no price data found"),
    ):
        yahoo_ticker.result = result
        with pytest.raises(SourceError, match=message):
            fetch_yahoo("NOSUCH", "5d", "1d")
    assert capfd.readouterr() == ("", "")
    assert (list(logger.handlers), logger.propagate) == before
