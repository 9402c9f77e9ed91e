"""The rows that a batch of histories changes: patches, merged by row.

A handful of statements writes all of it, and none reads more than the rows that it writes, but for
retries, which copy rows of the run before them. Their order: first what loops forget, because steps
of this batch that were forgotten within it are not among the rows any more; then rows and changes,
though of each row there is but one of the two; last the instances, one run after the other where an
instance was restarted within the batch, because the row of a run that begins saves that of the run
before.

An instance that is deleted has no patches from before; what Postgres has of it goes first.

A retry copies rows as they are then. So the changes of an instance's steps, tokens and events
before a retry and after it are two stages, and all of the first are written before those of the
second. A batch has one more stage than the retries of the instance that has the most.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TypeAlias

import msgspec

from headwater.processors.runs.retention import KEEP_FOREVER, Retention
from headwater.projections.postgres.statements import OF_INSTANCES
from headwater.projections.projector.plan import Work, works
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
from headwater.projections.workflows.slot_rows import SlotPatches
from headwater.projections.workflows.token_rows import TokenChange, TokenRow
from headwater.schemas.history import Failure, Json

__all__ = ["EventContext", "Patches"]

_Key: TypeAlias = tuple[str, str]
_Run: TypeAlias = tuple[str, str, int]
_Instance: TypeAlias = InstanceRow | InstanceChange
_Step: TypeAlias = StepRow | StepChange
_Token: TypeAlias = TokenRow | TokenChange


class EventContext(msgspec.Struct, gc=False):
    """Where in the history we are.

    Shape:  sequence is the number of the current event within its run, index its place in its
            record, which lies at the position partition and offset.
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
        """The run that the event belongs to."""
        return (self.workflow_name, self.instance_id, self.run_number)


class _Stage:
    """What changes of steps, tokens and events between two retries."""

    def __init__(self) -> None:
        self.retries: list[Retry] = []
        self.steps: dict[_Run, dict[str, _Step]] = {}
        #: The furthest of each loop: Postgres has only what was there before the stage.
        self.trims: dict[tuple[_Run, str], Trim] = {}
        self.tokens: dict[_Run, dict[int, _Token]] = {}
        self.events: dict[tuple[_Run, str], EventRow | Delivery] = {}

    def drop(self, workflow_name: str, instance_id: str) -> None:
        """Drops what changes of an instance."""
        deleted = (workflow_name, instance_id)
        self.retries = [r for r in self.retries if (r.workflow_name, r.instance_id) != deleted]
        for of_runs in (self.steps, self.tokens):
            for run in [run for run in of_runs if run[:2] == deleted]:
                del of_runs[run]
        for place in [place for place in self.trims if place[0][:2] == deleted]:
            del self.trims[place]
        for event in [event for event in self.events if event[0][:2] == deleted]:
            del self.events[event]

    def works(self) -> Iterator[Work]:
        """The statements, in the order to run them."""
        steps = [step for of_run in self.steps.values() for step in of_run.values()]
        tokens = [token for of_run in self.tokens.values() for token in of_run.values()]
        events = list(self.events.values())
        yield from _works("workflow_retries", self.retries)
        yield from _works("workflow_step_trims", list(self.trims.values()))
        yield from _works("workflow_step", [s for s in steps if isinstance(s, StepRow)])
        yield from _works("workflow_step_changes", [s for s in steps if isinstance(s, StepChange)])
        yield from _works("workflow_token", [t for t in tokens if isinstance(t, TokenRow)])
        changed = [t for t in tokens if isinstance(t, TokenChange)]
        yield from _works("workflow_token_changes", changed)
        yield from _works("workflow_event", [e for e in events if isinstance(e, EventRow)])
        yield from _works("workflow_deliveries", [e for e in events if isinstance(e, Delivery)])


