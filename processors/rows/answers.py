"""Build answers of the API from rows: columns have the names of fields in `schemas.answers`."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import SimpleNamespace
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from headwater.processors.graph.planning import Frames, Taken, frames_with
from headwater.schemas.answers import (
    Answer,
    Event,
    Failure,
    GraphEvent,
    InstanceStatus,
    LogLine,
    StatusOfRun,
    Step,
    Token,
)
from headwater.schemas.history import Json
from headwater.schemas.workflow_columns import WorkflowTable

A = TypeVar("A", bound=Answer)
S = TypeVar("S", bound=InstanceStatus)
#: A row by column; times are datetimes, or text if the row was read as JSON.
Row: TypeAlias = Mapping[str, Any]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: First character of a list of event types, when a step waits for several.
_LIST: Final = "["


def as_read(table: WorkflowTable, values: Row) -> dict[str, Any]:
    """Return a row in memory as readers receive it: all columns, and times as datetimes."""
    return {column.name: _as_read(column.type, values.get(column.name)) for column in table.columns}


def _as_read(type_: str, value: Any) -> Any:  # noqa: ANN401 (a column)
    if isinstance(value, StrEnum):
        return value.value
    is_time = type_ == "timestamptz" and value is not None
    return _EPOCH + timedelta(milliseconds=value) if is_time else value


def status_of(row: Row) -> StatusOfRun:
    """Return the status of an instance's run."""
    return run_status(StatusOfRun, row)


def step_of(row: Row) -> Step:
    """Return an entry of a history."""
    return with_wait(Step, row, id=row["step_key"], result=raw(row["result"]))


def token_of(row: Row) -> Token:
    """Return a token of a history, with the transitions that it took since its parent."""
    parent = row["parent_token_id"]
    return made(
        Token,
        row,
        id=str(row["id"]),
        parent_token_id=None if parent is None else str(parent),
        input=raw(row["input"]),
        result=raw(row["result"]),
        error=failure_of(row),
        iteration_counts=json.loads(row["iteration_counts"]),
    )


def with_iteration_counts(tokens: Iterable[Token], ancestors: Iterable[Row] = ()) -> list[Token]:
    """Return tokens with the transitions that they and their ancestors took.

    Args:
        tokens: The tokens of rows.
        ancestors: Rows of all their ancestors that are not among them.
    """
    listed = list(tokens)
    own = {
        row["id"]: (row["parent_token_id"], json.loads(row["iteration_counts"]))
        for row in ancestors
    }
    for token in listed:
        parent = token.parent_token_id
        own[int(token.id)] = (None if parent is None else int(parent), token.iteration_counts)
    taken: dict[int | None, Frames] = {}
    # A parent has a lower number.
    for number, (parent, counts) in sorted(own.items()):
        taken[number] = frames_with(taken.get(parent, ()), counts)
    return [
        msgspec.structs.replace(token, iteration_counts=dict(Taken(taken[int(token.id)])))
        for token in listed
    ]


def event_of(row: Row) -> Event:
    """Return an event of a history."""
    return made(Event, row, payload=raw(row["payload"]))


def log_line_of(row: Row) -> LogLine:
    """Return a log line of a history."""
    return made(LogLine, row, data=raw(row["data"]))


def graph_event_of(row: Row) -> GraphEvent:
    """Return a workflow event of a graph."""
    number = row["token_id"]
    return made(
        GraphEvent,
        row,
        token_id=None if number is None else str(number),
        payload=msgspec.json.decode(row["payload"]),
    )


def run_status(kind: type[S], row: Row) -> S:
    """Build the status of a run from columns."""
    return made(kind, row, error=failure_of(row), output=raw(row["output"]))


def with_wait(kind: type[A], row: Row, **more: Any) -> A:  # noqa: ANN401 (fields of a response)
    """Build an entry, or the part of it that a listing shows, from columns."""
    types: str | None = row["wait_event_type"]
    several = types is not None and types.startswith(_LIST)
    waits_for = msgspec.json.decode(types or "", type=list[str]) if several else types
    return made(kind, row, wait_event_type=waits_for, error=failure_of(row), **more)


def made(kind: type[A], row: Row, **more: Any) -> A:  # noqa: ANN401 (fields of a response)
    """Build a response from columns, and from explicit fields that replace them."""
    return msgspec.convert(SimpleNamespace(**{**row, **more}), kind, from_attributes=True)


def failure_of(row: Row) -> Failure | None:
    """Return the error in a row, if there is one."""
    if row["error_name"] is None:
        return None
    return Failure(
        name=row["error_name"],
        message=row["error_message"] or "",
        traceback=_traceback(row.get("error_detail")),
    )


def _traceback(detail: Json | None) -> str | None:
    # Text is a traceback; a join or a race stores the failures of its branches as a list.
    if detail is None or not detail.startswith('"'):
        return None
    text: str = json.loads(detail)
    return text.encode(errors="backslashreplace").decode()


def raw(text: Json | None) -> msgspec.Raw | None:
    """Return an author's value unchanged."""
    return None if text is None else msgspec.Raw(text.encode())
