"""Instances that are past their retention, in the order in which they came to be."""

from datetime import datetime
from typing import Any, Final

import msgspec

from headwater.projections.postgres.reader import PooledReader
from headwater.projections.postgres.statements import statement

__all__ = ["FIRST", "Expired", "Expiry", "Kept", "expired", "expired_counts"]


class Expiry(msgspec.Struct, frozen=True, kw_only=True):
    """Which instances: kept until a time, RFC 3339; of one workflow, or of any."""

    until: str
    workflow: str | None = None


class Kept(msgspec.Struct, frozen=True):
    """How far a prune is: behind this instance, and until when that was kept."""

    until: str
    workflow: str
    instance_id: str


#: Before all instances.
FIRST: Final = Kept("-infinity", "", "")


class Expired(msgspec.Struct, frozen=True, kw_only=True):
    """An instance as Postgres knew it."""

    workflow: str
    instance_id: str
    retention_until: datetime
    updated_at: datetime

    @property
    def place(self) -> Kept:
        """Where a prune is that has come to it."""
        return Kept(self.retention_until.isoformat(), self.workflow, self.instance_id)


async def expired_counts(reader: PooledReader, asked: Expiry) -> dict[str, int]:
    """How many instances there are, by workflow.

    Errors: StoreUnavailable.
    """
    rows = await reader.answers(statement("expired_counts"), **_asked(asked))
    return {row["workflow"]: row["instances"] for row in rows}


async def expired(reader: PooledReader, asked: Expiry, after: Kept, limit: int) -> list[Expired]:
    """The next of them, behind a place.

    Errors: StoreUnavailable.
    """
    named = {**_asked(asked), "after_until": after.until, "limit": limit}
    named |= {"after_workflow": after.workflow, "after_id": after.instance_id}
    rows = await reader.answers(statement("expired_instances"), **named)
    return msgspec.convert(rows, list[Expired])


def _asked(asked: Expiry) -> dict[str, Any]:
    return {"until": asked.until, "workflow": asked.workflow}
