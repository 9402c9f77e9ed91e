"""Append a checkpoint of the audit log once an hour, and print it to the gateway's log."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from importlib.metadata import version
from typing import Final

from headwater.gateway.api.audit import SUCCESS, Auditing, RequestFacts
from headwater.projections.audit import AuditFilter, Chained, newest
from headwater.projections.audit_checkpoints import CHECKPOINT, Checkpoint, signed
from headwater.projections.postgres.connections import PooledReader
from headwater.schemas.errors import HeadwaterError

_LOG: Final = logging.getLogger("headwater.gateway.audit")
_AGENT: Final = f"headwater/{version('headwater')}"
#: The author of checkpoints, in place of a key.
GATEWAY: Final = "gateway"
#: Milliseconds between two checkpoints of a project, by any gateway.
HOUR_MS: Final = 60 * 60 * 1000
_FIRST_AFTER_S: Final = 60.0
_CHECK_EVERY_S: Final = 600.0


class Checkpoints:
    """Appends checkpoints of the chain of a project.

    Args:
        reader: Reads the rows, which have the hashes.
        auditing: Appends entries.
        project: The project.
        key: Key that signs; empty for no signature.
        clock: Returns Unix milliseconds.
    """

    def __init__(
        self,
        reader: PooledReader,
        auditing: Auditing,
        *,
        project: str,
        key: str,
        clock: Callable[[], int],
    ) -> None:
        self._reader = reader
        self._auditing = auditing
        self._project = project
        self._key = key
        self._clock = clock

    async def append_due(self) -> Checkpoint | None:
        """Append a checkpoint, if the last one is an hour old and entries were appended since.

        Two gateways may do so at once; then there are two, which does no harm.

        Raises:
            HeadwaterError: Postgres or Kafka is unavailable.
        """
        now_ms = self._clock()
        last = await self._newest(CHECKPOINT)
        if last is not None and now_ms - _at_ms(last) < HOUR_MS:
            return None
        head = await self._newest(None)
        if head is None or (last is not None and head.entry.id == last.entry.id):
            return None
        stated = Checkpoint(
            project=self._project,
            offset=head.entry.offset,
            hash=head.hash.hex(),
            at_ms=now_ms,
        )
        checkpoint = signed(stated, self._key)
        facts = RequestFacts(GATEWAY, "/v1/audit", "", _AGENT, now_ms)
        await self._auditing.append(facts, CHECKPOINT, SUCCESS, checkpoint.metadata())
        _LOG.info(
            "audit checkpoint: project=%s head=%d:%s signature=%s",
            checkpoint.project,
            checkpoint.offset,
            checkpoint.hash,
            checkpoint.signature or "none",
        )
        return checkpoint

    async def _newest(self, action: str | None) -> Chained | None:
        filters = AuditFilter(project_id=self._project, action=action)
        page, _ = await newest(self._reader, filters, limit=1)
        return page[0] if page else None


def _at_ms(chained: Chained) -> int:
    return round(datetime.fromisoformat(chained.entry.created_at).timestamp() * 1000)


@asynccontextmanager
async def appending_checkpoints(checkpoints: Checkpoints) -> AsyncIterator[None]:
    """Append checkpoints in the background."""

    async def repeat() -> None:
        await asyncio.sleep(_FIRST_AFTER_S)
        while True:
            try:
                await checkpoints.append_due()
            except HeadwaterError as error:
                _LOG.warning("no audit checkpoint was appended: %s", error)
            await asyncio.sleep(_CHECK_EVERY_S)

    task = asyncio.create_task(repeat())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