class Patches:
    """The patches of one batch, collected event by event."""

    def __init__(self, retention: Retention = KEEP_FOREVER) -> None:
        self._retention = retention
        #: Run after run of each instance; only the last still changes.
        self._instances: dict[_Key, list[_Instance]] = {}
        self._stages: list[_Stage] = [_Stage()]
        #: In which stage an instance is, if not in the first.
        self._stage_of: dict[_Key, int] = {}
        self._logs: list[LogRow] = []
        #: The latest claim of each partition.
        self._owners: dict[int, OwnerRow] = {}
        #: Entries that nobody is shown, so that their ends are not looked for in Postgres.
        self._hidden: set[tuple[_Run, str]] = set()
        self._deleted: dict[_Key, Deleted] = {}
        self.slots = SlotPatches()

    def own(self, row: OwnerRow) -> None:
        """A partition has another owner."""
        before = self._owners.get(row.partition)
        if before is not None:
            known = tuple(sorted({*before.known, *row.known}))
            row = msgspec.structs.replace(row, known=known)
        self._owners[row.partition] = row

    def retry(self, row: Retry) -> None:
        """A run takes over what the one before it has done so far."""
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
        """An instance is forgotten, with all that came of it so far."""
        key = (deleted.workflow_name, deleted.instance_id)
        self._deleted[key] = deleted
        self._instances.pop(key, None)
        for stage in self._stages:
            stage.drop(*key)
        self._logs = [row for row in self._logs if (row.workflow_name, row.instance_id) != key]
        self._hidden = {hidden for hidden in self._hidden if hidden[0][:2] != key}

    # --- instances ----------------------------------------------------------------------------

    def begin(self, row: InstanceRow) -> None:
        """A run begins."""
        key = (row.workflow_name, row.instance_id)
        self._instances.setdefault(key, []).append(row)

    def instance(self, context: EventContext) -> _Instance:
        """The instance, to be changed; the current event is its latest."""
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
        """The instance's run is over."""
        kept_until_ms = self._retention.until_ms(context.workflow_name, context.at_ms)
        self.instance(context).end(output, failure, context.at_ms, kept_until_ms)

    # --- steps --------------------------------------------------------------------------------

    def put_step(self, context: EventContext, row: StepRow) -> None:
        """A step is now this; of what it was, its sequence and its latest attempt may stay."""
        steps = self._stage(context).steps.setdefault(context.run, {})
        before = steps.get(row.step_key)
        if before is not None and row.last_attempt_at_ms is None:
            row.last_attempt_at_ms = before.last_attempt_at_ms
        if isinstance(before, StepRow):
            row.sequence = before.sequence
        steps[row.step_key] = row

    def hide_step(self, context: EventContext, step_key: str) -> None:
        """What follows of this entry is not shown."""
        self._hidden.add((context.run, step_key))

    def step(self, context: EventContext, step_key: str) -> _Step | None:
        """A step, to be changed; None for one that is not shown."""
        steps = self._stage(context).steps.setdefault(context.run, {})
        found = steps.get(step_key)
        if found is None and (context.run, step_key) not in self._hidden:
            found = steps[step_key] = StepChange(
                workflow_name=context.workflow_name,
                instance_id=context.instance_id,
                run_number=context.run_number,
                step_key=step_key,
                updated_at_ms=context.at_ms,
                offset=context.offset,
            )
        if found is not None:
            found.offset = context.offset
        return found

    def trim(self, context: EventContext, step_key: str, before: int) -> None:
        """A loop forgets the steps of its iterations before one."""
        trim = Trim(*context.run, step_key, before)
        stage = self._stage(context)
        steps = stage.steps.get(context.run, {})
        for key in [key for key in steps if trim.covers(key)]:
            del steps[key]
        furthest = stage.trims.get((context.run, step_key))
        if furthest is None or furthest.trim_before < before:
            stage.trims[context.run, step_key] = trim

    # --- tokens -------------------------------------------------------------------------------

    def put_token(self, context: EventContext, row: TokenRow) -> None:
        """A token was created."""
        self._stage(context).tokens.setdefault(context.run, {})[row.id] = row

    def tokens(self, context: EventContext, numbers: Iterable[int]) -> Iterator[_Token]:
        """Tokens, to be changed."""
        tokens = self._stage(context).tokens.setdefault(context.run, {})
        for number in numbers:
            found = tokens.get(number)
            if found is None:
                found = tokens[number] = TokenChange(
                    workflow_name=context.workflow_name,
                    instance_id=context.instance_id,
                    run_number=context.run_number,
                    id=number,
                    updated_at_ms=context.at_ms,
                    offset=context.offset,
                )
            found.offset = context.offset
            yield found

    # --- events and lines ---------------------------------------------------------------------

    def put_event(self, context: EventContext, row: EventRow) -> None:
        """An event has arrived."""
        self._stage(context).events[context.run, row.id] = row

    def deliver(self, context: EventContext, event_id: str, step_key: str) -> None:
        """A step takes an event."""
        events = self._stage(context).events
        found = events.get((context.run, event_id))
        if found is None:
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
            found.delivered_at_ms = context.at_ms
            found.consumed_by_step_key = step_key
            found.offset = context.offset

    def log(self, row: LogRow) -> None:
        """A line was written."""
        self._logs.append(row)

    # --- statements ---------------------------------------------------------------------------

    def works(self) -> Iterator[Work]:
        """The statements, in the order to run them."""
        yield from _works("workflow_owner", list(self._owners.values()))
        for table in (*OF_INSTANCES, "rebuild_rows"):
            yield from works(table, list(self._deleted.values()), delete=True)
        for stage in self._stages:
            yield from stage.works()
        yield from _works("workflow_log", self._logs)
        yield from self.slots.works()
        for runs in zip_longest(*self._instances.values()):
            yield from _works("workflow_instance", [i for i in runs if isinstance(i, InstanceRow)])
            changes = [i for i in runs if isinstance(i, InstanceChange)]
            yield from _works("workflow_instance_changes", changes)


def _works(table: str, rows: Sequence[msgspec.Struct]) -> Iterator[Work]:
    return works(table, rows, verbatim=AUTHORS_JSON)
