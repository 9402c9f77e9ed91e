"""A user's connections, reconciled with Terra's list."""

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec

from headwater.gateway.api.users.ports import UserPorts
from headwater.gateway.builtin.terra.answers import ConnectionList, TerraFailed, TerraUser
from headwater.gateway.settings.terra import TerraNotConfigured
from headwater.projections.deliveries.users import Connection
from headwater.schemas.errors import BrokerUnavailable, Overloaded
from headwater.schemas.providers.headwater import ConnectionClosed, ConnectionListed, SystemEvent

_LOG: Final = logging.getLogger("headwater.gateway")

#: Seconds to wait for Terra's list before returning the connections in Postgres.
_TERRA_WITHIN_S: Final = 8.0


class Connected(msgspec.Struct, frozen=True, kw_only=True):
    """A user's link to a wearable account.

    `connected_at` is when it was last reported as open.
    """

    terra_user_id: str
    provider: str | None
    active: bool
    scopes: str | None
    connected_at: datetime | None
    deactivated_at: datetime | None


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


class Difference(NamedTuple):
    """Differences from Terra's list.

    Attributes:
        facts: System events to publish.
        connections: The connections after these events.
    """

    facts: tuple[SystemEvent, ...]
    connections: tuple[Connected, ...]


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
        difference = compared(user_id, ours, listing)
        for fact in difference.facts:
            await ports.log.publish_fact(fact, request_id=request_id)
    except (TerraFailed, TerraNotConfigured, TimeoutError, BrokerUnavailable, Overloaded) as error:
        _LOG.warning("connections could not be reconciled: %s", str(error) or "Terra is slow")
        known = tuple(map(_from_row, ours))
        return Connections(user_id=user_id, connections=known, reconciled=False)
    return Connections(
        user_id=user_id,
        connections=difference.connections,
        reconciled=True,
        reconciled_at=datetime.fromtimestamp(listing.listed_s, UTC),
    )


def compared(user_id: str, ours: Sequence[Connection], listing: ConnectionList) -> Difference:
    """Compare a user's connections with Terra's list.

    Changes after the list was read take precedence over it.
    """
    listed_at = datetime.fromtimestamp(listing.listed_s, UTC)
    at_ms = round(listing.listed_s * 1000)
    known = {connection.terra_user_id: _from_row(connection) for connection in ours}
    listed = {connection.user_id: connection for connection in listing.of(user_id, known)}
    facts: list[SystemEvent] = []
    for terra_user_id, entry in listed.items():
        before = known.get(terra_user_id)
        if entry.active is False or (
            before is not None and _is_later(before.deactivated_at, listed_at)
        ):
            continue
        if before is None or not before.active:
            facts.append(
                ConnectionListed(
                    at_ms=at_ms,
                    user_id=user_id,
                    terra_user_id=terra_user_id,
                    provider=entry.provider,
                    scopes=entry.scopes,
                )
            )
        known[terra_user_id] = _from_terra(entry, before)
    for terra_user_id, before in list(known.items()):
        current = listed.get(terra_user_id)
        lost = listing.lacks(terra_user_id) if current is None else current.active is False
        if before.active and lost and not _is_later(before.connected_at, listed_at):
            facts.append(
                ConnectionClosed(at_ms=at_ms, user_id=user_id, terra_user_id=terra_user_id)
            )
            known[terra_user_id] = msgspec.structs.replace(
                before, active=False, deactivated_at=listed_at
            )
    return Difference(tuple(facts), tuple(known[terra_user_id] for terra_user_id in sorted(known)))


def _is_later(moment: datetime | None, than: datetime) -> bool:
    return moment is not None and moment > than


def _from_row(connection: Connection) -> Connected:
    return Connected(
        terra_user_id=connection.terra_user_id,
        provider=connection.provider,
        active=connection.active is True,
        scopes=connection.scopes,
        connected_at=connection.connected_at,
        deactivated_at=connection.deactivated_at,
    )


def _from_terra(entry: TerraUser, before: Connected | None) -> Connected:
    return Connected(
        terra_user_id=entry.user_id,
        provider=entry.provider,
        active=True,
        scopes=entry.scopes or (before.scopes if before else None),
        connected_at=_moment(entry.created_at) or (before.connected_at if before else None),
        deactivated_at=None,
    )


def _moment(text: str | None) -> datetime | None:
    """Parse a time of Terra; without an offset it is in UTC."""
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
