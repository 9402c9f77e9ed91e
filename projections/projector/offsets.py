"""Progress of projections, for readers of their rows."""

from headwater.projections.postgres.reader import PooledReader
from headwater.projections.postgres.statements import statement


async def next_offsets(reader: PooledReader, projection: str, topic: str) -> dict[int, int]:
    """Return the next offset to apply of each partition of a topic.

    Partitions without a projector so far are missing.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    rows = await reader.answers(statement("next_offsets"), projection=projection, topic=topic)
    return {row["partition"]: row["next_offset"] for row in rows}
