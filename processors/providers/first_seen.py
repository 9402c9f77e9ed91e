"""When a user was first and last seen: the row of `users` that deliveries update besides theirs.

Deliveries are ordered by their stamps, so the first and the last of a set do not depend on the
order of reading. Of a batch two suffice: its first one, and the first one of its last hour. A
user's row changes once an hour, not with every delivery: with many users it would otherwise be a
third of all records.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from headwater.processors.columns import HOUR_MS, RowUpdate
from headwater.processors.dates import rfc3339
from headwater.schemas.records import WebhookAdmitted
from headwater.schemas.tables import USERS


def first_seen(user_id: str, events: Sequence[WebhookAdmitted]) -> tuple[RowUpdate, ...]:
    """Return the updates of a user's row by one or more of the user's deliveries."""
    first = last = events[0]
    if len(events) > 1:
        hour = max(event.sent_at_ms for event in events) // HOUR_MS
        first = min(events, key=_order)
        in_hour = (event for event in events if event.sent_at_ms // HOUR_MS == hour)
        last = min(in_hour, key=_order)
    key, created = (user_id,), {"created_at": _timestamp(first.sent_at_ms)}
    seen = {"last_seen_at": _timestamp(last.sent_at_ms)}
    if first is last:
        return (RowUpdate(USERS, key, created | seen, first.stamp()),)
    return (
        RowUpdate(USERS, key, created, first.stamp()),
        RowUpdate(USERS, key, seen, last.stamp()),
    )


#: Cached, because senders sign whole seconds, which many deliveries share.
_timestamp: Final = lru_cache(maxsize=4_096)(rfc3339)


def _order(event: WebhookAdmitted) -> tuple[int, int, str]:
    return event.sent_at_ms, event.updated_at_ms, event.event_id
