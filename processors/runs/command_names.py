"""Limit the length of names in commands, which become parts of keys, rows and indexes.

Services that accept requests have smaller limits of their own; these hold for every producer of
the command topic.
"""

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, Final, get_args

import msgspec

from headwater.processors.runs.decisions import Rejection
from headwater.processors.runs.limits import FAILURE_MESSAGE_MAX, KEY_BYTES_MAX
from headwater.processors.runs.slots import is_ticket
from headwater.schemas.failures import INVALID_COMMAND
from headwater.schemas.history import Artifact, AskSlot, Command, Once, Parent, Sender

#: Fields that are no names: values, texts for people, and fields with limits of their own.
_NO_NAMES: Final = frozenset(
    {"params", "payload", "start", "output", "message", "failure", "labels", "reason"}
)
_PARTS: Final = (Parent, Sender, Once, Artifact)


def _names_of(kind: type[msgspec.Struct], path: str = "") -> Iterator[str]:
    """Yield the paths of the fields of a command that hold names."""
    for field in msgspec.structs.fields(kind):
        if field.name in _NO_NAMES or (kind is AskSlot and field.name == "key"):
            continue
        members = get_args(field.type) or (field.type,)
        if str in members:
            yield path + field.name
        for part in members:
            if part in _PARTS:
                yield from _names_of(part, f"{path}{field.name}.")


def _getter(path: str) -> Callable[[Any], Any]:
    outer, _, inner = path.partition(".")
    if not inner:
        return attrgetter(path)
    part, name = attrgetter(outer), attrgetter(inner)

    def get(command: Any) -> Any:  # noqa: ANN401, a field
        value = part(command)
        return None if value is None else name(value)

    return get


_NAMES: Final = {
    kind: tuple((path, _getter(path)) for path in _names_of(kind)) for kind in get_args(Command)
}


def names_refusal(command: Command) -> Rejection | None:
    """Return the rejection of a command with a name that is too long, or an invalid ticket."""
    for path, get in _NAMES[type(command)]:
        name = get(command)
        # A character has at most four bytes.
        if name and 4 * len(name) > KEY_BYTES_MAX and len(name.encode()) > KEY_BYTES_MAX:
            return _refusal(command, path, f"at most {KEY_BYTES_MAX} bytes", name)
    reason = getattr(command, "reason", "")
    if len(reason) > FAILURE_MESSAGE_MAX:
        most = f"at most {FAILURE_MESSAGE_MAX} characters"
        return _refusal(command, "reason", most, reason)
    if isinstance(command, AskSlot) and not is_ticket(command.ticket):
        return _refusal(command, "ticket", "an instance, a run and a seed", command.ticket)
    return None


def _refusal(command: Command, path: str, expected: str, text: str) -> Rejection:
    shown = repr(text[:80])
    return Rejection(
        INVALID_COMMAND,
        f"expected {expected} as {path} of {type(command).__name__}, found {len(text)} "
        f"characters: {shown}",
    )
