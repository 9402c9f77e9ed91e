"""Output at a terminal: tables and lines in colors.

`gateway.cli.output` imports this module only for terminals: importing rich takes longer than
many commands take to run.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typing_extensions import override

#: By column and value, rich's style of a cell.
Styles: TypeAlias = Mapping[str, Mapping[str, str]]


#: Least width of a column of text, and the space around a column.
_TEXT_WIDTH_MIN: Final = 24
_PADDING: Final = 2


class _Progress(Console):
    """Stderr. If nothing reads it, the command continues."""

    @override
    def on_broken_pipe(self) -> None:
        # Later writes, and the flush at exit, are discarded.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def show_message(message: str) -> None:
    """Print a line of progress to stderr."""
    _Progress(stderr=True, highlight=False, soft_wrap=True).print(Text(message))


def show_rows(
    rows: Sequence[Mapping[str, str]],
    columns: Mapping[str, bool],
    *,
    title: str | None,
    styles: Styles,
    drops: Sequence[str] = (),
) -> list[str]:
    """Print rows as a table; return the columns that were dropped.

    Args:
        rows: The rows.
        columns: Names of columns, and whether they are numeric.
        title: Title of the table.
        styles: Styles of values, by column.
        drops: As for `output.print_rows`.
    """
    console = Console()
    dropped = columns_to_drop(rows, list(columns), drops, console.width)
    shown = [name for name in columns if name not in dropped]
    table = _empty_table(title)
    for index, name in enumerate(shown):
        table.add_column(
            name,
            justify="right" if columns[name] else "left",
            overflow="fold",
            # The first column is not wrapped, and neither are ids.
            no_wrap=index == 0 or (bool(drops) and index < len(shown) - 1),
        )
    for row in rows:
        # Text, not markup: a value may contain square brackets.
        table.add_row(*(Text(row[name], style=_style(styles, name, row[name])) for name in shown))
    console.print(table)
    return dropped


def columns_to_drop(
    rows: Sequence[Mapping[str, str]], columns: Sequence[str], drops: Sequence[str], width: int
) -> list[str]:
    """Return the columns to drop so that the table fits, in the order of `drops`.

    The last column may be wrapped, but keeps some width.
    """
    widths = {name: max([len(name), *(len(row[name]) for row in rows)]) for name in columns}
    widths[columns[-1]] = min(widths[columns[-1]], _TEXT_WIDTH_MIN)
    dropped: list[str] = []
    for name in drops:
        if sum(width_ + _PADDING for width_ in widths.values()) <= width:
            break
        if widths.pop(name, None) is not None:
            dropped.append(name)
    return dropped


def show_sideways(headings: Sequence[str], lines: Mapping[str, Sequence[str]], title: str) -> None:
    """Print a few wide rows, a line per column; `headings` name the rows."""
    table = _empty_table(title)
    table.add_column("")
    for heading in headings:
        table.add_column(Text(heading), justify="right")
    for name, cells in lines.items():
        table.add_row(name, *(Text(cell) for cell in cells))
    Console().print(table)


def show_line(cells: Mapping[str, str], widths: Mapping[str, int], styles: Styles) -> None:
    """Print one row of many, in columns of at least these widths."""
    line = Text()
    for name, cell in cells.items():
        line.append(cell.ljust(widths[name]), style=_style(styles, name, cell)).append("  ")
    line.rstrip()
    Console(highlight=False, soft_wrap=True).print(line)


def _empty_table(title: str | None) -> Table:
    return Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold")


def _style(styles: Styles, name: str, cell: str) -> str:
    return styles.get(name, {}).get(cell, "")
