"""Sending commands to workflows and hearing what became of them.

Every command has exactly one outcome in the log, and its owner sends that to the partition of
`workflow-replies` that the command names. A client listens to one partition, from before its first
command on, without a consumer group: so no broker has to remember it, and a client that is gone
leaves nothing behind. Clients may share a partition; each knows its own commands by their ids.

Commands that are sent while an append is under way are appended together by the next one.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from headwater.schemas.codec import decode, encode
from headwater.schemas.errors import BrokerUnavailable, Disposition, HeadwaterError
from headwater.schemas.history import Command, CommandSent, ReplySent, instance_key
from headwater.schemas.topics import WORKFLOW_COMMANDS, WORKFLOW_REPLIES
from headwater.streams.kafka.appender import Appender, Sent
from headwater.streams.kafka.records import Incoming, Outgoing, partition_of

log = logging.getLogger(__name__)

#: Commands of one append. More would only make the first of them wait.
_GROUP_RECORDS: Final = 500
#: What a command waits for others to be appended with: less than an append takes.
_LINGER_S: Final = 0.001
#: While one group is with the broker the next is made ready; a third would only wait behind it.
_GROUPS_IN_FLIGHT: Final = 2
_RECONNECT_S: Final = 0.5
_POLL_MS: Final = 1_000
#: How long a producer may take to end once an append has failed.
_STOP_S: Final = 5.0


class OutcomeUnknown(HeadwaterError):
    """Commands are in the log, or on their way there, and what became of them was not heard.

    `command_ids` are those without a reply; `known` has the replies to others sent with them.
    """

    disposition = Disposition.RETRY
    code = "outcome_unknown"

    def __init__(
        self,
        message: str,
        command_ids: Iterable[str] = (),
        known: Mapping[str, ReplySent] | None = None,
    ) -> None:
        super().__init__(message)
        self.command_ids = tuple(command_ids)
        self.known = dict(known or {})


class Addressed(msgspec.Struct, frozen=True):
    """A command and whom it is for; without an id of its own it is given one."""

    workflow: str
    instance_id: str
    command: Command
    command_id: str | None = None


class _Awaited:
    """A command whose outcome somebody waits for."""

    __slots__ = ("outcome", "record", "waiters")

    def __init__(self, record: Outgoing) -> None:
        self.record = record
        self.outcome: asyncio.Future[ReplySent] = asyncio.get_running_loop().create_future()
        self.waiters = 0

    def fail(self, error: BrokerUnavailable) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(error)
            self.outcome.exception()  # Heard, also if nobody waits any more.


class WorkflowClient:
    """The topics `workflow-commands` and `workflow-replies`, for those who want something done."""

    def __init__(
        self,
        *,
        bootstrap: str,
        client_id: str,
        timeout_s: float,
        clock: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        self._bootstrap = bootstrap
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._clock = clock
        self._new_id = new_id
        self._appender = Appender(bootstrap=bootstrap, client_id=client_id)
        self._partitions = 0
        self._reply_to = -1
        #: The next reply to read; None before the first connection, which begins at the end.
        self._next: int | None = None
        self._awaited: dict[str, _Awaited] = {}
        self._queue: list[_Awaited] = []
        self._wake = asyncio.Event()
        self._background: list[asyncio.Task[None]] = []
        self.ready = False

    async def start(self) -> None:
        """Starts in the background; Kafka may be down, now or later."""
        self._background = [
            asyncio.create_task(self._listen(), name="listen to replies"),
            asyncio.create_task(self._append_groups(), name="append commands"),
        ]

    async def stop(self) -> None:
        """Ends the background work and disconnects; who waits still is told BrokerUnavailable."""
        self.ready = False
        for running in self._background:
            running.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        for awaited in self._awaited.values():
            awaited.fail(BrokerUnavailable("expected a reply, found that this client was stopped"))
        await self._appender.stop(_STOP_S)

    async def send(
        self, workflow: str, instance_id: str, command: Command, *, command_id: str | None = None
    ) -> ReplySent:
        """Sends a command and returns its outcome, which may be a refusal.

        Errors: OutcomeUnknown, BrokerUnavailable; the command may be in the log all the same, and
                be carried out. Sending it once more is one more command.
        """
        (reply,) = await self.send_many([Addressed(workflow, instance_id, command, command_id)])
        return reply

    async def send_many(self, commands: Sequence[Addressed]) -> list[ReplySent]:
        """Sends commands together and returns their outcomes, in the order of the commands.

        Commands to one instance are carried out in this order, also over several calls that
        overlap. A command with the id of one that is awaited already is that one.
        Errors: as `send`, when it is so for any of them.
        """
        if not self.ready:
            raise BrokerUnavailable(f"expected Kafka at {self._bootstrap}, found no connection yet")
        if not commands:
            return []
        awaited: list[tuple[str, _Awaited]] = []
        try:
            awaited.extend(self._enter(one) for one in commands)
            futures = [one.outcome for _, one in awaited]
            _, missing = await asyncio.wait(futures, timeout=self._timeout_s)
            if missing:
                raise self._unknown(awaited)
            return [future.result() for future in futures]
        finally:
            for command_id, one in awaited:
                one.waiters -= 1
                if not one.waiters:
                    self._awaited.pop(command_id, None)

    def _enter(self, one: Addressed) -> tuple[str, _Awaited]:
        command_id = one.command_id or self._new_id()
        awaited = self._awaited.get(command_id)
        if awaited is None:
            sent = CommandSent(
                command_id=command_id,
                workflow=one.workflow,
                instance_id=one.instance_id,
                sent_at_ms=self._clock(),
                reply_to=self._reply_to,
                command=one.command,
            )
            key = instance_key(one.workflow, one.instance_id).encode()
            partition = partition_of(key, self._partitions)
            awaited = _Awaited(Outgoing(WORKFLOW_COMMANDS, partition, key, encode(sent)))
            self._awaited[command_id] = awaited
            self._queue.append(awaited)
            self._wake.set()
        awaited.waiters += 1
        return command_id, awaited

    def _unknown(self, awaited: Sequence[tuple[str, _Awaited]]) -> OutcomeUnknown:
        unknown = [command_id for command_id, one in awaited if not one.outcome.done()]
        known = {
            command_id: one.outcome.result()
            for command_id, one in awaited
            if one.outcome.done() and one.outcome.exception() is None
        }
        return OutcomeUnknown(
            f"expected a reply to {len(unknown)} of {len(awaited)} commands within "
            f"{self._timeout_s} s, found none for {unknown[0]}; usual cause: no worker runs, or "
            "none yet for its partition. The command stays in the log and may still be carried out",
            unknown,
            known,
        )

    async def _append_groups(self) -> None:
        """Appends what is queued, one group while another is on its way to the broker and back."""
        under_way: set[asyncio.Task[bool]] = set()
        while True:
            await self._wake.wait()
            await asyncio.sleep(_LINGER_S)
            while len(under_way) >= _GROUPS_IN_FLIGHT:
                done, under_way = await asyncio.wait(under_way, return_when="FIRST_COMPLETED")
                if not all(group.result() for group in done):
                    await asyncio.gather(*under_way)
                    under_way.clear()
                    await self._appender.stop(_STOP_S)
            group, self._queue = self._queue[:_GROUP_RECORDS], self._queue[_GROUP_RECORDS:]
            if not self._queue:
                self._wake.clear()
            try:
                # Here and not in a task: so groups go out in the order of the commands.
                sent = await self._appender.send([awaited.record for awaited in group])
            except BrokerUnavailable as error:
                _fail(group, error)
                await self._appender.stop(_STOP_S)
                continue
            under_way.add(asyncio.create_task(self._acknowledged(group, sent)))

    async def _acknowledged(self, group: Sequence[_Awaited], sent: Sequence[Sent]) -> bool:
        """Ends the wait of a group that did not get into the log; tells whether it did."""
        try:
            await self._appender.acknowledged(sent)
        except BrokerUnavailable as error:
            _fail(group, error)
            return False
        return True

    async def _listen(self) -> None:
        told = False
        while True:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self._bootstrap,
                enable_auto_commit=False,
                auto_offset_reset="latest",
            )
            try:
                await consumer.start()
                where = await self._find_partition()
                await self._follow(consumer, where)
            except (KafkaError, OSError, BrokerUnavailable) as error:
                if not told:
                    log.warning("waiting for Kafka: %s", error)
                told = True
            finally:
                self.ready = False
                await consumer.stop()
            await asyncio.sleep(_RECONNECT_S)

    async def _find_partition(self) -> TopicPartition:
        self._partitions = await self._appender.partitions(WORKFLOW_COMMANDS)
        count = await self._appender.partitions(WORKFLOW_REPLIES)
        self._reply_to = partition_of(self._client_id.encode(), count)
        return TopicPartition(WORKFLOW_REPLIES, self._reply_to)

    async def _follow(self, consumer: AIOKafkaConsumer, where: TopicPartition) -> None:
        consumer.assign([where])
        if self._next is None:
            await consumer.seek_to_end(where)
        else:
            consumer.seek(where, self._next)
        # Only now: a reply to a command sent before would be missed.
        self._next = await consumer.position(where)
        self.ready = True
        while True:
            for record in (await consumer.getmany(timeout_ms=_POLL_MS)).get(where, ()):
                self._hear(record)
                self._next = record.offset + 1

    def _hear(self, record: Incoming) -> None:
        """Ends the wait for an outcome; replies that nobody waits for any more are ignored."""
        try:
            reply = decode(record.value, ReplySent)
        except HeadwaterError as error:
            log.warning("reply at %s/%s: %s", record.partition, record.offset, error)
            return
        awaited = self._awaited.get(reply.command_id)
        if awaited is not None and not awaited.outcome.done():
            awaited.outcome.set_result(reply)


def _fail(group: Iterable[_Awaited], error: BrokerUnavailable) -> None:
    log.warning("%s", error)
    for awaited in group:
        awaited.fail(error)
