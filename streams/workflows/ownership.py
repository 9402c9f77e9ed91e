"""Which partitions a worker owns: they come and go with the consumer group of the commands.

A partition that is assigned is claimed and read in the background, and its commands are paused
meanwhile. Whatever goes wrong with one, it is dropped and taken over again from the log.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError
from typing_extensions import override

from headwater.schemas.codec import decode
from headwater.schemas.errors import (
    BrokerUnavailable,
    HeadwaterError,
    NewerSchema,
    NotYetReadable,
    StoreUnavailable,
    UndecodableRecord,
    UnknownSchema,
)
from headwater.schemas.history import CommandSent
from headwater.schemas.newer import Waiting, readable, why_waits
from headwater.schemas.topics import WORKFLOW_COMMANDS
from headwater.streams.engine.driver import Driver
from headwater.streams.engine.turns import Partition
from headwater.streams.kafka.clients import started
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.records import Incoming
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.kafka.state_store import StoreTorn
from headwater.streams.kafka.state_stores import StoreLocked
from headwater.streams.kafka.static_members import MemberFenced
from headwater.streams.workflows.log import WorkflowLog

log = logging.getLogger(__name__)

GROUP: Final = "headwater-workflows"
_POLL_MS: Final = 25
#: How long the broker may hold a fetch. Time moves instances only as far as the commands are known
#: to have been read, so this is how late a timer may be.
_FETCH_WAIT_MS: Final = 25
_COMMANDS_MAX: Final = 2_000
#: Commands of a partition that wait to be decided, and their bytes, from which on no more are
#: fetched: what a turn decides in a second, and what is little beside the states of a partition.
_UNDECIDED_MAX: Final = 4_000
_UNDECIDED_BYTES: Final = 32 * 1024 * 1024
_SESSION_MS: Final = 10_000
_METADATA_AGE_MS: Final = 3_000
_RETRY_S: Final = 1.0
#: How long the end of the commands is waited for: meanwhile no commands are read.
_END_S: Final = 2.0
_RETRY_AFTER_FAULT_S: Final = 30.0
#: By how much our clock may be ahead of the broker's: those of a cluster differ by less.
AHEAD_MAX_MS: Final = 10_000


@dataclass(slots=True)
class _Reading:
    """How far the commands of a partition were read.

    Shape:  fetched is the offset up to which they were; ahead a time, and where they ended then or
            later, or None when nobody has to know.
    """

    fetched: int = 0
    ahead: tuple[int, int] | None = None
    #: Bytes of the commands that were fetched since none waited to be decided.
    waiting_bytes: int = 0
    #: Whether nothing more is fetched until fewer wait.
    held_back: bool = False


class Ownership:
    """The partitions of one worker.

    Shape:  `take_over` makes a Partition of (number, offset up to which commands have their
            replies); `before_deciding` is awaited with commands before they are decided;
            `before_giving_up` is awaited before partitions are given up in order,
            `given_up` called for each that is, and `after_giving_up` awaited before anybody else
            may take them over; `parked` gets commands that cannot be read. While our clock is
            ahead of Kafka's by more than `ahead_max_ms`, nothing comes due.
    """

    def __init__(  # noqa: PLR0913, what a worker does with its partitions
        self,
        *,
        cluster: Cluster,
        name: str,
        member: str | None,
        driver: Driver,
        workflow_log: WorkflowLog,
        clock: Callable[[], int],
        take_over: Callable[[int, int], Awaitable[Partition]],
        before_giving_up: Callable[[Collection[int]], Awaitable[None]],
        given_up: Callable[[Partition], None],
        after_giving_up: Callable[[], Awaitable[None]],
        parked: Callable[[Incoming, HeadwaterError], None],
        before_deciding: Callable[[Sequence[CommandSent]], Awaitable[None]] | None = None,
        ahead_max_ms: int = AHEAD_MAX_MS,
    ) -> None:
        self._before_deciding = before_deciding
        self._ahead_max_ms, self._is_ahead = ahead_max_ms, False
        self._driver = driver
        self._log = workflow_log
        self._clock = clock
        self._take = take_over
        self._before_giving_up = before_giving_up
        self._given_up = given_up
        self._after_giving_up = after_giving_up
        self._parked = parked
        self._readings: dict[int, _Reading] = {}
        # No pause: reading goes on meanwhile, and what it has read is not to wait.
        self._ends = Retrying(
            log,
            "timers wait, as the end of the commands cannot be read",
            sleep=lambda _: asyncio.sleep(0),
        )
        self._waiting = Waiting()
        self._takeovers: dict[int, asyncio.Task[None]] = {}
        #: The consumer's assignment stays what it was until another comes: others may have these by
        #: then, so between the two there are none.
        self._assigned: frozenset[int] = frozenset()
        self._options = {
            **cluster.options(),
            "group_id": GROUP,
            "group_instance_id": member,
            "client_id": name,
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "session_timeout_ms": _SESSION_MS,
            "heartbeat_interval_ms": _SESSION_MS // 4,
            "fetch_max_wait_ms": _FETCH_WAIT_MS,
            "metadata_max_age_ms": _METADATA_AGE_MS,
        }
        self._consumer: AIOKafkaConsumer

    async def start(self) -> None:
        """Joins the group, waiting for Kafka."""
        await Retrying(log, "waiting for Kafka").until_done(self._join, (KafkaError, OSError))

    async def _join(self) -> None:
        self._consumer = AIOKafkaConsumer(**self._options)
        self._consumer.subscribe([WORKFLOW_COMMANDS], listener=_Listener(self))
        await started(self._consumer)

    async def stop(self) -> None:
        """Leaves the group."""
        takeovers = list(self._takeovers.values())
        self._takeovers.clear()
        for task in takeovers:
            task.cancel()
        # They read, and close what they read with.
        await asyncio.gather(*takeovers, return_exceptions=True)
        with contextlib.suppress(KafkaError, IllegalStateError):
            await self.commit()
        await self._consumer.stop()

    # -- commands

    async def run(self) -> None:
        """Fetches commands until it is cancelled.

        Errors: MemberFenced.
        """
        reading = Retrying(log, "commands cannot be read")
        while True:
            self._hold_back()
            try:
                fetched = await self._consumer.getmany(
                    timeout_ms=_POLL_MS, max_records=_COMMANDS_MAX
                )
            except MemberFenced:
                raise
            except (KafkaError, OSError) as error:
                await reading.failed(error)
                continue
            reading.succeeded()
            await self._read(fetched)
            for line in self._waiting.due(self._clock()):
                log.warning("%s", line)
            await self._note_positions()
            await self._look_ahead()
            self._driver.wake_up()

    async def _read(self, fetched: Mapping[TopicPartition, Sequence[Incoming]]) -> None:
        read = [
            (partition, self._decoded(partition, records))
            for where, records in fetched.items()
            if (partition := self._driver.partitions.get(where.partition)) is not None
        ]
        if self._before_deciding is not None and read:
            await self._before_deciding([sent for _, some in read for _, sent in some])
        for partition, commands in read:
            # One that was given up meanwhile is read again by whoever takes it over.
            if self._driver.drives(partition):
                partition.commands.extend(commands)

    def _hold_back(self) -> None:
        """Fetch nothing more of partitions in which too many commands wait to be decided."""
        for number, partition in self._driver.partitions.items():
            waits = len(partition.commands)
            reading = self._readings[number]
            if not waits:
                reading.waiting_bytes = 0
            too_many = waits >= _UNDECIDED_MAX or reading.waiting_bytes >= _UNDECIDED_BYTES
            if too_many == reading.held_back or number in self._waiting:
                continue
            with contextlib.suppress(IllegalStateError):
                if too_many:
                    self._consumer.pause(_commands(number))
                else:
                    self._consumer.resume(_commands(number))
                reading.held_back = too_many

    def _decoded(
        self, partition: Partition, records: Sequence[Incoming]
    ) -> list[tuple[int, CommandSent]]:
        commands: list[tuple[int, CommandSent]] = []
        if partition.number in self._waiting:
            return commands
        known, newer = readable(records)
        if newer is not None:
            # Instances go on with what they have; time stands still for them, as behind every
            # command that was not read (see `_look_ahead`).
            self._waiting.begin(partition.number, why_waits(newer))
            self._consumer.pause(_commands(partition.number))
            self._consumer.seek(_commands(partition.number), newer.offset)
        reading = self._readings[partition.number]
        reading.waiting_bytes += sum(len(record.value or b"") for record in known)
        for record in known:
            try:
                commands.append((record.offset, decode(record.value, CommandSent)))
            except (UndecodableRecord, UnknownSchema) as error:
                log.error("a command is parked as a dead letter: %s", error)  # noqa: TRY400
                self._parked(record, error)
        return commands

    async def _note_positions(self) -> None:
        """Takes note of how far each partition was read: past its last record, if it has any."""
        for number, partition in list(self._driver.partitions.items()):
            reading = self._readings[number]
            with contextlib.suppress(IllegalStateError):
                reading.fetched = await self._consumer.position(_commands(number))
            if reading.ahead is not None and reading.fetched >= reading.ahead[1]:
                partition.reach(reading.ahead[0])
                reading.ahead = None

    async def _look_ahead(self) -> None:
        """Asks where the commands end, for partitions in which something is due.

        Time moves nothing beyond `reached_ms`: an event that was sent before the end of a wait, and
        lies unread in the topic, has to be seen before the wait is said to have ended without it.
        What was fetched does not show it: an answer may be as old as its request, and this process
        may have been suspended in between.
        """
        now_ms = self._clock()
        due = [
            partition
            for number, partition in self._driver.partitions.items()
            if self._readings[number].ahead is None
            and (partition.owner.next_due_ms() or now_ms + 1) <= now_ms
        ]
        if not due or await self._clock_is_ahead():
            return
        try:
            async with asyncio.timeout(_END_S):
                ends = await self._consumer.end_offsets(
                    [_commands(each.number) for each in due if self._has_leader(each.number)]
                )
        except (KafkaError, OSError) as error:  # also TimeoutError
            await self._ends.failed(error)
            return
        self._ends.succeeded()
        for partition in due:
            reading, end = self._readings[partition.number], ends.get(_commands(partition.number))
            if end is None:
                continue
            if reading.fetched >= end:
                partition.reach(now_ms)
            else:
                reading.ahead = now_ms, end

    async def _clock_is_ahead(self) -> bool:
        """Whether our clock is further ahead of the broker's than it may be: then no time comes.

        What was seen of the broker's may be old, and this machine may have slept since: it is
        asked again before anybody is told.
        """
        known = self._log.broker_clock
        if known.is_doubtful(self._ahead_max_ms):
            try:
                await self._log.ask_the_time()
            except BrokerUnavailable as error:
                log.warning("the broker does not tell its time: %s", error)
        ahead_ms = known.ahead_ms()
        was, self._is_ahead = self._is_ahead, ahead_ms > self._ahead_max_ms
        if self._is_ahead and not was:
            log.error(
                "the clock of this machine is %.0f s ahead of Kafka's: no timer, schedule or "
                "timeout of a workflow comes due here until it is right, or ahead by less than "
                "%.0f s (HEADWATER_MAX_CLOCK_AHEAD_S)",
                *(ahead_ms / 1_000, self._ahead_max_ms / 1_000),
            )
        elif was and not self._is_ahead:
            log.info("the clock of this machine is right again: what is due goes on")
        return self._is_ahead

    def _has_leader(self, number: int) -> bool:
        """Whether the commands of a partition have one: aiokafka would wait for it, 40 s long."""
        cluster = self._consumer._client.cluster  # noqa: SLF001 (there is no other way to ask)
        return cluster.leader_for_partition(_commands(number)) not in {None, -1}

    async def commit(self) -> None:
        """Commits to the group up to where commands have their replies; only takeovers go by it."""
        offsets = {
            _commands(number): partition.replied
            for number, partition in self._driver.partitions.items()
            if partition.replied > 0
        }
        if offsets:
            with contextlib.suppress(CommitFailedError):
                await self._consumer.commit(offsets)

    # -- coming and going

    def assigned(self, numbers: Iterable[int]) -> None:
        """Takes partitions over, in the background; these are all that are assigned now."""
        self._assigned = frozenset(numbers)
        self._begin_takeovers(self._assigned, 0.0)

    def _begin_takeovers(self, numbers: Iterable[int], pause_s: float) -> None:
        for number in numbers:
            if number not in self._driver.partitions and number not in self._takeovers:
                self._consumer.pause(_commands(number))
                self._takeovers[number] = asyncio.create_task(self._take_over(number, pause_s))

    async def revoked(self, numbers: Iterable[int]) -> None:
        """Gives partitions up, when what is under way has ended."""
        gone = set(numbers)
        self._assigned = frozenset()
        for number in gone & self._takeovers.keys():
            self._takeovers.pop(number).cancel()
        await self._before_giving_up(gone)
        with contextlib.suppress(KafkaError, IllegalStateError):
            await self.commit()
        for number in gone:
            self._drop(number)
        await self._after_giving_up()

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

    def _drop(self, number: int) -> None:
        self._waiting.end(number)
        self._log.release(number)
        partition = self._driver.give_up(number)
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
        where = _commands(number)
        committed = await self._consumer.committed(where)
        partition = await self._take(number, committed or 0)
        if not self._takes_over(number):
            self._given_up(partition)
            return
        try:
            self._consumer.seek(where, partition.replied)
            self._consumer.resume(where)
        except BaseException:
            self._given_up(partition)
            raise
        self._takeovers.pop(number, None)
        self._readings[number] = _Reading()
        self._driver.take_on(partition)


class _Listener(ConsumerRebalanceListener):
    def __init__(self, ownership: Ownership) -> None:
        self._ownership = ownership

    @override
    async def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        await self._ownership.revoked(where.partition for where in revoked)

    @override
    async def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        self._ownership.assigned(where.partition for where in assigned)


def _commands(number: int) -> TopicPartition:
    return TopicPartition(WORKFLOW_COMMANDS, number)
