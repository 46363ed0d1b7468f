"""What datasets and models have in common: names, and what depends on them."""

from collections.abc import Iterable, Sequence
from itertools import count

from app.services.errors import ServiceError
from app.storage import repository
from app.storage.models import ACTIVE_STATES, PENDING_FORECAST_STATES, Forecast, Run
from app.storage.session import Store

LONGEST_NAME = 80
_NAMED = 5

Dependents = tuple[list[Run], list[Forecast]]


def clean_name(name: str, what: str) -> str:
    """The trimmed name; ServiceError unless it has 1 to 80 printable characters."""
    trimmed = " ".join(name.split())
    if not trimmed:
        raise ServiceError(f"The {what} has no name. Give it one.")
    if len(trimmed) > LONGEST_NAME:
        raise ServiceError(
            f"The name of the {what} has {len(trimmed)} characters; "
            f"shorten it to at most {LONGEST_NAME}."
        )
    if not trimmed.isprintable():
        raise ServiceError(
            f"The name {trimmed!r} holds characters that cannot be shown. Remove them."
        )
    return trimmed


def free_name(name: str, taken: Iterable[str]) -> str:
    """The name itself, or the name with the first number that makes it new."""
    known = set(taken)
    if name not in known:
        return name
    numbered = (f"{name[: LONGEST_NAME - 5]} {number}" for number in count(2))
    return next(candidate for candidate in numbered if candidate not in known)


def name_taken(name: str, what: str) -> ServiceError:
    """The error for a name that another row has."""
    return ServiceError(
        f'There is already a {what} called "{name}". Choose another name, or rename that one first.'
    )


def not_found(key: str, what: str, names: Sequence[str]) -> ServiceError:
    """The error for an id or name that nothing has."""
    known = f"There are: {', '.join(names)}." if names else f"There is no {what} yet."
    return ServiceError(f'There is no {what} "{key}". {known}')


def describe(dependents: Dependents) -> list[str]:
    """One line for each run and each forecast: run "A", forecast "B"."""
    runs, forecasts = dependents
    return [f'run "{run.name}"' for run in runs] + [f'forecast "{row.name}"' for row in forecasts]


def check_deletable(what: str, name: str, dependents: Dependents, *, force: bool) -> None:
    """ServiceError while work that is not over uses it, or when anything does without `force`."""
    runs, forecasts = dependents
    busy_runs = [run for run in runs if run.state in (*ACTIVE_STATES, "queued")]
    busy_forecasts = [row for row in forecasts if row.state in PENDING_FORECAST_STATES]
    if busy := describe((busy_runs, busy_forecasts)):
        raise ServiceError(
            f'The {what} "{name}" is in use by {_listed(busy)}. Stop that first, then delete.'
        )
    if (users := describe(dependents)) and not force:
        raise ServiceError(
            f'The {what} "{name}" is used by {_listed(users)}. '
            "Delete these first, or confirm that they are deleted with it."
        )


def _listed(users: Sequence[str]) -> str:
    rest = len(users) - _NAMED
    return ", ".join(users[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def drop_unused_bars(store: Store, hashes: Iterable[str]) -> None:
    """Removes the bars files of these hashes that no dataset, run or forecast refers to."""
    with store.session(write=False) as session:
        unused = [
            found for found in set(hashes) if found and not repository.bars_in_use(session, found)
        ]
    for data_hash in unused:
        store.files.delete_bars(data_hash)


def remove_files(store: Store, dependents: Dependents) -> None:
    """Removes the files of deleted runs and forecasts, but none that a forecast still uses."""
    runs, forecasts = dependents
    for run in runs:
        store.files.delete_run(run.id)
    hashes = {row.content_hash for row in forecasts if row.content_hash}
    with store.session(write=False) as session:
        unused = [
            found for found in hashes if not repository.forecasts_with_content(session, found)
        ]
    for content_hash in unused:
        store.files.delete_forecast(content_hash)
