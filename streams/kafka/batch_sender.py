"""Send batches of many partitions, in one request per leader, without a task for each.

A leader has one request in flight. When it has answered, what was added meanwhile is sent with the
next one, and the results of all its partitions are reported together. A partition has one batch in
flight, so its batches are in order, also when its leader changes.

A batch that a broker has refused, because it does not lead the partition or has too few replicas,
is sent again: it is not in the log. After any other error, the outcome of a batch is unknown; it is
not sent again, and the caller must not send anything more of its queue. Batches that were not sent
wait for a leader.
"""

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import (
    CorrelationIdError,
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    UnknownTopicOrPartitionError,
    for_code,
)
from typing_extensions import override

from headwater.streams.kafka.appender import CHECKS, GIVE_UP_S, SLOW, SLOW_S
from headwater.streams.kafka.broker_clock import BrokerClock, Moment
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.leader_connection import LeaderConnection
from headwater.streams.kafka.produce_requests import (
    AppendResult,
    Batch,
    produce_request,
    produce_response,
)

log = logging.getLogger(__name__)

#: How long a leader may wait for its replicas.
_REPLICAS_MS: Final = 30_000
#: Pause before the leaders of partitions are looked up again.
_REFRESH_S: Final = 0.1
#: Longest wait for metadata, because a client that is stopped returns none.
_METADATA_S: Final = 5.0
#: Longest wait for connections to close.
_CLOSE_S: Final = 2.0

#: Instead of the broker's time, if the topic keeps that of producers.
_NO_TIME: Final = -1
#: Error of an answer that does not contain a partition.
_UNKNOWN_ERROR: Final = -1
#: Errors of a broker that has not written anything.
_REFUSED: Final = frozenset(
    error.errno
    for error in (
        LeaderNotAvailableError,
        NotEnoughReplicasError,
        NotLeaderForPartitionError,
        UnknownTopicOrPartitionError,
    )
)


class BatchQueue:
    """Batches of a partition to be appended in order, by one idempotent producer.

    Attributes:
        partition: The partition.
        waiting: Batches that were not sent.
        in_flight: The batch that was sent and not answered, or refused.
        is_over: Whether nothing more may be sent.
    """

    def __init__(self, topic: str, partition: int, producer: AIOKafkaProducer) -> None:
        self.partition = partition
        self.waiting: deque[Batch] = deque()
        self.in_flight: Batch | None = None
        self.is_over = False
        #: Whether its next batch waits for a leader's connection.
        self.is_queued = False
        #: Checks since it was queued.
        self.checks = 0
        self._place = TopicPartition(topic, partition)
        self._producer = producer
        #: The batch in flight, as it is sent.
        self._built = bytearray()

    def has_next(self) -> bool:
        """Whether there is a batch to send, also again."""
        return not self.is_over and bool(self.waiting or self.in_flight)

    def next_batch(self) -> bytearray:
        """Return the next batch to send: the one that was refused, if there is one."""
        if self.in_flight is not None:
            return self._built
        batch = self.in_flight = self.waiting.popleft()
        # aiokafka has sent the claim under the same id: continue its sequence.
        state = self._producer._txn_manager  # noqa: SLF001 (aiokafka has no public name)
        sequence = state.sequence_number(self._place)
        state.increment_sequence_number(self._place, batch.records)
        self._built = batch.build(state.producer_id, state.producer_epoch, sequence)
        return self._built

    def leader(self) -> tuple[str, int] | None:
        """Return host and port of the leader, if there is one."""
        cluster = self._producer.client.cluster
        node = cluster.leader_for_partition(self._place)
        broker = cluster.broker_metadata(node) if node not in {None, -1} else None
        return (broker.host, broker.port) if broker is not None else None

    def refresh_metadata(self) -> "asyncio.Future[bool]":
        """Request the leaders of partitions again."""
        refreshed: asyncio.Future[bool] = self._producer.client.force_metadata_update()
        return refreshed

    def unacknowledged(self) -> int:
        """Return the number of records that were not acknowledged."""
        sent = self.in_flight.records if self.in_flight else 0
        return sent + sum(batch.records for batch in self.waiting)

    @override
    def __str__(self) -> str:
        return f"{self.unacknowledged()} records of {self._place.topic}/{self.partition}"


class Answer(NamedTuple):
    """The number of records of a batch, and its first offset or why its outcome is unknown."""

    queue: BatchQueue
    records: int
    result: int | KafkaError


