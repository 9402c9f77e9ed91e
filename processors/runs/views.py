"""The history of one run as people read it: steps, tokens, events, logs, folded from the log."""

from dataclasses import dataclass, field

import msgspec

from headwater.processors.runs.engine import Engines, engine_of
from headwater.processors.runs.folding import fold
from headwater.processors.runs.state import Entry, Run
from headwater.processors.runs.token_views import TokenView, taken_up
from headwater.processors.runs.token_views import apply as apply_to_tokens
from headwater.schemas.history import (
    EntryCompleted,
    EntryRolledBack,
    EventReceived,
    HistoryAppended,
    Json,
    LogWritten,
    RunStarted,
)


class EventView(msgspec.Struct, kw_only=True, gc=False):
    """An event that the run received."""

    event_id: str
    type: str
    payload: Json
    created_at_ms: int
    delivered_at_ms: int | None = None
    consumed_by_step_key: str | None = None


@dataclass(slots=True)
class RunView:
    """A run as far as it was read: events and logs are in log order."""

    engines: Engines
    state: Run | None = None
    events: dict[str, EventView] = field(default_factory=dict)
    tokens: dict[int, TokenView] = field(default_factory=dict)
    logs: list[tuple[int, LogWritten]] = field(default_factory=list)
    rolled_back_at_ms: dict[str, int] = field(default_factory=dict)
    rollback_failed_at_ms: dict[str, int] = field(default_factory=dict)

    def apply(self, record: HistoryAppended) -> None:
        """Applies a record that counts."""
        self.state = fold(self.engines, self.state, record)
        for event in record.events:
            apply_to_tokens(self.tokens, event, record.at_ms)
            match event:
                case EventReceived():
                    self.events[event.event_id] = EventView(
                        event_id=event.event_id,
                        type=event.type,
                        payload=event.payload,
                        created_at_ms=event.sent_at_ms,
                    )
                case EntryCompleted():
                    for event_id in event.consumed:
                        taken = self.events[event_id]
                        taken.delivered_at_ms = record.at_ms
                        taken.consumed_by_step_key = event.key
                case EntryRolledBack():
                    ends = self.rollback_failed_at_ms if event.failure else self.rolled_back_at_ms
                    ends[event.key] = record.at_ms
                case LogWritten():
                    self.logs.append((record.at_ms, event))
                case _:
                    pass

    def untaken(self) -> dict[str, EventView]:
        """The events that nobody has taken, for a run that retries this one."""
        return {
            key: msgspec.structs.replace(event)
            for key, event in self.events.items()
            if event.consumed_by_step_key is None
        }

    def steps(self) -> list[tuple[str, Entry]]:
        """The entries that people see, in the order in which they were first reached."""
        run = self.state
        return [] if run is None else engine_of(self.engines, run.kind).steps(run)


def runs(engines: Engines, records: list[HistoryAppended]) -> dict[int, RunView]:
    """The runs of one instance, by number.

    Shape:  the records of the instance that count, in order.
    """
    found: dict[int, RunView] = {}
    before: Run | None = None
    for record in records:
        view = found.get(record.run_number)
        first = record.events[0]
        if view is None and isinstance(first, RunStarted):
            view = found[record.run_number] = RunView(engines, before)
            if first.kept is not None:
                view.events = found[record.run_number - 1].untaken()
                view.tokens = taken_up(found[record.run_number - 1].tokens, record.at_ms)
        if view is not None:
            view.apply(record)
            before = view.state
    return found
