"""The one module that imports Faust: an app with agents that take whole batches.

Faust's stock transport passes messages to its agents one by one, at about 220 microseconds each.
`BatchTransport`, registered under the URL scheme `batched` at Faust's own extension point, passes
the records of one fetch from one partition as one message, a `Batch`.

Every override works around a fault of Faust 0.15, which its comment names:
- F1. Faust acknowledges a message when the agent takes the next, also if the agent failed or Faust
  skipped it. Here an acknowledgement commits nothing; `Batch.done()` does, called by the agent
  when the broker has acknowledged everything it wrote.
- F2. Faust can commit past a message in flight (#606). Here the committed offset only moves from
  the end of one batch to the end of the batch fetched right after it; anything else ends the
  worker.
- F3. Faust takes failed commits for successful ones (#316). Here they are retried.
- F4. A fetch that began before a rebalance may end after Faust has sought to the committed offsets,
  and before it resumes its flow. Faust drops the records, and continues after them. Here they are
  fetched again. If nothing was committed yet, Faust does not seek at all; here it does.
- F5. Faust continues at a committed offset whose record the broker has lost. Here the log is
  compared with its leader epochs, and a loss ends the worker.
- F6. Faust fetches all partitions as soon as its tables are recovered, of which there are none.
  Here a partition is held until its owner has restored it.
- F7. Faust has no setting for what it does.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias, cast

import faust
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import IllegalStateError
from faust.auth import Credentials, OAuthCredentials, SASLCredentials, SSLCredentials
from faust.transport.drivers import aiokafka as driver
from faust.types import TP, Message
from faust.types.tuples import ConsumerMessage
from typing_extensions import override

from headwater.schemas.errors import Disposition, HeadwaterError
from headwater.streams.kafka.cluster import Cluster, PasswordLogin, TokenLogin
from headwater.streams.kafka.consumer_groups import seek_to_committed
from headwater.streams.kafka.idle_fetches import IDLE_FETCH_MS
from headwater.streams.kafka.records import Incoming
from headwater.streams.kafka.truncation import raise_when_truncated
from headwater.streams.ownership.deadlines import SESSION_S

__all__ = ["HEARTBEAT_S", "TP", "App", "Batch", "BatchTransport"]

App: TypeAlias = faust.App

#: Batches that may wait for an agent; beyond that, fetching pauses.
_BATCHES_BUFFERED: Final = 8
#: Batches of a topic that may be processed at once, of different partitions.
_BATCHES_AT_ONCE: Final = 8
#: Records of one fetch: enough to spread the cost of an append over many, few enough that a batch
#: takes well under a second.
_RECORDS_A_FETCH: Final = 2_000
#: Compressed, as in the log; unpacked, twenty times as many.
_BYTES_A_PARTITION: Final = 1024 * 1024
_COMMIT_EVERY_S: Final = 1.0
#: aiokafka lets a member that fetched nothing for this long leave its group for good, and Faust
#: fetches nothing for a worker without partitions. So this is longer than any worker lives; one
#: that has partitions and makes no progress is ended by the watchdog.
_POLL_MAX_S: Final = 10 * 365 * 24 * 3600.0
HEARTBEAT_S: Final = 1.0


class _App(faust.App):
    """Faust's app."""

    @override
    def _create_directories(self) -> None:
        """Do nothing (F7): Faust makes a folder for tables wherever it is started."""


class OffsetGap(HeadwaterError):
    """A batch to commit does not follow the one before."""

    disposition = Disposition.HALT
    code = "offset_gap"


@dataclass(slots=True, eq=False)
class Batch:
    """Records of one fetch from one partition, in order.

    Attributes:
        topic: The topic.
        partition: The partition.
        records: The records; never empty.
        after: End of the batch fetched before; None for the first batch of an assignment.
    """

    topic: str
    partition: int
    records: list[Incoming]
    after: int | None
    _consumer: "BatchConsumer" = field(repr=False)

    @property
    def end(self) -> int:
        """Return the offset after the last record."""
        return int(self.records[-1].offset) + 1

    def first(self, count: int) -> "Batch":
        """Return a batch of the first `count` records."""
        return replace(self, records=self.records[:count])

    def done(self) -> None:
        """Let the end of this batch be committed: its effects are durable. Raises OffsetGap."""
        self._consumer.batch_done(self)


