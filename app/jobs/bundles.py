"""Models as a worker needs them: where a bundle lies, and how a fine-tuned one is registered."""

from itertools import chain, count
from pathlib import Path
from typing import Any

from app.storage import repository
from app.storage.models import Model, Run, new_id
from app.storage.session import Store
from kronos_core.model.zoo import load_bundle, save_bundle


def bundle_source(store: Store, model: Model) -> str | Path:
    """What `load_bundle` takes: the name of a built-in model, or a folder."""
    return store.files.root / model.folder if model.folder else model.id


def register_model(store: Store, run: Run, folder: Path, best: dict[str, Any]) -> str:
    """Copies the bundle in `folder` among the models and writes its row. -> model id

    A run has one model: resumed, it replaces what its earlier attempt left. `best` has best_step,
    best_s1, best_s2 and best_total (validation losses in nats per token).
    """
    model_id = run.model_id or new_id()
    name = _name_for(store, run, model_id)
    bundle = load_bundle(folder, device="cpu")
    bundle.name = name
    target = store.files.model_folder(model_id)
    save_bundle(bundle, target)
    fields = {
        **{key: best[key] for key in ("best_s1", "best_s2", "best_total")},
        "parameters": bundle.parameters,
        "max_context": bundle.max_context,
        "s2_rotary": bundle.s2_rotary,
        "model_hash": bundle.hash,
        "provenance": {**bundle.provenance, "run": run.name, "step": best["best_step"]},
    }
    with store.session() as session:
        if repository.update_row(session, Model, model_id, **fields):
            return model_id
        row = Model(
            id=model_id,
            name=name,
            kind="finetuned",
            folder=target.relative_to(store.files.root).as_posix(),
            parent_id=run.base_model_id,
            run_id=run.id,
            dataset_id=run.dataset_id,
            **fields,
        )
        repository.add(session, row)
    return model_id


def _name_for(store: Store, run: Run, model_id: str) -> str:
    """The name that the model has, or else the run's with a number where it is taken."""
    with store.session(write=False) as session:
        known = repository.get(session, Model, model_id)
        if known is not None:
            return known.name
        taken = set(repository.names(session, Model))
    candidates = chain([run.name], (f"{run.name} {number}" for number in count(2)))
    return next(name for name in candidates if name not in taken)
