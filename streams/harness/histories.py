"""Histories in tests: a test's log by instance, in the form of the API's responses."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from headwater.processors.rows.answers import (
    as_read,
    event_of,
    graph_event_of,
    log_line_of,
    step_of,
    token_of,
    with_iteration_counts,
)
from headwater.processors.rows.history import HistoryRows
from headwater.processors.rows.patches import Values
from headwater.processors.runs.claims import Claims
from headwater.processors.runs.engine import Engines, runs
from headwater.processors.runs.state import Run
from headwater.schemas import history
from headwater.schemas.answers import GRAPH_EVENTS, Answer, Failure, GraphEvent, History, Step
from headwater.schemas.codec import decode as read
from headwater.schemas.failures import InstanceNotFoundError
from headwater.schemas.history import HistoryAppended, Json, instance_key
from headwater.schemas.statuses import EntryKind
from headwater.schemas.workflow_tables import EVENT, GRAPH_EVENT, LOG, STEP, TOKEN
from headwater.streams.authoring.failures import traceback_of
from headwater.streams.authoring.values import decode
from headwater.streams.engine.live_instances import LiveInstances
from headwater.streams.engine.restore import concerns, restore

A = TypeVar("A", bound=Answer)


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

    def runs(self, workflow: str, instance_id: str) -> dict[int, Run]:
        """Return the runs of an instance, by number.

        Raises:
            InstanceNotFoundError: It does not exist.
        """
        return runs(self._engines, self.records_of(workflow, instance_id))

    def tokens(self) -> Iterator[Values]:
        """Yield the tokens of the current run of every instance, as rows."""
        for records in self._records.values():
            latest = max(record.run_number for record in records)
            yield from HistoryRows(records).tokens(latest)


def restored(
    engines: Engines, history: Sequence[bytes], key: str | None = None
) -> tuple[Claims, LiveInstances]:
    """Return the claims and the instances of a history.

    Args:
        engines: Engines of its runs.
        history: Encoded records.
        key: Key of the only instance to restore; None for all.
    """
    claims, instances = Claims(), LiveInstances(engines)
    records = ((i, read(encoded, HistoryAppended)) for i, encoded in enumerate(history))
    restore(claims, (item for item in records if key is None or concerns(item[1], key)), instances)
    return claims, instances


# -- histories


def history_of(records: Sequence[HistoryAppended], number: int) -> History:
    """Return the history of a run from the records of its instance."""
    rows = HistoryRows(records)
    lines = [log_line_of(as_read(LOG, row)) for row in rows.lines(number)]
    return History(
        run_number=number,
        steps=[_step(step_of(as_read(STEP, row))) for row in rows.steps(number)],
        events=[_parsed(event_of(as_read(EVENT, row))) for row in rows.events(number)],
        logs=[_parsed(line, id=str(index)) for index, line in enumerate(lines)],
        tokens=with_iteration_counts(
            _parsed(token_of(as_read(TOKEN, row))) for row in rows.tokens(number)
        ),
        events_by_name=_by_name(rows, number),
    )


def _by_name(rows: HistoryRows, number: int) -> dict[str, list[GraphEvent]]:
    """Return the workflow events of a graph's run; every name has a list."""
    events: dict[str, list[GraphEvent]] = {name: [] for name in GRAPH_EVENTS}
    for row in rows.graph_events_of(number):
        events[row["name"]].append(graph_event_of(as_read(GRAPH_EVENT, row)))
    return events


def _step(step: Step) -> Step:
    # Without a limit, attempts of a step are unlimited; other entries have one attempt.
    unlimited = math.inf if step.type is EntryKind.DO else 1
    return _parsed(step, max_attempts=step.max_attempts or unlimited)


def _parsed(answer: A, **changes: Any) -> A:  # noqa: ANN401 (fields of an answer)
    """Return an answer with the values of authors parsed."""
    for name, value in msgspec.structs.asdict(answer).items():
        if isinstance(value, msgspec.Raw):
            changes[name] = decode(bytes(value).decode())
    return msgspec.structs.replace(answer, **changes)


def error_of(failure: history.Failure | None) -> Failure | None:
    """Return an error, or None."""
    if failure is None:
        return None
    return Failure(name=failure.name, message=failure.message, traceback=traceback_of(failure))


def value_of(text: Json | None) -> Any:  # noqa: ANN401 (any JSON)
    """Return a decoded value, or None."""
    return None if text is None else decode(text)
