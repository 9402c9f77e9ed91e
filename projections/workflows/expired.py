"""Instances that are past their retention, in the order of their retention."""

from datetime import datetime
from typing import Any, Final

import msgspec

from headwater.projections.postgres.reader import PooledReader
from headwater.projections.postgres.statements import statement

__all__ = ["FIRST", "Expired", "Expiry", "PruneCursor", "expired", "expired_counts"]


class Expiry(msgspec.Struct, frozen=True, kw_only=True):
    """Selects instances: kept until `until`, RFC 3339; of one workflow, or of all."""

    until: str
    workflow: str | None = None


class PruneCursor(msgspec.Struct, frozen=True):
    """Position of a prune: the last instance it handled, and until when that was kept."""

    until: str
    workflow: str
    instance_id: str


#: Position before all instances.
FIRST: Final = PruneCursor("-infinity", "", "")


class Expired(msgspec.Struct, frozen=True, kw_only=True):
    """An expired instance, as Postgres knew it."""

    workflow: str
    instance_id: str
    retention_until: datetime
    updated_at: datetime

    @property
    def cursor(self) -> PruneCursor:
        """Position of a prune after this instance."""
        return PruneCursor(self.retention_until.isoformat(), self.workflow, self.instance_id)


async def expired_counts(reader: PooledReader, expiry: Expiry) -> dict[str, int]:
    """Return the number of expired instances by workflow.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    rows = await reader.answers(statement("expired_counts"), **_parameters(expiry))
    return {row["workflow"]: row["instances"] for row in rows}


async def expired(
    reader: PooledReader, expiry: Expiry, after: PruneCursor, limit: int
) -> list[Expired]:
    """Return the next expired instances after a position.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    parameters = {**_parameters(expiry), "after_until": after.until, "limit": limit}
    parameters |= {"after_workflow": after.workflow, "after_id": after.instance_id}
    rows = await reader.answers(statement("expired_instances"), **parameters)
    return msgspec.convert(rows, list[Expired])


def _parameters(expiry: Expiry) -> dict[str, Any]:
    return {"until": expiry.until, "workflow": expiry.workflow}
