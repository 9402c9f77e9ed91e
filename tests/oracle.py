"""The oracle: what the whole pipeline must come to, as one function of the topic `webhooks`.

No batches, partitions or time: the agents may take any way they like, but when they are done, rows
and outcomes must be these. Written to be read, not to be fast.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

import msgspec

from headwater.processors.columns import RowUpdate
from headwater.processors.providers.envelope import UNREADABLE, event_id, occurrence_of
from headwater.processors.providers.headwater import HEADWATER
from headwater.processors.providers.provider import NO_USER, DeliveryType, Provider
from headwater.processors.providers.results import Failed, Normalized, Skipped
from headwater.processors.providers.terra.auth import CLOSING_TYPES, OPENING_TYPES
from headwater.processors.providers.terra.provider import TERRA
from headwater.schemas.errors import MalformedPayload
from headwater.schemas.records import Stamp, WebhookAdmitted, WebhookReceived
from headwater.schemas.tables import CONNECTIONS, TABLES, TERRA_LAB_UPLOADS, USERS, Row

#: Partition and offset in the topic `webhooks`, and the delivery found there.
Delivery: TypeAlias = tuple[int, int, WebhookReceived]
#: Rows by key.
Rows: TypeAlias = dict[tuple[str, ...], Row]
#: Status and reason, as in `OutcomeRecorded`.
Outcome: TypeAlias = tuple[str, str]

_PROVIDERS: Final[dict[str, Provider]] = {"terra": TERRA, "headwater": HEADWATER}
#: The tables in which users are looked up.
_LOOKUPS: Final = (CONNECTIONS, TERRA_LAB_UPLOADS)


class Folded(msgspec.Struct, frozen=True):
    """What the pipeline came to.

    Shape:  rows by table name and key, every table named; outcomes by event id.
    """

    rows: dict[str, Rows]
    outcomes: dict[str, Outcome]


def fold(deliveries: Iterable[Delivery], *, user_prefix: str) -> Folded:
    """Folds the topic `webhooks` into rows and outcomes.

    Shape:  deliveries in any order; partition and offset, not the order, say which of several with
            one event id came first and counts. A subject is taken to belong to one user: where it
            changes hands, deliveries in between belong to whoever had it when they were resolved,
            which no fold can know.
    """
    admitted = [_admit(delivery) for delivery in _first_of_each(deliveries)]
    known = _looked_up(admitted, user_prefix)
    outcomes: dict[str, Outcome] = {}
    updates: list[RowUpdate] = []
    for event in admitted:
        outcomes[event.event_id], result = _outcome(event, known, user_prefix)
        updates += result
    return Folded({table.name: {} for table in TABLES} | rows_of(updates), outcomes)


_HOUR_MS = 3_600_000


def rows_of(updates: Iterable[RowUpdate]) -> dict[str, Rows]:
    """The rows that updates come to: for each column, the greatest stamp of those that set it.

    Shape:  rows by the name of the table and key. The least stamp, where the first value stays,
            and that of the latest hour in `hourly` columns; one stamp for all columns, where a row
            is one value.
    """
    of_row: dict[tuple[str, tuple[str, ...]], list[RowUpdate]] = defaultdict(list)
    for update in updates:
        of_row[update.table.name, update.key].append(update)
    rows: dict[str, Rows] = defaultdict(dict)
    for (name, key), result in of_row.items():
        table = result[0].table
        winners = {}
        for column in table.column_names:
            setting = [
                item for item in result if table.whole or item.values.get(column) is not None
            ]
            if column in table.hourly and setting:
                latest = max(item.stamp.sent_at_ms // _HOUR_MS for item in setting)
                setting = [item for item in setting if item.stamp.sent_at_ms // _HOUR_MS == latest]
            best = min if column in table.first | table.hourly else max
            winner = best(setting, key=lambda item: _order(item.stamp), default=None)
            winners[column] = None if winner is None else (winner.values.get(column), winner.stamp)
        values = tuple(winner and winner[0] for winner in winners.values())
        stamps = tuple(
            None if winner is None or winner[0] is None else winner[1]
            for winner in winners.values()
        )
        rows[name][key] = Row(key, values, stamps)
    return dict(rows)


def _order(stamp: Stamp) -> tuple[int, int, int, str]:
    return stamp.rank, stamp.sent_at_ms, stamp.updated_at_ms, stamp.event_id


def _first_of_each(deliveries: Iterable[Delivery]) -> list[Delivery]:
    first: dict[str, Delivery] = {}
    seen: set[str] = set()
    switched_ms: dict[tuple[str, bool], int] = {}
    for delivery in sorted(deliveries, key=lambda one: one[:2]):
        received = delivery[2]
        opens = _opens(received)
        parts = (received.source, received.type, received.subject)
        repeated = event_id(*parts, received.body) in seen
        seen.add(event_id(*parts, received.body))
        if received.event_id in first:
            continue
        if opens is not None:
            signed = occurrence_of(received.sent_at_ms, 0)
            unordered = received.event_id == event_id(*parts, received.body, signed)
            opposite_ms = switched_ms.get((received.subject, not opens))
            is_new = opposite_ms is not None and received.sent_at_ms > opposite_ms
            if repeated and unordered and not is_new:
                continue
            name = (received.subject, opens)
            switched_ms[name] = max(received.sent_at_ms, switched_ms.get(name, 0))
        first[received.event_id] = delivery
    return list(first.values())


def _opens(received: WebhookReceived) -> bool | None:
    """Whether a delivery opens a connection or closes one; None if it does neither."""
    if received.source == "headwater":
        return {"connection_listed": True, "connection_gone": False}.get(received.type)
    if received.type in OPENING_TYPES:
        return True
    return False if received.type in CLOSING_TYPES else None


def _admit(delivery: Delivery) -> WebhookAdmitted:
    partition, offset, received = delivery
    if received.type == UNREADABLE:
        received = _PROVIDERS[received.source].reroute(received)
    return WebhookAdmitted(
        **msgspec.structs.asdict(received),
        partition=partition,
        offset=offset,
        admitted_at_ms=received.received_at_ms,
    )


def _looked_up(admitted: Iterable[WebhookAdmitted], user_prefix: str) -> Mapping[str, Rows]:
    """The rows of the tables in which users are looked up.

    A delivery can take its user from a row that another one writes, so all are gone through until
    nothing changes. Every round starts from what the last one knew: the order does not matter.
    """
    events = [
        event for event in admitted if (kind := _kind(event)) and set(kind.tables) & set(_LOOKUPS)
    ]
    known: Mapping[str, Rows] = {}
    while True:  # a round adds users, which are never taken away: it ends
        updates = [item for event in events for item in _outcome(event, known, user_prefix)[1]]
        result = rows_of(update for update in updates if update.table in _LOOKUPS)
        if result == known:
            return known
        known = result


def _kind(event: WebhookAdmitted) -> DeliveryType[Any] | None:
    return _PROVIDERS[event.source].types.get(event.type)


def _subjects(event: WebhookAdmitted) -> tuple[str, ...]:
    """A delivery's own subject, then the one that it replaces."""
    kind = _kind(event)
    if kind is None:
        return (event.subject,)
    try:
        return kind.subjects_of(event)
    except MalformedPayload:
        return (event.subject,)


