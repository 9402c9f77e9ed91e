"""Client for workflow commands and their outcomes; it detects whether any worker runs.

Every command has exactly one outcome in the log. The owner sends it to the partition of
`workflow-replies` that the command names. A client consumes one such partition, from before its
first command, without a consumer group: brokers keep no state for it, and a client that exits
leaves nothing behind. Clients may share a partition; each knows its own commands by their ids.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Final, NoReturn

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import GroupCoordinatorNotAvailableError, KafkaError

from headwater.processors.trace_context import current_text
from headwater.schemas.codec import decode, encode
from headwater.schemas.errors import BrokerUnavailable, Disposition, HeadwaterError
from headwater.schemas.history import (
    ACTIVE_DEPLOYMENT,
    Command,
    CommandSent,
    MoveRun,
    ReplySent,
    instance_key,
)
from headwater.schemas.topics import WORKFLOW_COMMANDS, WORKFLOW_REPLIES
from headwater.streams.kafka.append_queues import GroupCommit
from headwater.streams.kafka.appender import Producers
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.idle_fetches import IDLE_FETCH_MS
from headwater.streams.kafka.records import Incoming, Outgoing, partition_of
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.workflows.ownership import GROUP

#: A workflow that does not exist, with an instance in every partition that does not exist.
_FENCE: Final = "headwater-fence"
_VALID_S: Final = 1.0
_ANSWER_MS: Final = 2_000
#: Time in which a restarted worker is back.
RESTARTED_WITHIN_S: Final = 3.0


class Presence:
    """The members of the workers' group.

    Concurrent callers share one query to Kafka, whose answer is valid for a second. A worker that
    is restarted is absent for a moment, so workers count as absent only after some seconds.
    Meanwhile the query is repeated every second, so that later callers need not wait as long.
    """

    def __init__(self, cluster: Cluster, *, restarted_within_s: float = RESTARTED_WITHIN_S) -> None:
        self._cluster = cluster
        self._restarted_within_s = restarted_within_s
        self._query: asyncio.Task[bool] | None = None
        self._queried_at_s = 0.0
        #: Since when all answers were that there are no members.
        self._absent_since_s: float | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def are_absent(self) -> bool:
        """Whether there was no worker at the last query."""
        return self._absent_since_s is not None

    async def has_workers(self, within_s: float) -> bool:
        """Return whether there may be a worker; True if Kafka does not respond in time."""
        now_s = asyncio.get_running_loop().time()
        if self._query is None or (self._query.done() and now_s - self._queried_at_s > _VALID_S):
            if now_s - self._queried_at_s > self._restarted_within_s:
                self._absent_since_s = None
            self._queried_at_s = now_s
            self._query = asyncio.create_task(self._query_group(), name="query workers")
        await asyncio.wait([self._query], timeout=within_s)
        if not self._query.done() or self._query.result():
            self._absent_since_s = None
            return True
        if self._absent_since_s is None:
            self._absent_since_s = now_s
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch(), name="watch for workers")
        return now_s - self._absent_since_s < self._restarted_within_s

    async def stop(self) -> None:
        """Stop, within seconds."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        if self._query is not None:
            await asyncio.wait([self._query])

    async def _watch(self) -> None:
        """Repeat the query while there are no workers."""
        while self.are_absent:
            await asyncio.sleep(_VALID_S)
            await self.has_workers(_ANSWER_MS / 1_000)

    async def _query_group(self) -> bool:
        admin = AIOKafkaAdminClient(**self._cluster.options(), request_timeout_ms=_ANSWER_MS)
        try:
            await admin.start()
            (description,) = await admin.describe_consumer_groups([GROUP])
        except GroupCoordinatorNotAvailableError:  # a cluster that has had no group yet
            return False
        except (KafkaError, OSError):
            return True
        finally:
            await admin.close()
        ((_, _, _, _, _, members, *_),) = description.groups  # type: ignore[attr-defined]
        return bool(members)


# -- client

log = logging.getLogger(__name__)

_POLL_MS: Final = 60_000
#: Interval until the first check for workers, if none was running at the last check.
_FIRST_CHECK_S: Final = 0.1
#: Interval between checks for workers while waiting.
_CHECK_S: Final = 1.0
#: Longest time to stop listening, in seconds.
_STOP_S: Final = 5.0


class OutcomeUnknown(HeadwaterError):
    """Commands were, or may have been, appended to the log, but no outcome arrived in time.

    Attributes:
        command_ids: Ids of the commands without a reply.
        known: Replies to other commands that were sent with them.
        has_worker: False if it is known that no worker runs.
    """

    disposition = Disposition.RETRY
    code = "outcome_unknown"

    def __init__(
        self,
        message: str,
        command_ids: Iterable[str] = (),
        known: Mapping[str, ReplySent] | None = None,
        *,
        has_worker: bool = True,
    ) -> None:
        super().__init__(message)
        self.has_worker = has_worker
        self.command_ids = tuple(command_ids)
        self.known = dict(known or {})


