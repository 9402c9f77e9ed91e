"""When a user was first and last heard of: the row of `users` that deliveries make beside theirs.

Of two deliveries the order is that of their stamps, so the earliest and the latest of a set are the
same in whatever order they are read, and of a batch the two at its ends say all.
"""

from collections.abc import Sequence

from headwater.processors.columns import RowUpdate
from headwater.processors.dates import rfc3339
from headwater.schemas.records import WebhookAdmitted
from headwater.schemas.tables import USERS


def heard_of(user_id: str, events: Sequence[WebhookAdmitted]) -> tuple[RowUpdate, RowUpdate]:
    """What deliveries of a user, one at least, say of when they were heard of."""
    first, last = min(events, key=_order), max(events, key=_order)
    return (
        RowUpdate(USERS, (user_id,), {"created_at": rfc3339(first.sent_at_ms)}, first.stamp()),
        RowUpdate(USERS, (user_id,), {"last_seen_at": rfc3339(last.sent_at_ms)}, last.stamp()),
    )


def _order(event: WebhookAdmitted) -> tuple[int, int, str]:
    return event.sent_at_ms, event.updated_at_ms, event.event_id