class _BatchThread(driver.AIOKafkaConsumerThread):
    """The thread of Faust's consumer: it fetches and sends heartbeats while agents compute."""

    @override
    def _create_worker_consumer(self, transport: driver.Transport) -> AIOKafkaConsumer:
        consumer = super()._create_worker_consumer(transport)
        # F7. Without tables Faust assigns round robin, which would give partitions of one number to
        # several workers.
        consumer._fetch_max_wait_ms = IDLE_FETCH_MS  # noqa: SLF001
        consumer._partition_assignment_strategy = [RangePartitionAssignor]  # noqa: SLF001
        raise_when_truncated(consumer)  # F5
        return consumer

    @override
    def seek(self, partition: TP, offset: int) -> None:
        super().seek(partition, offset)
        # F7. Called in another thread than the consumer's, whose loop may be waiting for records.
        with contextlib.suppress(RuntimeError):  # The thread has ended.
            self.thread_loop.call_soon_threadsafe(lambda: None)

    @override
    async def seek_to_committed(self) -> Mapping[TP, int]:
        # F5
        offsets = await self.call_thread(seek_to_committed, self._ensure_consumer())
        return cast("Mapping[TP, int]", offsets)


class BatchConsumer(driver.Consumer):
    """Faust's aiokafka consumer, which fetches batches and commits those that are done."""

    @override
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: End of the last batch passed to an agent, by partition: the next one must follow it.
        self._handed_out: dict[TP, int] = {}
        #: End of the last batch done, by partition: what may be committed.
        self._done: dict[TP, int] = {}
        #: Assigned partitions that must not be fetched yet.
        self._held: set[TP] = set()
        #: Whether records were fetched and dropped since the consumer last sought.
        self._dropped = False
        #: Faust's count of rebalances when the current fetch began.
        self._generation = 0

    @override
    def _new_consumer_thread(self) -> _BatchThread:
        return _BatchThread(self, loop=self.loop, beacon=self.beacon)

    @override
    def on_buffer_full(self, tp: TP) -> None:
        """Keep the partition (F7): Faust would exclude it from a fetch of up to a second."""

    @override
    def on_buffer_drop(self, tp: TP) -> None:
        """Do nothing (F7): nothing was paused."""

    def hold(self, tps: set[TP]) -> None:
        """Fetch nothing of partitions until they are released."""
        self._held |= tps
        self.pause_partitions(tps)

    def release(self, tps: set[TP]) -> None:
        """Fetch partitions that were held, if they are still assigned."""
        self._held -= tps
        self.resume_partitions(tps & self.assignment())

    @override
    def resume_partitions(self, tps: Iterable[TP]) -> None:
        # F6
        super().resume_partitions(set(tps) - self._held)

    @override
    async def _getmany(
        self, active_partitions: set[TP] | None, timeout: float
    ) -> Mapping[TP, list[Incoming]]:
        if self._dropped:
            # F4. Nothing was passed on since, so nothing is being processed.
            try:
                await self.perform_seek()
            except IllegalStateError:  # a rebalance has begun, which seeks, too
                self._dropped = True
                return {}
        self._generation = self.app.consumer_generation_id
        return cast(
            "Mapping[TP, list[Incoming]]", await super()._getmany(active_partitions, timeout)
        )

    @override
    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, ConsumerMessage]]:
        records, active = await self._wait_next_records(timeout)
        if records is None or self.should_stop:
            return
        for source, batch in records.items():
            tp = TP(source.topic, source.partition)
            if self._overtaken():  # F4
                self._dropped = True
                return
            if active is None or tp in active:
                yield tp, self._batch_message(tp, batch)
            else:
                await self._seek_back(tp, batch[0].offset)

    async def _seek_back(self, tp: TP, offset: int) -> None:
        """Fetch a partition again that was held after the fetch began."""
        try:
            await self.seek(tp, offset)
        except IllegalStateError:  # it was revoked
            self._dropped = True

    def _overtaken(self) -> bool:
        """Return whether a rebalance began since a fetch.

        Its records are fetched again after the rebalance. Seeking now could hit partitions that are
        revoked already.
        """
        return not self.flow_active or self._generation != self.app.consumer_generation_id

    def _batch_message(self, tp: TP, records: list[Incoming]) -> ConsumerMessage:
        last = records[-1]
        batch = Batch(tp.topic, tp.partition, records, self._handed_out.get(tp), self)
        self._handed_out[tp] = batch.end
        return ConsumerMessage(
            tp.topic,
            tp.partition,
            last.offset,
            last.timestamp / 1000.0,
            last.timestamp_type,
            None,
            None,
            cast("bytes", batch),
            None,
            0,
            0,
            tp,
            generation_id=self._generation,
        )

    def batch_done(self, batch: Batch) -> None:
        """Move the offset to commit to the end of a batch."""
        tp = TP(batch.topic, batch.partition)
        if tp not in self.assignment():
            return
        done = self._done.get(tp)
        if batch.after is not None and batch.after != done:
            raise OffsetGap(
                f"expected the batch of {tp.topic}/{tp.partition} that follows offset {done}, "
                f"found one that follows {batch.after}; a batch in between was lost, the worker "
                "must restart from its committed offsets"
            )
        self._done[tp] = batch.end

    @override
    async def perform_seek(self) -> None:
        # F4. Before seeking: records dropped meanwhile may be from after the new position.
        self._dropped = False
        self._handed_out.clear()
        self._done.clear()
        await super().perform_seek()
        uncommitted = {tp for tp in self.assignment() if not self._committed_offset.get(tp)}
        if uncommitted:
            for tp, offset in (await self.earliest_offsets(*uncommitted)).items():
                await self.seek(tp, offset)

    @override
    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        await super().on_partitions_revoked(revoked)
        # F2: another worker may have committed more by the next assignment.
        for tp in revoked:
            self._handed_out.pop(tp, None)
            self._done.pop(tp, None)

    @override
    def ack(self, message: Message) -> bool:
        # F1. Only ends Faust's own tracking of messages.
        message.acked = True
        self._unacked_messages.discard(message)
        return True

    @override
    async def _add_gap(self, tp: TP, offset_from: int, offset_to: int) -> None:
        """Do nothing (F2): batches follow each other, also over gaps of compaction."""

    @override
    async def force_commit(self, topics: Any = None, start_new_transaction: bool = True) -> bool:
        """Commit the ends of batches that are done (F2), and later those that fail (F3)."""
        ends = {
            tp: end
            for tp, end in self._done.items()
            if tp in self.assignment() and end > (self._committed_offset[tp] or 0)
        }
        if not ends or not await self._commit(ends):
            return False
        self._committed_offset.update(ends)
        return True

    @override
    def verify_event_path(self, now: float, tp: TP) -> None:
        """Do nothing (F7): Faust checks single messages; the worker has its own watchdog."""


