"""Input and output of a driver: partitions, turns, and released effects."""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from headwater.processors.runs.decisions import StepRaised, StepReturned
from headwater.processors.runs.host_messages import HostMessage
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
from headwater.streams.engine.restore import Outcome, remaining_outcomes

#: Outcome of the SQL of a step: it took effect, the attempt failed, or it was not needed.
StepOutcome: TypeAlias = StepReturned | StepRaised | None

#: How far the clock may be behind the latest time of a partition, in milliseconds; the turn then
#: uses the latest time. The clocks of two owners may differ from Kafka's by ten seconds. A
#: greater difference means that the earlier clock was wrong. Time is then set back, as it would
#: otherwise stand still.
_HELD_MAX_MS: Final = 20_000

#: Appends of a partition in flight: one at the broker, one in preparation.
FLIGHTS_MAX: Final = 2


@dataclass(slots=True, eq=False)
class Partition:
    """A partition of a driver.

    Attributes:
        outcomes: Outcomes of commands with replies that may not have been sent, by cause.
        start: Offset from which the history was read.
        position: Offset after the latest acknowledged record of this owner.
        replied: Offset up to which replies to commands were sent.
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
    #: All commands sent before this time are known and decided.
    reached_ms: int = 0
    #: Time of the current turn, initially that of the latest record before the owner's.
    now_ms: int = 0
    #: Whether the next turn serves messages of hosts before commands.
    messages_first: bool = False
    #: Times up to which all commands are known, and how many commands must be decided before.
    _reached_behind: deque[tuple[int, int]] = field(default_factory=deque)
    _decided: int = 0
    #: Number of the latest durable batch.
    acknowledged: int = 0
    #: Steps with SQL that took effect, and the batch with their result.
    settled: list[tuple[int, StepId]] = field(default_factory=list)
    #: Durable posts: their instance, and their greatest number.
    posts_sent: list[tuple[str, int]] = field(default_factory=list)
    #: Outcomes of the SQL of steps.
    step_outcomes: list[tuple["StepTransaction", StepOutcome]] = field(default_factory=list)
    #: Batches in flight, in order; and of those that have landed, the offset of their first
    #: record, or None if the outcome is unknown.
    in_flight: deque[Batch] = field(default_factory=deque)
    landed: dict[int, int | None] = field(default_factory=dict)
    #: Whether it takes part in no turn, so that batches in flight can finish.
    held: bool = False

    def may_turn(self) -> bool:
        """Whether it may take part in a turn: few enough of its appends are in flight."""
        return not self.held and len(self.in_flight) < FLIGHTS_MAX

    def has_input(self) -> bool:
        """Whether input has arrived since its last turn."""
        return bool(self.commands or self.messages or self.posts_sent or self.step_outcomes)

    def has_work(self) -> bool:
        """Whether a turn would decide, stage or restore something, timers and hosts aside."""
        return self.has_input() or self.owner.has_work() or self.owner.has_damaged

    def move_to(self, now_ms: int) -> None:
        """Set the time of a turn, but not slightly before that of the previous turn."""
        if not now_ms < self.now_ms <= now_ms + _HELD_MAX_MS:
            self.now_ms = now_ms

    def reach(self, at_ms: int) -> None:
        """Record that all commands sent before a time have arrived. Some may wait here."""
        if self.commands:
            self._reached_behind.append((self._decided + len(self.commands), at_ms))
        else:
            self.reached_ms = at_ms

    def decided(self, count: int) -> None:
        """Remove the first commands, which have been decided."""
        del self.commands[:count]
        self._decided += count
        while self._reached_behind and self._reached_behind[0][0] <= self._decided:
            self.reached_ms = self._reached_behind.popleft()[1]

    def lose_commands(self, first: int, leader_epoch: int, now_ms: int) -> None:
        """Record that the broker lost commands. New commands at their offsets are executed.

        Args:
            first: Offset of the first lost command that had an outcome.
            leader_epoch: Latest leader epoch of the remaining commands; NO_LEADER_EPOCH if it is
                another log, of which nothing before `first` was read.
            now_ms: Current time in Unix milliseconds.
        """
        noted = LeaderEpochNoted(leader_epoch, first)
        self.owner.note_leader(noted, now_ms)
        self.outcomes, self.replied = remaining_outcomes(self.outcomes, self.replied, noted)

    def replied_to(self, offset: int) -> None:
        """Record that replies to the commands up to this one were sent."""
        self.replied = max(self.replied, offset + 1)


class Flight(NamedTuple):
    """A batch of a partition that is being appended."""

    partition: Partition
    batch: Batch

    def records(self) -> list[tuple[bytes, HistoryAppended]]:
        """Return the records to append, with their keys."""
        return [(_key(record), record) for record in self.batch.records]


class StepTransaction(NamedTuple):
    """SQL of a step to be committed, and the activation of its run."""

    partition: Partition
    activation: int
    commit: StepCommit


class Turn(NamedTuple):
    """The result of a turn.

    Attributes:
        started: Number of instances assigned to hosts.
        attempts_ended: Number of attempts of steps that have ended.
        yielded_back: Whether a host has used up its allowance of attempts.
        incidents: Errors that cost one command, run or instance.
    """

    flights: list[Flight]
    steps: list[StepTransaction]
    started: int
    attempts_ended: int
    yielded_back: bool = False
    incidents: Sequence[Incident] = ()


class Answers(NamedTuple):
    """Outcomes of commands of a partition, up to the command `through`.

    Attributes:
        replies: Replies, with the partition that their receiver consumes.
        notices: Commands that notify workflows of their refused commands.
    """

    partition: Partition
    through: int
    replies: list[tuple[int, ReplySent]]
    notices: list[CommandSent]


class Released:
    """Effects that may be sent now, in order."""

    __slots__ = ("answers", "posts", "recorded", "to_hosts")

    def __init__(self) -> None:
        #: By number of the host.
        self.to_hosts: dict[int, list[HostMessage]] = defaultdict(list)
        self.posts: list[tuple[Partition, Queued]] = []
        self.answers: list[Answers] = []
        #: Steps with an SQL result that is durable in the log.
        self.recorded: list[tuple[Partition, StepId]] = []


def _key(record: HistoryAppended) -> bytes:
    return instance_key(record.workflow, record.instance_id).encode()
