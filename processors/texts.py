"""Texts of a delivery that become keys, headers and columns.

Postgres text cannot hold NUL, and a control character in an id is a mistake or an attack on a
terminal that prints it. Both are rejected on receipt, so that later code need not check again.
Texts that people wrote, such as the name of a workout, are accepted with such characters replaced.
"""

import re
from typing import Final

#: Ids and types of all known producers stay below 64 characters; Kafka keys and Postgres index
#: entries allow far more than 256.
MAX_ID_CHARS: Final = 256

#: Control characters (C0, DEL, C1) and halves of surrogate pairs, which no UTF-8 can hold.
_UNFIT: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def storable(text: str) -> str:
    """Return a text that people wrote, with U+FFFD for characters that a column cannot hold."""
    return text if text.isprintable() else _UNFIT.sub("\ufffd", text)


def text_problem(field: str, text: str | None, limit: int = MAX_ID_CHARS) -> str | None:
    """Return what is wrong with a text, with the field's name; None if it is valid or missing."""
    # isprintable is fast and accepts normal ids. It also rejects some letters, such as the no-break
    # space, so rejected texts are checked again.
    if text is None or (len(text) <= limit and text.isprintable()):
        return None
    if len(text) > limit:
        return f"{field}: expected at most {limit} characters, found {len(text)}"
    unfit = _UNFIT.search(text)
    if unfit is None:
        return None
    return (
        f"{field}: expected no control characters, "
        f"found U+{ord(unfit[0]):04X} at character {unfit.start() + 1}"
    )
