"""What a person sees at a terminal: tables and lines in colours.

`gateway.commands.output` decides what is for a person, and imports this module only then: rich
takes longer to load than many a command takes to run.
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

#: By column and value, how rich shows a cell.
Styles: TypeAlias = Mapping[str, Mapping[str, str]]


#: What a column of text is given at least, and what stands around each column.
_LEAST_TEXT: Final = 24
_PADDING: Final = 2


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
    drops: Sequence[str] = (),
) -> list[str]:
    """Shows rows as a table; `columns` says which are of numbers. Gives those that were left out.

    Shape:  `drops` as `output.print_rows` has it.
    """
    console = Console()
    left_out = columns_to_leave_out(rows, list(columns), drops, console.width)
    shown = [name for name in columns if name not in left_out]
    table = _empty_table(title)
    for index, name in enumerate(shown):
        table.add_column(
            name,
            justify="right" if columns[name] else "left",
            overflow="fold",
            # What a row is called stays in one piece, and so do ids.
            no_wrap=index == 0 or (bool(drops) and index < len(shown) - 1),
        )
    for row in rows:
        # Text, not markup: a value may hold square brackets of its own.
        table.add_row(*(Text(row[name], style=_style(styles, name, row[name])) for name in shown))
    console.print(table)
    return left_out


def columns_to_leave_out(
    rows: Sequence[Mapping[str, str]], columns: Sequence[str], drops: Sequence[str], width: int
) -> list[str]:
    """Which columns a table does without, so that it fits: the first of `drops` first.

    Shape:  the last column may be split, but keeps some width.
    """
    widths = {name: max([len(name), *(len(row[name]) for row in rows)]) for name in columns}
    widths[columns[-1]] = min(widths[columns[-1]], _LEAST_TEXT)
    left_out: list[str] = []
    for name in drops:
        if sum(wide + _PADDING for wide in widths.values()) <= width:
            break
        if widths.pop(name, None) is not None:
            left_out.append(name)
    return left_out


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
