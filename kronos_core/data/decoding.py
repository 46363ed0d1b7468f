"""Bytes -> UTF-8 text: which encoding a text file is in."""

from __future__ import annotations

import codecs
import re

import charset_normalizer

from kronos_core.data.bars import DataError
from kronos_core.data.choices import ReadingChoices
from kronos_core.data.mapping import assign

_SAMPLE = 1 << 16
_CANDIDATES = ("gb18030", "cp1252")
_OTHERS = ["gb18030", "cp1252", "cp1250", "cp1251", "big5", "shift_jis", "euc_kr"]
_SAVE_AGAIN = "Save it again as UTF-8."


def to_utf8(content: bytes, encoding: str | None = None) -> tuple[bytes, str]:
    """Text in any usual encoding -> (the same in UTF-8 without a byte order mark, encoding).

    Raises DataError for binary content, damaged UTF-16 and text that is not in `encoding`.
    """
    if encoding is not None:
        return _recoded(content, encoding), encoding
    if content.startswith(codecs.BOM_UTF8):
        content = content[len(codecs.BOM_UTF8) :]
    elif content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return _recoded(content, "utf-16"), "utf-16"
    elif encoding := _bare_utf16(content):
        return _recoded(content, encoding), encoding
    if b"\0" in content:
        raise DataError("The file is binary, not CSV text. Save or export the bars as CSV.")
    if content.isascii():
        return content, "utf-8"
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        encoding = _guessed(content)
        return content.decode(encoding, errors="replace").encode("utf-8"), encoding
    return content, "utf-8"


def _recoded(content: bytes, encoding: str) -> bytes:
    try:
        text = content.decode(encoding)
        return text.removeprefix("\ufeff").encode("utf-8")
    except UnicodeError as error:
        start = "starts like" if encoding == "utf-16" else "is not"
        damage = " text but is damaged" if encoding == "utf-16" else " text"
        raise DataError(f"The file {start} {encoding.upper()}{damage}. {_SAVE_AGAIN}") from error


def _bare_utf16(content: bytes) -> str | None:
    """UTF-16 without a byte order mark: every second byte of the first letters is zero."""
    head = content[:64]
    if len(head) < 16 or len(content) % 2:
        return None
    if not any(head[::2]) and all(head[1::2]):
        return "utf-16-be"
    return "utf-16-le" if not any(head[1::2]) and all(head[::2]) else None


def _guessed(content: bytes) -> str:
    """The encoding in which most titles of the first lines are known, else the likeliest one."""
    head = content[:_SAMPLE]
    scores = {name: _known_titles(head.decode(name, errors="replace")) for name in _CANDIDATES}
    best = max(scores, key=lambda name: scores[name])
    if scores[best] > min(scores.values()):
        return best
    lines = [line for line in head.splitlines() if not line.isascii()]
    found = charset_normalizer.from_bytes(b"\n".join(lines), cp_isolation=_OTHERS).best()
    # Latin-1 gives every byte a letter, so it is what remains.
    return found.encoding if found is not None and _decodes(content, found.encoding) else "latin-1"


def _known_titles(text: str) -> int:
    lines = text.splitlines()[:5]
    return max(
        (len(assign(re.split(r"[,;\t|]", line), ReadingChoices())) for line in lines), default=0
    )


def _decodes(content: bytes, encoding: str) -> bool:
    try:
        content.decode(encoding)
    except UnicodeError:
        return False
    return True
