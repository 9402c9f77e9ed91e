"""The oracle: what the whole pipeline must come to, as one function of the topic `webhooks`.

No batches, partitions or time: the agents may take any way they like, but when they are done, rows
and outcomes must be these. Written to be read, not to be fast.
"""

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import msgspec

from headwater.processors.columns import RowUpdate, merge
from headwater.processors.providers.envelope import user_of
from headwater.processors.providers.provider import NO_USER, DeliveryType
from headwater.processors.providers.results import Failed, Skipped
from headwater.processors.providers.terra.provider import TERRA
from headwater.schemas.errors import MalformedPayload
from headwater.schemas.records import WebhookAdmitted, WebhookReceived
from headwater.schemas.tables import CONNECTIONS, TABLES, Row

NO_CONNECTION: Final = "no_connection_for_terra_user"

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
    events = [event for event in admitted if (kind := _kind(event)) and kind.fills_lookup]
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
    named = user_of(event.reference, user_prefix)
    if named is not None:
        return named
    for subject in _subjects(event):
        row = connections.get((subject,))
        user = row.values[CONNECTIONS.index["user_id"]] if row is not None else None
        if isinstance(user, str):
            return user
    return None


def _kind(event: WebhookAdmitted) -> DeliveryType[Any] | None:
    return TERRA.types.get(event.type)


def _subjects(event: WebhookAdmitted) -> tuple[str, ...]:
    """A delivery's own subject, then the one that it replaces."""
    kind = _kind(event)
    if kind is None:
        return (event.subject,)
    try:
        return kind.subjects_of(event)
    except MalformedPayload:
        return (event.subject,)


def _outcome(
    event: WebhookAdmitted, connections: Connections, user_prefix: str
) -> tuple[Outcome, tuple[RowUpdate, ...]]:
    """What becomes of one delivery, and the rows it touches."""
    user = _user(event, connections, user_prefix)
    kind = _kind(event)
    if user is None and kind is not None and not kind.fills_lookup:
        return (("parked", NO_CONNECTION) if event.subject else ("dead", NO_USER)), ()
    try:
        result = TERRA.normalize(msgspec.structs.replace(event, user_id=user))
    except MalformedPayload as error:
        return ("dead", error.code), ()
    if isinstance(result, Skipped):
        return ("skipped", result.reason), ()
    if user is None and event.subject:
        return ("parked", NO_CONNECTION), ()
    if isinstance(result, Failed):
        return ("dead", result.code), ()
    return ("processed", ""), result.updates
