"""The owner of a partition: an actor for each instance, one at a time.

Commands, what code asks for, and time come in; each is decided, and the events are applied to the
state in memory at once and staged for the log. What follows from them (answers to the code,
replies, posts) is held back until the log has acknowledged the staged records. So memory may be
ahead of the log, but nobody outside ever sees it: if an append fails, this object is thrown away.

Nothing here awaits, reads a clock or draws: a shell on Kafka, the harness and the simulation drive
the same object.
"""

from collections.abc import Callable, Collection, Iterable

import msgspec

from headwater.processors.replay import appliers
from headwater.processors.replay.commands import CodeCommand, HostGone, Wake
from headwater.processors.replay.decide import decide_asked, decide_command, is_stale
from headwater.processors.replay.outbox import in_order
from headwater.processors.replay.sizes import fitting
from headwater.processors.replay.step_commits import StepCommit
from headwater.processors.replay.waits import handlers_due
from headwater.processors.runs.claims import Claims
from headwater.processors.runs.decisions import Decision, Rejection
from headwater.processors.runs.limits import ENTRIES_MAX
from headwater.processors.runs.state import RunStatus
from headwater.schemas.history import (
    NO_CAUSE,
    Command,
    CommandSent,
    EntriesCancelled,
    EntryRolledBack,
    HistoryAppended,
    PostsQueued,
    PostsSent,
    RestartRun,
    RollbackFailed,
    RunCompleted,
    RunErrored,
    RunEvent,
    RunResumed,
    RunStarted,
    RunSuspended,
    RunTerminated,
    SendEvent,
    StartRun,
    StepCompleted,
    StepFailed,
    instance_key,
)
from headwater.streams.engine.agenda import Agenda, Priority
from headwater.streams.engine.attempts import lost, timed_out
from headwater.streams.engine.effects import Batch, Queued, news, unknown_workflow
from headwater.streams.engine.host_protocol import (
    Again,
    Ask,
    Drop,
    Forget,
    FromHost,
    HandlerAgain,
    Started,
    ToHost,
    activate,
)
from headwater.streams.engine.live_instances import Hand, Instances
from headwater.streams.engine.refusal_notices import back_to_sender
from headwater.streams.engine.staging import Staging


