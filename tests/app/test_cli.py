"""The command line, over the same services as the pages."""

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from app import __main__ as command_line
from app import terminal
from app.jobs.supervisor import Supervisor
from app.services import datasets, forecasts, models, run_plans, runs
from app.storage import Store, repository
from app.storage.models import Dataset, Model, Run
from kronos_core.data.bars import Series
from kronos_core.data.calendars import Calendar
from kronos_core.training.config import TrainingConfig

Invoke = Callable[..., Result]


@pytest.fixture
def invoke(store: Store, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    monkeypatch.setattr(terminal, "get_settings", lambda: store.settings)
    monkeypatch.setattr(models, "ensure_builtin", lambda _: None)
    return lambda *words: CliRunner().invoke(command_line.cli, [str(word) for word in words])


@pytest.fixture
def file(tmp_path: Path, make_bars: Callable[..., pd.DataFrame]) -> Path:
    path = tmp_path / "walk.csv"
    make_bars(80).to_csv(path, index=False)
    return path


def succeeded(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def error_line(result: Result) -> str:
    assert result.exit_code == 1, result.output
    assert "Traceback" not in result.output
    lines = result.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("Error: ")
    return lines[0]


# ---------------------------------------------------------------- data and models


def test_import_takes_its_name_from_the_file_or_the_option(invoke: Invoke, file: Path) -> None:
    assert succeeded(invoke("import", file))[0].startswith("walk: 80 bars, 2024-01-01 to")
    succeeded(invoke("import", file, "--name", "Mine"))
    listed = succeeded(invoke("datasets"))
    assert listed[0].split() == ["ID", "NAME", "BARS", "FIRST", "LAST", "QUALITY", "CALENDAR"]
    assert [line.split()[1] for line in listed[1:]] == ["Mine", "walk"]


def test_a_sample_is_one_command(invoke: Invoke, store: Store) -> None:
    assert "bars" in succeeded(invoke("sample", "sp500"))[0]
    assert datasets.list_datasets(store)[0].source == "sample"


def test_models_are_listed_in_aligned_columns(invoke: Invoke, model: Model) -> None:
    header, line = succeeded(invoke("models"))
    assert header.index("KIND") == line.index("imported")


@pytest.mark.parametrize("content", [b"", b"timestamps,open,high,low\n", b"\x00\x01\x02"])
def test_a_bad_file_is_one_line(
    invoke: Invoke, store: Store, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    error_line(invoke("import", path))
    assert datasets.list_datasets(store) == []


def test_a_missing_file_is_one_line(invoke: Invoke) -> None:
    assert "nowhere.csv" in error_line(invoke("import", "nowhere.csv"))


def test_unknown_names_are_one_line(invoke: Invoke, dataset: Dataset) -> None:
    assert "no dataset" in error_line(invoke("finetune", "--dataset", "none"))
    assert "no model" in error_line(invoke("finetune", "--dataset", "Walk", "--model", "none"))
    assert "no such run" in error_line(invoke("stop", "zz"))


# ---------------------------------------------------------------- fine-tuning

SHORT = ("--context", 12, "--horizon", 4, "--epochs", 1, "--batch-size", 8, "--device", "cpu")


def test_finetune_without_a_server_trains_to_the_end(
    invoke: Invoke, store: Store, dataset: Dataset, model: Model
) -> None:
    lines = succeeded(
        invoke(
            *("finetune", "--dataset", "Walk", "--model", "Tiny", *SHORT, "--name", "Mine"),
            *("--teacher-forcing", "linear:1:0", "--seed", 3, "--follow"),
        )
    )
    run = runs.list_runs(store)[0]
    config = runs.config_of(run)
    assert (run.state, run.name, config.seed) == ("finished", "Mine", 3)
    assert config.teacher_forcing.to_text() == "linear:1:0"
    evaluations = [row for row in runs.metrics(store, run.id) if row.split == "validation"]
    assert sum(line.startswith("step") for line in lines) == len(evaluations) > 1
    assert lines[-1] == f"Run {run.id} finished."
    assert "Mine" in [row.name for row in models.list_models(store)]


def test_a_failed_run_that_is_followed_gives_exit_code_1(
    invoke: Invoke, store: Store, dataset: Dataset, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(supervisor: Supervisor) -> None:
        with supervisor.store.session() as session:
            for run in repository.runs_in(session, ("queued",)):
                repository.set_state(
                    session, run.id, "failed", allowed_from=("queued",), reason="No luck."
                )

    monkeypatch.setattr(Supervisor, "tick", fail)
    result = invoke("finetune", "--dataset", "Walk", "--model", "Tiny", *SHORT, "--follow")
    assert result.exit_code == 1
    assert "failed. No luck." in result.stdout


@pytest.fixture
def no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Supervisor, "tick", lambda _: None)


@pytest.mark.usefixtures("no_launch")
def test_a_run_that_waits_says_what_starts_it(
    invoke: Invoke, dataset: Dataset, model: Model
) -> None:
    lines = succeeded(invoke("finetune", "--dataset", "Walk", "--model", "Tiny", *SHORT))
    assert lines[0].endswith(" steps")
    assert "Another run has the device" in lines[1]


@pytest.mark.usefixtures("no_launch")
def test_runs_are_stopped_and_resumed_by_the_beginning_of_their_id(
    invoke: Invoke, store: Store, run: Run
) -> None:
    assert succeeded(invoke("stop", run.id[:6])) == [f"Run {run.id} is stopped"]
    assert "stopped" in succeeded(invoke("runs"))[1]
    succeeded(invoke("resume", run.id))
    assert runs.get(store, run.id).state == "queued"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--teacher-forcing", "sometimes"), "sometimes"),
        (("--context", 5000), "5000"),
        (("--epochs", 0), "epochs"),
        (("--device", "abacus"), "abacus"),
    ],
)
def test_impossible_settings_are_one_line(
    invoke: Invoke, dataset: Dataset, model: Model, words: tuple[str, ...], message: str
) -> None:
    line = error_line(invoke("finetune", "--dataset", "Walk", "--model", "Tiny", *words))
    assert message in line


@pytest.mark.usefixtures("no_launch")
def test_settings_come_from_a_file_a_preset_options_and_assignments(
    invoke: Invoke, store: Store, dataset: Dataset, model: Model, tmp_path: Path
) -> None:
    start = ("finetune", "--dataset", "Walk", "--model", "Tiny")
    succeeded(
        invoke(
            *(*start, *SHORT, "--preset", "quick", "--tokenizer-epochs", 2, "--schedule", "cosine"),
            *("--lora-rank", 4, "--freeze-blocks", 1, "--ema", 0.9, "--patience", 3, "--history"),
            *("0.5", "--set", "betas=[0.8, 0.9]", "--name", "First", "--tag", "a", "--tag", "b"),
        )
    )
    first = runs.list_runs(store)[0]
    config = runs.config_of(first)
    assert (config.steps, config.schedule, config.ema, config.patience) == (200, "cosine", 0.9, 3)
    assert (config.frozen_blocks, config.betas, config.history.start) == (1, (0.8, 0.9), 0.5)
    assert config.tokenizer is not None
    assert config.lora is not None
    assert (config.tokenizer.epochs, config.lora.rank, first.tags) == (2, 4, ["a", "b"])

    file = tmp_path / "run.yaml"
    succeeded(invoke("runs", "export", first.id, "--config", file))
    succeeded(invoke(*start, "--config", file, "--seed", 9, "--name", "Second"))
    second = next(run for run in runs.list_runs(store) if run.name == "Second")
    assert runs.config_of(second) == TrainingConfig.from_dict(config.to_dict() | {"seed": 9})

    (line,) = succeeded(invoke("runs", "command", second.id))
    succeeded(invoke(*shlex.split(line)[3:], "--name", "Third"))
    third = next(run for run in runs.list_runs(store) if run.name == "Third")
    assert runs.config_of(third) == runs.config_of(second)


@pytest.mark.usefixtures("no_launch")
def test_several_datasets_with_weights(
    invoke: Invoke, store: Store, dataset: Dataset, model: Model, file: Path
) -> None:
    succeeded(invoke("import", file, "--name", "Other"))
    both = ("finetune", "--dataset", "Walk", "--dataset", "Other", "--model", "Tiny", *SHORT)
    succeeded(invoke(*both, "--weight", 1, "--weight", 0.5))
    (run,) = runs.list_runs(store)
    assert [(share.name, share.weight) for share in runs.config_of(run).data] == [
        ("Walk", 1.0),
        ("Other", 0.5),
    ]
    assert "2 datasets and 1 weights" in error_line(invoke(*both, "--weight", 1))


def test_a_check_measures_and_queues_nothing(
    invoke: Invoke,
    store: Store,
    dataset: Dataset,
    model: Model,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_plans.measuring.probe, "__defaults__", (0.05,))
    start = ("finetune", "--dataset", "Walk", "--model", "Tiny", "--check")
    lines = succeeded(invoke(*start, *SHORT))
    assert all(line.startswith("ok ") for line in lines[:-1])
    assert "tokens/s" in lines[-1]
    refused = invoke(*start, "--context", 5000, "--device", "cpu")
    assert refused.exit_code == 1
    assert "NO  context" in refused.stdout
    assert runs.list_runs(store) == []


def test_the_queue_moves_and_runs_carry_notes(
    invoke: Invoke, store: Store, run: Run, config: TrainingConfig
) -> None:
    later = runs.queue(store, datasets=["Walk"], model_id="Tiny", config=config, name="Later")
    lines = succeeded(invoke("runs", "move", later.id, "first"))
    assert [line.split()[-1] for line in lines[1:]] == ["Later", "First"]
    succeeded(invoke("runs", "note", later.id, "--notes", "Keep.", "--tag", "x"))
    assert (runs.get(store, later.id).notes, runs.get(store, later.id).tags) == ("Keep.", ["x"])
    assert "Say what to write" in error_line(invoke("runs", "export", later.id))


# ---------------------------------------------------------------- models


def test_released_weights_are_downloaded_and_said(
    invoke: Invoke, store: Store, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = store.files.root / model.folder

    def fetch(name: str, target: Path, progress: Callable[[int, int], None]) -> Path:
        progress(500, 2000)
        progress(2000, 2000)
        shutil.copytree(source, target)
        return target

    monkeypatch.setattr(models, "download_bundle", fetch)
    assert succeeded(invoke("download", "kronos-small"))[-1].startswith("Kronos-small: ")
    assert models.get(store, "kronos-small").kind == "released"
    assert "Kronos-small" in invoke("models").output
    assert "kronos-huge" in error_line(invoke("download", "kronos-huge"))


def test_a_folder_is_imported_as_a_model(
    invoke: Invoke, store: Store, model: Model, tmp_path: Path
) -> None:
    folder = store.files.root / model.folder
    assert succeeded(invoke("import-model", folder, "--name", "Mine"))[0].startswith("Mine: ")
    assert models.get(store, "Mine").kind == "imported"
    assert "no folder" in error_line(invoke("import-model", tmp_path / "nowhere"))


# ---------------------------------------------------------------- forecasts

DRAW = ("forecast", "--dataset", "Walk", "--model", "Tiny", "--horizon", 3, "--paths", 4)
COLUMNS = ["path", "step", "timestamp", "open", "high", "low", "close", "volume", "amount"]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_forecast_is_written_in_long_form(
    invoke: Invoke, store: Store, dataset: Dataset, model: Model, tmp_path: Path, suffix: str
) -> None:
    out = tmp_path / f"paths.{suffix}"
    assert "4 paths of 3 bars" in succeeded(invoke(*DRAW, "--out", out, "--seed", 7))[0]
    frame = pd.read_csv(out) if suffix == "csv" else pd.read_parquet(out)
    assert list(frame.columns) == COLUMNS
    assert (len(frame), frame["path"].nunique(), frame["step"].max()) == (12, 4, 3)
    assert forecasts.list_forecasts(store)[0].settings["seed"] == 7


@pytest.mark.parametrize(
    ("origin", "index"), [("40", 40), ("2024-01-02", 29), ("2024-01-02 03:30", 32)]
)
def test_the_origin_is_a_number_or_a_moment_on_the_datasets_clock(
    invoke: Invoke,
    store: Store,
    dataset: Dataset,
    model: Model,
    tmp_path: Path,
    origin: str,
    index: int,
) -> None:
    succeeded(invoke(*DRAW, "--out", tmp_path / "paths.csv", "--origin", origin))
    assert forecasts.list_forecasts(store)[0].settings["origin_index"] == index


@pytest.mark.parametrize(
    ("text", "title"),
    [("xnys", "XNYS"), ("24/7", "24/7"), ("09:30-16:00", "weekdays 09:30–16:00")],
)
def test_a_calendar_of_its_own(
    invoke: Invoke,
    store: Store,
    dataset: Dataset,
    model: Model,
    tmp_path: Path,
    text: str,
    title: str,
) -> None:
    succeeded(invoke(*DRAW, "--out", tmp_path / "paths.csv", "--calendar", text))
    (row,) = forecasts.list_forecasts(store)
    assert Calendar.from_dict(row.settings["calendar"]).title == title


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--out", "paths.json"), "paths.json"),
        (("--out", "nowhere/paths.csv"), "no folder nowhere"),
        (("--out", "paths.csv", "--origin", "soon"), "'soon'"),
        (("--out", "paths.csv", "--origin", "1999-01-01"), "before the first bar"),
        (("--out", "paths.csv", "--top-p", "2"), "Top_p"),
        (("--out", "paths.csv", "--calendar", "XMARS"), "XMARS"),
        (("--out", "paths.csv", "--calendar", "9:30 to 16:00"), "9:30 to 16:00"),
    ],
)
def test_impossible_forecasts_are_one_line(
    invoke: Invoke, store: Store, dataset: Dataset, model: Model, words: list[str], message: str
) -> None:
    assert message in error_line(invoke(*DRAW, *words))
    assert forecasts.list_forecasts(store) == []


