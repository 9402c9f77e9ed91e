"""The turn loop of a worker, without I/O.

Between turns, things come in: commands, messages of hosts, posts that were sent, SQL of steps that
is settled. A turn takes all of it, has every owner decide, and gives the batches to append.
What follows from a batch (messages for hosts, replies, posts) is released when its append has
returned, after those of its partition before it. A second turn may be taken while the first append
is under way, so hosts, broker and owners work at the same time. A partition whose appends do not
return takes part in no turn, and the others go on.

Worker, harness and simulation bring the world: they append, send, and say what time it is.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from headwater.processors.runs.decisions import Rejection
from headwater.processors.runs.host_messages import Evict, HostMessage, Requested, YieldBack
from headwater.processors.runs.requests import StepRaised, StepReturned
from headwater.processors.runs.step_commits import StepCommit
from headwater.schemas.history import CommandSent, ReplySent, instance_key
from headwater.streams.engine.effects import Answer, Batch, Queued
from headwater.streams.engine.ready import Priority
from headwater.streams.engine.refusal_notices import refusal_notice
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

#: Hosts of a process have numbers below this, which is part of each activation's.
HOSTS_MAX: Final = 65_536
#: How long commands, messages and timers are decided in one turn, and how long instances are
#: handed out after that; nothing else happens in the process meanwhile. A turn takes longer only by
#: what is decided when that is over. Under load one append holds what a turn has decided: shorter
#: turns would make smaller appends.
SERVED_S: Final = 0.08
DISPATCHED_S: Final = 0.02
#: Messages of hosts that are decided before the time is looked at.
_MESSAGES: Final = 64
#: As a tuple twice as fast to look at, for every message.
_ENDS_ATTEMPT: Final = (StepReturned, StepRaised)


class _HostGone(NamedTuple):
    """A host that is gone, why, whose turn it was, and what all hosts had sent until then."""

    host: int
    reason: str
    turn: int | None
    sent: dict[int, list[HostMessage]]


class Driver:
    """Drives the owners of one process.

    Args:
        partitions: How many there are in all, owned or not.
        wake_up: Called when something comes that a turn may be due for.
        seconds: A clock that never goes back; without it a turn decides all that there is.
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
        #: The partition that was served last, by its number: the next turn begins behind it.
        self._served_last = -1
        #: Whether a partition is surely owned now; nothing of one that is not is released.
        self.may_release: Callable[[int], bool] = lambda _: True
        #: The partition that has its turn, if one has.
        self.serving: Partition | None = None
        #: The latest activation, and by host the latest before the present one was started.
        self._last_activation = 0
        self._before_host: dict[int, int] = defaultdict(int)
        self._gone: list[_HostGone] = []
        self._steps: list[StepTransaction] = []
        self._attempts_ended = 0
        self._handed_back = False
        self._released = Released()

    # -- partitions

    def number_activation(self, partition: int, host: int) -> int:
        """A number that no activation had, and that says whose it is and which host has it."""
        round_ = self._last_activation // (HOSTS_MAX * self.count) + 1
        self._last_activation = (round_ * HOSTS_MAX + host) * self.count + partition
        return self._last_activation

    def _host_of(self, activation: int) -> int:
        return activation // self.count % HOSTS_MAX

    def take_on(self, partition: Partition) -> None:
        """Drives a partition from now on."""
        self.partitions[partition.number] = partition
        self.wake_up()

    def give_up(self, number: int) -> Partition | None:
        """Drives a partition no longer: nothing follows any more from what it has under way."""
        partition = self.partitions.pop(number, None)
        if partition is not None:
            self._release([Evict(each) for each in partition.owner.activations()])
        return partition

    def drives(self, partition: Partition) -> bool:
        """Whether this one was not given up, nor taken over again."""
        return self.partitions.get(partition.number) is partition

    # -- what comes in

    def host_sent(self, messages: Iterable[HostMessage]) -> None:
        """Takes what a host sends, in order."""
        for message in messages:
            partition = self.partitions.get(message.activation % self.count)
            if partition is not None:
                partition.messages.append(message)
        self.wake_up()

    def host_gone(self, reason: str, turn: int | None = None, *, host: int = 0) -> None:
        """Note that a host has ended: after all that it sent, and before messages of another.

        Args:
            reason: Why it ended.
            turn: The activation whose own code was running, if one was.
            host: The number of the host.
        """
        sent = {number: each.messages for number, each in self.partitions.items()}
        for partition in self.partitions.values():
            partition.messages = []
        self._gone.append(_HostGone(host, reason, turn, sent))
        self.wake_up()

    def host_started(self, host: int = 0) -> None:
        """Takes note that a host was started: what was for those before it concerns it not."""
        self._before_host[host] = self._last_activation
        self.wake_up()

    def posts_sent(self, partition: int, key: str, through: int) -> None:
        """Takes note that the posts of an instance are durable up to this one."""
        sender = self.partitions.get(partition)
        if sender is not None:
            sender.posts_sent.append((key, through))
            self.wake_up()

    def step_settled(self, step: StepTransaction, outcome: StepOutcome) -> None:
        """Takes note of what became of the SQL of a step."""
        step.partition.step_outcomes.append((step, outcome))
        self.wake_up()

    def step_waits(self, step: StepTransaction) -> None:
        """Takes note that Postgres could not be asked for the SQL of a step, and will be again."""
        step.partition.messages[:0] = step.partition.owner.sql.waits(step.commit)
        self.wake_up()

    def messages_waiting(self) -> int:
        """How many messages of hosts wait for a turn."""
        return sum(len(partition.messages) for partition in self.partitions.values())

    # -- turns

    def may_turn(self) -> bool:
        """Whether a partition may take part in a turn."""
        return any(partition.may_turn() for partition in self.partitions.values())

    def has_left(self, closed: Collection[int] = (), *, ready: bool = True) -> bool:
        """Return whether the last turn had no time for something that may be done at once.

        Args:
            closed: Hosts that may be given nothing.
            ready: Whether ready instances may be given to the others.
        """
        return any(
            partition.may_turn() and not partition.owner.has_damaged
            for partition in self.partitions.values()
            if partition.commands
            or partition.messages
            or (ready and partition.owner.urgency(closed) is not None)
        )

    def has_input(self) -> bool:
        """Whether something came in since the last turn."""
        return bool(self._gone) or any(each.has_input() for each in self.partitions.values())

    def turn(
        self,
        now_ms: int,
        limit: int | None = None,
        *,
        closed: Collection[int] = (),
        complete: bool = False,
        continuing: bool = False,
    ) -> Turn:
        """Decide what came in, and return what is to be appended.

        Args:
            now_ms: The time.
            limit: How many instances are given to hosts, at most; those that go on come first.
            closed: Hosts that are given none.
            complete: Whether all that was sent until now is known, this moment included.
            continuing: Whether, with a limit, no instance may begin.
        """
        for partition in self.partitions.values():
            partition.move_to(now_ms)
        self._take_back()
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
                _take_notes(partition, partition.now_ms)
        self.serving = None
        sound = [partition for partition in served if not partition.owner.has_damaged]
        handed_back, self._handed_back = self._handed_back, False
        # What was handed back waits until somebody allows more.
        limit = 0 if handed_back else limit
        over = self._after(DISPATCHED_S)
        started = _dispatch(sound, limit, closed, over, continuing=continuing)
        flights = [
            Flight(partition, partition.owner.take())
            for partition in served
            if partition.owner.has_work(ready=False)
        ]
        for partition, batch in flights:
            partition.under_way.append(batch)
        steps, self._steps = self._steps, []
        ended, self._attempts_ended = self._attempts_ended, 0
        incidents = [each for one in served for each in one.owner.take_incidents()]
        return Turn(flights, steps, started, ended, handed_back, incidents)

    def _take_back(self) -> None:
        """Takes back what hosts had that are gone, after all that they sent."""
        gone, self._gone = self._gone, []
        for host, reason, turn, sent in gone:
            for number, partition in self.partitions.items():
                self.serving, now_ms = partition, partition.now_ms
                self._handle(partition, sent.get(number, []), now_ms)
                partition.owner.host_gone(reason, now_ms, host=host, turn=turn)

    def _in_turn(self) -> list[Partition]:
        """Return the partitions that take part, beginning behind the one that was served last."""
        served = [partition for partition in self.partitions.values() if partition.may_turn()]
        if self._seconds is None or len(served) <= 1:
            return served
        served.sort(key=lambda partition: partition.number)
        at = sum(partition.number <= self._served_last for partition in served) % len(served)
        return served[at:] + served[:at]

    def _after(self, seconds: float) -> Callable[[], bool]:
        """Return what tells whether so many seconds are over."""
        clock = self._seconds
        if clock is None:
            return _never
        end = clock() + seconds
        return lambda: clock() >= end

    def _serve(
        self, partition: Partition, now_ms: int, over: Callable[[], bool], *, complete: bool
    ) -> None:
        """Give an owner what has come for it, until that is over, or it waits for a state."""
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
        # Of commands and messages, those that have waited come first the next time.
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
        # What came up meanwhile was held back before: it is behind none of these.
        partition.messages += messages[handled:]

    def _receive(self, partition: Partition, offset: int, sent: CommandSent, now_ms: int) -> None:
        known = partition.outcomes.pop(offset, None)
        if known is None:
            partition.owner.receive(offset, sent, now_ms)
        else:
            # Its outcome was recorded before we came; whether anybody heard of it, nobody knows.
            self._released.answers.append(_answered_again(partition, offset, sent, known, now_ms))

    def _handle(self, partition: Partition, messages: list[HostMessage], now_ms: int) -> None:
        """Gives an owner what its host sends, but for SQL of steps, which takes effect first."""
        owner = partition.owner
        ready: list[HostMessage] = []
        for message in messages:
            request = message.request if isinstance(message, Requested) else None
            if not isinstance(request, _ENDS_ATTEMPT):
                self._handed_back |= isinstance(message, YieldBack)
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

    # -- what follows

    def appended(self, flight: Flight, first: int | None) -> None:
        """Note that an append has returned; its effects wait for the batches before.

        Args:
            flight: What was appended.
            first: The offset of its first record; None if it was given up, or its outcome is not
                known. Then it has no effects.
        """
        flight.partition.landed[flight.batch.number] = first
        self._follow_landed(flight.partition)
        self.wake_up()

    def release_confirmed(self) -> None:
        """Release what follows from batches that waited for their partition to be confirmed."""
        for partition in self.partitions.values():
            self._follow_landed(partition)
        self.wake_up()

    def _follow_landed(self, partition: Partition) -> None:
        while partition.under_way and partition.under_way[0].number in partition.landed:
            if self.drives(partition) and not self.may_release(partition.number):
                return
            batch = partition.under_way.popleft()
            landed = partition.landed.pop(batch.number)
            if landed is not None and self.drives(partition):
                self._follow(partition, batch, landed)

    def take_released(self) -> Released:
        """Gives what may go out since the last call."""
        released, self._released = self._released, Released()
        return released

    def _follow(self, partition: Partition, batch: Batch, first: int) -> None:
        """Lets go what follows from a batch that is durable."""
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
            replies = [(each.to, _placed(each, first)) for each in answers]
            released.answers.append(Answers(partition, answers[-1].cause, replies, notices))
        while partition.settled and partition.settled[0][0] <= batch.number:
            released.recorded.append((partition, partition.settled.pop(0)[1]))

    def _release(self, messages: Iterable[HostMessage]) -> None:
        """Sends hosts messages, except those for a host before them."""
        for message in messages:
            host = self._host_of(message.activation)
            if message.activation > self._before_host[host]:
                self._released.to_hosts[host].append(message)


