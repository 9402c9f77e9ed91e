"""Build API responses from rows of queries: instances, jobs, and changes of a run."""

from collections.abc import Callable
from typing import Final, Generic, TypeVar

import msgspec

from headwater.processors.rows.answers import (
    Row,
    event_of,
    graph_event_of,
    log_line_of,
    made,
    raw,
    run_status,
    status_of,
    step_of,
    token_of,
    with_wait,
)
from headwater.schemas.answers import (
    Concurrency,
    CurrentStep,
    Event,
    GraphEvent,
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

S = TypeVar("S", bound=InstanceStatus)
R = TypeVar("R", bound=msgspec.Struct)

#: Status of a job, by the status of its token.
_JOB_STATUSES: Final = {
    "pending": "retrying",
    "dispatched": "waiting",
    "executing": "taken",
}


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
    row: Step | Token | Event | LogLine | GraphEvent | StatusOfRun


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of an instance's current run, by offset.

    Rows of one record are in the order: steps, tokens, events, log lines, workflow events
    of a graph, status of the instance. The next changes are those after `offset`; `more` means that
    some exist already.

    If `run_offset`, the offset of the record that began the run, differs from before, this is
    another run and the rows are all of it. Its number may be the same if the instance was deleted
    in between. Steps that a loop has trimmed are not included; its `trimmed_before` grows.
    """

    run_number: int
    run_offset: int
    rows: tuple[Changed, ...]
    offset: int
    more: bool


def listed_of(row: Row) -> InstanceListed:
    """Return an instance in a listing."""
    return InstanceListed(
        id=row["instance_id"], details=instance_status_of(row), labels=row["labels"]
    )


def instance_status_of(row: Row) -> InstanceStatus:
    """Return the status of an instance."""
    return run_status(InstanceStatus, row)


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
        None if step is None else with_wait(CurrentStep, step),
        [made(TokensAt, node) for node in tokens],
    )


def concurrency_of(row: Row | None) -> Concurrency | None:
    """Return the concurrency limit of a workflow, with holders and waiting runs."""
    if row is None:
        return None
    slots = [made(SlotsListed, key) for key in row["slots"]]
    return made(Concurrency, {**row["concurrency"], **row, "slots": slots})


def job_of(row: Row) -> JobListed:
    """Return a job in a listing."""
    return made(JobListed, row, workflow=row["workflow_name"], status=_JOB_STATUSES[row["status"]])


#: Builders for rows of `workflow_changes`, by rank within a record.
BY_RANK: Final[
    dict[int, Callable[[Row], Step | Token | Event | LogLine | GraphEvent | StatusOfRun]]
] = {
    1: step_of,
    2: token_of,
    3: event_of,
    4: log_line_of,
    5: graph_event_of,
    6: status_of,
}
