"""Deliveries that wait for the user of their subject, as outcomes say it."""

from collections.abc import Sequence

import msgspec

from headwater.projections.deliveries.queries import Outcome
from headwater.projections.postgres.reader import PooledReader
from headwater.projections.postgres.statements import statement

__all__ = ["WaitingPlace", "oldest_waiting", "waiting_of"]


class WaitingPlace(msgspec.Struct, frozen=True):
    """Where a delivery that waits lies in `webhooks`, and where it was read last."""

    event_id: str
    partition: int
    offset: int
    position: str


async def oldest_waiting(
    reader: PooledReader, *, subjects: Sequence[str] | None, limit: int
) -> list[WaitingPlace]:
    """Deliveries that wait, those first that were looked at longest ago.

    Shape:  of some subjects, or of all.
    Errors: StoreUnavailable.
    """
    asked = None if subjects is None else list(subjects)
    rows = await reader.answers(statement("parked_oldest"), subjects=asked, limit=limit)
    return msgspec.convert(rows, list[WaitingPlace])


async def waiting_of(
    reader: PooledReader, subjects: Sequence[str], *, limit: int
) -> tuple[Outcome, ...]:
    """The outcomes of deliveries of some subjects that wait, the oldest first.

    Errors: StoreUnavailable.
    """
    rows = await reader.answers(statement("parked_of"), subjects=list(subjects), limit=limit)
    return msgspec.convert(rows, tuple[Outcome, ...])
