"""The limits of workflows, and the checks of what comes from outside.

The numbers are those that Cloudflare Workflows made usual, so that what runs there runs here.
"""

import re
from typing import Final

WORKFLOW_NAME_MAX: Final = 64
INSTANCE_ID_MAX: Final = 100
EVENT_TYPE_MAX: Final = 100
STEP_NAME_MAX: Final = 256
#: Largest key of an entry: its name behind those of all that it lies in. An index has to hold it.
KEY_BYTES_MAX: Final = 2_048
LOG_MESSAGE_MAX: Final = 2_048
LOG_CATEGORY_MAX: Final = 64
#: Begins the name of a sender of events that is no workflow; no name of a workflow can.
PROGRAM: Final = "~"
#: The category of the engine's own log lines.
SYSTEM: Final = "system"
#: Largest JSON text of a result, payload, params, or data of a log line.
VALUE_BYTES_MAX: Final = 1024 * 1024
#: Characters of an error's message and of its name that are kept. A person reads the first page of
#: it; and the errors of all branches of a join, which end in one message, stay small together.
FAILURE_MESSAGE_MAX: Final = 16 * 1024
FAILURE_NAME_MAX: Final = 256
#: What a step may send by its transaction: it is in one record together with the step's result.
POSTS_MAX: Final = 1_000
POSTS_BYTES_MAX: Final = 1024 * 1024
#: What one decision may lead to: it is one record of Kafka's, which has 11 MiB. The rest is for the
#: envelope, and for commands, which say of whom a post is.
DECISION_BYTES_MAX: Final = 10 * 1024 * 1024
#: Bytes of a run's state, unless its worker says otherwise: it goes to its host as a whole.
RUN_BYTES_MAX: Final = 32 * 1024 * 1024
#: Entries of a run, unless its worker says otherwise.
ENTRIES_MAX: Final = 1_024
#: What the engine tells a run once: a run remembers so much of it, and is told no more.
TOLD_MAX: Final = 100
#: Retries that a step may have, unless it has any number of them.
RETRIES_MAX: Final = 1_000_000_000
SLEEP_MAX_MS: Final = 365 * 86_400_000
WAIT_MIN_MS: Final = 1_000
WAIT_MAX_MS: Final = 365 * 86_400_000
WAIT_DEFAULT_MS: Final = 86_400_000
#: Events that an instance has received and not yet consumed.
MAILBOX_MAX: Final = 10_000
#: How long the code of a run that is cancelled may clean up, unless its worker says otherwise.
CLEANUP_MS: Final = 30_000
BATCH_MAX: Final = 100

_NAME: Final = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_-]*")


def name_fault(what: str, name: object, longest: int) -> str | None:
    """Says what is wrong with the name of a workflow, an instance or an event type, if anything."""
    if isinstance(name, str) and len(name) <= longest and _NAME.fullmatch(name):
        return None
    shown = repr(name if not isinstance(name, str) else name[:120])
    return (
        f"expected {what} of 1 to {longest} characters out of a-z, A-Z, 0-9, _ and -, "
        f"not beginning with -, found {shown}"
    )


def value_fault(what: str, text: str) -> str | None:
    """Says whether the JSON text of a value is too large."""
    size = _size_beyond(text, VALUE_BYTES_MAX)
    if size is None:
        return None
    return (
        f"expected at most {VALUE_BYTES_MAX} bytes of JSON as {what}, found {size}; "
        "store large data elsewhere and keep a reference to it"
    )


def _size_beyond(text: str, most: int) -> int | None:
    """How many bytes a text has, if these are more than it may have."""
    # Four bytes is the most that a character takes: most texts need not be encoded to be measured.
    if len(text) * 4 <= most:
        return None
    size = len(text.encode())
    return size if size > most else None


def key_fault(key: str) -> str | None:
    """Says whether the key of an entry is too large."""
    size = _size_beyond(key, KEY_BYTES_MAX)
    if size is None:
        return None
    return (
        "expected the names of an entry and of all that it lies in to have at most "
        f"{KEY_BYTES_MAX} bytes together, found {size} in {key[:120]!r}…; use shorter names, or a "
        "child workflow where joins, races and loops lie in each other"
    )


def bounded(text: str, longest: int = FAILURE_MESSAGE_MAX) -> str:
    """The text, cut to so many characters; then it says how long it was.

    Shape:  what was cut once is not cut again.
    """
    if len(text) <= longest:
        return text
    marker = f"… (cut; it had {len(text)} characters)"
    return text[: longest - len(marker)] + marker


def too_many_entries(key: str, entries_max: int) -> str:
    """What a run is told that asks for one entry more than it may have."""
    return (
        f"expected at most {entries_max} entries in a run, found one more, {key}; "
        "use step.loop, which forgets old iterations, or child workflows"
    )
