"""Audit entries of refused keys: one per key and minute, with the number of requests.

The log is kept indefinitely, and any client could fill it with guesses. So refusals are counted
by the id of the presented key, and at most `KEYS_MAX` keys of a minute have an entry of their own;
further ones share one by kind.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from litestar.datastructures import Headers
from litestar.types import Scope

from headwater.gateway.api.audit import FAILURE, Auditing, RequestFacts, resource_of
from headwater.schemas.errors import HeadwaterError

_LOG: Final = logging.getLogger("headwater.gateway.audit")

#: Action of the entries.
REFUSED_KEY: Final = "keys.refuse"
#: Keys of a minute with an entry of their own, by any number of clients.
KEYS_MAX: Final = 50
#: In place of the digits of a key without an entry of its own.
_OTHERS: Final = "others"
_FLUSH_EVERY_S: Final = 60.0


@dataclass(slots=True)
class RefusedKey:
    """Refusals of a key since the last entry.

    Attributes:
        first: First request.
        count: Number of requests.
        last_ms: Unix milliseconds of the last one.
    """

    first: RequestFacts
    count: int
    last_ms: int


class RefusedKeys:
    """Counts refused keys.

    Args:
        peer_of: Returns the client address of a request.
        clock: Returns Unix milliseconds.
    """

    def __init__(self, peer_of: Callable[[Scope], str], clock: Callable[[], int]) -> None:
        self._peer_of = peer_of
        self._clock = clock
        self._refused: dict[str, RefusedKey] = {}

    def record(self, scope: Scope, key_id: str) -> None:
        """Count a request with a key that was refused."""
        if key_id not in self._refused and len(self._refused) >= KEYS_MAX:
            key_id = f"{key_id.partition(':')[0]}:{_OTHERS}"
        now_ms = self._clock()
        refused = self._refused.get(key_id)
        if refused is None:
            agent = Headers.from_scope(scope).get("user-agent", "")
            first = RequestFacts(key_id, resource_of(scope), self._peer_of(scope), agent, now_ms)
            self._refused[key_id] = RefusedKey(first, 1, now_ms)
        else:
            refused.count += 1
            refused.last_ms = now_ms

    def take(self) -> list[RefusedKey]:
        """Return the refusals since the last call."""
        taken, self._refused = self._refused, {}
        return list(taken.values())


async def append_refusals(refused_keys: RefusedKeys, auditing: Auditing) -> None:
    """Append an entry for each refused key; those that are not stored are logged."""
    # At once: while Kafka is away, a gateway that stops waits for one timeout, not for fifty.
    await asyncio.gather(*(_append(auditing, refused) for refused in refused_keys.take()))


async def _append(auditing: Auditing, refused: RefusedKey) -> None:
    metadata = {"count": refused.count, "code": "unauthorized", "untilMs": refused.last_ms}
    try:
        await auditing.append(refused.first, REFUSED_KEY, FAILURE, metadata)
    except HeadwaterError as error:
        _LOG.warning(
            "no audit entry for %d requests with the refused key %s: %s",
            refused.count,
            refused.first.key_id,
            error,
        )


@asynccontextmanager
async def appending_refusals(refused_keys: RefusedKeys, auditing: Auditing) -> AsyncIterator[None]:
    """Append refusals every minute, and at the end."""

    async def repeat() -> None:
        while True:
            await asyncio.sleep(_FLUSH_EVERY_S)
            await append_refusals(refused_keys, auditing)

    task = asyncio.create_task(repeat())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await append_refusals(refused_keys, auditing)
