"""The rows of workflows, folded in memory: the plain account that Postgres must agree with.

No batches, no patches: each event changes rows that are there, one after the other. Rows are dicts
with the columns of the tables; moments are Unix milliseconds, JSON is text.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from headwater.processors.rows.graph_events import derive
from headwater.processors.runs.claims import Claims
from headwater.processors.runs.durations import Retention
from headwater.processors.trace_context import context_of, run_context
from headwater.schemas.history import (
    CommandRejected,
    EntriesCancelled,
    EntryCompleted,
    EntryErrored,
    EntryOpened,
    EntryRolledBack,
    EventReceived,
    Failure,
    FanInActivated,
    HistoryAppended,
    InstanceDeleted,
    LogEvent,
    LogWritten,
    LoopAdvanced,
    OfGraph,
    PartitionClaimed,
    PostsSent,
    RunCompleted,
    RunErrored,
    RunMoved,
    RunPaused,
    RunResumed,
    RunStarted,
    RunSuspended,
    RunTerminated,
    SlotAsked,
    SlotGranted,
    SlotQueued,
    SlotReturned,
    SlotsGiven,
    StepCompleted,
    StepFailed,
    StepsRetried,
    StepStarted,
    TasksDispatched,
    TokenCompleted,
    TokenFailed,
)
from headwater.schemas.statuses import EntryKind
from tests.unit.projections import token_fold

Row = dict[str, Any]
Key = tuple[object, ...]

RUN = ("workflow_name", "instance_id", "run_number")
WAITS = ("sleep", "wait_for_event", "child")
NEVER_RUN = ("labels", "created_at", "retention_until")
#: How long the instances of these tests are kept once they have ended.
KEPT_MS = 86_400_000
RETENTION = Retention(of_others=KEPT_MS)


#: Statuses of what is open, by type, but for "pending".
_OPEN_STATUS = {"sleep": "waiting"}


class Fold:
    """The tables, by name and primary key."""

    def __init__(self) -> None:
        self.claims: dict[int, Claims] = {}
        self.tables: dict[str, dict[Key, Row]] = {
            name: {}
            for name in (
                "workflow_instance",
                "workflow_run",
                "workflow_step",
                "workflow_token",
                "workflow_event",
                "workflow_log",
                "workflow_graph_event",
                "workflow_slot",
                "workflow_owner",
            )
        }

    def rows(self) -> dict[str, list[Row]]:
        """All rows, in the order of their keys."""
        return {name: [table[key] for key in sorted(table)] for name, table in self.tables.items()}

    def add(self, partition: int, offset: int, record: HistoryAppended) -> None:
        """Adds the record at a position."""
        claims = self.claims.setdefault(partition, Claims())
        counts = claims.admit(offset, record)
        claim = record.events[0]
        if isinstance(claim, PartitionClaimed):
            before = self.tables["workflow_owner"].get((partition,), {"known": []})
            self.tables["workflow_owner"][partition,] = {
                "partition": partition,
                "epoch": offset,
                "owner": claim.owner,
                "workflows": [workflow.name for workflow in claim.workflows],
                "known": sorted(
                    {*before["known"], *(workflow.name for workflow in claim.workflows)}
                ),
                "params_schemas": msgspec.json.encode(
                    {
                        workflow.name: workflow.params
                        for workflow in claim.workflows
                        if workflow.params
                    }
                ).decode(),
                "limits": msgspec.json.encode(
                    {
                        workflow.name: {"limit": workflow.limit, "key": workflow.limit_key}
                        for workflow in claim.workflows
                        if workflow.limit
                    }
                ).decode(),
                "claimed_at": record.at_ms,
            }
        if not counts:
            return
        sequence = record.sequence
        if record.instance_id.startswith("~"):
            self._slots(record)
            return
        if isinstance(claim, InstanceDeleted):
            self._forget((record.workflow, record.instance_id))
            return
        in_graph = False
        for index, event in enumerate(record.events):
            in_graph = in_graph or isinstance(event, OfGraph)
            if not isinstance(event, CommandRejected):
                telling = Telling(self, record, (partition, offset, index), sequence)
                telling.tell(event)
                telling.named(event, in_graph=in_graph)
                sequence += not isinstance(event, PostsSent)

    def _slots(self, record: HistoryAppended) -> None:
        table = self.tables["workflow_slot"]
        limit = (record.workflow, record.instance_id)
        for event in record.events:
            match event:
                case SlotQueued():
                    holder_id, run, _ = event.ticket.split("#")
                    table[*limit, event.number] = {
                        "workflow_name": record.workflow,
                        "instance_id": record.instance_id,
                        "number": event.number,
                        "key": event.key,
                        "holder_id": holder_id,
                        "holder_run": int(run),
                        "asked_at": record.at_ms,
                        "granted_at": None,
                    }
                case SlotsGiven():
                    for key, row in table.items():
                        if key[:2] == limit and row["number"] <= event.through:
                            row["granted_at"] = row["granted_at"] or record.at_ms
                case SlotReturned():
                    del table[*limit, event.number]

    def _forget(self, instance: tuple[str, str]) -> None:
        for name in ("instance", "run", "step", "token", "event", "log", "graph_event"):
            table = self.tables[f"workflow_{name}"]
            for key in [key for key in table if key[:2] == instance]:
                del table[key]

    def add_all(self, records: Iterable[tuple[int, int, HistoryAppended]]) -> "Fold":
        for partition, offset, record in records:
            self.add(partition, offset, record)
        return self


class Telling:
    """One event at its place."""

    def __init__(
        self, fold: Fold, record: HistoryAppended, place: tuple[int, int, int], sequence: int
    ) -> None:
        self.tables = fold.tables
        self.instance_key = (record.workflow, record.instance_id)
        self.run_key = (record.workflow, record.instance_id, record.run_number)
        self.run: Row = dict(
            zip(("workflow_name", "instance_id", "run_number"), self.run_key, strict=True)
        )
        self.at = record.at_ms
        self.partition, self.offset, self.index = place
        self.sequence = sequence

    def tell(self, event: object) -> None:
        if isinstance(event, RunStarted):
            self.started(event)
        instance = self.tables["workflow_instance"].get(self.instance_key)
        if instance is not None and instance["run_number"] == self.run["run_number"]:
            instance.update(updated_at=self.at, partition=self.partition, offset=self.offset)
            self.moved(instance, event)
        self.step(event)
        self.entry(event)
        self.message(event)
        token_fold.tell(self.tables["workflow_token"], self.run, event, self.at, self.offset)

    def started(self, event: RunStarted) -> None:
        table = self.tables["workflow_instance"]
        before = table.get(self.instance_key)
        if before is not None and before["run_number"] < self.run["run_number"]:
            old = {name: value for name, value in before.items() if name not in NEVER_RUN}
            key = (*self.instance_key, before["run_number"])
            self.tables["workflow_run"].setdefault(key, old)
        parent = event.parent
        cause = context_of(event.trace)
        name, instance_id, number = (self.run[column] for column in RUN)
        table[self.instance_key] = {
            **self.run,
            "status": "active",
            "params": event.params,
            "output": None,
            **token_fold.error_of(None),
            "parent_workflow_name": parent and parent.workflow,
            "parent_instance_id": parent and parent.instance_id,
            "parent_run_number": parent and parent.run_number,
            "parent_step_key": parent and parent.key,
            "deployment_id": event.deployment and event.deployment.name,
            "traceparent": run_context(
                name, instance_id, number, event.seed, event.trace
            ).traceparent,
            "parent_span_id": cause and cause.span_id,
            "labels": {label.name: label.value for label in event.labels},
            "created_at": before["created_at"] if before else self.at,
            "started_at": before["started_at"] if before and event.kept is not None else self.at,
            "completed_at": None,
            "retention_until": None,
            "run_offset": self.offset,
        }
        if event.kept is not None:
            self.take_over(event.kept, [item.key for item in event.reopened])

    def take_over(self, kept: Iterable[str], reopened: Iterable[str]) -> None:
        """A retry: what the run before has done is this run's, too."""
        steps = self.tables["workflow_step"]
        before = (*self.instance_key, self.run["run_number"] - 1)
        tokens = self.tables["workflow_token"]
        token_fold.take_over(tokens, before, self.run, self.at, self.offset)
        again = {
            "updated_at": self.at,
            "rolled_back_at": None,
            "rollback_failed_at": None,
            "completed_at": None,
            "result": None,
            "next_retry_at": None,
            **token_fold.error_of(None),
        }
        result = [{**steps[*before, key], **self.run} for key in kept if (*before, key) in steps]
        result += [
            {**row, **self.run, **again, "status": _OPEN_STATUS.get(row["type"], "pending")}
            for key in reopened
            if (row := steps.get((*before, key))) is not None
        ]
        result.sort(key=lambda row: (row["ordinal"], row["sequence"]))
        for number, row in enumerate(result, -len(result)):
            row.update(sequence=number, offset=self.offset)
            steps.setdefault((*self.run_key, row["step_key"]), row)
        events = self.tables["workflow_event"]
        lying = [e for k, e in events.items() if k[:3] == before and e["delivered_at"] is None]
        lying.sort(key=lambda row: row["sequence"])
        for number, row in enumerate(lying, -len(lying)):
            taken = {**row, **self.run, "sequence": number, "offset": self.offset}
            events.setdefault((*self.run_key, row["id"]), taken)

    def moved(self, instance: Row, event: object) -> None:
        match event:
            case RunSuspended() | SlotAsked() if instance["status"] == "active":
                instance["status"] = "waiting"
            case (
                StepCompleted()
                | StepsRetried()
                | EntryCompleted()
                | EntryErrored()
                | StepFailed(retry_at_ms=None)
                | TasksDispatched()
                | TokenCompleted()
                | FanInActivated()
                | SlotGranted()
            ):
                if instance["status"] == "waiting":
                    instance["status"] = "active"
            case RunPaused():
                instance["status"] = "paused"
            case RunMoved():
                instance["deployment_id"] = event.deployment and event.deployment.name
            case RunResumed():
                instance["status"] = "active"
            case RunTerminated():
                self.ended(instance, "terminated", None, event.failure)
            case RunCompleted():
                self.ended(instance, "complete", event.output, None)
            case RunErrored():
                self.ended(instance, "errored", None, event.failure)

    def ended(
        self, instance: Row, status: str, output: str | None, failure: Failure | None
    ) -> None:
        instance.update(
            status=status, output=output, completed_at=self.at, **token_fold.error_of(failure)
        )
        instance["retention_until"] = self.at + KEPT_MS

    def step(self, event: object) -> None:
        match event:
            case StepStarted():
                started = {"status": "pending", "attempts": event.attempt - 1}
                self.put(event, self.attempted(event, **started))
            case StepCompleted():
                ended = {"status": "completed", "completed_at": self.at}
                self.put(event, self.attempted(event, **ended, result=event.result))
            case StepFailed():
                status = "errored" if event.retry_at_ms is None else "waiting"
                ended = {"completed_at": self.at if event.retry_at_ms is None else None}
                again = {"next_retry_at": event.retry_at_ms, **token_fold.error_of(event.failure)}
                self.put(event, self.attempted(event, status=status, **ended, **again))
            case StepsRetried():
                reported = {"status": "pending", "last_attempt_at": self.at, "next_retry_at": None}
                for key in event.keys:
                    self.change(key, reported)

    def entry(self, event: object) -> None:
        match event:
            case EntryOpened() if event.kind is not EntryKind.NOW:
                self.put(event, self.opened(event))
            case EntryCompleted():
                self.change(event.key, self.settled("completed", event.result, None))
            case EntryErrored():
                self.change(event.key, self.settled("errored", None, event.failure))
            case EntriesCancelled():
                reported = {"status": "cancelled", "completed_at": self.at, "next_retry_at": None}
                for key in event.keys:
                    self.change(key, reported)
            case EntryRolledBack():
                ended = "rollback_failed_at" if event.failure else "rolled_back_at"
                self.change(event.key, {ended: self.at})
            case LoopAdvanced():
                self.trim(event)

    def attempted(self, event: StepStarted | StepCompleted | StepFailed, **more: object) -> Row:
        # Later attempts begin with an event of their own.
        began = {"last_attempt_at": event.reached_at_ms} if event.attempt == 1 else {}
        return {
            "type": "do",
            "attempts": event.attempt,
            "max_attempts": event.max_attempts or None,
            "timeout_ms": event.timeout_ms or None,
            "created_at": event.reached_at_ms,
            **began,
            **more,
        }

    def opened(self, event: EntryOpened) -> Row:
        types = event.event_types or ()
        many = len(types) > 1 or (types and event.limit is not None)
        waits_for = json.dumps(types, separators=(",", ":")) if many else "".join(types)
        return {
            "type": event.kind.value,
            "status": "waiting" if event.kind.value in WAITS else "pending",
            "attempts": 0,
            "wake_at": event.wake_at_ms,
            "wait_event_type": waits_for or None,
            "child_workflow_name": event.child and event.child.workflow,
            "child_instance_id": event.child and event.child.instance_id,
            "created_at": self.at,
        }

    def put(self, event: StepStarted | StepCompleted | StepFailed | EntryOpened, told: Row) -> None:
        key = (*self.run_key, event.key)
        before = self.tables["workflow_step"].get(key)
        self.tables["workflow_step"][key] = {
            **self.run,
            "step_key": event.key,
            "name": event.name,
            "max_attempts": None,
            "timeout_ms": None,
            "next_retry_at": None,
            "wake_at": None,
            "wait_event_type": None,
            "child_workflow_name": None,
            "child_instance_id": None,
            "result": None,
            **token_fold.error_of(None),
            "ordinal": event.ordinal,
            "sequence": before["sequence"] if before else self.sequence,
            "updated_at": self.at,
            "last_attempt_at": before["last_attempt_at"] if before else None,
            "completed_at": None,
            "rolled_back_at": None,
            "rollback_failed_at": None,
            "trimmed_before": None,
            "offset": self.offset,
            **told,
        }

    def settled(self, status: str, result: str | None, failure: Failure | None) -> Row:
        ended = {"status": status, "completed_at": self.at, "next_retry_at": None}
        return {**ended, "result": result, **token_fold.error_of(failure)}

    def change(self, step_key: str, told: Row) -> None:
        row = self.tables["workflow_step"].get((*self.run_key, step_key))
        if row is not None:
            row.update(updated_at=self.at, offset=self.offset, **told)

    def trim(self, event: LoopAdvanced) -> None:
        loop = self.tables["workflow_step"].get((*self.run_key, event.key))
        if loop is not None and event.trim_before:
            before = max(event.trim_before, loop["trimmed_before"] or 0)
            self.change(event.key, {"trimmed_before": before})
        iteration = re.compile(re.escape(event.key) + r"/~([0-9]{1,18})/")
        for key in list(self.tables["workflow_step"]):
            result = iteration.match(str(key[3]))
            if key[:3] == self.run_key and result and int(result[1]) < event.trim_before:
                del self.tables["workflow_step"][key]

    def message(self, event: object) -> None:
        events = self.tables["workflow_event"]
        match event:
            case EventReceived():
                events[*self.run_key, event.event_id] = {
                    **self.run,
                    "id": event.event_id,
                    "type": event.type,
                    "payload": event.payload,
                    "sequence": self.sequence,
                    "created_at": event.sent_at_ms,
                    "delivered_at": None,
                    "consumed_by_step_key": None,
                    "offset": self.offset,
                }
            case EntryCompleted():
                for event_id in event.consumed:
                    self.delivered(event_id, event.key)
            case TokenCompleted() | TokenFailed() if event.consumed is not None:
                self.delivered(event.consumed, str(event.token))
            case LogWritten():
                self.line(event)

    def delivered(self, event_id: str, key: str) -> None:
        row = self.tables["workflow_event"].get((*self.run_key, event_id))
        if row is not None:
            row.update(delivered_at=self.at, consumed_by_step_key=key, offset=self.offset)

    def named(self, event: LogEvent, *, in_graph: bool) -> None:
        """The workflow events of a graph: a token's row says what it is that ended."""
        for position, derived in enumerate(derive(event, in_graph=in_graph)):
            token = self.tables["workflow_token"].get((*self.run_key, derived.token_id), {})
            name = derived.name
            if derived.child_name is not None:
                runs = (token.get("task"), token.get("subworkflow"))
                if runs == (None, None):
                    continue
                name = name if runs[0] is not None else derived.child_name
            self.tables["workflow_graph_event"][*self.run_key, self.sequence, position] = {
                **self.run,
                "sequence": self.sequence,
                "position": position,
                "name": name,
                "node_ref": (
                    token.get("node_ref") if derived.node_ref is None else derived.node_ref
                ),
                "token_id": derived.token_id,
                "payload": msgspec.json.encode(derived.payload).decode(),
                "created_at": self.at,
                "offset": self.offset,
            }

    def line(self, event: LogWritten) -> None:
        number = f"{self.partition:05}-{self.offset:015}-{self.index:06}"
        self.tables["workflow_log"][*self.run_key, number] = {
            **self.run,
            "id": number,
            "step_key": event.step_key,
            "attempt": event.attempt,
            "level": event.level,
            "category": event.category,
            "message": event.message,
            "data": event.data,
            "is_replay": event.is_replay,
            "created_at": self.at,
        }
