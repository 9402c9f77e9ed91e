"""Whether any worker of workflows is there, as Kafka knows: so that nobody waits for none.

All who ask at a time share one question, and its answer is good for a second. A worker that is
restarted is gone for a moment, so nobody is said to be there only after some seconds of asking.
While that lasts it is asked on, every second, so that who comes later need not wait for as long.
"""

import asyncio
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import GroupCoordinatorNotAvailableError, KafkaError

from headwater.streams.kafka.cluster import Cluster
from headwater.streams.workflows.ownership import GROUP

_GOOD_FOR_S: Final = 1.0
_ANSWER_MS: Final = 2_000
#: A worker that is restarted is back by then.
RESTARTED_WITHIN_S: Final = 3.0


class Presence:
    """The members of the workers' group."""

    def __init__(self, cluster: Cluster, *, restarted_within_s: float = RESTARTED_WITHIN_S) -> None:
        self._cluster = cluster
        self._restarted_within_s = restarted_within_s
        self._asking: asyncio.Task[bool] | None = None
        self._asked_at_s = 0.0
        #: Since when all answers were that nobody is there, as long as somebody asks.
        self._absent_since_s: float | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def missed(self) -> bool:
        """Whether nobody was there when it was last asked."""
        return self._absent_since_s is not None

    async def anybody(self, within_s: float) -> bool:
        """Whether there may be a worker; True as well where Kafka does not answer in time."""
        now_s = asyncio.get_running_loop().time()
        if self._asking is None or (self._asking.done() and now_s - self._asked_at_s > _GOOD_FOR_S):
            if now_s - self._asked_at_s > self._restarted_within_s:
                self._absent_since_s = None
            self._asked_at_s = now_s
            self._asking = asyncio.create_task(self._ask(), name="ask for workers")
        await asyncio.wait([self._asking], timeout=within_s)
        if not self._asking.done() or self._asking.result():
            self._absent_since_s = None
            return True
        if self._absent_since_s is None:
            self._absent_since_s = now_s
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch(), name="watch for workers")
        return now_s - self._absent_since_s < self._restarted_within_s

    async def stop(self) -> None:
        """Waits until nothing is asked any more: within seconds."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        if self._asking is not None:
            await asyncio.wait([self._asking])

    async def _watch(self) -> None:
        """Asks on for as long as nobody is there."""
        while self.missed:
            await asyncio.sleep(_GOOD_FOR_S)
            await self.anybody(_ANSWER_MS / 1_000)

    async def _ask(self) -> bool:
        admin = AIOKafkaAdminClient(**self._cluster.options(), request_timeout_ms=_ANSWER_MS)
        try:
            await admin.start()
            (answer,) = await admin.describe_consumer_groups([GROUP])
        except GroupCoordinatorNotAvailableError:  # a cluster that has had no group yet
            return False
        except (KafkaError, OSError):
            return True
        finally:
            await admin.close()
        ((_, _, _, _, _, members, *_),) = answer.groups  # type: ignore[attr-defined]
        return bool(members)
