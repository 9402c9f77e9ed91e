"""Reads the commands of a worker's partitions, and determines how far timers may advance."""

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, NoReturn, TypeAlias

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError, OffsetOutOfRangeError

from headwater.monitoring.catalog import COMMANDS_WAITING_BYTES, STAGE_SECONDS
from headwater.schemas.codec import decode
from headwater.schemas.errors import HeadwaterError, UndecodableRecord, UnknownSchema
from headwater.schemas.history import NO_CAUSE, NO_LEADER_EPOCH, CommandSent, LeaderEpochNoted
from headwater.schemas.newer import newer_schema_message, readable
from headwater.schemas.topics import WORKFLOW_COMMANDS
from headwater.streams.engine.driver import Driver
from headwater.streams.engine.turns import Partition
from headwater.streams.kafka.broker_clock import BrokerClock
from headwater.streams.kafka.cluster import Cluster, start_consumer
from headwater.streams.kafka.idle_fetches import IDLE_FETCH_MS
from headwater.streams.kafka.records import Incoming
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.kafka.truncation import (
    UNKNOWN_END,
    leader_epoch_of,
    seek_with_epoch,
    truncation_before,
)
from headwater.streams.ownership.phases import OwnedPartitions, Phase

log = logging.getLogger(__name__)

#: Pause between two looks for timers that are due, while there are turns, which may set some. A
#: timer is late by that and by the time in which the broker tells the end of the commands.
_TIMERS_S: Final = 0.025
#: Longest pause. Clocks may be set.
_TIMERS_IDLE_S: Final = 1.0
_POLL_MS: Final = 1_000
_COMMANDS_MAX: Final = 2_000
#: Limits of undecided commands of a partition, and of their bytes, above which no more are fetched:
#: what a turn decides in a second, and little compared with the states of a partition.
_UNDECIDED_MAX: Final = 4_000
_UNDECIDED_BYTES: Final = 32 * 1024 * 1024
#: Longest wait for the end offsets of the commands. No commands are read meanwhile.
_END_S: Final = 2.0
#: Commands with their offsets.
_Commands: TypeAlias = list[tuple[int, CommandSent]]
#: Kafka's type of timestamps that are assigned by the broker, not by the producer.
_LOG_APPEND_TIME: Final = 1


@dataclass(slots=True)
class _Progress:
    """How far the commands of a partition were read.

    Attributes:
        fetched: Offset before which the driver has all commands.
        ahead: A time, and the end offset at that time or later; None if no timer is due.
    """

    fetched: int
    ahead: tuple[int, int] | None = None
    #: Bytes of the commands that were fetched since none were undecided.
    waiting_bytes: int = 0
    #: Whether fetching is paused until fewer are undecided.
    held_back: bool = False


class CommandHandling(NamedTuple):
    """How a worker handles the commands that were read.

    Attributes:
        clock: Clock of the worker's turns.
        parked: Called with commands that cannot be decoded.
        before_deciding: Awaited with commands before they are decided.
    """

    clock: BrokerClock
    parked: Callable[[Incoming, HeadwaterError], None]
    before_deciding: Callable[[Sequence[CommandSent]], Awaitable[None]] | None = None


