"""The limits of workflows, and the checks of what comes from outside.

The numbers are those that Cloudflare Workflows made usual, so that what runs there runs here.
"""

import re
import unicodedata
from typing import Final

from headwater.schemas.history import Limits

#: The limits where nobody has set others.
USUAL: Final = Limits()
#: What names are held to where they are written down, before any setting is known.
WORKFLOW_NAME_MAX: Final = USUAL.max_workflow_name
INSTANCE_ID_MAX: Final = USUAL.max_instance_id
EVENT_TYPE_MAX: Final = USUAL.max_event_type
#: The most that the settings of the two may be: what names an instance has room for both.
INSTANCE_ID_TOP: Final = 200
EVENT_TYPE_TOP: Final = 200
#: Largest key of an entry: its name behind those of all that it lies in. An index has to hold it.
KEY_BYTES_MAX: Final = 2_048
#: Characters of a line of the engine's.
LOG_MESSAGE_MAX: Final = USUAL.max_log_message
LOG_CATEGORY_TOP: Final = 256
#: Begins the names of the workflows that come with Headwater, and of no others.
HOUSE_PREFIX: Final = "headwater-"
#: Begins the name of a sender of events that is no workflow; no name of a workflow can.
PROGRAM: Final = "~"
#: The category of the engine's own log lines.
SYSTEM: Final = "system"
#: Largest JSON text of a value where nobody has set another.
VALUE_BYTES_MAX: Final = USUAL.max_result_bytes
#: The most that a setting may make of it: a record has to hold it, and what belongs to it.
VALUE_BYTES_TOP: Final = 4 * 1024 * 1024
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
DAY_MS: Final = 86_400_000
SLEEP_MAX_MS: Final = USUAL.max_sleep_days * DAY_MS
WAIT_MIN_MS: Final = 1_000
WAIT_MAX_MS: Final = 365 * 86_400_000
WAIT_DEFAULT_MS: Final = 86_400_000
#: Events that an instance has received and not yet consumed.
MAILBOX_MAX: Final = 10_000
#: How long the code of a run that is cancelled may clean up, unless its worker says otherwise.
CLEANUP_MS: Final = 30_000
#: Instances of one batch.
BATCH_MAX: Final = 100
#: Instances, or attempts of steps, of one tick.
TICK_MAX: Final = 10_000
#: Characters of a step's key: names of 256 in a path of a few loops and branches.
STEP_KEY_MAX: Final = 4_096
#: Characters of why an instance is ended.
REASON_MAX: Final = 1_000
#: Callbacks that are not async, at a time in a process. They mostly wait for a network; more
#: threads would only take turns at the interpreter. Small enough for a database's usual limit of
#: 100 connections.
THREADS_MAX: Final = 32
#: Hosts of deployments in a worker, beside that of the active one: each is a process with an app in
#: it, and a machine of 4 GB has room for these beside the worker.
DEPLOYED_HOSTS_MAX: Final = 8

_NAME: Final = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_-]*")


def recorded(limits: Limits) -> Limits | None:
    """Limits as a run that begins records them."""
    return None if limits == USUAL else limits


def of_setting(setting: str) -> str:
    """What a message says of the setting that a limit is; nothing without one."""
    return f" ({setting})" if setting else ""


def name_fault(what: str, name: object, longest: int, setting: str = "") -> str | None:
    """Says what is wrong with the name of a workflow, an instance or an event type, if anything."""
    if isinstance(name, str) and len(name) <= longest and _NAME.fullmatch(name):
        return None
    shown = repr(name if not isinstance(name, str) else name[:120])
    return (
        f"expected {what} of 1 to {longest} characters{of_setting(setting)} out of a-z, A-Z, 0-9, "
        f"_ and -, not beginning with -, found {shown}"
    )


def control_character(text: str) -> str | None:
    """Return the first control character of a name that may have any others, or None.

    Names are shown in terminals, and Postgres holds no NUL: a key with one could not be requested.
    """
    if text.isascii() and text.isprintable():
        return None
    return next((char for char in text if unicodedata.category(char) == "Cc"), None)


def value_fault(what: str, text: str, most: int = VALUE_BYTES_MAX, setting: str = "") -> str | None:
    """Says whether the JSON text of a value is too large."""
    size = _size_beyond(text, most)
    if size is None:
        return None
    return (
        f"expected at most {most} bytes{of_setting(setting)} of JSON as {what}, found {size}; "
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
