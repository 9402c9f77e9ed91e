"""The backfill of a connection that has become active: which workflow asks Terra for its past.

A connection may be opened again and again, but its past is asked for once for every time that it is
active. Each such time is named by the closing that came before it, which the row of the connection
keeps. So the same instance is named however often, and in whatever order, deliveries are processed,
and after a crash as well; whoever starts an instance that exists changes nothing.
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
    """What `terra-backfill` is started with: the connection, its user, and the last day (UTC)."""

    terra_user_id: str
    user_id: str
    until: str


def backfill(event: WebhookAdmitted, before: Row | None, after: Row) -> tuple[Effect, ...]:
    """What a delivery starts by what it has made of the row of a connection.

    Shape:  one effect when the connection is active and was not, or was closed in between as is
            known only now; none when it only is so still. A delivery that is processed again names
            the instance that it named.
    """
    if not after.values[_ACTIVE]:
        return ()
    if before is not None and before.values[_ACTIVE] and _same_time(event, before, after):
        return ()
    (subject,) = after.key
    until = datetime.fromtimestamp(event.sent_at_ms // 1_000, UTC).date().isoformat()
    params = BackfillParams(terra_user_id=subject, user_id=event.user_id or "", until=until)
    command = StartRun(msgspec.json.encode(params).decode())
    return (Effect(BACKFILL, BACKFILL, _instance_id(subject, after), command),)


def _same_time(event: WebhookAdmitted, before: Row, after: Row) -> bool:
    """Whether another delivery had made it active before, and it was not closed since."""
    stamp = before.stamps[_ACTIVE]
    by_another = stamp is not None and stamp.event_id != event.event_id
    return by_another and before.values[_CLOSED_AT] == after.values[_CLOSED_AT]


def _instance_id(subject: str, after: Row) -> str:
    """The connection, and the closing before its time; unfit ids of Terra's are hashed."""
    stamp = after.stamps[_CLOSED_AT]
    found = f"{subject}-{0 if stamp is None else stamp.sent_at_ms}"
    if name_problem("an instance id", found, INSTANCE_ID_MAX) is None:
        return found
    return f"{sha256(subject.encode()).hexdigest()}-{0 if stamp is None else stamp.sent_at_ms}"
