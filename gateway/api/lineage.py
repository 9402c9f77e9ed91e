"""Operator routes for lineage: the deliveries behind a row, and the rows that a delivery set."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
from litestar import Request, get
from litestar.datastructures import State
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, QueryParameter

from headwater.gateway.api.openapi import problem_responses
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.request_scope import sent_segments
from headwater.gateway.builtin.instances import InstanceNamed
from headwater.processors.api_keys import Scope
from headwater.processors.columns import Update
from headwater.processors.lineage import (
    ColumnValue,
    admitted,
    same_key,
    types_of,
    updates_of,
    values_of_row,
)
from headwater.processors.providers.provider import Providers
from headwater.projections.deliveries.lineage import (
    LocatedDelivery,
    SourcedRow,
    deliveries_by_id,
    deliveries_of_row,
    delivery,
    row,
)
from headwater.projections.deliveries.queries import Reader
from headwater.projections.errors import RecordRefused
from headwater.schemas.installed_tables import TABLE_BY_NAME
from headwater.schemas.records import WebhookAdmitted
from headwater.schemas.tables import Table, begins_with_user
from headwater.streams.pipeline.webhook_log import WebhookLog

#: Deliveries that are normalized again for one row; reading them takes a few seconds.
_DELIVERIES_MAX: Final = 1_000
_SHOWN_CHARS: Final = 60


class Overridden(msgspec.Struct, frozen=True):
    """A value that another one with a greater stamp has replaced."""

    value: Any
    raw_event_id: str
    sent_at: datetime


class ColumnWhy(msgspec.Struct, frozen=True, kw_only=True):
    """Origin of a value.

    `normalizer` is `source.type`, null if the delivery's outcome is no longer known.
    """

    value: Any
    raw_event_id: str
    position: str
    normalizer: str | None
    version: int
    sent_at: datetime
    overrode: tuple[Overridden, ...]


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """Origin of the values of a row.

    `complete` is false if the user has more deliveries than were searched for overridden values;
    then only the newest ones were searched.
    """

    table: str
    key: dict[str, str]
    columns: dict[str, ColumnWhy]
    complete: bool


class ImpactRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a delivery: the columns that it set, and those that still have its values."""

    table: str
    key: dict[str, str]
    columns_set: tuple[str, ...]
    columns_still_set: tuple[str, ...]


