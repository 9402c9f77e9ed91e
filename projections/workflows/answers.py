"""Build API responses from rows; columns have the names of fields in `schemas.answers`."""

import json
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Final, Generic, TypeAlias, TypeVar

import msgspec

from headwater.schemas.answers import (
    Answer,
    Concurrency,
    CurrentStep,
    Event,
    Failure,
    Instance,
    InstanceFound,
    InstanceListed,
    InstanceMeta,
    InstanceStatus,
    JobListed,
    LogLine,
    Parent,
    SlotAwaited,
    SlotsListed,
    StatusOfRun,
    Step,
    Token,
    TokensAt,
)
from headwater.schemas.history import Json

A = TypeVar("A", bound=Answer)
S = TypeVar("S", bound=InstanceStatus)
R = TypeVar("R", bound=msgspec.Struct)
#: A row by column; times are datetimes, or text if the row was read as JSON.
Row: TypeAlias = Mapping[str, Any]

#: Status of a job, by the status of its token.
_JOB_STATUSES: Final = {
    "pending": "retrying",
    "dispatched": "waiting",
    "executing": "taken",
}
#: First character of a list of event types, when a step waits for several.
_LIST: Final = "["


class RunKey(msgspec.Struct, frozen=True):
    """Key of a run."""

    workflow_name: str
    instance_id: str
    run_number: int


class OpenJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job without a worker at the time of the query; the input is JSON text."""

    workflow_name: str
    instance_id: str
    run_number: int
    token_id: str
    node_ref: str
    type: str
    attempt: int
    input: Json | None
    idempotency_token: str


class Page(msgspec.Struct, Generic[R], frozen=True, kw_only=True):
    """Rows of a page; `cursor` continues after them, None if there are no more."""

    rows: tuple[R, ...]
    cursor: str | None


class LocatedInstance(msgspec.Struct, frozen=True, kw_only=True):
    """An instance, and the position of the last history record that was applied to it."""

    instance: Instance
    partition: int
    offset: int


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """A row as it is now, and the offset of the last record that changed it."""

    offset: int
    row: Step | Token | Event | LogLine | StatusOfRun


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of an instance's current run, by offset.

    Rows of one record are in the order: steps, tokens, events, log lines, status of the instance.
    The next changes are those after `offset`; `more` means that some exist already.

    If `run_offset`, the offset of the record that began the run, differs from before, this is
    another run and the rows are all of it. Its number may be the same if the instance was deleted
    in between. Steps that a loop has trimmed are not included; its `trimmed_before` grows.
    """

    run_number: int
    run_offset: int
    rows: tuple[Changed, ...]
    offset: int
    more: bool


def status_of(row: Row) -> StatusOfRun:
    """Return the status of an instance's run."""
    return _run_status(StatusOfRun, row)


def listed_of(row: Row) -> InstanceListed:
    """Return an instance in a listing."""
    return InstanceListed(
        id=row["instance_id"], details=instance_status_of(row), labels=row["labels"]
    )


def instance_status_of(row: Row) -> InstanceStatus:
    """Return the status of an instance."""
    return _run_status(InstanceStatus, row)


def paged_instance_of(row: Row) -> InstanceFound:
    """Return an instance on a page, with its current steps or tokens."""
    step, tokens = _current(row)
    slot = row["awaited_slot"]
    return made(
        InstanceFound,
        row,
        id=row["instance_id"],
        details=instance_status_of(row),
        current_step=step,
        current_tokens=tokens,
        awaited_slot=None if slot is None else made(SlotAwaited, slot),
    )


def instance_of(row: Row) -> LocatedInstance:
    """Return an instance with all details."""
    step, tokens = _current(row)
    slot = row["awaited_slot"]
    parent = {name: row[f"parent_{name}"] for name in Parent.__struct_fields__}
    meta = made(
        InstanceMeta,
        row,
        params=raw(row["params"]),
        current_step=step,
        current_tokens=tokens,
        awaited_slot=None if slot is None else made(SlotAwaited, slot),
        parent=Parent(**parent) if parent["workflow_name"] else None,
    )
    listed = listed_of(row)
    instance = Instance(id=listed.id, details=listed.details, labels=listed.labels, meta=meta)
    return LocatedInstance(instance=instance, partition=row["partition"], offset=row["offset"])


def _current(row: Row) -> tuple[CurrentStep | None, list[TokensAt]]:
    step, tokens = row["current_step"], row["current_tokens"] or ()
    return (
        None if step is None else _with_wait(CurrentStep, step),
        [made(TokensAt, node) for node in tokens],
    )


def concurrency_of(row: Row | None) -> Concurrency | None:
    """Return the concurrency limit of a workflow, with holders and waiting runs."""
    if row is None:
        return None
    slots = [made(SlotsListed, key) for key in row["slots"]]
    return made(Concurrency, {**row["concurrency"], **row, "slots": slots})


def step_of(row: Row) -> Step:
    """Return an entry of a history."""
    return _with_wait(Step, row, id=row["step_key"], result=raw(row["result"]))


def token_of(row: Row) -> Token:
    """Return a token of a history."""
    parent = row["parent_token_id"]
    return made(
        Token,
        row,
        id=str(row["id"]),
        parent_token_id=None if parent is None else str(parent),
        input=raw(row["input"]),
        result=raw(row["result"]),
        error=failure_of(row),
    )


def job_of(row: Row) -> JobListed:
    """Return a job in a listing."""
    return made(JobListed, row, workflow=row["workflow_name"], status=_JOB_STATUSES[row["status"]])


def event_of(row: Row) -> Event:
    """Return an event of a history."""
    return made(Event, row, payload=raw(row["payload"]))


def log_line_of(row: Row) -> LogLine:
    """Return a log line of a history."""
    return made(LogLine, row, data=raw(row["data"]))


#: Builders for rows of `workflow_changes`, by rank within a record.
BY_RANK: Final[dict[int, Callable[[Row], Step | Token | Event | LogLine | StatusOfRun]]] = {
    1: step_of,
    2: token_of,
    3: event_of,
    4: log_line_of,
    5: status_of,
}


def _run_status(kind: type[S], row: Row) -> S:
    return made(kind, row, error=failure_of(row), output=raw(row["output"]))


def _with_wait(kind: type[A], row: Row, **more: Any) -> A:  # noqa: ANN401 (fields of a response)
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
