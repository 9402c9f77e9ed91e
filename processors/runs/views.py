"""History of one run for display: steps, tokens, events and logs, folded from the log."""

from dataclasses import dataclass, field

import msgspec

from headwater.processors.runs.engine import Engines, engine_of
from headwater.processors.runs.folding import fold
from headwater.processors.runs.state import Entry, Run
from headwater.processors.runs.token_views import TokenView, retried_tokens
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
    """A run up to the position that was read: events and logs are in log order."""

    engines: Engines
    state: Run | None = None
    events: dict[str, EventView] = field(default_factory=dict)
    tokens: dict[int, TokenView] = field(default_factory=dict)
    logs: list[tuple[int, LogWritten]] = field(default_factory=list)
    rolled_back_at_ms: dict[str, int] = field(default_factory=dict)
    rollback_failed_at_ms: dict[str, int] = field(default_factory=dict)

    def apply(self, record: HistoryAppended) -> None:
        """Apply a record that counts."""
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
                        consumed = self.events[event_id]
                        consumed.delivered_at_ms = record.at_ms
                        consumed.consumed_by_step_key = event.key
                case EntryRolledBack():
                    ends = self.rollback_failed_at_ms if event.failure else self.rolled_back_at_ms
                    ends[event.key] = record.at_ms
                case LogWritten():
                    self.logs.append((record.at_ms, event))
                case _:
                    pass

    def unconsumed(self) -> dict[str, EventView]:
        """Return the events that are not consumed, for a run that retries this one."""
        return {
            key: msgspec.structs.replace(event)
            for key, event in self.events.items()
            if event.consumed_by_step_key is None
        }

    def steps(self) -> list[tuple[str, Entry]]:
        """Return the entries for display, in the order in which they were first reached."""
        run = self.state
        return [] if run is None else engine_of(self.engines, run.kind).steps(run)


def runs(engines: Engines, records: list[HistoryAppended]) -> dict[int, RunView]:
    """Return the runs of one instance, by number.

    Args:
        engines: The engines by kind.
        records: Records of the instance that count, in order.
    """
    views: dict[int, RunView] = {}
    before: Run | None = None
    for record in records:
        view = views.get(record.run_number)
        first = record.events[0]
        if view is None and isinstance(first, RunStarted):
            view = views[record.run_number] = RunView(engines, before)
            if first.kept is not None:
                view.events = views[record.run_number - 1].unconsumed()
                view.tokens = retried_tokens(views[record.run_number - 1].tokens, record.at_ms)
        if view is not None:
            view.apply(record)
            before = view.state
    return views