class BatchTransport(driver.Transport):
    """Faust's aiokafka transport with batches, for broker URLs of the scheme `batched`."""

    Consumer = BatchConsumer


class _BatchSchema(faust.Schema[Any, Any]):
    """Passes batches through: agents decode record by record, so one bad record harms no other."""

    @override
    def compile(self, app: Any, **_: Any) -> Callable[..., Awaitable[Any]]:
        async def decode(message: Message, *, propagate: bool = False) -> object:
            del propagate
            return app.create_event(None, message.value, {}, message)

        return decode


def _credentials(cluster: Cluster) -> Credentials | None:
    """Return what Faust makes the options of its clients from; see `Cluster.options`."""
    match cluster.login:
        case PasswordLogin(mechanism, user, password):
            return SASLCredentials(
                mechanism=mechanism, username=user, password=password, ssl_context=cluster.tls
            )
        case TokenLogin(tokens):
            return OAuthCredentials(oauth_cb=tokens, ssl_context=cluster.tls)
        case None:
            return None if cluster.tls is None else SSLCredentials(cluster.tls)


def batch_app(*, app_id: str, cluster: Cluster, member: str | None) -> faust.App:
    """Return a Faust app that consumes batches.

    Args:
        app_id: Name of the app, which is its consumer group.
        cluster: The cluster.
        member: A name that this worker keeps over restarts (static membership), so that a restart
            does not wait for the session of the old process to expire.
    """
    cluster.patch_clients()
    return _App(
        app_id,
        broker=[f"batched://{server}" for server in cluster.servers.split(",")],
        broker_credentials=_credentials(cluster),
        store="memory://",
        # No Faust tables: without them and their standbys, aiokafka's own assignors can be used.
        table_standby_replicas=0,
        web_enabled=False,
        topic_allow_declare=False,
        topic_disable_leader=True,
        reply_create_topic=False,
        autodiscover=False,
        consumer_auto_offset_reset="earliest",
        consumer_group_instance_id=member,
        consumer_max_fetch_size=_BYTES_A_PARTITION,
        broker_max_poll_records=_RECORDS_A_FETCH,
        broker_commit_interval=_COMMIT_EVERY_S,
        broker_session_timeout=SESSION_S,
        broker_heartbeat_interval=HEARTBEAT_S,
        broker_max_poll_interval=_POLL_MAX_S,
        broker_request_timeout=30.0,
        broker_rebalance_timeout=30.0,
        stream_buffer_maxsize=_BATCHES_BUFFERED,
        stream_wait_empty=True,
    )


