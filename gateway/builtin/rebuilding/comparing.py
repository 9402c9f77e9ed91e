"""Compare Postgres with the rows that are right, and switch to them and back.

The right rows are written into shadow tables, by the projector's own code. The projector is paused
for the last records. Rows of a table are compared in a snapshot of that moment, while it continues;
those of workflows while it waits. A switch pauses it again, and writes the rows that differ and
have not changed since, in one transaction: readers see all of the changes or none. Then it
publishes rows to owners who have others; those adopt them unless a later delivery has set other
values. A row that gets a delivery in between may show its old values until its owner has read the
new ones.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from headwater.projections.rebuilds.rebuilds import Example, Rebuild, RebuildWork
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
            is_compared = await self._compare_once(put=put)
            await self._tables.drop()
            if is_compared:
                return
            await asyncio.sleep(_RETRY_AFTER_S)
        raise StoreUnavailable("users are being wiped; the comparison starts over")

    async def _compare_once(self, *, put: bool) -> bool:
        """Compare both sets of tables; return False if a user was wiped meanwhile."""
        tables = self._tables
        async with tables.comparable(self._complete) as is_complete:
            if not is_complete:
                return False
            result = await tables.compare()
            if tables.compares_paused:
                await self._finish(*result, put=put)
                return True
        # A wipe after the snapshot has not removed its rows from the differences.
        async with tables.paused_projection():
            if not await self._rows.is_current():
                return False
            await self._finish(*result, put=put)
        return True

    async def _complete(self, ends: Offsets) -> bool:
        if not await self._rows.is_current():
            return False
        await self._rows.read_up_to(ends)
        return True

    async def _finish(
        self, counts: dict[str, int], examples: Sequence[Example], *, put: bool
    ) -> None:
        await self._work.store_counts(counts, examples, self._rows.webhook_ends)
        if put:
            await self._tables.put(back=False, now_ms=now_ms())
        if self._row.is_verification:
            await self._work.forget_rows()

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
