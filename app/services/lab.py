"""The teacher-forcing lab: what a model says of known bars, computed on the short-job thread.

Each `start_…` returns a key at once; `poll(key)` gives the task, whose `result` is the type that
the function names. Equal questions share one key, and a finished one is answered again at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from app.jobs.tasks import Report, Task, key_of, tasks
from app.services import datasets, models
from app.services.errors import ServiceError
from app.services.run_plans import bars_of, bundle_of
from app.storage import Store
from app.storage.models import Dataset, Model
from kronos_core.evaluation import exposure
from kronos_core.evaluation.guess import next_guess

LONGEST_GAP_BARS = 20_000
"""The gap's origins are spread over this many bars before the end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """Which bars to look at: `horizon` bars after `context` bars of a dataset, the last of them
    at index `end` (None: the dataset's last bar). Lengths in bars."""

    dataset_id: str
    model_id: str
    context: int
    horizon: int
    end: int | None = None


def start_probability(store: Store, stretch: Stretch) -> str:
    """The chance of the true bars, one by one. -> key of an `exposure.SequenceProbability`"""
    return _start(store, "probability", stretch, exposure.sequence_probability)


def start_guess(
    store: Store, stretch: Stretch, *, own: Sequence[Sequence[int]] | None = None
) -> str:
    """What is expected of the stretch's last bar; `own` s1 and s2 stand in for the bars between
    context and it. -> key of a `guess.Guess`"""
    return _start(store, "guess", stretch, next_guess, own=own)


def start_fork(store: Store, stretch: Stretch, *, greedy: bool = False, seed: int = 0) -> str:
    """The stretch on true tokens and on own tokens. -> key of an `exposure.Fork`"""
    return _start(store, "fork", stretch, exposure.fork, greedy=greedy, seed=seed)


def start_walks(
    store: Store,
    stretch: Stretch,
    *,
    epsilon: float,
    count: int = 1,
    greedy: bool = False,
    seed: int = 0,
) -> str:
    """Walks with one ε. -> key of an `exposure.Walk`"""
    options = {"epsilon": epsilon, "count": count, "greedy": greedy, "seed": seed}
    return _start(store, "walks", stretch, exposure.walks, **options)


def start_gap(
    store: Store,
    stretch: Stretch,
    *,
    epsilons: Sequence[float] = exposure.EPSILONS,
    origins: int = 4,
    walks: int = 8,
    seed: int = 0,
) -> str:
    """The exposure gap over origins before `end`. -> key of an `exposure.ExposureGap`"""
    options = {"epsilons": list(epsilons), "origins": origins, "walks": walks, "seed": seed}
    return _start(store, "gap", stretch, exposure.exposure_gap, **options)


def poll(key: str) -> Task | None:
    """The task as it is now; None if it is unknown, as after a restart: then start it again."""
    return tasks().poll(key)


def cancel(key: str) -> None:
    """Ends a task that waits or runs before its next step."""
    tasks().cancel(key)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Question:
    """What to compute, with everything found that it needs."""

    store: Store
    dataset: Dataset
    model: Model
    stretch: Stretch
    end: int
    compute: Callable[..., Any]
    options: dict[str, Any]

    def answer(self, report: Report) -> Any:
        """The result; between the steps of its computation it can be cancelled."""
        report(0, 1)
        bundle = bundle_of(self.store, self.model, self.store.settings.device)
        report(0, 1)  # loading a large model takes seconds
        (bars,) = bars_of(self.store, [self.dataset])
        gap = self.compute is exposure.exposure_gap
        window = self.stretch.context + self.stretch.horizon
        first = max(0, self.end + 1 - (LONGEST_GAP_BARS if gap else window))
        return self.compute(
            bundle,
            bars.iloc[first : self.end + 1].reset_index(drop=True),
            context=self.stretch.context,
            horizon=self.stretch.horizon,
            **self.options,
            progress=report,
        )


def _start(
    store: Store, kind: str, stretch: Stretch, compute: Callable[..., Any], **options: Any
) -> str:
    dataset, model = datasets.get(store, stretch.dataset_id), models.get(store, stretch.model_id)
    question = _Question(
        store=store,
        dataset=dataset,
        model=model,
        stretch=stretch,
        end=_end(dataset, stretch),
        compute=compute,
        options=options,
    )
    inputs = {
        **asdict(stretch),
        **options,
        "end": question.end,
        "data": dataset.data_hash,
        "model": model.model_hash,
    }
    return tasks().start(key_of(kind, inputs), question.answer)


def _end(dataset: Dataset, stretch: Stretch) -> int:
    end = dataset.bars - 1 if stretch.end is None else stretch.end
    needed = stretch.context + stretch.horizon
    if not 0 <= end < dataset.bars:
        raise ServiceError(
            f"The last bar must be one of the {dataset.bars} bars of {dataset.name} "
            f"(0 to {dataset.bars - 1}), got {end}."
        )
    if end + 1 < needed:
        raise ServiceError(
            f"There are {end + 1} bars up to the chosen one, fewer than context and horizon "
            f"together ({needed}). Choose a later bar, or shorten one of the two."
        )
    return end