class Addressed(msgspec.Struct, frozen=True):
    """A command and its instance. Without an id, the client assigns one.

    Without a trace, the command continues that of the current request.
    """

    workflow: str
    instance_id: str
    command: Command
    command_id: str | None = None
    trace: str = ""


class _PendingCommand:
    """A command whose outcome is awaited."""

    __slots__ = ("outcome", "record", "waiters")

    def __init__(self, record: Outgoing) -> None:
        self.record = record
        self.outcome: asyncio.Future[ReplySent] = asyncio.get_running_loop().create_future()
        self.waiters = 0

    def fail(self, error: BrokerUnavailable) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(error)
            self.outcome.exception()  # Mark it as retrieved in case nothing awaits it.


class WorkflowClient:
    """Sends to `workflow-commands` and consumes `workflow-replies`."""

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
        #: Offset of the next reply; None before the first connection, which starts at the end.
        self._next: int | None = None
        self._pending: dict[str, _PendingCommand] = {}
        self._listening: asyncio.Task[None] | None = None
        self._is_listening = False

    @property
    def ready(self) -> bool:
        """Whether Kafka is connected."""
        return self._is_listening and self._commit.ready

    async def start(self) -> None:
        """Start in the background. Kafka may be down now or later."""
        await self._commit.start()
        self._listening = asyncio.create_task(self._listen(), name="consume replies")

    async def stop(self) -> None:
        """Stop within seconds. Pending calls raise BrokerUnavailable."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening], timeout=_STOP_S)
        await self._presence.stop()
        await self._commit.stop()
        for pending in self._pending.values():
            pending.fail(BrokerUnavailable("expected a reply, found that this client was stopped"))

    async def send(
        self, workflow: str, instance_id: str, command: Command, *, command_id: str | None = None
    ) -> ReplySent:
        """Send a command and return its outcome, which may be a refusal.

        Raises:
            Overloaded: Nothing was sent.
            OutcomeUnknown: The command may be in the log and be executed. Sending it again is
                another command.
            BrokerUnavailable: As OutcomeUnknown.
        """
        (reply,) = await self.send_many([Addressed(workflow, instance_id, command, command_id)])
        return reply

    async def send_many(self, commands: Sequence[Addressed]) -> list[ReplySent]:
        """Send commands together and return their outcomes, in the order of the commands.

        Commands to one instance are executed in this order, also across overlapping calls. A
        command with the id of a pending one is the same command. Raises as `send`, if it is true
        for any of them.
        """
        if not self.ready:
            raise BrokerUnavailable(f"expected Kafka at {self._cluster}, found no connection yet")
        if not commands:
            return []
        pending = self._enter(commands)
        try:
            has_worker = await self._wait(pending)
            futures = [command.outcome for _, command in pending]
            missing = [future for future in futures if not future.done()]
            if len(missing) == len(futures) and self._withdraw(pending):
                raise BrokerUnavailable(
                    f"expected Kafka at {self._cluster} to accept commands within "
                    f"{self._timeout_s} s, found that it stalls; they were not sent"
                )
            if missing:
                raise self._unknown(pending, has_worker=has_worker)
            return [future.result() for future in futures]
        finally:
            self._leave(pending)

    def one_per_partition(self) -> list[Addressed]:
        """Return a command to every partition that is refused: its instance does not exist.

        Workers decide the commands of a partition in order, and read what is deployed before.

        Raises:
            BrokerUnavailable: The number of partitions is not known yet.
        """
        if not self.ready:
            raise BrokerUnavailable(f"expected Kafka at {self._cluster}, found no connection yet")
        commands: dict[int, Addressed] = {}
        for number in count():
            if len(commands) == self._commit.partitions:
                break
            key = instance_key(_FENCE, str(number)).encode()
            partition = partition_of(key, self._commit.partitions)
            # A command before which workers read what is deployed.
            command = MoveRun(ACTIVE_DEPLOYMENT)
            commands.setdefault(partition, Addressed(_FENCE, str(number), command))
        return list(commands.values())

    async def _wait(self, pending: Sequence[tuple[str, _PendingCommand]]) -> bool:
        """Wait for outcomes while there is time and a worker. Return whether there is a worker."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._timeout_s
        missing = {command.outcome for _, command in pending}
        check_in_s = _FIRST_CHECK_S if self._presence.are_absent else _CHECK_S
        while (left_s := deadline_s - loop.time()) > 0:
            _, missing = await asyncio.wait(missing, timeout=min(check_in_s, left_s))
            check_in_s = _CHECK_S
            if not missing:
                break
            if not await self._presence.has_workers(max(deadline_s - loop.time(), 0)):
                return False
        return True

    def _enter(self, commands: Sequence[Addressed]) -> list[tuple[str, _PendingCommand]]:
        """Queue commands, except for those that are pending already."""
        pending: list[tuple[str, _PendingCommand]] = []
        fresh: dict[str, _PendingCommand] = {}
        for addressed in commands:
            command_id = addressed.command_id or self._new_id()
            command = self._pending.get(command_id) or fresh.get(command_id)
            if command is None:
                command = fresh[command_id] = _PendingCommand(self._record(command_id, addressed))
            pending.append((command_id, command))
        self._commit.add(list(fresh.values()))
        self._pending.update(fresh)
        for _, command in pending:
            command.waiters += 1
        return pending

    def _record(self, command_id: str, addressed: Addressed) -> Outgoing:
        sent = CommandSent(
            command_id=command_id,
            workflow=addressed.workflow,
            instance_id=addressed.instance_id,
            sent_at_ms=self._clock(),
            reply_to=self._reply_to,
            command=addressed.command,
            trace=addressed.trace or current_text(),
        )
        key = instance_key(addressed.workflow, addressed.instance_id).encode()
        partition = partition_of(key, self._commit.partitions)
        return Outgoing(WORKFLOW_COMMANDS, partition, key, encode(sent))

    def _leave(self, pending: Sequence[tuple[str, _PendingCommand]]) -> None:
        """End a wait. Commands that no caller awaits any more are withdrawn if possible."""
        for command_id, command in pending:
            command.waiters -= 1
            if not command.waiters:
                self._pending.pop(command_id, None)
                self._commit.withdraw(command)

    def _withdraw(self, pending: Sequence[tuple[str, _PendingCommand]]) -> bool:
        """Withdraw commands that no other caller awaits. Return whether none was sent."""
        return all(
            command.waiters == 1 and self._commit.withdraw(command) for _, command in pending
        )

    def _unknown(
        self, pending: Sequence[tuple[str, _PendingCommand]], *, has_worker: bool
    ) -> OutcomeUnknown:
        unknown = [command_id for command_id, command in pending if not command.outcome.done()]
        known = {
            command_id: command.outcome.result()
            for command_id, command in pending
            if command.outcome.done() and command.outcome.exception() is None
        }
        if has_worker:
            reason = (
                f"expected a reply to {len(unknown)} of {len(pending)} commands within "
                f"{self._timeout_s} s, found none for {unknown[0]}; usual cause: the worker of its "
                "partition has just exited, or is far behind"
            )
        else:
            reason = (
                f"expected a worker that executes {unknown[0]}, found that none runs; start one "
                "with `headwater worker --app MODULE`"
            )
        stays = "The command stays in the log and may still be executed"
        return OutcomeUnknown(f"{reason}. {stays}", unknown, known, has_worker=has_worker)

    async def _listen(self) -> None:
        retrying = Retrying(log, "waiting for Kafka to consume replies")
        while True:
            consumer = AIOKafkaConsumer(
                **self._cluster.options(),
                enable_auto_commit=False,
                auto_offset_reset="latest",
                fetch_max_wait_ms=IDLE_FETCH_MS,
            )
            try:
                await consumer.start()
                partition = await self._find_partition()
                retrying.succeeded()
                await self._follow(consumer, partition)
            except (KafkaError, OSError, BrokerUnavailable) as error:
                failure = error
            finally:
                self._is_listening = False
                await consumer.stop()
            await retrying.failed(failure)

    async def _find_partition(self) -> TopicPartition:
        count = await self._producers.current.partitions(WORKFLOW_REPLIES)
        self._reply_to = partition_of(self._client_id.encode(), count)
        return TopicPartition(WORKFLOW_REPLIES, self._reply_to)

    async def _follow(self, consumer: AIOKafkaConsumer, partition: TopicPartition) -> NoReturn:
        consumer.assign([partition])
        if self._next is None:
            await consumer.seek_to_end(partition)
        else:
            consumer.seek(partition, self._next)
        # Only now: the reply to a command sent earlier would be missed.
        self._next = await consumer.position(partition)
        self._is_listening = True
        while True:
            for record in (await consumer.getmany(timeout_ms=_POLL_MS)).get(partition, ()):
                self._end_wait(record)
                self._next = record.offset + 1

    def _end_wait(self, record: Incoming) -> None:
        """End the wait for an outcome. Replies that no caller awaits are ignored."""
        try:
            reply = decode(record.value, ReplySent)
        except HeadwaterError as error:
            log.warning("reply at %s/%s: %s", record.partition, record.offset, error)
            return
        command = self._pending.get(reply.command_id)
        if command is not None and not command.outcome.done():
            command.outcome.set_result(reply)


def _settled(entries: Iterable[_PendingCommand], error: BrokerUnavailable | None) -> None:
    """Fail commands whose append failed. The others wait for their outcomes."""
    if error is not None:
        for command in entries:
            command.fail(error)
