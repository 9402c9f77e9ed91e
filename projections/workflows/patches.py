"""Row changes of a batch of histories, including slots, merged by row into patches.

A few statements write all patches. They read only the rows that they write, except for retries,
which copy rows of the previous run. Their order:

1. Loops trim their iterations. Steps that were added and trimmed within the batch have no rows.
2. Rows and changes. Each row has only one of the two.
3. Instances. If an instance was restarted within the batch, its runs follow one by one, because the
   row of a new run saves that of the previous run.

A deleted instance has no earlier patches; its rows in Postgres are deleted first.

A retry copies rows as they are at that point. So an instance's changes before and after a retry are
in two stages, and the first stage is written before the second. A batch has one more stage than the
largest number of retries of one instance.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TypeAlias

import msgspec

from headwater.processors.runs.durations import KEEP_FOREVER, Retention
from headwater.processors.runs.slots import SLOTS_ID, holder_of
from headwater.projections.postgres.statements import OF_INSTANCES
from headwater.projections.projector.projection import RowStatement, row_statements
from headwater.projections.workflows.rows import (
    AUTHORS_JSON,
    Deleted,
    Delivery,
    EventRow,
    InstanceChange,
    InstanceRow,
    LogRow,
    OwnerRow,
    Retry,
    StepChange,
    StepRow,
    Trim,
)
from headwater.projections.workflows.token_rows import TokenChange, TokenRow
from headwater.schemas.history import (
    Failure,
    HistoryAppended,
    Json,
    SlotQueued,
    SlotReturned,
    SlotsGiven,
)

__all__ = ["EventContext", "Patches", "SlotPatches", "is_slots_instance"]


class SlotRow(msgspec.Struct, kw_only=True, gc=False):
    """A run that holds a slot or waits for one."""

    workflow_name: str
    instance_id: str
    number: int
    key: Json | None
    holder_id: str
    holder_run: int
    asked_at_ms: int
    granted_at_ms: int | None = None


class Granted(msgspec.Struct, frozen=True, gc=False):
    """All runs up to a number hold a slot since `at_ms`."""

    workflow_name: str
    instance_id: str
    through: int
    at_ms: int


class Returned(msgspec.Struct, frozen=True, gc=False):
    """A slot or waiting position that was given up."""

    workflow_name: str
    instance_id: str
    number: int


def is_slots_instance(instance_id: str) -> bool:
    """Whether an instance counts slots. Such an instance has no row of its own."""
    return instance_id.startswith(SLOTS_ID)


class SlotPatches:
    """Changes of slots in one batch.

    A row is inserted, may be granted, and is deleted.
    """

    def __init__(self) -> None:
        #: By instance that counts them, and number.
        self._rows: dict[tuple[str, str], dict[int, SlotRow]] = {}
        self._granted: list[Granted] = []
        self._returned: list[Returned] = []

    def add_record(self, record: HistoryAppended) -> None:
        """Add the changes of a record of an instance that counts slots."""
        key = (record.workflow, record.instance_id)
        rows = self._rows.setdefault(key, {})
        for event in record.events:
            match event:
                case SlotQueued():
                    holder_id, holder_run = holder_of(event.ticket)
                    rows[event.number] = SlotRow(
                        workflow_name=record.workflow,
                        instance_id=record.instance_id,
                        number=event.number,
                        key=event.key,
                        holder_id=holder_id,
                        holder_run=holder_run,
                        asked_at_ms=record.at_ms,
                    )
                case SlotsGiven():
                    self._granted.append(Granted(*key, event.through, record.at_ms))
                    for row in rows.values():
                        if row.number <= event.through and row.granted_at_ms is None:
                            row.granted_at_ms = record.at_ms
                case SlotReturned():
                    if rows.pop(event.number, None) is None:
                        self._returned.append(Returned(*key, event.number))
                case _:
                    pass

    def statements(self) -> Iterator[RowStatement]:
        """Yield the statements in order: earlier rows are granted first."""
        rows = [row for by_number in self._rows.values() for row in by_number.values()]
        yield from row_statements("workflow_slot_grants", self._granted)
        yield from row_statements("workflow_slot", self._returned, delete=True)
        yield from row_statements("workflow_slot", rows)


# -- histories

_Key: TypeAlias = tuple[str, str]
_Run: TypeAlias = tuple[str, str, int]
_Instance: TypeAlias = InstanceRow | InstanceChange
_Step: TypeAlias = StepRow | StepChange
_Token: TypeAlias = TokenRow | TokenChange


class EventContext(msgspec.Struct, gc=False):
    """Position of an event in the history.

    Attributes:
        sequence: Number of the event within its run.
        index: Index of the event within its record, which is at `partition` and `offset`.
    """

    workflow_name: str
    instance_id: str
    run_number: int
    at_ms: int
    partition: int
    offset: int
    sequence: int
    index: int = 0

    @property
    def run(self) -> _Run:
        """The run of the event."""
        return (self.workflow_name, self.instance_id, self.run_number)


class _Stage:
    """Changes of steps, tokens and events between two retries."""

    def __init__(self) -> None:
        self.retries: list[Retry] = []
        self.steps: dict[_Run, dict[str, _Step]] = {}
        #: The last trim of each loop; it applies to rows from before the stage.
        self.trims: dict[tuple[_Run, str], Trim] = {}
        self.tokens: dict[_Run, dict[int, _Token]] = {}
        self.events: dict[tuple[_Run, str], EventRow | Delivery] = {}

    def drop(self, workflow_name: str, instance_id: str) -> None:
        """Drop the changes of an instance."""
        deleted = (workflow_name, instance_id)
        self.retries = [r for r in self.retries if (r.workflow_name, r.instance_id) != deleted]
        for by_run in (self.steps, self.tokens):
            for run in [run for run in by_run if run[:2] == deleted]:
                del by_run[run]
        for loop in [loop for loop in self.trims if loop[0][:2] == deleted]:
            del self.trims[loop]
        for event in [event for event in self.events if event[0][:2] == deleted]:
            del self.events[event]

    def statements(self) -> Iterator[RowStatement]:
        """Yield the statements in the order of execution."""
        steps = [step for by_key in self.steps.values() for step in by_key.values()]
        tokens = [token for by_key in self.tokens.values() for token in by_key.values()]
        events = list(self.events.values())
        yield from _row_statements("workflow_retries", self.retries)
        yield from _row_statements("workflow_step_trims", list(self.trims.values()))
        yield from _row_statements("workflow_step", [s for s in steps if isinstance(s, StepRow)])
        yield from _row_statements(
            "workflow_step_changes", [s for s in steps if isinstance(s, StepChange)]
        )
        yield from _row_statements("workflow_token", [t for t in tokens if isinstance(t, TokenRow)])
        changed = [t for t in tokens if isinstance(t, TokenChange)]
        yield from _row_statements("workflow_token_changes", changed)
        yield from _row_statements("workflow_event", [e for e in events if isinstance(e, EventRow)])
        yield from _row_statements(
            "workflow_deliveries", [e for e in events if isinstance(e, Delivery)]
        )


class Patches:
    """The patches of one batch, collected event by event."""

    def __init__(self, retention: Retention = KEEP_FOREVER) -> None:
        self._retention = retention
        #: Runs of each instance in order; only the last still changes.
        self._instances: dict[_Key, list[_Instance]] = {}
        self._stages: list[_Stage] = [_Stage()]
        #: Current stage of an instance, if not the first.
        self._stage_of: dict[_Key, int] = {}
        self._logs: list[LogRow] = []
        #: The latest claim of each partition.
        self._owners: dict[int, OwnerRow] = {}
        #: Entries without rows, so that their ends change no rows.
        self._hidden: set[tuple[_Run, str]] = set()
        self._deleted: dict[_Key, Deleted] = {}
        self.slots = SlotPatches()

    def set_owner(self, row: OwnerRow) -> None:
        """Record a new owner of a partition."""
        previous = self._owners.get(row.partition)
        if previous is not None:
            known = tuple(sorted({*previous.known, *row.known}))
            row = msgspec.structs.replace(row, known=known)
        self._owners[row.partition] = row

    def retry(self, row: Retry) -> None:
        """Record that a run continues the previous one."""
        key = (row.workflow_name, row.instance_id)
        number = self._stage_of[key] = self._stage_of.get(key, 0) + 1
        if number == len(self._stages):
            self._stages.append(_Stage())
        self._stages[number].retries.append(row)

    def _stage(self, context: EventContext) -> _Stage:
        if not self._stage_of:
            return self._stages[0]
        number = self._stage_of.get((context.workflow_name, context.instance_id), 0)
        return self._stages[number]

    def delete(self, deleted: Deleted) -> None:
        """Delete an instance with all its patches."""
        key = (deleted.workflow_name, deleted.instance_id)
        self._deleted[key] = deleted
        self._instances.pop(key, None)
        for stage in self._stages:
            stage.drop(*key)
        self._logs = [row for row in self._logs if (row.workflow_name, row.instance_id) != key]
        self._hidden = {hidden for hidden in self._hidden if hidden[0][:2] != key}

    # --- instances ----------------------------------------------------------------------------

    def begin(self, row: InstanceRow) -> None:
        """Begin a run."""
        key = (row.workflow_name, row.instance_id)
        self._instances.setdefault(key, []).append(row)

    def instance(self, context: EventContext) -> _Instance:
        """Return the instance to change; the current event becomes its latest."""
        runs = self._instances.setdefault((context.workflow_name, context.instance_id), [])
        if runs and runs[-1].run_number == context.run_number:
            instance = runs[-1]
            instance.updated_at_ms = context.at_ms
            instance.partition, instance.offset = context.partition, context.offset
            return instance
        change = InstanceChange(
            workflow_name=context.workflow_name,
            instance_id=context.instance_id,
            run_number=context.run_number,
            updated_at_ms=context.at_ms,
            partition=context.partition,
            offset=context.offset,
        )
        runs.append(change)
        return change

    def end(self, context: EventContext, output: Json | None, failure: Failure | None) -> None:
        """End the instance's run."""
        kept_until_ms = self._retention.until_ms(context.workflow_name, context.at_ms)
        self.instance(context).end(output, failure, context.at_ms, kept_until_ms)

    # --- steps --------------------------------------------------------------------------------

    def put_step(self, context: EventContext, row: StepRow) -> None:
        """Set the row of a step. Its earlier sequence and latest attempt are kept."""
        steps = self._stage(context).steps.setdefault(context.run, {})
        previous = steps.get(row.step_key)
        if previous is not None and row.last_attempt_at_ms is None:
            row.last_attempt_at_ms = previous.last_attempt_at_ms
        if isinstance(previous, StepRow):
            row.sequence = previous.sequence
        steps[row.step_key] = row

    def hide_step(self, context: EventContext, step_key: str) -> None:
        """Record nothing for this entry from now on."""
        self._hidden.add((context.run, step_key))

    def step(self, context: EventContext, step_key: str) -> _Step | None:
        """Return a step to change; None if it is hidden."""
        steps = self._stage(context).steps.setdefault(context.run, {})
        step = steps.get(step_key)
        if step is None and (context.run, step_key) not in self._hidden:
            step = steps[step_key] = StepChange(
                workflow_name=context.workflow_name,
                instance_id=context.instance_id,
                run_number=context.run_number,
                step_key=step_key,
                updated_at_ms=context.at_ms,
                offset=context.offset,
            )
        if step is not None:
            step.offset = context.offset
        return step

    def trim(self, context: EventContext, step_key: str, before: int) -> None:
        """Remove the steps of a loop's iterations before one."""
        trim = Trim(*context.run, step_key, before)
        stage = self._stage(context)
        steps = stage.steps.get(context.run, {})
        for key in [key for key in steps if trim.covers(key)]:
            del steps[key]
        latest = stage.trims.get((context.run, step_key))
        if latest is None or latest.trim_before < before:
            stage.trims[context.run, step_key] = trim

    # --- tokens -------------------------------------------------------------------------------

    def put_token(self, context: EventContext, row: TokenRow) -> None:
        """Add a new token."""
        self._stage(context).tokens.setdefault(context.run, {})[row.id] = row

    def tokens(self, context: EventContext, numbers: Iterable[int]) -> Iterator[_Token]:
        """Yield tokens to change."""
        tokens = self._stage(context).tokens.setdefault(context.run, {})
        for number in numbers:
            token = tokens.get(number)
            if token is None:
                token = tokens[number] = TokenChange(
                    workflow_name=context.workflow_name,
                    instance_id=context.instance_id,
                    run_number=context.run_number,
                    id=number,
                    updated_at_ms=context.at_ms,
                    offset=context.offset,
                )
            token.offset = context.offset
            yield token

    # --- events and log lines ---------------------------------------------------------------------

    def put_event(self, context: EventContext, row: EventRow) -> None:
        """Add a received event."""
        self._stage(context).events[context.run, row.id] = row

    def deliver(self, context: EventContext, event_id: str, step_key: str) -> None:
        """Record the step that consumed an event."""
        events = self._stage(context).events
        event = events.get((context.run, event_id))
        if event is None:
            events[context.run, event_id] = Delivery(
                workflow_name=context.workflow_name,
                instance_id=context.instance_id,
                run_number=context.run_number,
                id=event_id,
                delivered_at_ms=context.at_ms,
                consumed_by_step_key=step_key,
                offset=context.offset,
            )
        else:
            event.delivered_at_ms = context.at_ms
            event.consumed_by_step_key = step_key
            event.offset = context.offset

    def log(self, row: LogRow) -> None:
        """Add a log line."""
        self._logs.append(row)

    # --- statements ---------------------------------------------------------------------------

    def statements(self) -> Iterator[RowStatement]:
        """Yield the statements in the order of execution."""
        yield from _row_statements("workflow_owner", list(self._owners.values()))
        for table in (*OF_INSTANCES, "rebuild_rows"):
            yield from row_statements(table, list(self._deleted.values()), delete=True)
        for stage in self._stages:
            yield from stage.statements()
        yield from _row_statements("workflow_log", self._logs)
        yield from self.slots.statements()
        for runs in zip_longest(*self._instances.values()):
            yield from _row_statements(
                "workflow_instance", [i for i in runs if isinstance(i, InstanceRow)]
            )
            changes = [i for i in runs if isinstance(i, InstanceChange)]
            yield from _row_statements("workflow_instance_changes", changes)


def _row_statements(table: str, rows: Sequence[msgspec.Struct]) -> Iterator[RowStatement]:
    return row_statements(table, rows, verbatim=AUTHORS_JSON)