def test_several_datasets_are_drawn_together(
    invoke: Invoke,
    store: Store,
    dataset: Dataset,
    model: Model,
    make_bars: Callable[..., pd.DataFrame],
    tmp_path: Path,
) -> None:
    series = Series(frame=make_bars(50), interval=pd.Timedelta(days=1), timezone="UTC")
    datasets.add(store, series, name="Second", source="upload")
    out = tmp_path / "paths.csv"
    lines = succeeded(invoke(*DRAW, "--dataset", "Second", "--out", out))
    assert [line.split(":")[0] for line in lines] == ["Walk", "Second"]
    frame = pd.read_csv(out)
    assert list(frame.columns) == ["series", *COLUMNS]
    assert dict(frame["series"].value_counts()) == {"Walk": 12, "Second": 12}
    again = error_line(invoke(*DRAW, "--dataset", "Walk", "--out", out))
    assert "named twice" in again


# ---------------------------------------------------------------- a setting varied

SWEEP = ("sweep", "--dataset", "Walk", "--model", "Tiny", "--horizon", 3, "--paths", 4)


def test_a_sweep_is_written_and_stored_for_the_page(
    invoke: Invoke, store: Store, dataset: Dataset, model: Model, tmp_path: Path
) -> None:
    out = tmp_path / "sweep.csv"
    said = succeeded(invoke(*SWEEP, "--vary", "temperature", "--values", "0.6, 1.4", "--out", out))
    names = ["Walk, temperature 0.6", "Walk, temperature 1.4"]
    assert [line.partition(":")[0] for line in said] == names
    frame = pd.read_csv(out)
    assert list(frame.columns) == ["forecast", *COLUMNS]
    assert frame.groupby("forecast").size().to_dict() == dict.fromkeys(names, 12)
    stored = forecasts.list_forecasts(store)
    assert sorted(row.settings["temperature"] for row in stored) == [0.6, 1.4]
    assert {row.settings["varied"] for row in stored} == {"temperature"}


