"""Texts of CEL expressions, and messages about them that authors can act on."""

import re
from typing import Final

_POSITION: Final = re.compile(r"<input>:(-?\d+):(-?\d+): (.*)")
#: Texts and comments, and fields with names that the grammar does not accept after a dot.
_TEXT_OR_FIELD: Final = re.compile(
    r"""("{3}(?:\\.|[^\\])*?"{3}|'{3}(?:\\.|[^\\])*?'{3}|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'"""
    r"""|//[^\n]*)|(?<=\.)(in|true|false|null)\b""",
    re.DOTALL,
)
#: Messages of the library that state nothing about the expression.
_OBSCURE: Final = {
    "Applying SELECT to non-message type": "expected an object to read a field of, found another "
    "value: Applying SELECT to non-message type",
    "returned a result with an exception": "expected a JSON value, found an optional value in it; "
    "add orValue, or write the key or the item with a question mark, as {?'key': value}",
}


def with_quoted_fields(source: str) -> str:
    """Return an expression in which `input.in` is spelled as the library accepts it."""
    return _TEXT_OR_FIELD.sub(lambda match: match[1] or f"`{match[2]}`", source)


def error_at_position(message: str, prefix_chars: int) -> str:
    """Return a compilation error with its line and column.

    Args:
        message: The library's message.
        prefix_chars: Characters that were added before the author's text.
    """
    match = _POSITION.search(message)
    if match is None:
        return message.splitlines()[0]
    line, column, reason = int(match[1]), int(match[2]), match[3]
    if line == 1:
        column -= prefix_chars
    return f"line {line}, column {column}: {reason}" if line > 0 else reason


def clear_message(message: str) -> str:
    """Return an evaluation error of the library, or a clearer one."""
    return next((clear for text, clear in _OBSCURE.items() if text in message), message)
