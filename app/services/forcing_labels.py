"""Models told apart by the teacher forcing that they were trained with."""

from collections.abc import Sequence

from app.services import run_records
from app.storage import Store
from app.storage.models import Model

UNTUNED = "untuned"


def forcing_labels(store: Store, models: Sequence[Model]) -> dict[str, str]:
    """By model id: "ε" and the teacher forcing of its run as the Runs page writes it, or "untuned"
    for a model that was not fine-tuned here. Those that are alike carry the model's name too.

    A fine-tuned model whose run was deleted is left out: nobody knows its ε any more.
    """
    forcing = {
        run.id: run_records.config_of(run).teacher_forcing.to_text()
        for run in run_records.list_runs(store)
    }
    found = {
        row.id: f"ε {forcing[row.run_id]}" if row.run_id in forcing else UNTUNED
        for row in models
        if row.run_id in forcing or row.parent_id is None
    }
    texts = list(found.values())
    names = {row.id: row.name for row in models}
    return {
        model_id: text if texts.count(text) == 1 else f"{text}, {names[model_id]}"
        for model_id, text in found.items()
    }


def forcing_choices(models: Sequence[Model]) -> list[Model]:
    """The models whose teacher forcing can be compared: those that came from a run, then those
    that they were fine-tuned from."""
    tuned = [row for row in models if row.run_id is not None]
    parents = {row.parent_id for row in tuned}
    return tuned + [row for row in models if row.id in parents and row not in tuned]
