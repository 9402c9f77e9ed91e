"""Quarantined instances: their history cannot be applied, or their run cannot be ended.

A quarantined instance has no state in memory. It rejects commands, and other instances continue. A
marker instead of its state records this in the store and in snapshots; its history is complete.
When a worker of another release acquires the partition, it reads the history from the beginning and
tries the instance again.
"""

from importlib.metadata import version
from typing import Final, NamedTuple
from zlib import crc32

from headwater.streams.engine.instance_store import StoredState

#: Stored instead of the kind of an engine.
KIND: Final = "quarantined"
#: Identifies the release that quarantined an instance.
RELEASE: Final = crc32(version("headwater").encode())
#: Characters of an error's description that are repeated in rejections and failures.
_SHOWN: Final = 500


class Incident(NamedTuple):
    """An error in the handling of one command, message, timer or instance; the rest continued.

    Attributes:
        kind: What was handled, as a label of metrics.
        what: The same for messages, with the instance.
        error: The error; None for an instance that an earlier owner has quarantined.
        quarantined: Whether the instance is quarantined.
    """

    kind: str
    what: str
    error: BaseException | None
    quarantined: bool = False


def marker(reason: str, position: int, parts: int = 1) -> StoredState:
    """Return the marker that is stored instead of the state of a quarantined instance."""
    return StoredState(KIND, RELEASE, 0, position, reason.encode(errors="replace"), parts)


def reason_of(stored: StoredState) -> str:
    """Return why an instance is quarantined."""
    return stored.state.decode(errors="replace")


def describe_error(error: BaseException) -> str:
    """Return the name and message of an error, truncated, as text that UTF-8 can encode."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001, __str__ may run an author's code
        message = "its message cannot be read"
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return text.encode(errors="backslashreplace").decode()
