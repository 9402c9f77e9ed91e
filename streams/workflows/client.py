"""Sending commands to workflows, and waiting for their outcomes.

Every command has exactly one outcome in the log, and its owner sends that to the partition of
`workflow-replies` that the command names. A client listens to one partition, from before its first
command on, without a consumer group: so no broker has to remember it, and a client that is gone
leaves nothing behind. Clients may share a partition; each knows its own commands by their ids.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NoReturn, Protocol

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from headwater.schemas.codec import decode, encode
from headwater.schemas.errors import BrokerUnavailable, Disposition, HeadwaterError
from headwater.schemas.history import Command, CommandSent, ReplySent, instance_key
from headwater.schemas.topics import WORKFLOW_COMMANDS, WORKFLOW_REPLIES
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.group_commit import GroupCommit
from headwater.streams.kafka.producers import Producers
from headwater.streams.kafka.records import Incoming, Outgoing, partition_of
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.workflows.presence import RESTARTED_WITHIN_S, Presence

log = logging.getLogger(__name__)

_POLL_MS: Final = 1_000
#: When one who waits looks first, while workers are missed already.
_LOOK_AT_ONCE_S: Final = 0.1
#: How often one who waits looks whether there is a worker to wait for.
_LOOK_EVERY_S: Final = 1.0
#: How long listening may take to end.
_STOP_S: Final = 5.0


class OutcomeUnknown(HeadwaterError):
    """Commands are in the log, or on their way there, and their outcomes did not arrive in time.

    `command_ids` are those without a reply; `known` has the replies to others sent with them.
    `worked` is False where it is known that no worker runs.
    """

    disposition = Disposition.RETRY
    code = "outcome_unknown"

    def __init__(
        self,
        message: str,
        command_ids: Iterable[str] = (),
        known: Mapping[str, ReplySent] | None = None,
        *,
        worked: bool = True,
    ) -> None:
        super().__init__(message)
        self.worked = worked
        self.command_ids = tuple(command_ids)
        self.known = dict(known or {})


class Addressed(msgspec.Struct, frozen=True):
    """A command and whom it is for; without an id of its own it is given one."""

    workflow: str
    instance_id: str
    command: Command
    command_id: str | None = None


class Commands(Protocol):
    """Whatever carries commands and brings their outcomes.

    Contract: `send_many` returns outcomes in the order of the commands. It raises OutcomeUnknown
    or BrokerUnavailable if that was not so in time; then commands may be carried out all the same.
    It raises Overloaded if none of them was sent.
    """

    @property
    def ready(self) -> bool:
        """Whether Kafka is connected."""

    async def start(self) -> None:
        """Begins to connect."""

    async def stop(self) -> None:
        """Ends; those who still wait get BrokerUnavailable."""

    async def send_many(self, commands: Sequence[Addressed]) -> list[ReplySent]:
        """Sends commands together and returns their outcomes, refusals among them."""


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
            self.outcome.exception()  # Retrieved, also if nobody waits any more.


class WorkflowClient:
    """The topics `workflow-commands` and `workflow-replies`, for those who want something done."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        client_id: str,
        timeout_s: float,
        clock: Callable[[], int],
        new_id: Callable[[], str],
        restarted_within_s: float = RESTARTED_WITHIN_S,
    ) -> None:
        self._cluster = cluster
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._clock = clock
        self._new_id = new_id
        self._producers = Producers(cluster, client_id)
        self._presence = Presence(cluster, restarted_within_s=restarted_within_s)
        self._commit = GroupCommit(self._producers, WORKFLOW_COMMANDS, settled=_settled)
        self._reply_to = -1
        #: The next reply to read; None before the first connection, which begins at the end.
        self._next: int | None = None
        self._awaited: dict[str, _Awaited] = {}
        self._listening: asyncio.Task[None] | None = None
        self._hears = False

    @property
    def ready(self) -> bool:
        """Whether Kafka is connected."""
        return self._hears and self._commit.ready

    async def start(self) -> None:
        """Starts in the background; Kafka may be down, now or later."""
        await self._commit.start()
        self._listening = asyncio.create_task(self._listen(), name="listen to replies")

    async def stop(self) -> None:
        """Ends within seconds; those who still wait get BrokerUnavailable."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening], timeout=_STOP_S)
        await self._presence.stop()
        await self._commit.stop()
        for awaited in self._awaited.values():
            awaited.fail(BrokerUnavailable("expected a reply, found that this client was stopped"))

    async def send(
        self, workflow: str, instance_id: str, command: Command, *, command_id: str | None = None
    ) -> ReplySent:
        """Sends a command and returns its outcome, which may be a refusal.

        Errors: Overloaded; nothing was sent. OutcomeUnknown, BrokerUnavailable; the command may be
                in the log all the same, and be carried out. Sending it once more is one more
                command.
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
            raise BrokerUnavailable(f"expected Kafka at {self._cluster}, found no connection yet")
        if not commands:
            return []
        awaited = self._enter(commands)
        try:
            worked = await self._wait(awaited)
            futures = [one.outcome for _, one in awaited]
            missing = [each for each in futures if not each.done()]
            if len(missing) == len(futures) and self._withdraw(awaited):
                raise BrokerUnavailable(
                    f"expected Kafka at {self._cluster} to take commands within "
                    f"{self._timeout_s} s, found that it stalls; they were not sent"
                )
            if missing:
                raise self._unknown(awaited, worked=worked)
            return [future.result() for future in futures]
        finally:
            self._leave(awaited)

    async def _wait(self, awaited: Sequence[tuple[str, _Awaited]]) -> bool:
        """Waits for outcomes, as long as there is time and a worker; returns whether one is."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._timeout_s
        missing = {one.outcome for _, one in awaited}
        look_in_s = _LOOK_AT_ONCE_S if self._presence.missed else _LOOK_EVERY_S
        while (left_s := deadline_s - loop.time()) > 0:
            _, missing = await asyncio.wait(missing, timeout=min(look_in_s, left_s))
            look_in_s = _LOOK_EVERY_S
            if not missing:
                break
            if not await self._presence.anybody(max(deadline_s - loop.time(), 0)):
                return False
        return True

    def _enter(self, commands: Sequence[Addressed]) -> list[tuple[str, _Awaited]]:
        """Queues commands, but for those that are awaited already."""
        awaited: list[tuple[str, _Awaited]] = []
        fresh: dict[str, _Awaited] = {}
        for one in commands:
            command_id = one.command_id or self._new_id()
            known = self._awaited.get(command_id) or fresh.get(command_id)
            if known is None:
                known = fresh[command_id] = _Awaited(self._record(command_id, one))
            awaited.append((command_id, known))
        self._commit.add(list(fresh.values()))
        self._awaited.update(fresh)
        for _, each in awaited:
            each.waiters += 1
        return awaited

    def _record(self, command_id: str, one: Addressed) -> Outgoing:
        sent = CommandSent(
            command_id=command_id,
            workflow=one.workflow,
            instance_id=one.instance_id,
            sent_at_ms=self._clock(),
            reply_to=self._reply_to,
            command=one.command,
        )
        key = instance_key(one.workflow, one.instance_id).encode()
        partition = partition_of(key, self._commit.partitions)
        return Outgoing(WORKFLOW_COMMANDS, partition, key, encode(sent))

    def _leave(self, awaited: Sequence[tuple[str, _Awaited]]) -> None:
        """Ends a wait; commands that nobody waits for any more are withdrawn if they can be."""
        for command_id, one in awaited:
            one.waiters -= 1
            if not one.waiters:
                self._awaited.pop(command_id, None)
                self._commit.withdraw(one)

    def _withdraw(self, awaited: Sequence[tuple[str, _Awaited]]) -> bool:
        """Takes commands back, if nobody else waits for them; returns whether none was sent."""
        return all(one.waiters == 1 and self._commit.withdraw(one) for _, one in awaited)

    def _unknown(self, awaited: Sequence[tuple[str, _Awaited]], *, worked: bool) -> OutcomeUnknown:
        unknown = [command_id for command_id, one in awaited if not one.outcome.done()]
        known = {
            command_id: one.outcome.result()
            for command_id, one in awaited
            if one.outcome.done() and one.outcome.exception() is None
        }
        if worked:
            why = (
                f"expected a reply to {len(unknown)} of {len(awaited)} commands within "
                f"{self._timeout_s} s, found none for {unknown[0]}; usual cause: the worker of its "
                "partition has just gone, or is far behind"
            )
        else:
            why = (
                f"expected a worker that carries out {unknown[0]}, found that none runs; start one "
                "with `headwater worker --app MODULE`"
            )
        stays = "The command stays in the log and may still be carried out"
        return OutcomeUnknown(f"{why}. {stays}", unknown, known, worked=worked)

    async def _listen(self) -> None:
        retrying = Retrying(log, "waiting for Kafka to listen to replies")
        while True:
            consumer = AIOKafkaConsumer(
                **self._cluster.options(),
                enable_auto_commit=False,
                auto_offset_reset="latest",
            )
            try:
                await consumer.start()
                where = await self._find_partition()
                retrying.succeeded()
                await self._follow(consumer, where)
            except (KafkaError, OSError, BrokerUnavailable) as error:
                failure = error
            finally:
                self._hears = False
                await consumer.stop()
            await retrying.failed(failure)

    async def _find_partition(self) -> TopicPartition:
        count = await self._producers.current.partitions(WORKFLOW_REPLIES)
        self._reply_to = partition_of(self._client_id.encode(), count)
        return TopicPartition(WORKFLOW_REPLIES, self._reply_to)

    async def _follow(self, consumer: AIOKafkaConsumer, where: TopicPartition) -> NoReturn:
        consumer.assign([where])
        if self._next is None:
            await consumer.seek_to_end(where)
        else:
            consumer.seek(where, self._next)
        # Only now: a reply to a command sent before would be missed.
        self._next = await consumer.position(where)
        self._hears = True
        while True:
            for record in (await consumer.getmany(timeout_ms=_POLL_MS)).get(where, ()):
                self._end_wait(record)
                self._next = record.offset + 1

    def _end_wait(self, record: Incoming) -> None:
        """Ends the wait for an outcome; replies that nobody waits for any more are ignored."""
        try:
            reply = decode(record.value, ReplySent)
        except HeadwaterError as error:
            log.warning("reply at %s/%s: %s", record.partition, record.offset, error)
            return
        awaited = self._awaited.get(reply.command_id)
        if awaited is not None and not awaited.outcome.done():
            awaited.outcome.set_result(reply)


def _settled(entries: Iterable[_Awaited], error: BrokerUnavailable | None) -> None:
    """Ends the wait for commands whose append failed; the others wait for their outcomes."""
    if error is not None:
        for awaited in entries:
            awaited.fail(error)
