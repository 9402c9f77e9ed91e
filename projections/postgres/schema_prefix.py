"""Which topics the rows of a schema come from.

Two projects with one schema would mix their rows, or read each other's. The first projector of a
schema records the prefix of its topics, and all processes compare it with theirs.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, TypeAlias

import psycopg
from msgspec import json

from headwater.projections.errors import SchemaTaken, store_edge
from headwater.projections.postgres.connections import own_dsn, schemas_of
from headwater.projections.postgres.statements import statement
from headwater.schemas.errors import StoreUnavailable

_LOG: Final = logging.getLogger("headwater.projections")
_CONNECT_TIMEOUT_S: Final = 5
_RETRY_S: Final = 5.0
#: Numbers of partitions before growths, with the ends of the topic `webhooks`, oldest first.
Growths: TypeAlias = Sequence[tuple[int, Sequence[int]]]


async def bind_prefix(dsn: str, topic_prefix: str, growths: Growths = ()) -> None:
    """Record the prefix of the topics that a schema gets its rows from.

    Args:
        dsn: The database.
        topic_prefix: The prefix.
        growths: How the topics have got more partitions. A new schema does not have them.

    Raises:
        SchemaTaken: They come from topics with another prefix.
        StoreUnavailable: Postgres does not answer, or is not migrated.
    """
    _require(dsn, topic_prefix, await _prefix(dsn, "bind_topic_prefix", topic_prefix, growths))


async def check_prefix(dsn: str, topic_prefix: str) -> None:
    """Return when the rows of a schema are known to come from topics with a prefix.

    That is after Postgres answers, and a projector of the schema has run.

    Raises:
        SchemaTaken: They come from topics with another prefix.
    """
    bound: str | None = None
    while bound is None:
        try:
            bound = await _prefix(dsn, "bound_topic_prefix", topic_prefix)
        except (StoreUnavailable, psycopg.Error) as error:
            # A request that reads rows reports it.
            _LOG.debug("the prefix of the schema could not be read: %s", error)
        if bound is None:
            await asyncio.sleep(_RETRY_S)
    _require(dsn, topic_prefix, bound)


async def _prefix(dsn: str, name: str, topic_prefix: str, growths: Growths = ()) -> str | None:
    parameters = {"prefix": topic_prefix, "growths": json.encode(growths).decode()}
    with store_edge("read which topics the rows come from"):
        async with await psycopg.AsyncConnection.connect(
            own_dsn(dsn), connect_timeout=_CONNECT_TIMEOUT_S
        ) as connection:
            cursor = await connection.execute(statement(name), parameters)
            row = await cursor.fetchone()
    return row[0] if row else ""


def _require(dsn: str, topic_prefix: str, bound: str | None) -> None:
    if bound != topic_prefix:
        raise SchemaTaken(
            f"expected the schema {schemas_of(dsn).tables} to have rows of topics with the prefix "
            f"{topic_prefix!r}, found rows of those with {bound!r}; usual cause: two projects with "
            "one HEADWATER_POSTGRES_SCHEMA. HEADWATER_PROJECT chooses both"
        )
