"""A run's curves in a size that can be drawn: few rows, with every extreme among them.

What was read is kept in this process, so that a live page reads only what is new.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from app.storage import Store, repository
from app.storage.models import Run, RunMetric

LOSSES = ("s1", "s2", "total")
"""The columns whose lowest and highest values are never thinned away."""
KEPT_CURVES = 24

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Curve:
    """The losses of one split up to its latest row; ids [N] ascending, losses [N, columns]."""

    ids: Ids = field(default_factory=lambda: np.empty(0, np.int64))
    losses: Floats = field(default_factory=lambda: np.empty((0, len(LOSSES))))

    @property
    def last_id(self) -> int:
        return int(self.ids[-1]) if len(self.ids) else 0


_curves: OrderedDict[tuple[str, str, str, int], _Curve] = OrderedDict()
_lock = threading.Lock()


def thinned(store: Store, run_id: str, points: int = 1000) -> list[RunMetric]:
    """Rows of a run, about `points` for each curve of each split, oldest first.

    Of each stretch of rows those with the lowest and the highest s1, s2 and total are there, and
    the last row of each stage; a run with fewer rows has all of them. The highest id among them
    is where `metrics` goes on.
    """
    with store.session(write=False) as session:
        run = repository.get(session, Run, run_id)
    if run is None:
        return []
    chosen: list[int] = []
    for split in ("train", "validation"):
        curve = _up_to_date(store, run, split)
        chosen += curve.ids[kept_rows(curve.losses, points)].tolist()
    with store.session(write=False) as session:
        return repository.metrics_with(session, run_id, chosen)


def kept_rows(losses: Floats, points: int) -> Ids:
    """Indices [at most about points · columns] of rows [N, columns] that draw the same curves."""
    rows = len(losses)
    if rows <= points:
        return np.arange(rows)
    width = -(-2 * rows // points)  # each stretch gives a lowest and a highest row
    starts = np.arange(0, rows, width)
    padded = np.full((len(starts) * width, losses.shape[1]), np.nan)
    padded[:rows] = losses
    stretches = padded.reshape(len(starts), width, -1)
    low = np.where(np.isnan(stretches), np.inf, stretches).argmin(axis=1)
    high = np.where(np.isnan(stretches), -np.inf, stretches).argmax(axis=1)
    extremes = (np.concatenate([low, high], axis=1) + starts[:, None]).ravel()
    # Where s1 begins, the tokenizer stage has ended.
    switches = np.flatnonzero(np.diff(np.isnan(losses[:, 0]).astype(np.int8)))
    return np.unique(np.concatenate([[0, rows - 1], switches, extremes]))


def _up_to_date(store: Store, run: Run, split: str) -> _Curve:
    # A resume may write rows again under the ids they had, so it starts anew.
    key = (store.settings.resolved_database_url, run.id, split, run.resumes)
    with _lock:
        known = _curves.get(key, _Curve())
    with store.session(write=False) as session:
        fresh = repository.metric_columns(session, run.id, split, LOSSES, known.last_id)
    if fresh:
        table = np.array(fresh, dtype=np.float64)
        known = _Curve(
            np.concatenate([known.ids, table[:, 0].astype(np.int64)]),
            np.concatenate([known.losses, table[:, 1:]]),
        )
    with _lock:
        _curves[key] = known
        _curves.move_to_end(key)
        while len(_curves) > KEPT_CURVES:
            _curves.popitem(last=False)
    return known
