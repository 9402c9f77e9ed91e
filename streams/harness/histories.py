"""Histories in tests: a test's log by instance, in the form of the API's responses."""

import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, TypedDict

from headwater.processors.code.state import Entry
from headwater.processors.runs.engine import Engines
from headwater.processors.runs.views import RunView, TokenView, runs
from headwater.schemas import history
from headwater.schemas.answers import Event, Failure, History, LogLine, Step, Token
from headwater.schemas.failures import InstanceNotFoundError
from headwater.schemas.history import HistoryAppended, Json, instance_key
from headwater.schemas.statuses import EntryKind
from headwater.streams.authoring.arguments import utc_datetime
from headwater.streams.authoring.failures import traceback_of
from headwater.streams.authoring.values import decode


class InstanceRecords:
    """The log of a test, split by instance."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._records: dict[str, list[HistoryAppended]] = {}

    def add(self, key: str, record: HistoryAppended) -> None:
        """Add a record that was appended to the log."""
        records = self._records.setdefault(key, [])
        records.append(record)
        if len(records) == 1 and not runs(self._engines, records):
            # A refused creation leaves no instance.
            del self._records[key]

    def records_of(self, workflow: str, instance_id: str) -> Sequence[HistoryAppended]:
        """Return the records of an instance.

        Raises:
            InstanceNotFoundError: It does not exist.
        """
        records = self._records.get(instance_key(workflow, instance_id))
        if records is None:
            message = f"expected an instance {instance_id} of {workflow}, found none"
            raise InstanceNotFoundError(message)
        return records

    def views(self, workflow: str, instance_id: str) -> dict[int, RunView]:
        """Return the runs of an instance, by number.

        Raises:
            InstanceNotFoundError: It does not exist.
        """
        return runs(self._engines, list(self.records_of(workflow, instance_id)))

    def latest(self) -> Iterator[RunView]:
        """Yield the current run of every instance."""
        for records in self._records.values():
            yield [*runs(self._engines, records).values()][-1]


# -- histories


class _OfRun(TypedDict):
    """Fields of every row of a history."""

    workflow_name: str
    instance_id: str
    run_number: int


def history_of(view: RunView, workflow: str, instance_id: str, number: int) -> History:
    """Return the history of a run."""
    run = _OfRun(workflow_name=workflow, instance_id=instance_id, run_number=number)
    return History(
        run_number=number,
        steps=[_step(key, entry, view, run) for key, entry in view.steps()],
        events=list(_events(view, run)),
        logs=list(_logs(view, run)),
        tokens=[_token(token, run) for token in view.tokens.values()],
    )


def error_of(failure: history.Failure | None) -> Failure | None:
    """Return an error, or None."""
    if failure is None:
        return None
    return Failure(name=failure.name, message=failure.message, traceback=traceback_of(failure))


def value_of(text: Json | None) -> Any:  # noqa: ANN401 (any JSON)
    """Return a decoded value, or None."""
    return None if text is None else decode(text)


def _step(key: str, entry: Entry, view: RunView, run: _OfRun) -> Step:
    is_do = entry.kind is EntryKind.DO
    wake_at = _time(entry.wake_at_ms)
    error = error_of(entry.failure)
    child = entry.child
    return Step(
        id=key,
        **run,
        step_key=key,
        name=entry.name,
        type=entry.kind,
        status=entry.status,
        attempts=entry.attempts,
        max_attempts=entry.max_attempts or math.inf,
        timeout_ms=entry.timeout_ms or None,
        next_retry_at=wake_at if is_do else None,
        wake_at=None if is_do else wake_at,
        wait_event_type=_types(entry),
        error=error,
        result=value_of(entry.result),
        error_name=error.name if error else None,
        error_message=error.message if error else None,
        child_workflow_name=child.workflow if child else None,
        child_instance_id=child.instance_id if child else None,
        trimmed_before=entry.trimmed or None,
        created_at=utc_datetime(entry.created_at_ms),
        updated_at=utc_datetime(entry.updated_at_ms),
        last_attempt_at=_time(entry.last_attempt_at_ms),
        completed_at=_time(entry.completed_at_ms),
        rolled_back_at=_time(view.rolled_back_at_ms.get(key)),
        rollback_failed_at=_time(view.rollback_failed_at_ms.get(key)),
    )


def _events(view: RunView, run: _OfRun) -> Iterator[Event]:
    for event in view.events.values():
        yield Event(
            id=event.event_id,
            **run,
            type=event.type,
            payload=decode(event.payload),
            created_at=utc_datetime(event.created_at_ms),
            delivered_at=_time(event.delivered_at_ms),
            consumed_by_step_key=event.consumed_by_step_key,
        )


def _logs(view: RunView, run: _OfRun) -> Iterator[LogLine]:
    for number, (at_ms, line) in enumerate(view.logs):
        yield LogLine(
            id=str(number),
            **run,
            step_key=line.step_key,
            attempt=line.attempt,
            level=line.level,
            category=line.category,
            message=line.message,
            data=value_of(line.data),
            is_replay=line.is_replay,
            created_at=utc_datetime(at_ms),
        )


def _token(token: TokenView, run: _OfRun) -> Token:
    child = token.child
    return Token(
        id=str(token.number),
        **run,
        node_ref=token.node,
        task=token.task,
        subworkflow=token.subworkflow,
        status=token.status,
        path_id=token.path,
        parent_token_id=None if token.parent is None else str(token.parent),
        sibling_group=token.group,
        branch_index=token.branch,
        branch_total=token.total,
        iteration_counts=token.taken,
        attempts=token.attempts,
        input=value_of(token.input),
        result=value_of(token.result),
        error=error_of(token.failure),
        next_retry_at=_time(token.retry_at_ms),
        wake_at=_time(token.wake_at_ms),
        reason=token.reason,
        child_workflow_name=child.workflow if child else None,
        child_instance_id=child.instance_id if child else None,
        created_at=utc_datetime(token.created_at_ms),
        updated_at=utc_datetime(token.updated_at_ms),
        completed_at=_time(token.completed_at_ms),
        worker=token.worker,
        lease_until=_time(token.lease_until_ms),
    )


def _types(entry: Entry) -> str | list[str] | None:
    if entry.event_types is None:
        return None
    return entry.event_types[0] if entry.limit is None else list(entry.event_types)


def _time(ms: int | None) -> datetime | None:
    return None if ms is None else utc_datetime(ms)
