"""What commands print: tables for people at a terminal, tab-separated lines or JSON for programs.

Results go to stdout; progress, hints and errors to stderr, so that a pipe carries results only.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

#: By column and value, how rich shows a cell at a terminal.
Styles: TypeAlias = Mapping[str, Mapping[str, str]]

#: Control characters of a value could move the cursor, or change what is on the screen already.
_CONTROLS: Final = {
    code: f"\\x{code:02x}"
    for code in (*range(0x20), *range(0x7F, 0xA0))
    if chr(code) not in "\t\n\r"
}


def say(message: str) -> None:
    """Prints a line of progress to stderr."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(Text(message))


def at_terminal() -> bool:
    """Whether a person reads stdout."""
    return sys.stdout.isatty()


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    columns: Iterable[str],
    *,
    as_json: bool = False,
    title: str | None = None,
    styles: Styles | None = None,
) -> None:
    """Prints rows.

    Shape:  at a terminal a table of the given columns; in a pipe a header line and a line a row,
            tab-separated, after a comment with the title if there is one; tabs and line ends
            within values are replaced by spaces; with `as_json` all
            rows as one JSON array, whole.
    """
    names = list(columns)
    if as_json:
        print_json(list(rows))
    elif at_terminal():
        Console().print(_table(rows, names, title, styles or {}))
    else:
        lines = [f"# {title}"] if title else []
        lines.append("\t".join(names))
        lines += ["\t".join(_flat(_text(row.get(name))) for name in names) for row in rows]
        sys.stdout.write("".join(f"{line}\n" for line in lines))


def print_sideways(
    rows: Sequence[Mapping[str, Any]], heading: Sequence[str], columns: Iterable[str], title: str
) -> None:
    """Prints a few wide rows: at a terminal a line a column, without those that nobody has set.

    Shape:  the values of `heading` name each row; in a pipe the same as `print_rows`.
    """
    shown = [name for name in columns if any(row.get(name) is not None for row in rows)]
    if not at_terminal():
        print_rows(rows, [*heading, *shown], title=title)
        return
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold")
    table.add_column("")
    for row in rows:
        table.add_column(Text("\n".join(_text(row.get(name)) for name in heading)), justify="right")
    for name in shown:
        table.add_row(name, *(Text(_text(row.get(name))) for row in rows))
    Console().print(table)


def print_line(row: Mapping[str, Any], widths: Mapping[str, int], styles: Styles) -> None:
    """Prints one row of many that come one by one, at once.

    Shape:  at a terminal columns of at least the given widths; in a pipe tab-separated.
    """
    cells = {name: _flat(_text(row.get(name))) for name in widths}
    if not at_terminal():
        sys.stdout.write("\t".join(cells.values()) + "\n")
        sys.stdout.flush()
        return
    line = Text()
    for name, cell in cells.items():
        line.append(cell.ljust(widths[name]), style=_style(styles, name, cell)).append("  ")
    line.rstrip()
    Console(highlight=False, soft_wrap=True).print(line)


def print_json(value: object) -> None:
    """Prints a value as JSON, indented for people and in one line for programs."""
    indent = 2 if at_terminal() else None
    sys.stdout.write(json.dumps(value, indent=indent, ensure_ascii=False) + "\n")


def _table(
    rows: Sequence[Mapping[str, Any]], names: list[str], title: str | None, styles: Styles
) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold")
    for name in names:
        numeric = bool(rows) and all(
            isinstance(row.get(name), (int, float, type(None)))
            and not isinstance(row.get(name), bool)
            for row in rows
        )
        first = name == names[0]  # what a row is called stays in one piece
        table.add_column(
            name, justify="right" if numeric else "left", overflow="fold", no_wrap=first
        )
    for row in rows:
        # Text, not markup: a value may hold square brackets of its own.
        cells = {name: _text(row.get(name)) for name in names}
        table.add_row(
            *(Text(cell, style=_style(styles, name, cell)) for name, cell in cells.items())
        )
    return table


def _style(styles: Styles, name: str, cell: str) -> str:
    return styles.get(name, {}).get(cell, "")


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}" if abs(value) < 1e6 else f"{value:.1f}"
    if isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False)
    return str(value).translate(_CONTROLS)


def _flat(text: str) -> str:
    return " ".join(text.splitlines()).replace("\t", " ")