class CommandReader:
    """A consumer without a group: the caller decides which partitions it reads, and from where.

    Args:
        cluster: The cluster.
        name: Client id, which appears in the broker's logs.
        driver: Receives the commands.
        handling: How commands are handled.
        partitions: Phases of the partitions. One with a record of a newer release waits.
        lost: Called with the number of a partition that can no longer be read, and the reason.
    """

    def __init__(
        self,
        *,
        cluster: Cluster,
        name: str,
        driver: Driver,
        handling: CommandHandling,
        partitions: OwnedPartitions,
        lost: Callable[[int, str], None],
    ) -> None:
        self._driver = driver
        self._clock, self._parked, self._before_deciding = handling
        self._partitions = partitions
        self._lost = lost
        self._progress: dict[int, _Progress] = {}
        # No pause, because reading continues meanwhile and its results must not wait.
        self._ends = Retrying(
            log,
            "timers wait, because the end of the commands cannot be read",
            sleep=lambda _: asyncio.sleep(0),
        )
        self._options = {
            **cluster.options(),
            "client_id": name,
            "enable_auto_commit": False,
            # `check` decides what follows a loss.
            "auto_offset_reset": "none",
            "fetch_max_wait_ms": IDLE_FETCH_MS,
        }
        self._consumer: AIOKafkaConsumer
        #: Set after each turn.
        self._turned = asyncio.Event()

    async def start(self) -> None:
        """Connect, waiting for Kafka."""
        retrying = Retrying(log, "waiting for Kafka")
        self._consumer = await retrying.until_done(self._connected, (KafkaError, OSError))
        # aiokafka would request the metadata of all topics of the cluster, again and again.
        await self._consumer._client.set_topics([WORKFLOW_COMMANDS])  # noqa: SLF001

    async def _connected(self) -> AIOKafkaConsumer:
        return await start_consumer(AIOKafkaConsumer(**self._options))

    async def stop(self) -> None:
        """Disconnect."""
        await self._consumer.stop()

    # -- partitions

    def assign(self, numbers: Collection[int]) -> None:
        """Replace the partitions that may be read. None is read before `begin`."""
        if not numbers:  # aiokafka would request all topics of the cluster
            self._consumer.pause(*self._consumer.assignment())
            return
        assigned = [_commands(number) for number in sorted(numbers)]
        self._consumer.assign(assigned)
        self._consumer.pause(*assigned)
        for partition in assigned:
            self._consumer.seek(partition, 0)  # Otherwise aiokafka looks up an offset of its group.

    async def first_offset(self, number: int) -> int:
        """Return the first offset of the commands of a partition, waiting for its leader.

        Raises:
            KafkaError: The broker does not respond.
        """
        partition = _commands(number)
        first: int = (await self._consumer.beginning_offsets([partition]))[partition]
        return first

    async def check(self, partition: Partition, first: int) -> int:
        """Compare the commands of a partition with what its owner knows of them.

        If the broker lost commands that have outcomes, the owner records it, so that new commands
        at their offsets are executed.

        Args:
            partition: The restored partition.
            first: The first offset of its commands.

        Returns:
            The offset from which to read.

        Raises:
            KafkaError: The broker does not respond.
        """
        where, claims = _commands(partition.number), partition.owner.claims
        if claims.cause != NO_CAUSE and claims.leader_epoch != NO_LEADER_EPOCH:
            known = (claims.cause + 1, claims.leader_epoch)
            end = await truncation_before(self._consumer, where, *known)
            if end == UNKNOWN_END:
                await self._begin_another_log(partition)
            elif end is not None:
                log.error(
                    "the broker has lost commands: %s/%d from offset %d to %d; their outcomes "
                    "stay valid, and new commands at their offsets are executed",
                    *(*where, end, claims.cause),
                )
                partition.lose_commands(end, claims.leader_epoch, partition.now_ms)
        read = max(claims.cause + 1, partition.replied)
        if read < first:
            log.warning(
                "%s/%d from offset %d to %d was deleted before it was read: it is older than the "
                "topic's retention",
                *(*where, read, first - 1),
            )
        return max(partition.replied, first)

    async def _begin_another_log(self, partition: Partition) -> None:
        """Continue in a log whose leader epochs do not show where its predecessor was cut."""
        where, claims = _commands(partition.number), partition.owner.claims
        end = (await self._consumer.end_offsets([where]))[where]
        first = min(end, claims.cause + 1)
        log.error(
            "%s/%d is another log than the one whose commands up to offset %d have outcomes, or "
            "an older copy of it: commands that were appended to it before offset %d since then "
            "are not executed; send them again",
            *(*where, claims.cause, first),
        )
        partition.lose_commands(first, NO_LEADER_EPOCH, partition.now_ms)

    def begin(self, number: int, offset: int, leader_epoch: int) -> None:
        """Read a partition from an offset.

        Args:
            number: The partition.
            offset: First offset to read.
            leader_epoch: Leader epoch of the commands before, if known.

        Raises:
            ValueError: There is no such offset.
            IllegalStateError: The partition is not assigned.
        """
        seek_with_epoch(self._consumer, _commands(number), offset, leader_epoch)
        self._consumer.resume(_commands(number))
        self._progress[number] = _Progress(fetched=offset)

    def pause(self, number: int) -> None:
        """Stop reading a partition."""
        with contextlib.suppress(IllegalStateError):
            self._consumer.pause(_commands(number))

    # -- reading

    async def fetch_commands(self) -> NoReturn:
        """Give commands to the driver until it is cancelled."""
        reading = Retrying(log, "commands cannot be read")
        while True:
            self._hold_back()
            try:
                fetched = await self._consumer.getmany(
                    timeout_ms=_POLL_MS, max_records=_COMMANDS_MAX
                )
            except OffsetOutOfRangeError as error:
                for partition in error.args[0]:
                    self.pause(partition.partition)
                    self._lost(partition.partition, str(error))
                continue
            except (KafkaError, OSError) as error:
                await reading.failed(error)
                continue
            reading.succeeded()
            await self._read(fetched)
            await self._note_positions(fetched)
            self._driver.wake_up()

    async def watch_timers(self) -> NoReturn:
        """Let timers of partitions advance until it is cancelled, also while a fetch waits."""
        while True:
            self._turned.clear()
            self._hold_back()
            for line in self._partitions.waiting.due(self._clock.now_ms()):
                log.warning("%s", line)
            if due := self._due():
                await self._look_ahead(due)
                self._driver.wake_up()
            await asyncio.sleep(_TIMERS_S if due else min(_TIMERS_S, self._until_due_s()))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._until_due_s()):
                    await self._turned.wait()

    def measure(self) -> None:
        """Set the metric of the bytes that wait."""
        COMMANDS_WAITING_BYTES.replace(
            {
                (str(number),): progress.waiting_bytes
                for number, progress in self._progress.items()
                if number in self._driver.partitions
            }
        )

    def note_turn(self) -> None:
        """Record that there was a turn: it may have set timers, and decided commands."""
        self._turned.set()

    def _until_due_s(self) -> float:
        """Return how long no timer is due, unless a turn sets another."""
        now_ms = self._clock.now_ms()
        due_ms = [
            due_ms
            for number, partition in self._driver.partitions.items()
            if self._progress[number].ahead is None
            and (due_ms := partition.owner.next_due_ms()) is not None
        ]
        return min(_TIMERS_IDLE_S, (min(due_ms, default=math.inf) - now_ms) / 1_000)

    async def _read(self, fetched: Mapping[TopicPartition, Sequence[Incoming]]) -> None:
        read = [
            (
                partition,
                self._decoded(partition, records),
                leader_epoch_of(self._consumer, topic_partition),
            )
            for topic_partition, records in fetched.items()
            if (partition := self._driver.partitions.get(topic_partition.partition)) is not None
        ]
        if self._before_deciding is not None and read:
            await self._before_deciding([sent for _, commands, _ in read for _, sent in commands])
        _observe_wait(read, self._clock.now_ms())
        for partition, commands, leader_epoch in read:
            # A partition that was released meanwhile is read again by its next owner.
            if self._driver.drives(partition):
                if leader_epoch > partition.owner.claims.leader_epoch:
                    noted = LeaderEpochNoted(leader_epoch)
                    partition.owner.note_leader(noted, partition.now_ms)
                partition.commands.extend(commands)

    def _hold_back(self) -> None:
        """Pause partitions with too many undecided commands, and resume others."""
        for number, partition in self._driver.partitions.items():
            undecided = len(partition.commands)
            progress = self._progress[number]
            if not undecided:
                progress.waiting_bytes = 0
            too_many = undecided >= _UNDECIDED_MAX or progress.waiting_bytes >= _UNDECIDED_BYTES
            if too_many == progress.held_back or self._waits(number):
                continue
            with contextlib.suppress(IllegalStateError):
                if too_many:
                    self._consumer.pause(_commands(number))
                else:
                    self._consumer.resume(_commands(number))
                progress.held_back = too_many

    def _waits(self, number: int) -> bool:
        return self._partitions.phase(number) is Phase.WAITING

    def _decoded(self, partition: Partition, records: Sequence[Incoming]) -> _Commands:
        commands: _Commands = []
        if self._waits(partition.number):
            return commands
        known, newer = readable(records)
        if newer is not None:
            # Instances continue with the commands before. Their timers do not fire, as for every
            # command that was not read (see `_look_ahead`).
            self._partitions.block(partition.number, newer_schema_message(newer))
            self._consumer.pause(_commands(partition.number))
            self._consumer.seek(_commands(partition.number), newer.offset)
        progress = self._progress[partition.number]
        progress.waiting_bytes += sum(len(record.value or b"") for record in known)
        for record in known:
            try:
                commands.append((record.offset, self._command_of(record)))
            except (UndecodableRecord, UnknownSchema) as error:
                log.error("a command is parked as a dead letter: %s", error)  # noqa: TRY400
                self._parked(record, error)
        return commands

    def _command_of(self, record: Incoming) -> CommandSent:
        """Return the command of a record.

        If the clock of its sender was ahead, the time of the append counts as its sending time.
        """
        sent, appended_ms = decode(record.value, CommandSent), record.timestamp
        if sent.sent_at_ms <= appended_ms + self._clock.skew_max_ms:
            return sent
        if record.timestamp_type != _LOG_APPEND_TIME:
            return sent
        return msgspec.structs.replace(sent, sent_at_ms=appended_ms)

    async def _note_positions(self, fetched: Collection[TopicPartition]) -> None:
        """Record how far partitions were read whose commands the driver has now.

        Only here: while a fetch is under way, aiokafka's position may include commands that it
        returns, and that the driver does not have yet.
        """
        for number, partition in list(self._driver.partitions.items()):
            progress = self._progress[number]
            if progress.ahead is None and _commands(number) not in fetched:
                continue
            with contextlib.suppress(IllegalStateError):
                progress.fetched = await self._consumer.position(_commands(number))
            if progress.ahead is not None and progress.fetched >= progress.ahead[1]:
                partition.reach(progress.ahead[0])
                progress.ahead = None

    def _due(self) -> list[Partition]:
        """Return the partitions in which a timer is due that are not being read up to an end."""
        now_ms = self._clock.now_ms()
        return [
            partition
            for number, partition in self._driver.partitions.items()
            if self._progress[number].ahead is None
            and (partition.owner.next_due_ms() or now_ms + 1) <= now_ms
        ]

    async def _look_ahead(self, due: Sequence[Partition]) -> None:
        """Fetch the end offsets of partitions in which a timer is due.

        Timers do not fire beyond `reached_ms`: an event that was sent before the end of a wait, and
        is still unread in the topic, must be read before the wait times out. The latest fetch does
        not prove that there is none: its response may be as old as its request, if this process was
        suspended in between.
        """
        if not due:
            return
        now_ms = self._clock.now_ms()
        try:
            async with asyncio.timeout(_END_S):
                ends = await self._consumer.end_offsets(
                    [
                        _commands(partition.number)
                        for partition in due
                        if self._has_leader(partition.number)
                    ]
                )
        except (KafkaError, OSError) as error:  # also TimeoutError
            await self._ends.failed(error)
            return
        self._ends.succeeded()
        for partition in due:
            progress, end = self._progress[partition.number], ends.get(_commands(partition.number))
            if end is None:
                continue
            if progress.fetched >= end:
                partition.reach(now_ms)
            else:
                progress.ahead = now_ms, end

    def _has_leader(self, number: int) -> bool:
        """Whether a partition has a leader. aiokafka would wait up to 40 s for one."""
        cluster = self._consumer._client.cluster  # noqa: SLF001 (there is no public way)
        return cluster.leader_for_partition(_commands(number)) not in {None, -1}


def _observe_wait(read: Iterable[tuple[Partition, _Commands, int]], now_ms: int) -> None:
    """Measure how long the oldest commands of every fetch have waited."""
    for _, commands, _ in read:
        if commands:
            waited_s = max(0, now_ms - commands[0][1].sent_at_ms) / 1_000
            STAGE_SECONDS.observe(waited_s, ("workflow wait",), len(commands))


def _commands(number: int) -> TopicPartition:
    return TopicPartition(WORKFLOW_COMMANDS, number)
