"""Everything about one user: connections, rows, outcomes, waiting deliveries, wipe progress."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
from psycopg import sql

from headwater.processors.wipes import digest
from headwater.projections.deliveries.quality import ConnectionActivity, activity_of
from headwater.projections.deliveries.queries import Outcome
from headwater.projections.postgres.connections import PooledReader
from headwater.projections.postgres.statements import filled, names_user, statement
from headwater.schemas.installed_tables import ALL_TABLES
from headwater.schemas.tables import Owner, Table


class WaitingDelivery(msgspec.Struct, frozen=True):
    """Position of a waiting delivery in `webhooks`, and where it was last read."""

    event_id: str
    partition: int
    offset: int
    position: str


async def oldest_waiting(
    reader: PooledReader, *, subjects: Sequence[str] | None, limit: int
) -> list[WaitingDelivery]:
    """Return waiting deliveries of some subjects or of all, least recently examined first.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    selected = None if subjects is None else list(subjects)
    rows = await reader.answers(statement("parked_oldest"), subjects=selected, limit=limit)
    return msgspec.convert(rows, list[WaitingDelivery])


async def waiting_of(
    reader: PooledReader, subjects: Sequence[str], *, limit: int
) -> tuple[Outcome, ...]:
    """Return the outcomes of waiting deliveries of some subjects, oldest first.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    rows = await reader.answers(statement("parked_of"), subjects=list(subjects), limit=limit)
    return msgspec.convert(rows, tuple[Outcome, ...])


async def dead_without_user(
    reader: PooledReader, subjects: Sequence[str], *, limit: int
) -> tuple[Outcome, ...]:
    """Return the outcomes of deliveries that died before the user of their subject connected.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    query = statement("dead_without_user")
    rows = await reader.answers(query, subjects=list(subjects), limit=limit)
    return msgspec.convert(rows, tuple[Outcome, ...])


# -- one user

#: Outcomes shown of finished, of waiting and of dead deliveries.
_OUTCOMES_SHOWN: Final = 20
_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """A user's link to a wearable account; `connected_at` is when it was last reported open."""

    terra_user_id: str
    provider: str | None
    active: bool | None
    reference_id: str | None
    scopes: str | None
    connected_at: datetime | None
    deactivated_at: datetime | None


class SourceRows(msgspec.Struct, frozen=True, kw_only=True):
    """A user's rows of one source, by table, and when one was last written."""

    source: str
    rows: dict[str, int]
    updated_at: datetime


