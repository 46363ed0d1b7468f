"""Fine-tuning runs: queueing, stopping, resuming, and all that other modules know of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from app.services.curves import thinned
from app.services.errors import ServiceError
from app.services.run_exports import (
    export_checkpoint,
    export_config,
    export_curves,
    export_result,
    export_tensorboard,
    start_export,
)
from app.services.run_plans import (
    Inputs,
    Preflight,
    checked,
    command,
    command_of,
    inputs_of,
    preflight,
    probe,
    probe_result,
    start_probe,
)
from app.services.run_records import (
    Difference,
    Progress,
    compare_settings,
    config_of,
    events,
    get,
    list_runs,
    log_tail,
    metrics,
    progress,
    queued_runs,
    sparklines,
)
from app.services.shared import LONGEST_NAME, clean_name, drop_unused_bars
from app.services.status import version
from app.storage import Store, repository
from app.storage.models import ACTIVE_STATES, RESUMABLE_STATES, Run, utc_now
from kronos_core.model.zoo import resolve_device
from kronos_core.training.config import TrainingConfig

__all__ = [
    "Difference",
    "Move",
    "Preflight",
    "Progress",
    "cancel",
    "command",
    "command_of",
    "compare_settings",
    "config_of",
    "delete",
    "events",
    "export_checkpoint",
    "export_config",
    "export_curves",
    "export_result",
    "export_tensorboard",
    "get",
    "list_runs",
    "log_tail",
    "metrics",
    "preflight",
    "probe",
    "probe_result",
    "progress",
    "queue",
    "queued_runs",
    "reorder",
    "resume",
    "sparklines",
    "start_export",
    "start_probe",
    "stop",
    "thinned",
    "update",
]

LONGEST_NOTES = 10_000
LONGEST_TAG = 40
MOST_TAGS = 20
Move = Literal["up", "down", "first"]


def queue(
    store: Store,
    *,
    model_id: str,
    config: TrainingConfig,
    datasets: Sequence[str] | None = None,
    dataset_id: str | None = None,
    name: str | None = None,
    notes: str = "",
    tags: Sequence[str] = (),
) -> Run:
    """Queues a run after its pre-flight; a supervisor starts it when its device is free.

    Several datasets stand in the order of `config.data`; without any, those it names are taken.
    ServiceError with the numbers and the remedy if the run cannot work.
    """
    wanted = inputs_of(
        store, datasets=datasets, dataset_id=dataset_id, model_id=model_id, config=config
    )
    found = checked(store, wanted)
    if found.plan is None or not found.ok:
        raise ServiceError(" ".join(found.problems))
    steps = found.plan.total_steps
    first, model = wanted.datasets[0], wanted.model
    run = Run(
        name=clean_name(name, "run") if name and name.strip() else _name_for(wanted),
        state="queued",
        dataset_id=first.id,
        dataset_ids=[row.id for row in wanted.datasets],
        base_model_id=model.id,
        config=wanted.config.to_dict(),
        device=wanted.config.device,
        total_steps=steps,
        data_hash=first.data_hash,
        data_hashes=[row.data_hash for row in wanted.datasets],
        model_hash=model.model_hash,
        code_version=version(),
        notes=_clean_notes(notes),
        tags=_clean_tags(tags),
    )
    with store.session() as session:
        repository.lock_queue(session)
        run.queue_position = repository.last_queue_position(session) + 1
        repository.add(session, run)
        repository.append_event(session, run.id, "queued", f"Queued for {steps} steps.")
    return run


def _name_for(wanted: Inputs) -> str:
    others = f" +{len(wanted.datasets) - 1}" if len(wanted.datasets) > 1 else ""
    when = f", {utc_now():%d %b %H:%M}"
    title = f"{wanted.datasets[0].name}{others}, {wanted.model.name}"
    return title[: LONGEST_NAME - len(when)] + when


def update(
    store: Store,
    run_id: str,
    *,
    name: str | None = None,
    notes: str | None = None,
    tags: Sequence[str] | None = None,
) -> Run:
    """Changes what a person wrote about a run; what is None stays."""
    run = get(store, run_id)
    fields: dict[str, object] = {}
    if name is not None:
        fields["name"] = clean_name(name, "run")
    if notes is not None:
        fields["notes"] = _clean_notes(notes)
    if tags is not None:
        fields["tags"] = _clean_tags(tags)
    if fields:
        with store.session() as session:
            repository.update_row(session, Run, run.id, **fields)
    return get(store, run.id)


def _clean_notes(notes: str) -> str:
    text = notes.strip()
    if len(text) > LONGEST_NOTES:
        raise ServiceError(
            f"The notes have {len(text):,} characters; shorten them to at most {LONGEST_NOTES:,}."
        )
    return text


def _clean_tags(tags: Sequence[str]) -> list[str]:
    """The tags without blanks around them, each once, in their order."""
    cleaned = list(dict.fromkeys(text for tag in tags if (text := " ".join(tag.split()))))
    long = [tag for tag in cleaned if len(tag) > LONGEST_TAG or not tag.isprintable()]
    if long or len(cleaned) > MOST_TAGS:
        raise ServiceError(
            f"A run takes at most {MOST_TAGS} tags of at most {LONGEST_TAG} printable characters."
        )
    return cleaned


def reorder(store: Store, run_id: str, move: Move) -> list[Run]:
    """Moves a queued run one place forward or back, or to the front. -> the queue now

    ServiceError if it is not queued (any more).
    """
    run = get(store, run_id)
    with store.session() as session:
        repository.lock_queue(session)
        order = [item.id for item in repository.runs_in(session, ("queued",))]
        if run.id not in order:
            raise ServiceError(f"{run.name} is not waiting in the queue; nothing was moved.")
        place = order.index(run.id)
        order.remove(run.id)
        order.insert({"up": max(0, place - 1), "down": place + 1, "first": 0}[move], run.id)
        for position, identifier in enumerate(order, start=1):
            repository.update_row(session, Run, identifier, queue_position=position)
    return queued_runs(store)


def stop(store: Store, run_id: str) -> Run:
    """Cancels a queued run at once; asks a running one to save and stop."""
    run = get(store, run_id)
    with store.session() as session:
        ended = repository.set_state(
            session,
            run.id,
            "stopped",
            allowed_from=("queued",),
            reason="Cancelled before it started. Resume puts it back into the queue.",
            finished_at=utc_now(),
        )
        asked = ended or repository.set_state(
            session,
            run.id,
            "stopping",
            allowed_from=("starting", "running"),
            stop_requested=True,
        )
        if asked:
            message = "Cancelled before it started." if ended else "Asked to save and stop."
            repository.append_event(session, run.id, "stopped" if ended else "stopping", message)
    run = get(store, run.id)
    if not asked and run.state != "stopping":
        raise ServiceError(f"{run.name} is {run.state}; there is nothing to stop.")
    return run


cancel = stop


def resume(
    store: Store, run_id: str, *, micro_batch: int | None = None, device: str | None = None
) -> Run:
    """Puts a stopped, failed or orphaned run back into the queue; it continues from its last
    checkpoint. Where it runs may change, for one that ran out of memory: fewer windows at once,
    or another device. ServiceError if it is in another state, or the change is impossible."""
    run = get(store, run_id)
    config = _moved(config_of(run), micro_batch, device)
    with store.session() as session:
        repository.lock_queue(session)
        queued = repository.set_state(
            session,
            run.id,
            "queued",
            allowed_from=RESUMABLE_STATES,
            stop_requested=False,
            resumes=run.resumes + 1,
            queued_at=utc_now(),
            queue_position=repository.last_queue_position(session) + 1,
            config=config.to_dict(),
            device=config.device,
            finished_at=None,
            reason=None,
            host=None,
            pid=None,
            pid_started=None,
            heartbeat_at=None,
        )
        if queued:
            repository.append_event(session, run.id, "queued", "Queued again by a resume.")
    if not queued:
        raise ServiceError(
            f"{run.name} is {run.state}; only {', '.join(RESUMABLE_STATES)} runs can be resumed."
        )
    return get(store, run.id)


def _moved(config: TrainingConfig, micro_batch: int | None, device: str | None) -> TrainingConfig:
    """The settings with what may differ between the attempts of one run."""
    try:
        if device is not None:
            resolve_device(device)
        return replace(
            config,
            micro_batch=config.micro_batch if micro_batch is None else micro_batch,
            device=config.device if device is None else device,
        )
    except ValueError as error:
        raise ServiceError(str(error)) from error


def delete(store: Store, run_id: str) -> None:
    """Deletes a run with its curves, log, checkpoints, and its bars if nothing else needs them.

    A model that came of it stays.
    """
    run = get(store, run_id)
    with store.session() as session:
        current = repository.get(session, Run, run.id)
        if current is not None and current.state in ACTIVE_STATES:
            raise ServiceError(f"{run.name} is {current.state}. Stop it first, then delete it.")
        repository.delete_run(session, run.id)
    store.files.delete_run(run.id)
    drop_unused_bars(store, {run.data_hash, *run.data_hashes})
