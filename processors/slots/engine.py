"""The engine of instances that count slots. They run no code and never end.

An instance exists while a run holds a slot of its limit or waits for one; then it is deleted.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from headwater.processors.runs.decide import not_found
from headwater.processors.runs.decisions import STALE, Decision, Facts, Request, Wake
from headwater.processors.runs.host_messages import HostMessage
from headwater.processors.runs.slots import SLOTS, Concurrencies
from headwater.processors.slots import queue
from headwater.processors.slots.queue import (
    SlotsRun,
    adjust_to_limit,
    needs_adjustment,
    request_slot,
    return_slot,
)
from headwater.schemas.history import AskSlot, Failure, ReturnSlot, RunCommand, RunEvent

_ENCODE: Final = msgspec.msgpack.Encoder().encode
_DECODE: Final = msgspec.msgpack.Decoder(SlotsRun).decode


class SlotsEngine:
    """Implementation of `processors.runs.engine.Engine`; see there for the methods.

    `limits` has the limits of all workflows that are known here. A limit of an unknown workflow
    stays as it was.
    """

    kind: Final = SLOTS
    short_steps: Final = None
    #: Raise it when SlotsRun, Run or a struct in them changes.
    format: Final = 3

    def __init__(self, limits: Concurrencies = MappingProxyType({})) -> None:
        self._limits = limits

    def declare(self, limits: Concurrencies) -> None:
        """Use these limits from now on."""
        self._limits = limits

    def _limit(self, workflow: str, run: SlotsRun | None) -> int | None:
        if workflow not in self._limits:
            # The workflow is unknown here, and every limit has at least one slot.
            return 1 if run is None else run.limit
        concurrency = self._limits[workflow]
        return None if concurrency is None else concurrency.limit

    # -- deciding

    def decide_command(self, run: SlotsRun | None, command: RunCommand, facts: Facts) -> Decision:
        """Decide a command; only AskSlot and ReturnSlot apply to these instances."""
        limit = self._limit(facts.workflow, run)
        if isinstance(command, AskSlot):
            return request_slot(run, (facts.workflow, facts.instance_id), command, limit)
        if isinstance(command, ReturnSlot) and run is not None:
            return return_slot(run, command, limit)
        return not_found(facts.instance_id)

    def decide(self, run: SlotsRun, request: Request, now_ms: int) -> Decision:
        """Check whether the limit has changed."""
        return (
            adjust_to_limit(run, self._limit(run.workflow, run))
            if isinstance(request, Wake)
            else STALE
        )

    @staticmethod
    def fail_run(run: SlotsRun, failure: Failure, *, with_children: bool = True) -> list[RunEvent]:
        """Return no events: these runs are never ended for their size, which has its own limits."""
        return []

    @staticmethod
    def event_location(run: SlotsRun, decided: Sequence[RunEvent], event: RunEvent) -> str:
        """Return nothing: the instance has no author."""
        return ""

    size_advice = "let fewer runs wait for a slot"

    # -- applying

    begin = staticmethod(queue.begin)
    apply = staticmethod(queue.apply)

    # -- what follows

    @staticmethod
    def message_for_host(
        run: SlotsRun, event: RunEvent, activation: int, sequence: int
    ) -> HostMessage | None:
        """Return None: no code runs for the instance."""
        return None

    @staticmethod
    def activate(run: SlotsRun, activation: int) -> HostMessage | None:
        """Return None: no code runs for the instance."""
        return None

    @staticmethod
    def is_runnable(run: SlotsRun, now_ms: int) -> bool:
        """Whether runs wait: a new owner then checks whether the limit has changed."""
        return run.waiting > 0

    @staticmethod
    def attempts_due(run: SlotsRun, activation: int, now_ms: int) -> Mapping[str, HostMessage]:
        """Return nothing."""
        return {}

    def next_wake_ms(self, run: SlotsRun, after_ms: int = 0) -> int | None:
        """Wake at once if the limit has changed."""
        if not needs_adjustment(run, self._limit(run.workflow, run)):
            return None
        return max(run.updated_at_ms, after_ms) + 1

    @staticmethod
    def expected_attempt(run: SlotsRun, key: str) -> int | None:
        """Return None: the instance has no steps."""
        return None

    # -- stored state

    @staticmethod
    def encode(run: SlotsRun) -> bytes:
        """Encode the state as msgpack, without `places`, which `tickets` imply."""
        return _ENCODE(msgspec.structs.replace(run, places={}))

    @staticmethod
    def decode(state: bytes) -> SlotsRun:
        """Decode the state from msgpack."""
        run = _DECODE(state)
        run.places = {ticket: number for number, ticket in run.tickets.items()}
        return run

    @staticmethod
    def drop_finished(run: SlotsRun) -> None:
        """Do nothing: the instance never ends."""
