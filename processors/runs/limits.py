"""Limits of workflows, and checks of input from outside: names, keys, values and labels.

The numbers are those of Cloudflare Workflows, so that workflows that run there run here.
"""

import re
import unicodedata
from collections.abc import Mapping
from typing import Final

from headwater.schemas.history import Label, Limits

#: The limits unless settings change them.
DEFAULT_LIMITS: Final = Limits()
#: Limits of names where they are declared, before any setting is known.
WORKFLOW_NAME_MAX: Final = DEFAULT_LIMITS.max_workflow_name
INSTANCE_ID_MAX: Final = DEFAULT_LIMITS.max_instance_id
EVENT_TYPE_MAX: Final = DEFAULT_LIMITS.max_event_type
#: Upper bounds of the two settings: names derived from an instance contain both.
INSTANCE_ID_TOP: Final = 200
EVENT_TYPE_TOP: Final = 200
#: Largest key of an entry: its name after those of all its containers. An index has to hold it.
KEY_BYTES_MAX: Final = 2_048
#: Characters of a log line of the engine.
LOG_MESSAGE_MAX: Final = DEFAULT_LIMITS.max_log_message
LOG_CATEGORY_TOP: Final = 256
#: Prefix of the names of built-in workflows, which no other workflow may have.
BUILTIN_PREFIX: Final = "headwater-"
#: Prefix of the name of an event sender that is not a workflow; no workflow name can have it.
PROGRAM: Final = "~"
#: The category of the engine's own log lines.
SYSTEM: Final = "system"
#: Largest JSON text of a value unless a setting changes it.
VALUE_BYTES_MAX: Final = DEFAULT_LIMITS.max_result_bytes
#: Upper bound of that setting: a record has to hold the value and its metadata.
VALUE_BYTES_TOP: Final = 4 * 1024 * 1024
#: Characters of an error's message and of its name that are kept. One page is enough to read, and
#: the errors of all branches of a join, which are combined into one message, stay small together.
FAILURE_MESSAGE_MAX: Final = 16 * 1024
FAILURE_NAME_MAX: Final = 256
#: Messages that a step may send in its transaction: they share one record with the step's result.
POSTS_MAX: Final = 1_000
POSTS_BYTES_MAX: Final = 1024 * 1024
#: Maximum size of one decision: it is one Kafka record, which has 11 MiB. The rest is for the
#: envelope, and for commands, which add the sender of a post.
DECISION_BYTES_MAX: Final = 10 * 1024 * 1024
#: Bytes of a run's state unless the worker sets another limit: it is sent to the host as a whole.
RUN_BYTES_MAX: Final = 32 * 1024 * 1024
#: Entries of a run unless the worker sets another limit.
ENTRIES_MAX: Final = 1_024
#: One-time warnings that a run remembers; further ones are not logged.
LOGGED_ONCE_MAX: Final = 100
#: Retries that a step may have if their number is limited.
RETRIES_MAX: Final = 1_000_000_000
DAY_MS: Final = 86_400_000
SLEEP_MAX_MS: Final = DEFAULT_LIMITS.max_sleep_days * DAY_MS
WAIT_MIN_MS: Final = 1_000
WAIT_MAX_MS: Final = 365 * 86_400_000
WAIT_DEFAULT_MS: Final = 86_400_000
#: Events that an instance has received and not consumed yet.
MAILBOX_MAX: Final = 10_000
#: How long the code of a canceled run may clean up unless the worker sets another limit.
CLEANUP_MS: Final = 30_000
#: Instances of one batch.
BATCH_MAX: Final = 100
#: Instances, or attempts of steps, of one tick.
TICK_MAX: Final = 10_000
#: Characters of a step's key: names of 256 in a path of a few loops and branches.
STEP_KEY_MAX: Final = 4_096
#: Characters of the reason with which an instance is ended.
REASON_MAX: Final = 1_000
#: Concurrent callbacks that are not async, in one process. They mostly wait for the network; more
#: threads would only compete for the interpreter. Small enough for the usual database limit of
#: 100 connections.
THREADS_MAX: Final = 32
#: Most characters of the id of a deployment; real ones have 24.
DEPLOYMENT_MAX: Final = 64
#: Code hosts of deployments in a worker besides that of the active one. A code host is a process
#: that has loaded an app; a machine of 4 GB can hold this many in addition to the worker.
DEPLOYED_HOSTS_MAX: Final = 8

_NAME: Final = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_-]*")


def recorded(limits: Limits) -> Limits | None:
    """Return limits as the start of a run records them."""
    return None if limits == DEFAULT_LIMITS else limits


def setting_suffix(setting: str) -> str:
    """Return the suffix of a message that names the setting of a limit; empty without one."""
    return f" ({setting})" if setting else ""


