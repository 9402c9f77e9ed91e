"""Commands reach the driver before timers that are later than they are, however slow a fetch is."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, Final

import pytest
from aiokafka import TopicPartition

from headwater.schemas.codec import encode
from headwater.schemas.history import CommandSent, SendEvent
from headwater.schemas.topics import WORKFLOW_COMMANDS
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.ownership.phases import OwnedPartitions
from headwater.streams.workflows import command_reader
from headwater.streams.workflows.command_reader import CommandHandling, CommandReader
from tests.waiting import until

PARTITION: Final = TopicPartition(WORKFLOW_COMMANDS, 0)
NOW_MS: Final = 1_000
SENT: Final = CommandSent(
    command_id="1",
    workflow="order",
    instance_id="1",
    sent_at_ms=NOW_MS - 1,
    reply_to=-1,
    command=SendEvent("1", "paid", "null"),
)


class Broker:
    """The consumers of a reader: one command is in the log, and a fetch returns it when it may.

    aiokafka's position is behind the command as soon as the fetch has it.
    """

    def __init__(self) -> None:
        self.fetched, self.returned, self.asked = asyncio.Event(), False, 0
        self._client = SimpleNamespace(cluster=SimpleNamespace(leader_for_partition=lambda _: 1))
        self._subscription = SimpleNamespace(
            subscription=SimpleNamespace(assignment=SimpleNamespace(state_value=lambda _: None))
        )

    async def getmany(self, **_: Any) -> Mapping[TopicPartition, Sequence[Any]]:  # noqa: ANN401
        if self.returned:
            await asyncio.Event().wait()
        await self.fetched.wait()
        self.returned = True
        record = SimpleNamespace(offset=0, value=encode(SENT), timestamp=NOW_MS, timestamp_type=0)
        return {PARTITION: [record]}

    async def position(self, _: TopicPartition) -> int:
        return 1

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[Any, int]:
        self.asked += 1
        return dict.fromkeys(partitions, 1)

    def pause(self, *_: TopicPartition) -> None:
        pass

    resume = pause


class Owned:
    """A partition with a timer that is due; notes what happens in which order."""

    number = 0

    def __init__(self) -> None:
        self.commands: Any = self
        self.happened: list[object] = []
        claims = SimpleNamespace(leader_epoch=9)
        self.owner = SimpleNamespace(next_due_ms=lambda: NOW_MS - 5, claims=claims)

    def __len__(self) -> int:
        return 0

    def extend(self, commands: Sequence[tuple[int, CommandSent]]) -> None:
        self.happened += [sent for _, sent in commands]

    def reach(self, now_ms: int) -> None:
        self.happened.append(now_ms)


def a_reader(broker: Broker, owned: Owned, check: Any = None) -> CommandReader:  # noqa: ANN401
    driver: Any = SimpleNamespace(
        partitions={0: owned}, wake_up=lambda: None, drives=lambda _: True
    )
    clock: Any = SimpleNamespace(now_ms=lambda: NOW_MS, skew_max_ms=0)
    reader = CommandReader(
        cluster=Cluster("localhost:1"),
        name="worker",
        driver=driver,
        handling=CommandHandling(clock, lambda *_: None, check),
        partitions=OwnedPartitions(),
        lost=lambda *_: None,
    )
    consumers: Any = broker
    reader._consumer = consumers
    reader._progress[0] = command_reader._Progress(fetched=0)
    return reader


@pytest.mark.parametrize("waits_in", ["the fetch", "the check before deciding"])
def test_a_timer_does_not_overtake_a_command_that_is_being_fetched(
    waits_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_reader, "_TIMERS_S", 0.001)
    asyncio.run(_fetched_while_a_timer_is_due(waits_in))


async def _fetched_while_a_timer_is_due(waits_in: str) -> None:
    broker, owned, checked = Broker(), Owned(), asyncio.Event()

    async def check(_: object) -> None:
        await checked.wait()

    reader = a_reader(broker, owned, check)
    working = [
        asyncio.create_task(reader.fetch_commands()),
        asyncio.create_task(reader.watch_timers()),
    ]
    try:
        if waits_in == "the check before deciding":
            broker.fetched.set()
        await until(lambda: broker.asked)
        await asyncio.sleep(0.02)
        assert owned.happened == []
        broker.fetched.set()
        checked.set()
        await until(lambda: NOW_MS in owned.happened)
        assert owned.happened[0] == SENT
    finally:
        for task in working:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def test_a_timer_that_a_turn_sets_is_looked_for_though_none_was_expected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command_reader, "_TIMERS_IDLE_S", 3_600.0)

    async def scene() -> None:
        broker, owned = Broker(), Owned()
        due = [NOW_MS + 60_000]
        owned.owner.next_due_ms = lambda: due[0]
        reader = a_reader(broker, owned)
        watching = asyncio.create_task(reader.watch_timers())
        # It has looked, and waits for the minute that is left.
        await asyncio.sleep(2 * command_reader._TIMERS_S)
        assert not broker.asked
        due[0] = NOW_MS
        reader.note_turn()
        await until(lambda: broker.asked)
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching

    asyncio.run(scene())
