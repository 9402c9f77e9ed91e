"""A second engine: a counter that events tell to add, and that ends at a number.

It needs no code and no host: what it does is decided when an event or time comes. Params are
`{"to": 5, "within_ms": 60000}`, the payload of each event is a number; without `within_ms` time
does not end it. It shows what an engine is at the least.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from headwater.processors.runs import appliers
from headwater.processors.runs import decide as runs
from headwater.processors.runs.decisions import Decision, Facts, Rejection, Request, Wake
from headwater.processors.runs.host_messages import HostMessage
from headwater.processors.runs.outbox import ended_by
from headwater.processors.runs.state import Run
from headwater.schemas.history import (
    ActivateJob,
    AskSlot,
    CancelRun,
    CompleteJob,
    EventReceived,
    ExtendJob,
    FailJob,
    Failure,
    FinishChild,
    GrantSlot,
    HistoryAppended,
    LogEvent,
    LogWritten,
    NoteRefusal,
    PauseRun,
    PostsSent,
    RestartRun,
    ResumeRun,
    RetryRun,
    ReturnSlot,
    RunCommand,
    RunCompleted,
    RunErrored,
    RunEvent,
    RunSuspended,
    RunTerminated,
    SendEvent,
    SetBranchOutput,
    StartRun,
    TerminateRun,
)

_STALE: Final = Rejection("STALE", "it arrived too late to have an effect")


class Counter(Run, kw_only=True):
    """A run that counts."""

    total: int = 0
    ends_at_ms: int | None = None


class CounterEngine:
    """Implements `processors.runs.engine.Engine`."""

    kind: Final = "counter"
    short_steps: Final = None
    format: Final = 1

    # -- deciding

    def decide_command(self, run: Counter | None, command: RunCommand, facts: Facts) -> Decision:
        if run is None or isinstance(command, StartRun | RestartRun):
            return _waiting(runs.begin(run, command, facts, self.kind))
        return self._decide_of(run, command, facts.sent_at_ms)

    def _decide_of(  # noqa: PLR0911, one for each command
        self, run: Counter, command: RunCommand, sent_at_ms: int
    ) -> Decision:
        match command:
            case SendEvent():
                return self._added(run, runs.send_event(run, command, sent_at_ms))
            case PauseRun():
                return runs.pause(run, command)
            case ResumeRun():
                resumed = runs.resume(run, command)
                return resumed if isinstance(resumed, Rejection) else [*resumed, RunSuspended()]
            case TerminateRun() | CancelRun():
                ended = RunTerminated(command.reason, isinstance(command, CancelRun))
                return runs.may_end(run, command) or ended_by(run, ended)
            case NoteRefusal():
                return runs.note_refusal(run, command)
            case ActivateJob() | CompleteJob() | FailJob() | ExtendJob():
                return runs.no_job(run)
            case (
                RetryRun()
                | SetBranchOutput()
                | FinishChild()
                | AskSlot()
                | ReturnSlot()
                | GrantSlot()
            ):
                return _STALE
            case StartRun() | RestartRun():
                return _STALE

    @staticmethod
    def _added(run: Counter, received: EventReceived | Rejection) -> Decision:
        if isinstance(received, Rejection):
            return received
        total = run.total + int(received.payload)
        line = LogWritten("info", "count", f"now at {total}")
        ends = ended_by(run, RunCompleted(str(total))) if total >= _params(run).get("to", 3) else []
        return [received, line, *ends]

    def decide(self, run: Counter, request: Request, now_ms: int) -> Decision:
        if run.ended or not isinstance(request, Wake):
            return _STALE
        if run.ends_at_ms is None or run.ends_at_ms > request.until_ms:
            return _STALE
        return self.fail_run(run, Failure("TooSlow", f"at {run.total} when time was up"))

    @staticmethod
    def fail_run(run: Counter, failure: Failure, *, with_children: bool = True) -> list[RunEvent]:
        return ended_by(run, RunErrored(failure))

    @staticmethod
    def event_location(run: Counter, decided: Sequence[RunEvent], event: RunEvent) -> str:
        del run, decided, event
        return ""

    size_advice = "count in smaller numbers"

    # -- applying

    @staticmethod
    def begin(before: Counter | None, record: HistoryAppended) -> Counter:
        run, event = appliers.begin(Counter, before, record)
        within_ms = json.loads(event.params).get("within_ms")
        run.ends_at_ms = None if within_ms is None else record.at_ms + within_ms
        return run

    @staticmethod
    def apply(run: Counter, event: LogEvent, at_ms: int) -> None:
        match event:
            case PostsSent():
                appliers.posts_sent(run, event)
                return
            case EventReceived():
                appliers.APPLIERS[EventReceived](run, event)
                run.mailbox.clear()
                run.total += int(event.payload)
            case _:
                appliers.APPLIERS[type(event)](run, event)
        appliers.applied(run, event, at_ms)

    # -- what follows

    @staticmethod
    def message_for_host(
        run: Counter, event: RunEvent, activation: int, sequence: int
    ) -> HostMessage | None:
        return None

    @staticmethod
    def activate(run: Counter, activation: int) -> HostMessage | None:
        return None

    @staticmethod
    def is_runnable(run: Counter, now_ms: int) -> bool:
        return False

    @staticmethod
    def attempts_due(run: Counter, activation: int, now_ms: int) -> Mapping[str, HostMessage]:
        return {}

    @staticmethod
    def next_wake_ms(run: Counter, after_ms: int = 0) -> int | None:
        due = run.ends_at_ms is not None and not run.ended and run.ends_at_ms > after_ms
        return run.ends_at_ms if due else None

    @staticmethod
    def expected_attempt(run: Counter, key: str) -> int | None:
        return None

    # -- the state at rest

    @staticmethod
    def encode(run: Counter) -> bytes:
        return msgspec.msgpack.encode(run)

    @staticmethod
    def decode(state: bytes) -> Counter:
        return msgspec.msgpack.decode(state, type=Counter)

    @staticmethod
    def drop_finished(run: Counter) -> None:
        """There is nothing to drop."""


def _waiting(started: Decision) -> Decision:
    """A run that has nothing to do but wait."""
    return started if isinstance(started, Rejection) else [*started, RunSuspended()]


def _params(run: Run) -> dict[str, int]:
    params: dict[str, int] = json.loads(run.params)
    return params
