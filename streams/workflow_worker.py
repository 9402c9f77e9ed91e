"""The workflow worker: owns partitions of the workflow log, and runs their instances in a host.

Theory of operation: one loop takes turns. In a turn every owner takes what has come since the last
one (commands, what the host said, time), and all that they stage is appended in one call; a second
turn may be taken while the first append is under way, so host, broker and owners work at the same
time. What follows from a record is let go when its append has returned, in the order of the turns.

Partitions come and go with the consumer group of the commands. Whatever goes wrong with a partition,
its owner is dropped and the partition is taken over again from the log.
"""

import asyncio
import contextlib
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError
from typing_extensions import override

from processors.replay.commands import StepReturned
from processors.runs.decisions import Rejection
from schemas.codec import decode
from schemas.errors import (
    BrokerUnavailable,
    HeadwaterError,
    StoreUnavailable,
    UndecodableRecord,
    UnknownSchema,
)
from schemas.history import CommandSent, HistoryAppended, ReplySent, SnapshotTaken, instance_key
from schemas.topics import DEAD_LETTERS, WORKFLOW_COMMANDS
from streams.code_host.process import HostProcess
from streams.code_host.protocol import Forget, FromHost, Said, ToHost
from streams.instances import FORMAT, wake_at_ms
from streams.owner import Answer, Batch, Owner, Queued
from streams.posting import Posting
from streams.records import Incoming, partition_of
from streams.senders import back_to_sender
from streams.step_commits import StepCommit, StepDatabase, failed, unavailable
from streams.takeover import CHECKPOINT, Outcome, take_over
from streams.workflow_log import OwnershipLost, WorkflowLog

log = logging.getLogger(__name__)

GROUP: Final = "headwater-workflows"
#: Turns whose appends may be under way at once: one with the broker, one being made ready.
_FLIGHTS_MAX: Final = 2
_POLL_MS: Final = 200
_FETCH_WAIT_MS: Final = 25
_COMMANDS_MAX: Final = 2_000
_SESSION_MS: Final = 10_000
_METADATA_AGE_MS: Final = 3_000
#: How long an instance rests before only its bytes are kept.
_IDLE_MS: Final = 5_000
_HOUSEKEEPING_S: Final = 1.0
#: History records after which states are written down, so that a takeover reads no more than these.
_CHECKPOINT_RECORDS: Final = 20_000
_CHECKPOINT_S: Final = 60.0
_RETRY_S: Final = 1.0


@dataclass(slots=True, eq=False)
class _Partition:
    """A partition of ours."""

    number: int
    owner: Owner
    epoch: int
    outcomes: dict[int, Outcome]
    #: Offset in the history behind our last acknowledged record.
    position: int
    commands: list[tuple[int, CommandSent]] = field(default_factory=list)
    #: Offset up to which commands were fetched.
    fetched: int = 0
    #: Offset up to which commands have their replies.
    replied: int = 0
    acknowledged: int = 0
    since_checkpoint: int = 0
    checkpoint_at: float = 0.0


@dataclass(slots=True)
class _Flight:
    """The batches of one turn on their way."""

    batches: list[tuple[_Partition, Batch]]
    done: asyncio.Future[None]


