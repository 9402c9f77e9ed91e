"""The turn loop of a worker, without I/O.

Between turns, input arrives: commands, messages of hosts, sent posts, outcomes of SQL. A turn takes
all of it, has every owner decide, and returns the batches to append. The effects of a batch
(messages for hosts, replies, posts) are released in order when its append has returned. A second
turn may run while the first append is in flight, so hosts, broker and owners work concurrently. A
partition with appends that do not return takes part in no turn, and the others continue.

Worker, harness and simulation do the I/O: they append, send, and pass the time.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from headwater.processors.runs.decisions import Rejection, StepRaised, StepReturned
from headwater.processors.runs.host_messages import Evict, HostMessage, Requested, YieldBack
from headwater.processors.runs.step_commits import StepCommit
from headwater.schemas.history import CommandSent, ReplySent, instance_key
from headwater.streams.engine.activations import Priority
from headwater.streams.engine.effects import Answer, Batch, Queued, refusal_notice
from headwater.streams.engine.restore import Outcome
from headwater.streams.engine.turns import (
    Answers,
    Flight,
    Partition,
    Released,
    StepOutcome,
    StepTransaction,
    Turn,
)

#: Numbers of hosts are below this. They are part of the numbers of activations.
HOSTS_MAX: Final = 65_536
#: Budgets of a turn in seconds, for deciding and then for assigning instances to hosts. They are
#: exceeded by at most one decision. Nothing else happens in the process meanwhile. Under load, one
#: append holds what a turn has decided, so shorter turns would make smaller appends.
SERVED_S: Final = 0.08
DISPATCHED_S: Final = 0.02
#: Messages of hosts that are decided between checks of the budget.
_MESSAGES: Final = 64
#: A tuple makes isinstance twice as fast; it is called for every message.
_ENDS_ATTEMPT: Final = (StepReturned, StepRaised)


class _LostHost(NamedTuple):
    """A lost host: the reason, the activation that was running, and all unhandled messages."""

    host: int
    reason: str
    turn: int | None
    sent: dict[int, list[HostMessage]]


class Driver:
    """Drives the owners of one process.

    Args:
        partitions: Number of all partitions, owned or not.
        wake_up: Called when input arrives that a turn may be due for.
        seconds: Monotonic clock; without it a turn decides all input.
    """

    def __init__(
        self,
        partitions: int,
        wake_up: Callable[[], None] = lambda: None,
        seconds: Callable[[], float] | None = None,
    ) -> None:
        self.wake_up = wake_up
        self.partitions: dict[int, Partition] = {}
        self.count = partitions
        self._seconds = seconds
        #: Number of the partition that was served last. The next turn begins after it.
        self._served_last = -1
        #: Whether a partition is certainly owned now. Otherwise none of its effects are released.
        self.may_release: Callable[[int], bool] = lambda _: True
        #: The partition that is being served.
        self.serving: Partition | None = None
        #: The latest activation, and by host the latest one when that host was started.
        self._last_activation = 0
        self._before_host: dict[int, int] = defaultdict(int)
        self._lost_hosts: list[_LostHost] = []
        self._steps: list[StepTransaction] = []
        self._attempts_ended = 0
        self._yielded_back = False
        self._released = Released()

    # -- partitions

    def number_activation(self, partition: int, host: int) -> int:
        """Return a new number for an activation. It encodes the partition and the host."""
        round_ = self._last_activation // (HOSTS_MAX * self.count) + 1
        self._last_activation = (round_ * HOSTS_MAX + host) * self.count + partition
        return self._last_activation

    def _host_of(self, activation: int) -> int:
        return activation // self.count % HOSTS_MAX

    def add_partition(self, partition: Partition) -> None:
        """Drive a partition from now on."""
        self.partitions[partition.number] = partition
        self.wake_up()

    def remove_partition(self, number: int) -> Partition | None:
        """Stop driving a partition. What it has in flight has no effects any more."""
        partition = self.partitions.pop(number, None)
        if partition is not None:
            self._release([Evict(activation) for activation in partition.owner.activations()])
        return partition

    def drives(self, partition: Partition) -> bool:
        """Whether this partition is driven, and was not removed or replaced."""
        return self.partitions.get(partition.number) is partition

    # -- input

    def host_sent(self, messages: Iterable[HostMessage]) -> None:
        """Accept messages of a host, in order."""
        for message in messages:
            partition = self.partitions.get(message.activation % self.count)
            if partition is not None:
                partition.messages.append(message)
        self.wake_up()

    def host_lost(self, reason: str, turn: int | None = None, *, host: int = 0) -> None:
        """Record the loss of a host, after its messages and before those of its successor.

        Args:
            reason: Why it was lost.
            turn: Activation of the run that was executing its own code, if any.
            host: Number of the host.
        """
        sent = {number: partition.messages for number, partition in self.partitions.items()}
        for partition in self.partitions.values():
            partition.messages = []
        self._lost_hosts.append(_LostHost(host, reason, turn, sent))
        self.wake_up()

    def host_started(self, host: int = 0) -> None:
        """Record the start of a host. Messages for activations before it are dropped."""
        self._before_host[host] = self._last_activation
        self.wake_up()

    def posts_sent(self, partition: int, key: str, through: int) -> None:
        """Record that the posts of an instance are durable up to this one."""
        sender = self.partitions.get(partition)
        if sender is not None:
            sender.posts_sent.append((key, through))
            self.wake_up()

    def step_settled(self, step: StepTransaction, outcome: StepOutcome) -> None:
        """Record the outcome of a step's SQL."""
        step.partition.step_outcomes.append((step, outcome))
        self.wake_up()

    def step_waits(self, step: StepTransaction) -> None:
        """Record that Postgres was unavailable for a step's SQL, which will be retried."""
        step.partition.messages[:0] = step.partition.owner.sql.mark_waiting(step.commit)
        self.wake_up()

    def messages_waiting(self) -> int:
        """Return the number of host messages that wait for a turn."""
        return sum(len(partition.messages) for partition in self.partitions.values())

    # -- turns

    def may_turn(self) -> bool:
        """Whether a partition may take part in a turn."""
        return any(partition.may_turn() for partition in self.partitions.values())

    def has_backlog(self, closed: Collection[int] = (), *, ready: bool = True) -> bool:
        """Return whether the last turn left work that could be done at once.

        Args:
            closed: Hosts that are assigned nothing.
            ready: Whether ready instances may be assigned to other hosts.
        """
        return any(
            partition.may_turn() and not partition.owner.has_damaged
            for partition in self.partitions.values()
            if partition.has_input()
            or self._is_due(partition, complete=False)
            or (ready and partition.owner.urgency(closed) is not None)
        )

    def has_input(self) -> bool:
        """Whether input has arrived since the last turn."""
        return bool(self._lost_hosts) or any(p.has_input() for p in self.partitions.values())

    def turn(
        self,
        now_ms: int,
        limit: int | None = None,
        *,
        closed: Collection[int] = (),
        complete: bool = False,
        continuing: bool = False,
    ) -> Turn:
        """Decide all input, and return what is to be appended.

        Args:
            now_ms: Current time in Unix milliseconds.
            limit: Largest number of instances assigned to hosts. Those that continue come first.
            closed: Hosts that are assigned none.
            complete: Whether all commands sent until now are known, including this millisecond.
            continuing: Whether, with a limit, no run may start.
        """
        for partition in self.partitions.values():
            partition.move_to(now_ms)
        self._handle_lost_hosts()
        served = self._in_turn()
        over = self._after(SERVED_S)
        begun = False
        for partition in served:
            # Most partitions have nothing to do in most turns.
            if not (partition.commands or partition.messages or self._is_due(partition, complete)):
                continue
            if begun and over():
                break
            begun, self._served_last = True, partition.number
            self._serve(partition, partition.now_ms, over, complete=complete)
        for partition in served:
            if partition.posts_sent or partition.step_outcomes:
                _record_outcomes(partition, partition.now_ms)
        self.serving = None
        undamaged = [partition for partition in served if not partition.owner.has_damaged]
        yielded_back, self._yielded_back = self._yielded_back, False
        # Instances that were yielded back wait until the caller permits more.
        limit = 0 if yielded_back else limit
        over = self._after(DISPATCHED_S)
        started = _dispatch(undamaged, limit, closed, over, continuing=continuing)
        flights = [
            Flight(partition, partition.owner.take_batch())
            for partition in served
            if partition.owner.has_work(ready=False)
        ]
        for partition, batch in flights:
            partition.in_flight.append(batch)
        steps, self._steps = self._steps, []
        ended, self._attempts_ended = self._attempts_ended, 0
        incidents = [incident for p in served for incident in p.owner.take_incidents()]
        return Turn(flights, steps, started, ended, yielded_back, incidents)

    def _handle_lost_hosts(self) -> None:
        """Handle the messages of lost hosts, and reclaim what they held."""
        lost_hosts, self._lost_hosts = self._lost_hosts, []
        for host, reason, turn, sent in lost_hosts:
            for number, partition in self.partitions.items():
                self.serving, now_ms = partition, partition.now_ms
                self._handle(partition, sent.get(number, []), now_ms)
                partition.owner.host_lost(reason, now_ms, host=host, turn=turn)

    def _in_turn(self) -> list[Partition]:
        """Return the partitions that take part, beginning after the one that was served last."""
        served = [partition for partition in self.partitions.values() if partition.may_turn()]
        if self._seconds is None or len(served) <= 1:
            return served
        served.sort(key=lambda partition: partition.number)
        start = sum(partition.number <= self._served_last for partition in served) % len(served)
        return served[start:] + served[:start]

    def _after(self, seconds: float) -> Callable[[], bool]:
        """Return a function that returns whether this much time has passed."""
        clock = self._seconds
        if clock is None:
            return _never
        end = clock() + seconds
        return lambda: clock() >= end

    def _serve(
        self, partition: Partition, now_ms: int, over: Callable[[], bool], *, complete: bool
    ) -> None:
        """Serve an owner until the budget is used up, or it waits for a state to be restored."""
        self.serving, owner = partition, partition.owner
        if partition.messages_first:
            self._serve_messages(partition, now_ms, over)
        decided = 0
        for offset, command in partition.commands:
            if owner.has_damaged or (decided and over()):
                break
            self._receive(partition, offset, command, now_ms)
            decided += 1
        partition.decided(decided)
        if not partition.messages_first:
            self._serve_messages(partition, now_ms, over)
        # Alternate between commands and messages, so that neither starves.
        partition.messages_first = bool(partition.messages)
        if not owner.has_damaged and self._is_due(partition, complete):
            owner.wake(now_ms, self._reached_ms(partition), complete=complete, over=over)

    def _is_due(self, partition: Partition, complete: bool) -> bool:
        due_ms = partition.owner.next_due_ms()
        return due_ms is not None and due_ms <= self._reached_ms(partition) + complete

    @staticmethod
    def _reached_ms(partition: Partition) -> int:
        return min(partition.reached_ms, partition.now_ms)

    def _serve_messages(self, partition: Partition, now_ms: int, over: Callable[[], bool]) -> None:
        messages, handled = partition.messages, 0
        partition.messages = []
        while handled < len(messages) and not partition.owner.has_damaged:
            some = messages[handled : handled + _MESSAGES] if self._seconds else messages
            self._handle(partition, some, now_ms)
            handled += len(some)
            if over():
                break
        # Messages that were added meanwhile had been held back before: they come first.
        partition.messages += messages[handled:]

    def _receive(self, partition: Partition, offset: int, sent: CommandSent, now_ms: int) -> None:
        known = partition.outcomes.pop(offset, None)
        if known is None:
            partition.owner.receive(offset, sent, now_ms)
        else:
            # Its outcome was recorded by an earlier owner, and its reply may not have been sent.
            self._released.answers.append(_repeated_answer(partition, offset, sent, known, now_ms))

    def _handle(self, partition: Partition, messages: list[HostMessage], now_ms: int) -> None:
        """Pass host messages to an owner, except for SQL of steps, which must commit first."""
        owner = partition.owner
        ready: list[HostMessage] = []
        for message in messages:
            request = message.request if isinstance(message, Requested) else None
            if not isinstance(request, _ENDS_ATTEMPT):
                self._yielded_back |= isinstance(message, YieldBack)
                ready.append(message)
                continue
            self._attempts_ended += 1
            if isinstance(request, StepReturned) and request.statements:
                owner.handle(ready, now_ms)
                ready = []
                commit = owner.begin_sql(message.activation, request, now_ms)
                if commit is not None:
                    self._steps.append(StepTransaction(partition, message.activation, commit))
            else:
                ready.append(message)
        owner.handle(ready, now_ms)

    # -- effects

    def appended(self, flight: Flight, first: int | None) -> None:
        """Record that an append has returned. Its effects wait for earlier batches.

        Args:
            flight: What was appended.
            first: Offset of its first record. None if the append was abandoned or its outcome is
                unknown; it then has no effects.
        """
        partition = flight.partition
        was_full = not partition.may_turn()
        partition.landed[flight.batch.number] = first
        self._release_landed(partition)
        # Most appends leave nothing to decide until their effects have answers.
        if was_full or partition.has_work():
            self.wake_up()

    def release_confirmed(self) -> None:
        """Release effects of batches that waited for the ownership of their partition."""
        for partition in self.partitions.values():
            self._release_landed(partition)
        self.wake_up()

    def _release_landed(self, partition: Partition) -> None:
        while partition.in_flight and partition.in_flight[0].number in partition.landed:
            if self.drives(partition) and not self.may_release(partition.number):
                return
            batch = partition.in_flight.popleft()
            landed = partition.landed.pop(batch.number)
            if landed is not None and self.drives(partition):
                self._release_effects(partition, batch, landed)

    def take_released(self) -> Released:
        """Return what may be sent since the last call."""
        released, self._released = self._released, Released()
        return released

    def _release_effects(self, partition: Partition, batch: Batch, first: int) -> None:
        """Release the effects of a durable batch."""
        partition.acknowledged = batch.number
        if batch.records:
            partition.position = first + len(batch.records)
        released = self._released
        to_host: list[HostMessage] = []
        answers: list[Answer] = []
        notices: list[CommandSent] = []
        for effect in batch.effects:
            match effect:
                case HostMessage():
                    to_host.append(effect)
                case Queued():
                    released.posts.append((partition, effect))
                case Answer():
                    answers.append(effect)
                case CommandSent():
                    notices.append(effect)
        self._release(to_host)
        if answers:
            replies = [(answer.to, _with_position(answer, first)) for answer in answers]
            released.answers.append(Answers(partition, answers[-1].cause, replies, notices))
        while partition.settled and partition.settled[0][0] <= batch.number:
            released.recorded.append((partition, partition.settled.pop(0)[1]))

    def _release(self, messages: Iterable[HostMessage]) -> None:
        """Release messages to hosts, except those for a lost predecessor."""
        for message in messages:
            host = self._host_of(message.activation)
            if message.activation > self._before_host[host]:
                self._released.to_hosts[host].append(message)


