"""A turn decides for a bounded time, and what it has no time for comes in the next ones."""

from collections.abc import Iterator
from itertools import count

import pytest

from headwater.processors.code.host_messages import Activate
from headwater.processors.runs.claims import Claims
from headwater.processors.runs.host_messages import HostMessage, Requested
from headwater.schemas.history import CommandSent, StartRun
from headwater.streams.engine.code import Code
from headwater.streams.engine.driver import DISPATCHED_S, SERVED_S, Driver
from headwater.streams.engine.live_instances import LiveInstance, LiveInstances
from headwater.streams.engine.owner import Owner
from headwater.streams.engine.turns import Partition, Turn
from tests.fakes.engines import ENGINES, REPLAY
from tests.unit.streams.test_driver import COMPLETED

#: What one decision of these takes.
SLOW_S = 0.03


class SlowWorker:
    """A driver of some partitions whose clock goes on with each run that begins."""

    def __init__(self, *numbers: int) -> None:
        self.now_s = 0.0
        self.driver = Driver(partitions=len(numbers), seconds=lambda: self.now_s)
        self.position = 1
        for number in numbers:
            self.add_partition(number)

    def add_partition(self, number: int) -> None:
        owner = Owner(
            number,
            Claims(epoch=0),
            LiveInstances(ENGINES),
            code=Code({"order": REPLAY.kind}),
            number_activations=lambda host: self.driver.number_activation(number, host),
            draw_seed=self.draw_seed,
        )
        self.driver.add_partition(Partition(number, owner, 0, {}, start=0, position=1, replied=0))

    def draw_seed(self) -> str:
        self.now_s += SLOW_S
        return "seed"

    def send(self, number: int, count: int, first: int = 0) -> None:
        self.driver.partitions[number].commands += [
            (offset, self.sent(number, offset)) for offset in range(first, first + count)
        ]

    def sent(self, number: int, offset: int) -> CommandSent:
        return CommandSent(
            command_id=f"{number}-{offset}",
            workflow="order",
            instance_id=f"o-{offset}",
            sent_at_ms=0,
            reply_to=0,
            command=StartRun("1"),
        )

    def turn(self, now_ms: int = 0) -> Turn:
        """One turn, whose appends are durable at once."""
        turn = self.driver.turn(now_ms)
        for flight in turn.flights:
            self.driver.appended(flight, self.position)
            self.position += len(flight.batch.records)
        return turn

    def answered(self) -> list[str]:
        released = self.driver.take_released()
        return [reply.command_id for answer in released.answers for _, reply in answer.replies]

    def turns(self) -> Iterator[tuple[float, list[str]]]:
        """Turns until nothing is left: how long each took, and what it has answered."""
        while True:
            began_s = self.now_s
            self.turn()
            yield self.now_s - began_s, self.answered()
            if not self.driver.has_backlog():
                return


def test_a_batch_of_slow_commands_is_decided_in_several_turns_and_in_order():
    worker = SlowWorker(0)
    worker.send(0, 10)
    turns = list(worker.turns())
    assert [item for _, some in turns for item in some] == [f"0-{n}" for n in range(10)]
    assert len(turns) > 1
    assert max(took_s for took_s, _ in turns) <= SERVED_S + SLOW_S + DISPATCHED_S
    assert not worker.driver.has_backlog()


def test_a_turn_decides_something_however_slow_it_is():
    worker, ticks = SlowWorker(0), count()
    worker.driver = Driver(partitions=1, seconds=lambda: float(next(ticks)))
    worker.add_partition(0)
    worker.send(0, 3)
    answered = [some for _, some in worker.turns()]
    assert answered == [["0-0"], ["0-1"], ["0-2"]]


def test_partitions_take_turns():
    worker = SlowWorker(0, 1, 2)
    for number in range(3):
        worker.send(number, 12)
    served = []
    for _, answered in worker.turns():
        served.append({item.partition("-")[0] for item in answered})
        if len(served) == 3:
            break
    assert set.union(*served) == {"0", "1", "2"}, "each was served within as many turns"
    for _ in worker.turns():
        pass
    assert not any(partition.commands for partition in worker.driver.partitions.values())


def test_time_reaches_instances_only_behind_the_commands_that_came_before():
    worker = SlowWorker(0)
    partition = worker.driver.partitions[0]
    partition.reach(5)
    assert partition.reached_ms == 5
    worker.send(0, 6)
    partition.reach(7)
    worker.send(0, 1, first=6)
    reached = [(partition.reached_ms, len(partition.commands)) for _ in worker.turns()]
    assert all(ms == (7 if left <= 1 else 5) for ms, left in reached)
    assert reached[0] != reached[-1]
    assert partition.reached_ms == 7


def test_messages_of_hosts_are_decided_though_commands_never_end():
    worker = SlowWorker(0)
    worker.send(0, 1)
    worker.turn()
    released = worker.driver.take_released()
    (activate,) = released.to_hosts[0]
    assert isinstance(activate, Activate)
    worker.send(0, 1_000, first=1)
    messages: list[HostMessage] = [Requested(activate.activation, COMPLETED)]
    worker.driver.host_sent(messages)
    for _ in range(2):
        turn = worker.turn()
        keys = [record.instance_id for flight in turn.flights for record in flight.batch.records]
        if "o-0" in keys:
            break
    assert "o-0" in keys
    assert worker.driver.partitions[0].commands


def test_without_a_clock_a_turn_decides_all_that_there_is():
    worker = SlowWorker(0)
    worker.driver = Driver(partitions=1)
    worker.add_partition(0)
    worker.send(0, 100)
    worker.turn()
    assert len(worker.answered()) == 100
    assert not worker.driver.has_backlog()


@pytest.mark.parametrize("number", [1, 200])
def test_ready_instances_are_given_to_hosts_in_several_turns(number: int):
    worker = SlowWorker(0)
    host_of = worker.driver.partitions[0].owner._activations._host_of

    def slow(run: object) -> int | None:
        worker.now_s += 0.001
        return host_of(run)  # type: ignore[arg-type]

    worker.driver.partitions[0].owner._activations._host_of = slow  # type: ignore[method-assign]
    worker.send(0, number)
    began = sum(1 for _ in worker.turns())
    assert len(worker.driver.partitions[0].owner.activations()) == number
    assert (began > 1) is (number > 1)


def test_timers_that_a_turn_had_no_time_for_are_handled_in_the_next_one():
    worker = SlowWorker(0)
    worker.send(0, 6)
    for _ in worker.turns():
        pass
    partition = worker.driver.partitions[0]
    owner, woken = partition.owner, []

    def slow(live: LiveInstance, *_: object) -> None:
        worker.now_s += SLOW_S
        woken.append(live.key)

    owner._request = slow  # type: ignore[method-assign, assignment]
    for live in owner.instances.all_in_memory():
        owner._timers._wakes.put(live.key, 5)
    assert not worker.driver.has_backlog(), "commands sent before may be in the log, unread"
    partition.reach(5)
    partition.move_to(5)
    turns = 0
    while worker.driver.has_backlog():
        worker.turn(now_ms=5)
        turns += 1
    assert sorted(woken) == sorted(live.key for live in owner.instances.all_in_memory())
    assert len(woken) == 6
    assert turns > 1
