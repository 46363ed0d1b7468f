"""Text -> numbers as people write them: 1,234.50, 1.234,50, $12.5, 1.2M, 3亿, - for none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

Decimal = Literal[".", ","]
MISSING = ("", "nan", "NaN", "NAN", "null", "NULL", "None", "none", "NA", "#N/A")
# Signs that say "there is none" on purpose; of a volume they mean 0.
MARKERS = ("-", "--", "—", "–", "N/A", "n/a", "n.a.")
_GAPS = r" \t\x{00a0}\x{2009}\x{202f}"
_GROUPS: dict[Decimal, str] = {".": ",", ",": "."}  # decimal mark -> mark of thousands
_EXPONENTS = {"K": "e3", "M": "e6", "B": "e9", "T": "e12", "万": "e4", "亿": "e8"}
# What a number with its signs and letters taken off must look like to tell the decimal mark D
# from the mark of thousands G.
_EVIDENCE = (
    r"^\d{1,3}(G\d{3})+D\d*$",
    r"^\d*D(\d{0,2}|\d{4,})$",
    r"^(0|\d{4,})D\d{3}$",
    r"^\d{1,3}(G\d{3}){2,}$",
)


class NumberError(ValueError):
    """Text that is not a number. `row` counts from 0."""

    def __init__(self, row: int) -> None:
        super().__init__(f"row {row} is not a number")
        self.row = row


def to_numbers(texts: pa.ChunkedArray, decimal: Decimal) -> pa.ChunkedArray:
    """Text [n] -> float64 [n], exactly the number that is written; what is missing stays null.

    Thousands must stand in groups of three. Raises NumberError with the first row that is none.
    """
    texts = _without_missing(texts)
    if decimal == "." and (plain := _cast(texts)) is not None:
        return plain
    fits = pc.match_substring_regex(texts, _grammar(decimal))
    if (row := pc.index(fits, False).as_py()) >= 0:
        raise NumberError(row)
    marks = rf"[{_GAPS}'’\p{{Sc}}{_escaped(_GROUPS[decimal])}]"
    texts = pc.replace_substring_regex(texts, marks, "")
    if decimal == ",":
        texts = pc.replace_substring(texts, ",", ".")
    # The suffix becomes an exponent: 1.13M is 1.13e6, while 1.13 × 10⁶ would be rounded.
    if pc.any(pc.match_substring_regex(texts, r"[^\d.eE+-]")).as_py():
        for letter, exponent in _EXPONENTS.items():
            texts = pc.replace_substring_regex(texts, f"(?i){letter}$", exponent)
    return texts.cast(pa.float64())


def _cast(texts: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Plain numbers at once, which is many times faster than by patterns; None if some are not."""
    try:
        return texts.cast(pa.float64())
    except pa.ArrowInvalid:
        return None


def markers_in(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Which cells hold a sign for "none" (true) rather than nothing (false or null)."""
    return pc.is_in(pc.utf8_trim_whitespace(texts), value_set=pa.array(MARKERS))


def decimal_evidence(texts: pa.ChunkedArray) -> Mapping[Decimal, int]:
    """Decimal mark -> the first row that can only be read with it; absent where no row can."""
    core = pc.replace_substring_regex(_without_missing(texts), r"[^\d.,]", "")
    found: dict[Decimal, int] = {}
    decimals: tuple[Decimal, ...] = (".", ",")
    for decimal in decimals:
        group = _GROUPS[decimal]
        pattern = "|".join(_EVIDENCE).replace("D", f"[{decimal}]").replace("G", f"[{group}]")
        row = pc.index(pc.match_substring_regex(core, pattern), True).as_py()
        if row >= 0:
            found[decimal] = row
    return found


def first_with(texts: pa.ChunkedArray, mark: str) -> int:
    """The first row that holds a mark, -1 if none does."""
    return int(pc.index(pc.match_substring(texts, mark), True).as_py())


def _without_missing(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    texts = pc.utf8_trim_whitespace(texts)
    none = pc.is_in(texts, value_set=pa.array((*MISSING, *MARKERS)))
    return pc.if_else(none, pa.scalar(None, pa.string()), texts)


def _grammar(decimal: Decimal) -> str:
    point, group = _escaped(decimal), _escaped(_GROUPS[decimal])
    money = rf"(\p{{Sc}}[{_GAPS}]*)?"
    whole = rf"(\d{{1,3}}({group}\d{{3}})+|\d{{1,3}}([{_GAPS}'’]\d{{3}})+|\d+)"
    digits = rf"({whole}({point}\d*)?|{point}\d+)"
    suffix = rf"([eE][+-]?\d+|[{_GAPS}]*(?i:[KMBT]|万|亿))?"
    return rf"^{money}[+-]?{money}{digits}{suffix}([{_GAPS}]*\p{{Sc}})?$"


def _escaped(mark: str) -> str:
    return r"\." if mark == "." else mark