def _never() -> bool:
    """Return that time is not limited."""
    return False


def recover(partition: Partition, commit: StepCommit, now_ms: int) -> None:
    """Complete a step after its SQL took effect. Its row is kept until the log has the result."""
    if commit.key in partition.owner.instances.quarantined:
        return  # Its row must stay until the instance continues.
    partition.owner.recover_sql(commit, now_ms)
    if commit.key in partition.owner.damaged():
        return
    partition.settled.append((partition.owner.batch_number, commit.id))


def _record_outcomes(partition: Partition, now_ms: int) -> None:
    """Record sent posts, and outcomes of the SQL of steps."""
    owner = partition.owner
    sent, partition.posts_sent = partition.posts_sent, []
    for number, (key, through) in enumerate(sent):
        if owner.has_damaged:
            partition.posts_sent = sent[number:]
            return
        owner.posts_sent(key, through, now_ms)
    outcomes, partition.step_outcomes = partition.step_outcomes, []
    for number, (step, outcome) in enumerate(outcomes):
        if owner.has_damaged:
            partition.step_outcomes = outcomes[number:]
            return
        if isinstance(outcome, StepRaised):
            owner.request(step.activation, outcome, now_ms)
        elif outcome is not None:
            # The step has taken effect even if its host was lost meanwhile.
            recover(partition, msgspec.structs.replace(step.commit, returned=outcome), now_ms)
        partition.messages[:0] = owner.end_sql(step.commit, now_ms)


