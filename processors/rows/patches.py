"""Row changes of a batch of histories, merged by row into patches.

Most events change a row that only Postgres has. So a row in memory has the columns that are known:
all of them if it began in the batch (`is_whole`), otherwise those that events have set. Events of
one row within a batch are merged here, and few statements write all patches
(`projections.workflows.plan`).

A retry copies rows as they are at that point. So an instance's changes before and after a retry are
in two stages, and the first stage is written before the second. A batch has one more stage than the
largest number of retries of one instance.
"""

from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec

from headwater.processors.code.state import keys_of_iterations
from headwater.processors.runs.durations import KEEP_FOREVER, Retention
from headwater.processors.runs.slots import holder_of
from headwater.schemas.history import (
    Failure,
    HistoryAppended,
    SlotQueued,
    SlotReturned,
    SlotsGiven,
)

#: Columns by name, and hints for the statement; times are Unix milliseconds.
Values: TypeAlias = dict[str, Any]
_Instance: TypeAlias = tuple[str, str]
Run: TypeAlias = tuple[str, str, int]


class Row(msgspec.Struct, gc=False):
    """A row: its columns so far, and whether these are all, because it began in this batch."""

    values: Values
    is_whole: bool


#: Rows of runs by the last column of their key.
Rows: TypeAlias = dict[Run, dict[Any, Row]]


def trimmed(steps: Iterable[str], loop: str, before: int) -> list[str]:
    """Return the keys of steps that are in a loop's iterations before one."""
    return [key for key, number in keys_of_iterations(steps, loop) if number < before]


def error_of(failure: Failure | None) -> Values:
    """Return the columns of an error, which are null without one."""
    if failure is None:
        return {"error_name": None, "error_message": None, "error_detail": None}
    return {
        "error_name": failure.name,
        "error_message": failure.message,
        "error_detail": failure.detail,
    }


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
    #: The run of the event: derived once, because every row is found by it.
    run: Run = ("", "", 0)

    def __post_init__(self) -> None:
        self.run = (self.workflow_name, self.instance_id, self.run_number)

    def values(self, **values: Any) -> Values:  # noqa: ANN401 (columns)
        """Return columns of a row of the run that the event changes."""
        values["workflow_name"] = self.workflow_name
        values["instance_id"] = self.instance_id
        values["run_number"] = self.run_number
        values["offset"] = self.offset
        return values


class Stage:
    """Changes of steps, tokens and events between two retries."""

    def __init__(self) -> None:
        self.retries: list[Values] = []
        #: The last trim of each loop; it applies to rows from before the stage.
        self.trims: dict[tuple[Run, str], Values] = {}
        self.steps: Rows = {}
        self.tokens: Rows = {}
        self.events: Rows = {}

    def drop(self, deleted: _Instance) -> None:
        """Drop the changes of an instance."""
        self.retries = [row for row in self.retries if _instance_of(row) != deleted]
        self.trims = {key: trim for key, trim in self.trims.items() if key[0][:2] != deleted}
        for rows in (self.steps, self.tokens, self.events):
            for run in [run for run in rows if run[:2] == deleted]:
                del rows[run]


