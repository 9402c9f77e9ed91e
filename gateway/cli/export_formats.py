"""Writers of rows as files: CSV, NDJSON and Parquet, batch by batch."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from importlib import import_module
from types import NoneType
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol

import click
import msgspec

if TYPE_CHECKING:
    from headwater.projections.postgres.exporting import ExportColumn

Rows = Sequence[tuple[Any, ...]]

#: Characters that make a CSV field quoted.
_QUOTED_FOR: Final = re.compile('[",\r\n]')
#: Rows and bytes of a Parquet row group, which is held in memory.
_GROUP_ROWS: Final = 20_000
_GROUP_BYTES: Final = 32 * 1024 * 1024


class RowWriter(Protocol):
    """Writes rows to a file that the caller opens and closes."""

    def __init__(self, file: BinaryIO, columns: "Sequence[ExportColumn]") -> None:
        """Begin a file."""

    def write(self, rows: Rows) -> None:
        """Write a batch."""

    def finish(self) -> None:
        """Write the end of the file."""


class CsvWriter:
    """RFC 4180, in UTF-8. As in Postgres, null is empty and the empty text is `""`."""

    def __init__(self, file: BinaryIO, columns: "Sequence[ExportColumn]") -> None:
        self._file = file
        self._write([column.name for column in columns])

    def write(self, rows: Rows) -> None:
        """Write a batch."""
        for row in rows:
            self._write(row)

    def finish(self) -> None:
        """Do nothing: a CSV file ends with its last row."""

    def _write(self, values: Iterable[Any]) -> None:
        fields = [_FIELDS.get(type(value), str)(value) for value in values]
        self._file.write(",".join(fields).encode() + b"\r\n")


def _quoted(text: str) -> str:
    if text and not _QUOTED_FOR.search(text):
        return text
    return '"' + text.replace('"', '""') + '"'


def _moment(value: datetime) -> str:
    return value.isoformat().replace("+00:00", "Z")


#: Conversion of a value to a CSV field, by its type; other types use `str`.
_FIELDS: Final[Mapping[type, Callable[[Any], str]]] = {
    NoneType: lambda _: "",
    bool: lambda value: "true" if value else "false",
    bytes: lambda value: f"\\x{value.hex()}",
    datetime: _moment,
    str: _quoted,
}


class NdjsonWriter:
    """A JSON object a line; JSON columns are nested, byte for byte."""

    def __init__(self, file: BinaryIO, columns: "Sequence[ExportColumn]") -> None:
        self._file = file
        self._names = [column.name for column in columns]
        #: Conversions of columns whose values JSON cannot represent.
        self._conversions: dict[str, Callable[[Any], Any]] = {
            column.name: _JSON_OF[column.type] for column in columns if column.type in _JSON_OF
        }
        self._encoder = msgspec.json.Encoder(enc_hook=str)

    def write(self, rows: Rows) -> None:
        """Write a batch."""
        objects = []
        for row in rows:
            row_object = dict(zip(self._names, row, strict=True))
            for name, convert in self._conversions.items():
                if row_object[name] is not None:
                    row_object[name] = convert(row_object[name])
            objects.append(row_object)
        self._file.write(self._encoder.encode_lines(objects))

    def finish(self) -> None:
        """Do nothing: an NDJSON file ends with its last line."""


def _nested(text: str) -> msgspec.Raw:
    # A line end within JSON text would end the line; strings contain none.
    return msgspec.Raw(text.replace("\r", " ").replace("\n", " ").encode())


_JSON_OF: Final[Mapping[str, Callable[[Any], Any]]] = {
    "json": _nested,
    "jsonb": _nested,
    "bytea": bytes.hex,
}


class ParquetWriter:
    """Apache Parquet, compressed with zstd, with the types of the columns; JSON is text."""

    def __init__(self, file: BinaryIO, columns: "Sequence[ExportColumn]") -> None:
        try:
            arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
        except ImportError as error:
            raise click.ClickException(
                "--format parquet: expected the package pyarrow, found none; install it with "
                "pip install 'headwater[parquet]', or use --format csv or ndjson"
            ) from error
        # An optional package without type annotations.
        self._arrow: Any = arrow
        fields = [arrow.field(column.name, _arrow_type(arrow, column.type)) for column in columns]
        self._schema = arrow.schema(fields)
        self._writer: Any = parquet.ParquetWriter(file, self._schema, compression="zstd")
        self._group: list[Any] = []
        self._group_rows = self._group_bytes = 0

    def write(self, rows: Rows) -> None:
        """Write a batch."""
        arrays = [
            self._arrow.array(values, type=field.type)
            for values, field in zip(zip(*rows, strict=True), self._schema, strict=True)
        ]
        batch = self._arrow.record_batch(arrays, schema=self._schema)
        self._group.append(batch)
        self._group_rows += batch.num_rows
        self._group_bytes += batch.nbytes
        if self._group_rows >= _GROUP_ROWS or self._group_bytes >= _GROUP_BYTES:
            self._write_group()

    def finish(self) -> None:
        """Write the last rows, and the footer."""
        self._write_group()
        self._writer.close()

    def _write_group(self) -> None:
        if self._group:
            self._writer.write_table(self._arrow.Table.from_batches(self._group))
            self._group, self._group_rows, self._group_bytes = [], 0, 0


def _arrow_type(arrow: Any, type_: str) -> Any:  # noqa: ANN401 (a module without types)
    """Return Arrow's type for a type of Postgres; string if it has none."""
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


#: Writers, by the name of the format.
WRITERS: Final[dict[str, type[RowWriter]]] = {
    "parquet": ParquetWriter,
    "csv": CsvWriter,
    "ndjson": NdjsonWriter,
}
