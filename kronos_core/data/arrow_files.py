"""Parquet and Feather -> an Arrow table with the columns that bars need, within bounds."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import pyarrow.parquet

from kronos_core.data.bars import DataError
from kronos_core.data.layout import MAX_COLUMNS, MAX_COLUMNS_OF_TICKERS

MAX_ROWS = 20_000_000
MAX_BYTES = 1 << 30  # of the columns, unpacked
_LONGEST_TEXT = 1000
_DAMAGED = (pa.ArrowException, OSError, ValueError, KeyError, IndexError, TypeError, MemoryError)


def read_parquet(content: bytes) -> pa.Table:
    """A Parquet file's flat columns. Raises DataError when it is damaged or too large."""
    try:
        file = pyarrow.parquet.ParquetFile(
            pa.BufferReader(content), page_checksum_verification=True
        )
        names = _flat(file.schema_arrow)
        _check_size(len(file.schema_arrow), file.metadata.num_rows)
        texts = [name for name in names if _is_text(file.schema_arrow.field(name).type)]
        # Dictionaries keep a long text that is repeated a million times small until it is checked.
        file = pyarrow.parquet.ParquetFile(
            pa.BufferReader(content), page_checksum_verification=True, read_dictionary=texts
        )
        table = file.read(columns=names, use_pandas_metadata=False)
    except DataError:
        raise
    except _DAMAGED as error:
        raise _damaged("Parquet", error) from error
    return _checked(table, "Parquet")


def read_feather(content: bytes) -> pa.Table:
    """A Feather (Arrow IPC) file's flat columns. Raises DataError when damaged or too large."""
    try:
        reader = pyarrow.ipc.open_file(pa.BufferReader(content))
        names = _flat(reader.schema)
        rows = size = 0
        batches = []
        for at in range(reader.num_record_batches):
            batch = reader.get_batch(at)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            _check_size(len(reader.schema), rows, size)
            batches.append(batch.select(names))
        schema = pa.schema([reader.schema.field(name) for name in names])
        table = pa.Table.from_batches(batches, schema)
    except DataError:
        raise
    except _DAMAGED as error:
        raise _damaged("Feather", error) from error
    return _checked(table, "Feather")


def _flat(schema: pa.Schema) -> list[str]:
    """The columns of plain values; nested ones hold no bars. Names that repeat are left out."""
    return [
        field.name
        for field in schema
        if not pa.types.is_nested(field.type) and len(schema.get_all_field_indices(field.name)) == 1
    ]


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _check_size(columns: int, rows: int, size: int = 0) -> None:
    if columns > MAX_COLUMNS_OF_TICKERS:
        raise DataError(f"The file has {columns:,} columns, more than {MAX_COLUMNS:,}.")
    if rows > MAX_ROWS or size > MAX_BYTES:
        raise DataError(
            f"The file holds more than {MAX_ROWS:,} rows or {MAX_BYTES >> 30} GB. "
            "Split it into smaller files."
        )


def _checked(table: pa.Table, kind: str) -> pa.Table:
    try:
        table.validate(full=True)
        columns = [_plain(column) for column in table.columns]
    except DataError:
        raise
    except _DAMAGED as error:
        raise _damaged(kind, error) from error
    if table.num_rows == 0:
        raise DataError("The file holds no bars. Export it again, with the rows.")
    return pa.table(columns, names=table.column_names)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column as numbers, timestamps or text."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        _check_lengths([chunk.dictionary for chunk in column.chunks])
        return column.cast(pa.string() if _is_text(kind.value_type) else kind.value_type)
    if _is_text(kind):
        _check_lengths(column.chunks)
        return column.cast(pa.string())
    if pa.types.is_timestamp(kind) or pa.types.is_string_view(kind):
        return column
    if pa.types.is_date(kind):
        return column.cast(pa.timestamp("ms"))
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return column
    return pa.chunked_array([pa.nulls(len(column), pa.string())])


def _check_lengths(arrays: Sequence[pa.Array]) -> None:
    for array in arrays:
        longest = pc.max(pc.binary_length(array)).as_py() if _is_text(array.type) else None
        if longest is not None and longest > _LONGEST_TEXT:
            raise DataError(
                f"The file holds a text of {longest:,} characters where bars hold times, numbers "
                "and symbols. Remove that column."
            )


def _damaged(kind: str, error: BaseException) -> DataError:
    reason = (str(error).splitlines() or ["it ends too early"])[0][:150]
    return DataError(f"The {kind} file cannot be read ({reason}). Save it again.")
