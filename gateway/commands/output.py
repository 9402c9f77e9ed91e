"""What commands print: tables for people at a terminal, tab-separated lines or JSON for programs.

Results go to stdout; progress, hints and errors to stderr, so that a pipe carries results only.
What is for a person is shown by `gateway.commands.terminal`, imported where it is called: it
loads slowly.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from headwater.gateway.commands.terminal import Styles

#: Control characters of a value could move the cursor, or change what is on the screen already.
_CONTROLS: Final = {
    code: f"\\x{code:02x}"
    for code in (*range(0x20), *range(0x7F, 0xA0))
    if chr(code) not in "\t\n\r"
}

#: Characters of a value beside others, at a terminal.
_SHOWN: Final = 60


def say(message: str) -> None:
    """Prints a line of progress to stderr."""
    from headwater.gateway.commands.terminal import show_message  # noqa: PLC0415 (see above)

    show_message(message)


def at_terminal() -> bool:
    """Whether a person reads stdout."""
    return sys.stdout.isatty()


def longest_shown(*, full: bool = False) -> int | None:
    """How many characters of a value are shown beside others: in a pipe, and in full, all of it."""
    return None if full or not at_terminal() else _SHOWN


def cut(text: str, longest: int | None) -> str:
    """A text, or as much of it as may be shown."""
    return text if longest is None or len(text) <= longest else text[: longest - 1] + "…"


def json_text(value: object, longest: int | None = None) -> str:
    """A value as JSON, or as much of it as may be shown."""
    return cut(json.dumps(value, ensure_ascii=False), longest)


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number of things in words: `1 row`, `2 rows`, `2 deliveries`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    columns: Iterable[str],
    *,
    as_json: bool = False,
    title: str | None = None,
    styles: "Styles | None" = None,
    drops: Sequence[str] = (),
) -> None:
    """Prints rows.

    Shape:  at a terminal a table of the given columns; with `drops` no value but the last column's
            is split, and where the terminal is too narrow, columns are left out in that order. In a
            pipe a header line and a line a row,
            tab-separated, after a comment with the title if there is one; tabs and line ends
            within values are replaced by spaces; with `as_json` all
            rows as one JSON array, whole.
    """
    names = list(columns)
    if as_json:
        print_json(list(rows))
    elif at_terminal():
        _show(rows, names, title, styles or {}, drops)
    else:
        lines = [f"# {title}"] if title else []
        lines.append("\t".join(names))
        lines += ["\t".join(_flat(_text(row.get(name))) for name in names) for row in rows]
        sys.stdout.write("".join(f"{line}\n" for line in lines))


def print_fields(
    fields: Iterable[tuple[str, Any]],
    *,
    title: str | None = None,
    styles: "Mapping[str, str] | None" = None,
) -> None:
    """Prints one thing, a field a line; `styles` are those of values."""
    rows = [{"field": name, "value": value} for name, value in fields]
    print_rows(rows, ("field", "value"), title=title, styles={"value": styles or {}})


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
    from headwater.gateway.commands.terminal import show_sideways  # noqa: PLC0415 (see above)

    show_sideways(
        ["\n".join(_text(row.get(name)) for name in heading) for row in rows],
        {name: [_text(row.get(name)) for row in rows] for name in shown},
        title,
    )


def print_line(row: Mapping[str, Any], widths: Mapping[str, int], styles: "Styles") -> None:
    """Prints one row of many that come one by one, at once.

    Shape:  at a terminal columns of at least the given widths; in a pipe tab-separated.
    """
    cells = {name: _flat(_text(row.get(name))) for name in widths}
    if not at_terminal():
        sys.stdout.write("\t".join(cells.values()) + "\n")
        sys.stdout.flush()
        return
    from headwater.gateway.commands.terminal import show_line  # noqa: PLC0415 (see above)

    show_line(cells, widths, styles)


def print_json(value: object) -> None:
    """Prints a value as JSON, indented for people and in one line for programs."""
    indent = 2 if at_terminal() else None
    sys.stdout.write(json.dumps(value, indent=indent, ensure_ascii=False) + "\n")


def print_answer(answer: object) -> None:
    """Prints what the service has answered, as JSON with the names that it has over HTTP."""
    from msgspec import to_builtins  # noqa: PLC0415 (see above)

    print_json(to_builtins(answer))


def print_lines_of_json(*answers: object) -> None:
    """Prints what the service has answered, an object a line, at once."""
    from msgspec.json import encode  # noqa: PLC0415 (see above)

    sys.stdout.write("".join(f"{encode(each).decode()}\n" for each in answers))
    sys.stdout.flush()


def _show(
    rows: Sequence[Mapping[str, Any]],
    names: list[str],
    title: str | None,
    styles: "Styles",
    drops: Sequence[str],
) -> None:
    from headwater.gateway.commands.terminal import show_rows  # noqa: PLC0415 (see above)

    cells = [{name: _text(row.get(name)) for name in names} for row in rows]
    columns = {name: _numeric([row.get(name) for row in rows]) for name in names}
    left_out = show_rows(cells, columns, title=title, styles=styles, drops=drops)
    if left_out:
        say(f"Left out for want of width: {', '.join(left_out)}. With --json all is there.")


def _numeric(values: Sequence[object]) -> bool:
    """Whether a column is of numbers, or of nothing at all."""
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
