"""Before a run is queued: what it will do, what stands in its way, what it will take."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from app.jobs.tasks import Report, Task, tasks
from app.jobs.threads import short_jobs
from app.services import datasets as dataset_service
from app.services import models
from app.services.errors import ServiceError
from app.services.run_records import config_of, probe_key
from app.storage import Files, StorageError, Store
from app.storage.models import Dataset, Model, Run
from kronos_core.model.zoo import Bundle, resolve_device
from kronos_core.training import probe as measuring
from kronos_core.training.config import Plan, TrainingConfig, plan
from kronos_core.training.options import DataShare, Lora, TokenizerStage
from kronos_core.training.probe import Check, Probe
from kronos_core.training.teacher_forcing import TeacherForcing
from kronos_core.training.yaml_text import write_yaml


@dataclass(frozen=True, kw_only=True, slots=True)
class Preflight:
    """The conditions of a run one by one, and what it will do; no plan where it cannot work.

    config: the settings as the run will have them, with the datasets they are for.
    """

    checks: tuple[Check, ...]
    plan: Plan | None
    config: TrainingConfig

    @property
    def ok(self) -> bool:
        return self.plan is not None and all(check.ok for check in self.checks)

    @property
    def problems(self) -> list[str]:
        """What is not met, each with its remedy."""
        return [check.message for check in self.checks if not check.ok]


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """What a run reads, found in the workspace: datasets in the order of the config's."""

    datasets: tuple[Dataset, ...]
    model: Model
    config: TrainingConfig


def inputs_of(
    store: Store,
    *,
    datasets: Sequence[str] | None,
    dataset_id: str | None,
    model_id: str,
    config: TrainingConfig,
) -> Inputs:
    """The rows that ids or names stand for. Without datasets, those that the config names.

    ServiceError for what is not there, or where the config weights other datasets.
    """
    named = [share.name for share in config.data]
    wanted = list(datasets) if datasets else [dataset_id] if dataset_id else named
    if not wanted:
        raise ServiceError("The run has no dataset. Choose at least one.")
    found = tuple(dataset_service.get(store, key) for key in wanted)
    if len({row.id for row in found}) < len(found):
        raise ServiceError("A dataset is named twice. Give it a weight of 2 instead.")
    model = models.get(store, model_id)
    return Inputs(datasets=found, model=model, config=_with_data(config, found))


def _with_data(config: TrainingConfig, found: Sequence[Dataset]) -> TrainingConfig:
    """The config with the present names of its datasets and their weights."""
    if not config.data and len(found) == 1:
        return config
    if config.data and len(config.data) != len(found):
        raise ServiceError(
            f"The settings weight {len(config.data)} datasets, but {len(found)} are chosen. "
            "Give each chosen dataset one weight."
        )
    weights = [share.weight for share in config.data] or [1.0] * len(found)
    shares = (
        DataShare(name=row.name, weight=weight) for row, weight in zip(found, weights, strict=True)
    )
    return replace(config, data=tuple(shares))


def preflight(
    store: Store,
    *,
    model_id: str,
    config: TrainingConfig,
    datasets: Sequence[str] | None = None,
    dataset_id: str | None = None,
    measured: Probe | None = None,
) -> Preflight:
    """Checks a run without starting it; with a probe's result its memory too.

    ServiceError if a dataset, the model or its files are missing.
    """
    wanted = inputs_of(
        store, datasets=datasets, dataset_id=dataset_id, model_id=model_id, config=config
    )
    return checked(store, wanted, measured)


def checked(store: Store, wanted: Inputs, measured: Probe | None = None) -> Preflight:
    """The pre-flight of rows that are found already."""
    try:
        resolve_device(wanted.config.device)
    except ValueError as error:
        check = Check(name="device", ok=False, message=f"{str(error).rstrip('.')}.")
        return Preflight(checks=(check,), plan=None, config=wanted.config)
    frames = bars_of(store, wanted.datasets)
    checks = measuring.preflight(
        bundle_of(store, wanted.model, wanted.config.device),
        frames,
        wanted.config,
        folder=store.files.root / "runs",
        measured=measured,
    )
    return Preflight(checks=checks, plan=_plan(frames, wanted), config=wanted.config)


def _plan(frames: Iterable[pd.DataFrame], wanted: Inputs) -> Plan | None:
    stamps = [pd.DatetimeIndex(frame["timestamps"]) for frame in frames]
    try:
        return plan(stamps, wanted.config, wanted.model.max_context)
    except ValueError:  # one of the checks says why
        return None


def bars_of(store: Store, datasets: Iterable[Dataset]) -> list[pd.DataFrame]:
    """The bars of each dataset in its own time zone; not to be changed. ServiceError if gone."""
    try:
        return [_kept_bars(store.files, row.data_hash, row.timezone) for row in datasets]
    except StorageError as error:
        raise ServiceError(str(error)) from error


@lru_cache(maxsize=8)
def _kept_bars(files: Files, data_hash: str, timezone: str) -> pd.DataFrame:
    """Kept, because a form asks for the same bars at each change of a setting."""
    bars = files.read_bars(data_hash)
    return bars.assign(timestamps=bars["timestamps"].dt.tz_convert(timezone))


