"""Count instances of workflows."""

import msgspec

from headwater.projections.postgres.reader import PooledReader
from headwater.projections.postgres.statements import statement

__all__ = ["InstanceCount", "instance_counts"]


class InstanceCount(msgspec.Struct, frozen=True, kw_only=True):
    """Number of a workflow's instances with one status."""

    workflow: str
    status: str
    instances: int


async def instance_counts(reader: PooledReader) -> list[InstanceCount]:
    """Return the number of instances by workflow and status, including built-in workflows.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    return msgspec.convert(await reader.answers(statement("instance_counts")), list[InstanceCount])
