"""The owner of a partition: it acts for one instance at a time.

Commands, requests of code, and timers are decided by the engine of their run. Events are applied to
the state in memory at once and staged for the log. Their effects (messages for code, replies,
posts) are held back until they are durable. Memory may thus be ahead of the log, but this is never
visible outside: if an append fails, this object is discarded.

No exception is raised to the caller. An error in the decision of a command rejects that command;
any other error ends its run. `committing` describes the handling of states.
"""

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TypeVar

from headwater.processors.evaluations import Evaluator
from headwater.processors.runs.claims import Claims
from headwater.processors.runs.decisions import HostFailed, Rejection, Request, StepReturned, Wake
from headwater.processors.runs.host_messages import (
    AttemptStarted,
    HostMessage,
    Requested,
    YieldBack,
)
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
from headwater.streams.engine.activations import Activations, Priority
from headwater.streams.engine.code import Code
from headwater.streams.engine.commands import CommandDecider, Commands, RunSizeLimit
from headwater.streams.engine.committing import Committer, Containment, Ending, failure_of
from headwater.streams.engine.effects import Batch, Queued, Staging, StagingMark
from headwater.streams.engine.live_instances import LiveInstance, LiveInstances
from headwater.streams.engine.steps_with_sql import StepsWithSql
from headwater.streams.engine.timer_queue import TimerQueue, lost

T = TypeVar("T")


def _never() -> bool:
    """Return that time is not limited."""
    return False


