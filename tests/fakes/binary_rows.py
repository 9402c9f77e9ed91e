"""Rows in Postgres's binary format, read again: for tests that look at what a plan says."""

import struct
from datetime import UTC, datetime, timedelta
from typing import Any

from headwater.projections.postgres.binary_rows import RowType

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_READ = {
    "text": bytes.decode,
    "json": bytes.decode,
    "boolean": lambda data: data == b"\1",
    "bigint": lambda data: int.from_bytes(data, signed=True),
    "double precision": lambda data: struct.unpack(">d", data)[0],
    "timestamptz": lambda data: _EPOCH + timedelta(microseconds=int.from_bytes(data, signed=True)),
}


def read_row(row_type: RowType, element: bytes) -> dict[str, Any]:
    """The columns of an element of an array of composites."""
    size, count = struct.unpack_from(">ii", element)
    assert size == len(element) - 4
    assert count == len(row_type.columns)
    result, at = {}, 8
    for column in row_type.columns:
        _, length = struct.unpack_from(">ii", element, at)
        at += 8
        result[column.name] = None if length < 0 else _READ[column.type](element[at : at + length])
        at += max(0, length)
    assert at == len(element)
    return result
