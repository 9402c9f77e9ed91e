"""How large a run may become: what would outgrow that ends its run, or is refused to its sender.

Its state is in memory, in snapshots, and goes to its host at every activation; so it has a bound,
and all of it counts: results, errors, what lies in the mailbox and what is still to be sent. What
is decided is checked before it is applied, because the log must be able to follow. Nothing is
measured exactly until an estimate comes near the bound.
"""

from typing import Any, Final

from headwater.processors.runs.decisions import Decision, Rejection
from headwater.processors.runs.engine import Engine
from headwater.processors.runs.limits import RUN_BYTES_MAX
from headwater.processors.runs.sizes import bytes_max, fitting
from headwater.processors.runs.slots import SLOTS
from headwater.processors.runs.state import Run
from headwater.schemas.failures import MAILBOX_FULL, RUN_TOO_LARGE
from headwater.schemas.history import (
    EventReceived,
    Failure,
    FanInActivated,
    LogWritten,
    RunCompleted,
    RunErrored,
    RunEvent,
    RunStarted,
    RunTerminated,
    TokensCreated,
)
from headwater.streams.engine.live_instances import LiveInstance

#: A run that ends, or begins anew, grows by what has limits of its own.
_ENDS: Final = (RunCompleted, RunErrored, RunTerminated)
#: What a token takes in a state besides what is in the event that creates it.
_TOKEN_BYTES: Final = 256


class Room:
    """The bound of the runs of one owner."""

    def __init__(self, run_bytes_max: int = RUN_BYTES_MAX) -> None:
        self._most = run_bytes_max

    def fitting(
        self, live: LiveInstance | None, engine: Engine[Any], decision: Decision, now_ms: int
    ) -> Decision:
        """What is decided instead of what is too large, for a record or for its run."""
        decision = fitting(engine, live.run if live else None, decision)
        # Whoever counts slots has a bound of its own, and nobody could be told of another.
        if live is None or isinstance(decision, Rejection) or live.run.kind == SLOTS:
            return decision
        if live.run.ended:
            return decision
        if isinstance(decision[0], RunStarted) or isinstance(decision[-1], _ENDS):
            live.bytes_most = None
            return decision
        before = live.bytes_most
        if before is not None:
            live.bytes_most = before + _growth(decision, before)
            if live.bytes_most <= self._most // 2:
                return decision
        fitted = self._measured(live, engine, decision, now_ms)
        if isinstance(fitted, Rejection):
            live.bytes_most = before
        return fitted

    def _measured(
        self, live: LiveInstance, engine: Engine[Any], decision: list[RunEvent], now_ms: int
    ) -> Decision:
        run = live.run
        received = any(isinstance(event, EventReceived) for event in decision)
        waiting = _waiting(run, decision) if received else 0
        if waiting > self._most // 2:
            return Rejection(MAILBOX_FULL, self._mailbox_fault(run, waiting))
        if live.bytes_most is not None and live.bytes_most <= self._most:
            return decision
        live.bytes_most = _size_after(engine, run, decision, now_ms)
        if live.bytes_most <= self._most:
            return decision
        size = live.bytes_most
        if received:
            return Rejection(MAILBOX_FULL, self._fault(run, size))
        return fitting(
            engine, run, engine.fail_run(run, Failure(RUN_TOO_LARGE, self._fault(run, size)))
        )

    def _fault(self, run: Run, size: int) -> str:
        return (
            f"expected the state of a run to have at most {self._most} bytes, found that "
            f"{run.workflow}/{run.instance_id} would have {size}: its results, its errors and what "
            "lies in its mailbox; store large data elsewhere and keep a reference to it, forget "
            "old iterations by step.loop, or use child workflows"
        )

    def _mailbox_fault(self, run: Run, waiting: int) -> str:
        return (
            f"expected at most {self._most // 2} bytes of events that nobody has consumed, found "
            f"{waiting}; does {run.workflow} ever wait for them?"
        )


def _growth(events: list[RunEvent], before: int) -> int:
    """By how much events make a state larger, at most."""
    size = 0
    for event in events:
        if isinstance(event, LogWritten):
            continue  # No state has lines.
        each = bytes_max((event,))
        if isinstance(event, FanInActivated):
            # Each merge sets a value that is made of what branches have put out.
            each += before * len(event.merges)
        elif isinstance(event, TokensCreated):
            each += event.count * (_TOKEN_BYTES + 4 * len(event.path))
        size += each
    return size


def _size_after(engine: Engine[Any], run: Run, events: list[RunEvent], now_ms: int) -> int:
    """The bytes of the state that events lead to."""
    after = engine.decode(engine.encode(run))
    for event in events:
        engine.apply(after, event, now_ms)
    return len(engine.encode(after))


def _waiting(run: Run, events: list[RunEvent]) -> int:
    """The bytes of the events that lie in a mailbox, with one that comes."""
    comes = [event.payload for event in events if isinstance(event, EventReceived)]
    payloads = [*(each.payload for each in run.mailbox), *comes]
    return sum(len(text) if text.isascii() else len(text.encode()) for text in payloads)
