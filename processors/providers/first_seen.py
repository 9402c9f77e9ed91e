"""When a user was first and last heard of: the row of `users` that deliveries make beside theirs.

Of two deliveries the order is that of their stamps, so the earliest and the latest of a set are the
same in whatever order they are read, and of a batch two say all: its first, and the first of its
last hour. A user's row changes once an hour, not with each delivery: it is a third of all records
else, where users are many.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from headwater.processors.columns import HOUR_MS, RowUpdate
from headwater.processors.dates import rfc3339
from headwater.schemas.records import WebhookAdmitted
from headwater.schemas.tables import USERS


def first_seen(user_id: str, events: Sequence[WebhookAdmitted]) -> tuple[RowUpdate, ...]:
    """What deliveries of a user, one at least, say of when they were heard of."""
    first = last = events[0]
    if len(events) > 1:
        hour = max(event.sent_at_ms for event in events) // HOUR_MS
        first = min(events, key=_order)
        last = min((each for each in events if each.sent_at_ms // HOUR_MS == hour), key=_order)
    key, created = (user_id,), {"created_at": _moment(first.sent_at_ms)}
    seen = {"last_seen_at": _moment(last.sent_at_ms)}
    if first is last:
        return (RowUpdate(USERS, key, created | seen, first.stamp()),)
    return (
        RowUpdate(USERS, key, created, first.stamp()),
        RowUpdate(USERS, key, seen, last.stamp()),
    )


#: Senders sign whole seconds, so many deliveries share one.
_moment: Final = lru_cache(maxsize=4_096)(rfc3339)


def _order(event: WebhookAdmitted) -> tuple[int, int, str]:
    return event.sent_at_ms, event.updated_at_ms, event.event_id
