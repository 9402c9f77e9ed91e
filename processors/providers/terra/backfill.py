"""Backfill of a connection that became active: the workflow that requests past data from Terra.

A connection may be opened repeatedly, and its past data is requested once for every period in which
it is active. A period is identified by the closing before it, which the connection's row keeps. So
the same instance id results however often, and in whatever order, deliveries are processed, also
after a crash; starting an instance that exists changes nothing.
"""

from datetime import UTC, datetime
from hashlib import sha256
from typing import Final

import msgspec

from headwater.processors.providers.results import Effect
from headwater.processors.runs.limits import INSTANCE_ID_MAX, name_problem
from headwater.schemas.history import StartRun
from headwater.schemas.records import WebhookAdmitted
from headwater.schemas.tables import CONNECTIONS, Row

#: The workflow, and the effect that starts it.
BACKFILL: Final = "terra-backfill"

_ACTIVE: Final = CONNECTIONS.index["active"]
_CLOSED_AT: Final = CONNECTIONS.index["last_deactivated_at"]


class BackfillParams(msgspec.Struct, frozen=True, kw_only=True):
    """Params of `terra-backfill`: the connection, its user, and the last day (UTC)."""

    terra_user_id: str
    user_id: str
    until: str


def backfill(event: WebhookAdmitted, before: Row | None, after: Row) -> tuple[Effect, ...]:
    """Return the effects of a delivery, by its change of a connection's row.

    There is one effect if the connection became active, or if it was closed in between and that is
    known only now; none if it merely stays active. A delivery that is processed again returns the
    same instance.
    """
    if not after.values[_ACTIVE]:
        return ()
    if before is not None and before.values[_ACTIVE] and _same_period(event, before, after):
        return ()
    (subject,) = after.key
    until = datetime.fromtimestamp(event.sent_at_ms // 1_000, UTC).date().isoformat()
    params = BackfillParams(terra_user_id=subject, user_id=event.user_id or "", until=until)
    command = StartRun(msgspec.json.encode(params).decode())
    return (Effect(BACKFILL, BACKFILL, _instance_id(subject, after), command),)


def _same_period(event: WebhookAdmitted, before: Row, after: Row) -> bool:
    """Return whether another delivery activated it before, and it was not closed since."""
    stamp = before.stamps[_ACTIVE]
    by_another = stamp is not None and stamp.event_id != event.event_id
    return by_another and before.values[_CLOSED_AT] == after.values[_CLOSED_AT]


def _instance_id(subject: str, after: Row) -> str:
    """Return the connection's id and the previous closing; invalid ids of Terra are hashed."""
    stamp = after.stamps[_CLOSED_AT]
    instance_id = f"{subject}-{0 if stamp is None else stamp.sent_at_ms}"
    if name_problem("an instance id", instance_id, INSTANCE_ID_MAX) is None:
        return instance_id
    return f"{sha256(subject.encode()).hexdigest()}-{0 if stamp is None else stamp.sent_at_ms}"