def _owned(
    event: WebhookAdmitted, known: Mapping[str, Rows], user_prefix: str
) -> tuple[str | None, str | None]:
    """Whose a delivery is, and our id of its subject: as it says, else as a row that it names."""
    reference = event.reference or ""
    if event.source == "headwater" or reference.startswith(user_prefix):
        return reference or None, None
    kind = _kind(event)
    if kind is None or kind.lookup is None:
        return None, None
    table, rows = kind.lookup.table, known.get(kind.lookup.table.name, {})
    for subject in _subjects(event):
        row = rows.get((subject,))
        values = dict(zip(table.column_names, row.values, strict=True)) if row else {}
        if values.get("user_id"):
            ours = values.get(kind.lookup.our_id) if kind.lookup.our_id else None
            return str(values["user_id"]), None if ours is None else str(ours)
    return None, None


def _outcome(
    event: WebhookAdmitted, known: Mapping[str, Rows], user_prefix: str
) -> tuple[Outcome, tuple[RowUpdate, ...]]:
    """What becomes of one delivery, and the rows it touches."""
    user, ours = _owned(event, known, user_prefix)
    kind = _kind(event)
    waits = kind is not None and kind.of_user and user is None
    missing = kind.lookup.missing if kind is not None and kind.lookup else ""
    try:
        if waits and kind is not None and not kind.fills_lookup:
            skipped = kind.skip_reason(event.body)
            unknown = ("parked", missing) if event.subject and missing else ("dead", NO_USER)
            return (unknown if skipped is None else ("skipped", skipped)), ()
        event = msgspec.structs.replace(event, user_id=user, our_id=ours)
        result = _PROVIDERS[event.source].normalize(event)
    except MalformedPayload as error:
        return ("dead", error.code), ()
    if isinstance(result, Skipped):
        return ("skipped", result.reason), result.updates
    if waits and event.subject:
        return ("parked", missing), ()
    if isinstance(result, Failed):
        return ("dead", result.code), ()
    return ("processed", ""), (*result.updates, *_heard_of(event, result))


def _heard_of(event: WebhookAdmitted, result: Normalized) -> tuple[RowUpdate, ...]:
    """What a delivery with rows of a user says of when they were heard of."""
    if not event.user_id or not result.updates:
        return ()
    sent = datetime.fromtimestamp(event.sent_at_ms / 1000, UTC)
    moment = f"{sent:%Y-%m-%dT%H:%M:%S}.{event.sent_at_ms % 1000:03}Z"
    seen = {"created_at": moment, "last_seen_at": moment}
    return (RowUpdate(USERS, (event.user_id,), seen, event.stamp()),)
