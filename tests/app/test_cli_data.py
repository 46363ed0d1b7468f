"""The commands about data: reading choices, quality, repairs, sources, resampling, calendars."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from app import __main__ as command_line
from app import terminal
from app.services import dataset_fetch, datasets, models
from app.storage import Store
from app.storage.models import Dataset
from kronos_core.data.bars import make_series
from kronos_core.data.sources import Listing
from tests.app.test_cli import error_line, succeeded

Invoke = Callable[..., Result]
MakeBars = Callable[..., pd.DataFrame]
UNDECIDED = "\n".join(
    ["Data;Start;High;Low;Close", *(f"{day:02d}/02/2024;10;12;9;11" for day in range(1, 9))]
)


@pytest.fixture
def invoke(store: Store, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    monkeypatch.setattr(terminal, "get_settings", lambda: store.settings)
    monkeypatch.setattr(models, "ensure_builtin", lambda _: None)
    return lambda *words: CliRunner().invoke(command_line.cli, [str(word) for word in words])


@pytest.fixture
def undecided(tmp_path: Path) -> Path:
    path = tmp_path / "dates.csv"
    path.write_text(UNDECIDED)
    return path


@pytest.fixture
def spoiled(store: Store, make_bars: MakeBars) -> Dataset:
    frame = make_bars(200)
    frame.loc[50, ["open", "high", "low", "close"]] *= 100
    frame = frame.drop(index=[120, 121]).reset_index(drop=True)
    return datasets.add(store, make_series(frame), name="Spoiled", source="upload")


# ---------------------------------------------------------------- reading


def test_an_ambiguous_file_names_the_option_that_decides(
    invoke: Invoke, store: Store, undecided: Path
) -> None:
    titles = ("--columns", "open=Start", "--columns", "time=Data")
    line = error_line(invoke("import", undecided, *titles))
    assert "--date-order DMY (Day first: 01/02/2024 is 1 February 2024)" in line
    assert "--date-order MDY" in line
    assert datasets.list_datasets(store) == []
    said = succeeded(invoke("import", undecided, *titles, "--date-order", "DMY"))[0]
    assert said.startswith("dates: 8 bars, 2024-02-01 to 2024-02-08")
    reading = datasets.get(store, "dates").reading
    assert reading["choices"]["columns"]["open"] == "Start"


def test_choices_are_handed_on(invoke: Invoke, store: Store, tmp_path: Path) -> None:
    path = tmp_path / "bars.txt"
    rows = [f"2024-01-{day:02d} 10:00;1,5;2,5;0,5;1,25;3" for day in range(1, 9)]
    path.write_text("\n".join(rows))
    options = ("--decimal", ",", "--timezone", "Europe/Berlin", "--volume-factor", 100)
    succeeded(invoke("import", path, *options, "--header-line", 0, "--name", "Bars"))
    row = datasets.get(store, "Bars")
    assert row.timezone == "Europe/Berlin"
    first = datasets.bars(store, row).iloc[0]
    assert (first["close"], first["volume"], first["timestamps"].hour) == (1.25, 300, 10)


def test_several_files_and_series_get_names_of_their_own(
    invoke: Invoke, store: Store, tmp_path: Path, make_bars: MakeBars
) -> None:
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    make_bars(20).to_csv(one, index=False)
    both = [make_bars(20, seed=seed).assign(symbol=name) for seed, name in ((1, "A"), (2, "B"))]
    pd.concat(both).to_csv(two, index=False)
    succeeded(invoke("import", one, two))
    assert {row.name for row in datasets.list_datasets(store)} == {"one", "two A", "two B"}
    succeeded(invoke("import", one, "--name", "Mine"))
    assert datasets.get(store, "Mine").bars == 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--date-order", "DYM"), "date_order"),
        (("--columns", "open"), "write it as open=Otwarcie"),
        (("--columns", "price=Close"), "price"),
        (("--timezone", "Mars"), "Mars"),
    ],
)
def test_impossible_choices_are_one_line(
    invoke: Invoke, undecided: Path, options: tuple[str, ...], message: str
) -> None:
    assert message in error_line(invoke("import", undecided, *options))


# ---------------------------------------------------------------- quality, repairs


def test_quality_names_findings_and_repairs(invoke: Invoke, spoiled: Dataset) -> None:
    lines = succeeded(invoke("quality", "Spoiled"))
    assert lines[0] == "Quality poor: 198 bars, calendar 24/7"
    text = "\n".join(lines)
    assert "ERROR: 1 bar is about 100 times too large" in text
    assert "repair: rescale" in text
    assert "repair: fill_gaps" in text


def test_repairs_are_previewed_applied_and_undone(
    invoke: Invoke, store: Store, spoiled: Dataset
) -> None:
    previewed = succeeded(invoke("repair", "Spoiled", "--all", "--preview"))
    assert previewed == [
        "rescale: 1 changed, 0 dropped, 0 added",
        "fill_gaps: 0 changed, 0 dropped, 2 added",
    ]
    assert datasets.get(store, spoiled.id).repairs == []
    assert "quality good" in succeeded(invoke("repair", "Spoiled", "--all"))[-1]
    assert datasets.get(store, spoiled.id).bars == 200
    succeeded(invoke("repair", "Spoiled", "--undo"))
    assert datasets.get(store, spoiled.id).data_hash == spoiled.data_hash
    succeeded(invoke("repair", "Spoiled", "--steps", "rescale,fill_gaps:longest=1"))
    steps = datasets.get(store, spoiled.id).repairs
    assert [step["name"] for step in steps] == ["rescale", "fill_gaps"]
    assert steps[1]["parameters"]["longest"] == 1
    assert datasets.get(store, spoiled.id).bars == 198


@pytest.mark.parametrize(
    "words", [(), ("--all", "--undo"), ("--steps", "wish"), ("--steps", "fill_gaps:far=1")]
)
def test_impossible_repairs_are_one_line(
    invoke: Invoke, spoiled: Dataset, words: tuple[str, ...]
) -> None:
    assert error_line(invoke("repair", "Spoiled", *words))


def test_resample(invoke: Invoke, store: Store, spoiled: Dataset) -> None:
    succeeded(invoke("resample", "Spoiled", "--to", "1W", "--name", "Weeks"))
    assert datasets.get(store, "Weeks").interval_seconds == 7 * 86_400
    assert "not coarser" in error_line(invoke("resample", "Weeks", "--to", "10h"))


def test_calendars_are_shown_and_chosen(invoke: Invoke, store: Store) -> None:
    datasets.add_sample(store, "sp500")
    lines = succeeded(invoke("calendar", "S&P 500"))
    assert lines[0].endswith("(recognised)")
    assert lines[1].strip().startswith("Wed 2019-01-02")
    lines = succeeded(invoke("calendar", "S&P 500", "--kind", "24/7"))
    assert lines[1].strip().startswith("Tue 2019-01-01")
    hours = ("--hours", "09:30-16:00", "--days", "1010000", "--timezone", "America/New_York")
    lines = succeeded(invoke("calendar", "S&P 500", *hours))
    assert [line.split()[0] for line in lines[1:3]] == ["Wed", "Mon"]
    assert "(chosen)" in succeeded(invoke("calendar", "S&P 500", "--exchange", "XETR"))[0]
    assert "(recognised)" in succeeded(invoke("calendar", "S&P 500", "--automatic"))[0]
    assert "XNOW" in error_line(invoke("calendar", "S&P 500", "--exchange", "XNOW"))


# ---------------------------------------------------------------- sources


class Kraken:
    name = "crypto:kraken"

    def __init__(self, bars: pd.DataFrame) -> None:
        self.bars = bars

    def search(self, text: str) -> list[Listing]:
        return [Listing(symbol="BTC/USD", name=text, exchange="Kraken", kind="spot")]

    def intervals(self) -> dict[str, str | None]:
        return {"1h": None}

    def fetch(self, symbol: str, *_: Any, start: Any = None, **__: Any) -> Any:
        bars = self.bars if start is None else self.bars[self.bars["timestamps"] >= start]
        return make_series(bars.reset_index(drop=True), symbol=symbol)


def test_fetching_searching_and_refreshing(
    invoke: Invoke, store: Store, make_bars: MakeBars, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Kraken(make_bars(80, step="h"))
    monkeypatch.setattr(dataset_fetch, "open_source", lambda _name, _folder: source)
    assert "BTC/USD" in succeeded(invoke("search", "crypto:kraken", "bitcoin"))[1]
    words = ("fetch", "crypto:kraken", "BTC/USD", "--interval", "1h", "--period", "30d")
    assert succeeded(invoke(*words))[0].startswith("BTC/USD 1h: 80 bars")
    source.bars = make_bars(84, step="h")
    lines = succeeded(invoke("refresh", "BTC/USD 1h"))
    assert lines[0].startswith("BTC/USD 1h: 84 bars")
    assert lines[1].strip().startswith("4 new bars")
    datasets.add_sample(store, "sp500")
    assert "did not come from a source" in error_line(invoke("refresh", "S&P 500"))


# ---------------------------------------------------------------- making bars


def test_synthetic_bars_by_their_options(invoke: Invoke, store: Store) -> None:
    words = ("--bars", 300, "--interval", "1h", "--volatility", 0.8, "--seed", 7)
    lines = succeeded(invoke("synthetic", *words, "--start", "2024-01-01 09:30"))
    assert lines[0].startswith("Synthetic 7: 300 bars, 2024-01-01 to 2024-01-13")
    row = datasets.get(store, "Synthetic 7")
    told = row.provenance["synthetic"]
    assert (told["volatility"], told["interval"]) == (0.8, 3600)
    assert told["start"] == "2024-01-01T09:30:00+00:00"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--interval", "soon"), "--interval soon: write it as 5min, 4h or 1D."),
        (("--start", "soon"), "--start soon: write it as 2020-01-01"),
        (("--jumps", 2), "jumps must be between 0 and 1, got 2"),
    ],
)
def test_impossible_synthetic_settings_are_one_line(
    invoke: Invoke, store: Store, options: tuple[str, ...], message: str
) -> None:
    assert message in error_line(invoke("synthetic", *options))
    assert datasets.list_datasets(store) == []
