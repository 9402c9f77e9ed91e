"""The oracle: what the whole pipeline must come to, as one function of the topic `webhooks`.

No batches, partitions or time: the agents may take any way they like, but when they are done, rows
and outcomes must be these. Written to be read, not to be fast.
"""

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from headwater.processors.columns import RowUpdate, merge
from headwater.processors.providers.terra.identity import (
    CONNECTION_TYPES,
    NO_CONNECTION,
    NO_USER,
    STORED_TYPES,
    previous_subject,
    user_of,
)
from headwater.processors.providers.terra.normalize import Failed, Skipped, normalize
from headwater.schemas.errors import MalformedPayload
from headwater.schemas.providers.terra import Envelope, Payload, decode_payload
from headwater.schemas.records import WebhookAdmitted, WebhookReceived
from headwater.schemas.tables import CONNECTIONS, TABLES, Row

#: Partition and offset in the topic `webhooks`, and the delivery found there.
Delivery: TypeAlias = tuple[int, int, WebhookReceived]
#: Rows of terra_connections by key.
Connections: TypeAlias = dict[tuple[str, ...], Row]
#: Status and reason, as in `OutcomeRecorded`.
Outcome: TypeAlias = tuple[str, str]


class Folded(msgspec.Struct, frozen=True):
    """What the pipeline came to.

    Shape:  rows by table name and key, every table named; outcomes by event id.
    """

    rows: dict[str, dict[tuple[str, ...], Row]]
    outcomes: dict[str, Outcome]


def fold(deliveries: Iterable[Delivery], *, user_prefix: str) -> Folded:
    """Folds the topic `webhooks` into rows and outcomes.

    Shape:  deliveries in any order; partition and offset, not the order, say which of several with
            one event id came first and counts. A subject is taken to belong to one user: where it
            changes hands, deliveries in between belong to whoever had it when they were resolved,
            which no fold can know.
    """
    admitted = [_admit(delivery) for delivery in _first_of_each(deliveries)]
    connections = _connections(admitted, user_prefix)
    folded = Folded({table.name: {} for table in TABLES}, {})
    folded.rows[CONNECTIONS.name].update(connections)
    for event in admitted:
        outcome, updates = _outcome(event, connections, user_prefix)
        folded.outcomes[event.event_id] = outcome
        for update in updates:
            if update.table is not CONNECTIONS:
                rows = folded.rows[update.table.name]
                rows[update.key] = merge(rows.get(update.key), update)
    return folded


def _first_of_each(deliveries: Iterable[Delivery]) -> list[Delivery]:
    first: dict[str, Delivery] = {}
    for delivery in deliveries:
        event_id = delivery[2].event_id
        held = first.get(event_id)
        if held is None or delivery[:2] < held[:2]:
            first[event_id] = delivery
    return list(first.values())


def _admit(delivery: Delivery) -> WebhookAdmitted:
    partition, offset, received = delivery
    return WebhookAdmitted(
        **msgspec.structs.asdict(received),
        partition=partition,
        offset=offset,
        admitted_at_ms=received.received_at_ms,
    )


def _connections(admitted: Iterable[WebhookAdmitted], user_prefix: str) -> Connections:
    """The rows of terra_connections.

    A delivery can take its user from a row that another one writes, so all are gone through until
    nothing changes. Every round starts from what the last one knew: the order does not matter.
    """
    events = [event for event in admitted if event.type in CONNECTION_TYPES]
    known: Connections = {}
    while True:  # a round adds users, which are never taken away: it ends
        rows: Connections = {}
        for event in events:
            for update in _outcome(event, known, user_prefix)[1]:
                rows[update.key] = merge(rows.get(update.key), update)
        if rows == known:
            return known
        known = rows


def _user(event: WebhookAdmitted, connections: Connections, user_prefix: str) -> str | None:
    """Whose a delivery is: as it says itself, else as the row of a subject it names says."""
    told = user_of(event.reference, user_prefix)
    if told is not None:
        return told
    for subject in _subjects(event):
        row = connections.get((subject,))
        user = row.values[CONNECTIONS.index["user_id"]] if row is not None else None
        if isinstance(user, str):
            return user
    return None


def _subjects(event: WebhookAdmitted) -> tuple[str, ...]:
    """A delivery's own subject, then the one that it replaces."""
    payload = _read(event) if event.type in CONNECTION_TYPES else None
    previous = previous_subject(event.type, payload) if isinstance(payload, Envelope) else None
    return (event.subject,) if previous is None else (event.subject, previous)


def _read(event: WebhookAdmitted) -> Payload | None:
    """The delivery's body; None if it is malformed."""
    try:
        return decode_payload(event.type, event.body)
    except MalformedPayload:
        return None


def _outcome(
    event: WebhookAdmitted, connections: Connections, user_prefix: str
) -> tuple[Outcome, tuple[RowUpdate, ...]]:
    """What becomes of one delivery, and the rows it touches."""
    user = _user(event, connections, user_prefix)
    if user is None and event.type in STORED_TYPES - CONNECTION_TYPES:
        return (("parked", NO_CONNECTION) if event.subject else ("dead", NO_USER)), ()
    payload = _read(event)
    if payload is None:
        return ("dead", MalformedPayload.code), ()
    result = normalize(msgspec.structs.replace(event, user_id=user), payload)
    if isinstance(result, Skipped):
        return ("skipped", result.reason), ()
    if user is None and event.subject:
        return ("parked", NO_CONNECTION), ()
    if isinstance(result, Failed):
        return ("dead", result.code), ()
    return ("processed", ""), result.updates
