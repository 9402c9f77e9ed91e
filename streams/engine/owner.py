"""The owner of a partition: an actor for each instance, one at a time.

Commands, what code asks for, and time are decided by the engine of their run. The events are
applied to the state in memory at once and staged for the log; what follows from them (messages for
the code, replies, posts) is held back until they are durable. So memory may be ahead of the log,
but nobody outside ever sees it: if an append fails, this object is thrown away.
"""

from collections.abc import Callable, Collection, Iterable

from headwater.processors.evaluations import Evaluator
from headwater.processors.runs.claims import Claims
from headwater.processors.runs.decisions import Rejection
from headwater.processors.runs.engine import engine_of
from headwater.processors.runs.host_messages import HandBack, HostMessage, Requested, Started
from headwater.processors.runs.outbox import in_order
from headwater.processors.runs.requests import HostGone, Request, Wake
from headwater.processors.runs.slots import SLOTS
from headwater.schemas.history import (
    NO_CAUSE,
    CancelRequested,
    CommandRejected,
    CommandSent,
    DeleteInstance,
    EntriesCancelled,
    EntryCompleted,
    EntryErrored,
    EntryOpened,
    EntryRolledBack,
    EventReceived,
    HistoryAppended,
    HostLost,
    InstanceDeleted,
    LogWritten,
    LoopAdvanced,
    OfGraph,
    OfSlots,
    PostsQueued,
    PostsSent,
    RollbackFailed,
    RollbackStarted,
    RunCompleted,
    RunErrored,
    RunEvent,
    RunPaused,
    RunResumed,
    RunStarted,
    RunSuspended,
    RunTerminated,
    SlotAsked,
    SlotGranted,
    StepCompleted,
    StepFailed,
    StepsRetried,
    StepStarted,
    TokenCompleted,
    TokenFailed,
    TokensCancelled,
    instance_key,
)
from headwater.streams.engine.activations import Activations
from headwater.streams.engine.agenda import Agenda
from headwater.streams.engine.attempts import lost
from headwater.streams.engine.code import Code
from headwater.streams.engine.deciding import CommandDecider
from headwater.streams.engine.effects import Batch, Queued, not_deleted
from headwater.streams.engine.live_instances import LiveInstance, LiveInstances
from headwater.streams.engine.ready import Priority
from headwater.streams.engine.refusal_notices import refusal_notice
from headwater.streams.engine.room import Room
from headwater.streams.engine.staging import Staging
from headwater.streams.engine.steps_with_sql import StepsWithSql


