"""Switch a schema to the topics of another prefix, which have more partitions (ADR 0101)."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import psycopg
from msgspec import json
from psycopg.rows import TupleRow

from headwater.projections.errors import SchemaTaken
from headwater.projections.postgres.connections import PooledReader
from headwater.projections.postgres.statements import statement

#: Instances that are moved by one statement.
_MOVED: Final = 5_000


class GrownTopics(NamedTuple):
    """New topics.

    Attributes:
        before: Number of partitions of the old ones.
        after: Number of partitions, a multiple of that.
        continued: Topics whose new partitions have the offsets of old ones.
        emptied: Topics that begin again.
        ends: End of each old partition of the topic webhooks.
    """

    before: int
    after: int
    continued: Sequence[str]
    emptied: Sequence[str]
    ends: Sequence[int]


def topic_prefix(connection: psycopg.Connection[TupleRow]) -> str | None:
    """Return the prefix of the topics that the rows come from; None before a projector ran."""
    row = connection.execute(statement("lock_topic_prefix")).fetchone()
    return None if row is None else row[0]


def applied_by_all(connection: psycopg.Connection[TupleRow]) -> dict[tuple[str, int], int]:
    """Return the next offset of each partition that not all projections have applied."""
    rows = connection.execute(statement("applied_by_all")).fetchall()
    return {(topic, partition): offset for topic, partition, offset in rows}


def running_rebuilds(connection: psycopg.Connection[TupleRow]) -> list[str]:
    """Return the ids of rebuilds that have not ended."""
    return [name for (name,) in connection.execute(statement("running_rebuilds")).fetchall()]


def switch_topics(
    connection: psycopg.Connection[TupleRow],
    old: str,
    new: str,
    topics: GrownTopics,
    partition_of: Callable[[str], int],
) -> None:
    """Switch to the new topics; the connection's transaction makes it take effect.

    Args:
        connection: A connection.
        old: Prefix of the old topics.
        new: Prefix of the new ones.
        topics: The new ones.
        partition_of: Returns the new partition of an instance, by its key.

    Raises:
        SchemaTaken: The rows come from topics with another prefix.
    """
    bound = topic_prefix(connection)
    if bound not in (old, None):
        raise SchemaTaken(
            f"expected rows of topics with the prefix {old!r}, found rows of those with {bound!r}"
        )
    before, after, continued, emptied, ends = topics
    numbers = {"before": before, "times": after // before}
    connection.execute(statement("forget_leader_epochs"))
    connection.execute(statement("grow_projection_offsets"), {**numbers, "topics": list(continued)})
    connection.execute(statement("empty_projection_offsets"), {"topics": list(emptied)})
    connection.execute(statement("grow_wipes"), numbers)
    _move_instances(connection, partition_of)
    keys = [key for (key,) in connection.execute(statement("keys_of_step_commits")).fetchall()]
    moved = {"keys": keys, "partitions": [partition_of(key) for key in keys]}
    connection.execute(statement("move_step_commits"), moved)
    connection.execute(statement("forget_step_epochs"))
    growth = json.encode([before, ends]).decode()
    connection.execute(statement("move_topic_prefix"), {"prefix": new, "growth": growth})


async def topic_growths(reader: PooledReader) -> list[tuple[int, list[int]]]:
    """Return the number of partitions before each growth, and the ends of `webhooks` then.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    (row,) = await reader.answers(statement("topic_growths"))
    return [(before, ends) for before, ends in row["growths"]]


def _move_instances(
    connection: psycopg.Connection[TupleRow], partition_of: Callable[[str], int]
) -> None:
    for rows in _pages(connection):
        moved = {
            "workflows": [workflow for workflow, _ in rows],
            "instances": [instance for _, instance in rows],
            "partitions": [partition_of(f"{workflow}/{instance}") for workflow, instance in rows],
        }
        connection.execute(statement("move_instances"), moved)
        connection.execute(statement("move_runs"), moved)


def _pages(connection: psycopg.Connection[TupleRow]) -> Iterator[list[tuple[Any, ...]]]:
    with connection.cursor(name="instances") as instances:
        instances.execute(statement("instances_of_partitions"))
        while rows := instances.fetchmany(_MOVED):
            yield rows
