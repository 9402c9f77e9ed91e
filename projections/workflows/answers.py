"""Answers made of rows: their columns are named as the fields of `schemas.answers`."""

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

__all__ = [
    "BY_RANK",
    "Changed",
    "Changes",
    "OpenJob",
    "Page",
    "Placed",
    "Row",
    "RunKey",
    "concurrency_of",
    "event_of",
    "failure_of",
    "found_of",
    "instance_of",
    "job_of",
    "line_of",
    "listed_of",
    "made",
    "raw",
    "status_of",
    "step_of",
    "token_of",
]

A = TypeVar("A", bound=Answer)
S = TypeVar("S", bound=InstanceStatus)
R = TypeVar("R", bound=msgspec.Struct)
#: A row by its columns; times are datetimes, or text where the row came as JSON.
Row: TypeAlias = Mapping[str, Any]

#: How tokens of jobs that have not ended stand, as jobs.
_JOB_STATUSES: Final = {
    "pending": "retrying",
    "dispatched": "waiting",
    "executing": "taken",
}
#: What a list of event types begins with, where a step waits for several.
_LIST: Final = "["


class RunKey(msgspec.Struct, frozen=True):
    """Which run."""

    workflow_name: str
    instance_id: str
    run_number: int


class OpenJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that nobody had taken when Postgres was asked; the input is JSON text."""

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
    """Rows; `cursor` continues behind them in the same order, None when there are no more."""

    rows: tuple[R, ...]
    cursor: str | None


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """An instance, and where in the history lies the last record that was applied to it."""

    instance: Instance
    partition: int
    offset: int


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """A row as it is now; the offset is that of the last record that changed it."""

    offset: int
    row: Step | Token | Event | LogLine | StatusOfRun


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What changed in an instance's current run, by offsets.

    Shape:  rows of one record are steps, tokens, events, lines, the instance's status. The next
            changes are those after `offset`; where there is `more`, some are there already. Another
            run_offset than before, that of the record that began the run, is another run, and the
            rows are all of it; its number is the same, if the instance was deleted between. Steps
            that a loop has forgotten are not among them; its `trimmed_before` grows.
    """

    run_number: int
    run_offset: int
    rows: tuple[Changed, ...]
    offset: int
    more: bool


def status_of(row: Row) -> StatusOfRun:
    """How an instance stands."""
    return _stands(StatusOfRun, row)


def listed_of(row: Row) -> InstanceListed:
    """An instance in a listing."""
    return InstanceListed(
        id=row["instance_id"], details=instance_status_of(row), labels=row["labels"]
    )


def instance_status_of(row: Row) -> InstanceStatus:
    """How an instance stands."""
    return _stands(InstanceStatus, row)


def found_of(row: Row) -> InstanceFound:
    """An instance on a page, with what it stands at."""
    step, tokens = _stands_at(row)
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


def instance_of(row: Row) -> Placed:
    """An instance, whole."""
    step, tokens = _stands_at(row)
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
    return Placed(instance=instance, partition=row["partition"], offset=row["offset"])


def _stands_at(row: Row) -> tuple[CurrentStep | None, list[TokensAt]]:
    step, tokens = row["current_step"], row["current_tokens"] or ()
    return (
        None if step is None else _standing(CurrentStep, step),
        [made(TokensAt, each) for each in tokens],
    )


def concurrency_of(row: Row | None) -> Concurrency | None:
    """The limit of a workflow's concurrency, with who has a slot and who waits for one."""
    if row is None:
        return None
    slots = [made(SlotsListed, each) for each in row["slots"]]
    return made(Concurrency, {**row["concurrency"], **row, "slots": slots})


def step_of(row: Row) -> Step:
    """An entry of a history."""
    return _standing(Step, row, id=row["step_key"], result=raw(row["result"]))


def token_of(row: Row) -> Token:
    """A token of a history."""
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
    """A job in a listing."""
    return made(JobListed, row, workflow=row["workflow_name"], status=_JOB_STATUSES[row["status"]])


def event_of(row: Row) -> Event:
    """An event of a history."""
    return made(Event, row, payload=raw(row["payload"]))


def line_of(row: Row) -> LogLine:
    """A line of a history."""
    return made(LogLine, row, data=raw(row["data"]))


#: What rows of `workflow_changes` are, by their rank within a record.
BY_RANK: Final[dict[int, Callable[[Row], Step | Token | Event | LogLine | StatusOfRun]]] = {
    1: step_of,
    2: token_of,
    3: event_of,
    4: line_of,
    5: status_of,
}


def _stands(kind: type[S], row: Row) -> S:
    return made(kind, row, error=failure_of(row), output=raw(row["output"]))


def _standing(kind: type[A], row: Row, **more: Any) -> A:  # noqa: ANN401 (fields of an answer)
    types: str | None = row["wait_event_type"]
    several = types is not None and types.startswith(_LIST)
    waits_for = msgspec.json.decode(types or "", type=list[str]) if several else types
    return made(kind, row, wait_event_type=waits_for, error=failure_of(row), **more)


def made(kind: type[A], row: Row, **more: Any) -> A:  # noqa: ANN401 (fields of an answer)
    """An answer whose fields are columns, but for those that are given."""
    return msgspec.convert(SimpleNamespace(**{**row, **more}), kind, from_attributes=True)


def failure_of(row: Row) -> Failure | None:
    """The error of what a row is of."""
    if row["error_name"] is None:
        return None
    return Failure(
        name=row["error_name"],
        message=row["error_message"] or "",
        traceback=_traceback(row.get("error_detail")),
    )


def _traceback(detail: Json | None) -> str | None:
    # A text is a traceback; a join or a race has the failures of its branches there.
    if detail is None or not detail.startswith('"'):
        return None
    text: str = json.loads(detail)
    return text.encode(errors="backslashreplace").decode()


def raw(text: Json | None) -> msgspec.Raw | None:
    """A value of an author's, as it came."""
    return None if text is None else msgspec.Raw(text.encode())
