"""Idempotency keys: a request with a key is executed once, however often it is sent.

The instance itself stores its keys, in its history and its state, so that two gateways, a client
that retries, and a new owner after a crash all get the same result. The key of the creation is
stored as long as the instance; keys of events for at least a day, at most as many as a mailbox
holds. A client that sends more within a day and then repeats the first creates a new event.
"""

from typing import Final

from headwater.processors.runs.decisions import Rejection
from headwater.processors.runs.limits import MAILBOX_MAX
from headwater.processors.runs.state import Run, StoredKey
from headwater.schemas.failures import (
    EVENT_ALREADY_RECEIVED,
    IDEMPOTENCY_CONFLICT,
    INSTANCE_CREATED_BEFORE,
)
from headwater.schemas.history import EventReceived, Once

REMEMBERED_MS: Final = 86_400_000
REMEMBERED_MAX: Final = MAILBOX_MAX


def created_before(run: Run, once: Once | None) -> Rejection | None:
    """Return the response to a creation whose key created the instance already, else None."""
    if once is None or run.once is None or run.once.key != once.key:
        return None
    if run.once.digest != once.digest:
        return _conflict(once, f"the creation of {run.instance_id}")
    return Rejection(
        INSTANCE_CREATED_BEFORE, f"{run.instance_id} was created by this request before"
    )


def received_before(run: Run, once: Once | None) -> Rejection | None:
    """Return the response to an event whose key is stored in the instance, else None."""
    known = run.keys.get(once.key) if once else None
    if once is None or known is None:
        return None
    if known.digest != once.digest:
        return _conflict(once, f"an event to {run.instance_id}")
    return Rejection(EVENT_ALREADY_RECEIVED, f"an event of key {_chosen(once)} was received before")


def _conflict(once: Once, what: str) -> Rejection:
    return Rejection(
        IDEMPOTENCY_CONFLICT,
        f"expected what was sent before with the idempotency key {_chosen(once)}, for {what}, "
        "found something else; use a new key for each thing that is to be done once",
    )


def _chosen(once: Once) -> str:
    """Return the key as its client chose it, without the prefix that scopes it to the client."""
    return once.key.rpartition(" ")[2]


def remember(run: Run, event: EventReceived, at_ms: int) -> None:
    """Store the key of an event, and drop keys that are too old or too many."""
    if event.once is None:
        return
    keys = run.keys
    keys[event.once.key] = StoredKey(event.once.digest, at_ms)
    while len(keys) > REMEMBERED_MAX or _oldest_ms(keys) <= at_ms - REMEMBERED_MS:
        del keys[next(iter(keys))]


def _oldest_ms(keys: dict[str, StoredKey]) -> int:
    return next(iter(keys.values())).at_ms
