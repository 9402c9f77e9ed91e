"""The engine of instances that count slots. No code runs for them, and they never end.

One is there as long as somebody has a slot of its limit or waits for one, and is deleted then.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from headwater.processors.runs.decide import not_found
from headwater.processors.runs.decisions import STALE, Decision, Facts
from headwater.processors.runs.host_messages import HostMessage
from headwater.processors.runs.requests import Request, Wake
from headwater.processors.runs.slots import SLOTS, Concurrencies
from headwater.processors.runs.state import Entry
from headwater.processors.slots import appliers
from headwater.processors.slots.decide import adjust, ask, give_back, is_to_adjust
from headwater.processors.slots.state import SlotsRun
from headwater.schemas.history import AskSlot, Failure, ReturnSlot, RunCommand, RunEvent

_ENCODE: Final = msgspec.msgpack.Encoder().encode
_DECODE: Final = msgspec.msgpack.Decoder(SlotsRun).decode


class SlotsEngine:
    """Implements `processors.runs.engine.Engine`, which says what the methods mean.

    Shape:  limits are those of all workflows that are known here. Of a workflow that is not, a
            limit stays as it was.
    """

    kind: Final = SLOTS
    #: A change of SlotsRun, Run or their parts is a new one.
    format: Final = 1

    def __init__(self, limits: Concurrencies = MappingProxyType({})) -> None:
        self._limits = limits

    def declare(self, limits: Concurrencies) -> None:
        """Counts with these limits from now on."""
        self._limits = limits

    def _limit(self, workflow: str, run: SlotsRun | None) -> int | None:
        if workflow not in self._limits:
            # Nobody here knows it; and every limit has one slot at least.
            return 1 if run is None else run.limit
        concurrency = self._limits[workflow]
        return None if concurrency is None else concurrency.limit

    # -- deciding

    def decide_command(self, run: SlotsRun | None, command: RunCommand, facts: Facts) -> Decision:
        """Decides a command; all but two are for instances of another kind."""
        limit = self._limit(facts.workflow, run)
        if isinstance(command, AskSlot):
            return ask(run, (facts.workflow, facts.instance_id), command, limit)
        if isinstance(command, ReturnSlot) and run is not None:
            return give_back(run, command, limit)
        return not_found(facts.instance_id)

    def decide(self, run: SlotsRun, request: Request, now_ms: int) -> Decision:
        """Looks whether the limit has changed."""
        return adjust(run, self._limit(run.workflow, run)) if isinstance(request, Wake) else STALE

    @staticmethod
    def fail_run(run: SlotsRun, failure: Failure, *, with_children: bool = True) -> list[RunEvent]:
        """It is asked of no such run: what they may hold has bounds of its own."""
        return []

    @staticmethod
    def event_location(run: SlotsRun, decided: Sequence[RunEvent], event: RunEvent) -> str:
        """None: it has no author."""
        return ""

    size_advice = "let fewer runs wait for a slot"

    # -- applying

    begin = staticmethod(appliers.begin)
    apply = staticmethod(appliers.apply)

    # -- what follows

    @staticmethod
    def message_for_host(
        run: SlotsRun, event: RunEvent, activation: int, sequence: int
    ) -> HostMessage | None:
        """None: no code runs for it."""
        return None

    @staticmethod
    def activate(run: SlotsRun, activation: int) -> HostMessage | None:
        """None: no code runs for it."""
        return None

    @staticmethod
    def is_runnable(run: SlotsRun, now_ms: int) -> bool:
        """While somebody waits: then a new owner looks at it, whose limit may be another."""
        return run.waiting > 0

    @staticmethod
    def attempts_due(run: SlotsRun, activation: int, now_ms: int) -> Mapping[str, HostMessage]:
        """None."""
        return {}

    def next_wake_ms(self, run: SlotsRun, after_ms: int = 0) -> int | None:
        """At once, if the limit is another than it was."""
        if not is_to_adjust(run, self._limit(run.workflow, run)):
            return None
        return max(run.updated_at_ms, after_ms) + 1

    @staticmethod
    def expected_attempt(run: SlotsRun, key: str) -> int | None:
        """None: it has no steps."""
        return None

    # -- the state at rest

    @staticmethod
    def encode(run: SlotsRun) -> bytes:
        """The state as msgpack; places say what tickets say."""
        return _ENCODE(msgspec.structs.replace(run, places={}))

    @staticmethod
    def decode(state: bytes) -> SlotsRun:
        """The state from msgpack."""
        run = _DECODE(state)
        run.places = {ticket: number for number, ticket in run.tickets.items()}
        return run

    @staticmethod
    def drop_finished(run: SlotsRun) -> None:
        """It never ends."""

    @staticmethod
    def steps(run: SlotsRun) -> list[tuple[str, Entry]]:
        """None: it has no entries."""
        return []