def consume(
    app: faust.App, *, name: str, topic: str, process: Callable[[Batch], Awaitable[None]]
) -> None:
    """Add an agent that passes the batches of a topic to `process`, several at a time.

    So one partition's batch is decided while another's is being appended. `process` must handle
    those of one partition in the order of the calls.
    """

    async def agent(stream: faust.StreamT[Batch]) -> None:
        free = asyncio.Semaphore(_BATCHES_AT_ONCE)
        working: set[asyncio.Task[None]] = set()

        async def work(event: faust.EventT[Batch]) -> None:
            await process(cast("Batch", event.value))
            # Not before: Faust revokes no partition while a message of it is not acknowledged.
            event.ack()
            free.release()

        try:
            async for event in cast("faust.Stream[Batch]", stream).noack().events():
                await free.acquire()
                task = asyncio.create_task(work(event))
                working.add(task)
                task.add_done_callback(working.discard)
        finally:
            for task in working:
                task.cancel()

    app.agent(app.topic(topic, schema=_BatchSchema()), name=name)(agent)


def run_periodically(app: faust.App, seconds: float, action: Callable[[], Awaitable[None]]) -> None:
    """Run an action repeatedly while the app runs, with a pause after each call.

    Faust's own timer warns whenever an action takes longer than the pause.
    """

    async def act() -> None:
        while not app.should_stop:
            await app.sleep(seconds)
            await action()

    app.task(act)


def on_shutdown(app: faust.App, action: Callable[[], Awaitable[None]]) -> None:
    """Run an action when the app shuts down in order."""

    @app.on_before_shutdown.connect(weak=False)
    async def _ending(_: object, **__: object) -> None:
        await action()


def on_assignment(
    app: faust.App,
    *,
    assigned: Callable[[set[TP]], set[int]],
    revoked: Callable[[], None],
    prepare: Callable[[int], Awaitable[bool]],
) -> None:
    """Register callbacks for assignments and, once no batch is being processed, revocations.

    Args:
        app: The app.
        assigned: Returns the numbers to prepare before anything of them is fetched.
        revoked: Called when partitions were revoked and no batch is being processed.
        prepare: Prepares a number, and returns whether it is ready. Runs concurrently and outside
            of any batch, because a rebalance waits for batches.
    """
    preparing: set[asyncio.Task[None]] = set()

    async def make_ready(number: int, tps: set[TP]) -> None:
        if await prepare(number):
            cast("BatchConsumer", app.consumer).release(tps)

    @app.on_partitions_assigned.connect(weak=False)
    async def _assigned(_: object, partitions: set[TP], **__: object) -> None:
        for number in assigned(partitions):
            tps = {tp for tp in partitions if tp.partition == number}
            cast("BatchConsumer", app.consumer).hold(tps)
            task = asyncio.create_task(make_ready(number, tps), name=f"prepare {number}")
            preparing.add(task)
            task.add_done_callback(preparing.discard)

    @app.on_partitions_revoked.connect(weak=False)
    async def _revoked(_: object, __: set[TP], **___: object) -> None:
        revoked()


def consumer_failure(app: faust.App) -> BaseException | None:
    """Return the error that keeps the consumer out of its group for good, if there is one.

    Faust bypasses the methods of aiokafka that would raise it. May be called from any thread,
    also before there is a consumer.
    """
    thread = getattr(app._consumer, "_thread", None)  # noqa: SLF001 (`consumer` would make one)
    coordinator = getattr(getattr(thread, "_consumer", None), "_coordinator", None)
    task = getattr(coordinator, "_coordination_task", None)
    if task is not None and task.done() and not task.cancelled() and task.exception():
        return cast("BaseException", task.exception())
    return cast("BaseException | None", getattr(coordinator, "_pending_exception", None))


def run(app: faust.App) -> bool:
    """Run the app until SIGTERM or SIGINT; return whether it shut down in order."""
    worker = faust.Worker(app, loglevel="WARNING", redirect_stdouts=False, quiet=True)
    # The spinner would hide the cursor, also in logs and in quiet mode.
    worker.spinner = None
    try:
        worker.execute_from_commandline()
    except SystemExit as end:
        return not end.code
