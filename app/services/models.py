"""Models: the built-in one, released weights, imported folders and what fine-tuning made."""

from pathlib import Path
from typing import Any

from app.jobs.bundles import bundle_source
from app.jobs.tasks import Task, download_tasks, key_of
from app.services.errors import ServiceError
from app.services.shared import (
    check_deletable,
    clean_name,
    describe,
    free_name,
    name_taken,
    not_found,
    remove_files,
)
from app.storage import Store, repository
from app.storage.models import Model, new_id
from kronos_core.model.hub import Progress
from kronos_core.model.zoo import ASSETS, ZOO, Bundle, ZooEntry, load_bundle, save_bundle
from kronos_core.model.zoo import download as download_bundle

__all__ = [
    "BUILTIN",
    "RELEASED",
    "bundle_source",
    "cancel_download",
    "delete",
    "dependents",
    "download",
    "download_task",
    "ensure_builtin",
    "get",
    "import_folder",
    "list_models",
    "model_card",
    "released",
    "rename",
    "start_download",
]

BUILTIN = "kronos-nano"
RELEASED = tuple(name for name, entry in ZOO.items() if not entry.embedded)
KINDS = {
    "builtin": "comes with the workbench",
    "released": "released weights",
    "finetuned": "fine-tuned here",
    "imported": "imported from a folder",
}


def ensure_builtin(store: Store) -> Model:
    """The row of the model that comes with the program; written or brought up to date."""
    facts = _facts(load_bundle(BUILTIN, device="cpu"))
    with store.session() as session:
        if not repository.update_row(session, Model, BUILTIN, **facts):
            name = free_name(ZOO[BUILTIN].title, repository.names(session, Model))
            row = Model(id=BUILTIN, name=name, kind="builtin", folder="", **facts)
            repository.add_unless_taken(session, row)
    return get(store, BUILTIN)


def list_models(store: Store) -> list[Model]:
    """All models: the built-in one first, then the newest."""
    with store.session(write=False) as session:
        rows = repository.newest(session, Model)
    return sorted(rows, key=lambda row: row.kind != "builtin")


def get(store: Store, id_or_name: str) -> Model:
    """The model with this id or name; ServiceError lists what there is."""
    with store.session(write=False) as session:
        found = repository.find(session, Model, id_or_name)
        if found is None:
            raise not_found(id_or_name, "model", repository.names(session, Model))
    return found


def released(store: Store) -> list[tuple[ZooEntry, Model | None]]:
    """The released models, each with its row once it was downloaded."""
    with store.session(write=False) as session:
        return [(ZOO[name], repository.get(session, Model, name)) for name in RELEASED]


def start_download(store: Store, name: str) -> str:
    """Fetches released weights on a thread of their own. -> key of the `Model`

    Asking again while it runs starts nothing. ServiceError for a name that is not released.
    """
    _check_released(name)
    key = _download_key(store, name)
    # A model that was deleted since can be fetched anew.
    return download_tasks().start(key, lambda report: download(store, name, report), again=True)


def download_task(store: Store, name: str) -> Task | None:
    """The download of this model as it is now, in bytes; None if none was started."""
    return download_tasks().poll(_download_key(store, name))


def cancel_download(store: Store, name: str) -> None:
    """Ends the download at its next piece; nothing of it stays."""
    download_tasks().cancel(_download_key(store, name))


def _download_key(store: Store, name: str) -> str:
    return key_of("download", {"workspace": str(store.files.root), "name": name})


def _check_released(name: str) -> None:
    if name not in RELEASED:
        raise not_found(name, "released model", RELEASED)


def download(store: Store, name: str, progress: Progress | None = None) -> Model:
    """Fetches released weights; a model that is here already is returned as it is.

    progress hears (bytes here, bytes in all); raising there ends the download. BundleError when
    they cannot be had, with what to do by hand; ServiceError for a name that is not released.
    """
    _check_released(name)
    if known := _known(store, name):
        return known
    folder = download_bundle(name, store.files.model_folder(name), progress)
    with store.session(write=False) as session:
        title = free_name(ZOO[name].title, repository.names(session, Model))
    return _register(store, name, title, "released", folder)


