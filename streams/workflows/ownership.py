"""Which partitions a worker owns: they come and go with the consumer group of the commands.

The membership of the group has a thread of its own (`kafka.group_member`), so it does not depend on
how long the worker decides. A partition that is assigned is claimed and read in the background, and
its commands are paused meanwhile. After any error a partition is dropped and taken over again from
the log.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final, NoReturn

from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from headwater.schemas.errors import (
    BrokerUnavailable,
    HeadwaterError,
    NewerSchema,
    NotYetReadable,
    StoreUnavailable,
)
from headwater.schemas.history import CommandSent
from headwater.schemas.newer import Waiting
from headwater.schemas.topics import WORKFLOW_COMMANDS
from headwater.streams.deadlines import SessionDeadlines
from headwater.streams.engine.driver import Driver
from headwater.streams.engine.turns import Partition
from headwater.streams.kafka.broker_clock import BrokerClock
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.committed import Committed
from headwater.streams.kafka.group_member import GroupMember
from headwater.streams.kafka.records import Incoming
from headwater.streams.kafka.state_store import StoreTorn
from headwater.streams.kafka.state_stores import StoreLocked
from headwater.streams.workflows.command_reader import CommandReader
from headwater.streams.workflows.log import WorkflowLog

log = logging.getLogger(__name__)

GROUP: Final = "headwater-workflows"
#: How long a rebalance may wait for a commit: without it the next owner replies again.
_COMMIT_S: Final = 2.0
_RETRY_S: Final = 1.0
_RETRY_AFTER_FAULT_S: Final = 30.0
#: How often a takeover looks whether the group has confirmed this worker since it was suspended.
_LOOK_S: Final = 0.05


class Ownership:
    """The partitions of one worker.

    Shape:  `take_over` makes a Partition of (number, offset up to which commands have their
            replies); `before_deciding` is awaited with commands before they are decided;
            `before_giving_up` is awaited before partitions are given up in order,
            `given_up` called for each that is, and `after_giving_up` awaited before anybody else
            may take them over; `parked` gets commands that cannot be read.
    """

    def __init__(  # noqa: PLR0913, what a worker does with its partitions
        self,
        *,
        cluster: Cluster,
        name: str,
        member: str | None,
        driver: Driver,
        workflow_log: WorkflowLog,
        deadlines: SessionDeadlines,
        clock: BrokerClock,
        take_over: Callable[[int, int], Awaitable[Partition]],
        before_giving_up: Callable[[Collection[int]], Awaitable[None]],
        given_up: Callable[[Partition], None],
        after_giving_up: Callable[[], Awaitable[None]],
        parked: Callable[[Incoming, HeadwaterError], None],
        before_deciding: Callable[[Sequence[CommandSent]], Awaitable[None]] | None = None,
    ) -> None:
        self._driver = driver
        self._log = workflow_log
        self._deadlines = deadlines
        self._take = take_over
        self._before_giving_up = before_giving_up
        self._given_up = given_up
        self._after_giving_up = after_giving_up
        self._waiting = Waiting()
        self._takeovers: dict[int, asyncio.Task[None]] = {}
        #: Others may have these as soon as they are revoked, so until the next assignment there
        #: are none.
        self._assigned: frozenset[int] = frozenset()
        self._generation = deadlines.generation
        self._reader = CommandReader(
            cluster=cluster,
            name=name,
            driver=driver,
            clock=clock,
            parked=parked,
            before_deciding=before_deciding,
            waiting=self._waiting,
            lost=self._lose_commands,
        )
        self._member = GroupMember(
            cluster=cluster,
            group=GROUP,
            topic=WORKFLOW_COMMANDS,
            member=member,
            client_id=name,
            rebalances=self,
        )

    async def start(self) -> None:
        """Join the group, waiting for Kafka."""
        self._loop = asyncio.get_running_loop()
        await self._reader.start()
        await self._member.start()

    async def stop(self) -> None:
        """Leave the group."""
        takeovers = list(self._takeovers.values())
        self._takeovers.clear()
        for task in takeovers:
            task.cancel()
        # They read, and close what they read with.
        await asyncio.gather(*takeovers, return_exceptions=True)
        with contextlib.suppress(KafkaError, IllegalStateError):
            await self.commit()
        await self._member.stop()
        await self._reader.stop()

    async def run(self) -> NoReturn:
        """Read commands until it is cancelled.

        Raises:
            MemberFenced: Another worker joined under the name of this one.
        """
        await self._member.during(self._reader.run())

    async def commit(self) -> None:
        """Commit to the group up to where commands have their replies; only takeovers use it."""
        offsets = {
            _commands(number): Committed(partition.replied)
            for number, partition in self._driver.partitions.items()
            if partition.replied > 0
        }
        if offsets:
            with contextlib.suppress(CommitFailedError):
                await self._member.commit(offsets)

    # -- the group: see `Rebalances`

    async def assigned(self, numbers: frozenset[int]) -> None:
        """Take partitions over, in the background; these are all that are assigned now."""
        self._assigned = numbers
        self._generation = self._deadlines.generation
        self._reader.assign(numbers)
        self._begin_takeovers(numbers, 0.0)

    async def revoked(self, numbers: frozenset[int]) -> None:
        """Give partitions up, when what is under way has ended."""
        self._assigned = frozenset()
        for number in numbers & self._takeovers.keys():
            self._takeovers.pop(number).cancel()
        await self._before_giving_up(numbers)
        with contextlib.suppress(KafkaError, IllegalStateError, TimeoutError):
            async with asyncio.timeout(_COMMIT_S):
                await self.commit()
        for number in numbers:
            self._drop(number)
        await self._after_giving_up()

    def confirmed(self, sent_s: float) -> None:
        """Extend the deadlines of all partitions; called in the thread of the member."""
        self._deadlines.confirm(sent_s)
        with contextlib.suppress(RuntimeError):  # The loop has ended.
            self._loop.call_soon_threadsafe(self._driver.release_confirmed)

    def revocation_ended(self) -> None:
        """End the ownership of all partitions; called in the thread of the member."""
        self._deadlines.end_generation()

    # -- partitions

    def _begin_takeovers(self, numbers: Iterable[int], pause_s: float) -> None:
        for number in numbers:
            if number not in self._driver.partitions and number not in self._takeovers:
                self._reader.pause(number)
                self._takeovers[number] = asyncio.create_task(self._take_over(number, pause_s))

    def lose(self, partition: Partition, why: str, pause_s: float = 0.0) -> None:
        """Drops a partition, and takes it over again if it is still assigned.

        What happened to one that was given up is of no concern to whoever took it over since.
        """
        if not self._driver.drives(partition):
            return
        number = partition.number
        log.warning("partition %s is taken over again: %s", number, why)
        self._drop(number)
        self._begin_takeovers(self._assigned & {number}, pause_s)

    def _lose_commands(self, number: int, why: str) -> None:
        partition = self._driver.partitions.get(number)
        if partition is not None:
            self.lose(partition, why, _RETRY_S)

    def _drop(self, number: int) -> None:
        self._waiting.end(number)
        self._reader.pause(number)
        self._deadlines.release(number)
        self._log.release(number)
        partition = self._driver.remove_partition(number)
        if partition is not None:
            self._given_up(partition)

    async def _take_over(self, number: int, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        while self._takes_over(number):
            try:
                await self._try_to_take_over(number)
            except NewerSchema as error:
                # Until this process is replaced, or the partition is somebody else's.
                why = f"partition {number} cannot be taken over: {error.message}"
                self._waiting.begin(number, why)
                await asyncio.get_running_loop().create_future()
            except (
                BrokerUnavailable,
                StoreUnavailable,
                StoreLocked,
                StoreTorn,
                NotYetReadable,
                KafkaError,
                OSError,
            ) as error:
                log.warning("partition %s cannot be taken over yet: %s", number, error)
                await asyncio.sleep(_RETRY_S)
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                # Let out by a library: nobody else would ever take this partition over.
                log.warning("partition %s cannot be taken over yet: %r", number, error)
                await asyncio.sleep(_RETRY_S)
            except Exception:
                # A bug, or a record that nobody can read: seldom better a second later.
                log.exception("partition %s cannot be taken over", number)
                await asyncio.sleep(_RETRY_AFTER_FAULT_S)
            else:
                return

    def _takes_over(self, number: int) -> bool:
        """Whether it is for this task: libraries may swallow that it was cancelled."""
        return self._takeovers.get(number) is asyncio.current_task()

    async def _try_to_take_over(self, number: int) -> None:
        # Without a leader of the commands a claim would be in vain, and the next one, too.
        first = await self._reader.first_offset(number)
        # A worker that was suspended in between claims nothing that may be another's by now.
        while not self._deadlines.is_member():  # noqa: ASYNC110, another thread confirms it
            await asyncio.sleep(_LOOK_S)
        generation = self._generation
        committed = await self._member.committed(_commands(number))
        partition = await self._take(number, committed.offset if committed else 0)
        try:
            start = await self._reader.check(partition, first)
            if not self._takes_over(number) or not self._deadlines.acquire(number, generation):
                self._given_up(partition)
                return
            self._reader.begin(number, start, partition.owner.claims.leader_epoch)
        except BaseException:
            self._given_up(partition)
            raise
        self._takeovers.pop(number, None)
        self._driver.add_partition(partition)


def _commands(number: int) -> TopicPartition:
    return TopicPartition(WORKFLOW_COMMANDS, number)