class Patches:
    """The patches of one batch, collected event by event."""

    def __init__(self, retention: Retention = KEEP_FOREVER) -> None:
        self.retention = retention
        self.stages: list[Stage] = [Stage()]
        #: Current stage of an instance, if not the first.
        self._stage_of: dict[_Instance, int] = {}
        #: Runs of each instance in order; only the last still changes.
        self.instances: dict[_Instance, list[Row]] = {}
        self.logs: list[Values] = []
        #: Workflow events of graphs, see `graph_events.row_of`.
        self.graph_events: list[Values] = []
        #: The latest claim of each partition.
        self.owners: dict[int, Values] = {}
        #: Entries without rows, so that their ends change no rows.
        self._hidden: set[tuple[Run, str]] = set()
        self.deleted: dict[_Instance, Values] = {}
        self.slots = SlotPatches()

    def set_owner(self, row: Values) -> None:
        """Record a new owner of a partition."""
        previous = self.owners.get(row["partition"])
        if previous is not None:
            row["known"] = sorted({*previous["known"], *row["known"]})
        self.owners[row["partition"]] = row

    def retry(self, row: Values) -> None:
        """Record that a run continues the previous one."""
        key = _instance_of(row)
        number = self._stage_of[key] = self._stage_of.get(key, 0) + 1
        if number == len(self.stages):
            self.stages.append(Stage())
        self.stages[number].retries.append(row)

    def stage(self, context: EventContext) -> Stage:
        """Return the current stage of an instance."""
        if not self._stage_of:
            return self.stages[0]
        number = self._stage_of.get((context.workflow_name, context.instance_id), 0)
        return self.stages[number]

    def delete(self, context: EventContext) -> None:
        """Delete an instance with all its patches."""
        key = (context.workflow_name, context.instance_id)
        self.deleted[key] = {"workflow_name": key[0], "instance_id": key[1]}
        self.instances.pop(key, None)
        for stage in self.stages:
            stage.drop(key)
        self.logs = [row for row in self.logs if _instance_of(row) != key]
        self.graph_events = [row for row in self.graph_events if _instance_of(row) != key]
        self._hidden = {hidden for hidden in self._hidden if hidden[0][:2] != key}

    # --- instances ----------------------------------------------------------------------------

    def begin(self, context: EventContext, values: Values) -> None:
        """Begin a run."""
        key = (context.workflow_name, context.instance_id)
        self.instances.setdefault(key, []).append(Row(values, is_whole=True))

    def instance(self, context: EventContext) -> Values:
        """Return the instance to change; the current event becomes its latest."""
        runs = self.instances.setdefault((context.workflow_name, context.instance_id), [])
        if not runs or runs[-1].values["run_number"] != context.run_number:
            runs.append(Row(context.values(), is_whole=False))
        values = runs[-1].values
        values["updated_at"] = context.at_ms
        values["partition"], values["offset"] = context.partition, context.offset
        return values

    # --- steps --------------------------------------------------------------------------------

    def put_step(self, context: EventContext, key: str, values: Values) -> None:
        """Set the row of a step. Its earlier sequence and latest attempt are kept."""
        steps = self.stage(context).steps.setdefault(context.run, {})
        previous = steps.get(key)
        if previous is not None:
            before = previous.values
            if "last_attempt_at" not in values and "last_attempt_at" in before:
                values["last_attempt_at"] = before["last_attempt_at"]
            if previous.is_whole:
                values["sequence"] = before["sequence"]
        steps[key] = Row(values, is_whole=True)

    def hide_step(self, context: EventContext, key: str) -> None:
        """Record nothing for this entry from now on."""
        self._hidden.add((context.run, key))

    def change_step(self, context: EventContext, key: str, values: Values) -> None:
        """Change a step, unless it is hidden."""
        if (context.run, key) not in self._hidden:
            values["updated_at"] = context.at_ms
            _change(self.stage(context).steps, context, "step_key", key, values)

    def trim(self, context: EventContext, key: str, before: int) -> None:
        """Remove the steps of a loop's iterations before one."""
        stage = self.stage(context)
        steps = stage.steps.get(context.run, {})
        for step_key in trimmed(steps, key, before):
            del steps[step_key]
        latest = stage.trims.get((context.run, key))
        if latest is None or latest["trim_before"] < before:
            stage.trims[context.run, key] = context.values(step_key=key, trim_before=before)
        loop = steps.get(key)
        latest_before = 0 if loop is None else loop.values.get("trimmed_before") or 0
        self.change_step(context, key, {"trimmed_before": max(before, latest_before)})

    # --- tokens -------------------------------------------------------------------------------

    def put_tokens(self, context: EventContext, rows: Iterable[Values]) -> None:
        """Add new tokens."""
        tokens = self.stage(context).tokens.setdefault(context.run, {})
        for values in rows:
            tokens[values["id"]] = Row(values, is_whole=True)

    def status_of_token(self, context: EventContext, number: int) -> str | None:
        """Return the status of a token, if it is known."""
        row = self.stage(context).tokens.get(context.run, {}).get(number)
        return None if row is None else row.values.get("status")

    def change_tokens(self, context: EventContext, numbers: Iterable[int], values: Values) -> None:
        """Change tokens in the same way."""
        values["updated_at"], values["offset"] = context.at_ms, context.offset
        stage = self.stage(context) if self._stage_of else self.stages[0]
        tokens = stage.tokens.setdefault(context.run, {})
        for number in numbers:
            row = tokens.get(number)
            if row is None:
                tokens[number] = row = Row(context.values(id=number), is_whole=False)
            row.values.update(values)

    # --- events and log lines ---------------------------------------------------------------------

    def put_event(self, context: EventContext, event_id: str, values: Values) -> None:
        """Add a received event."""
        row = Row(values, is_whole=True)
        self.stage(context).events.setdefault(context.run, {})[event_id] = row

    def deliver(self, context: EventContext, event_id: str, step_key: str) -> None:
        """Record the step that consumed an event."""
        values = {"delivered_at": context.at_ms, "consumed_by_step_key": step_key}
        _change(self.stage(context).events, context, "id", event_id, values)

    def log(self, values: Values) -> None:
        """Add a log line."""
        self.logs.append(values)

    def leave_node(self, context: EventContext, node: str, tokens: Iterable[int]) -> None:
        """Keep the node at which workflow events of this batch happened, before tokens leave it."""
        leaving = set(tokens)
        for row in self.graph_events:
            if row["token_id"] in leaving and _run_of(row) == context.run:
                row["node_ref"] = row["node_ref"] or node