class UserWhole(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a user.

    `counts` are by table, plus `raw_events`, the user's deliveries, and `dead_letters`, those of
    them that are still not processed completely. `sources` are rows by source. `dead` are the
    latest deliveries that are still dead, also of the user's connections before they were the
    user's. `activity` is what came last of the active connections.
    """

    user_id: str
    connections: tuple[Connection, ...]
    counts: dict[str, int]
    sources: tuple[SourceRows, ...]
    last_outcomes: tuple[Outcome, ...]
    waiting: tuple[Outcome, ...]
    dead: tuple[Outcome, ...]
    activity: tuple[ConnectionActivity, ...] = ()


def _count_query(table: Table) -> bytes:
    return filled("count_of_user", table=sql.Identifier(table.name))


def _subjects_query(table: Table) -> bytes:
    return filled(
        "subjects_of_user",
        table=sql.Identifier(table.name),
        key=sql.Identifier(table.key_names[0]),
    )


_COUNTS: Final = {table.name: _count_query(table) for table in ALL_TABLES if names_user(table)}
_SOURCES: Final = {
    table.name: filled("sources_of_user", table=sql.Identifier(table.name))
    for table in ALL_TABLES
    if names_user(table) and "source" in table.key_names
}
_SUBJECTS: Final = tuple(
    _subjects_query(table)
    for table in ALL_TABLES
    if table.owner is Owner.SUBJECT and len(table.key) == 1 and names_user(table)
)


async def subjects_of(reader: PooledReader, user_id: str) -> list[str]:
    """Return the subjects with rows that name a user; their deliveries are the user's.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    rows = [row for query in _SUBJECTS for row in await reader.answers(query, user_id=user_id)]
    return sorted({row["subject"] for row in rows})


async def dead_before_connecting(reader: PooledReader, user_id: str, limit: int) -> list[str]:
    """Return the deliveries of a user that died before the user connected, newest first.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    subjects = await subjects_of(reader, user_id)
    dead = await dead_without_user(reader, subjects, limit=limit)
    return [outcome.event_id for outcome in dead]


async def connections_of(reader: PooledReader, user_id: str) -> tuple[Connection, ...]:
    """Return the connections of a user, including closed ones.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    rows = await reader.answers(statement("connections_of_user"), user_id=user_id)
    return msgspec.convert(rows, tuple[Connection, ...])


async def lab_status(reader: PooledReader, upload_id: str) -> str | None:
    """Return the `terra_status` of an uploaded lab report; None if there is no such upload.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    rows = await reader.answers(statement("lab_status"), upload_id=upload_id)
    return rows[0]["terra_status"] if rows else None


async def user_whole(reader: PooledReader, user_id: str) -> UserWhole:
    """Return everything about a user; for an unknown user, all counts are 0.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """

    async def read(query: bytes, **more: object) -> list[dict[str, object]]:
        return await reader.answers(query, user_id=user_id, **more)

    counts: dict[str, object] = {}
    for name, query in _COUNTS.items():
        for row in await read(query):
            counts[name] = row["rows"]
    subjects = await subjects_of(reader, user_id)
    for row in await read(statement("deliveries_of_user"), subjects=subjects):
        counts |= row
    connections = await connections_of(reader, user_id)
    outcomes = await read(statement("outcomes_of_user"), limit=_OUTCOMES_SHOWN)
    dead = await read(statement("dead_of_user"), subjects=subjects, limit=_OUTCOMES_SHOWN)
    return UserWhole(
        user_id=user_id,
        connections=connections,
        counts=msgspec.convert(counts, dict[str, int]),
        sources=await _sources_of(reader, user_id),
        last_outcomes=msgspec.convert(outcomes, tuple[Outcome, ...]),
        waiting=await waiting_of(reader, subjects, limit=_OUTCOMES_SHOWN),
        dead=msgspec.convert(dead, tuple[Outcome, ...]),
        activity=await activity_of(reader, user_id),
    )


async def _sources_of(reader: PooledReader, user_id: str) -> tuple[SourceRows, ...]:
    sources: dict[str, SourceRows] = {}
    for table, query in _SOURCES.items():
        for row in await reader.answers(query, user_id=user_id):
            before = sources.get(row["source"])
            sources[row["source"]] = SourceRows(
                source=row["source"],
                rows={**(before.rows if before else {}), table: row["rows"]},
                updated_at=max(row["updated_at"], before.updated_at if before else _EARLIEST),
            )
    return tuple(sources[source] for source in sorted(sources))


# -- progress of a wipe

#: Counts in addition to the rows of tables.
_COUNTED = ("raw_events", "traces", "dead_letters", "effects", "waiting")


class Progress(msgspec.Struct, frozen=True):
    """Number of partitions that began and finished a wipe, and what they removed."""

    begun: int
    done: int
    deleted: dict[str, int]


async def progress(reader: PooledReader, user_id: str, wipe_id: str) -> Progress:
    """Return the progress of a wipe.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    query = statement("wipe")
    rows = await reader.answers(query, user_sha256=digest(user_id), wipe_id=wipe_id)
    names = [table.name for table in ALL_TABLES if names_user(table)]
    deleted = dict.fromkeys([*names, *_COUNTED], 0)
    for row in rows:
        for name, count in row["found"].items():
            deleted[name] = deleted.get(name, 0) + count
    return Progress(len(rows), sum(row["done_at"] is not None for row in rows), deleted)
