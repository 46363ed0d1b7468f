"""Files -> the tables in them: plain text, archives, workbooks, JSON, Parquet and Feather.

Everything is read, nothing is executed, and what unpacks to more than a bound is refused before it
fills the memory.
"""

from __future__ import annotations

import gzip
import io
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

import pyarrow as pa

from kronos_core.data.arrow_files import read_feather, read_parquet
from kronos_core.data.bars import DataError
from kronos_core.data.json_tables import json_to_csv, looks_like_json
from kronos_core.data.layout import NoTableError
from kronos_core.data.workbooks import workbook_to_csv

MAX_UNPACKED = 1 << 29  # bytes of an archive's content, all members together
MAX_WORKBOOK = 1 << 28  # bytes of a workbook's content
MAX_MEMBERS = 1000
_READABLE = (".csv", ".tsv", ".txt", ".tab", ".json", ".jsonl", ".parquet", ".feather", ".xlsx")
_REFUSED = {
    b"%PDF": "a PDF document",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook (.xls)",
    b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image",
    b"\x89HDF": "an HDF5 file",
    b"SQLite format 3": "a database",
    b"BZh": "a bzip2 archive",
    b"\xfd7zXZ": "an xz archive",
    b"7z\xbc\xaf": "a 7-Zip archive",
    b"Rar!": "a RAR archive",
    b"(\xb5/\xfd": "a Zstandard archive",
    b"FEA1": "a Feather file of the first version",
    b"\x80\x04": "a Python pickle, which is never opened because that can run programs",
    b"\x80\x05": "a Python pickle, which is never opened because that can run programs",
}
_BAD_ARCHIVE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    OSError,
    RuntimeError,  # encrypted
    NotImplementedError,  # a compression that Python lacks
    ValueError,
    OverflowError,
)


def _line(number: int) -> str:
    return f"Line {number}"


@dataclass(frozen=True, slots=True)
class Part:
    """One table of a file.

    body: text as it is in the file (`encoded`) or written anew in UTF-8 with commas, or typed
    columns. name: the archive member or sheet, "" for the file itself.
    place: line of the text -> where that is in the file, in words.
    """

    body: bytes | pa.Table
    name: str = ""
    encoded: bool = True
    headed: bool | None = None
    place: Callable[[int], str] = _line


def open_parts(content: bytes) -> list[Part]:
    """The tables of a file, at least one.

    Raises DataError for a kind of file that holds none, a damaged file, and one that unpacks to
    more than MAX_UNPACKED bytes.
    """
    return list(_parts(content, inside=False))


def _parts(content: bytes, inside: bool) -> Iterator[Part]:
    if not content[:4096].strip() and not content.strip():
        raise NoTableError("The file is empty. Export the bars again, with a header line.")
    for magic, what in _REFUSED.items():
        if content.startswith(magic):
            raise NoTableError(f"This is {what}, not CSV text. Save or export the bars as CSV.")
    if content.startswith(b"\x1f\x8b"):
        yield from _within_archive(inside, [("", _gunzip(content))])
    elif content.startswith(b"PK"):
        yield from _zip_parts(content, inside)
    elif content.startswith(b"PAR1"):
        yield Part(read_parquet(content), place=_row)
    elif content.startswith(b"ARROW1"):
        yield Part(read_feather(content), place=_row)
    elif looks_like_json(content):
        body, headed = json_to_csv(content)
        yield Part(
            body,
            encoded=False,
            headed=headed,
            place=lambda line: f"Record {line - int(headed)}",
        )
    else:
        yield Part(content)


def _row(number: int) -> str:
    return f"Row {number}"


def _zip_parts(content: bytes, inside: bool) -> Iterator[Part]:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            if any(member.filename == "xl/workbook.xml" for member in members):
                workbook = True
                _check_sizes(members, MAX_WORKBOOK)
            else:
                workbook = False
                unpacked = _unzip(archive, members)
    except _BAD_ARCHIVE as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"The ZIP archive cannot be opened ({str(error)[:100] or 'it ends too early'}). "
            "Download it again, or unpack it and give the files inside."
        ) from error
    if workbook:
        for sheet, body in workbook_to_csv(content):
            yield Part(body, name=sheet, encoded=False, place=_row)
    else:
        yield from _within_archive(inside, unpacked)


def _unzip(archive: zipfile.ZipFile, members: list[zipfile.ZipInfo]) -> list[tuple[str, bytes]]:
    wanted = [member for member in members if _is_data(member.filename)]
    if not wanted:
        raise NoTableError(
            "The ZIP archive holds no file with bars (CSV, JSON, Excel, Parquet or Feather)."
        )
    _check_sizes(wanted, MAX_UNPACKED)
    room = MAX_UNPACKED
    unpacked = []
    for member in wanted:
        with archive.open(member) as file:
            body = file.read(room + 1)
        room -= len(body)
        if room < 0:
            raise _too_large(MAX_UNPACKED)
        unpacked.append((PurePosixPath(member.filename).name, body))
    return unpacked


def _is_data(filename: str) -> bool:
    path = PurePosixPath(filename)
    hidden = path.name.startswith(".") or "__MACOSX" in path.parts
    return not hidden and path.suffix.lower() in _READABLE


def _check_sizes(members: list[zipfile.ZipInfo], limit: int) -> None:
    if len(members) > MAX_MEMBERS:
        raise DataError(
            f"The ZIP archive holds {len(members):,} files, more than {MAX_MEMBERS:,}. "
            "Unpack it and give the files you need."
        )
    if sum(member.file_size for member in members) > limit:
        raise _too_large(limit)


def _gunzip(content: bytes) -> bytes:
    try:
        with gzip.open(io.BytesIO(content)) as file:
            body = file.read(MAX_UNPACKED + 1)
    except _BAD_ARCHIVE as error:
        raise DataError(
            f"The gzip archive is damaged ({str(error)[:100]}). Download it again."
        ) from error
    if len(body) > MAX_UNPACKED:
        raise _too_large(MAX_UNPACKED)
    return bytes(body)


def _too_large(limit: int) -> DataError:
    return DataError(
        f"The archive unpacks to more than {limit >> 20} MB and is not opened further. "
        "Unpack it and split the bars into smaller files."
    )


def _within_archive(inside: bool, unpacked: list[tuple[str, bytes]]) -> Iterator[Part]:
    if inside:
        raise DataError("This is an archive within an archive. Unpack the outer one first.")
    for name, body in unpacked:
        try:
            for part in _parts(body, inside=True):
                yield replace(part, name=" ".join(filter(None, (name, part.name))))
        except DataError as error:
            if name:
                error.args = (f"{name}: {error}",)
            raise