def test_a_sweep_over_models_and_over_origins(
    invoke: Invoke, store: Store, dataset: Dataset, model: Model, tmp_path: Path
) -> None:
    models.import_folder(store, store.files.root / model.folder, "Second")
    out = tmp_path / "sweep.parquet"
    succeeded(invoke(*SWEEP, "--vary", "model_id", "--values", "Tiny, Second", "--out", out))
    assert set(pd.read_parquet(out)["forecast"]) == {"Walk, Tiny", "Walk, Second"}
    succeeded(invoke(*SWEEP, "--vary", "origin_index", "--values", "5 10", "--out", out))
    found = {row.settings["origin_index"] for row in forecasts.list_forecasts(store)[:2]}
    assert found == {dataset.bars - 6, dataset.bars - 11}


@pytest.mark.parametrize(
    ("vary", "values", "message"),
    [
        ("colour", "1 2", "--vary must be one of model_id"),
        ("temperature", "1", "give 2 to 8 values"),
        ("top_k", "1.5 2", "no whole number"),
        ("model_id", "Tiny, Nobody", "Nobody"),
        ("temperature", "0 1", "emperature"),
    ],
)
def test_impossible_sweeps_draw_nothing(
    invoke: Invoke,
    store: Store,
    dataset: Dataset,
    model: Model,
    tmp_path: Path,
    vary: str,
    values: str,
    message: str,
) -> None:
    words = ("--vary", vary, "--values", values, "--out", tmp_path / "sweep.csv")
    assert message in error_line(invoke(*SWEEP, *words))
    assert forecasts.list_forecasts(store) == []
