"""What is known of one user: connections, how many rows, what came last, and what waits."""

from datetime import datetime
from typing import Final

import msgspec
from psycopg import sql

from headwater.projections.deliveries.queries import Outcome
from headwater.projections.deliveries.waiting import waiting_of
from headwater.projections.postgres.reader import PooledReader
from headwater.projections.postgres.statements import filled, names_user, statement
from headwater.schemas.installed_tables import ALL_TABLES
from headwater.schemas.tables import Owner, Table

__all__ = ["Connection", "UserWhole", "connections_of", "subjects_of", "user_whole"]

#: Outcomes that are shown, of those that are done and of those that wait.
_OUTCOMES_SHOWN: Final = 20


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """A user's link to a wearable account; `connected_at` is when it was last said to be open."""

    terra_user_id: str
    provider: str | None
    active: bool | None
    reference_id: str | None
    scopes: str | None
    connected_at: datetime | None
    deactivated_at: datetime | None


class UserWhole(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a user.

    Shape:  counts by table, with `raw_events`, deliveries whose user is known to be this one, and
            `dead_letters`, those of them that could not be processed, in part or at all.
    """

    user_id: str
    connections: tuple[Connection, ...]
    counts: dict[str, int]
    last_outcomes: tuple[Outcome, ...]
    waiting: tuple[Outcome, ...]


def _count_query(table: Table) -> bytes:
    return filled("count_of_user", table=sql.Identifier(table.name))


def _subjects_query(table: Table) -> bytes:
    return filled(
        "subjects_of_user",
        table=sql.Identifier(table.name),
        key=sql.Identifier(table.key_names[0]),
    )


_COUNTS: Final = {table.name: _count_query(table) for table in ALL_TABLES if names_user(table)}
_SUBJECTS: Final = tuple(
    _subjects_query(table)
    for table in ALL_TABLES
    if table.owner is Owner.SUBJECT and len(table.key) == 1 and names_user(table)
)


async def subjects_of(reader: PooledReader, user_id: str) -> list[str]:
    """The subjects whose rows name a user: those whose deliveries are the user's.

    Errors: StoreUnavailable.
    """
    rows = [row for query in _SUBJECTS for row in await reader.answers(query, user_id=user_id)]
    return sorted({row["subject"] for row in rows})


async def connections_of(reader: PooledReader, user_id: str) -> tuple[Connection, ...]:
    """The connections of a user, closed ones among them.

    Errors: StoreUnavailable.
    """
    rows = await reader.answers(statement("connections_of_user"), user_id=user_id)
    return msgspec.convert(rows, tuple[Connection, ...])


async def user_whole(reader: PooledReader, user_id: str) -> UserWhole:
    """What is known of a user; all counts are 0 of somebody who is not known.

    Errors: StoreUnavailable.
    """

    async def of(query: bytes, **more: object) -> list[dict[str, object]]:
        return await reader.answers(query, user_id=user_id, **more)

    counts: dict[str, object] = {}
    for name, query in _COUNTS.items():
        for row in await of(query):
            counts[name] = row["found"]
    for row in await of(statement("deliveries_of_user")):
        counts |= row
    connections = await connections_of(reader, user_id)
    outcomes = await of(statement("outcomes_of_user"), limit=_OUTCOMES_SHOWN)
    subjects = await subjects_of(reader, user_id)
    return UserWhole(
        user_id=user_id,
        connections=connections,
        counts=msgspec.convert(counts, dict[str, int]),
        last_outcomes=msgspec.convert(outcomes, tuple[Outcome, ...]),
        waiting=await waiting_of(reader, subjects, limit=_OUTCOMES_SHOWN),
    )
