"""The owner of a partition: an actor for each instance, one at a time.

Commands, what code asks for, and time are decided by the engine of their run. The events are
applied to the state in memory at once and staged for the log; what follows from them (messages for
the code, replies, posts) is held back until they are durable. So memory may be ahead of the log,
but nobody outside ever sees it: if an append fails, this object is thrown away.

No exception leaves it. One that comes up while a command is decided rejects that command; any other
ends the run that it is about. `containment` says what becomes of states.
"""

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TypeVar

from headwater.processors.evaluations import Evaluator
from headwater.processors.runs.claims import Claims
from headwater.processors.runs.decisions import Rejection
from headwater.processors.runs.host_messages import (
    AttemptStarted,
    HostMessage,
    Requested,
    YieldBack,
)
from headwater.processors.runs.requests import HostFailed, Request, StepReturned, Wake
from headwater.processors.runs.sizes import fitting
from headwater.processors.runs.slots import SLOTS
from headwater.processors.runs.step_commits import StepCommit
from headwater.schemas.history import (
    NO_CAUSE,
    CommandSent,
    Failure,
    InstanceDeleted,
    LeaderEpochNoted,
    PostsSent,
    RunErrored,
    RunEvent,
)
from headwater.streams.engine.activations import Activations
from headwater.streams.engine.agenda import Agenda
from headwater.streams.engine.attempts import lost
from headwater.streams.engine.code import Code
from headwater.streams.engine.commands import Commands
from headwater.streams.engine.committing import Committer
from headwater.streams.engine.containment import Containment, Ending, failure_of
from headwater.streams.engine.deciding import CommandDecider
from headwater.streams.engine.effects import Batch, Queued
from headwater.streams.engine.live_instances import LiveInstance, LiveInstances
from headwater.streams.engine.ready import Priority
from headwater.streams.engine.room import Room
from headwater.streams.engine.staging import Staging, StagingMark
from headwater.streams.engine.steps_with_sql import StepsWithSql

T = TypeVar("T")


