"""JSON -> CSV text: records, arrays of arrays, columns, and answers that wrap one of these."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kronos_core.data.bars import DataError
from kronos_core.data.choices import ReadingChoices
from kronos_core.data.layout import MAX_COLUMNS, NoTableError
from kronos_core.data.mapping import assign

MAX_JSON = 1 << 27  # bytes; as objects JSON takes many times its size
_DEPTH = 4  # how deep bars may lie in an answer
_BROKEN = "Download it again, or save the bars as CSV."

Rows = list[list[Any]]


def looks_like_json(content: bytes) -> bool:
    """Whether content begins like a JSON list or object rather than a line of CSV."""
    head = content[:256].removeprefix(b"\xef\xbb\xbf").lstrip()
    return head[:1] in (b"{", b"[")


def json_to_csv(content: bytes) -> tuple[bytes, bool]:
    """JSON (or JSON lines) -> (UTF-8 CSV text, whether its first line holds titles).

    Numbers are copied as they are written. Raises DataError for broken, too deep or too large
    JSON, and with the message itself for an answer that only reports an error.
    """
    if len(content) > MAX_JSON:
        raise DataError(
            f"The JSON file has {len(content) >> 20} MB, more than {MAX_JSON >> 20}. "
            "Save the bars as CSV or Parquet."
        )
    data = _load(content)
    titles, rows = _find_table(data, _DEPTH) or _refuse(data)
    if len(titles) > MAX_COLUMNS or any(len(row) > MAX_COLUMNS for row in rows):
        raise DataError(f"The JSON records have more than {MAX_COLUMNS:,} fields.")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if titles:
        writer.writerow(map(_text, titles))
    for row in rows:
        writer.writerow(map(_text, row) if row else [" "])
    return text.getvalue().encode("utf-8", errors="replace"), bool(titles)


def _load(content: bytes) -> Any:
    try:
        text = content.decode("utf-8-sig")
        try:
            return _parse(text)
        except json.JSONDecodeError:
            first, _, rest = text.partition("\n")
            if not rest.strip() or not first.strip().endswith(("}", "]")):
                raise
            return list(_lines(text))
    except RecursionError as error:
        raise DataError(f"The JSON is nested too deeply for bars. {_BROKEN}") from error
    except json.JSONDecodeError as error:
        raise DataError(
            f"Line {error.lineno}: this is not valid JSON ({error.msg}). {_BROKEN}"
        ) from error
    except UnicodeDecodeError as error:
        raise DataError(f"The JSON is not in UTF-8. {_BROKEN}") from error


def _parse(text: str) -> Any:
    return json.loads(text, parse_float=str, parse_int=str, parse_constant=str)


def _lines(text: str) -> Iterator[Any]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield _parse(line)
            except json.JSONDecodeError as error:
                raise DataError(
                    f"Line {number}: this is not valid JSON ({error.msg}). {_BROKEN}"
                ) from error


def _find_table(data: Any, depth: int) -> tuple[Sequence[str], Rows] | None:
    """Titles (none for arrays) and rows of the first table in an answer."""
    if isinstance(data, list):
        return _of_list(data)
    if not isinstance(data, dict) or depth == 0:
        return None
    if (table := _of_columns(data) or _of_rows_by_time(data)) is not None:
        return table
    found = (_find_table(value, depth - 1) for value in data.values())
    return next((table for table in found if table is not None), None)


def _of_list(items: list[Any]) -> tuple[Sequence[str], Rows] | None:
    if items and all(isinstance(item, dict) for item in items):
        titles = list(dict.fromkeys(key for item in items for key in item))
        return titles, [[item.get(title) for title in titles] for item in items]
    if items and all(isinstance(item, list) for item in items):
        return (), items
    return None


def _of_columns(data: Mapping[str, Any]) -> tuple[Sequence[str], Rows] | None:
    """{"columns": [...], "data": [[...]]} or {"open": [...] or {"0": ...}, ...}."""
    columns, rows = data.get("columns"), data.get("data")
    if isinstance(columns, list) and isinstance(rows, list) and _of_list(rows) is not None:
        index = data.get("index")
        if isinstance(index, list) and len(index) == len(rows):
            return ["index", *columns], [[at, *row] for at, row in zip(index, rows, strict=True)]
        return columns, rows
    lists = {key: value for key, value in data.items() if isinstance(value, list | dict)}
    if "close" not in assign(list(lists), ReadingChoices()):
        return None
    maps = [value for value in lists.values() if isinstance(value, dict)]
    if len(maps) == len(lists):
        return ["index", *lists], [[at, *(value.get(at) for value in maps)] for at in maps[0]]
    same = {key: value for key, value in lists.items() if isinstance(value, list)}
    if len({len(value) for value in same.values()}) != 1:
        return None
    return list(same), [list(row) for row in zip(*same.values(), strict=True)]


def _of_rows_by_time(data: Mapping[str, Any]) -> tuple[Sequence[str], Rows] | None:
    """{"2024-01-02": {"open": ...}, ...}."""
    if not data or not all(isinstance(value, dict) for value in data.values()):
        return None
    titles = list(dict.fromkeys(key for value in data.values() for key in value))
    if "close" not in assign(titles, ReadingChoices()):
        return None
    rows = [[at, *(value.get(title) for title in titles)] for at, value in data.items()]
    return ["index", *titles], rows


def _refuse(data: Any) -> tuple[Sequence[str], Rows]:
    message = ""
    if isinstance(data, dict):
        keys = ("msg", "message", "error", "Note", "Information", "detail")
        texts = [data[key] for key in keys if isinstance(data.get(key), str)]
        message = f' It says: "{texts[0][:200]}".' if texts else ""
    raise NoTableError(f"The JSON holds no table of bars.{message} Give a list of records.")


def _text(value: Any) -> str:
    if value is None or isinstance(value, list | dict):
        return ""
    return " ".join(str(value).split())
