"""The laws of jobs: what the history says of attempts that workers outside have.

An attempt is given once, has one holder until it ends, and ends once; who has it for longer has it
for no shorter time. No lease runs out before its time, nor with an end unread that was sent in
time, and ten of one token are the most. What a worker was told is what the history says.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headwater.processors.graph.state import GraphRun
from headwater.processors.graph.timing import LEASES_LOST_MAX
from headwater.schemas.failures import JOB_END_REPEATED, LEASE_EXPIRED
from headwater.schemas.history import (
    ActivateJob,
    Attempt,
    CommandSent,
    CompleteJob,
    ExtendJob,
    FailJob,
    HistoryAppended,
    JobActivated,
    JobExtended,
    LeaseExpired,
    LogEvent,
    OutcomeHeld,
    RunStarted,
    TasksDispatched,
    TokenCompleted,
    TokenFailed,
    instance_key,
)
from tests.simulation.shapes import Violation

if TYPE_CHECKING:
    from tests.simulation.engine_world import World


@dataclass
class JobLaws:
    """The jobs of a run."""

    #: Tokens that are jobs, and how many of their attempts are over.
    attempts: dict[int, int] = field(default_factory=dict)
    lost: dict[int, int] = field(default_factory=dict)
    #: Who has a token's attempt.
    held: dict[int, JobActivated] = field(default_factory=dict)
    until_ms: dict[int, int] = field(default_factory=dict)

    def take(self, event: LogEvent, at_ms: int) -> None:  # noqa: C901, PLR0912, one for each event
        """Check an event.

        Raises:
            AssertionError: The event breaks a law.
        """
        match event:
            case RunStarted():
                self.__init__()  # type: ignore[misc]
            case TasksDispatched():
                for task in event.tasks:
                    if task.job is not None:
                        self.attempts.setdefault(task.token, 0)
            case JobActivated():
                self._begins(event)
            case JobExtended():
                self._goes_on(event)
            case LeaseExpired():
                self._ends(event.token, event.attempt, at_ms)
                self._loses(event.token)
                assert self.lost[event.token] < LEASES_LOST_MAX
            case TokenFailed() if event.token in self.attempts:
                self._ends(event.token, event.attempt, at_ms if event.timed_out else None)
                if event.failure.name == LEASE_EXPIRED:
                    self._loses(event.token)
                    assert self.lost[event.token] == LEASES_LOST_MAX
            case TokenCompleted() if event.token in self.attempts:
                self._ends(event.token, event.attempt, None)
            case _:
                pass

    def _begins(self, event: JobActivated) -> None:
        assert event.token not in self.held
        assert event.attempt == self.attempts[event.token] + 1
        assert event.until_ms <= (event.ends_at_ms or event.until_ms)
        self.held[event.token] = event
        self.until_ms[event.token] = event.until_ms

    def _goes_on(self, event: JobExtended) -> None:
        held = self.held[event.token]
        assert (event.attempt, event.worker) == (held.attempt, held.worker)
        assert self.until_ms[event.token] <= event.until_ms
        assert event.until_ms <= (held.ends_at_ms or event.until_ms)
        self.until_ms[event.token] = event.until_ms

    def _ends(self, token: int, attempt: int, late_at_ms: int | None) -> None:
        """An attempt ends, by its holder; or because its time is over."""
        assert self.held.pop(token).attempt == attempt
        assert late_at_ms is None or late_at_ms > self.until_ms[token]
        self.attempts[token] = attempt

    def _loses(self, token: int) -> None:
        self.lost[token] = self.lost.get(token, 0) + 1


def check_lease_in_time(
    run: GraphRun, record: HistoryAppended, unread: Iterable[CommandSent]
) -> None:
    """No lease runs out for an end, or for an extension, that had been sent in time."""
    over = [
        (event.token, event.attempt)
        for event in record.events
        if isinstance(event, LeaseExpired) or (isinstance(event, TokenFailed) and event.timed_out)
    ]
    for sent in unread if over else ():
        command = sent.command
        if (sent.workflow, sent.instance_id) != (run.workflow, run.instance_id):
            continue
        if not isinstance(command, CompleteJob | FailJob | ExtendJob):
            continue
        named = command.attempt
        token = run.tokens.get(named.token)
        if token is None or token.lease is None or named.run_number != run.run_number:
            continue
        in_time = sent.sent_at_ms <= token.lease.until_ms
        if in_time and (named.token, named.number) in over:
            raise Violation(f"{run.instance_id}: {record.events} although {sent} was in time")


def workers_were_told_the_truth(world: "World") -> None:
    """What a worker was told came of a command is what the history has of it."""
    for partition in world.partitions:
        caused = {
            record.cause: record for records in partition.reader.counted.values()
            for record in records
        }  # fmt: skip
        ends: dict[tuple[str, Attempt], CompleteJob | FailJob] = {}
        for offset, sent in world.workers.sent_to(partition.number):
            code, record = partition.reader.outcomes.get(offset), caused.get(offset)
            if code is None:
                raise Violation(f"{sent} was never answered")
            _told(sent, code, record, ends)


def _told(
    sent: CommandSent,
    code: str,
    record: HistoryAppended | None,
    ends: dict[tuple[str, Attempt], CompleteJob | FailJob],
) -> None:
    command = sent.command
    assert isinstance(command, ActivateJob | CompleteJob | FailJob | ExtendJob)
    where = (instance_key(sent.workflow, sent.instance_id), command.attempt)
    if code == JOB_END_REPEATED:
        if ends.get(where) != command:
            raise Violation(f"{sent} is said to repeat {ends.get(where)}")
    elif code:
        if record is not None:
            raise Violation(f"{sent} was refused as {code}, and has {record.events}")
    elif record is None or not any(_is_of(event, command) for event in record.events):
        raise Violation(f"{sent} was accepted, and has {record}")
    elif isinstance(command, CompleteJob | FailJob):
        if where in ends:
            raise Violation(f"{sent} ends what {ends[where]} has ended")
        ends[where] = command


def _is_of(event: LogEvent, command: object) -> bool:
    """Whether an event is what a command has come to."""
    attempt = getattr(command, "attempt", None)
    assert isinstance(attempt, Attempt)
    # What is held for the end of a pause is of the attempt in flight.
    number = attempt.number if isinstance(event, OutcomeHeld) else getattr(event, "attempt", None)
    if (getattr(event, "token", None), number) != (attempt.token, attempt.number):
        return False
    match command, event:
        case ActivateJob(), JobActivated():
            return event.worker == command.worker
        case CompleteJob(), TokenCompleted() | TokenFailed() | OutcomeHeld():
            return event.result == command.output
        case FailJob(), TokenFailed() | OutcomeHeld():
            return event.failure == command.failure
        case ExtendJob(), JobExtended():
            return True
        case _:
            return False
