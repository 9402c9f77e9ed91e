"""Messages of queues.

A message is delivered by the first matching rule of its queue. Without rules, a queue is the
workflow of its name, and a message is a run of it. A message that is delayed, or has a rule, is an
instance of the built-in workflow `headwater-message` until it is delivered. So its delay is a sleep
in the log, and a message that cannot be delivered is an instance that has errored.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from headwater.processors.runs.limits import LABEL_VALUE_MAX
from headwater.schemas.history import Artifact, Label, Once, StartRun

#: The built-in workflow that delivers messages: one instance per message.
DELIVERY: Final = "headwater-message"
#: Label of its instances with the name of the queue.
QUEUE_LABEL: Final = "queue"
#: Characters of the name of a queue, which is the value of a label.
QUEUE_NAME_MAX: Final = LABEL_VALUE_MAX
#: Headers of a message, and characters of the name and of the value of one.
HEADERS_MAX: Final = 32
HEADER_CHARS_MAX: Final = 1_024


class QueueMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message, as the params of the instance that delivers it.

    Attributes:
        queue: Name of the queue.
        body: The message, JSON.
        delay_ms: Milliseconds from its publication to its delivery.
        headers: Headers of the publisher, for rules.
        deployment: The deployment on which the run that it starts begins; None for the active one.
    """

    queue: str
    body: msgspec.Raw
    delay_ms: int = 0
    headers: dict[str, str] = {}
    deployment: Artifact | None = None


def delivery_of(message: QueueMessage, once: Once | None = None) -> StartRun:
    """Return the command that creates the instance that delivers a message.

    Args:
        message: The message.
        once: Deduplicates the command.
    """
    params = msgspec.json.encode(message).decode()
    return StartRun(params, once=once, labels=(Label(QUEUE_LABEL, message.queue),))


def queue_name_problem(name: str) -> str | None:
    """Return what is wrong with the name of a queue, or None."""
    if 0 < len(name) <= QUEUE_NAME_MAX and name.isprintable():
        return None
    return (
        f"expected the name of a queue of 1 to {QUEUE_NAME_MAX} printable characters, found "
        f"{name[:120]!r}"
    )


def headers_problem(headers: Mapping[Any, Any]) -> str | None:
    """Return what is wrong with the headers of a message, or None."""
    if len(headers) > HEADERS_MAX:
        return f"expected at most {HEADERS_MAX} headers, found {len(headers)}"
    for name, value in headers.items():
        if not (
            isinstance(name, str)
            and isinstance(value, str)
            and 0 < len(name) <= HEADER_CHARS_MAX
            and len(value) <= HEADER_CHARS_MAX
        ):
            return (
                f"expected headers as texts of at most {HEADER_CHARS_MAX} characters by name, "
                f"found {name!r:.60}: {value!r:.60}"
            )
    return None
