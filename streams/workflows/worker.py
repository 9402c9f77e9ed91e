"""The workflow worker: owns partitions of the workflow log, and runs their instances in a host.

Theory of operation: one loop takes turns. In a turn every owner takes what has come since the last
one (commands, what the host said, time), and all that they stage is appended in one call; a second
turn may be taken while the first append is under way, so host, broker and owners work at the same
time. What follows from a record is let go when its append has returned, in the order of the turns.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from aiokafka.errors import IllegalStateError, KafkaError

from headwater.processors.replay.commands import StepRaised, StepReturned
from headwater.processors.replay.step_commits import StepCommit
from headwater.processors.runs.decisions import Rejection
from headwater.processors.runs.limits import ENTRIES_MAX
from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.history import CommandSent, HistoryAppended, ReplySent, instance_key
from headwater.streams.code_host.apps import Declarations
from headwater.streams.engine.effects import Answer, Batch, Queued
from headwater.streams.engine.host_protocol import Forget, FromHost, Said, ToHost
from headwater.streams.engine.owner import Owner
from headwater.streams.engine.refusal_notices import back_to_sender
from headwater.streams.engine.restore import take_over
from headwater.streams.engine.step_database import StepDatabase
from headwater.streams.kafka.records import partition_of
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.workflows.checkpoints import CHECKPOINT_RECORDS, CHECKPOINT_S, Checkpoints
from headwater.streams.workflows.host_supervisor import Hosting
from headwater.streams.workflows.log import OwnershipLost, WorkflowLog
from headwater.streams.workflows.manual_ticks import Ticks
from headwater.streams.workflows.outbox import Outbox
from headwater.streams.workflows.ownership import OwnedPartition, Ownership
from headwater.streams.workflows.replies import Replies
from headwater.streams.workflows.step_sql import StepSql

log = logging.getLogger(__name__)

#: Turns whose appends may be under way at once: one with the broker, one being made ready.
_FLIGHTS_MAX: Final = 2
#: How long an instance rests before only its bytes are kept.
IDLE_MS: Final = 5_000


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How often a worker keeps house.

    Units:  records of history, seconds, milliseconds of rest.
    """

    housekeeping_s: float = 1.0

    checkpoint_records: int = CHECKPOINT_RECORDS
    checkpoint_s: float = CHECKPOINT_S
    idle_ms: int = IDLE_MS


@dataclass(slots=True)
class _Flight:
    """The batches of one turn on their way."""

    batches: list[tuple[OwnedPartition, Batch]]
    done: asyncio.Future[None]


