"""Compare the connections of a user with Terra's list."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from msgspec.structs import replace

from headwater.gateway.builtin.terra.answers import ConnectionList, TerraUser
from headwater.projections.deliveries.users import Connection
from headwater.schemas.providers.headwater import ConnectionClosed, ConnectionListed, SystemEvent


class Difference(NamedTuple):
    """Differences from Terra's list.

    Attributes:
        facts: System events to publish.
        connections: The connections after these events.
    """

    facts: tuple[SystemEvent, ...]
    connections: tuple[Connection, ...]


def compare(user_id: str, ours: Sequence[Connection], listing: ConnectionList) -> Difference:
    """Compare a user's connections with Terra's list.

    Changes after the list was read take precedence over it. Deliveries are signed by the second, so
    those of the second in which it was read take precedence as well.
    """
    at_ms = int(listing.listed_s) * 1_000 - 1
    listed_at = datetime.fromtimestamp(at_ms / 1_000, UTC)
    known = {connection.terra_user_id: connection for connection in ours}
    listed = {entry.user_id: entry for entry in listing.of(user_id, known)}
    facts: list[SystemEvent] = []
    for terra_user_id, entry in listed.items():
        before = known.get(terra_user_id)
        if entry.active is False or (before and _is_later(before.deactivated_at, listed_at)):
            continue
        known[terra_user_id] = after = _opened(entry, before, listed_at)
        if before is None or not before.active:
            facts.append(
                ConnectionListed(
                    at_ms=at_ms,
                    user_id=user_id,
                    terra_user_id=terra_user_id,
                    provider=after.provider,
                    scopes=after.scopes,
                )
            )
    for terra_user_id, before in list(known.items()):
        current = listed.get(terra_user_id)
        lost = listing.lacks(terra_user_id) if current is None else current.active is False
        if before.active and lost and not _is_later(before.connected_at, listed_at):
            facts.append(
                ConnectionClosed(at_ms=at_ms, user_id=user_id, terra_user_id=terra_user_id)
            )
            known[terra_user_id] = replace(before, active=False, deactivated_at=listed_at)
    return Difference(tuple(facts), tuple(known[terra_user_id] for terra_user_id in sorted(known)))


def _is_later(moment: datetime | None, than: datetime) -> bool:
    return moment is not None and moment > than


def _opened(entry: TerraUser, before: Connection | None, listed_at: datetime) -> Connection:
    """Return a connection that Terra lists; it is open since the list unless it was open before."""
    was_open = before is not None and before.active
    return Connection(
        terra_user_id=entry.user_id,
        provider=entry.provider,
        active=True,
        reference_id=entry.reference_id,
        scopes=entry.scopes or (before.scopes if before else None),
        connected_at=before.connected_at if before and was_open else listed_at,
        deactivated_at=None,
    )