class Impact(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that a delivery set, and workflow instances that it started."""

    raw_event_id: str
    rows: tuple[ImpactRow, ...]
    instances: tuple[InstanceNamed, ...]


def lineage_routes(reader: Reader, log: WebhookLog, providers: Providers) -> list[HTTPRouteHandler]:
    """Return the routes under /admin/why and /admin/impact."""

    @get(
        "/why/{table:str}/{key:path}",
        scope=Scope.PERSONAL_DATA_READ,
        audit_read="rows.read",
        summary="Get the origin of a row's values",
        description="The path has one segment for each key column of the table, in order. "
        "Overridden values are computed by normalizing the deliveries of the row's user again.",
        responses=problem_responses("not_found", "broker_unavailable", "store_unavailable"),
    )
    async def why(
        request: Request[Any, Any, State],
        table: FromPath[str],
        key: FromPath[str],
        column: Annotated[
            str | None, QueryParameter(description="The only column to explain.")
        ] = None,
    ) -> Why:
        del key  # Its segments may contain slashes, so they are taken from the raw path.
        known_table = _table(table)
        segments = sent_segments(request.scope)
        segments = segments[segments.index(table) + 1 :]
        row_key = _key(known_table, segments)
        return await _why(reader, log, providers, known_table, row_key, column)

    @get(
        "/impact/{raw_event_id:str}",
        scope=Scope.PERSONAL_DATA_READ,
        audit_read="deliveries.read",
        summary="Get the rows and workflow instances of a delivery",
        description="The columns that it sets according to the current normalizers, and those that "
        "still have its values.",
        responses=problem_responses("not_found", "broker_unavailable", "store_unavailable"),
    )
    async def impact(raw_event_id: FromPath[str]) -> Impact:
        return await _impact(reader, log, providers, raw_event_id)

    return [why, impact]


# --- why ------------------------------------------------------------------------------------------


def _table(name: str) -> Table:
    if name not in TABLE_BY_NAME:
        known = ", ".join(TABLE_BY_NAME)
        raise Problem("not_found", f"expected one of {known}, found {name[:_SHOWN_CHARS]!r}")
    return TABLE_BY_NAME[name]


def _key(table: Table, segments: Sequence[str]) -> tuple[str, ...]:
    if table.unique and len(segments) == len(table.key) - 1:
        return (*segments, "")  # A workout without an id of Terra's.
    if len(segments) != len(table.key):
        detail = (
            f"key: expected {'/'.join(table.key_names)} after {table.name}, found "
            f"{len(segments)} segments"
        )
        raise Problem("invalid_parameter", detail, field="key")
    return tuple(segments)


async def _why(
    reader: Reader,
    log: WebhookLog,
    providers: Providers,
    table: Table,
    key: tuple[str, ...],
    column: str | None,
) -> Why:
    if column not in {None, *table.column_names}:
        detail = f"column: expected one of {', '.join(table.column_names)}, found {column!a}"
        raise Problem("invalid_parameter", detail, field="column")
    row_ = await _row(reader, table, key)
    placed, complete = await _deliveries(reader, providers, table, key, row_)
    values = values_of_row(table, key, await _normalized(reader, log, providers, placed))
    normalizers = {
        delivery_.event_id: f"{delivery_.source}.{delivery_.type}" for delivery_ in placed
    }
    columns = {}
    for name, source in row_.sources.items():
        if column in {None, name}:
            overrode = [
                value for value in values.get(name, ()) if value.stamp.event_id != source.event_id
            ]
            columns[name] = ColumnWhy(
                value=row_.values[name],
                raw_event_id=source.event_id,
                position=source.position,
                normalizer=normalizers.get(source.event_id),
                version=source.version,
                sent_at=source.sent_at,
                overrode=tuple(map(_overridden, overrode)),
            )
    return Why(table=table.name, key=row_.key, columns=columns, complete=complete)


async def _row(reader: Reader, table: Table, key: tuple[str, ...]) -> SourcedRow:
    try:
        row_ = await row(reader, table, key)
    except RecordRefused as error:
        expected = ", ".join(f"{column.name} ({column.sql})" for column in table.key)
        raise Problem(
            "invalid_parameter", f"key: expected {expected}, found {list(key)!a}", field="key"
        ) from error
    if row_ is None:
        shown = "/".join(key)[:_SHOWN_CHARS]
        raise Problem("not_found", f"There is no row {shown} in {table.name} (yet).")
    return row_


async def _deliveries(
    reader: Reader, providers: Providers, table: Table, key: tuple[str, ...], row_: SourcedRow
) -> tuple[list[LocatedDelivery], bool]:
    """Return the deliveries that may have set a row, and whether the list is complete."""
    user = key[0] if begins_with_user(table) else row_.values.get("user_id")
    placed = await deliveries_of_row(
        reader,
        user_id=user,
        subject=key[0],
        types=types_of(table, providers),
        limit=_DELIVERIES_MAX + 1,
    )
    complete = len(placed) <= _DELIVERIES_MAX
    known = {delivery_.event_id for delivery_ in placed}
    missing = {source.event_id for source in row_.sources.values()} - known
    return [*placed[:_DELIVERIES_MAX], *await deliveries_by_id(reader, sorted(missing))], complete


async def _normalized(
    reader: Reader, log: WebhookLog, providers: Providers, placed: Sequence[LocatedDelivery]
) -> list[Update]:
    """Normalize deliveries with the current normalizers."""
    received = await log.read_all([(entry.partition, entry.offset) for entry in placed])
    updates: list[Update] = []
    for entry in placed:
        delivery_ = received.get((entry.partition, entry.offset))
        # An outcome that is being rewritten may name the position of another delivery.
        if delivery_ is not None and delivery_.event_id == entry.event_id:
            at = (entry.partition, entry.offset)
            event = admitted(delivery_, providers, entry.user_id, *at)
            updates += updates_of(await _with_our_id(reader, providers, event), providers)
    return updates


async def _with_our_id(
    reader: Reader, providers: Providers, event: WebhookAdmitted
) -> WebhookAdmitted:
    """Add the system's own id of the subject to a delivery, as the pipeline does."""
    provider = providers.get(event.source)
    kind = None if provider is None else provider.types.get(event.type)
    lookup = None if kind is None else kind.lookup
    if lookup is None or lookup.our_id is None or not event.subject:
        return event
    row_ = await row(reader, lookup.table, (event.subject,))
    our_id = None if row_ is None else row_.values.get(lookup.our_id)
    return msgspec.structs.replace(event, our_id=our_id)


def _overridden(value: ColumnValue) -> Overridden:
    sent_at = datetime.fromtimestamp(value.stamp.sent_at_ms / 1000, UTC)
    return Overridden(value.value, value.stamp.event_id, sent_at)


# --- impact ---------------------------------------------------------------------------------------


async def _impact(
    reader: Reader, log: WebhookLog, providers: Providers, raw_event_id: str
) -> Impact:
    details = await delivery(reader, raw_event_id)
    if details is None or details.outcome.event_id != raw_event_id:
        shown = raw_event_id[:_SHOWN_CHARS]
        raise Problem("not_found", f"No delivery {shown} is known (yet).")
    placed = await deliveries_by_id(reader, [raw_event_id])
    updates = await _normalized(reader, log, providers, placed)
    started = [effect for effect in details.effects if effect.event_type is None]
    rows = []
    remaining = list(details.rows)
    for table, key, columns in _by_row(updates):
        still = [
            row_
            for row_ in remaining
            if row_.table == table.name and same_key(table, _key_of(table, row_.key), key)
        ]
        remaining = [row_ for row_ in remaining if row_ not in still]
        rows.append(
            ImpactRow(
                table=table.name,
                key=dict(zip(table.key_names, key, strict=True)),
                columns_set=columns,
                columns_still_set=tuple(name for row_ in still for name in row_.columns),
            )
        )
    # Columns that the current normalizers would not set, or set by a delivery that the log no
    # longer has.
    rows += [
        ImpactRow(
            table=row_.table, key=row_.key, columns_set=row_.columns, columns_still_set=row_.columns
        )
        for row_ in remaining
    ]
    instances = tuple(InstanceNamed(effect.workflow, effect.instance_id) for effect in started)
    return Impact(raw_event_id=raw_event_id, rows=tuple(rows), instances=instances)


def _by_row(updates: Sequence[Update]) -> list[tuple[Table, tuple[str, ...], tuple[str, ...]]]:
    """Return the columns that updates set, by row."""
    columns: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for update in updates:
        names = columns.setdefault((update.table.name, update.key), [])
        names += [
            name for name, value in update.assignments() if value is not None and name not in names
        ]
    return [(TABLE_BY_NAME[name], key, tuple(set_)) for (name, key), set_ in columns.items()]


def _key_of(table: Table, key: dict[str, str]) -> tuple[str, ...]:
    return tuple(key[name] for name in table.key_names)