def _change(rows: Rows, context: EventContext, name: str, key: str | int, values: Values) -> None:
    of_run = rows.setdefault(context.run, {})
    row = of_run.get(key)
    if row is None:
        of_run[key] = row = Row(context.values(**{name: key}), is_whole=False)
    row.values.update(values)
    row.values["offset"] = context.offset


def _run_of(row: Values) -> Run:
    return row["workflow_name"], row["instance_id"], row["run_number"]


def _instance_of(row: Values) -> _Instance:
    return row["workflow_name"], row["instance_id"]


class SlotPatches:
    """Changes of slots in one batch."""

    def __init__(self) -> None:
        #: New rows by instance that counts them, and number.
        self.rows: dict[_Instance, dict[int, Values]] = {}
        #: All runs up to a number hold a slot since a time.
        self.granted: list[Values] = []
        #: Slots or waiting positions that were given up.
        self.returned: list[Values] = []

    def add_record(self, record: HistoryAppended) -> None:
        """Add the changes of a record of an instance that counts slots."""
        counter = {"workflow_name": record.workflow, "instance_id": record.instance_id}
        rows = self.rows.setdefault((record.workflow, record.instance_id), {})
        for event in record.events:
            match event:
                case SlotQueued():
                    holder_id, holder_run = holder_of(event.ticket)
                    rows[event.number] = {
                        **counter,
                        "number": event.number,
                        "key": event.key,
                        "holder_id": holder_id,
                        "holder_run": holder_run,
                        "asked_at": record.at_ms,
                        "granted_at": None,
                    }
                case SlotsGiven():
                    self.granted.append(counter | {"through": event.through, "at": record.at_ms})
                    for row in rows.values():
                        if row["number"] <= event.through and row["granted_at"] is None:
                            row["granted_at"] = record.at_ms
                case SlotReturned():
                    if rows.pop(event.number, None) is None:
                        self.returned.append(counter | {"number": event.number})
                case _:
                    pass
