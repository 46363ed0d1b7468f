"""Models as pages and the command line use them, on a tiny bundle."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import huggingface_hub
import pytest
import torch

from app.jobs.tasks import Task, Tasks
from app.jobs.threads import ShortJobs
from app.services import models
from app.services.errors import ServiceError
from app.storage import Store, repository
from app.storage.models import Dataset, Forecast, Model, Run
from kronos_core.model import zoo
from kronos_core.model.files import BundleError
from kronos_core.model.hub import Progress
from kronos_core.model.zoo import load_bundle, save_bundle

GOLDEN = Path(__file__).parents[1] / "fixtures" / "golden" / "tiny5"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bundle folder outside the workspace."""
    copy = tmp_path / "by hand"
    for part in ("tokenizer", "predictor"):
        shutil.copytree(GOLDEN / part, copy / part)
    return copy


@pytest.fixture
def assets(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Assets in which the tiny bundle stands for the built-in model."""
    bundle = load_bundle(folder, device="cpu", max_context=64, s2_rotary="position")
    bundle.name = models.BUILTIN
    save_bundle(bundle, tmp_path / "assets" / models.BUILTIN)
    monkeypatch.setattr(zoo, "ASSETS", tmp_path / "assets")
    monkeypatch.setattr(models, "ASSETS", tmp_path / "assets")
    return tmp_path / "assets"


def use(store: Store, model: Model, state: str = "finished") -> None:
    """A run that starts from the model and a forecast made with it."""
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    with store.session() as session:
        dataset = repository.add(
            session,
            Dataset(
                name="Bars",
                interval_seconds=1.0,
                bars=2,
                first=moment,
                last=moment,
                source="upload",
                data_hash="a" * 64,
            ),
        )
        repository.add(
            session,
            Run(name="Try", state=state, dataset_id=dataset.id, base_model_id=model.id),
        )
        repository.add(
            session,
            Forecast(name="Fan", state="finished", dataset_id=dataset.id, model_id=model.id),
        )


def test_builtin_is_there_once(store: Store, assets: Path) -> None:
    first = models.ensure_builtin(store)
    again = models.ensure_builtin(store)
    assert first.id == again.id == models.BUILTIN
    assert (first.kind, first.folder) == ("builtin", "")
    assert (first.max_context, first.s2_rotary) == (64, "position")
    assert first.model_hash == load_bundle(models.BUILTIN, device="cpu").hash
    assert models.bundle_source(store, first) == models.BUILTIN
    assert models.get(store, first.name).id == models.BUILTIN


def test_builtin_follows_the_program(store: Store, assets: Path) -> None:
    before = models.ensure_builtin(store)
    bundle = load_bundle(models.BUILTIN, device="cpu")
    with torch.no_grad():
        next(bundle.predictor.parameters()).add_(1.0)
    bundle.hash, bundle.max_context = "", 32
    save_bundle(bundle, assets / models.BUILTIN)
    after = models.ensure_builtin(store)
    assert after.max_context == 32
    assert after.model_hash != before.model_hash


def test_builtin_cannot_be_deleted(store: Store, assets: Path) -> None:
    models.ensure_builtin(store)
    with pytest.raises(ServiceError, match="comes with the workbench"):
        models.delete(store, models.BUILTIN, force=True)


def test_import_copies_and_loads(store: Store, folder: Path, assets: Path) -> None:
    models.ensure_builtin(store)
    model = models.import_folder(store, folder, " Tiny ")
    assert (model.name, model.kind, model.max_context) == ("Tiny", "imported", 512)
    assert model.provenance["imported_from"] == "by hand"
    expected = load_bundle(folder, device="cpu")
    shutil.rmtree(folder)
    copied = load_bundle(models.bundle_source(store, model), device="cpu")
    assert copied.hash == model.model_hash == expected.hash
    assert copied.name == "Tiny"
    assert [row.name for row in models.list_models(store)][1:] == ["Tiny"]


def test_import_needs_a_good_folder(store: Store, folder: Path, tmp_path: Path) -> None:
    for path in ("", tmp_path / "nothing"):
        with pytest.raises(ServiceError, match="no folder"):
            models.import_folder(store, path, "Tiny")
    (folder / "predictor" / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(BundleError):
        models.import_folder(store, folder, "Tiny")
    assert models.list_models(store) == []
    assert list((store.files.root / "models").iterdir()) == []


def test_import_needs_a_free_name(store: Store, folder: Path) -> None:
    named = models.import_folder(store, folder, "")
    assert named.name == "by hand"
    with pytest.raises(ServiceError, match='already a model called "by hand"'):
        models.import_folder(store, folder, "by hand")
    assert len(list((store.files.root / "models").iterdir())) == 1


@pytest.fixture
def hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A hub that has the tiny bundle; the names that were asked for."""
    asked: list[str] = []

    def fetch(name: str, target: Path, progress: Progress | None = None) -> Path:
        asked.append(name)
        for count in range(4):
            if progress is not None:
                progress(count * 1000, 4000)
        shutil.copytree(folder, target)
        return target

    monkeypatch.setattr(models, "download_bundle", fetch)
    return asked


def test_download_happens_once(store: Store, hub: list[str]) -> None:
    seen: list[tuple[int, int]] = []
    model = models.download(store, "kronos-small", lambda *done: seen.append(done))
    assert (model.id, model.kind, model.folder) == (
        "kronos-small",
        "released",
        "models/kronos-small",
    )
    assert seen == [(0, 4000), (1000, 4000), (2000, 4000), (3000, 4000)]
    assert models.download(store, "kronos-small").id == model.id
    assert hub == ["kronos-small"]
    here = {entry.name: row is not None for entry, row in models.released(store)}
    assert here == {"kronos-mini": False, "kronos-small": True, "kronos-base": False}


def test_two_downloads_at_once_keep_the_weights(
    store: Store, hub: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = models.download_bundle

    def overtaken(name: str, target: Path, progress: object = None) -> Path:
        monkeypatch.setattr(models, "download_bundle", fetch)
        models.download(store, name)
        return target

    monkeypatch.setattr(models, "download_bundle", overtaken)
    model = models.download(store, "kronos-small")
    assert load_bundle(models.bundle_source(store, model), device="cpu").hash == model.model_hash


def test_download_of_an_unknown_name(store: Store) -> None:
    for ask in (models.download, models.start_download):
        with pytest.raises(ServiceError, match="kronos-mini, kronos-small, kronos-base"):
            ask(store, "kronos-huge")


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tasks]:
    """A downloads thread of the test's own."""
    jobs = ShortJobs()
    tasks = Tasks(jobs)
    monkeypatch.setattr(models, "download_tasks", lambda: tasks)
    yield tasks
    jobs.close()


@pytest.fixture
def slow_hub(
    hub: list[str], line: Tasks, monkeypatch: pytest.MonkeyPatch
) -> tuple[threading.Event, list[str]]:
    """A hub that stops half-way until the event is set; the names that were asked for."""
    go_on, fetch = threading.Event(), models.download_bundle

    def halting(name: str, target: Path, progress: Progress) -> Path:
        progress(2000, 4000)
        go_on.wait(10)
        return fetch(name, target, progress)

    monkeypatch.setattr(models, "download_bundle", halting)
    return go_on, hub


def ended(store: Store, name: str) -> Task:
    """The download once it is over."""
    return until(store, name, lambda task: not task.pending)


def until(store: Store, name: str, reached: Callable[[Task], bool]) -> Task:
    for _ in range(1000):
        task = models.download_task(store, name)
        assert task is not None
        if reached(task):
            return task
        time.sleep(0.01)
    raise AssertionError(f"still {task.state}")


def test_download_in_the_background_once(
    store: Store, slow_hub: tuple[threading.Event, list[str]]
) -> None:
    go_on, asked = slow_hub
    assert models.download_task(store, "kronos-small") is None
    key = models.start_download(store, "kronos-small")
    assert models.start_download(store, "kronos-small") == key
    task = until(store, "kronos-small", lambda task: task.total > 0)
    assert (task.state, task.done, task.total) == ("running", 2000, 4000)
    go_on.set()
    assert ended(store, "kronos-small").result.id == "kronos-small"
    assert asked == ["kronos-small"]
    models.delete(store, "kronos-small")
    models.start_download(store, "kronos-small")
    assert ended(store, "kronos-small").state == "finished"
    assert models.get(store, "kronos-small").kind == "released"
    assert asked == ["kronos-small"] * 2


def test_cancelled_download(store: Store, slow_hub: tuple[threading.Event, list[str]]) -> None:
    go_on, _ = slow_hub
    models.start_download(store, "kronos-small")
    models.start_download(store, "kronos-base")  # waits in line
    until(store, "kronos-small", lambda task: task.total > 0)
    for name in ("kronos-small", "kronos-base"):
        models.cancel_download(store, name)
        assert ended(store, name).state == "cancelled"
    go_on.set()
    models.start_download(store, "kronos-mini")
    assert ended(store, "kronos-mini").state == "finished"
    assert [row.id for row in models.list_models(store)] == ["kronos-mini"]
    assert [path.name for path in (store.files.root / "models").iterdir()] == ["kronos-mini"]


def test_failed_download_says_what_to_do_and_can_be_tried_again(
    store: Store, line: Tasks, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*_: object, **_options: object) -> None:
        raise ConnectionError("no route to host")

    with monkeypatch.context() as without_network:
        without_network.setattr(huggingface_hub, "hf_hub_download", offline)
        models.start_download(store, "kronos-small")
        task = ended(store, "kronos-small")
    assert task.state == "failed"
    assert task.reason is not None
    assert task.reason.startswith("Could not fetch config.json of NeoQuasar/Kronos-Tokenizer-base")
    assert "place the files by hand" in task.reason
    assert list((store.files.root / "models").iterdir()) == []
    monkeypatch.setattr(
        models, "download_bundle", lambda _name, target, _: shutil.copytree(folder, target)
    )
    models.start_download(store, "kronos-small")
    assert ended(store, "kronos-small").state == "finished"


def test_get_and_rename(store: Store, folder: Path) -> None:
    with pytest.raises(ServiceError, match="no model yet"):
        models.get(store, "Tiny")
    model = models.import_folder(store, folder, "Tiny")
    models.import_folder(store, folder, "Other")
    assert models.rename(store, model.id, "Small").name == "Small"
    with pytest.raises(ServiceError, match="already"):
        models.rename(store, model.id, "Other")
    with pytest.raises(ServiceError, match=r'no model "Tiny"\. There are: Other, Small'):
        models.get(store, "Tiny")


def test_delete(store: Store, folder: Path) -> None:
    model = models.import_folder(store, folder, "Tiny")
    use(store, model)
    assert models.dependents(store, model.id) == ['run "Try"', 'forecast "Fan"']
    with pytest.raises(ServiceError, match='used by run "Try", forecast "Fan"'):
        models.delete(store, model.id)
    assert store.files.model_folder(model.id).is_dir()
    models.delete(store, model.id, force=True)
    assert not store.files.model_folder(model.id).exists()
    assert models.list_models(store) == []


def test_a_model_in_use_is_kept(store: Store, folder: Path) -> None:
    model = models.import_folder(store, folder, "Tiny")
    use(store, model, "running")
    with pytest.raises(ServiceError, match='in use by run "Try"'):
        models.delete(store, model.id, force=True)
    assert load_bundle(models.bundle_source(store, model), device="cpu").hash == model.model_hash


def test_cards(store: Store, folder: Path, assets: Path) -> None:
    nano = models.ensure_builtin(store)
    assert "comes with the workbench" in models.model_card(store, nano)
    (assets / models.BUILTIN / "README.md").write_text("# Nano\n", encoding="utf-8")
    assert models.model_card(store, nano) == "# Nano\n"
    model = models.import_folder(store, folder, "Tiny")
    with store.session() as session:
        repository.update_row(session, Model, model.id, parent_id=nano.id, best_s1=1.25)
    card = models.model_card(store, models.get(store, "Tiny"))
    assert card.startswith("# Tiny\n")
    assert f"Fine-tuned from: {nano.name}" in card
    assert "s1 1.2500" in card
    assert "imported from: by hand" in card
    assert str(store.files.root) not in card
