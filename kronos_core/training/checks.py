"""Checks of settings; each message names the setting, what it may be, and what it was."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

Range = tuple[Callable[[float], bool], str]


def require_whole(name: str, value: Any, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ValueError(f"{name} must be a whole number of at least {minimum}, got {value!r}")


def require_number(name: str, value: Any, allowed: Range) -> None:
    within, wording = allowed
    if isinstance(value, bool) or not isinstance(value, int | float) or not within(value):
        raise ValueError(f"{name} must be {wording}, got {value!r}")


def require_switch(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got {value!r}")


def require_one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"unknown {name} {value!r}; choose one of {', '.join(allowed)}")


def require_type(name: str, value: Any, kind: type, article: str = "a") -> None:
    if not isinstance(value, kind):
        raise ValueError(f"{name} must be {article} {kind.__name__}, got {value!r}")


def only_known(owner: type, values: Mapping[str, Any], what: str) -> dict[str, Any]:
    """A copy of ``values`` whose keys are all fields of the dataclass ``owner``."""
    names = [item.name for item in fields(owner)]
    unknown = sorted(str(key) for key in values if key not in names)
    if unknown:
        hints = [_meant(key, names) for key in unknown]
        raise ValueError(f"unknown {what} {', '.join(hints)}; known are {', '.join(names)}")
    return dict(values)


def _meant(key: str, names: list[str]) -> str:
    close = difflib.get_close_matches(key, names, n=1)
    return f"{key} (did you mean {close[0]}?)" if close else key
