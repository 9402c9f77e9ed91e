"""Lineage: which deliveries speak of a row, and what of it each of them said.

Nothing is kept for it. A row knows the delivery of each of its values; what those overrode is found
by normalizing the deliveries again, with the normalizers of today.
"""

from collections.abc import Iterable
from datetime import datetime
from functools import cmp_to_key, partial
from typing import NamedTuple

from headwater.processors.columns import RowUpdate, replaces
from headwater.processors.providers import results
from headwater.processors.providers.first_seen import first_seen
from headwater.processors.providers.provider import Providers
from headwater.schemas.errors import MalformedPayload
from headwater.schemas.records import Stamp, WebhookAdmitted, WebhookReceived
from headwater.schemas.tables import USERS, Column, Table, Value


class ColumnValue(NamedTuple):
    """A value that a delivery gives a column."""

    value: Value
    stamp: Stamp


def admitted(
    delivery: WebhookReceived, user_id: str | None, partition: int, offset: int
) -> WebhookAdmitted:
    """A delivery as it is normalized: with its user, and where it lies."""
    named = {name: getattr(delivery, name) for name in WebhookReceived.__struct_fields__}
    return WebhookAdmitted(
        **named,
        user_id=user_id,
        partition=partition,
        offset=offset,
        admitted_at_ms=delivery.received_at_ms,
    )


def updates_of(event: WebhookAdmitted, providers: Providers) -> tuple[RowUpdate, ...]:
    """What a delivery says of rows today, its user's among them; nothing if it comes to none."""
    provider = providers.get(event.source)
    if provider is None:
        return ()
    try:
        result = provider.normalize(event)
    except MalformedPayload:
        return ()
    updates = results.updates_of(result)
    if not event.user_id or not updates or not isinstance(result, results.Normalized):
        return updates
    return (*updates, *first_seen(event.user_id, (event,)))


def values_of_row(
    table: Table, key: tuple[str, ...], updates: Iterable[RowUpdate]
) -> dict[str, list[ColumnValue]]:
    """What is said of a row, by column, in the order of the table; the winner of each first."""
    found: dict[str, list[ColumnValue]] = {name: [] for name in table.column_names}
    for update in updates:
        if update.table is table and same_key(table, update.key, key):
            for name, value in update.values.items():
                if value is not None:
                    found[name].append(ColumnValue(value, update.stamp))
    return {
        name: sorted(said, key=cmp_to_key(partial(_compare, table, name)), reverse=True)
        for name, said in found.items()
        if said
    }


def types_of(table: Table, providers: Providers) -> list[tuple[str, str]]:
    """The deliveries that fill a table, as (source, type)."""
    return [
        (provider.name, type_)
        for provider in providers.values()
        for type_, kind in provider.types.items()
        if table in kind.tables or (table is USERS and kind.tables)
    ]


def same_key(table: Table, one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether two keys name one row: a moment may be written in several ways."""
    return all(map(_same, table.key, one, other))


def _same(column: Column, one: str, other: str) -> bool:
    if one == other or column.sql != "timestamptz":
        return one == other
    try:
        return datetime.fromisoformat(one) == datetime.fromisoformat(other)
    except ValueError:
        return False


def _compare(table: Table, name: str, one: ColumnValue, other: ColumnValue) -> int:
    wins = replaces(table, name, one.stamp, other.stamp)
    return wins - replaces(table, name, other.stamp, one.stamp)
