"""What a person sees at a terminal: tables and lines in colours.

`gateway.commands.output` decides what is for a person, and imports this module only then: rich
takes longer to load than many a command takes to run.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typing_extensions import override

#: By column and value, how rich shows a cell.
Styles: TypeAlias = Mapping[str, Mapping[str, str]]


class _Progress(Console):
    """Stderr, for those who read it: that nobody does is no reason to stop what is under way."""

    @override
    def on_broken_pipe(self) -> None:
        # What is written from now on, and flushed at the end, goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def show_message(message: str) -> None:
    """Shows a line of progress on stderr."""
    _Progress(stderr=True, highlight=False, soft_wrap=True).print(Text(message))


def show_rows(
    rows: Sequence[Mapping[str, str]],
    columns: Mapping[str, bool],
    *,
    title: str | None,
    styles: Styles,
) -> None:
    """Shows rows as a table; `columns` says which are of numbers."""
    table = _empty_table(title)
    for index, (name, numeric) in enumerate(columns.items()):
        table.add_column(
            name,
            justify="right" if numeric else "left",
            overflow="fold",
            no_wrap=index == 0,  # what a row is called stays in one piece
        )
    for row in rows:
        # Text, not markup: a value may hold square brackets of its own.
        table.add_row(*(Text(cell, style=_style(styles, name, cell)) for name, cell in row.items()))
    Console().print(table)


def show_sideways(headings: Sequence[str], lines: Mapping[str, Sequence[str]], title: str) -> None:
    """Shows a few wide rows, a line a column; `headings` name the rows."""
    table = _empty_table(title)
    table.add_column("")
    for heading in headings:
        table.add_column(Text(heading), justify="right")
    for name, cells in lines.items():
        table.add_row(name, *(Text(cell) for cell in cells))
    Console().print(table)


def show_line(cells: Mapping[str, str], widths: Mapping[str, int], styles: Styles) -> None:
    """Shows one row of many, in columns of at least the given widths."""
    line = Text()
    for name, cell in cells.items():
        line.append(cell.ljust(widths[name]), style=_style(styles, name, cell)).append("  ")
    line.rstrip()
    Console(highlight=False, soft_wrap=True).print(line)


def _empty_table(title: str | None) -> Table:
    return Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold")


def _style(styles: Styles, name: str, cell: str) -> str:
    return styles.get(name, {}).get(cell, "")
