"""How far projections are, for whoever reads what they have written."""

from headwater.projections.postgres.reader import PooledReader
from headwater.projections.postgres.statements import statement


async def next_offsets(reader: PooledReader, projection: str, topic: str) -> dict[int, int]:
    """The first offset of each partition of a topic that a projection has not applied yet.

    Shape:  partitions that no projector has seen yet are missing.
    Errors: StoreUnavailable.
    """
    rows = await reader.answers(statement("next_offsets"), projection=projection, topic=topic)
    return {row["partition"]: row["next_offset"] for row in rows}