class Owner:
    """The owner of one partition.

    Shape:  claims is the fold of the partition up to the own claim, instances what it holds there,
            wakes when time moves those among them that are bytes. `workflows` may be started;
            `number_activations` gives numbers that no other activation of the process has.
    """

    def __init__(  # noqa: PLR0913, what is its own to know
        self,
        partition: int,
        claims: Claims,
        instances: Instances,
        wakes: Iterable[tuple[int, str]] = (),
        *,
        workflows: Collection[str],
        entries_max: int = ENTRIES_MAX,
        number_activations: Callable[[], int],
        draw_seed: Callable[[], str],
    ) -> None:
        self.partition = partition
        self.claims = claims
        self.instances = instances
        #: Instances that have changed since their snapshot.
        self.dirty: set[str] = set()
        #: Names of workflows that have instances here and no code.
        self.strangers: set[str] = set()
        self._workflows = workflows
        self._entries_max = entries_max
        self._number = number_activations
        self._draw_seed = draw_seed
        self._by_activation: dict[int, Hand] = {}
        self._agenda = Agenda(wakes)
        self._staging = Staging()
        # What the history told of them is in no snapshot yet.
        self.dirty.update(hand.key for hand in instances.at_work())
        for at_ms, key in wakes:
            if not at_ms:
                instances.find(key)
        for hand in instances.at_work():
            self._adopt(hand)

    # -- what is staged

    def has_work(self, *, ready: bool = True) -> bool:
        """Whether something is staged, or ready for a host."""
        return bool(self._staging) or (ready and self._agenda.has_ready)

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

    def activation(self, number: int) -> Hand | None:
        """The instance of an activation that is not over."""
        return self._by_activation.get(number)

    def activations(self) -> list[int]:
        """The activations that are not over."""
        return list(self._by_activation)

    def is_running(self) -> bool:
        """Whether the code of an instance is under way, or a step of one."""
        return any(
            not hand.resting and hand.run.status is not RunStatus.PAUSED
            for hand in self._by_activation.values()
        )

    # -- commands

    def receive(self, offset: int, sent: CommandSent, now_ms: int) -> None:
        """Decides a command; one that has its outcome already is passed over."""
        if offset <= self.claims.cause:
            return
        self.claims.cause = offset
        key = instance_key(sent.workflow, sent.instance_id)
        hand = self.instances.find(key)
        decision: Decision
        creates = _creates(sent.command, hand)
        if creates and sent.workflow not in self._workflows:
            decision = unknown_workflow(sent.workflow, self._workflows)
        else:
            decision = decide_command(
                hand.run if hand else None,
                sent.instance_id,
                sent.command,
                sent_at_ms=sent.sent_at_ms,
                now_ms=now_ms,
                seed=self._draw_seed() if creates or isinstance(sent.command, RestartRun) else "",
            )
        # Before anything is applied: the log must be able to follow.
        decision = fitting(hand.run if hand else None, decision)
        if isinstance(decision, Rejection):
            self._reject(offset, sent, decision, hand, now_ms)
            return
        hand = self._commit(hand, sent.workflow, sent.instance_id, decision, offset, now_ms)
        self._staging.answer(self.partition, offset, sent, None, hand.run)

    def _reject(
        self, offset: int, sent: CommandSent, rejection: Rejection, hand: Hand | None, now_ms: int
    ) -> None:
        run = hand.run if hand else None
        self._staging.refuse(self.claims.epoch, offset, sent, rejection, run, now_ms)
        self._staging.answer(self.partition, offset, sent, rejection, run)
        back = back_to_sender(sent, rejection, run, now_ms)
        if back is not None:
            self._staging.effect(back)

    # -- what code asks for

    def hear(self, messages: list[FromHost], now_ms: int) -> None:
        """Decides what hosts say, in order; what is said of activations that are over is not."""
        for message in messages:
            hand = self._by_activation.get(message.activation)
            if hand is None:
                continue
            if isinstance(message, Started):
                self._time(hand, message, now_ms)
            else:
                self._asked(hand, message.asked, now_ms)

    def _asked(self, hand: Hand, asked: CodeCommand | HostGone | Wake, now_ms: int) -> None:
        run = hand.run
        decision = fitting(run, decide_asked(run, asked, now_ms, self._entries_max))
        if not isinstance(decision, Rejection):
            self._commit(hand, run.workflow, run.instance_id, decision, NO_CAUSE, now_ms)

    def _time(self, hand: Hand, started: Started, now_ms: int) -> None:
        """Watches the timeout of an attempt."""
        hand.attempts[started.step.key] = started
        self._agenda.watch(started, now_ms)

    # -- applying

    def _commit(
        self,
        hand: Hand | None,
        workflow: str,
        instance_id: str,
        events: list[RunEvent],
        cause: int,
        now_ms: int,
    ) -> Hand:
        """Applies events, stages their record and what follows from them."""
        begins = isinstance(events[0], RunStarted)
        if hand is None:
            number, sequence = 0, 0
        elif begins:
            number, sequence = hand.run.run_number + 1, 0
        else:
            number, sequence = hand.run.run_number, hand.run.sequence
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
            hand = self._begin(hand, record)
        assert hand is not None  # noqa: S101, only RunStarted comes first
        self.dirty.add(hand.key)
        self._staging.append(hand, record)
        for event in events[1:] if begins else events:
            sequence_of = hand.run.sequence
            appliers.apply(hand.run, event, now_ms)
            self._follow(hand, event, sequence_of)
        self._agenda.mind(hand)
        return hand

    def _begin(self, hand: Hand | None, record: HistoryAppended) -> Hand:
        started = record.events[0]
        assert isinstance(started, RunStarted)  # noqa: S101, the caller saw it
        run = appliers.begin(hand.run if hand else None, record, started, record.at_ms)
        if hand is None:
            hand = self.instances.add(instance_key(run.workflow, run.instance_id), run)
        else:
            self._let_go(hand)
            hand.run = run
        self._agenda.make_ready(hand, Priority.RUN, record.at_ms)
        return hand

    def _follow(self, hand: Hand, event: RunEvent, sequence: int) -> None:
        """What an event means for the code and for others, once it is durable."""
        if isinstance(event, StepFailed) and hand.activation is not None:
            # It may still be running, when it took too long, or believe that it has returned.
            self._staging.effect(Drop(hand.activation, event.key))
        message = news(event, hand.run, hand.activation or 0, sequence)
        if message is not None:
            self._tell(hand, message)
        match event:
            case StepCompleted() | StepFailed() | EntryRolledBack() | RollbackFailed():
                self._attempt_ended(hand, event.key)
            case EntriesCancelled():
                self._attempt_ended(hand, *event.keys)
            case PostsQueued():
                self._staging.effect(Queued(hand.key, event.posts))
            case RunResumed():
                hand.resting = True
                self._agenda.make_ready(hand, Priority.RESUME, hand.run.updated_at_ms)
            case RunSuspended():
                self._agenda.rest(hand)
                hand.resting = True
            case RunCompleted() | RunErrored() | RunTerminated():
                self._let_go(hand)
                self._agenda.rest(hand)
            case _:
                pass

    def _attempt_ended(self, hand: Hand, *keys: str) -> None:
        for started in [hand.attempts.pop(key, None) for key in keys]:
            if started is not None:
                self._agenda.unwatch(started)

    def _tell(self, hand: Hand, message: ToHost) -> None:
        paused = hand.run.status is RunStatus.PAUSED
        if hand.activation is not None and not hand.resting and not paused:
            self._staging.effect(message)
            return
        if hand.activation is not None:
            hand.held.append(message)
        if not paused:
            priority = Priority.RETRY if isinstance(message, Again) else Priority.WAKE
            self._agenda.make_ready(hand, priority, hand.run.updated_at_ms)

    def _let_go(self, hand: Hand) -> None:
        """Takes an instance out of its host's hands."""
        if hand.activation is not None:
            self._by_activation.pop(hand.activation, None)
            self._staging.effect(Forget(hand.activation))
            hand.activation = None
        hand.resting = False
        hand.attempts.clear()
        hand.held.clear()

    # -- what is ready, and what is due

    def dispatch(self, now_ms: int, limit: int | None = None) -> int:
        """Gives ready instances to the host, at most `limit`; says how many."""
        count = 0
        while self._agenda.has_ready and (limit is None or count < limit):
            hand = self._hand(self._agenda.next_ready())
            hand.ready = False
            run = hand.run
            if run.ended or run.status is RunStatus.PAUSED:
                continue
            if run.workflow not in self._workflows:
                # Its code is not here: it stays as it is until a worker comes that has it.
                self.strangers.add(run.workflow)
                continue
            if hand.activation is None:
                hand.activation = self._number()
                self._by_activation[hand.activation] = hand
                self._staging.effect(activate(hand.activation, run, self._entries_max))
            elif hand.resting:
                self._staging.effect(*hand.held, Ask(hand.activation))
                hand.held.clear()
            hand.resting = False
            self._roll_back_again(hand, now_ms)
            count += 1
        return count

    def first_ready(self) -> tuple[Priority, int] | None:
        """How urgent the first ready instance is, and since when; None when there is none."""
        return self._agenda.first_ready

    def next_due_ms(self) -> int | None:
        """When time next moves something, or None; may be early, never late."""
        return self._agenda.next_due_ms()

    def wake(self, now_ms: int, reached_ms: int | None = None, *, heard: bool = False) -> None:
        """Does what is due, up to the time before which all commands are known to be here.

        Shape:  heard if those that were sent at that time are known, too.
        """
        until_ms = now_ms if reached_ms is None else reached_ms
        for activation, key, attempt in self._agenda.overdue(until_ms):
            hand = self._by_activation.get(activation)
            started = hand.attempts.get(key) if hand else None
            if hand is not None and started is not None and started.attempt == attempt:
                self._asked(hand, timed_out(started), now_ms)
        for key in list(self._agenda.woken(until_ms + 1 if heard else until_ms)):
            hand = self._hand(key)
            if hand.run.ended or hand.run.status is RunStatus.PAUSED:
                continue
            self._asked(hand, Wake(until_ms, heard), now_ms)
            self._roll_back_again(hand, until_ms)
            self._agenda.mind(hand, after_ms=until_ms)

    def _roll_back_again(self, hand: Hand, now_ms: int) -> None:
        """Has the run tried again that has lost its host, and rollback handlers that failed."""
        run = hand.run
        due = [key for key in handlers_due(run, now_ms) if key not in hand.attempts]
        back = 0 < run.back_at_ms <= now_ms
        if (due or back) and (hand.activation is None or hand.resting):
            self._agenda.make_ready(hand, Priority.RETRY, now_ms)
            return
        for key in due:
            hand.attempts[key] = None
            number = run.entries[key].rollback_attempts + 1
            self._staging.effect(HandlerAgain(hand.activation or 0, key, number))

    # -- the outbox

    def posts_sent(self, key: str, through: int, now_ms: int) -> None:
        """Takes note that posts of an instance are acknowledged by Kafka."""
        hand = self._hand(key)
        run = hand.run
        self._commit(hand, run.workflow, run.instance_id, [PostsSent(through)], NO_CAUSE, now_ms)

    # -- hosts and restarts

    def _hand(self, key: str) -> Hand:
        hand = self.instances.find(key)
        assert hand is not None  # noqa: S101, instances are never removed
        return hand

    def _adopt(self, hand: Hand) -> None:
        """Takes over an instance as the log left it."""
        run = hand.run
        if run.unsent:
            self._staging.effect(Queued(hand.key, tuple(run.unsent)))
        if run.ended:
            self._agenda.rest(hand)
            return
        self._agenda.mind(hand)
        if run.status is RunStatus.ACTIVE and not run.back_at_ms:
            self._agenda.make_ready(
                hand, Priority.RUN if run.sequence == 1 else Priority.WAKE, run.updated_at_ms
            )
        elif not run.unsent:
            self._agenda.rest(hand)

    def attempt_returned(self, hand: Hand, key: str) -> None:
        """An attempt has returned, and its result is not settled: it no longer takes too long.

        It stays under way: its instance is not let go, and the step is not tried again meanwhile.
        """
        self._attempt_ended(hand, key)
        hand.attempts[key] = None

    def expects(self, commit: StepCommit) -> bool:
        """Whether the result of this attempt is still wanted."""
        hand = self.instances.find(commit.key)
        if hand is None or hand.run.ended or hand.run.run_number != commit.run_number:
            return False
        returned = commit.returned
        return not is_stale(hand.run, returned.step.key, returned.attempt)

    def recover(self, commit: StepCommit, now_ms: int) -> None:
        """Completes a step whose SQL took effect, if the log does not say so yet."""
        hand = self.instances.find(commit.key)
        if hand is not None and hand.run.run_number == commit.run_number:
            entry = hand.run.entries.get(commit.returned.step.key)
            attempt = entry.attempts + 1 if entry else 1
            self._asked(hand, msgspec.structs.replace(commit.returned, attempt=attempt), now_ms)

    def evict(self, before_ms: int, acknowledged: int) -> int:
        """Keeps only the bytes of instances to which nothing has happened since a time.

        Shape:  acknowledged is the number of the latest batch that is durable; gives how many.
        """
        for warmed in self.instances.take_warmed():
            self._agenda.rest(warmed)
        count = 0
        for since_ms, key in self._agenda.rested(before_ms):
            hand = self.instances.at_hand(key)
            if hand is None or hand.since_ms > since_ms or not hand.may_cool():
                continue
            if hand.batch > acknowledged:
                self._agenda.rest(hand)
                continue
            self._let_go(hand)
            self.instances.cool(hand)
            count += 1
        return count

    def host_gone(self, reason: str, now_ms: int, *, turn: int | None = None) -> None:
        """Takes back what a host had in hand; it ended, or stood still in the turn of a run.

        If the code of a run had its turn, that run is to blame; otherwise a step that was under way
        is, nobody knows which, and each has failed once more. All else runs again.
        """
        for number, hand in list(self._by_activation.items()):
            del self._by_activation[number]
            hand.activation = None
            attempts = [started for started in hand.attempts.values() if started is not None]
            hand.attempts.clear()
            hand.held.clear()
            hand.resting = False
            for started in attempts if turn is None else ():
                self._asked(hand, lost(started, reason), now_ms)
            if number == turn:
                self._asked(hand, HostGone(reason), now_ms)
            elif hand.run.status is RunStatus.ACTIVE:
                self._agenda.make_ready(hand, Priority.WAKE, now_ms)


def _creates(command: Command, hand: Hand | None) -> bool:
    """Whether a command creates an instance if it is accepted."""
    if isinstance(command, SendEvent):
        return hand is None and command.start is not None
    return isinstance(command, StartRun)
