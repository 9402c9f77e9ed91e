"""What a driver is given, and what it gives: partitions, turns, and what may go out."""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from headwater.processors.runs.host_messages import HostMessage
from headwater.processors.runs.requests import StepRaised, StepReturned
from headwater.processors.runs.step_commits import StepCommit, StepId
from headwater.schemas.history import (
    CommandSent,
    HistoryAppended,
    LeaderEpochNoted,
    ReplySent,
    instance_key,
)
from headwater.streams.engine.effects import Batch, Queued
from headwater.streams.engine.owner import Owner
from headwater.streams.engine.quarantine import Incident
from headwater.streams.engine.restore import Outcome, left_of

#: What became of the SQL of a step: it took effect, the attempt failed, or nobody wanted it.
StepOutcome: TypeAlias = StepReturned | StepRaised | None

#: How far a turn may be before the latest time of its partition and still gets that: two owners'
#: clocks may differ from Kafka's, each by ten seconds. What is further ahead was a wrong clock's,
#: and for as long as it is ahead no time would pass.
_HELD_MAX_MS: Final = 20_000

#: Appends of a partition that may be under way at once: one with the broker, one being made ready.
FLIGHTS_MAX: Final = 2


@dataclass(slots=True, eq=False)
class Partition:
    """A partition that was taken over, as its driver knows it.

    Shape:  outcomes are by cause, of commands whose replies may not have been sent; start is the
            offset in the history from which on it was read, position the offset behind our last
            acknowledged record; replied is the offset up to which commands have their replies.
    """

    number: int
    owner: Owner
    epoch: int
    outcomes: dict[int, Outcome]
    start: int
    position: int
    replied: int
    commands: list[tuple[int, CommandSent]] = field(default_factory=list)
    messages: list[HostMessage] = field(default_factory=list)
    #: Up to when all commands are known to have come, and have been decided.
    reached_ms: int = 0
    #: The time of its turn, at first that of the latest record before ours.
    now_ms: int = 0
    #: Whether messages of hosts, not commands, are served first in the next turn.
    messages_first: bool = False
    #: Times up to which all commands have come, of which this many are still to be decided.
    _reached_behind: deque[tuple[int, int]] = field(default_factory=deque)
    _decided: int = 0
    #: The latest batch that is durable.
    acknowledged: int = 0
    #: Steps whose SQL took effect, and the batch after which the log knows of them.
    settled: list[tuple[int, StepId]] = field(default_factory=list)
    #: Posts that are durable: their instance, and up to which number.
    posts_sent: list[tuple[str, int]] = field(default_factory=list)
    #: What became of the SQL of steps.
    step_outcomes: list[tuple["StepTransaction", StepOutcome]] = field(default_factory=list)
    #: Batches on their way to the log, in order; and of those that have landed, where they begin,
    #: or None if nobody knows what became of them.
    under_way: deque[Batch] = field(default_factory=deque)
    landed: dict[int, int | None] = field(default_factory=dict)
    #: Takes part in no turn for now, so that what is under way comes to an end.
    held: bool = False

    def may_turn(self) -> bool:
        """Whether it may take part in a turn: not too many of its appends are under way."""
        return not self.held and len(self.under_way) < FLIGHTS_MAX

    def has_input(self) -> bool:
        """Whether something came in since its last turn."""
        return bool(self.commands or self.messages or self.posts_sent or self.step_outcomes)

    def move_to(self, now_ms: int) -> None:
        """Set the time of a turn, which is not a little before that of the turn before."""
        if not now_ms < self.now_ms <= now_ms + _HELD_MAX_MS:
            self.now_ms = now_ms

    def reach(self, at_ms: int) -> None:
        """Record that all commands that were sent before a time have come; some may wait here."""
        if self.commands:
            self._reached_behind.append((self._decided + len(self.commands), at_ms))
        else:
            self.reached_ms = at_ms

    def decided(self, count: int) -> None:
        """Take out the first commands, which have been decided."""
        del self.commands[:count]
        self._decided += count
        while self._reached_behind and self._reached_behind[0][0] <= self._decided:
            self.reached_ms = self._reached_behind.popleft()[1]

    def lose_commands(self, first: int, leader_epoch: int, now_ms: int) -> None:
        """Carry out what is appended at the offsets of lost commands, whose outcomes stay.

        Args:
            first: Offset from which on commands that have their outcomes were lost.
            leader_epoch: In which, or before which, those were appended that are left;
                NO_LEADER_EPOCH if it is another log, of which nothing before `first` was read.
            now_ms: The time.
        """
        noted = LeaderEpochNoted(leader_epoch, first)
        self.owner.note_leader(noted, now_ms)
        self.outcomes, self.replied = left_of(self.outcomes, self.replied, noted)

    def replied_to(self, offset: int) -> None:
        """Takes note that the commands up to this one have their replies."""
        self.replied = max(self.replied, offset + 1)


class Flight(NamedTuple):
    """A batch of a partition, on its way to the log."""

    partition: Partition
    batch: Batch

    def records(self) -> list[tuple[bytes, HistoryAppended]]:
        """What is to be appended: records with their keys."""
        return [(_key(record), record) for record in self.batch.records]


class StepTransaction(NamedTuple):
    """SQL of a step that is to take effect, and the activation that wants it."""

    partition: Partition
    activation: int
    commit: StepCommit


class Turn(NamedTuple):
    """What a turn gives.

    Shape:  started is how many instances were given to the host; attempts_ended how many attempts
            of steps have ended; handed_back whether a host may begin no more of them; incidents
            errors that cost one command, run or instance.
    """

    flights: list[Flight]
    steps: list[StepTransaction]
    started: int
    attempts_ended: int
    handed_back: bool = False
    incidents: Sequence[Incident] = ()


class Answers(NamedTuple):
    """The outcomes of some commands of a partition, of which `through` is the last.

    Shape:  replies have the partition where their receiver listens; notices are for workflows whose
            commands were refused.
    """

    partition: Partition
    through: int
    replies: list[tuple[int, ReplySent]]
    notices: list[CommandSent]


class Released:
    """What may go out now, in order."""

    __slots__ = ("answers", "posts", "recorded", "to_hosts")

    def __init__(self) -> None:
        #: By the number of the host.
        self.to_hosts: dict[int, list[HostMessage]] = defaultdict(list)
        self.posts: list[tuple[Partition, Queued]] = []
        self.answers: list[Answers] = []
        #: Steps whose SQL the log knows of.
        self.recorded: list[tuple[Partition, StepId]] = []


def _key(record: HistoryAppended) -> bytes:
    return instance_key(record.workflow, record.instance_id).encode()
