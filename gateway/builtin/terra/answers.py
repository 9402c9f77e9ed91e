"""Terra's answers: errors, the fields that Headwater reads, and the list of connections.

Source: Terra's OpenAPI document, version 2026.07.17.1.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final

import msgspec

from headwater.schemas.errors import Disposition, HeadwaterError


class TerraFailed(HeadwaterError):
    """Terra did not return a usable response; a retry may succeed.

    Attributes:
        status: Status of the last response; None if there was none.
    """

    disposition = Disposition.RETRY
    code = "terra_failed"

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class TerraRefused(TerraFailed):
    """Terra refused a request; a retry cannot succeed."""

    disposition = Disposition.REJECT

    @property
    def is_unknown(self) -> bool:
        """Whether Terra does not know the object of the request."""
        return self.status == 404


# -- responses


class WidgetSession(msgspec.Struct, frozen=True):
    """A page on which a user connects a wearable. `expires_in` is in seconds."""

    url: str
    session_id: str
    expires_in: float = 900


class TerraUser(msgspec.Struct, frozen=True):
    """A connection in Terra."""

    user_id: str
    provider: str
    reference_id: str | None = None
    scopes: str | None = None
    active: bool | None = None
    created_at: str | None = None


class NamedUser(msgspec.Struct, frozen=True):
    """The id of a connection with otherwise unreadable fields."""

    user_id: str


class Page(msgspec.Struct, frozen=True):
    """A page of connections, which are parsed one by one; `next` is the number of the next page."""

    results: tuple[msgspec.Raw, ...] = ()
    next: int | None = None


class Subscriptions(msgspec.Struct, frozen=True):
    """Connections: one page in `data`, or all in `users`."""

    data: Page | None = None
    users: tuple[msgspec.Raw, ...] | None = None


class Accepted(msgspec.Struct, frozen=True):
    """Response to a request for data, which arrives as deliveries unless `status` is `error`."""

    status: str = ""
    reference: str = ""
    message: str = ""


class LabAccepted(msgspec.Struct, frozen=True):
    """Response to a lab report; its results arrive in a delivery with this `upload_id`."""

    upload_id: str


# -- connections of all users

_LOG: Final = logging.getLogger("headwater.gateway")

#: Seconds for which a list is cached, from the beginning of its read.
_FRESH_S: Final = 60.0
#: Seconds to wait after a failed read before the next one.
_FAILED_S: Final = 5.0


class ConnectionList(msgspec.Struct, frozen=True, kw_only=True):
    """Terra's connections at a point in time.

    Attributes:
        listed_s: When the read began, in Unix seconds: deliveries signed later are newer.
        by_reference: Connections by the reference of their user.
        by_id: Connections by their own id.
        unreadable: Ids of connections with otherwise unreadable fields.
        nameless: Number of entries without a readable id, which may be any connections.
    """

    listed_s: float
    by_reference: Mapping[str, tuple[TerraUser, ...]]
    by_id: Mapping[str, TerraUser]
    unreadable: frozenset[str] = frozenset()
    nameless: int = 0

    def of(self, reference_id: str, known: Collection[str] = ()) -> tuple[TerraUser, ...]:
        """Return the connections of a user.

        Args:
            reference_id: Reference of the user.
            known: Ids of connections known to be the user's; if a connection was made with another
                account, it may have another reference.
        """
        connections = {user.user_id: user for user in self.by_reference.get(reference_id, ())}
        connections |= {id_: self.by_id[id_] for id_ in known if id_ in self.by_id}
        return tuple(connections.values())

    def lacks(self, terra_user_id: str) -> bool:
        """Whether Terra certainly has no such connection."""
        if self.nameless or terra_user_id in self.unreadable:
            return False
        return terra_user_id not in self.by_id


def parse_connection_list(entries: Iterable[msgspec.Raw], listed_s: float) -> ConnectionList:
    """Parse entries of Terra's list one by one, so that an invalid one affects no other."""
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
    return ConnectionList(
        listed_s=listed_s,
        by_reference={name: tuple(users) for name, users in by_reference.items()},
        by_id=by_id,
        unreadable=frozenset(unreadable),
        nameless=nameless,
    )


class SharedConnectionList:
    """A list that concurrent callers share; cancelling one of them does not affect the others.

    Args:
        read: Reads the list; its argument is the start of the read in Unix seconds.
        wall_s: Returns Unix seconds.
        steady_s: Returns seconds of a monotonic clock.
    """

    def __init__(
        self,
        read: Callable[[float], Awaitable[ConnectionList]],
        wall_s: Callable[[], float],
        steady_s: Callable[[], float],
    ) -> None:
        self._read = read
        self._wall_s = wall_s
        self._steady_s = steady_s
        self._reading: asyncio.Task[ConnectionList] | None = None
        self._began_s = float("-inf")
        self._ended_s = float("-inf")

    async def get(self) -> ConnectionList:
        """Return a list that is at most a minute old.

        Raises:
            TerraFailed: The list could not be read, now or within the last seconds.
        """
        if self._reading is None or not self._usable(self._reading):
            self._began_s = self._steady_s()
            self._reading = asyncio.create_task(self._read_list())
            self._reading.add_done_callback(_note_failure)
        return await asyncio.shield(self._reading)

    def _usable(self, reading: asyncio.Task[ConnectionList]) -> bool:
        if not reading.done():
            return True
        if reading.cancelled() or reading.exception() is not None:
            return self._steady_s() - self._ended_s < _FAILED_S
        return self._steady_s() - self._began_s < _FRESH_S

    async def _read_list(self) -> ConnectionList:
        try:
            return await self._read(self._wall_s())
        finally:
            self._ended_s = self._steady_s()

    async def close(self) -> None:
        """Cancel a read that is in progress."""
        if self._reading is not None and not self._reading.done():
            self._reading.cancel()
            await asyncio.wait([self._reading])


def _note_failure(reading: asyncio.Task[ConnectionList]) -> None:
    """Retrieve the exception of a read, in case no caller awaits it any longer."""
    if not reading.cancelled():
        reading.exception()