def bundle_of(store: Store, model: Model, device: str) -> Bundle:
    """The model on a device ("auto" too), kept in memory. ServiceError if its files are gone."""
    source = models.bundle_source(store, model)
    if isinstance(source, Path) and not source.is_dir():
        raise ServiceError(
            f"The files of {model.name} are gone from the workspace. "
            "Download or import it again, or choose another model."
        )
    return short_jobs().bundle(model.model_hash, source, str(resolve_device(device)))


# ---------------------------------------------------------------- measuring


def probe(
    store: Store,
    *,
    model_id: str,
    config: TrainingConfig,
    datasets: Sequence[str] | None = None,
    dataset_id: str | None = None,
) -> Probe:
    """Measures a short piece of the run before it returns. ServiceError if it cannot work."""
    wanted = inputs_of(
        store, datasets=datasets, dataset_id=dataset_id, model_id=model_id, config=config
    )
    try:
        return _measured(store, wanted)
    except (ValueError, RuntimeError) as error:
        raise ServiceError(str(error)) from error


def start_probe(
    store: Store,
    *,
    model_id: str,
    config: TrainingConfig,
    datasets: Sequence[str] | None = None,
    dataset_id: str | None = None,
    again: bool = False,
) -> str:
    """Measures on the short-job thread. -> key for `probe_result`; equal settings are one job.

    again: also where it has been measured, as on a machine that was busy then.
    """
    wanted = inputs_of(
        store, datasets=datasets, dataset_id=dataset_id, model_id=model_id, config=config
    )

    def work(report: Report) -> Probe:
        report(0, 1)
        measured = _measured(store, wanted)
        report(1, 1)
        return measured

    hashes = [row.data_hash for row in wanted.datasets]
    key = probe_key(hashes, wanted.model.model_hash, wanted.config.to_dict())
    return tasks().start(key, work, again=again)


def probe_result(key: str) -> Task | None:
    """The measurement as it is now, its `result` a `Probe` once finished; None if unknown."""
    return tasks().poll(key)


def _measured(store: Store, wanted: Inputs) -> Probe:
    bundle = bundle_of(store, wanted.model, wanted.config.device)
    return measuring.probe(bundle, bars_of(store, wanted.datasets), wanted.config)


# ---------------------------------------------------------------- the equal command

FLAGS = {
    "epochs": "epochs",
    "steps": "steps",
    "context": "context",
    "horizon": "horizon",
    "stride": "stride",
    "batch_size": "batch-size",
    "micro_batch": "micro-batch",
    "learning_rate": "learning-rate",
    "schedule": "schedule",
    "warmup": "warmup",
    "weight_decay": "weight-decay",
    "clip_norm": "clip-norm",
    "dropout": "dropout",
    "ema": "ema",
    "patience": "patience",
    "frozen_blocks": "freeze-blocks",
    "validation_fraction": "validation-fraction",
    "test_fraction": "test-fraction",
    "validation_from": "validation-from",
    "test_from": "test-from",
    "evaluations_per_epoch": "evaluations-per-epoch",
    "seed": "seed",
    "device": "device",
}
"""Settings with an option of their own; `--set name=value` takes any other."""


def command(
    store: Store,
    *,
    model_id: str,
    config: TrainingConfig,
    datasets: Sequence[str] | None = None,
    dataset_id: str | None = None,
    name: str | None = None,
) -> str:
    """The command line that queues the same run."""
    wanted = inputs_of(
        store, datasets=datasets, dataset_id=dataset_id, model_id=model_id, config=config
    )
    words = ["python", "-m", "app", "finetune"]
    for row in wanted.datasets:
        words += ["--dataset", row.name]
    if any(share.weight != 1 for share in wanted.config.data):
        for share in wanted.config.data:
            words += ["--weight", f"{share.weight:g}"]
    words += ["--model", wanted.model.name]
    if name and name.strip():
        words += ["--name", name.strip()]
    return shlex.join([*words, *_option_words(wanted.config)])


def command_of(store: Store, run: Run) -> str:
    """The command line that queues a run like this one."""
    return command(
        store,
        datasets=run.dataset_ids,
        model_id=run.base_model_id,
        config=config_of(run),
        name=run.name,
    )


def _option_words(config: TrainingConfig) -> list[str]:
    """Options for what differs from the defaults; the device always, since it has its own."""
    usual, words = TrainingConfig(), ["--device", config.device]
    for item in fields(config):
        value = getattr(config, item.name)
        if item.name not in ("data", "device") and value != getattr(usual, item.name):
            words += _words_for(item.name, value)
    return words


def _words_for(name: str, value: Any) -> list[str]:
    if name in FLAGS:
        return [f"--{FLAGS[name]}", str(value)]
    if name == "freeze_embeddings":
        return ["--freeze-embeddings"]
    if isinstance(value, TeacherForcing):
        return [f"--{name.replace('_', '-')}", value.to_text()]
    if isinstance(value, TokenizerStage) and value == TokenizerStage(epochs=value.epochs):
        return ["--tokenizer-epochs", str(value.epochs)]
    if isinstance(value, Lora) and value == Lora(rank=value.rank):
        return ["--lora-rank", str(value.rank)]
    plain = asdict(value) if isinstance(value, TokenizerStage | Lora) else value
    return ["--set", f"{name}={_inline(plain)}"]


def _inline(value: Any) -> str:
    """A value as YAML on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_inline(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return write_yaml({"value": value}).removeprefix("value: ").strip()