def _dispatch(
    partitions: Sequence[Partition],
    limit: int | None,
    closed: Collection[int],
    over: Callable[[], bool],
    *,
    continuing: bool,
) -> int:
    """Assign ready instances to hosts; with a limit the most urgent of all owners first."""
    if limit is None:
        return sum(p.owner.dispatch(p.now_ms, closed=closed, over=over) for p in partitions)
    started = 0
    while started < limit:
        ready = [
            (urgency, number, partition)
            for number, partition in enumerate(partitions)
            if (urgency := partition.owner.urgency(closed)) is not None
            and not (continuing and urgency[0] is Priority.BEGIN)
        ]
        if not ready:
            break
        first = min(ready)[2]
        started += first.owner.dispatch(first.now_ms, 1, closed)
    return started


def _repeated_answer(
    partition: Partition, offset: int, sent: CommandSent, outcome: Outcome, now_ms: int
) -> Answers:
    reply = ReplySent(
        command_id=sent.command_id,
        code=outcome.code,
        message=outcome.message,
        status=outcome.status,
        run_number=outcome.run_number,
        partition=partition.number,
        position=outcome.position,
        lease_until_ms=outcome.lease_until_ms,
    )
    notice = None
    if outcome.code:
        live = partition.owner.instances.find(instance_key(sent.workflow, sent.instance_id))
        rejection = Rejection(outcome.code, outcome.message)
        notice = refusal_notice(sent, rejection, live.run if live else None, now_ms)
    return Answers(partition, offset, [(sent.reply_to, reply)], [notice] if notice else [])


def _with_position(answer: Answer, first: int) -> ReplySent:
    return msgspec.structs.replace(answer.reply, position=first + answer.at)
