"""How many instances of workflows there are."""

import msgspec

from headwater.projections.postgres.reader import PooledReader
from headwater.projections.postgres.statements import statement

__all__ = ["InstanceCount", "instance_counts"]


class InstanceCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many instances of a workflow stand in one way."""

    workflow: str
    status: str
    instances: int


async def instance_counts(reader: PooledReader) -> list[InstanceCount]:
    """How many instances of each workflow stand in which way, those of the house among them.

    Errors: StoreUnavailable.
    """
    return msgspec.convert(await reader.answers(statement("instance_counts")), list[InstanceCount])