def import_folder(store: Store, path: str | Path, name: str) -> Model:
    """Copies a bundle folder into the workspace, after it has been loaded strictly.

    Without a name it is called as the bundle calls itself. BundleError says what is wrong with
    the folder, ServiceError that the name is taken.
    """
    folder = Path(path).expanduser()
    if not str(path).strip() or not folder.is_dir():
        raise ServiceError(
            f'There is no folder "{path}" on this machine. '
            "Give the folder that holds tokenizer/ and predictor/."
        )
    bundle = load_bundle(folder, device="cpu")
    name = clean_name(name or bundle.name, "model")
    with store.session(write=False) as session:
        if name in repository.names(session, Model):
            raise name_taken(name, "model")
    bundle.name = name
    bundle.provenance = {**bundle.provenance, "imported_from": folder.absolute().name}
    model_id = new_id()
    target = store.files.model_folder(model_id)
    save_bundle(bundle, target)
    return _register(store, model_id, name, "imported", target)


def _register(store: Store, model_id: str, name: str, kind: str, folder: Path) -> Model:
    """Writes the row of a bundle that lies in the workspace; without a row it does not stay."""
    row = None
    try:
        facts = _facts(load_bundle(folder, device="cpu"))
        place = folder.relative_to(store.files.root).as_posix()
        with store.session() as session:
            row = repository.add_unless_taken(
                session, Model(id=model_id, name=name, kind=kind, folder=place, **facts)
            )
    finally:
        # The same download may have been registered by somebody else meanwhile.
        row = row or _known(store, model_id)
        if row is None:
            store.files.delete_model(model_id)
    if row is None:
        raise name_taken(name, "model")
    return row


def _facts(bundle: Bundle) -> dict[str, Any]:
    return {
        "parameters": bundle.parameters,
        "max_context": bundle.max_context,
        "s2_rotary": bundle.s2_rotary,
        "model_hash": bundle.hash,
        "provenance": bundle.provenance,
    }


def rename(store: Store, id_or_name: str, name: str) -> Model:
    """Gives a model another name; ServiceError if it is taken."""
    model, name = get(store, id_or_name), clean_name(name, "model")
    with store.session() as session:
        holder = repository.find_by_name(session, Model, name)
        if holder is not None and holder.id != model.id:
            raise name_taken(name, "model")
        repository.update_row(session, Model, model.id, name=name)
    return get(store, model.id)


def dependents(store: Store, id_or_name: str) -> list[str]:
    """The runs that start from a model and the forecasts made with it, in words."""
    model = get(store, id_or_name)
    with store.session(write=False) as session:
        return describe(repository.dependents_of_model(session, model.id))


def delete(store: Store, id_or_name: str, *, force: bool = False) -> None:
    """Deletes a model; with `force` also the runs that start from it and its forecasts.

    Models fine-tuned from it stay. ServiceError for the built-in model, and names what uses it
    without `force` or while any of it is still queued or running.
    """
    model = get(store, id_or_name)
    if model.kind == "builtin":
        raise ServiceError(f'"{model.name}" comes with the workbench and cannot be deleted.')
    with store.session() as session:
        users = repository.dependents_of_model(session, model.id)
        check_deletable("model", model.name, users, force=force)
        repository.delete_dependents(session, *users)
        repository.delete_model(session, model.id)
    remove_files(store, users)
    store.files.delete_model(model.id)


def model_card(store: Store, model: Model) -> str:
    """What the model is and where it comes from, as Markdown."""
    written = ASSETS / model.id / "README.md"
    if model.kind == "builtin" and written.is_file():
        return written.read_text(encoding="utf-8")
    facts = [f"- {name}: {value}" for name, value in _card_facts(store, model) if value]
    origin = [f"- {name.replace('_', ' ')}: {value}" for name, value in model.provenance.items()]
    sections = [f"# {model.name}", "\n".join(facts)]
    if origin:
        sections += ["## Origin", "\n".join(origin)]
    return "\n\n".join(sections) + "\n"


def _card_facts(store: Store, model: Model) -> list[tuple[str, str | None]]:
    losses = {"s1": model.best_s1, "s2": model.best_s2, "total": model.best_total}
    known = [f"{name} {loss:.4f}" for name, loss in losses.items() if loss is not None]
    return [
        ("Kind", KINDS[model.kind]),
        ("Fine-tuned from", _name_of(store, model.parent_id)),
        ("Parameters of the predictor", f"{model.parameters:,}"),
        ("Longest context", f"{model.max_context:,} bars"),
        ("Rotary position of single s2 queries", model.s2_rotary),
        ("Best validation losses (nats per token)", ", ".join(known)),
        ("Added", f"{model.created_at:%Y-%m-%d %H:%M} UTC"),
        ("SHA-256 of the weights", f"`{model.model_hash}`"),
    ]


def _name_of(store: Store, model_id: str | None) -> str | None:
    found = _known(store, model_id) if model_id else None
    return found.name if found else None


def _known(store: Store, model_id: str) -> Model | None:
    with store.session(write=False) as session:
        return repository.get(session, Model, model_id)
