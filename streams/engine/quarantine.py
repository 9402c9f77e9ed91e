"""Instances of which nothing can be decided: their history cannot be applied, or they cannot end.

A quarantined instance has no state in memory. It costs its key, rejects its commands, and others
continue. A marker in place of its state says so in the store and in snapshots; its history is
whole. A takeover by another release reads the partition from the beginning and tries it again.
"""

from importlib.metadata import version
from typing import Final, NamedTuple
from zlib import crc32

from headwater.streams.engine.instance_store import StoredState

#: In place of the kind of an engine.
KIND: Final = "quarantined"
#: Names the release that could not go on with an instance.
RELEASE: Final = crc32(version("headwater").encode())
#: Characters of the description of an error that rejections and failures repeat.
_SHOWN: Final = 500


class Incident(NamedTuple):
    """An error while one command, message, timer or instance was handled; the rest continued.

    Args:
        kind: What was handled, a label of metrics.
        what: The same for people, with the instance.
        error: The error, None for an instance that an earlier owner has quarantined.
        quarantined: Whether the instance is quarantined.
    """

    kind: str
    what: str
    error: BaseException | None
    quarantined: bool = False


def marker(reason: str, position: int, parts: int = 1) -> StoredState:
    """Return what is stored in place of the state of a quarantined instance."""
    return StoredState(KIND, RELEASE, 0, position, reason.encode(errors="replace"), parts)


def reason_of(stored: StoredState) -> str:
    """Return why an instance is quarantined."""
    return stored.state.decode(errors="replace")


def described(error: BaseException) -> str:
    """Return the name and the message of an error, bounded, as text that UTF-8 can hold."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001, the message of an error is code of its own
        message = "its message cannot be read"
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return text.encode(errors="backslashreplace").decode()