class Owner:
    """The owner of one partition.

    Shape:  claims is the fold of the partition up to the own claim, instances what it holds there,
            wakes when time moves those that are bytes; code what may be started, and where it is.
            `number_activations` gives a host's a number of its own; `room` bounds runs.
    """

    def __init__(  # noqa: PLR0913, what is its own to know
        self,
        partition: int,
        claims: Claims,
        instances: LiveInstances,
        wakes: Iterable[tuple[int, str]] = (),
        *,
        code: Code,
        number_activations: Callable[[int], int],
        draw_seed: Callable[[], str],
        room: Room | None = None,
        evaluator: Evaluator | None = None,
    ) -> None:
        self.partition = partition
        self.claims = claims
        self.instances = instances
        self._room = room = room or Room()
        self._decider = CommandDecider(instances.engines, code, draw_seed, room, evaluator)
        self._agenda = Agenda(wakes)
        self._staging = Staging(claims.epoch)
        numbers = number_activations, code.host_of
        self._activations = Activations(self._agenda, self._staging, *numbers)
        #: The steps whose SQL takes effect.
        self.sql = StepsWithSql(instances, self._activations, self._request)
        self.without_code = self._activations.without_code
        # What the history says of them is in no snapshot yet.
        instances.changed.update(live.key for live in instances.all_at_work())
        for at_ms, key in wakes:
            if not at_ms:
                instances.find(key)
        for live in instances.all_at_work():
            self._adopt(live)

    # -- what is staged

    def has_work(self, *, ready: bool = True) -> bool:
        """Whether something is staged, or ready for a host."""
        return bool(self._staging) or (ready and bool(self._activations.ready))

    def take(self) -> Batch:
        """Gives what was staged since the last call."""
        return self._staging.take()

    def has_staged(self) -> bool:
        """Whether records wait to be taken: then memory is ahead of what was given out."""
        return self._staging.has_records

    @property
    def batch_number(self) -> int:
        """The number of the batch that is being staged."""
        return self._staging.number

    def activations(self) -> list[int]:
        """The activations that are not over."""
        return self._activations.numbers()

    def is_running(self) -> bool:
        """Whether the code of an instance is under way, or a step of one."""
        return self._activations.are_running()

    # -- commands

    def receive(self, offset: int, sent: CommandSent, now_ms: int) -> None:
        """Decides a command; one that has its outcome already is passed over."""
        if offset <= self.claims.cause:
            return
        self.claims.cause = offset
        live = self.instances.find(instance_key(sent.workflow, sent.instance_id))
        if isinstance(sent.command, DeleteInstance):
            self._delete(offset, sent, sent.command.unchanged_since_ms, live, now_ms)
            return
        decision = self._decider.decide(live, sent, now_ms)
        if isinstance(decision, Rejection):
            self._reject(offset, sent, decision, live, now_ms)
            return
        live = self._commit(live, sent.workflow, sent.instance_id, decision, offset, now_ms)
        self._staging.answer(self.partition, offset, sent, None, live.run)

    def _reject(
        self,
        offset: int,
        sent: CommandSent,
        rejection: Rejection,
        live: LiveInstance | None,
        now_ms: int,
    ) -> None:
        run = live.run if live else None
        self._staging.note(offset, run, now_ms, CommandRejected(rejection.code, rejection.message))
        self._staging.answer(self.partition, offset, sent, rejection, run)
        if (notice := refusal_notice(sent, rejection, run, now_ms)) is not None:
            self._staging.effect(notice)

    def _delete(
        self,
        offset: int,
        sent: CommandSent,
        since_ms: int | None,
        live: LiveInstance | None,
        now_ms: int,
    ) -> None:
        """Forgets an instance, if others have all that it had to tell them.

        Shape:  with a time, only one to which nothing has happened since.
        """
        if live is not None and not live.may_be_deleted(since_ms):
            self._reject(offset, sent, not_deleted(live.run, since_ms), live, now_ms)
            return
        run = live.run if live else None
        if live is not None:
            self._activations.let_go(live)
            self.instances.delete(live.key)
        self._staging.note(offset, run, now_ms, InstanceDeleted())
        self._staging.answer(self.partition, offset, sent, None, None)

    # -- what code asks for

    def request(self, activation: int, request: Request, now_ms: int) -> None:
        """Decides a request of an activation, unless that is over."""
        live = self._activations.find(activation)
        if live is not None:
            self._request(live, request, now_ms)

    def handle(self, messages: Iterable[HostMessage], now_ms: int) -> None:
        """Decides what hosts send, in order, but for activations that are over."""
        for message in messages:
            if (live := self._activations.find(message.activation)) is None:
                continue
            if isinstance(message, Requested):
                if not self.sql.holds(live, message, now_ms):
                    self._request(live, message.request, now_ms)
            elif isinstance(message, Started):
                self._activations.attempt_started(live, message, now_ms)
            elif isinstance(message, HandBack):
                self._activations.hand_back(live)

    def _request(self, live: LiveInstance, request: Request, now_ms: int) -> None:
        run, engine = live.run, live.engine
        decision = self._room.fitting(live, engine, engine.decide(run, request, now_ms), now_ms)
        if not isinstance(decision, Rejection):
            self._commit(live, run.workflow, run.instance_id, decision, NO_CAUSE, now_ms)

    # -- applying

    def _commit(
        self,
        live: LiveInstance | None,
        workflow: str,
        instance_id: str,
        events: list[RunEvent],
        cause: int,
        now_ms: int,
    ) -> LiveInstance:
        """Applies events, stages their record and what follows from them."""
        begins = isinstance(events[0], RunStarted)
        if live is None:
            number, sequence = 0, 0
        elif begins:
            number, sequence = live.run.run_number + 1, 0
        else:
            number, sequence = live.run.run_number, live.run.sequence
        # So many records lie behind the epoch that the next epoch is greater than this.
        events = in_order(events, self.claims.epoch + self._staging.taken)
        record = HistoryAppended(
            workflow=workflow,
            instance_id=instance_id,
            run_number=number,
            sequence=sequence,
            epoch=self.claims.epoch,
            cause=cause,
            at_ms=now_ms,
            events=tuple(events),
        )
        if begins:
            live = self._begin(live, record)
        assert live is not None  # noqa: S101, only RunStarted comes first
        self.instances.changed.add(live.key)
        self._staging.append(live, record)
        run, engine = live.run, live.engine
        for event in events[1:] if begins else events:
            sequence_of = run.sequence
            engine.apply(run, event, now_ms)
            self._follow(live, event, sequence_of)
        self._agenda.reschedule(live)
        return live

    def _begin(self, live: LiveInstance | None, record: HistoryAppended) -> LiveInstance:
        started = record.events[0]
        assert isinstance(started, RunStarted)  # noqa: S101, the caller saw it
        if live is None:
            run = engine_of(self.instances.engines, started.kind).begin(None, record)
            live = self.instances.add(instance_key(run.workflow, run.instance_id), run)
        else:
            run = live.engine.begin(live.run, record)
            self._activations.let_go(live)
            live.run = run
        self._activations.make_ready(live, Priority.BEGIN, record.at_ms)
        return live

    def _follow(  # noqa: C901, PLR0912, PLR0915, one for each event
        self, live: LiveInstance, event: RunEvent, sequence: int
    ) -> None:
        """What an event means for the code and for others, once it is durable."""
        failed = _failed_attempt(event)
        if failed is not None:
            self._activations.attempt_failed(live, failed)
        message = live.engine.message_for_host(live.run, event, live.activation or 0, sequence)
        if message is not None:
            self._activations.send(live, message)
        match event:
            case TokenCompleted() | TokenFailed():
                self._activations.attempts_ended(live, str(event.token))
            case TokensCancelled():
                self._activations.attempts_ended(live, *map(str, event.tokens))
            case OfGraph():
                pass
            case SlotAsked() | PostsSent() | OfSlots():
                self._agenda.rest(live)
            case SlotGranted():
                self._activations.make_ready(live, Priority.BEGIN, live.run.started_at_ms)
            case StepCompleted() | StepFailed() | EntryRolledBack() | RollbackFailed():
                self._activations.attempts_ended(live, event.key)
            case EntriesCancelled():
                self._activations.cancelled(live, event.keys)
            case PostsQueued():
                self._staging.effect(Queued(live.key, event.posts))
            case RunResumed():
                live.resting = True
                self._activations.make_ready(live, Priority.CONTINUE, live.run.updated_at_ms)
            case RollbackStarted(cut_off=True):
                # Its code has lost its turn: it is run again, for its handlers.
                self._activations.let_go(live)
                self._activations.make_ready(live, Priority.CONTINUE, live.run.updated_at_ms)
            case RunSuspended():
                self._agenda.rest(live)
                live.resting = True
            case RunCompleted() | RunErrored() | RunTerminated():
                self._activations.let_go(live)
                self._agenda.rest(live)
            case (
                EntryOpened()
                | StepStarted()
                | EntryCompleted()
                | EntryErrored()
                | LogWritten()
                | EventReceived()
                | StepsRetried()
                | LoopAdvanced()
                | CancelRequested()
                | RollbackStarted()
                | HostLost()
                | RunPaused()
                | RunStarted()
            ):
                pass

    # -- what is ready, and what is due

    def dispatch(self, now_ms: int, limit: int | None = None, closed: Collection[int] = ()) -> int:
        """Gives ready instances to their hosts, at most `limit`; says how many.

        Shape:  hosts that are closed are given none.
        """
        count = 0
        while limit is None or count < limit:
            key = self._activations.ready.take(closed)
            if key is None:
                break
            live = self.instances.find(key)
            if live is None:
                continue  # It was deleted since.
            live.ready = False
            if not (live.run.ended or live.run.stands_still):
                count += self._activations.hand_out(live, now_ms, closed)
        return count

    def code_changed(self) -> None:
        """Lets go on what waited for code, and looks at limits of concurrency again."""
        waited = self._activations.take_without_code()
        for live in filter(None, map(self.instances.find, waited)):
            if live.engine.is_runnable(live.run, 0):
                self._activations.make_runnable(live)
        for live in self.instances.all_at_work():
            if live.run.kind == SLOTS:
                self._agenda.reschedule(live)

    def hosts_in_use(self) -> set[int]:
        """The numbers of hosts that have something in hand, or will be given something."""
        return self._activations.hosts()

    def urgency(self, closed: Collection[int] = ()) -> tuple[Priority, int] | None:
        """How urgent the first ready instance is, and since when; None when there is none."""
        return self._activations.ready.urgency(closed)

    def next_due_ms(self) -> int | None:
        """When time next moves something, or None; may be early, never late."""
        return self._agenda.next_due_ms()

    def wake(self, now_ms: int, reached_ms: int | None = None, *, complete: bool = False) -> None:
        """Does what is due, up to the time before which all commands are known to be here.

        Shape:  complete if those that were sent at that time are known, too.
        """
        until_ms = now_ms if reached_ms is None else reached_ms
        for (activation, key, attempt), request_of in self._agenda.attempts_due(until_ms):
            live = self._activations.find(activation)
            started = live.attempts.get(key) if live else None
            if live is not None and started is not None and started.attempt == attempt:
                self._request(live, request_of(started), now_ms)
        for key in list(self._agenda.woken(until_ms + 1 if complete else until_ms)):
            live = self.instances.find(key)
            if live is None or live.run.ended or live.run.stands_still:
                continue
            self._request(live, Wake(until_ms, complete), now_ms)
            self._activations.begin_attempts(live, until_ms)
            self._agenda.reschedule(live, after_ms=until_ms)

    # -- the outbox

    def posts_sent(self, key: str, through: int, now_ms: int) -> None:
        """Takes note that posts of an instance are acknowledged by Kafka."""
        live = self.instances.find(key)
        assert live is not None  # noqa: S101, nothing is deleted that has posts
        run = live.run
        self._commit(live, run.workflow, run.instance_id, [PostsSent(through)], NO_CAUSE, now_ms)

    # -- hosts and restarts

    def _adopt(self, live: LiveInstance) -> None:
        """Takes over an instance as the log left it."""
        run = live.run
        if run.unsent:
            self._staging.effect(Queued(live.key, tuple(run.unsent)))
        if run.ended:
            self._agenda.rest(live)
            return
        self._agenda.reschedule(live)
        if live.engine.is_runnable(run, 0):
            self._activations.make_runnable(live)
        elif not run.unsent:
            self._agenda.rest(live)

    # -- what rests, and hosts that are gone

    def evict(self, before_ms: int, acknowledged: int, position: int) -> int:
        """Keeps only the bytes of instances to which nothing has happened since a time.

        Shape:  acknowledged is the latest batch that is durable, position the offset behind it.
        """
        for loaded in self.instances.take_loaded():
            self._agenda.rest(loaded)
        resting = {}
        for since_ms, key in self._agenda.rested(before_ms):
            live = self.instances.at_work(key)
            if live is None or live.since_ms > since_ms or not live.may_be_evicted():
                continue
            if live.batch > acknowledged:
                self._agenda.rest(live)
                continue
            self._activations.let_go(live)
            if live.run.is_forgotten:
                self._staging.note(NO_CAUSE, live.run, before_ms, InstanceDeleted())
                self.instances.delete(key)
                continue
            resting[key] = live
        self.instances.evict(list(resting.values()), position)
        return len(resting)

    def host_gone(
        self, reason: str, now_ms: int, *, host: int = 0, turn: int | None = None
    ) -> None:
        """Takes back what a host had in hand; it ended, or stood still in the turn of a run.

        If the code of a run had its turn, that run is to blame; otherwise a step that was under way
        is, nobody knows which, and each has failed once more. All else runs again.
        """
        for number, live, attempts in self._activations.take_back(host):
            for started in attempts if turn is None else ():
                self._request(live, lost(started, reason), now_ms)
            if number == turn:
                self._request(live, HostGone(reason), now_ms)
            if live.engine.is_runnable(live.run, now_ms):
                self._activations.make_ready(live, Priority.CONTINUE, now_ms)


def _failed_attempt(event: RunEvent) -> str | None:
    """Return the key of the attempt that an event says has failed, if it is such an event."""
    match event:
        case StepFailed() | RollbackFailed():
            return event.key
        case EntryRolledBack() if event.failure is not None:
            return event.key
        case TokenFailed():
            return str(event.token)
        case _:
            return None
