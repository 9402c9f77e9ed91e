"""Engine of workflows written as code, which is replayed against its history."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from headwater.processors.code import appliers, waits
from headwater.processors.code.decide import KIND, decide_command, decide_request
from headwater.processors.code.host_messages import RetryHandler, activate, message_for_host
from headwater.processors.code.lifecycle import fail_run
from headwater.processors.code.short_steps import ShortSteps
from headwater.processors.code.state import CodeRun
from headwater.processors.hooks import HookSigner
from headwater.processors.runs.decisions import Decision, Facts, Request
from headwater.processors.runs.host_messages import HostMessage
from headwater.processors.runs.limits import CLEANUP_MS, DEFAULT_LIMITS, ENTRIES_MAX
from headwater.schemas.history import Failure, Limits, RunCommand, RunEvent
from headwater.schemas.statuses import OPEN, EntryKind, RunStatus


class ReplayEngine:
    """Implements `processors.runs.engine.Engine`, which documents the methods.

    Args:
        entries_max: Maximum number of entries of a run.
        cleanup_ms: How long the code may clean up after a cancellation, in ms.
        limits: Limits of runs that start.
        hooks: Signs the hooks of runs; None if no key is configured.
    """

    kind: Final = KIND
    #: Increase it with every change of CodeRun, Run, Entry or their parts.
    format: Final = 4

    def __init__(
        self,
        entries_max: int = ENTRIES_MAX,
        cleanup_ms: int = CLEANUP_MS,
        limits: Limits = DEFAULT_LIMITS,
        hooks: HookSigner | None = None,
    ) -> None:
        self._entries_max = entries_max
        self._cleanup_ms = cleanup_ms
        self._limits = limits
        self._hooks = hooks
        self.short_steps = ShortSteps(entries_max)

    # -- deciding

    def decide_command(self, run: CodeRun | None, command: RunCommand, facts: Facts) -> Decision:
        """Decide a command."""
        return decide_command(run, command, facts, self._cleanup_ms, self._limits)

    def decide(self, run: CodeRun, request: Request, now_ms: int) -> Decision:
        """Decide a request; every type has its own function."""
        return decide_request(run, request, now_ms, self._entries_max)

    @staticmethod
    def fail_run(run: CodeRun, failure: Failure, *, with_children: bool = True) -> list[RunEvent]:
        """End a run, and with it its children."""
        return fail_run(run, failure, with_children=with_children)

    @staticmethod
    def event_location(run: CodeRun, decided: Sequence[RunEvent], event: RunEvent) -> str:
        """Return the key of the step, sleep or wait that an event belongs to."""
        del run, decided
        return str(getattr(event, "key", ""))

    size_advice = "do less at once: fewer entries in parallel, fewer unconsumed events"

    # -- applying

    begin = staticmethod(appliers.begin)
    apply = staticmethod(appliers.apply)

    # -- what follows

    message_for_host = staticmethod(message_for_host)

    def activate(self, run: CodeRun, activation: int) -> HostMessage:
        """Return the message that has the code replayed against the run's entries."""
        hooks = self._hooks and self._hooks.origin(run.workflow, run.instance_id)
        return activate(activation, run, self._entries_max, hooks)

    @staticmethod
    def is_runnable(run: CodeRun, now_ms: int) -> bool:
        """Return whether the code may run; after it crashed its host, it is delayed."""
        return run.status is RunStatus.ACTIVE and run.back_at_ms <= now_ms

    @staticmethod
    def attempts_due(run: CodeRun, activation: int, now_ms: int) -> Mapping[str, HostMessage]:
        """Return due attempts of rollback handlers; steps are retried by an event."""
        return {
            key: RetryHandler(activation, key, run.entries[key].rollback_attempts + 1)
            for key in waits.handlers_due(run, now_ms)
        }

    next_wake_ms = staticmethod(waits.next_wake_ms)

    @staticmethod
    def expected_attempt(run: CodeRun, key: str) -> int | None:
        """Return the attempt after those that failed, while the step has no result."""
        entry = run.entries.get(key)
        if entry is None:
            return 1
        if entry.kind is not EntryKind.DO or entry.status not in OPEN:
            return None
        return entry.attempts + 1

    # -- stored state

    encode = staticmethod(msgspec.msgpack.Encoder().encode)
    decode = staticmethod(msgspec.msgpack.Decoder(CodeRun).decode)

    @staticmethod
    def drop_finished(run: CodeRun) -> None:
        """Drop entries unless the run may be retried: a retry needs them, a restart does not."""
        if run.status is not RunStatus.ERRORED and run.entries:
            run.entries.clear()
            run.open.clear()
            run.left.clear()
            run.ordinals.clear()
            run.mailbox.clear()
