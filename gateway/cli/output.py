"""Output of commands: tables, tab-separated lines or JSON.

Results go to stdout; progress, hints and errors to stderr, so that a pipe carries only results.
`gateway.cli.terminal`, which formats for terminals, is imported where it is called, because that is
slow.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from headwater.gateway.cli.terminal import Styles


# -- results

#: Control characters in a value could move the cursor, or overwrite the screen.
_CONTROLS: Final = {
    code: f"\\x{code:02x}"
    for code in (*range(0x20), *range(0x7F, 0xA0))
    if chr(code) not in "\t\n\r"
}

#: Characters of a value in a table, at a terminal.
_SHOWN: Final = 60


def say(message: str) -> None:
    """Print a line of progress to stderr."""
    from headwater.gateway.cli.terminal import show_message  # noqa: PLC0415 (see above)

    show_message(message)


def say_progress(text: str) -> None:
    """Print progress to stderr: a line in a pipe; at a terminal, in place of the previous one.

    An empty text removes the previous one.
    """
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
    elif text:
        say(text)


def at_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout.isatty()


def longest_shown(*, full: bool = False) -> int | None:
    """Return how many characters of a value are shown in a table; None for all."""
    return None if full or not at_terminal() else _SHOWN


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: `1 row`, `2 rows`, `2 deliveries`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    columns: Iterable[str],
    *,
    title: str | None = None,
    styles: "Styles | None" = None,
    drops: Sequence[str] = (),
) -> None:
    """Print rows.

    At a terminal: a table. In a pipe: a header line and a line per row, tab-separated, after a
    comment with the title; tabs and line ends within values become spaces.

    Args:
        rows: The rows.
        columns: Columns that are shown.
        title: Title of the table.
        styles: Styles of values, by column.
        drops: Columns that a narrow terminal drops, in this order. With it, only values of the last
            column are wrapped.
    """
    names = list(columns)
    if at_terminal():
        _show(rows, names, title, styles or {}, drops)
    else:
        lines = [f"# {title}"] if title else []
        lines.append("\t".join(names))
        lines += ["\t".join(_flat(_text(row.get(name))) for name in names) for row in rows]
        sys.stdout.write("".join(f"{line}\n" for line in lines))


def print_sideways(
    rows: Sequence[Mapping[str, Any]], heading: Sequence[str], columns: Iterable[str], title: str
) -> None:
    """Print a few wide rows: at a terminal a line per column, without empty columns.

    In a pipe it is the same as `print_rows`.

    Args:
        rows: The rows.
        heading: Columns that name a row.
        columns: The other columns.
        title: Title of the table.
    """
    shown = [name for name in columns if any(row.get(name) is not None for row in rows)]
    if not at_terminal():
        print_rows(rows, [*heading, *shown], title=title)
        return
    from headwater.gateway.cli.terminal import show_sideways  # noqa: PLC0415 (see above)

    show_sideways(
        ["\n".join(_text(row.get(name)) for name in heading) for row in rows],
        {name: [_text(row.get(name)) for row in rows] for name in shown},
        title,
    )


def print_line(row: Mapping[str, Any], widths: Mapping[str, int], styles: "Styles") -> None:
    """Print a row at once, as one of many that arrive over time.

    Args:
        row: The row.
        widths: Columns, with their least widths at a terminal; in a pipe it is tab-separated.
        styles: Styles of values, by column.
    """
    cells = {name: _flat(_text(row.get(name))) for name in widths}
    if not at_terminal():
        sys.stdout.write("\t".join(cells.values()) + "\n")
        sys.stdout.flush()
        return
    from headwater.gateway.cli.terminal import show_line  # noqa: PLC0415 (see above)

    show_line(cells, widths, styles)


def print_json(value: object) -> None:
    """Print a value as JSON, indented at a terminal and in one line for programs."""
    indent = 2 if at_terminal() else None
    sys.stdout.write(json.dumps(value, indent=indent, ensure_ascii=False) + "\n")


def print_answer(answer: object) -> None:
    """Print an answer of the service as JSON, with the names that it has over HTTP."""
    from msgspec import to_builtins  # noqa: PLC0415 (see above)

    print_json(to_builtins(answer))


def print_lines_of_json(*answers: object) -> None:
    """Print answers of the service at once, an object a line."""
    from msgspec.json import encode  # noqa: PLC0415 (see above)

    sys.stdout.write("".join(f"{encode(answer).decode()}\n" for answer in answers))
    sys.stdout.flush()


def _show(
    rows: Sequence[Mapping[str, Any]],
    names: list[str],
    title: str | None,
    styles: "Styles",
    drops: Sequence[str],
) -> None:
    from headwater.gateway.cli.terminal import show_rows  # noqa: PLC0415 (see above)

    cells = [{name: _text(row.get(name)) for name in names} for row in rows]
    columns = {name: _numeric([row.get(name) for row in rows]) for name in names}
    dropped = show_rows(cells, columns, title=title, styles=styles, drops=drops)
    if dropped:
        say(f"Not shown, as the terminal is too narrow: {', '.join(dropped)}. --json shows all.")


def _numeric(values: Sequence[object]) -> bool:
    """Return whether a column has only numbers and empty values."""
    return bool(values) and all(
        isinstance(value, (int, float, type(None))) and not isinstance(value, bool)
        for value in values
    )


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
