"""What can be decided about a file, and the question to ask when the file decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args
from zoneinfo import ZoneInfo

import pandas as pd

from kronos_core.data.bars import CHANNELS, DataError

DateOrder = Literal["DMY", "MDY", "YMD"]
EpochUnit = Literal["s", "ms", "us", "ns"]
DATE_ORDERS: dict[DateOrder, str] = {
    "DMY": "day first",
    "MDY": "month first",
    "YMD": "year first",
}
# What a column can be used as: the channels of a bar, its time, and what helps to read them.
ROLES = ("timestamps", "time of day", *CHANNELS, "symbol", "adjusted close", "tick volume")


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadingChoices:
    """Every choice that reading a file takes; None leaves it to the reader.

    columns: role (one of ROLES) -> the column's title, or "" to leave the role without a column.
        Columns without a header are called "Column 1", "Column 2", …
    header_line: the line that holds the titles, counted from 1; 0 when there is none.
    date_order: how 01/02/2024 is meant. epoch_unit: the unit of numeric times.
    timezone: the zone of times that carry none, and the zone of the series (IANA name).
    prices: with "adjusted" the four prices are scaled by adjusted close / close.
    volume_factor, amount_factor: what volume and amount are multiplied by (lots, thousands).

    Raises ValueError for a value that cannot be meant.
    """

    columns: Mapping[str, str] | None = None
    encoding: str | None = None
    delimiter: str | None = None
    decimal: Literal[".", ","] | None = None
    header_line: int | None = None
    date_order: DateOrder | None = None
    epoch_unit: EpochUnit | None = None
    timezone: str | None = None
    prices: Literal["raw", "adjusted"] | None = None
    volume_factor: float | None = None
    amount_factor: float | None = None

    def __post_init__(self) -> None:
        _check_one_of("decimal", self.decimal, (".", ","))
        _check_one_of("date_order", self.date_order, get_args(DateOrder))
        _check_one_of("epoch_unit", self.epoch_unit, get_args(EpochUnit))
        _check_one_of("prices", self.prices, ("raw", "adjusted"))
        for role in self.columns or ():
            _check_one_of("a key of columns", role, ROLES)
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '\r\n"'):
            raise ValueError(f"delimiter must be one character, got {self.delimiter!r}")
        if self.header_line is not None and self.header_line < 0:
            raise ValueError(f"header_line counts from 1 (0: no header), got {self.header_line}")
        for name in ("volume_factor", "amount_factor"):
            factor = getattr(self, name)
            if factor is not None and not 0 < factor < float("inf"):
                raise ValueError(f"{name} must be above 0, got {factor}")
        _check_zone(self.timezone)
        _check_encoding(self.encoding)

    def to_dict(self) -> dict[str, Any]:
        """The choices that were made, as plain values for JSON."""
        made = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.columns is not None:
            made["columns"] = dict(self.columns)
        return {name: value for name, value in made.items() if value is not None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ReadingChoices:
        """The inverse of `to_dict`. Raises ValueError for an unknown name."""
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(values) - set(known)):
            raise ValueError(f"unknown choice {', '.join(unknown)}; known: {', '.join(known)}")
        return cls(**values)


@dataclass(frozen=True, kw_only=True, slots=True)
class Alternative:
    """One way to read a file.

    sentence: what is meant, for a person to choose by.
    choices: what to hand to `read_bars` as `mapping` to read the file so.
    rows: a few rows as they read then; empty where nothing needs to be compared.
    """

    sentence: str
    choices: ReadingChoices
    rows: pd.DataFrame


class AmbiguityError(DataError):
    """More than one reading fits and they differ. `readings` holds them; choose one."""

    def __init__(self, message: str, readings: tuple[Alternative, ...]) -> None:
        super().__init__(message)
        self.readings = readings


def _check_one_of(name: str, value: str | None, allowed: tuple[str, ...]) -> None:
    if value is not None and value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}; got {value!r}")


def _check_zone(name: str | None) -> None:
    if name is None:
        return
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(
            f"timezone {name!r} is not known. Use a name such as Europe/Berlin or UTC."
        ) from error


def _check_encoding(name: str | None) -> None:
    if name is None:
        return
    try:
        "".encode(name)
        usable = "é".encode(name, errors="ignore").decode(name) in ("", "é")
    except (LookupError, UnicodeError, ValueError, TypeError, AssertionError):
        usable = False
    if not usable:
        raise ValueError(f"encoding {name!r} is not known. Use utf-8, utf-16, gb18030, cp1252.")
