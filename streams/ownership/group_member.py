"""A member of a consumer group that runs in a thread of its own.

Heartbeats and rebalances continue however long the event loop of the process computes. If they
shared a loop with that work, the consumer would be removed from its group while the loop is busy;
another member would get its partitions, do the same work, and be removed in turn.

The member fetches nothing: its user reads the assigned partitions with a consumer without a group,
on its own event loop. Assignments, revocations and confirmations pass from the thread to the loop;
commits and queries of committed offsets pass from the loop to the thread.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Final, NamedTuple, NoReturn, Protocol, TypeVar

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError
from typing_extensions import override

from headwater.streams.kafka.cluster import Cluster, start_consumer
from headwater.streams.kafka.consumer_groups import Committed, MemberFenced, committed_offsets
from headwater.streams.kafka.idle_fetches import IDLE_FETCH_MS
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.ownership.deadlines import SESSION_S, SessionDeadlines

log = logging.getLogger(__name__)

#: How long a revocation waits for the event loop, which may be busy: the whole group waits with it.
#: An orderly release may take 10 s.
REVOKE_S: Final = 12.0
#: How long the coordinator waits for a member to join again: longer than a revocation takes.
_REBALANCE_S: Final = 25.0
#: aiokafka ends a membership that polls no records, and this one never does.
_POLL_MAX_MS: Final = 2**31 - 1
_POLL_MS: Final = 60_000

T = TypeVar("T")


class Rebalances(Protocol):
    """Callbacks of a member's user for changes of its partitions.

    They run on the event loop of the user, one at a time, in order.
    """

    async def assigned(self, numbers: frozenset[int]) -> None:
        """Acquire partitions: these are all that are assigned now."""

    async def revoked(self, numbers: frozenset[int]) -> None:
        """Release partitions; other members may get them when this returns, or after REVOKE_S."""


class _Event(NamedTuple):
    """A change of the assignment, for the event loop of the user."""

    handle: Callable[[frozenset[int]], Awaitable[None]]
    numbers: frozenset[int]
    handled: "Future[None]"


class GroupMember:
    """A member of a consumer group for one topic, until it is stopped.

    Args:
        cluster: The cluster.
        group: The group's name.
        topic: The topic that the members consume.
        member: A name that the member keeps over restarts (static membership), or None.
        client_id: Names this client in the broker's logs.
        rebalances: Callbacks for changes of its partitions.
        deadlines: Deadlines of its partitions, if it has any. The thread extends them.
        confirmed: Called on the event loop of the user when they were extended.
    """

    def __init__(  # noqa: PLR0913 (the options of a member)
        self,
        *,
        cluster: Cluster,
        group: str,
        topic: str,
        member: str | None,
        client_id: str,
        rebalances: Rebalances,
        deadlines: SessionDeadlines | None = None,
        confirmed: Callable[[], object] = lambda: None,
    ) -> None:
        self._group, self._topic = group, topic
        self._rebalances = rebalances
        self._deadlines, self._confirmed = deadlines, confirmed
        self._options = {
            **cluster.options(),
            "group_id": group,
            "group_instance_id": member,
            "client_id": client_id,
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "session_timeout_ms": int(SESSION_S * 1_000),
            "heartbeat_interval_ms": int(SESSION_S * 1_000 / 4),
            "rebalance_timeout_ms": int(_REBALANCE_S * 1_000),
            "fetch_max_wait_ms": IDLE_FETCH_MS,
            "max_poll_interval_ms": _POLL_MAX_MS,
        }
        self._loop: asyncio.AbstractEventLoop
        self._leaving = False
        self._membership: asyncio.Task[None] | None = None
        self._consumer: AIOKafkaConsumer | None = None

    # -- on the event loop of the user

    async def start(self) -> None:
        """Join the group, waiting for Kafka.

        Raises:
            MemberFenced: Another process joined under the name of this member.
        """
        self._user_loop, self._loop = asyncio.get_running_loop(), asyncio.new_event_loop()
        self._joined = asyncio.Event()
        self._over: asyncio.Future[None] = self._user_loop.create_future()
        self._events: asyncio.Queue[_Event] = asyncio.Queue()
        self._handling = asyncio.create_task(self._handle_events(), name=f"{self._group} events")
        threading.Thread(target=self._run, name=f"member of {self._group}", daemon=True).start()
        joined = asyncio.create_task(self._joined.wait())
        try:
            futures: list[asyncio.Future[Any]] = [joined, self._over]
            await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            await self.stop()
            raise
        finally:
            joined.cancel()
        if self._over.done():
            self._over.result()

    async def during(self, *work: Coroutine[Any, Any, NoReturn]) -> NoReturn:
        """Run coroutines for as long as the membership lasts.

        Raises:
            MemberFenced: Another process joined under the name of this member.
        """
        working = [asyncio.create_task(coroutine) for coroutine in work]
        try:
            futures: list[asyncio.Future[Any]] = [*working, self._over]
            await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
            for future in futures:
                if future.done():
                    future.result()
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
        raise IllegalStateError(f"expected the membership of {self._group} to last, found it ended")

    async def stop(self) -> None:
        """Leave the group."""
        with contextlib.suppress(RuntimeError):  # The thread has ended already.
            self._loop.call_soon_threadsafe(self._leave)
        await asyncio.wait([self._over])
        with contextlib.suppress(Exception):
            self._over.result()
        self._handling.cancel()
        await asyncio.gather(self._handling, return_exceptions=True)

    async def commit(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Commit offsets as a member of the current generation.

        Raises:
            KafkaError: They are not committed, or it is unknown whether they are.
            IllegalStateError: The membership has ended, or a partition is not assigned.
        """
        committed = {tp: position.as_committed() for tp, position in offsets.items()}
        await self._call_in_thread(lambda consumer: consumer.commit(committed))

    async def committed(self, tp: TopicPartition) -> Committed | None:
        """Return the committed offset of a partition, if there is one.

        Raises:
            KafkaError: The coordinator does not answer.
            IllegalStateError: The membership has ended.
        """
        committed = await self._call_in_thread(lambda consumer: committed_offsets(consumer, tp))
        return committed.get(tp)

    async def _call_in_thread(self, call: Callable[[AIOKafkaConsumer], Awaitable[T]]) -> T:
        consumer = self._consumer
        if consumer is None or self._over.done():
            raise IllegalStateError(f"expected a member of {self._group}, found none")

        async def run() -> T:
            return await call(consumer)

        result = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run(), self._loop))
        # A thread that ends cancels its calls, which must not cancel the caller.
        await asyncio.wait([result])
        if result.cancelled():
            raise IllegalStateError(f"expected a member of {self._group}, found that it left")
        return result.result()

    async def _handle_events(self) -> None:
        while True:
            handle, numbers, handled = await self._events.get()
            try:
                await handle(numbers)
            except Exception as error:
                log.exception("error while handling a rebalance of %s", self._group)
                self._end(error)
            finally:
                handled.set_result(None)

    def _end(self, error: BaseException | None) -> None:
        if not self._over.done():
            if error is None:
                self._over.set_result(None)
            else:
                self._over.set_exception(error)

    # -- in the thread

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._hold())
        except asyncio.CancelledError:
            pass
        except BaseException as raised:  # noqa: BLE001, the user's loop raises it
            error = raised
        self._call(self._end, error)

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # The user's loop has ended.
            self._user_loop.call_soon_threadsafe(function, *arguments)

    async def _hold(self) -> None:
        self._membership = asyncio.current_task()
        if self._leaving:
            return
        waiting = Retrying(log, "waiting for Kafka")
        consumer = await waiting.until_done(self._join, (KafkaError, OSError))
        self._call(self._joined.set)
        try:
            await self._poll(consumer)
        finally:
            self._consumer = None
            with contextlib.suppress(KafkaError, OSError):
                await consumer.stop()

    async def _join(self) -> AIOKafkaConsumer:
        self._consumer = consumer = AIOKafkaConsumer(**self._options)
        consumer.subscribe([self._topic], listener=_Listener(self, consumer))
        return await start_consumer(consumer)

    async def _poll(self, consumer: AIOKafkaConsumer) -> NoReturn:
        """Poll until an error ends the membership; log and retry other errors."""
        polling = Retrying(log, f"the membership of {self._group} is interrupted")
        while True:
            try:
                await consumer.getmany(timeout_ms=_POLL_MS)
            except MemberFenced:
                raise
            except (KafkaError, OSError) as error:
                await polling.failed(error)
            else:
                polling.succeeded()

    def _leave(self) -> None:
        self._leaving = True
        if self._membership is not None:
            self._membership.cancel()

    def assigned(self, numbers: Iterable[int]) -> None:
        """Pass an assignment to the user."""
        self._call(
            self._events.put_nowait,
            _Event(self._rebalances.assigned, frozenset(numbers), Future()),
        )

    async def revoked(self, numbers: Iterable[int]) -> None:
        """Have the user release partitions, and wait for it for at most REVOKE_S."""
        numbers = frozenset(numbers)
        if numbers:
            event = _Event(self._rebalances.revoked, numbers, Future())
            self._call(self._events.put_nowait, event)
            waiting = asyncio.wrap_future(event.handled)
            await asyncio.wait([waiting], timeout=REVOKE_S)
            if not waiting.done():
                log.warning(
                    "partitions %s of %s are lost: expected their release within %.0f s of a "
                    "rebalance, found the event loop busy; records written for them from now on "
                    "are ignored once another worker has claimed them",
                    *(sorted(numbers), self._topic, REVOKE_S),
                )
        if self._deadlines is not None:
            # Other members may have the partitions from now on.
            self._deadlines.end_generation()

    def confirmed(self, sent_s: float) -> None:
        """Record that the group has confirmed the membership."""
        if self._deadlines is not None:
            self._deadlines.confirm(sent_s)
            self._call(self._confirmed)


class _Listener(ConsumerRebalanceListener):
    def __init__(self, member: GroupMember, consumer: AIOKafkaConsumer) -> None:
        self._member, self._consumer = member, consumer

    @override
    async def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        await self._member.revoked(tp.partition for tp in revoked)

    @override
    async def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        # The user fetches them with a consumer of its own.
        self._consumer.pause(*assigned)
        self._member.assigned(tp.partition for tp in assigned)

    def on_confirmed(self, sent_s: float) -> None:
        """Called by `consumer_groups`."""
        self._member.confirmed(sent_s)