def _never() -> bool:
    """Tell that there is time for everything."""
    return False


def recover(partition: Partition, commit: StepCommit, now_ms: int) -> None:
    """Completes a step whose SQL took effect, and remembers that until the log says so, too."""
    if commit.key in partition.owner.instances.quarantined:
        return  # Its row has to stay until the instance goes on.
    partition.owner.recover_sql(commit, now_ms)
    if commit.key in partition.owner.damaged():
        return
    partition.settled.append((partition.owner.batch_number, commit.id))


def _take_notes(partition: Partition, now_ms: int) -> None:
    """Record what became of posts, and of the SQL of steps."""
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
            # Its host may be gone by now, and the step has taken effect all the same.
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
    """Gives ready instances to hosts; with a limit the most urgent of all owners first."""
    if limit is None:
        return sum(one.owner.dispatch(one.now_ms, closed=closed, over=over) for one in partitions)
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


def _answered_again(
    partition: Partition, offset: int, sent: CommandSent, known: Outcome, now_ms: int
) -> Answers:
    reply = ReplySent(
        command_id=sent.command_id,
        code=known.code,
        message=known.message,
        status=known.status,
        run_number=known.run_number,
        partition=partition.number,
        position=known.position,
        lease_until_ms=known.lease_until_ms,
    )
    notice = None
    if known.code:
        live = partition.owner.instances.find(instance_key(sent.workflow, sent.instance_id))
        rejection = Rejection(known.code, known.message)
        notice = refusal_notice(sent, rejection, live.run if live else None, now_ms)
    return Answers(partition, offset, [(sent.reply_to, reply)], [notice] if notice else [])


def _placed(answer: Answer, first: int) -> ReplySent:
    return msgspec.structs.replace(answer.reply, position=first + answer.at)
