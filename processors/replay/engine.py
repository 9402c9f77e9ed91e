"""The engine of workflows written as code, which is replayed against its history."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from headwater.processors.replay import appliers, waits
from headwater.processors.replay.decide import KIND, decide_command, decide_request
from headwater.processors.replay.ends import failed
from headwater.processors.replay.host_messages import HandlerAgain, activate, message_for_host
from headwater.processors.replay.state import CodeRun
from headwater.processors.replay.trimming import trimmed
from headwater.processors.runs.decisions import Decision, Facts
from headwater.processors.runs.host_messages import HostMessage
from headwater.processors.runs.limits import CLEANUP_MS, ENTRIES_MAX, USUAL
from headwater.processors.runs.requests import Request
from headwater.processors.runs.state import Entry
from headwater.schemas.history import Failure, Limits, RunCommand, RunEvent
from headwater.schemas.statuses import OPEN, EntryKind, RunStatus


class ReplayEngine:
    """Implements `processors.runs.engine.Engine`, which says what the methods mean.

    Shape:  entries_max is how many entries a run may have, cleanup_ms how long its code may clean
            up when it is cancelled, and limits what runs that begin are held to.
    """

    kind: Final = KIND
    #: A change of CodeRun, Run, Entry or their parts is a new one.
    format: Final = 2

    def __init__(
        self,
        entries_max: int = ENTRIES_MAX,
        cleanup_ms: int = CLEANUP_MS,
        limits: Limits = USUAL,
    ) -> None:
        self._entries_max = entries_max
        self._cleanup_ms = cleanup_ms
        self._limits = limits

    # -- deciding

    def decide_command(self, run: CodeRun | None, command: RunCommand, facts: Facts) -> Decision:
        """Decides a command."""
        return decide_command(run, command, facts, self._cleanup_ms, self._limits)

    def decide(self, run: CodeRun, request: Request, now_ms: int) -> Decision:
        """Decides a request; each has its own function."""
        return decide_request(run, request, now_ms, self._entries_max)

    @staticmethod
    def give_up(run: CodeRun, failure: Failure, *, with_children: bool = True) -> list[RunEvent]:
        """Ends a run, and with it its children."""
        return failed(run, failure, with_children=with_children)

    @staticmethod
    def place_of(run: CodeRun, decided: Sequence[RunEvent], event: RunEvent) -> str:
        """The step, sleep or wait that an event is of."""
        del run, decided
        return str(getattr(event, "key", ""))

    to_decide_less = "do less at once: fewer entries side by side, fewer events that lie waiting"

    # -- applying

    begin = staticmethod(appliers.begin)
    apply = staticmethod(appliers.apply)

    # -- what follows

    message_for_host = staticmethod(message_for_host)

    def activate(self, run: CodeRun, activation: int) -> HostMessage:
        """Has its code replayed against its entries."""
        return activate(activation, run, self._entries_max)

    @staticmethod
    def is_runnable(run: CodeRun, now_ms: int) -> bool:
        """A run that took its host with it stands still for a while."""
        return run.status is RunStatus.ACTIVE and run.back_at_ms <= now_ms

    @staticmethod
    def attempts_due(run: CodeRun, activation: int, now_ms: int) -> Mapping[str, HostMessage]:
        """Those of rollback handlers; steps are tried again by an event."""
        return {
            key: HandlerAgain(activation, key, run.entries[key].rollback_attempts + 1)
            for key in waits.handlers_due(run, now_ms)
        }

    next_wake_ms = staticmethod(waits.next_wake_ms)

    @staticmethod
    def attempt_awaited(run: CodeRun, key: str) -> int | None:
        """The one after those that failed, as long as the step has no result."""
        entry = run.entries.get(key)
        if entry is None:
            return 1
        if entry.kind is not EntryKind.DO or entry.status not in OPEN:
            return None
        return entry.attempts + 1

    # -- the state at rest

    encode = staticmethod(msgspec.msgpack.Encoder().encode)
    decode = staticmethod(msgspec.msgpack.Decoder(CodeRun).decode)

    @staticmethod
    def drop_finished(run: CodeRun) -> None:
        """A retry needs all entries, a restart none."""
        if run.status is not RunStatus.ERRORED and run.entries:
            run.entries.clear()
            run.open.clear()
            run.left.clear()
            run.ordinals.clear()
            run.mailbox.clear()

    @staticmethod
    def steps(run: CodeRun) -> list[tuple[str, Entry]]:
        """All entries but those that only the code sees, and iterations that are forgotten."""
        hidden = trimmed(run.entries)
        shown = [
            (key, entry)
            for key, entry in run.entries.items()
            if entry.kind is not EntryKind.NOW and key not in hidden
        ]
        return sorted(shown, key=lambda each: each[1].ordinal)