def name_problem(what: str, name: object, longest: int, setting: str = "") -> str | None:
    """Return what is wrong with the name of a workflow, instance or event type, or None."""
    if isinstance(name, str) and len(name) <= longest and _NAME.fullmatch(name):
        return None
    shown = repr(name if not isinstance(name, str) else name[:120])
    return (
        f"expected {what} of 1 to {longest} characters{setting_suffix(setting)} out of a-z, A-Z, "
        f"0-9, _ and -, not beginning with -, found {shown}"
    )


def control_character(text: str) -> str | None:
    """Return the first control character of a name that may have any others, or None.

    Names are shown in terminals, and Postgres holds no NUL: a key with one could not be requested.
    """
    if text.isascii() and text.isprintable():
        return None
    return next((char for char in text if unicodedata.category(char) == "Cc"), None)


def value_problem(
    what: str, text: str, most: int = VALUE_BYTES_MAX, setting: str = ""
) -> str | None:
    """Return a message if the JSON text of a value is too large, else None."""
    size = _size_beyond(text, most)
    if size is None:
        return None
    return (
        f"expected at most {most} bytes{setting_suffix(setting)} of JSON as {what}, found {size}; "
        "store large data elsewhere and keep a reference to it"
    )


def _size_beyond(text: str, most: int) -> int | None:
    """Return the size of a text in bytes if it exceeds `most`, else None."""
    # A character has at most four bytes, so most texts need not be encoded to be measured.
    if len(text) * 4 <= most:
        return None
    size = len(text.encode())
    return size if size > most else None


def key_problem(key: str) -> str | None:
    """Return a message if the key of an entry is too large, else None."""
    size = _size_beyond(key, KEY_BYTES_MAX)
    if size is None:
        return None
    return (
        "expected the names of an entry and of all its containers to have at most "
        f"{KEY_BYTES_MAX} bytes together, found {size} in {key[:120]!r}…; use shorter names, or a "
        "child workflow where joins, races and loops are nested"
    )


def bounded(text: str, longest: int = FAILURE_MESSAGE_MAX) -> str:
    """Return the text, cut to a number of characters; a marker then states its full length.

    A text that was cut is not cut again.
    """
    if len(text) <= longest:
        return text
    marker = f"… (cut; it had {len(text)} characters)"
    return text[: longest - len(marker)] + marker


def too_many_entries(key: str, entries_max: int) -> str:
    """Return the message for a run that requests one entry more than it may have."""
    return (
        f"expected at most {entries_max} entries in a run, found one more, {key}; "
        "use step.loop, which forgets old iterations, or child workflows"
    )


# -- labels

LABELS_MAX: Final = 16
LABEL_NAME_MAX: Final = 64
LABEL_VALUE_MAX: Final = 256

_LABEL_NAME: Final = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_.-]*")


def label_types_problem(labels: object) -> str | None:
    """Return why labels do not map text to text, or None if they do."""
    if not isinstance(labels, Mapping):
        return f"expected labels as a dict, found {labels!r:.120}"
    for name in labels:
        if not isinstance(name, str):
            return f"expected names of labels as text, found {name!r:.120}"
    return None


def labels_problem(labels: Mapping[str, object]) -> str | None:
    """Return what is wrong with labels, or None."""
    if len(labels) > LABELS_MAX:
        return f"expected at most {LABELS_MAX} labels, found {len(labels)}"
    for name, value in labels.items():
        if len(name) > LABEL_NAME_MAX or not _LABEL_NAME.fullmatch(name):
            return (
                f"expected the name of a label of 1 to {LABEL_NAME_MAX} characters out of a-z, "
                f"A-Z, 0-9, _, - and ., not beginning with - or ., found {name[:120]!r}"
            )
        if not isinstance(value, str) or len(value) > LABEL_VALUE_MAX or "\0" in value:
            return (
                f"expected text of at most {LABEL_VALUE_MAX} characters without NUL as the label "
                f"{name}, found {value!r:.120}"
            )
    return None


def labels_of(labels: Mapping[str, str]) -> tuple[Label, ...]:
    """Return labels as commands and histories store them: sorted by name, so that they compare."""
    return tuple(Label(name, labels[name]) for name in sorted(labels))


def checked_labels(labels: Mapping[str, str] | None) -> tuple[Label, ...]:
    """Check and return the labels that an author passed.

    Raises:
        TypeError: They do not map text to text.
        ValueError: They violate the rules.
    """
    problem = label_types_problem(labels or {})
    if problem:
        raise TypeError(problem)
    problem = labels_problem(labels or {})
    if problem:
        raise ValueError(problem)
    return labels_of(labels or {})