class _Leader:
    """A broker with its queues: those to be sent next, and those of the request in flight."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.connection: LeaderConnection | None = None
        self.connecting: asyncio.Task[None] | None = None
        self.waiting: list[BatchQueue] = []
        self.in_flight: list[BatchQueue] = []
        #: Number of the latest request, and when it was sent.
        self.number = 0
        self.sent_at: Moment | None = None


class BatchSender:
    """Sends the batches of queues.

    Args:
        cluster: The cluster.
        client_id: Name of the client in the broker's logs.
        topic: Topic of all queues.
        clock: Is updated with the brokers' time by every response.
        answered: Called with the results of a request, before the next one is sent. It calls
            `send` with the queues that continue.
        slow_s: Seconds after which an unacknowledged batch is logged.
        give_up_s: Seconds after which it fails.
    """

    def __init__(  # noqa: PLR0913, the last two for tests
        self,
        *,
        cluster: Cluster,
        client_id: str,
        topic: str,
        clock: BrokerClock,
        answered: Callable[[Sequence[Answer]], None],
        slow_s: float = SLOW_S,
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        self._cluster, self._client_id = cluster, client_id
        # These requests are packed here, without aiokafka.
        self._names = (
            cluster.client_in_kafka(client_id).encode(),
            cluster.topic_in_kafka(topic).encode(),
        )
        self._clock = clock
        self._answered = answered
        self._slow_s, self._give_up_s = slow_s, give_up_s
        self._leaders: dict[tuple[str, int], _Leader] = {}
        #: Queues whose leader is unknown or cannot be reached.
        self._leaderless: list[BatchQueue] = []
        self._finding: asyncio.Task[None] | None = None
        #: Queues with a batch that is queued or in flight.
        self._busy: set[BatchQueue] = set()
        self._timer: asyncio.TimerHandle | None = None

    def send(self, queues: Iterable[BatchQueue]) -> None:
        """Send the next batches of queues: now, or after those in flight."""
        for queue in queues:
            if queue.waiting and queue.in_flight is None and not queue.is_queued:
                queue.is_queued, queue.checks = True, 0
                self._busy.add(queue)
                self._route(queue)
        self._send_requests()
        if self._busy and self._timer is None:
            self._start_timer()

    async def stop(self) -> None:
        """Close all connections. What is in flight is not answered any more."""
        self._answered = _ignore
        if self._timer is not None:
            self._timer.cancel()
        leaders = list(self._leaders.values())
        self._leaders.clear()
        tasks = [*filter(None, [self._finding, *(leader.connecting for leader in leaders)])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        closing = [leader.connection.close() for leader in leaders if leader.connection]
        if closing:
            await asyncio.wait(closing, timeout=_CLOSE_S)

    # -- requests

    def _route(self, queue: BatchQueue) -> None:
        address = queue.leader()
        if address is None:
            self._wait_for_leaders([queue])
            return
        leader = self._leaders.get(address)
        if leader is None:
            leader = self._leaders[address] = _Leader(address)
        leader.waiting.append(queue)

    def _send_requests(self) -> None:
        for leader in self._leaders.values():
            if leader.waiting and not leader.in_flight:
                self._send_request(leader)

    def _send_request(self, leader: _Leader) -> None:
        if leader.connection is not None and not leader.connection.is_open:
            leader.connection.close()
            leader.connection = None
        if leader.connection is None:
            if leader.connecting is None:
                leader.connecting = asyncio.create_task(self._connect(leader))
            return
        queues, leader.waiting = leader.waiting, []
        # What waited for a partition that was released is not sent any more.
        leader.in_flight = [queue for queue in queues if not self._is_dropped(queue)]
        if not leader.in_flight:
            return
        leader.number = (leader.number + 1) % 2**31
        leader.sent_at = self._clock.now()
        batches = [(queue.partition, queue.next_batch()) for queue in leader.in_flight]
        leader.connection.write(produce_request(leader.number, *self._names, batches, _REPLICAS_MS))

    def _is_dropped(self, queue: BatchQueue) -> bool:
        queue.is_queued = False
        if queue.has_next():
            return False
        self._busy.discard(queue)
        return True

    def _received(self, leader: _Leader, response: bytes) -> None:
        try:
            number, results = produce_response(response)
        except struct.error:
            number, results = -1, []
        if number != leader.number or not leader.in_flight:
            error = CorrelationIdError(f"expected response {leader.number}, found {number}")
            self._disconnect(leader, error)
            return
        for result in results:
            if result.appended_ms != _NO_TIME and leader.sent_at is not None:
                # All of a request are appended at about the same time.
                self._clock.record_append(leader.sent_at, result.appended_ms)
                break
        by_partition = {result.partition: result for result in results}
        queues, leader.in_flight = leader.in_flight, []
        answered = [(queue, by_partition.get(queue.partition)) for queue in queues]
        if refused := [queue for queue, result in answered if _is_refused(queue, result)]:
            for queue in refused:
                queue.is_queued = True
            self._wait_for_leaders(refused)
        self._answer([_answer(queue, result) for queue, result in answered if queue not in refused])

    def _fail(self, queues: Iterable[BatchQueue], error: KafkaError) -> None:
        self._answer([Answer(queue, 0, error) for queue in queues])

    def _answer(self, answers: Sequence[Answer]) -> None:
        for queue, _, result in answers:
            queue.in_flight, queue.is_queued = None, False
            self._busy.discard(queue)
            if getattr(result, "invalid_metadata", False):
                queue.refresh_metadata()
        self._answered(answers)
        self._send_requests()

    # -- leaders

    async def _connect(self, leader: _Leader) -> None:
        received, lost = partial(self._received, leader), partial(self._disconnect, leader)
        try:
            leader.connection = await LeaderConnection.open(
                self._cluster, leader.address, self._client_id, received, lost
            )
        except (KafkaError, OSError) as error:
            log.debug("cannot connect to %s: %r", leader.address, error)
            queues, leader.waiting = leader.waiting, []
            self._wait_for_leaders(queues)
        finally:
            leader.connecting = None
        self._send_requests()

    def _disconnect(self, leader: _Leader, error: KafkaError) -> None:
        """Close the connection to a leader, and fail what it has in flight."""
        connection, leader.connection = leader.connection, None
        if connection is not None:
            connection.close()
        queues, leader.in_flight = leader.in_flight, []
        self._fail(queues, error)

    def _wait_for_leaders(self, queues: Collection[BatchQueue]) -> None:
        self._leaderless += queues
        if self._finding is None:
            self._finding = asyncio.create_task(self._find_leaders())

    async def _find_leaders(self) -> None:
        try:
            refreshed = [queue.refresh_metadata() for queue in self._leaderless]
            if refreshed:
                await asyncio.wait(refreshed, timeout=_METADATA_S)
            await asyncio.sleep(_REFRESH_S)
        finally:
            self._finding = None
        queues, self._leaderless = self._leaderless, []
        for queue in queues:
            if queue.has_next():
                self._route(queue)
            else:
                self._is_dropped(queue)
        self._send_requests()

    # -- limits

    def _start_timer(self) -> None:
        interval_s = self._slow_s / CHECKS
        self._timer = asyncio.get_running_loop().call_later(interval_s, self._check)

    def _check(self) -> None:
        """Log slow batches, and fail late ones.

        Counts checks, not time: while the loop is busy or the process is suspended, it does not
        read responses that have arrived.
        """
        self._timer = None
        for queue in self._busy:
            queue.checks += 1
        slow = [queue for queue in self._busy if queue.checks == CHECKS]
        if slow:
            log.warning(SLOW, ", ".join(map(str, slow)), self._slow_s)
        checks_max = self._give_up_s * CHECKS / self._slow_s
        late = [queue for queue in self._busy if queue.checks >= checks_max]
        if self._busy:
            self._start_timer()
        if late:
            self._give_up(late)

    def _give_up(self, late: Collection[BatchQueue]) -> None:
        what = ", ".join(map(str, late))
        error = KafkaTimeoutError(f"none of {what} for {self._give_up_s:.0f} s")
        for leader in list(self._leaders.values()):
            leader.waiting = [queue for queue in leader.waiting if queue not in late]
            if any(queue in late for queue in leader.in_flight):
                self._disconnect(leader, error)
        self._leaderless = [queue for queue in self._leaderless if queue not in late]
        self._fail([queue for queue in late if queue.is_queued], error)


def _is_refused(queue: BatchQueue, result: AppendResult | None) -> bool:
    return result is not None and result.error_code in _REFUSED and not queue.is_over


def _answer(queue: BatchQueue, result: AppendResult | None) -> Answer:
    records = queue.in_flight.records if queue.in_flight else 0
    code = result.error_code if result else _UNKNOWN_ERROR
    if result is None or code:
        # Also for a sequence that was appended before: what may be in the log is not sent again.
        return Answer(queue, records, for_code(code)())
    return Answer(queue, records, result.offset)


def _ignore(_: object) -> None:
    """Ignore what is answered after the end."""
