"""Compare Postgres with the rows that are right, and switch to them and back.

The right rows are written into shadow tables, by the projector's own code. Then the projector is
paused for the last records and the comparison. A switch writes the rows that differ in the same
transaction, so readers see all of the changes or none, and no record comes in between. Then it
publishes rows to owners who have others; those adopt them unless a later delivery has set other
values. A row that gets a delivery in between may show its old values until its owner has read the
new ones.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from headwater.projections.rebuilds.rebuilds import Rebuild, RebuildWork
from headwater.projections.rebuilds.shadow_tables import Offsets, ShadowTables
from headwater.schemas.codec import encode
from headwater.schemas.errors import StoreUnavailable
from headwater.schemas.records import RowRebuilt
from headwater.schemas.topics import EVENTS
from headwater.streams.clock import now_ms
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.records import Outgoing

#: Comparisons that a wipe may interrupt, and seconds between them; then the process starts over.
_TRIES: Final = 60
_RETRY_AFTER_S: Final = 1.0


class RightRows(Protocol):
    """Fills the shadow tables of a rebuild.

    Attributes:
        webhook_ends: End offsets of the deliveries of which rows were computed, by partition; empty
            if rows are not computed but read.
    """

    webhook_ends: Sequence[int]

    async def begin(self) -> None:
        """Compute the rows, and wait for Postgres."""

    async def fill(self) -> None:
        """Write them into shadow tables, almost up to the offsets of Postgres."""

    async def is_current(self) -> bool:
        """Return whether no user was wiped since `begin`; the projector is paused."""

    async def read_up_to(self, ends: Offsets) -> None:
        """Complete the shadow tables up to these offsets of Postgres."""


class Rebuilding:
    """Carries out the phases of a rebuild, or a verification."""

    def __init__(
        self,
        row: Rebuild,
        work: RebuildWork,
        tables: ShadowTables,
        rows: RightRows,
        appender: Appender,
    ) -> None:
        self._row = row
        self._work = work
        self._tables = tables
        self._rows = rows
        self._appender = appender

    async def compare(self) -> None:
        """Compare the rows."""
        await self._compare(put=False)

    async def switch(self) -> None:
        """Compare again, and replace the rows that differ."""
        ends, sent = self._row.ends, self._row.sent
        if sent < 0:
            await self._compare(put=True)
            ends, sent = tuple(self._rows.webhook_ends), 0
        await self._publish(sent, ends, back=False)
        await self._work.end("switched")

    async def switch_back(self) -> None:
        """Restore the old rows, except those that have changed since."""
        sent = self._row.sent
        if sent < 0:
            async with self._tables.paused_projection():
                await self._tables.put(back=True, now_ms=now_ms())
                await self._work.record_sent(0)
            sent = 0
        await self._publish(sent, self._row.ends, back=True)
        await self._work.end("switched_back")

    async def _compare(self, *, put: bool) -> None:
        """Compare; repeat if a user was wiped meanwhile, because the rows may be that user's."""
        for _ in range(_TRIES):
            await self._rows.begin()
            await self._work.forget_rows()
            await self._rows.fill()
            await self._tables.analyze()
            async with self._tables.paused_projection() as ends:
                if await self._rows.is_current():
                    await self._compare_at(ends, put=put)
                    return
            await self._tables.drop()
            await asyncio.sleep(_RETRY_AFTER_S)
        raise StoreUnavailable("users are being wiped; the comparison starts over")

    async def _compare_at(self, ends: Offsets, *, put: bool) -> None:
        """Compare both sets of tables at these offsets, then drop the new ones."""
        await self._rows.read_up_to(ends)
        counts, examples = await self._tables.compare()
        await self._work.store_counts(counts, examples, self._rows.webhook_ends)
        if put:
            await self._tables.put(back=False, now_ms=now_ms())
        if self._row.is_verification:
            await self._work.forget_rows()
        await self._tables.drop()

    async def _publish(self, sent: int, ends: Sequence[int], *, back: bool) -> None:
        """Publish the new rows to owners who have others."""
        async for page in self._work.rows(sent):
            records = []
            for row in page:
                value = row.before if back else row.after
                rebuilt = RowRebuilt(
                    rebuild=self._row.id,
                    table=self._row.projection,
                    row=value,
                    ends=list(ends),
                )
                records.append(Outgoing(EVENTS, row.partition, row.key, encode(rebuilt)))
            await self._appender.append(records)
            await self._work.record_sent(page[-1].number + 1)