class WorkflowWorker:
    """A worker for the workflows of one app.

    Shape:  app is `package.module` or `package.module:attribute`; name tells workers apart in the
            log and is not kept; member is a name that a worker keeps over restarts; one that is
            ticked runs code only then; joined returns when it is known what others read.
    """

    def __init__(  # noqa: PLR0913, what the composition root chooses
        self,
        *,
        bootstrap: str,
        app: str,
        clock: Callable[[], int],
        draw_seed: Callable[[], str],
        name: str,
        database: StepDatabase | None = None,
        member: str | None = None,
        pace: Pace | None = None,
        entries_max: int = ENTRIES_MAX,
        ticked: bool = False,
        joined: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._app = app
        self._joined = joined
        self._clock = clock
        self._draw_seed = draw_seed
        self._name = name
        self._pace = pace or Pace()
        self._entries_max = entries_max
        self._log = WorkflowLog(bootstrap=bootstrap, client_id=f"{name}-log", clock=clock)
        self._stirred = asyncio.Event()
        self._hosting = Hosting(app, self._stirred.set)
        self._outbox = Outbox(
            bootstrap=bootstrap, client_id=f"{name}-posts", clock=clock, sent=self._posted
        )
        self._ownership = Ownership(
            bootstrap=bootstrap,
            name=name,
            member=member,
            workflow_log=self._log,
            clock=clock,
            taken=self._taken,
            dropping=self._landed,
            dropped=self._dropped,
            parked=self._outbox.park,
            stirred=self._stirred.set,
        )
        self._replies = Replies(self._log, self._outbox)
        self._checkpoints = Checkpoints(
            self._log,
            commit=self._ownership.commit,
            records=self._pace.checkpoint_records,
            seconds=self._pace.checkpoint_s,
        )
        self._ticks = Ticks(self._stirred.set, self._owners) if ticked else None
        self._sql = StepSql(database, settled=self._step_settled, superseded=self._superseded)
        self._strangers: set[str] = set()
        self._count = 1
        self._sent_posts: list[tuple[str, int]] = []
        self._settled: list[tuple[OwnedPartition, StepCommit]] = []
        self._flights: deque[_Flight] = deque()
        self._background: set[asyncio.Task[None]] = set()

    # -- running

    async def run(self) -> None:
        """Works until it is cancelled.

        Errors: AppNotLoaded; HostKilled, when that happens again and again.
        """
        tasks: list[asyncio.Task[None]] = []
        await self._hosting.start()
        try:
            await self._connect()
            if self._joined is not None:
                await self._joined()
            await self._ownership.start()
            parts = (self._ownership, self._replies, self._outbox)
            tasks = [asyncio.create_task(part.run()) for part in parts]
            tasks += [asyncio.create_task(self._turns()), asyncio.create_task(self._keep_house())]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (*tasks, *self._background):
                task.cancel()
            await asyncio.gather(*tasks, *self._background, return_exceptions=True)
            if tasks:
                await self._ownership.stop()
            await self._log.stop()
            await self._hosting.stop()

    async def tick(self, max_instances: int | None = None, max_steps: int | None = None) -> int:
        """Has a worker that is ticked do what is due; see `Ticks.tick`."""
        assert self._ticks is not None  # noqa: S101, whoever ticks has chosen so
        return await self._ticks.tick(max_instances, max_steps)

    async def declared(self) -> Declarations:
        """What the app declares, once `run` has loaded it."""
        await self._hosting.started()
        return self._hosting.declared

    def _owners(self) -> list[Owner]:
        return [owned.owner for owned in self._ownership.partitions.values()]

    async def _connect(self) -> None:
        retrying = Retrying(log, "waiting for Kafka")
        await retrying.until_done(self._log.start)
        self._count = await retrying.until_done(self._log.partitions)

    # -- turns

    async def _turns(self) -> None:
        while True:
            await self._until_stirred()
            while len(self._flights) >= _FLIGHTS_MAX:
                self._hosting.hold()
                await asyncio.wait([self._flights[0].done])
            self._hosting.go_on()
            self._turn()

    async def _until_stirred(self) -> None:
        """Waits for news; the consumer stirs too, whenever it has learnt that time went on."""
        await self._stirred.wait()
        self._stirred.clear()

    def _turn(self) -> None:
        now_ms = self._clock()
        heard = self._hosting.said()
        said = self._sort(heard)
        gone = self._hosting.gone()
        sent, self._sent_posts = self._sent_posts, []
        settled, self._settled = self._settled, []
        partitions = self._ownership.partitions
        for owned in partitions.values():
            for each in gone:
                # Behind what it said: that comes first.
                owned.owner.hear(said.pop(owned.number, []), now_ms)
                owned.owner.host_gone(each.reason, now_ms, turn=each.turn)
            self._serve(owned, said.get(owned.number), now_ms)
        for key, through in sent:
            sender = partitions.get(partition_of(key.encode(), self._count))
            if sender is not None:
                sender.owner.posts_sent(key, through, now_ms)
        for owned, commit in settled:
            if partitions.get(owned.number) is owned:
                owned.owner.recover(commit, now_ms)
                owned.step_rows.append((owned.owner.batch_number, commit.id))
        if self._hosting.is_open and self._ticks is not None:
            self._ticks.dispatch(now_ms)
        staged = [owned for owned in partitions.values() if owned.owner.has_work(ready=False)]
        self._fly([(owned, owned.owner.take()) for owned in staged])
        if self._ticks is not None:
            self._ticks.turned(sum(map(_ends_attempt, heard)))

    def _serve(self, owned: OwnedPartition, said: list[FromHost] | None, now_ms: int) -> None:
        """Gives an owner what has come for it."""
        owner = owned.owner
        for offset, command in owned.commands:
            self._receive(owned, offset, command, now_ms)
        owned.commands.clear()
        if said:
            owner.hear(said, now_ms)
        due_ms = owner.next_due_ms()
        if due_ms is not None and due_ms <= owned.reached_ms:
            owner.wake(now_ms, min(owned.reached_ms, now_ms))
        if self._hosting.is_open and self._ticks is None:
            owner.dispatch(now_ms)

    def _sort(self, said: list[FromHost]) -> dict[int, list[FromHost]]:
        """What the host said, by partition; SQL of steps is begun, and heard of later."""
        by_partition: dict[int, list[FromHost]] = {}
        for message in said:
            number = message.activation % self._count
            asked = message.asked if isinstance(message, Said) else None
            if isinstance(asked, StepReturned) and asked.statements:
                owned = self._ownership.partitions.get(number)
                if owned is not None:
                    self._in_background(self._sql.run(owned, message.activation, asked))
            else:
                by_partition.setdefault(number, []).append(message)
        return by_partition

    def _receive(self, owned: OwnedPartition, offset: int, sent: CommandSent, now_ms: int) -> None:
        known = owned.outcomes.pop(offset, None)
        if known is None:
            owned.owner.receive(offset, sent, now_ms)
            return
        # Its outcome was recorded before we came; whether anybody was told, nobody knows.
        reply = ReplySent(
            command_id=sent.command_id,
            code=known.code,
            message=known.message,
            status=known.status,
            run_number=known.run_number,
            partition=owned.number,
            position=known.position,
        )
        back = None
        if known.code:
            hand = owned.owner.instances.find(instance_key(sent.workflow, sent.instance_id))
            refused = Rejection(known.code, known.message)
            back = back_to_sender(sent, refused, hand.run if hand else None, now_ms)
        self._replies.send(owned, offset, [(sent.reply_to, reply)], [back] if back else [])

    # -- appends

    def _fly(self, batches: list[tuple[OwnedPartition, Batch]]) -> None:
        if not batches:
            return
        before = self._flights[-1].done if self._flights else None
        flight = _Flight(batches, asyncio.get_running_loop().create_future())
        self._flights.append(flight)
        self._in_background(self._append(flight, before))

    async def _append(self, flight: _Flight, before: asyncio.Future[None] | None) -> None:
        try:
            firsts = await self._made_durable(flight)
            if before is not None and not before.done():
                await asyncio.wait([before])
        finally:
            self._flights.remove(flight)
            flight.done.set_result(None)
        # Not reached with another error, or when cancelled: nothing may follow from records of
        # which it is not known that they count.
        to_host: list[ToHost] = []
        for owned, batch in flight.batches:
            if self._ownership.partitions.get(owned.number) is owned:
                to_host += self._follow(owned, batch, firsts.get(owned.number, 0))
        self._hosting.send(to_host)

    async def _made_durable(self, flight: _Flight) -> dict[int, int]:
        """Appends; gives where the records begin in the partitions that are still ours."""
        records = {
            owned.number: [(_key(record), record) for record in batch.records]
            for owned, batch in flight.batches
            if batch.records
        }
        if not records:
            return {}
        try:
            return await self._log.append(records)
        except OwnershipLost as error:
            self._ownership.lose(error.partitions, error.message, error.pause_s)
            return error.kept
        except BrokerUnavailable as error:
            self._ownership.lose(list(self._ownership.partitions), error.message)
            return {}

    def _follow(self, owned: OwnedPartition, batch: Batch, first: int) -> list[ToHost]:
        """Lets go what follows from records that are durable; gives what the host is told."""
        owned.acknowledged = batch.number
        if batch.records:
            owned.position = first + len(batch.records)
            owned.records += len(batch.records)
        to_host: list[ToHost] = []
        answers: list[Answer] = []
        backs: list[CommandSent] = []
        for effect in batch.effects:
            if isinstance(effect, Answer):
                answers.append(effect)
            elif isinstance(effect, Queued):
                self._outbox.queue(owned.number, effect)
            elif isinstance(effect, CommandSent):
                backs.append(effect)
            else:
                to_host.append(effect)
        if answers:
            replies = [(each.to, _placed(each, first)) for each in answers]
            self._replies.send(owned, answers[-1].cause, replies, backs)
        return to_host

    async def _landed(self) -> None:
        """Waits until no append is under way."""
        while self._flights:
            await asyncio.wait([self._flights[-1].done])

    # -- the SQL of steps

    def _step_settled(
        self,
        owned: OwnedPartition,
        activation: int,
        commit: StepCommit,
        said: StepReturned | StepRaised,
    ) -> None:
        if isinstance(said, StepRaised):
            self._hosting.hear([Said(activation, said)])
        else:
            # Its host may be gone by now, and the step has taken effect all the same.
            settled = msgspec.structs.replace(commit, returned=said)
            self._settled.append((owned, settled))
            self._stirred.set()

    def _superseded(self, owned: OwnedPartition, why: str) -> None:
        if self._ownership.partitions.get(owned.number) is owned:
            self._ownership.lose([owned.number], why)

    # -- partitions

    async def _taken(self, number: int, replied: int) -> OwnedPartition:
        epoch = await self._log.claim(number, self._name, self._hosting.declared.names)
        taken = await take_over(self._log, number, epoch, replied)
        owner = Owner(
            number,
            taken.claims,
            taken.instances,
            taken.wakes,
            workflows=self._hosting.declared.names,
            entries_max=self._entries_max,
            number_activations=lambda: self._hosting.number(number, self._count),
            draw_seed=self._draw_seed,
        )
        owned = OwnedPartition(
            number,
            owner,
            epoch,
            taken.outcomes,
            position=epoch + 1,
            replied=min(replied, taken.claims.cause + 1),
            checkpoint_at_s=asyncio.get_running_loop().time(),
            records=epoch - taken.start,
        )
        # After the log was read: what is committed here and not there, nobody else will record.
        await self._sql.take_over(owned, self._clock())
        return owned

    def _dropped(self, owned: OwnedPartition) -> None:
        self._outbox.forget(owned.number)
        self._hosting.send([Forget(each) for each in owned.owner.activations()])

    async def _keep_house(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._pace.housekeeping_s)
            for owned in list(self._ownership.partitions.values()):
                owned.owner.evict(self._clock() - self._pace.idle_ms, owned.acknowledged)
                await self._landed()
                if self._ownership.partitions.get(
                    owned.number
                ) is owned and self._checkpoints.is_due(owned, loop.time()):
                    await self._checkpoints.write(owned, loop.time())
                await self._sql.tidy(owned)
            self._tell_of_strangers()
            self._stirred.set()
            with contextlib.suppress(KafkaError, IllegalStateError):
                await self._ownership.commit()

    def _tell_of_strangers(self) -> None:
        """Says once of each workflow that its instances wait for code."""
        names = {name for o in self._ownership.partitions.values() for name in o.owner.strangers}
        for name in names - self._strangers:
            log.warning(
                "instances of %s wait: %s has no workflow of that name (it has %s)",
                name,
                self._app,
                ", ".join(sorted(self._hosting.declared.names)),
            )
        self._strangers |= names

    def _posted(self, key: str, through: int) -> None:
        self._sent_posts.append((key, through))
        self._stirred.set()

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _ends_attempt(message: FromHost) -> bool:
    return isinstance(message, Said) and isinstance(message.asked, StepReturned | StepRaised)


def _key(record: HistoryAppended) -> bytes:
    return instance_key(record.workflow, record.instance_id).encode()


def _placed(answer: Answer, first: int) -> ReplySent:
    return msgspec.structs.replace(answer.reply, position=first + answer.at)
