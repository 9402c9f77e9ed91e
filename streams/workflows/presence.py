"""Detects whether any workflow worker runs, so that clients do not wait in vain.

Concurrent callers share one query to Kafka, whose answer is valid for a second. A worker that is
restarted is absent for a moment, so workers count as absent only after some seconds. Meanwhile the
query is repeated every second, so that later callers need not wait as long.
"""

import asyncio
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import GroupCoordinatorNotAvailableError, KafkaError

from headwater.streams.kafka.cluster import Cluster
from headwater.streams.workflows.ownership import GROUP

_VALID_S: Final = 1.0
_ANSWER_MS: Final = 2_000
#: Time in which a restarted worker is back.
RESTARTED_WITHIN_S: Final = 3.0


class Presence:
    """The members of the workers' group."""

    def __init__(self, cluster: Cluster, *, restarted_within_s: float = RESTARTED_WITHIN_S) -> None:
        self._cluster = cluster
        self._restarted_within_s = restarted_within_s
        self._query: asyncio.Task[bool] | None = None
        self._queried_at_s = 0.0
        #: Since when all answers were that there are no members.
        self._absent_since_s: float | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def are_absent(self) -> bool:
        """Whether there was no worker at the last query."""
        return self._absent_since_s is not None

    async def has_workers(self, within_s: float) -> bool:
        """Return whether there may be a worker; True if Kafka does not respond in time."""
        now_s = asyncio.get_running_loop().time()
        if self._query is None or (self._query.done() and now_s - self._queried_at_s > _VALID_S):
            if now_s - self._queried_at_s > self._restarted_within_s:
                self._absent_since_s = None
            self._queried_at_s = now_s
            self._query = asyncio.create_task(self._query_group(), name="query workers")
        await asyncio.wait([self._query], timeout=within_s)
        if not self._query.done() or self._query.result():
            self._absent_since_s = None
            return True
        if self._absent_since_s is None:
            self._absent_since_s = now_s
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch(), name="watch for workers")
        return now_s - self._absent_since_s < self._restarted_within_s

    async def stop(self) -> None:
        """Stop, within seconds."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        if self._query is not None:
            await asyncio.wait([self._query])

    async def _watch(self) -> None:
        """Repeat the query while there are no workers."""
        while self.are_absent:
            await asyncio.sleep(_VALID_S)
            await self.has_workers(_ANSWER_MS / 1_000)

    async def _query_group(self) -> bool:
        admin = AIOKafkaAdminClient(**self._cluster.options(), request_timeout_ms=_ANSWER_MS)
        try:
            await admin.start()
            (description,) = await admin.describe_consumer_groups([GROUP])
        except GroupCoordinatorNotAvailableError:  # a cluster that has had no group yet
            return False
        except (KafkaError, OSError):
            return True
        finally:
            await admin.close()
        ((_, _, _, _, _, members, *_),) = description.groups  # type: ignore[attr-defined]
        return bool(members)