class WorkflowWorker:
    """A worker for the workflows of one app."""

    def __init__(
        self,
        *,
        bootstrap: str,
        app: str,
        clock: Callable[[], int],
        draw_seed: Callable[[], str],
        name: str,
        database: StepDatabase | None = None,
        member: str | None = None,
    ) -> None:
        self._bootstrap = bootstrap
        self._app = app
        self._clock = clock
        self._draw_seed = draw_seed
        self._name = name
        self._database = database
        self._log = WorkflowLog(bootstrap=bootstrap, client_id=f"{name}-log", clock=clock)
        self._posting = Posting(
            bootstrap=bootstrap, client_id=f"{name}-posts", clock=clock, sent=self._posted
        )
        self._member = member
        self._consumer: AIOKafkaConsumer
        self._host: HostProcess | None = None
        self._workflows: frozenset[str] = frozenset()
        self._count = 0
        self._numbers = itertools.count(1)
        self._partitions: dict[int, _Partition] = {}
        self._takeovers: dict[int, asyncio.Task[None]] = {}
        self._said: list[FromHost] = []
        self._gone: list[tuple[str, int | None]] = []
        self._sent_posts: list[tuple[str, int]] = []
        self._flights: deque[_Flight] = deque()
        self._replies: asyncio.Queue[tuple[_Partition, int, list[tuple[int, ReplySent]]]]
        self._stirred = asyncio.Event()
        self._background: set[asyncio.Task[Any]] = set()
        self._stopping = False

    # -- running

    async def run(self) -> None:
        """Works until it is cancelled.

        Errors: AppError when the app cannot be loaded.
        """
        self._replies = asyncio.Queue()
        await self._begin_host()
        await self._connect()
        loops = [
            self._consume(),
            self._turns(),
            self._send_replies(),
            self._posting.run(),
            self._keep_house(),
        ]
        tasks = [asyncio.create_task(each) for each in loops]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._stopping = True
            for task in (*tasks, *self._takeovers.values(), *self._background):
                task.cancel()
            await asyncio.gather(*tasks, *self._background, return_exceptions=True)
            await self._stop()

    async def _connect(self) -> None:
        told = False
        while True:
            try:
                await self._log.start()
                self._count = await self._log.partitions()
                break
            except BrokerUnavailable as error:
                if not told:
                    log.warning("waiting for Kafka: %s", error)
                told = True
                await asyncio.sleep(_RETRY_S)
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            group_id=GROUP,
            group_instance_id=self._member,
            client_id=self._name,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=_SESSION_MS,
            heartbeat_interval_ms=_SESSION_MS // 4,
            fetch_max_wait_ms=_FETCH_WAIT_MS,
            metadata_max_age_ms=_METADATA_AGE_MS,
        )
        self._consumer.subscribe([WORKFLOW_COMMANDS], listener=_Listener(self))
        while True:
            try:
                await self._consumer.start()
                return
            except (KafkaError, OSError) as error:
                log.warning("waiting for Kafka: %r", error)
                await asyncio.sleep(_RETRY_S)

    async def _stop(self) -> None:
        with contextlib.suppress(KafkaError, asyncio.CancelledError):
            await self._commit()
        await self._consumer.stop()
        await self._log.stop()
        if self._host is not None:
            await self._host.stop()

    # -- commands

    async def _consume(self) -> None:
        while True:
            try:
                fetched = await self._consumer.getmany(
                    timeout_ms=_POLL_MS, max_records=_COMMANDS_MAX
                )
            except (KafkaError, OSError) as error:
                log.warning("commands cannot be read: %r", error)
                await asyncio.sleep(_RETRY_S)
                continue
            for where, records in fetched.items():
                part = self._partitions.get(where.partition)
                if part is None:
                    continue
                self._fetched(part, records)
            await self._note_positions()
            if fetched or any(p.owner.next_due_ms() is not None for p in self._partitions.values()):
                self._stirred.set()

    def _fetched(self, part: _Partition, records: list[Incoming]) -> None:
        for record in records:
            try:
                part.commands.append((record.offset, decode(record.value, CommandSent)))
            except (UndecodableRecord, UnknownSchema) as error:
                log.error("a command is parked in %s: %s", DEAD_LETTERS, error)  # noqa: TRY400
                self._posting.park(record, error)

    async def _note_positions(self) -> None:
        """Takes note of how far each partition was read: past its last record, if it has any."""
        for part in list(self._partitions.values()):
            with contextlib.suppress(IllegalStateError):
                part.fetched = await self._consumer.position(
                    TopicPartition(WORKFLOW_COMMANDS, part.number)
                )

    def _reached_ms(self, part: _Partition, now_ms: int) -> int:
        """Up to when all commands of a partition are known to be here.

        Time moves nothing beyond it: an event that was sent before the end of a wait, and lies
        unread in the topic, has to be seen before the wait is said to have ended without it.
        """
        where = TopicPartition(WORKFLOW_COMMANDS, part.number)
        try:
            polled_ms = self._consumer.last_poll_timestamp(where)
            highwater = self._consumer.highwater(where)
        except (IllegalStateError, AssertionError):
            return 0
        if polled_ms is None or highwater is None or part.fetched < highwater:
            return 0
        return min(polled_ms, now_ms)

    # -- turns

    async def _turns(self) -> None:
        while True:
            await self._until_stirred()
            while len(self._flights) >= _FLIGHTS_MAX:
                await asyncio.wait([self._flights[0].done])
            self._turn()

    async def _until_stirred(self) -> None:
        due_ms = min(
            (
                t
                for t in (p.owner.next_due_ms() for p in self._partitions.values())
                if t is not None
            ),
            default=None,
        )
        timeout = None if due_ms is None else max(due_ms - self._clock(), 1) / 1_000
        if not self._stirred.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._stirred.wait()
        self._stirred.clear()

    def _turn(self) -> None:
        now_ms = self._clock()
        said = self._sort()
        gone, self._gone = self._gone, []
        sent, self._sent_posts = self._sent_posts, []
        batches: list[tuple[_Partition, Batch]] = []
        for part in self._partitions.values():
            owner = part.owner
            for offset, command in part.commands:
                self._receive(part, offset, command, now_ms)
            part.commands.clear()
            owner.hear(said.get(part.number, []), now_ms)
            for reason, turn in gone:
                owner.host_gone(reason, now_ms, turn=turn)
            owner.wake(self._reached_ms(part, now_ms))
            if self._host is not None:
                owner.dispatch(now_ms)
        for key, through in sent:
            part_of = self._partitions.get(partition_of(key.encode(), self._count))
            if part_of is not None:
                part_of.owner.posts_sent(key, through, now_ms)
        for part in self._partitions.values():
            batch = part.owner.take()
            if batch:
                batches.append((part, batch))
        if batches:
            self._fly(batches)

    def _sort(self) -> dict[int, list[FromHost]]:
        """What the host said, by partition; SQL of steps is begun and heard of later."""
        said, self._said = self._said, []
        sorted_: dict[int, list[FromHost]] = {}
        for message in said:
            number = message.activation % self._count
            asked = message.asked if isinstance(message, Said) else None
            if isinstance(asked, StepReturned) and asked.statements:
                self._in_background(self._commit_step(number, message.activation, asked))
            else:
                sorted_.setdefault(number, []).append(message)
        return sorted_

    def _receive(self, part: _Partition, offset: int, sent: CommandSent, now_ms: int) -> None:
        known = part.outcomes.pop(offset, None)
        if known is None:
            part.owner.receive(offset, sent, now_ms)
            return
        # Its outcome was recorded before we came; whether anybody was told, nobody knows.
        reply = ReplySent(
            command_id=sent.command_id,
            code=known.code,
            message=known.message,
            status=known.status,
            run_number=known.run_number,
            partition=part.number,
            position=known.position,
        )
        self._replies.put_nowait((part, offset, [(sent.reply_to, reply)]))
        hand = part.owner.instances.find(instance_key(sent.workflow, sent.instance_id))
        back = back_to_sender(
            sent, Rejection(known.code, known.message), hand.run if hand else None, now_ms
        )
        if known.code and back is not None:
            self._posting.send(back)

    # -- appends

    def _fly(self, batches: list[tuple[_Partition, Batch]]) -> None:
        before = self._flights[-1].done if self._flights else None
        flight = _Flight(batches, asyncio.get_running_loop().create_future())
        self._flights.append(flight)
        self._in_background(self._append(flight, before))

    async def _append(self, flight: _Flight, before: asyncio.Future[None] | None) -> None:
        firsts: dict[int, int] = {}
        try:
            records = {
                part.number: [(_key(record), record) for record in batch.records]
                for part, batch in flight.batches
                if batch.records
            }
            if records:
                firsts = await self._log.append(records)
        except OwnershipLost as error:
            firsts = error.kept
            self._lose(error.partitions, error.message)
        except BrokerUnavailable as error:
            self._lose([part.number for part, _ in flight.batches], error.message)
        except BaseException:
            # Cancelled, or a bug: nothing may follow from what is not known to be durable.
            self._finish(flight)
            raise
        if before is not None and not before.done():
            await asyncio.wait([before])
        for part, batch in flight.batches:
            if self._partitions.get(part.number) is part:
                self._follow(part, batch, firsts.get(part.number))
        self._finish(flight)

    def _finish(self, flight: _Flight) -> None:
        self._flights.remove(flight)
        flight.done.set_result(None)

    def _follow(self, part: _Partition, batch: Batch, first: int | None) -> None:
        """Lets go what follows from records that are durable."""
        part.acknowledged = batch.number
        if first is not None:
            part.position = first + len(batch.records)
            part.since_checkpoint += len(batch.records)
        to_host: list[ToHost] = []
        answers: list[Answer] = []
        for effect in batch.effects:
            if isinstance(effect, Answer):
                answers.append(effect)
            elif isinstance(effect, Queued):
                self._posting.queue(effect)
            elif isinstance(effect, CommandSent):
                self._posting.send(effect)
            else:
                to_host.append(effect)
        if to_host and self._host is not None:
            self._host.send(to_host)
        if answers:
            replies = [(each.to, _placed(each, first or 0)) for each in answers]
            self._replies.put_nowait((part, answers[-1].cause, replies))

    async def _send_replies(self) -> None:
        while True:
            groups = [await self._replies.get()]
            while not self._replies.empty():
                groups.append(self._replies.get_nowait())
            replies = [reply for _, _, group in groups for reply in group]
            while True:
                try:
                    await self._log.reply(replies)
                    break
                except BrokerUnavailable as error:
                    log.warning("replies have to wait: %s", error)
                    await asyncio.sleep(_RETRY_S)
            for part, cause, _ in groups:
                part.replied = max(part.replied, cause + 1)

    # -- the SQL of steps

    async def _commit_step(self, partition: int, activation: int, returned: StepReturned) -> None:
        part = self._partitions.get(partition)
        hand = part.owner.activation(activation) if part else None
        if part is None or hand is None:
            return
        if self._database is None:
            self._said.append(Said(activation, failed(returned, unavailable())))
            self._stirred.set()
            return
        commit = StepCommit(hand.key, hand.run.run_number, returned)
        try:
            failure = await self._database.commit(partition, part.epoch, commit)
        except StoreUnavailable as error:
            log.warning("the SQL of a step has to wait: %s", error)
            await asyncio.sleep(_RETRY_S)
            self._said.append(Said(activation, returned))
        except OwnershipLost as error:
            self._lose([partition], error.message)
        else:
            done = _without_statements(returned)
            self._said.append(
                Said(activation, done if failure is None else failed(returned, failure))
            )
        self._stirred.set()

    # -- the host

    async def _begin_host(self) -> None:
        host = HostProcess(self._app, received=self._heard, gone=self._host_gone)
        self._workflows = await host.start()
        self._host = host
        self._stirred.set()

    def _heard(self, messages: list[FromHost]) -> None:
        self._said.extend(messages)
        self._stirred.set()

    def _host_gone(self, reason: str, turn: int | None) -> None:
        self._host = None
        if self._stopping:
            return
        log.warning("%s; it is started again", reason)
        self._gone.append((reason, turn))
        self._stirred.set()
        self._in_background(self._again())

    async def _again(self) -> None:
        while True:
            try:
                await self._begin_host()
                return
            except HeadwaterError as error:
                log.error("the code host cannot be started: %s", error)  # noqa: TRY400
                await asyncio.sleep(_RETRY_S)

    # -- partitions that come and go

    def assigned(self, partitions: Iterable[int]) -> None:
        """Takes partitions over, in the background."""
        for number in partitions:
            if number not in self._partitions and number not in self._takeovers:
                self._consumer.pause(TopicPartition(WORKFLOW_COMMANDS, number))
                task = asyncio.create_task(self._take_over(number))
                self._takeovers[number] = task
                task.add_done_callback(lambda _, n=number: self._takeovers.pop(n, None))

    async def revoked(self, partitions: Iterable[int]) -> None:
        """Gives partitions up, when what is under way has ended."""
        numbers = set(partitions)
        for number in numbers & self._takeovers.keys():
            self._takeovers.pop(number).cancel()
        if self._flights:
            await asyncio.wait([flight.done for flight in self._flights])
        with contextlib.suppress(KafkaError):
            await self._commit()
        for number in numbers:
            self._drop(number)

    def _drop(self, number: int) -> None:
        part = self._partitions.pop(number, None)
        self._log.release(number)
        self._posting.forget(lambda key: partition_of(key.encode(), self._count) == number)
        if part is not None and self._host is not None:
            self._host.send([Forget(each) for each in part.owner.activations()])

    def _lose(self, partitions: Iterable[int], why: str) -> None:
        """Drops partitions, and takes over again those that are still assigned."""
        lost = [number for number in partitions if number in self._partitions]
        if not lost:
            return
        log.warning("partitions %s are taken over again: %s", lost, why)
        for number in lost:
            self._drop(number)
        still = {where.partition for where in self._consumer.assignment()}
        self.assigned(number for number in lost if number in still)

    async def _take_over(self, number: int) -> None:
        where = TopicPartition(WORKFLOW_COMMANDS, number)
        while True:
            try:
                part = await self._taken(number, where)
            except (HeadwaterError, KafkaError, OSError) as error:
                log.warning("partition %s cannot be taken over yet: %s", number, error)
                await asyncio.sleep(_RETRY_S)
                continue
            self._partitions[number] = part
            self._consumer.seek(where, min(part.replied, part.owner.claims.cause + 1))
            self._consumer.resume(where)
            self._stirred.set()
            return

    async def _taken(self, number: int, where: TopicPartition) -> _Partition:
        committed = await self._consumer.committed(where)
        epoch = await self._log.claim(number, self._name)
        begin = committed if committed is not None else 0
        taken = await take_over(self._log, number, epoch, begin)
        owner = Owner(
            number,
            taken.claims,
            taken.instances,
            taken.wakes,
            workflows=self._workflows,
            number_activations=lambda: next(self._numbers) * self._count + number,
            draw_seed=self._draw_seed,
        )
        if self._database is not None:
            for commit in await self._database.claim(number, epoch):
                owner.recover(commit.key, commit.run_number, commit.returned, self._clock())
        return _Partition(
            number,
            owner,
            epoch,
            taken.outcomes,
            position=epoch + 1,
            replied=min(begin, taken.claims.cause + 1),
            checkpoint_at=asyncio.get_running_loop().time(),
        )

    # -- housekeeping

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(_HOUSEKEEPING_S)
            now_ms = self._clock()
            for part in list(self._partitions.values()):
                part.owner.evict(now_ms - _IDLE_MS, part.acknowledged)
                if self._wants_checkpoint(part):
                    await self._checkpoint(part)
            self._stirred.set()
            with contextlib.suppress(KafkaError, IllegalStateError):
                await self._commit()

    def _wants_checkpoint(self, part: _Partition) -> bool:
        age = asyncio.get_running_loop().time() - part.checkpoint_at
        full = part.since_checkpoint >= _CHECKPOINT_RECORDS
        return full or (part.since_checkpoint > 0 and age >= _CHECKPOINT_S)

    async def _checkpoint(self, part: _Partition) -> None:
        """Writes the states that have changed, as of a moment when all is acknowledged."""
        while self._flights:
            await asyncio.wait([self._flights[-1].done])
        if self._partitions.get(part.number) is not part or part.owner.has_staged():
            return
        cause, position = part.owner.claims.cause, part.position
        dirty, part.owner.dirty = part.owner.dirty, set()
        part.since_checkpoint = 0
        part.checkpoint_at = asyncio.get_running_loop().time()
        instances = part.owner.instances
        snapshots = [
            (key.encode(), self._snapshot(part, instances.state(key), position)) for key in dirty
        ]
        mark = SnapshotTaken(
            format=FORMAT,
            epoch=part.epoch,
            position=position,
            cause=cause,
            wake_at_ms=-1,
            state=b"",
        )
        try:
            # The checkpoint says that the snapshots are there: it follows them.
            await self._log.write_snapshots({part.number: snapshots})
            while part.replied <= cause and self._partitions.get(part.number) is part:
                await asyncio.sleep(_HOUSEKEEPING_S / 10)
            await self._commit()
            await self._log.write_snapshots({part.number: [(CHECKPOINT, mark)]})
        except (HeadwaterError, KafkaError, IllegalStateError) as error:
            part.owner.dirty |= dirty
            log.warning("states of partition %s are not written down: %s", part.number, error)

    def _snapshot(self, part: _Partition, state: bytes, position: int) -> SnapshotTaken:
        return SnapshotTaken(
            format=FORMAT,
            epoch=part.epoch,
            position=position,
            cause=part.owner.claims.cause,
            wake_at_ms=wake_at_ms(state),
            state=state,
        )

    async def _commit(self) -> None:
        """Tells the group up to where commands have their replies; only takeovers go by it."""
        offsets = {
            TopicPartition(WORKFLOW_COMMANDS, part.number): part.replied
            for part in self._partitions.values()
            if part.replied > 0
        }
        if offsets:
            with contextlib.suppress(CommitFailedError):
                await self._consumer.commit(offsets)

    def _posted(self, key: str, through: int) -> None:
        self._sent_posts.append((key, through))
        self._stirred.set()

    def _in_background(self, work: Any) -> None:  # noqa: ANN401, a coroutine
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, worker: WorkflowWorker) -> None:
        self._worker = worker

    @override
    async def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        await self._worker.revoked(where.partition for where in revoked)

    @override
    async def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        self._worker.assigned(where.partition for where in assigned)


def _key(record: HistoryAppended) -> bytes:
    return instance_key(record.workflow, record.instance_id).encode()


def _placed(answer: Answer, first: int) -> ReplySent:
    return msgspec.structs.replace(answer.reply, position=first + answer.at)


def _without_statements(returned: StepReturned) -> StepReturned:
    """What is left to be done when the SQL of a step has taken effect."""
    return msgspec.structs.replace(returned, statements=())
