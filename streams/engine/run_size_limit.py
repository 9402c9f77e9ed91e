"""Size limit of runs: a decision that would exceed it ends the run, or is refused to its sender.

The state of a run is in memory, in snapshots, and is sent to its host at every activation. All of
it counts towards the limit: results, errors, events in the mailbox, and posts to be sent. Decisions
are checked before they are applied, because the log must be able to store them. A state is measured
exactly only when an estimate comes near the limit.
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

#: A run that ends or restarts grows only by data with its own limits.
_ENDS: Final = (RunCompleted, RunErrored, RunTerminated)
#: Size of a token in a state, in addition to the event that creates it.
_TOKEN_BYTES: Final = 256


class RunSizeLimit:
    """The size limit of the runs of one owner."""

    def __init__(self, run_bytes_max: int = RUN_BYTES_MAX) -> None:
        self._most = run_bytes_max

    def enforce(
        self, live: LiveInstance | None, engine: Engine[Any], decision: Decision, now_ms: int
    ) -> Decision:
        """Return the decision, or one in place of a decision that is too large."""
        decision = fitting(engine, live.run if live else None, decision)
        # Instances that count slots have their own limit.
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
        measured = self._measured(live, engine, decision, now_ms)
        if isinstance(measured, Rejection):
            live.bytes_most = before
        return measured

    def _measured(
        self, live: LiveInstance, engine: Engine[Any], decision: list[RunEvent], now_ms: int
    ) -> Decision:
        run = live.run
        received = any(isinstance(event, EventReceived) for event in decision)
        waiting = _waiting(run, decision) if received else 0
        if waiting > self._most // 2:
            return Rejection(MAILBOX_FULL, self._mailbox_message(run, waiting))
        if live.bytes_most is not None and live.bytes_most <= self._most:
            return decision
        live.bytes_most = _size_after(engine, run, decision, now_ms)
        if live.bytes_most <= self._most:
            return decision
        size = live.bytes_most
        if received:
            return Rejection(MAILBOX_FULL, self._message(run, size))
        return fitting(
            engine, run, engine.fail_run(run, Failure(RUN_TOO_LARGE, self._message(run, size)))
        )

    def _message(self, run: Run, size: int) -> str:
        return (
            f"expected the state of a run to have at most {self._most} bytes, found that "
            f"{run.workflow}/{run.instance_id} would have {size}: its results, its errors and the "
            "events in its mailbox; store large data elsewhere and keep a reference to it, trim "
            "old iterations by step.loop, or use child workflows"
        )

    def _mailbox_message(self, run: Run, waiting: int) -> str:
        return (
            f"expected at most {self._most // 2} bytes of events that were not consumed, found "
            f"{waiting}; does {run.workflow} ever wait for them?"
        )


def _growth(events: list[RunEvent], before: int) -> int:
    """Return an upper bound of how much events enlarge a state, in bytes."""
    size = 0
    for event in events:
        if isinstance(event, LogWritten):
            continue  # Log lines are not part of the state.
        event_size = bytes_max((event,))
        if isinstance(event, FanInActivated):
            # Each merge sets a value composed of the outputs of branches.
            event_size += before * len(event.merges)
        elif isinstance(event, TokensCreated):
            event_size += event.count * (_TOKEN_BYTES + 4 * len(event.path))
        size += event_size
    return size


def _size_after(engine: Engine[Any], run: Run, events: list[RunEvent], now_ms: int) -> int:
    """Return the size of the state after some events, in bytes."""
    after = engine.decode(engine.encode(run))
    for event in events:
        engine.apply(after, event, now_ms)
    return len(engine.encode(after))


def _waiting(run: Run, events: list[RunEvent]) -> int:
    """Return the size of the events in a mailbox, including new ones, in bytes."""
    new_payloads = [event.payload for event in events if isinstance(event, EventReceived)]
    payloads = [*(received.payload for received in run.mailbox), *new_payloads]
    return sum(len(text) if text.isascii() else len(text.encode()) for text in payloads)
