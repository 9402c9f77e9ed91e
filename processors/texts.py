"""Texts of a delivery that become keys, headers and columns.

Postgres text cannot hold NUL, and a control character in an id is a mistake or an attack on whoever
prints it. So both are refused at the door, and nothing behind it needs to look again. Texts that
people wrote, such as the name of a workout, are taken without them.
"""

import re
from typing import Final

#: Ids and types of every producer known stay below 64 characters; Kafka keys and Postgres index
#: entries are comfortable far above 256.
MAX_ID_CHARS: Final = 256

#: Control characters (C0, DEL, C1) and halves of surrogate pairs, which no UTF-8 can hold.
_UNFIT: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def storable(text: str) -> str:
    """A text that people wrote, as a column can hold it: what cannot be is U+FFFD."""
    return text if text.isprintable() else _UNFIT.sub("\ufffd", text)


def fault_of(field: str, text: str | None, limit: int = MAX_ID_CHARS) -> str | None:
    """Says what is wrong with a text, naming its field; None if nothing is, or there is no text."""
    # isprintable is one quick pass that good ids survive; it also turns down some letters, such as
    # the no-break space, so what it turns down is looked at again.
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
