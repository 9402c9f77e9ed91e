"""Partition ownership of a worker, assigned by the consumer group of the commands.

The group membership has its own thread (`GroupMember`), so it does not depend on how long the
worker decides. An assigned partition is claimed and restored in the background, while its commands
are paused. After any error, a partition is released and restored again from the log.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final, NamedTuple, NoReturn

from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from headwater.monitoring.monitor import Monitor
from headwater.processors.log_fields import set_log_fields
from headwater.schemas.errors import (
    BrokerUnavailable,
    NewerSchema,
    NotYetReadable,
    StoreUnavailable,
)
from headwater.schemas.topics import WORKFLOW_COMMANDS
from headwater.streams.engine.driver import Driver
from headwater.streams.engine.turns import Partition
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.consumer_groups import Committed
from headwater.streams.kafka.state_store import StoreCorrupted
from headwater.streams.kafka.state_stores import StoreLocked
from headwater.streams.ownership.deadlines import SessionDeadlines
from headwater.streams.ownership.group_member import GroupMember
from headwater.streams.ownership.phases import Change, OwnedPartitions, Phase
from headwater.streams.workflows.command_reader import CommandHandling, CommandReader
from headwater.streams.workflows.log import WorkflowLog

log = logging.getLogger(__name__)

GROUP: Final = "headwater-workflows"
#: Longest wait of a rebalance for a commit, without which the next owner replies again.
_COMMIT_S: Final = 2.0
_RETRY_S: Final = 1.0
_RETRY_AFTER_BUG_S: Final = 30.0
#: Poll interval while waiting for the group to confirm a worker that was suspended.
_POLL_S: Final = 0.05


class Handover(NamedTuple):
    """What a worker does when it acquires partitions, and when it releases them.

    Attributes:
        acquire: Claims and restores a partition. Its arguments are the partition, and the offset
            up to which commands have replies.
        before_release: Awaited before partitions are released in a rebalance.
        released: Called for every released partition.
        after_release: Awaited before another worker may acquire them.
    """

    acquire: Callable[[int, int], Awaitable[Partition]]
    before_release: Callable[[Collection[int]], Awaitable[None]]
    released: Callable[[Partition], None]
    after_release: Callable[[], Awaitable[None]]


class Ownership:
    """The partitions of one worker.

    Args:
        cluster: The cluster.
        name: Name of the worker, used as client id.
        member: Static member name in the group.
        driver: Drives the partitions.
        workflow_log: Log of the worker.
        deadlines: Deadlines of partitions.
        handover: What the worker does with partitions.
        handling: What it does with commands.
    """

    def __init__(  # noqa: PLR0913, the dependencies of ownership
        self,
        *,
        cluster: Cluster,
        name: str,
        member: str | None,
        driver: Driver,
        workflow_log: WorkflowLog,
        deadlines: SessionDeadlines,
        handover: Handover,
        handling: CommandHandling,
    ) -> None:
        self._driver = driver
        self._log = workflow_log
        self._deadlines = deadlines
        self._handover = handover
        self._partitions = OwnedPartitions()
        #: Tasks that acquire partitions, or wait for another release that can.
        self._acquiring: dict[int, asyncio.Task[None]] = {}
        self._generation = deadlines.generation
        #: Offsets that were committed since the assignment, by partition.
        self._committed: dict[int, int] = {}
        self._reader = CommandReader(
            cluster=cluster,
            name=name,
            driver=driver,
            handling=handling,
            partitions=self._partitions,
            lost=self._lose_commands,
        )
        self._member = GroupMember(
            cluster=cluster,
            group=GROUP,
            topic=WORKFLOW_COMMANDS,
            member=member,
            client_id=name,
            rebalances=self,
            deadlines=deadlines,
            confirmed=driver.release_confirmed,
        )

    def report_to(self, monitor: Monitor) -> None:
        """Let the worker be ready when it owns its partitions."""
        self._partitions.report_to(monitor)
        monitor.measure(self._reader.measure)

    async def start(self) -> None:
        """Join the group, waiting for Kafka."""
        await self._reader.start()
        await self._member.start()

    async def stop(self) -> None:
        """Leave the group."""
        tasks = list(self._acquiring.values())
        self._acquiring.clear()
        for task in tasks:
            task.cancel()
        # They must finish before the clients that they read with are closed.
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(KafkaError, IllegalStateError):
            await self.commit()
        await self._member.stop()
        await self._reader.stop()

    async def run(self) -> NoReturn:
        """Read commands until it is cancelled.

        Raises:
            MemberFenced: Another worker joined under the same name.
        """
        await self._member.during(self._reader.fetch_commands(), self._reader.watch_timers())

    def note_turn(self) -> None:
        """Record that there was a turn."""
        self._reader.note_turn()

    async def commit(self) -> None:
        """Commit offsets up to which commands have replies, for the next owners."""
        replied = {
            number: partition.replied
            for number, partition in self._driver.partitions.items()
            if partition.replied not in {0, self._committed.get(number)}
        }
        if replied:
            offsets = {_commands(number): Committed(offset) for number, offset in replied.items()}
            with contextlib.suppress(CommitFailedError):
                await self._member.commit(offsets)
                self._committed |= replied

    # -- the group: see `Rebalances`

    async def assigned(self, numbers: frozenset[int]) -> None:
        """Acquire partitions in the background. These are all that are assigned now."""
        self._partitions.assign(numbers)
        self._committed.clear()
        self._generation = self._deadlines.generation
        self._reader.assign(numbers)
        self._start_acquiring(numbers, 0.0)

    async def revoked(self, numbers: frozenset[int]) -> None:
        """Release partitions when their work in flight has finished."""
        # From now on none is acquired again, because other workers may acquire them at once.
        self._partitions.revoke()
        for task in self._acquiring.values():
            task.cancel()
        self._acquiring.clear()
        await self._handover.before_release(numbers)
        with contextlib.suppress(KafkaError, IllegalStateError, TimeoutError):
            async with asyncio.timeout(_COMMIT_S):
                await self.commit()
        for number in numbers:
            self._release(number)
        await self._handover.after_release()

    # -- partitions

    def _start_acquiring(self, numbers: Iterable[int], pause_s: float) -> None:
        for number in numbers:
            if number not in self._driver.partitions and number not in self._acquiring:
                self._reader.pause(number)
                self._acquiring[number] = asyncio.create_task(self._acquire(number, pause_s))

    def reacquire(self, partition: Partition, reason: str, pause_s: float = 0.0) -> None:
        """Release a partition, and acquire it again if it is still assigned.

        Does nothing if the partition was released already.
        """
        if not self._driver.drives(partition):
            return
        number = partition.number
        fields = {"partition": number}
        log.warning("restoring partition %s again: %s", number, reason, extra=fields)
        is_assigned = self._partitions.phase(number) is not Phase.UNASSIGNED
        self._release(number)
        if is_assigned:
            self._partitions.change(number, Change.ASSIGNED)
            self._start_acquiring([number], pause_s)

    def _lose_commands(self, number: int, reason: str) -> None:
        partition = self._driver.partitions.get(number)
        if partition is not None:
            self.reacquire(partition, reason, _RETRY_S)

    def _release(self, number: int) -> None:
        self._partitions.change(number, Change.RELEASED)
        self._reader.pause(number)
        self._deadlines.release(number)
        self._log.release(number)
        partition = self._driver.remove_partition(number)
        if partition is not None:
            self._handover.released(partition)

    async def _acquire(self, number: int, pause_s: float) -> None:
        set_log_fields(partition=number)
        await asyncio.sleep(pause_s)
        while self._is_acquiring(number):
            try:
                await self._try_to_acquire(number)
            except NewerSchema as error:
                if not self._is_acquiring(number):
                    return
                # Until this process is replaced, or the partition has another owner.
                reason = f"cannot acquire partition {number}: {error.message}"
                self._partitions.block(number, reason)
                await asyncio.get_running_loop().create_future()
            except (
                BrokerUnavailable,
                StoreUnavailable,
                StoreLocked,
                StoreCorrupted,
                NotYetReadable,
                KafkaError,
                OSError,
            ) as error:
                log.warning("cannot acquire partition %s yet: %s", number, error)
                await asyncio.sleep(_RETRY_S)
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                # A library leaked it. No other task would acquire this partition.
                log.warning("cannot acquire partition %s yet: %r", number, error)
                await asyncio.sleep(_RETRY_S)
            except Exception:
                # A bug, or a record that cannot be read: a retry seldom helps at once.
                log.exception("cannot acquire partition %s", number)
                await asyncio.sleep(_RETRY_AFTER_BUG_S)
            else:
                return

    def _is_acquiring(self, number: int) -> bool:
        """Whether this task is still current: libraries may swallow its cancellation."""
        return self._acquiring.get(number) is asyncio.current_task()

    async def _try_to_acquire(self, number: int) -> None:
        # Without a leader of the commands, this claim and the next one would be in vain.
        first = await self._reader.first_offset(number)
        # A worker that was suspended must not claim what may belong to another worker by now.
        while not self._deadlines.is_member():  # noqa: ASYNC110, another thread confirms it
            await asyncio.sleep(_POLL_S)
        generation = self._generation
        committed = await self._member.committed(_commands(number))
        partition = await self._handover.acquire(number, committed.offset if committed else 0)
        try:
            start = await self._reader.check(partition, first)
            if not self._is_acquiring(number) or not self._deadlines.acquire(number, generation):
                self._handover.released(partition)
                return
            self._reader.begin(number, start, partition.owner.claims.leader_epoch)
        except BaseException:
            self._handover.released(partition)
            raise
        self._acquiring.pop(number, None)
        self._partitions.change(number, Change.ACQUIRED)
        self._driver.add_partition(partition)


def _commands(number: int) -> TopicPartition:
    return TopicPartition(WORKFLOW_COMMANDS, number)