class Owner:
    """The owner of one partition.

    Args:
        partition: Number of the partition.
        claims: Fold of the partition's records up to its own claim.
        instances: Instances of the partition.
        code: Code that runs can be started from, and where it is.
        number_activations: Returns a new number of an activation on a host.
        draw_seed: Returns a random seed for a run.
        size_limit: Size limit of runs.
        evaluator: Evaluates expressions.
    """

    def __init__(  # noqa: PLR0913, the state and dependencies of an owner
        self,
        partition: int,
        claims: Claims,
        instances: LiveInstances,
        *,
        code: Code,
        number_activations: Callable[[int], int],
        draw_seed: Callable[[], str],
        size_limit: RunSizeLimit | None = None,
        evaluator: Evaluator | None = None,
    ) -> None:
        self.partition = partition
        self.claims = claims
        #: The latest command, or key of an instance, that was decided.
        self.last_decided: CommandSent | str = ""
        self.instances = instances
        self._size_limit = size_limit = size_limit or RunSizeLimit()
        decider = CommandDecider(instances.engines, code, draw_seed, size_limit, evaluator)
        wakes = list(instances.store.wakes())
        self._timers = TimerQueue(wakes)
        self._staging = Staging(claims.epoch)
        numbers = number_activations, code.host_of
        self._activations = Activations(self._timers, self._staging, *numbers)
        parts = (claims, instances, self._staging, self._activations, self._timers)
        self._commit = (committer := Committer(*parts)).commit
        self._commit_short_step = committer.commit_short_step
        self._containment = Containment(instances, self._activations, self._staging, committer)
        self._commands = Commands(partition, decider, committer, self._containment, *parts[1:4])
        #: Returns the errors since the last call. Every error cost one command, run or instance.
        self.take_incidents = self._containment.take_incidents
        #: Steps with SQL that is being committed.
        self.sql = StepsWithSql(instances, self._activations, self._request)
        self.without_code = self._activations.without_code
        # No snapshot has the events that were read of them.
        instances.changed.update(live.key for live in instances.all_in_memory())
        for at_ms, key in wakes:
            if not at_ms:
                instances.find(key)
        for live in instances.all_in_memory():
            self._take_up(live, resend=True)
        self._containment.release_quarantined()

    # -- staging

    def has_work(self, *, ready: bool = True) -> bool:
        """Whether something is staged, or ready for a host."""
        return bool(self._staging) or (ready and bool(self._activations.ready))

    def take_batch(self) -> Batch:
        """Return what was staged since the last call."""
        return self._staging.take_batch()

    def has_staged(self) -> bool:
        """Whether records are staged: memory is then ahead of the log."""
        return self._staging.has_records

    @property
    def batch_number(self) -> int:
        """Number of the batch that is being staged."""
        return self._staging.number

    def activations(self) -> list[int]:
        """Return the numbers of all current activations."""
        return self._activations.numbers()

    def is_running(self) -> bool:
        """Whether the code of an instance, or one of its steps, is running."""
        return self._activations.are_running()

    # -- commands

    def receive(self, offset: int, sent: CommandSent, now_ms: int) -> None:
        """Decide a command. One that has an outcome already is skipped."""
        if offset <= self.claims.cause:
            return
        self.claims.cause = offset
        self.last_decided = sent
        waiting_run = self._commands.receive(offset, sent, now_ms)
        if waiting_run is not None:
            self._end(*waiting_run, now_ms)

    def note_leader(self, noted: LeaderEpochNoted, now_ms: int) -> None:
        """Record in which leader epoch commands are read, before the first of them is decided."""
        self.claims.note(noted)
        self._staging.note(NO_CAUSE, None, now_ms, noted)

    # -- messages of hosts

    def request(self, activation: int, request: Request, now_ms: int) -> None:
        """Decide a request of an activation, unless that has ended."""
        live = self._activations.find(activation)
        if live is not None:
            self._request(live, request, now_ms)

    def handle(self, messages: Iterable[HostMessage], now_ms: int) -> None:
        """Decide messages of hosts, in order, skipping activations that have ended."""
        for message in messages:
            if (live := self._activations.find(message.activation)) is None:
                continue
            if isinstance(message, Requested) and not (live.trying or live.held_behind_sql):
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
            if not self.sql.hold_back(live, message, now_ms):
                self._request(live, message.request, now_ms)
        elif isinstance(message, AttemptStarted):
            self._activations.attempt_started(live, message, now_ms)
        elif isinstance(message, YieldBack):
            self._activations.yield_back(live)

    def begin_sql(self, activation: int, returned: StepReturned, now_ms: int) -> StepCommit | None:
        """Record an attempt that returned with SQL; see `StepsWithSql.begin`."""
        live = self._activations.find(activation)
        if live is None:
            return None
        begin = partial(self.sql.begin, activation, returned)
        return self._guarded(live.key, "a step with SQL", now_ms, begin, None)

    def recover_sql(self, commit: StepCommit, now_ms: int) -> None:
        """Complete a step after its SQL took effect; see `StepsWithSql.recover`."""
        recover = partial(self.sql.recover, commit, now_ms)
        self._guarded(commit.key, "a step with SQL", now_ms, recover, None)

    def end_sql(self, commit: StepCommit, now_ms: int) -> list[HostMessage]:
        """Record that SQL has taken effect, or will not; see `StepsWithSql.ended`."""
        end = partial(self.sql.ended, commit, now_ms)
        return self._guarded(commit.key, "a step with SQL", now_ms, end, [])

    def _guarded(self, key: str, what: str, now_ms: int, work: Callable[[], T], default: T) -> T:
        """Do work for an instance. An error ends its run."""
        mark = self._containment.begin()
        try:
            return work()
        except Exception as error:  # noqa: BLE001, one instance costs no partition
            live = self.instances.in_memory(key)
            if live is None:
                self._containment.contain(error, mark, "sql", f"{what} of {key}")
            else:
                self._failed(live, error, mark, "sql", f"{what} of {key}", now_ms)
            return default

    def _request(self, live: LiveInstance, request: Request, now_ms: int) -> None:
        self.last_decided = live.key
        mark = self._containment.begin()
        try:
            run, engine = live.run, live.engine
            steps, limit = engine.short_steps, self._size_limit
            if steps and (short := steps.decide(run, request)) and limit.admits(live, short):
                self._commit_short_step(live, steps, short, now_ms)
                return
            decision = engine.decide(run, request, now_ms)
            decision = limit.enforce(live, engine, decision, now_ms)
            if not isinstance(decision, Rejection):
                self._commit(live, run.workflow, run.instance_id, decision, NO_CAUSE, now_ms)
        except Exception as error:  # noqa: BLE001, one request costs its run
            what = f"{type(request).__name__} of {live.key}"
            self._failed(live, error, mark, "request", what, now_ms)

    # -- errors

    @property
    def has_damaged(self) -> bool:
        """Whether instances are being restored. Until then nothing may be decided."""
        return bool(self._containment.damaged)

    def damaged(self) -> list[str]:
        """Return the keys of instances that must be restored from the log."""
        return list(self._containment.damaged)

    def restore_damaged(self, key: str, restored: LiveInstance | None, now_ms: int) -> None:
        """Replace the state of a damaged instance.

        Args:
            key: Key of the instance.
            restored: Its state in the log; None if its history cannot be applied.
            now_ms: Current time in Unix milliseconds.
        """
        if key not in self._containment.damaged:
            return
        ending = self._containment.damaged.pop(key)
        live = self.instances.in_memory(key)
        if live is None or restored is None:
            self._containment.quarantine(key, "its state cannot be restored from the log")
            return
        live.restore(restored.run, restored.engine)
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
        """End a run after an error."""
        self._containment.contain(error, mark, kind, what)
        self._end(live, Ending(failure_of(what, error), 0), now_ms)

    def _end(self, live: LiveInstance, ending: Ending, now_ms: int) -> None:
        """End a run through its engine, else by only recording its failure, else quarantine it."""
        failure, first = ending
        for attempt in range(first, 2):
            if self._containment.defer_end(live, Ending(failure, attempt)) or live.run.ended:
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
        if not self._containment.defer_end(live, Ending(failure, 2)):
            self._containment.quarantine(live.key, failure.message)

    # -- ready instances and timers

    def dispatch(
        self,
        now_ms: int,
        limit: int | None = None,
        closed: Collection[int] = (),
        over: Callable[[], bool] = _never,
    ) -> int:
        """Assign ready instances to their hosts, at most `limit`, and return how many.

        Hosts that are closed are assigned none. Once `over`, the rest waits for the next turn.
        """
        count = 0
        while limit is None or count < limit:
            if count and over():
                break
            key = self._activations.ready.pop(closed)
            if key is None:
                break
            live = self.instances.find(key)
            if live is None:
                continue  # It was deleted meanwhile.
            live.ready = False
            if live.damaged or live.run.ended or live.run.is_halted:
                continue
            mark = self._containment.begin()
            try:
                count += self._activations.assign(live, now_ms, closed)
            except Exception as error:  # noqa: BLE001, one run costs no partition
                what = f"assigning {key} to a host"
                self._failed(live, error, mark, "dispatch", what, now_ms)
        return count

    def code_changed(self) -> None:
        """Queue instances that waited for code, and apply changed concurrency limits."""
        waiting_keys = self._activations.take_without_code()
        for live in filter(None, map(self.instances.find, waiting_keys)):
            if not live.damaged and live.engine.is_runnable(live.run, 0):
                self._activations.make_runnable(live)
        for live in self.instances.all_in_memory():
            if live.run.kind == SLOTS and not live.damaged:
                self._timers.reschedule(live)

    def hosts_in_use(self) -> set[int]:
        """Return the numbers of hosts that hold an instance, or will be assigned one."""
        return self._activations.hosts()

    def urgency(self, closed: Collection[int] = ()) -> tuple[Priority, int] | None:
        """Return the priority of the first ready instance and since when it waits, or None."""
        return self._activations.ready.urgency(closed)

    def next_due_ms(self) -> int | None:
        """Return when the next timer is due, or None. May be early, never late."""
        return self._timers.next_due_ms()

    def wake(
        self,
        now_ms: int,
        reached_ms: int | None = None,
        *,
        complete: bool = False,
        over: Callable[[], bool] = _never,
    ) -> None:
        """Handle due timers, up to the time before which all commands are known.

        Args:
            now_ms: Current time in Unix milliseconds.
            reached_ms: That time; `now_ms` by default.
            complete: Whether commands sent in that millisecond are known, too.
            over: Whether the rest has to wait for the next turn.
        """
        until_ms = now_ms if reached_ms is None else reached_ms
        for (activation, key, attempt), request_of in self._timers.attempts_due(until_ms):
            live = self._activations.find(activation)
            started = live.attempts.get(key) if live else None
            if live is not None and started is not None and started.attempt == attempt:
                self._request(live, request_of(started), now_ms)
            if over():
                return
        woken = list(self._timers.woken(until_ms + 1 if complete else until_ms))
        for number, key in enumerate(woken):
            if number and over():
                self._timers.wake_soon(woken[number:], until_ms)
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
                self._timers.reschedule(live, after_ms=until_ms)
            except Exception as error:  # noqa: BLE001, one run costs no partition
                self._failed(live, error, mark, "timer", f"a timer of {key}", now_ms)

    # -- the outbox

    def posts_sent(self, key: str, through: int, now_ms: int) -> None:
        """Record that Kafka has acknowledged posts of an instance."""
        live = self.instances.find(key)
        if live is None or live.damaged:
            return  # It is quarantined: instances with posts are not deleted.
        run, mark = live.run, self._containment.begin()
        sent: list[RunEvent] = [PostsSent(through)]
        try:
            self._commit(live, run.workflow, run.instance_id, sent, NO_CAUSE, now_ms)
        except Exception as error:  # noqa: BLE001, one run costs no partition
            self._failed(live, error, mark, "posts", f"posts of {key}", now_ms)

    # -- restored instances

    def _take_up(self, live: LiveInstance, *, resend: bool) -> None:
        try:
            self._adopt(live, resend=resend)
        except Exception as error:  # noqa: BLE001, one instance costs no partition
            reason = failure_of("restoring it", error).message
            self._containment.quarantine(live.key, reason, error)

    def _adopt(self, live: LiveInstance, *, resend: bool) -> None:
        """Continue an instance as the log left it; with `resend` its posts are sent again."""
        run = live.run
        if run.unsent and resend:
            self._staging.effect(Queued(live.key, tuple(run.unsent)))
        if run.ended:
            self._timers.rest(live)
            return
        self._timers.reschedule(live)
        if live.engine.is_runnable(run, 0):
            self._activations.make_runnable(live)
        elif not run.unsent:
            self._timers.rest(live)

    # -- resting instances and lost hosts

    def evict(self, before_ms: int, acknowledged: int, position: int) -> int:
        """Move instances that have not changed since a time to the store.

        Args:
            before_ms: The time in Unix milliseconds.
            acknowledged: Number of the latest durable batch.
            position: Offset after that batch.
        """
        for loaded in self.instances.take_loaded():
            self._timers.rest(loaded)
        resting = {}
        for since_ms, key in self._timers.rested(before_ms):
            live = self.instances.in_memory(key)
            if live is None or live.since_ms > since_ms or not live.may_be_evicted():
                continue
            if live.batch > acknowledged:
                self._timers.rest(live)
                continue
            self._activations.release(live)
            if live.run.is_forgotten:
                self._staging.note(NO_CAUSE, live.run, before_ms, InstanceDeleted())
                self.instances.delete(key)
                continue
            resting[key] = live
        self.instances.evict(list(resting.values()), position)
        return len(resting)

    def host_lost(
        self, reason: str, now_ms: int, *, host: int = 0, turn: int | None = None
    ) -> None:
        """Reclaim what a host held that ended, or was stuck while the code of a run executed.

        If workflow code was executing, its run is to blame. Otherwise any running step may be, so
        every attempt has failed. All other runs are executed again.
        """
        for number, live, attempts in self._activations.reclaim(host):
            requests: list[Request] = [
                lost(attempt, reason) for attempt in attempts if turn is None
            ]
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
                self._failed(live, error, mark, "host", f"reclaiming {live.key}", now_ms)


def _ended(live: LiveInstance, failure: Failure, attempt: int) -> list[RunEvent]:
    """Return the events that end a run: first as its engine does, then only its failure."""
    engine, run = live.engine, live.run
    if attempt:
        return [RunErrored(failure)]
    events = fitting(engine, run, engine.fail_run(run, failure))
    assert not isinstance(events, Rejection)  # noqa: S101, the run is open
    return events
