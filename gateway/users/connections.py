"""A user's connections: those that we have, brought to agree with those that Terra has."""

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec

from headwater.gateway.terra.answers import TerraUser
from headwater.gateway.terra.errors import TerraFailed, TerraNotConfigured
from headwater.gateway.terra.listing import Listing
from headwater.gateway.users.ports import UserPorts
from headwater.projections.deliveries.of_user import Connection
from headwater.schemas.errors import BrokerUnavailable, Overloaded
from headwater.schemas.providers.headwater import ConnectionGone, ConnectionListed, Fact

_LOG: Final = logging.getLogger("headwater.gateway")

#: Seconds that a user waits for what Terra has; then what we have will do.
_TERRA_WITHIN_S: Final = 8.0


class Connected(msgspec.Struct, frozen=True, kw_only=True):
    """A user's link to a wearable account.

    Shape:  connected_at is when it was last said to be open.
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
        reconciled_at: When Terra was asked for that list, at most about a minute ago.
    """

    user_id: str
    connections: tuple[Connected, ...]
    reconciled: bool
    reconciled_at: datetime | None = None


class Difference(NamedTuple):
    """What is to be told, and the connections as they are then."""

    facts: tuple[Fact, ...]
    connections: tuple[Connected, ...]


async def reconciled(ports: UserPorts, user_id: str, request_id: str) -> Connections:
    """The connections of a user, those that Terra has in place of ours where it is heard.

    What differs is told to the log, and so becomes rows. While Terra or Kafka is away, the
    connections are those that we have.
    Errors: StoreUnavailable.
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
        known = tuple(map(_as_ours, ours))
        return Connections(user_id=user_id, connections=known, reconciled=False)
    return Connections(
        user_id=user_id,
        connections=difference.connections,
        reconciled=True,
        reconciled_at=datetime.fromtimestamp(listing.listed_s, UTC),
    )


def compared(user_id: str, ours: Sequence[Connection], listing: Listing) -> Difference:
    """Compare a user's connections with Terra's list, as of when it was read.

    What we have learned after that is newer than the list, and stays.
    """
    listed_at = datetime.fromtimestamp(listing.listed_s, UTC)
    at_ms = round(listing.listed_s * 1000)
    known = {each.terra_user_id: _as_ours(each) for each in ours}
    listed = {each.user_id: each for each in listing.of(user_id, known)}
    facts: list[Fact] = []
    for terra_user_id, found in listed.items():
        before = known.get(terra_user_id)
        if found.active is False or (
            before is not None and _is_later(before.deactivated_at, listed_at)
        ):
            continue
        if before is None or not before.active:
            facts.append(
                ConnectionListed(
                    at_ms=at_ms,
                    user_id=user_id,
                    terra_user_id=terra_user_id,
                    provider=found.provider,
                    scopes=found.scopes,
                )
            )
        known[terra_user_id] = _as_theirs(found, before)
    for terra_user_id, before in list(known.items()):
        entry = listed.get(terra_user_id)
        lost = listing.lacks(terra_user_id) if entry is None else entry.active is False
        if before.active and lost and not _is_later(before.connected_at, listed_at):
            facts.append(ConnectionGone(at_ms=at_ms, user_id=user_id, terra_user_id=terra_user_id))
            known[terra_user_id] = msgspec.structs.replace(
                before, active=False, deactivated_at=listed_at
            )
    return Difference(tuple(facts), tuple(known[each] for each in sorted(known)))


def _is_later(moment: datetime | None, than: datetime) -> bool:
    return moment is not None and moment > than


def _as_ours(connection: Connection) -> Connected:
    return Connected(
        terra_user_id=connection.terra_user_id,
        provider=connection.provider,
        active=connection.active is True,
        scopes=connection.scopes,
        connected_at=connection.connected_at,
        deactivated_at=connection.deactivated_at,
    )


def _as_theirs(found: TerraUser, before: Connected | None) -> Connected:
    return Connected(
        terra_user_id=found.user_id,
        provider=found.provider,
        active=True,
        scopes=found.scopes or (before.scopes if before else None),
        connected_at=_moment(found.created_at) or (before.connected_at if before else None),
        deactivated_at=None,
    )


def _moment(text: str | None) -> datetime | None:
    """A time of Terra's, which is in UTC where it names no offset."""
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
