"""A user's connections, reconciled with Terra's list."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from typing import Final, NamedTuple

import msgspec

from headwater.gateway.api.users.ports import UserPorts
from headwater.gateway.builtin.terra.answers import TerraFailed
from headwater.gateway.builtin.terra.client import Terra
from headwater.gateway.builtin.terra.connections import compare
from headwater.gateway.settings.terra import TerraNotConfigured
from headwater.projections.deliveries.users import Connection
from headwater.schemas.errors import BrokerUnavailable, Overloaded, StoreUnavailable

_LOG: Final = logging.getLogger("headwater.gateway")

#: Seconds to wait for Terra's list before returning the connections in Postgres.
_TERRA_WITHIN_S: Final = 8.0


class Connected(msgspec.Struct, frozen=True, kw_only=True):
    """A user's link to a wearable account.

    Attributes:
        connected_at: When it was last reported as open, by a delivery or by Terra's list.
        state: `receiving`, `silent` or `failing`, as in the view `connection_activity`; null for a
            closed connection, and for one that was opened a moment ago.
        last_day: The newest day with data.
    """

    terra_user_id: str
    provider: str | None
    active: bool
    scopes: str | None
    connected_at: datetime | None
    deactivated_at: datetime | None
    state: str | None = None
    last_day: date | None = None


class Connections(msgspec.Struct, frozen=True, kw_only=True):
    """The connections of a user.

    Attributes:
        user_id: The user.
        connections: The connections.
        reconciled: Whether they were compared with Terra's list.
        reconciled_at: When Terra's list was requested, at most about a minute ago.
    """

    user_id: str
    connections: tuple[Connected, ...]
    reconciled: bool
    reconciled_at: datetime | None = None


async def reconciled(ports: UserPorts, user_id: str, request_id: str) -> Connections:
    """Return the connections of a user, reconciled with Terra's list.

    Differences are published as system events, and so become rows. While Terra or Kafka is down,
    the connections are those in Postgres.

    Raises:
        StoreUnavailable: Postgres did not answer.
    """
    ours = await ports.connections(user_id)
    try:
        async with asyncio.timeout(_TERRA_WITHIN_S):
            listing = await ports.terra.subscriptions()
        difference = compare(user_id, ours, listing)
        for fact in difference.facts:
            await ports.log.publish_fact(fact, request_id=request_id)
    except (TerraFailed, TerraNotConfigured, TimeoutError, BrokerUnavailable, Overloaded) as error:
        _LOG.warning("connections could not be reconciled: %s", str(error) or "Terra is slow")
        known = tuple(map(_shown, ours))
        return Connections(user_id=user_id, connections=known, reconciled=False)
    return Connections(
        user_id=user_id,
        connections=tuple(map(_shown, difference.connections)),
        reconciled=True,
        reconciled_at=datetime.fromtimestamp(listing.listed_s, UTC),
    )


async def with_states(ports: UserPorts, known: Connections) -> Connections:
    """Return connections with what came last of them.

    Raises:
        StoreUnavailable: Postgres did not answer.
    """
    activity = {one.terra_user_id: one for one in await ports.activity(known.user_id)}

    def shown(connection: Connected) -> Connected:
        last = activity.get(connection.terra_user_id)
        if last is None or not connection.active:
            return connection
        return msgspec.structs.replace(connection, state=last.state, last_day=last.last_day)

    return msgspec.structs.replace(known, connections=tuple(map(shown, known.connections)))


def _shown(connection: Connection) -> Connected:
    return Connected(
        terra_user_id=connection.terra_user_id,
        provider=connection.provider,
        active=connection.active is True,
        scopes=connection.scopes,
        connected_at=connection.connected_at,
        deactivated_at=connection.deactivated_at,
    )


# -- before a wipe

#: Seconds to wait for Terra before a wipe begins nevertheless: with those of the wipe, fewer than a
#: command waits for the answer.
_END_WITHIN_S: Final = 6.0


class Ended(NamedTuple):
    """Connections that Terra has ended, and those that it may still have.

    `terra_list_read` tells whether Terra's list was read, which alone names connections that are
    not in Postgres; it is None without Terra's credentials.
    """

    disconnected: tuple[str, ...]
    still_connected: tuple[str, ...]
    terra_list_read: bool | None


async def end_connections(
    terra: Terra,
    connections_of: Callable[[str], Awaitable[Sequence[Connection]]],
    user_id: str,
    within_s: float = _END_WITHIN_S,
) -> Ended:
    """End all connections of a user at Terra, which needs some seconds at most.

    These are the active ones, and those that only Terra's list has. The rows are left as they are.

    Args:
        terra: Terra's API.
        connections_of: Returns the connections of a user in Postgres.
        user_id: The user.
        within_s: Seconds for all of it.

    Raises:
        StoreUnavailable: Postgres did not answer in time, so no connection was ended.
    """
    deadline_s = asyncio.get_running_loop().time() + within_s
    try:
        async with asyncio.timeout_at(deadline_s):
            ours = await connections_of(user_id)
    except TimeoutError:
        raise StoreUnavailable(
            f"expected the user's connections from Postgres within {within_s:g} s, found none"
        ) from None
    expected: set[str] = set()
    ended: set[str] = set()
    list_read: bool | None = False

    async def end(terra_user_id: str) -> None:
        with suppress(TerraFailed, TerraNotConfigured):
            await terra.deauthenticate(terra_user_id)
            ended.add(terra_user_id)

    async def end_all(connections: set[str]) -> None:
        expected.update(connections)
        await asyncio.gather(*map(end, connections))

    try:
        async with asyncio.timeout_at(deadline_s):
            await end_all({one.terra_user_id for one in ours if one.active})
            listing = await terra.subscriptions()
            list_read = True
            listed = listing.of(user_id, [one.terra_user_id for one in ours])
            await end_all({one.user_id for one in listed if one.active is not False} - ended)
    except TerraNotConfigured:
        list_read = None
    except (TimeoutError, TerraFailed) as error:
        _LOG.warning("Terra did not end all connections: %s", str(error) or "Terra is slow")
    return Ended(tuple(sorted(ended)), tuple(sorted(expected - ended)), list_read)
