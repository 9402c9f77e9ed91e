"""`headwater export`: writes a table or view to a file for analysts, read from Postgres."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Final

import click

from headwater.gateway.cli.export_formats import WRITERS
from headwater.gateway.cli.options import examples, postgres_option, settings_from
from headwater.gateway.cli.output import at_terminal, counted, print_json, say
from headwater.gateway.settings.addresses import dsn_of

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
        exported(dsn, table, user_id=user_id, since=_moment(since)) as content,
        _file(output) as file,
    ):
        writer = WRITERS[format_](file, content.columns)
        report, rows = _progress(table, time.monotonic), 0
        for batch in content.batches:
            writer.write(batch)
            rows += len(batch)
            report(rows)
        writer.finish()
    if as_json:
        print_json({"table": table, "format": format_, "output": str(output), "rows": rows})
        return
    say(f"{counted(rows, 'row')} of {table}" + (f" in {output}" if output else ""))


def _moment(since: str | None) -> datetime | None:
    from headwater.processors.dates import read_moment  # noqa: PLC0415 (see above)

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
            click.echo(f"\r{table}: rows so far: {rows:,}", err=True, nl=False)

    return report
