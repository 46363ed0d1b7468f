"""What can be taken away from a run: curves, settings, weights, TensorBoard logs."""

import csv
import io
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard.writer import FileWriter

from app.jobs.tasks import Report, Task, key_of, tasks
from app.services.errors import ServiceError
from app.services.run_records import config_of, get
from app.storage import Store, repository
from app.storage.files import written_aside
from app.storage.models import Run

Export = Literal["curves", "checkpoint", "tensorboard"]
ROWS_AT_ONCE = 5_000
COLUMNS = (
    "stage",
    "split",
    "step",
    *(name for name in repository.METRIC_VALUES),
    "recorded_at",
)


def export_config(run: Run) -> str:
    """The settings as YAML; `python -m app finetune --config` reads it."""
    return config_of(run).to_yaml()


def export_curves(store: Store, run_id: str) -> bytes:
    """All metric rows as CSV, oldest first; what was not measured is empty."""
    text = io.StringIO(newline="")
    table = csv.writer(text)
    table.writerow(COLUMNS)
    values = attrgetter(*COLUMNS[:-1])
    for row in _all_rows(store, get(store, run_id).id):
        table.writerow((*values(row), row.recorded_at.isoformat()))
    return text.getvalue().encode()


def _all_rows(store: Store, run_id: str) -> Iterator[Any]:
    """Rows with the names of `RunMetric`."""
    last = 0
    while True:
        with store.session(write=False) as session:
            rows = repository.plain_metrics(session, run_id, last, ROWS_AT_ONCE)
        yield from rows
        if len(rows) < ROWS_AT_ONCE:
            return
        last = rows[-1].id


def export_checkpoint(store: Store, run_id: str) -> Path:
    """A zip of the run's best weights, as a folder that the released loader reads as well.

    tokenizer/ and predictor/ are for `from_pretrained`; beside them lie the settings (run.yaml)
    and the curves (curves.csv). ServiceError while the run has no weights yet.
    """
    run = get(store, run_id)
    source = _weights(store, run)
    target = store.files.run_folder(run.id) / "weights.zip"
    with written_aside(target) as aside, zipfile.ZipFile(aside, "w") as archive:
        for path in sorted(path for path in source.rglob("*") if path.is_file()):
            archive.write(path, path.relative_to(source).as_posix())
        archive.writestr("run.yaml", export_config(run))
        archive.writestr("curves.csv", export_curves(store, run.id))
    return target


def _weights(store: Store, run: Run) -> Path:
    folder = store.files.run_folder(run.id) / "best"
    if folder.is_dir():
        return folder
    raise ServiceError(
        f"{run.name} has no weights yet. They are there after the first evaluation of the "
        "predictor."
    )


def export_tensorboard(store: Store, run_id: str, folder: Path | None = None) -> Path:
    """Event files of all metric rows, for `tensorboard --logdir`. -> what was written

    With a folder they are written there, below a folder for each split; without one they are put
    into a zip in the workspace.
    """
    run = get(store, run_id)
    if folder is not None:
        _write_events(store, run, folder)
        return folder
    target = store.files.run_folder(run.id) / "tensorboard.zip"
    with TemporaryDirectory(prefix="kronos-") as scratch:
        _write_events(store, run, Path(scratch))
        with (
            written_aside(target) as aside,
            zipfile.ZipFile(aside, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            for path in sorted(path for path in Path(scratch).rglob("*") if path.is_file()):
                archive.write(path, path.relative_to(scratch).as_posix())
    return target


def start_export(store: Store, run_id: str, what: Export) -> str:
    """Makes an export on the short-job thread. -> key for `export_result`

    For a page, which must not wait: a long run's curves take seconds, its events half a minute.
    """
    run = get(store, run_id)
    makers: dict[Export, Callable[[Store, str], bytes | Path]] = {
        "curves": export_curves,
        "checkpoint": export_checkpoint,
        "tensorboard": export_tensorboard,
    }
    make = makers[what]

    def work(report: Report) -> bytes | Path:
        report(0, 1)
        return make(store, run.id)

    # A run that went on is exported anew.
    inputs = {"run": run.id, "step": run.step, "state": run.state, "resumes": run.resumes}
    return tasks().start(key_of(what, inputs), work)


def export_result(key: str) -> Task | None:
    """The export as it is now; its `result` is the bytes of the curves, or the path of a zip."""
    return tasks().poll(key)


def _write_events(store: Store, run: Run, folder: Path) -> None:
    with (
        closing(FileWriter(str(folder / "train"))) as train,
        closing(FileWriter(str(folder / "validation"))) as validation,
    ):
        for row in _all_rows(store, run.id):
            writer = train if row.split == "train" else validation
            values = [
                Summary.Value(tag=f"{row.stage}/{name}", simple_value=value)
                for name in repository.METRIC_VALUES
                if (value := getattr(row, name)) is not None
            ]
            # One event for all values of a step: one for each takes many times as long.
            moment = row.recorded_at.timestamp()
            writer.add_summary(Summary(value=values), row.step, moment)
