"""Which requests a leader gets, and what becomes of a response that does not fit."""

import asyncio
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import pytest
from aiokafka.cluster import ClusterMetadata
from aiokafka.errors import (
    CorrelationIdError,
    KafkaConnectionError,
    KafkaError,
    NotLeaderForPartitionError,
    UnknownError,
)
from aiokafka.producer.transaction_manager import TransactionManager
from aiokafka.protocol.metadata import MetadataResponse_v1
from aiokafka.protocol.produce import ProduceRequest_v7, ProduceResponse_v7

from headwater.streams.clock import monotonic, now_ms
from headwater.streams.kafka import batch_sender
from headwater.streams.kafka.batch_sender import Answer, BatchQueue, BatchSender
from headwater.streams.kafka.broker_clock import BrokerClock
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.produce_requests import pack_batches
from tests.waiting import until

_NUMBER = struct.Struct(">i")


class Connection:
    """A connection that keeps the partitions of every request."""

    is_open = True

    def __init__(
        self, received: Callable[[bytes], None], lost: Callable[[KafkaError], None]
    ) -> None:
        self.received, self.lost = received, lost
        self.requests: list[list[int]] = []
        self.bodies: list[dict[int, bytes]] = []

    def write(self, request: bytes) -> None:
        body = ProduceRequest_v7.decode(request[4 + 10 + len("test") :])
        ((_, batches),) = body.topics
        self.requests.append([partition for partition, _ in batches])
        self.bodies.append(dict(batches))

    def close(self) -> "asyncio.Future[None]":
        closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        closed.set_result(None)
        return closed

    def answer(self, number: int, *offsets: tuple[int, int]) -> None:
        self._respond(number, [(partition, 0, offset, -1, 0) for partition, offset in offsets])

    def refuse(self, number: int, *partitions: int) -> None:
        code = NotLeaderForPartitionError.errno
        self._respond(number, [(partition, code, -1, -1, 0) for partition in partitions])

    def _respond(self, number: int, results: Sequence[tuple[int, int, int, int, int]]) -> None:
        response = ProduceResponse_v7([("t", results)], 0).encode()
        self.received(_NUMBER.pack(number) + response)


class Client:
    """The metadata of a broker that leads four partitions."""

    def __init__(self) -> None:
        self.cluster = ClusterMetadata(metadata_max_age_ms=1_000)
        partitions = [(0, number, 1, [1], [1]) for number in range(4)]
        self.cluster.update_metadata(
            MetadataResponse_v1([(1, "broker", 9, None)], 1, [(0, "t", False, partitions)])
        )

    def force_metadata_update(self) -> "asyncio.Future[bool]":
        updated: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        updated.set_result(True)
        return updated


class Producer:
    """What queues need of aiokafka's producer, once it has an id."""

    def __init__(self) -> None:
        self.client = Client()
        self._txn_manager = TransactionManager(None, 0)
        self._txn_manager.set_pid_and_epoch(7, 0)


class World:
    def __init__(self) -> None:
        self.answers: list[list[Answer]] = []
        self.connections: list[Connection] = []
        self.producer = Producer()
        self.sender = BatchSender(
            cluster=Cluster("broker:9"),
            client_id="test",
            topic="t",
            clock=BrokerClock(now_ms, monotonic),
            answered=self.answered,
        )

    def answered(self, answers: Sequence[Answer]) -> None:
        if answers:
            self.answers.append(list(answers))

    async def open(
        self,
        _cluster: Cluster,
        _address: tuple[str, int],
        _client_id: str,
        received: Callable[[bytes], None],
        lost: Callable[[KafkaError], None],
    ) -> Connection:
        self.connections.append(Connection(received, lost))
        return self.connections[-1]

    def queue(self, partition: int, batches: int = 1) -> BatchQueue:
        queue = BatchQueue("t", partition, cast("Any", self.producer))
        for _ in range(batches):
            queue.waiting.extend(pack_batches([(b"k", b"v")], 1_000))
        return queue

    async def connected(self) -> Connection:
        await until(lambda: bool(self.connections and self.connections[-1].requests))
        return self.connections[-1]


Scenario = Callable[[World], Awaitable[None]]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[Scenario], None]:
    async def whole(scenario: Scenario) -> None:
        world = World()
        monkeypatch.setattr(batch_sender.LeaderConnection, "open", world.open)
        await scenario(world)
        await world.sender.stop()

    return lambda scenario: asyncio.run(whole(scenario))


def test_a_leader_has_one_request_in_flight_and_the_next_has_all_that_came_meanwhile(
    play: Callable[[Scenario], None],
):
    async def scenario(world: World) -> None:
        first, second, third = world.queue(0, batches=2), world.queue(1), world.queue(2)
        world.sender.send([first, second])
        connection = await world.connected()
        world.sender.send([third])
        assert connection.requests == [[0, 1]]
        connection.answer(1, (1, 8), (0, 5))
        assert world.answers == [[Answer(first, 1, 5), Answer(second, 1, 8)]]
        world.sender.send([first])
        connection.answer(2, (2, 1))
        assert connection.requests == [[0, 1], [2], [0]]

    play(scenario)


def test_what_was_dropped_before_it_was_sent_is_not_sent(play: Callable[[Scenario], None]):
    async def scenario(world: World) -> None:
        sent, dropped = world.queue(0), world.queue(1)
        world.sender.send([sent, dropped])
        dropped.waiting.clear()
        assert (await world.connected()).requests == [[0]]

    play(scenario)


def test_what_a_broker_refuses_is_sent_again_unless_it_was_dropped(
    play: Callable[[Scenario], None],
):
    async def scenario(world: World) -> None:
        again, dropped, other = world.queue(0, batches=2), world.queue(1), world.queue(2)
        world.sender.send([again, dropped, other])
        connection = await world.connected()
        dropped.is_over = True
        connection.refuse(1, 0, 1, 2)
        assert [answer.queue for (answer,) in world.answers] == [dropped]
        other.is_over = True  # Before the leader is found.
        await until(lambda: connection.requests[1:] == [[0]])
        assert connection.bodies[0][0] == connection.bodies[1][0]
        connection.answer(2, (0, 5))
        assert world.answers[1:] == [[Answer(again, 1, 5)]]

    play(scenario)


@pytest.mark.parametrize(
    ("responds", "error"),
    [
        (lambda connection: connection.answer(2, (0, 5)), CorrelationIdError),
        (lambda connection: connection.answer(1, (3, 5)), UnknownError),
        (lambda connection: connection.received(b"\0\0"), CorrelationIdError),
        (lambda connection: connection.lost(KafkaConnectionError("gone")), KafkaConnectionError),
    ],
    ids=["another request's", "without the partition", "cut off", "none"],
)
def test_after_a_response_that_does_not_fit_the_outcome_is_unknown_and_the_rest_is_sent(
    play: Callable[[Scenario], None],
    responds: Callable[[Connection], None],
    error: type[KafkaError],
):
    async def scenario(world: World) -> None:
        queue, other = world.queue(0), world.queue(1)
        world.sender.send([queue])
        connection = await world.connected()
        world.sender.send([other])
        responds(connection)
        ((answer,),) = world.answers
        assert answer.queue is queue
        assert isinstance(answer.result, error)
        await until(lambda: [1] in world.connections[-1].requests)

    play(scenario)
