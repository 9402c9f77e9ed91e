"""`headwater export`: writes a table or view from Postgres as CSV, NDJSON or Parquet."""

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol

import click
import msgspec

from headwater.gateway.cli.options import examples, postgres_option, settings_from
from headwater.gateway.cli.output import at_terminal, counted, print_json, say, say_progress
from headwater.gateway.settings.database import dsn_of

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


def _moment_text(value: datetime) -> str:
    return value.isoformat().replace("+00:00", "Z")


#: Conversion of a value to a CSV field, by its type; other types use `str`.
_FIELDS: Final[Mapping[type, Callable[[Any], str]]] = {
    NoneType: lambda _: "",
    bool: lambda value: "true" if value else "false",
    bytes: lambda value: f"\\x{value.hex()}",
    datetime: _moment_text,
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


# -- the command

_REPORT_EVERY_S: Final = 0.5


@click.command(
    epilog=examples(
        "headwater export daily_summary --format parquet -o days.parquet",
        "headwater export biomarkers_wide --format csv --user user_amara",
        "headwater export users --format ndjson -o users.ndjson --json",
        "headwater export sleep_sessions --format ndjson --since 2026-07-01T00:00:00Z > nights",
        "headwater export daily_summary --format csv --postgres postgresql://analyst@db/headwater",
    )
)
@click.argument("table")
@click.option(
    "--format",
    "format_",
    required=True,
    type=click.Choice(list(WRITERS)),
    help="Format of the file.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file. Default: standard output.",
)
@click.option("--user", "user_id", metavar="ID", help="Only the rows of this user.")
@click.option("--since", metavar="RFC3339", help="Only rows written at or after this time.")
@click.option("--json", "as_json", is_flag=True, help="With --output: print a summary as JSON.")
@postgres_option
def export(  # noqa: PLR0913, PLR0917 (one parameter a flag; click names them)
    table: str,
    format_: str,
    output: Path | None,
    user_id: str | None,
    since: str | None,
    as_json: bool,
    postgres: str | None,
) -> None:
    """Write a table or view to a file, as of one moment.

    Reads Postgres directly, and needs only the analysts' role (`headwater migrate --reader`). The
    file gets its name when it is complete.
    """
    from headwater.projections.postgres.exporting import exported  # noqa: PLC0415 (loads slowly)

    if format_ == "parquet" and output is None and at_terminal():
        raise click.UsageError("--format parquet: expected --output, or a pipe, found a terminal")
    if as_json and output is None:
        raise click.UsageError("--json: expected --output, as rows go to standard output")
    dsn = dsn_of(settings_from(postgres=postgres))
    with (
        exported(dsn, table, user_id=user_id, since=_since(since)) as content,
        _file(output) as file,
    ):
        writer = WRITERS[format_](file, content.columns)
        report, rows = _progress(table, time.monotonic), 0
        for batch in content.batches:
            writer.write(batch)
            rows += len(batch)
            report(rows)
        writer.finish()
    say_progress("")
    if as_json:
        print_json({"table": table, "format": format_, "output": str(output), "rows": rows})
        return
    say(f"{counted(rows, 'row')} of {table}" + (f" in {output}" if output else ""))


def _since(since: str | None) -> datetime | None:
    from headwater.processors.input_texts import read_moment  # noqa: PLC0415 (see above)

    if since is None:
        return None
    moment = read_moment(since)
    if moment is None:
        raise click.UsageError(
            "--since: expected RFC 3339 with an offset, for example 2026-07-01T00:00:00Z, "
            f"found {since[:60]!r}"
        )
    return moment


@contextmanager
def _file(output: Path | None) -> Iterator[BinaryIO]:
    """Open the output; a file gets its name when it is complete."""
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    part = output.with_name(f"{output.name}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(output)
    finally:
        part.unlink(missing_ok=True)


def _progress(table: str, clock: Callable[[], float]) -> Callable[[int], None]:
    """Return a function that prints the number of rows so far, if standard error is a terminal."""
    if not sys.stderr.isatty():
        return lambda _: None
    last_s = clock()

    def report(rows: int) -> None:
        nonlocal last_s
        if clock() - last_s >= _REPORT_EVERY_S:
            last_s = clock()
            say_progress(f"{table}: rows so far: {rows:,}")

    return report