def _never() -> bool:
    """Tell that there is time for everything."""
    return False


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
        #: What was decided last: a command, or the key of an instance.
        self.at_work: CommandSent | str = ""
        self.instances = instances
        self._room = room = room or Room()
        decider = CommandDecider(instances.engines, code, draw_seed, room, evaluator)
        self._agenda = Agenda(wakes)
        self._staging = Staging(claims.epoch)
        numbers = number_activations, code.host_of
        self._activations = Activations(self._agenda, self._staging, *numbers)
        parts = (claims, instances, self._staging, self._activations, self._agenda)
        self._commit = (committer := Committer(*parts)).commit
        self._containment = Containment(instances, self._activations, self._staging, committer)
        self._commands = Commands(partition, decider, committer, self._containment, *parts[1:4])
        #: Errors since the last call, each of which cost one command, run or instance.
        self.take_incidents = self._containment.take_incidents
        #: The steps whose SQL takes effect.
        self.sql = StepsWithSql(instances, self._activations, self._request)
        self.without_code = self._activations.without_code
        # What the history says of them is in no snapshot yet.
        instances.changed.update(live.key for live in instances.all_at_work())
        for at_ms, key in wakes:
            if not at_ms:
                instances.find(key)
        for live in instances.all_at_work():
            self._take_up(live, resend=True)
        self._containment.release_quarantined()

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
        self.at_work = sent
        run_waits_for = self._commands.receive(offset, sent, now_ms)
        if run_waits_for is not None:
            self._end(*run_waits_for, now_ms)

    def note_leader(self, noted: LeaderEpochNoted, now_ms: int) -> None:
        """Record in which leader epoch commands are read, before the first of them is decided."""
        self.claims.note(noted)
        self._staging.note(NO_CAUSE, None, now_ms, noted)

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
            if isinstance(message, Requested) and not (live.trying or live.behind_sql):
                self._request(live, message.request, now_ms)
                continue
            mark = self._containment.begin()
            try:
                self._handle(live, message, now_ms)
            except Exception as error:  # noqa: BLE001, one message costs its run
                what = f"{type(message).__name__} of {live.key}"
                self._failed(live, error, mark, "message", what, now_ms)

    def _handle(self, live: LiveInstance, message: HostMessage, now_ms: int) -> None:
        if isinstance(message, Requested):
            if not self.sql.holds(live, message, now_ms):
                self._request(live, message.request, now_ms)
        elif isinstance(message, AttemptStarted):
            self._activations.attempt_started(live, message, now_ms)
        elif isinstance(message, YieldBack):
            self._activations.hand_back(live)

    def begin_sql(self, activation: int, returned: StepReturned, now_ms: int) -> StepCommit | None:
        """Take note of an attempt that returned with SQL; see `StepsWithSql.begin`."""
        live = self._activations.find(activation)
        if live is None:
            return None
        begin = partial(self.sql.begin, activation, returned)
        return self._guarded(live.key, "a step with SQL", now_ms, begin, None)

    def recover_sql(self, commit: StepCommit, now_ms: int) -> None:
        """Complete a step whose SQL took effect; see `StepsWithSql.recover`."""
        recover = partial(self.sql.recover, commit, now_ms)
        self._guarded(commit.key, "a step with SQL", now_ms, recover, None)

    def end_sql(self, commit: StepCommit, now_ms: int) -> list[HostMessage]:
        """Take note that SQL has taken effect, or will not; see `StepsWithSql.ended`."""
        end = partial(self.sql.ended, commit, now_ms)
        return self._guarded(commit.key, "a step with SQL", now_ms, end, [])

    def _guarded(self, key: str, what: str, now_ms: int, work: Callable[[], T], default: T) -> T:
        """Do something for an instance; an error ends its run."""
        mark = self._containment.begin()
        try:
            return work()
        except Exception as error:  # noqa: BLE001, one instance costs no partition
            live = self.instances.at_work(key)
            if live is None:
                self._containment.contain(error, mark, "sql", f"{what} of {key}")
            else:
                self._failed(live, error, mark, "sql", f"{what} of {key}", now_ms)
            return default

    def _request(self, live: LiveInstance, request: Request, now_ms: int) -> None:
        self.at_work = live.key
        mark = self._containment.begin()
        try:
            run, engine = live.run, live.engine
            decision = self._room.fitting(live, engine, engine.decide(run, request, now_ms), now_ms)
            if not isinstance(decision, Rejection):
                self._commit(live, run.workflow, run.instance_id, decision, NO_CAUSE, now_ms)
        except Exception as error:  # noqa: BLE001, one request costs its run
            what = f"{type(request).__name__} of {live.key}"
            self._failed(live, error, mark, "request", what, now_ms)

    # -- errors

    @property
    def has_damaged(self) -> bool:
        """Whether instances wait for their state: until then nothing more may be decided."""
        return bool(self._containment.damaged)

    def damaged(self) -> list[str]:
        """The keys of the instances whose states have to be read again from the log."""
        return list(self._containment.damaged)

    def restored(self, key: str, found: LiveInstance | None, now_ms: int) -> None:
        """Give a damaged instance its state as the log has it.

        Args:
            key: The instance.
            found: Its state; None if the history cannot be applied.
            now_ms: The time.
        """
        if key not in self._containment.damaged:
            return
        ending = self._containment.damaged.pop(key)
        live = self.instances.at_work(key)
        if live is None or found is None:
            self._containment.quarantine(key, "its state cannot be restored from the log")
            return
        live.restore(found.run, found.engine)
        self._take_up(live, resend=ending is not None)
        if ending is not None and not live.damaged:
            self._end(live, ending, now_ms)

    def _failed(
        self,
        live: LiveInstance,
        error: Exception,
        mark: StagingMark,
        kind: str,
        what: str,
        now_ms: int,
    ) -> None:
        """End a run of which something cannot be decided."""
        self._containment.contain(error, mark, kind, what)
        self._end(live, Ending(failure_of(what, error), 0), now_ms)

    def _end(self, live: LiveInstance, ending: Ending, now_ms: int) -> None:
        """End a run as its engine does, else by nothing but its failure, else quarantine it."""
        failure, first = ending
        for attempt in range(first, 2):
            if self._containment.ends_later(live, Ending(failure, attempt)) or live.run.ended:
                return
            if live.run.kind == SLOTS:
                break
            mark = self._containment.begin()
            try:
                events = _ended(live, failure, attempt)
                live.bytes_most = None
                who = live.run.workflow, live.run.instance_id
                self._commit(live, *who, events, NO_CAUSE, now_ms)
            except Exception as error:  # noqa: BLE001, then the next attempt
                self._containment.contain(error, mark, "end", f"the end of {live.key}")
                continue
            return
        if not self._containment.ends_later(live, Ending(failure, 2)):
            self._containment.quarantine(live.key, failure.message)

    # -- what is ready, and what is due

    def dispatch(
        self,
        now_ms: int,
        limit: int | None = None,
        closed: Collection[int] = (),
        over: Callable[[], bool] = _never,
    ) -> int:
        """Give ready instances to their hosts, at most `limit`; return how many.

        Hosts that are closed are given none. Once it is over, the others wait for the next turn.
        """
        count = 0
        while limit is None or count < limit:
            if count and over():
                break
            key = self._activations.ready.take(closed)
            if key is None:
                break
            live = self.instances.find(key)
            if live is None:
                continue  # It was deleted since.
            live.ready = False
            if live.damaged or live.run.ended or live.run.is_halted:
                continue
            mark = self._containment.begin()
            try:
                count += self._activations.hand_out(live, now_ms, closed)
            except Exception as error:  # noqa: BLE001, one run costs no partition
                what = f"to hand {key} to a host"
                self._failed(live, error, mark, "dispatch", what, now_ms)
        return count

    def code_changed(self) -> None:
        """Lets go on what waited for code, and looks at limits of concurrency again."""
        waited = self._activations.take_without_code()
        for live in filter(None, map(self.instances.find, waited)):
            if not live.damaged and live.engine.is_runnable(live.run, 0):
                self._activations.make_runnable(live)
        for live in self.instances.all_at_work():
            if live.run.kind == SLOTS and not live.damaged:
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

    def wake(
        self,
        now_ms: int,
        reached_ms: int | None = None,
        *,
        complete: bool = False,
        over: Callable[[], bool] = _never,
    ) -> None:
        """Do what is due, up to the time before which all commands are known to be here.

        Args:
            now_ms: The time.
            reached_ms: That time, `now_ms` without one.
            complete: Whether those that were sent at that time are known, too.
            over: Whether the rest has to wait for the next turn.
        """
        until_ms = now_ms if reached_ms is None else reached_ms
        for (activation, key, attempt), request_of in self._agenda.attempts_due(until_ms):
            live = self._activations.find(activation)
            started = live.attempts.get(key) if live else None
            if live is not None and started is not None and started.attempt == attempt:
                self._request(live, request_of(started), now_ms)
            if over():
                return
        woken = list(self._agenda.woken(until_ms + 1 if complete else until_ms))
        for number, key in enumerate(woken):
            if number and over():
                self._agenda.wake_soon(woken[number:], until_ms)
                return
            live = self.instances.find(key)
            if live is None or live.damaged or live.run.ended or live.run.is_halted:
                continue
            self._request(live, Wake(until_ms, complete), now_ms)
            if key in self._containment.damaged or key in self.instances.quarantined:
                continue
            mark = self._containment.begin()
            try:
                self._activations.begin_attempts(live, until_ms)
                self._agenda.reschedule(live, after_ms=until_ms)
            except Exception as error:  # noqa: BLE001, one run costs no partition
                self._failed(live, error, mark, "timer", f"a timer of {key}", now_ms)

    # -- the outbox

    def posts_sent(self, key: str, through: int, now_ms: int) -> None:
        """Takes note that posts of an instance are acknowledged by Kafka."""
        live = self.instances.find(key)
        if live is None or live.damaged:
            return  # It is quarantined: nothing is deleted that has posts.
        run, mark = live.run, self._containment.begin()
        sent: list[RunEvent] = [PostsSent(through)]
        try:
            self._commit(live, run.workflow, run.instance_id, sent, NO_CAUSE, now_ms)
        except Exception as error:  # noqa: BLE001, one run costs no partition
            self._failed(live, error, mark, "posts", f"posts of {key}", now_ms)

    # -- hosts and restarts

    def _take_up(self, live: LiveInstance, *, resend: bool) -> None:
        try:
            self._adopt(live, resend=resend)
        except Exception as error:  # noqa: BLE001, one instance costs no partition
            reason = failure_of("to take it over", error).message
            self._containment.quarantine(live.key, reason, error)

    def _adopt(self, live: LiveInstance, *, resend: bool) -> None:
        """Take over an instance as the log left it; with `resend` its posts are sent again."""
        run = live.run
        if run.unsent and resend:
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
        """Keep only the bytes of instances that have not changed since a time.

        Args:
            before_ms: The time.
            acknowledged: The latest batch that is durable.
            position: The offset after that batch.
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
            requests: list[Request] = [lost(each, reason) for each in attempts if turn is None]
            if number == turn:
                requests.append(HostFailed(reason))
            for request in requests:
                if not live.damaged:
                    self._request(live, request, now_ms)
            mark = self._containment.begin()
            try:
                if not live.damaged and live.engine.is_runnable(live.run, now_ms):
                    self._activations.make_ready(live, Priority.CONTINUE, now_ms)
            except Exception as error:  # noqa: BLE001, one run costs no partition
                self._failed(live, error, mark, "host", f"to take back {live.key}", now_ms)


def _ended(live: LiveInstance, failure: Failure, attempt: int) -> list[RunEvent]:
    """Return the events that end a run: first as its engine does, then nothing but its failure."""
    engine, run = live.engine, live.run
    if attempt:
        return [RunErrored(failure)]
    events = fitting(engine, run, engine.fail_run(run, failure))
    assert not isinstance(events, Rejection)  # noqa: S101, it has a run that is under way
    return events
