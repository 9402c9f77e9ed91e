"""Deliveries that wait for the user of their subject, according to outcomes."""

from collections.abc import Sequence

import msgspec

from headwater.projections.deliveries.queries import Outcome
from headwater.projections.postgres.reader import PooledReader
from headwater.projections.postgres.statements import statement

__all__ = ["WaitingDelivery", "oldest_waiting", "waiting_of"]


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
