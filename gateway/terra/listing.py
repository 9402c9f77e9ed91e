"""Terra's list of the connections of all users: read once for all who want it within a minute."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final

import msgspec

from headwater.gateway.terra.answers import NamedUser, TerraUser

_LOG: Final = logging.getLogger("headwater.gateway")

#: Seconds for which a list is used.
_FRESH_S: Final = 60.0
#: Seconds after a read that failed in which no other is begun.
_FAILED_S: Final = 5.0


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """The connections that Terra had at a moment.

    Attributes:
        listed_s: When the read began, Unix seconds: what was signed later is newer.
        by_reference: Connections by the reference of their user.
        by_id: Connections by their own id.
        unreadable: Ids of connections of which nothing else can be read.
        nameless: How many entries have not even a readable id: any connection may be among them.
    """

    listed_s: float
    by_reference: Mapping[str, tuple[TerraUser, ...]]
    by_id: Mapping[str, TerraUser]
    unreadable: frozenset[str] = frozenset()
    nameless: int = 0

    def of(self, reference_id: str, known: Collection[str] = ()) -> tuple[TerraUser, ...]:
        """Return the connections of a user: by reference, and those whose ids are known as theirs.

        A connection that was made by another account may have another reference.
        """
        found = {each.user_id: each for each in self.by_reference.get(reference_id, ())}
        found |= {each: self.by_id[each] for each in known if each in self.by_id}
        return tuple(found.values())

    def lacks(self, terra_user_id: str) -> bool:
        """Whether it is certain that Terra has no such connection."""
        if self.nameless or terra_user_id in self.unreadable:
            return False
        return terra_user_id not in self.by_id


def read_listing(entries: Iterable[msgspec.Raw], listed_s: float) -> Listing:
    """Read entries of Terra's list, each by itself: one that cannot be read spoils no other."""
    by_reference: dict[str, list[TerraUser]] = {}
    by_id: dict[str, TerraUser] = {}
    unreadable, nameless = set[str](), 0
    for entry in entries:
        try:
            user = msgspec.json.decode(entry, type=TerraUser)
        except msgspec.DecodeError:
            try:
                unreadable.add(msgspec.json.decode(entry, type=NamedUser).user_id)
            except msgspec.DecodeError:
                nameless += 1
            continue
        by_id[user.user_id] = user
        if user.reference_id is not None:
            by_reference.setdefault(user.reference_id, []).append(user)
    if unreadable or nameless:
        _LOG.warning(
            "%d entries of Terra's subscriptions cannot be read and are skipped",
            len(unreadable) + nameless,
        )
    return Listing(
        listed_s=listed_s,
        by_reference={name: tuple(users) for name, users in by_reference.items()},
        by_id=by_id,
        unreadable=frozenset(unreadable),
        nameless=nameless,
    )


class SharedListing:
    """One read of the list for all callers, whoever of them leaves.

    Args:
        read: Reads the list, given when that began.
        wall_s: Unix time, in seconds.
        steady_s: A steady clock, in seconds.
    """

    def __init__(
        self,
        read: Callable[[float], Awaitable[Listing]],
        wall_s: Callable[[], float],
        steady_s: Callable[[], float],
    ) -> None:
        self._read = read
        self._wall_s = wall_s
        self._steady_s = steady_s
        self._reading: asyncio.Task[Listing] | None = None
        self._ended_s = float("-inf")

    async def get(self) -> Listing:
        """Return a list that was read at most a minute ago, or is read now.

        A caller that is cancelled leaves the read to the others; without any it ends by itself.

        Raises:
            TerraFailed: The list could not be read, just now or a moment ago.
        """
        if self._reading is None or not self._usable(self._reading):
            self._reading = asyncio.create_task(self._whole())
            self._reading.add_done_callback(_note_failure)
        return await asyncio.shield(self._reading)

    def _usable(self, reading: asyncio.Task[Listing]) -> bool:
        if not reading.done():
            return True
        if reading.cancelled() or reading.exception() is not None:
            return self._steady_s() - self._ended_s < _FAILED_S
        return self._steady_s() - self._ended_s < _FRESH_S

    async def _whole(self) -> Listing:
        try:
            return await self._read(self._wall_s())
        finally:
            self._ended_s = self._steady_s()

    async def close(self) -> None:
        """End a read that is under way."""
        if self._reading is not None and not self._reading.done():
            self._reading.cancel()
            await asyncio.wait([self._reading])


def _note_failure(reading: asyncio.Task[Listing]) -> None:
    """Take the error of a read that no caller waits for any longer."""
    if not reading.cancelled():
        reading.exception()
