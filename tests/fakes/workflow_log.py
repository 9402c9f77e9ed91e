"""What the owner of partitions relies on: the contract that every workflow log keeps.

Whoever runs it gives the fixture `run`, which runs a scenario in a place where logs can be opened;
the partitions there may have been used before, so a scenario begins with a claim.
"""

import asyncio
import random
from base64 import b64encode
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
import pytest

from headwater.processors.runs.claims import Claims
from headwater.schemas.errors import BrokerUnavailable, InvariantViolation
from headwater.schemas.history import NO_CAUSE, HistoryAppended, LogWritten, PartitionClaimed
from headwater.schemas.records import SnapshotTaken
from headwater.schemas.topics import MAX_RECORD_BYTES
from headwater.streams.workflows.history_lease import Append, Outcome, OwnershipLost
from headwater.streams.workflows.log import WorkflowLog

KEY = b"orders/1"


@dataclass
class Place:
    """A broker, or what stands for one, with partitions that nobody else uses meanwhile."""

    open: Callable[[], WorkflowLog]
    partitions: tuple[int, ...]
    opened: list[WorkflowLog] = field(default_factory=list)

    @property
    def partition(self) -> int:
        return self.partitions[0]

    def log(self) -> WorkflowLog:
        """One more process that may own partitions."""
        self.opened.append(self.open())
        return self.opened[-1]


Scenario: TypeAlias = Callable[[Place], Awaitable[None]]
Run: TypeAlias = Callable[[Scenario], None]


def a_record(epoch: int, number: int, size: int = 0) -> HistoryAppended:
    """A record of so many bytes, also when it is compressed."""
    message = b64encode(random.Random(number).randbytes(size)).decode()
    return HistoryAppended(
        workflow="orders",
        instance_id="1",
        run_number=0,
        sequence=number,
        epoch=epoch,
        cause=NO_CAUSE,
        at_ms=1_783_000_000_000 + number,
        events=(LogWritten("info", "test", message),),
    )


def some(epoch: int, count: int, first: int = 0) -> list[tuple[bytes, HistoryAppended]]:
    return [(KEY, a_record(epoch, first + number)) for number in range(count)]


async def read(log: WorkflowLog, partition: int, start: int, end: int) -> list[Any]:
    return [placed async for batch in log.read(partition, start, end) for placed in batch]


async def counted(log: WorkflowLog, partition: int, start: int, end: int) -> list[tuple[int, int]]:
    """Offset and sequence of the records that count, as any reader finds them."""
    claims = Claims()
    result = await read(log, partition, start, end)
    return [(offset, record.sequence) for offset, record in result if claims.admit(offset, record)]


async def append(
    log: WorkflowLog, partition: int, records: Sequence[tuple[bytes, HistoryAppended]]
) -> int:
    """Offset of the first record, once they count.

    Raises:
        OwnershipLost: They do not, or it is not known whether they do.
    """
    return await appending(log, partition, records)


def appending(
    log: WorkflowLog, partition: int, records: Sequence[tuple[bytes, HistoryAppended]]
) -> "asyncio.Future[int]":
    """The same; the records are passed on before this returns."""
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def done(outcome: Outcome) -> None:
        if isinstance(outcome, int):
            future.set_result(outcome)
        else:
            future.set_exception(outcome)

    log.append([Append(partition, records, done)])
    return future


async def claimed(log: WorkflowLog, partition: int) -> int:
    """The epoch of a claim, which is tried again as owners do."""
    while True:
        try:
            return await log.claim(partition, "worker-1")
        except BrokerUnavailable:
            await asyncio.sleep(0.1)


async def lost(append: Awaitable[Any]) -> OwnershipLost:
    with pytest.raises(OwnershipLost) as raised:
        await append
    return raised.value


