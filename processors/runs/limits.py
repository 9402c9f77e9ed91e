"""The limits of workflows, and the checks of what comes from outside.

The numbers are those that Cloudflare Workflows made usual, so that what runs there runs here.
"""

import re
from typing import Final

WORKFLOW_NAME_MAX: Final = 64
INSTANCE_ID_MAX: Final = 100
EVENT_TYPE_MAX: Final = 100
STEP_NAME_MAX: Final = 256
LOG_MESSAGE_MAX: Final = 2_048
LOG_CATEGORY_MAX: Final = 64
#: Begins the name of a sender of events that is no workflow; no name of a workflow can.
PROGRAM: Final = "~"
#: The category of the engine's own log lines.
SYSTEM: Final = "system"
#: Largest JSON text of a result, payload, params, or data of a log line.
VALUE_BYTES_MAX: Final = 1024 * 1024
#: Entries of a run, unless its worker says otherwise.
ENTRIES_MAX: Final = 1_024
#: Retries that a step may have, unless it has any number of them.
RETRIES_MAX: Final = 1_000_000_000
SLEEP_MAX_MS: Final = 365 * 86_400_000
WAIT_MIN_MS: Final = 1_000
WAIT_MAX_MS: Final = 365 * 86_400_000
WAIT_DEFAULT_MS: Final = 86_400_000
#: Events that an instance has received and not yet consumed.
MAILBOX_MAX: Final = 10_000
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
    # Four bytes is the most that a character takes: most texts need not be encoded to be measured.
    if len(text) * 4 <= VALUE_BYTES_MAX:
        return None
    size = len(text.encode())
    if size <= VALUE_BYTES_MAX:
        return None
    return (
        f"expected at most {VALUE_BYTES_MAX} bytes of JSON as {what}, found {size}; "
        "store large data elsewhere and keep a reference to it"
    )


def too_many_entries(key: str, entries_max: int) -> str:
    """What a run is told that asks for one entry more than it may have."""
    return (
        f"expected at most {entries_max} entries in a run, found one more, {key}; "
        "use step.loop, which forgets old iterations, or child workflows"
    )
