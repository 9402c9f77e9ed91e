"""Lineage: which deliveries set values of a row.

Nothing is stored for it. A row stores the delivery of every value; values that were overridden are
computed by normalizing the deliveries again, with the current normalizers.
"""

from collections.abc import Iterable
from datetime import datetime
from functools import cmp_to_key, partial
from typing import NamedTuple

from headwater.processors.columns import Update, replaces
from headwater.processors.providers import results
from headwater.processors.providers.provider import Providers, reroute
from headwater.processors.providers.results import first_seen
from headwater.schemas.errors import MalformedPayload
from headwater.schemas.records import Stamp, WebhookAdmitted, WebhookReceived
from headwater.schemas.tables import USERS, Column, Table, Value


class ColumnValue(NamedTuple):
    """A value that a delivery sets in a column."""

    value: Value
    stamp: Stamp


def admitted(
    delivery: WebhookReceived,
    providers: Providers,
    user_id: str | None,
    partition: int,
    offset: int,
) -> WebhookAdmitted:
    """Return a delivery as it is normalized: with its user and its position."""
    delivery = reroute(delivery, providers)
    fields = {name: getattr(delivery, name) for name in WebhookReceived.__struct_fields__}
    return WebhookAdmitted(
        **fields,
        user_id=user_id,
        partition=partition,
        offset=offset,
        admitted_at_ms=delivery.received_at_ms,
    )


def updates_of(event: WebhookAdmitted, providers: Providers) -> tuple[Update, ...]:
    """Return the row updates of a delivery today, including its user's row; empty if it fails."""
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
    table: Table, key: tuple[str, ...], updates: Iterable[Update]
) -> dict[str, list[ColumnValue]]:
    """Return the values that updates set in a row, by column in the table's order, winner first."""
    values: dict[str, list[ColumnValue]] = {name: [] for name in table.column_names}
    for update in updates:
        if update.table is table and same_key(table, update.key, key):
            for name, value in update.assignments():
                if value is not None:
                    values[name].append(ColumnValue(value, update.stamp))
    return {
        name: sorted(candidates, key=cmp_to_key(partial(_compare, table, name)), reverse=True)
        for name, candidates in values.items()
        if candidates
    }


def types_of(table: Table, providers: Providers) -> list[tuple[str, str]]:
    """Return the (source, type) of deliveries that fill a table."""
    return [
        (provider.name, type_)
        for provider in providers.values()
        for type_, kind in provider.types.items()
        if table in kind.tables or (table is USERS and kind.tables)
    ]


def same_key(table: Table, one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Return whether two keys identify one row: timestamps have several spellings."""
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
