"""Rows as files: CSV, NDJSON and Parquet, written batch by batch."""

import io
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol

import click
import msgspec

if TYPE_CHECKING:
    from headwater.projections.postgres.exporting import ExportColumn

Rows = Sequence[tuple[Any, ...]]

#: What a field of CSV is quoted for.
_QUOTED_FOR: Final = re.compile('[",\r\n]')
#: Rows and bytes of a row group of Parquet: what is in memory at a time.
_GROUP_ROWS: Final = 20_000
_GROUP_BYTES: Final = 32 * 1024 * 1024


class RowWriter(Protocol):
    """Writes rows to a file that somebody else opens and closes."""

    def __init__(self, file: BinaryIO, columns: "Sequence[ExportColumn]") -> None:
        """Begins a file."""

    def write(self, rows: Rows) -> None:
        """Writes a batch."""

    def finish(self) -> None:
        """Writes what a file of the format ends with."""


class CsvWriter:
    """RFC 4180, in UTF-8. As Postgres writes it: null is nothing, the empty text is `""`."""

    def __init__(self, file: BinaryIO, columns: "Sequence[ExportColumn]") -> None:
        self._file = file
        self._write([column.name for column in columns])

    def write(self, rows: Rows) -> None:
        """Writes a batch."""
        for row in rows:
            self._write(row)

    def finish(self) -> None:
        """A file of CSV ends with its last row."""

    def _write(self, values: Iterable[Any]) -> None:
        self._file.write(",".join(map(_field, values)).encode() + b"\r\n")


def _field(value: Any) -> str:  # noqa: ANN401 (any value of Postgres)
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case datetime():
            return _moment(value)
        case bytes():
            return f"\\x{value.hex()}"
        case str():
            quoted = not value or _QUOTED_FOR.search(value)
            return '"' + value.replace('"', '""') + '"' if quoted else value
        case _:
            return str(value)


class NdjsonWriter:
    """A JSON object a line; a column of JSON is nested, byte for byte."""

    def __init__(self, file: BinaryIO, columns: "Sequence[ExportColumn]") -> None:
        self._file = file
        self._names = [column.name for column in columns]
        self._nested = frozenset(
            number for number, column in enumerate(columns) if column.type in ("json", "jsonb")
        )
        self._encode = msgspec.json.Encoder(enc_hook=str).encode

    def write(self, rows: Rows) -> None:
        """Writes a batch."""
        lines = io.BytesIO()
        for row in rows:
            values = (self._value(number, value) for number, value in enumerate(row))
            lines.write(self._encode(dict(zip(self._names, values, strict=True))))
            lines.write(b"\n")
        self._file.write(lines.getbuffer())

    def finish(self) -> None:
        """A file of NDJSON ends with its last line."""

    def _value(self, number: int, value: Any) -> Any:  # noqa: ANN401 (any value of Postgres)
        if number in self._nested and value is not None:
            # A line end between the parts of a JSON text would end the line; in a string of it
            # there can be none.
            return msgspec.Raw(value.replace("\r", " ").replace("\n", " ").encode())
        if isinstance(value, bytes):
            return value.hex()
        return _moment(value) if isinstance(value, datetime) else value


class ParquetWriter:
    """Apache Parquet, compressed with zstd, typed as the columns are; JSON as text."""

    def __init__(self, file: BinaryIO, columns: "Sequence[ExportColumn]") -> None:
        try:
            arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
        except ImportError as error:
            raise click.ClickException(
                "--format parquet: expected the package pyarrow, found none; install it with "
                "pip install 'headwater[parquet]', or take --format csv or ndjson"
            ) from error
        # An extra, and without types.
        self._arrow: Any = arrow
        fields = [arrow.field(each.name, _arrow_type(arrow, each.type)) for each in columns]
        self._schema = arrow.schema(fields)
        self._writer: Any = parquet.ParquetWriter(file, self._schema, compression="zstd")
        self._group: list[Any] = []

    def write(self, rows: Rows) -> None:
        """Writes a batch."""
        arrays = [
            self._arrow.array(values, type=field.type)
            for values, field in zip(zip(*rows, strict=True), self._schema, strict=True)
        ]
        self._group.append(self._arrow.record_batch(arrays, schema=self._schema))
        if (
            sum(batch.num_rows for batch in self._group) >= _GROUP_ROWS
            or sum(batch.nbytes for batch in self._group) >= _GROUP_BYTES
        ):
            self._write_group()

    def finish(self) -> None:
        """Writes the last rows, and the footer."""
        self._write_group()
        self._writer.close()

    def _write_group(self) -> None:
        if self._group:
            self._writer.write_table(self._arrow.Table.from_batches(self._group))
            self._group = []


def _arrow_type(arrow: Any, type_: str) -> Any:  # noqa: ANN401 (a module without types)
    """The type of Arrow for one of Postgres; text for what has none of its own."""
    types = {
        "bigint": arrow.int64(),
        "integer": arrow.int32(),
        "double precision": arrow.float64(),
        "boolean": arrow.bool_(),
        "bytea": arrow.binary(),
        "date": arrow.date32(),
        "timestamp with time zone": arrow.timestamp("us", "UTC"),
    }
    return types.get(type_, arrow.string())


def _moment(value: date) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return value.isoformat()


#: How rows are written, by the name of the format.
WRITERS: Final[dict[str, type[RowWriter]]] = {
    "parquet": ParquetWriter,
    "csv": CsvWriter,
    "ndjson": NdjsonWriter,
}
