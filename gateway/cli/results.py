"""Results of commands, and how they are printed.

A command returns what it has found out; `prints` adds `--json` to it and prints the result: a table
at a terminal, tab-separated lines in a pipe, or JSON.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final, NamedTuple

import click

from headwater.gateway.cli.output import print_answer, print_rows, say

_FAILED: Final = 1

json_option: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class Columns(NamedTuple):
    """Columns of a table.

    Attributes:
        names: Names, in their order; they are keys of rows.
        drops: Columns that a narrow terminal drops, in this order.
        styles: By column and value, how values look at a terminal.
    """

    names: Sequence[str]
    drops: Sequence[str] = ()
    styles: Mapping[str, Mapping[str, str]] = {}

    def table(self, rows: Iterable[Mapping[str, Any]], title: str | None = None) -> "Table":
        """Return a table with these columns."""
        return Table(self, list(rows), title)


class Table(NamedTuple):
    """Rows to print; a row may have more members than there are columns."""

    columns: Columns
    rows: Sequence[Mapping[str, Any]]
    title: str | None = None


def fields(
    values: Iterable[tuple[str, Any]],
    title: str | None = None,
    styles: Mapping[str, str] | None = None,
) -> Table:
    """Return a table of one thing, a field a line; `styles` are those of values."""
    columns = Columns(("field", "value"), styles={"value": styles or {}})
    return columns.table(({"field": name, "value": value} for name, value in values), title)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a command prints.

    Attributes:
        answer: With `--json`: JSON, or an answer of the service.
        tables: Without it: tables.
        text: Without it: text or bytes to standard output, after the tables.
        hints: Without it: lines to standard error.
        more: Line to standard error if there are more rows. Programs get it, too: the JSON of many
            listings is an array, which looks complete.
        failed: Whether the exit code is 1.
    """

    answer: object
    tables: Sequence[Table] = ()
    text: str | bytes = ""
    hints: Sequence[str] = ()
    more: str = ""
    failed: bool = False


def listing(
    answer: object, table: Table, *, none: str, more: str | None = None, by: str = "--cursor"
) -> Result:
    """Return the result of a command that lists things.

    Args:
        answer: What `--json` prints.
        table: The rows.
        none: What to say if there are none.
        more: Cursor of the next page, if there is one.
        by: Option that takes it.
    """
    hints = [] if table.rows else [none]
    after = f"There are more: {by} {more}" if more else ""
    return Result(answer=answer, tables=[table], hints=hints, more=after)


def prints(command: Callable[..., Result]) -> Callable[..., None]:
    """Add `--json` to a command, and print its result."""

    @json_option
    @wraps(command)
    def printing(*, as_json: bool, **values: Any) -> None:  # noqa: ANN401 (the command's own)
        print_result(command(**values), as_json=as_json)

    return printing


def print_result(result: Result, *, as_json: bool) -> None:
    """Print a result; may end the command with its exit code."""
    if as_json:
        print_answer(result.answer)
    else:
        for (names, drops, styles), rows, title in result.tables:
            print_rows(rows, names, title=title, styles=styles, drops=drops)
        click.echo(result.text, nl=False)
    for line in (*(() if as_json else result.hints), *filter(None, [result.more])):
        say(line)
    if result.failed:
        raise click.exceptions.Exit(_FAILED)