class WorkflowLogContract:
    def test_a_claim_is_a_record_and_its_offset_the_epoch(self, run: Run):
        async def scenario(place: Place) -> None:
            log, partition = place.log(), place.partition
            epoch = await log.claim(partition, "worker-1")
            ((offset, record),) = await read(log, partition, epoch, epoch + 1)
            assert offset == epoch
            assert record.events == (PartitionClaimed("worker-1"),)
            claims = Claims()
            assert not claims.admit(offset, record)
            assert (claims.epoch, claims.owner) == (epoch, "worker-1")

        run(scenario)

    def test_what_was_appended_is_read_back_in_order_and_counts(self, run: Run):
        async def scenario(place: Place) -> None:
            log, partition = place.log(), place.partition
            epoch = await log.claim(partition, "worker-1")
            sent = some(epoch, 3)
            assert await append(log, partition, sent) == epoch + 1
            assert await append(log, partition, some(epoch, 1, 3)) == epoch + 4
            assert await read(log, partition, epoch + 1, epoch + 4) == [
                (epoch + 1 + number, record) for number, (_, record) in enumerate(sent)
            ]
            assert await counted(log, partition, epoch, epoch + 5) == [
                (epoch + 1 + number, number) for number in range(4)
            ]
            assert await read(log, partition, epoch, epoch) == []

        run(scenario)

    def test_an_append_of_megabytes_keeps_its_order(self, run: Run):
        async def scenario(place: Place) -> None:
            log, partition = place.log(), place.partition
            epoch = await log.claim(partition, "worker-1")
            many = [(KEY, a_record(epoch, number, size=1_000)) for number in range(3_000)]
            after = some(epoch, 2, 3_000)
            firsts = await asyncio.gather(
                append(log, partition, many), append(log, partition, after)
            )
            assert firsts == [epoch + 1, epoch + 3_001]
            result = await counted(log, partition, epoch, epoch + 3_003)
            assert result == [(epoch + 1 + number, number) for number in range(3_002)]

        run(scenario)

    def test_appends_that_overlap_take_effect_in_the_order_of_the_calls(self, run: Run):
        async def scenario(place: Place) -> None:
            log, partition = place.log(), place.partition
            epoch = await log.claim(partition, "worker-1")
            appends = (append(log, partition, some(epoch, 2, 2 * n)) for n in range(20))
            firsts = await asyncio.gather(*appends)
            assert firsts == [epoch + 1 + 2 * n for n in range(20)]
            result = await counted(log, partition, epoch, epoch + 41)
            assert [number for _, number in result] == list(range(40))

        run(scenario)

    def test_a_partition_that_is_not_claimed_takes_nothing(self, run: Run):
        async def scenario(place: Place) -> None:
            log, partition = place.log(), place.partition
            error = await lost(append(log, partition, some(0, 1)))
            assert "not claimed" in error.message
            await log.claim(partition, "worker-1")
            log.release(partition)
            await lost(append(log, partition, some(0, 1)))

        run(scenario)

    def test_a_superseded_owner_is_told_and_its_records_count_for_nobody(self, run: Run):
        async def scenario(place: Place) -> None:
            old, new, partition = place.log(), place.log(), place.partition
            first = await old.claim(partition, "worker-1")
            await append(old, partition, some(first, 2))
            second = await new.claim(partition, "worker-2")
            error = await lost(append(old, partition, some(first, 5, 2)))
            assert f"worker-2 claimed it at offset {second}" in error.message
            # The zombie's five records lie between the claim and these two.
            assert await append(new, partition, some(second, 2, 2)) == second + 6
            expected = [(first + 1, 0), (first + 2, 1), (second + 6, 2), (second + 7, 3)]
            assert await counted(new, partition, first, second + 8) == expected

        run(scenario)

    def test_after_an_error_a_partition_takes_nothing_until_it_is_claimed_again(self, run: Run):
        async def scenario(place: Place) -> None:
            old, new, partition = place.log(), place.log(), place.partition
            epoch = await old.claim(partition, "worker-1")
            await new.claim(partition, "worker-2")
            both = (append(old, partition, some(epoch, 1, n)) for n in range(2))
            outcomes = await asyncio.gather(*both, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [OwnershipLost, OwnershipLost]
            await lost(append(old, partition, some(epoch, 1)))
            epoch = await old.claim(partition, "worker-1")
            assert await append(old, partition, some(epoch, 1)) == epoch + 1

        run(scenario)

    def test_a_claim_that_comes_late_takes_the_partition_from_its_owner(self, run: Run):
        async def scenario(place: Place) -> None:
            owner, zombie, partition = place.log(), place.log(), place.partition
            epoch = await owner.claim(partition, "worker-2")
            await append(owner, partition, some(epoch, 1))
            late = await zombie.claim(partition, "worker-1")
            await lost(append(owner, partition, some(epoch, 1, 1)))
            again = await owner.claim(partition, "worker-2")
            await append(owner, partition, some(again, 1, 1))
            assert [offset for offset, _ in await counted(owner, partition, epoch, again + 2)] == [
                epoch + 1,
                again + 1,
            ]
            await lost(append(zombie, partition, some(late, 1, 9)))

        run(scenario)

    def test_a_claim_of_ones_own_that_comes_late_supersedes_too(self, run: Run):
        async def scenario(place: Place) -> None:
            log, twin, partition = place.log(), place.log(), place.partition
            epoch = await log.claim(partition, "worker-1")
            # What is left of an attempt to claim that was given up: the same name, another offset.
            late = await twin.claim(partition, "worker-1")
            await lost(append(log, partition, some(epoch, 1)))
            assert await counted(log, partition, epoch, late + 1) == []

        run(scenario)

    def test_the_partitions_that_are_not_lost_go_on(self, run: Run):
        async def scenario(place: Place) -> None:
            log, other = place.log(), place.log()
            removed, kept = place.partitions[:2]
            epochs = {p: await log.claim(p, "worker-1") for p in (removed, kept)}
            await other.claim(removed, "worker-2")
            for first in (0, 2):
                appends = (append(log, p, some(epoch, 2, first)) for p, epoch in epochs.items())
                refused, landed = await asyncio.gather(*appends, return_exceptions=True)
                assert isinstance(refused, OwnershipLost)
                assert landed == epochs[kept] + 1 + first
            result = await counted(log, kept, epochs[kept], epochs[kept] + 5)
            assert [number for _, number in result] == [0, 1, 2, 3]

        run(scenario)

    def test_records_of_an_ownership_that_is_over_are_not_taken(self, run: Run):
        async def scenario(place: Place) -> None:
            log, partition = place.log(), place.partition
            before = await log.claim(partition, "worker-1")
            epoch = await log.claim(partition, "worker-1")
            assert "another epoch" in (await lost(append(log, partition, some(before, 1)))).message
            assert await append(log, partition, some(epoch, 1)) == epoch + 1

        run(scenario)

    def test_what_is_in_flight_when_a_partition_is_released_is_lost_and_known_at_the_next_claim(
        self, run: Run
    ):
        async def scenario(place: Place) -> None:
            log, partition = place.log(), place.partition
            epoch = await log.claim(partition, "worker-1")
            appends = [appending(log, partition, some(epoch, 3, 3 * n)) for n in range(2)]
            log.release(partition)
            for future in appends:
                assert "it was released" in (await lost(future)).message
            await lost(append(log, partition, some(epoch, 1, 6)))
            again = await claimed(log, partition)
            numbers = [number for _, number in await counted(log, partition, epoch, again + 1)]
            assert numbers in ([], [0, 1, 2]), "whole or not at all; the second was not sent"
            assert await append(log, partition, some(again, 1, 9)) == again + 1

        run(scenario)

    def test_a_record_that_is_too_large_is_not_sent(self, run: Run):
        async def scenario(place: Place) -> None:
            log, partition = place.log(), place.partition
            epoch = await log.claim(partition, "worker-1")
            with pytest.raises(InvariantViolation, match="orders/1"):
                await append(log, partition, [(KEY, a_record(epoch, 0, MAX_RECORD_BYTES))])
            again = await log.claim(partition, "worker-1")
            assert again == epoch + 1

        run(scenario)

    def test_snapshots_are_read_back_and_forgotten(self, run: Run):
        async def scenario(place: Place) -> None:
            log, partition = place.log(), place.partition
            taken = SnapshotTaken(
                kind="replay",
                format=1,
                compressed=False,
                epoch=2,
                position=7,
                cause=3,
                wake_at_ms=-1,
                state=b"state",
            )
            removed = msgspec.structs.replace(taken, kind="", position=9, state=b"")
            await lost(log.write_snapshots({partition: [(b"a", taken)]}))
            await log.claim(partition, "worker-1")
            await log.write_snapshots({partition: [(b"a", taken), (b"b", taken)]})
            await log.write_snapshots({partition: [(b"a", removed)]})
            result = dict([pair async for pair in log.read_snapshots(partition)])
            assert (result[b"a"], result[b"b"]) == (removed, taken)

        run(scenario)
