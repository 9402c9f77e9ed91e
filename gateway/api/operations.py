"""Durable operations: an operator orders one, the gateway begins it, and reports its progress.

All kinds have the same two routes. Instances of built-in workflows carry out replays and prunes
(`gateway.builtin.wipe_and_replay_workflows`), the projector rebuilds, the pipeline wipes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
from litestar import get, post
from litestar.handlers import HTTPRouteHandler

from headwater.gateway.api.audit import attempt
from headwater.gateway.api.openapi import problem_responses
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.request_scope import AnyRequest
from headwater.gateway.api.workflows.command_outcomes import send_all
from headwater.gateway.builtin.instances import ERASE, PAGE, PageProgress
from headwater.processors.api_keys import Scope
from headwater.projections.workflows.queries import RunKey, Workflows
from headwater.schemas.answers import InstanceStatus, Step
from headwater.schemas.history import StartRun
from headwater.schemas.statuses import RunStatus
from headwater.streams.workflows.client import Addressed, OutcomeUnknown, WorkflowClient

P = TypeVar("P", bound=msgspec.Struct)
S = TypeVar("S")

#: A new instance becomes readable after some tens of milliseconds.
_POLL_EVERY_S: Final = 0.05
_POLLS: Final = 60
#: Entries that are searched for the last completed page.
_LATEST: Final = 10


def operation_routes(
    path: str,
    name: str,
    begin: Callable[..., Awaitable[object]],
    look: Callable[..., Awaitable[object]],
    *,
    looks_need: Scope,
    look_problems: Sequence[str] = (),
    **described: Any,  # noqa: ANN401 (arguments of Litestar's decorator)
) -> list[HTTPRouteHandler]:
    """Return the routes of a kind of operation: POST {path} and GET {path}/{id}.

    Args:
        path: Path of the operations.
        name: Name of an operation.
        begin: Counts, and starts the operation unless the order is a dry run.
        look: Returns the state of the operation with the id `{name}_id`.
        looks_need: Scope that `look` needs; that of `begin` is among `described`.
        look_problems: Error codes of `look`, besides those of all operations.
        described: Description of the route that orders an operation.
    """
    looking = get(
        f"{path}/{{{name}_id:str}}",
        scope=looks_need,
        summary=f"Get the state of a {name}",
        responses=problem_responses("not_found", "store_unavailable", *look_problems),
    )
    return [post(path, **{"status_code": 202, **described})(begin), looking(look)]


async def poll_until(
    is_done: Callable[[S], bool], look: Callable[[], Awaitable[S]], *, polls: int, every_s: float
) -> S:
    """Return a state as soon as it is done, or the one after so many polls."""
    state = await look()
    for _ in range(polls):
        if is_done(state):
            break
        await asyncio.sleep(every_s)
        state = await look()
    return state


class Operation(NamedTuple, Generic[P]):
    """An operation that an instance of a built-in workflow carries out.

    Attributes:
        params: Params of the instance.
        state: running, erasing, done or failed.
        progress: Progress after the last completed page.
        records: Number of records that compaction will remove, once it is known.
    """

    params: P
    state: str
    progress: PageProgress
    records: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """Starts and reads operations that instances of built-in workflows carry out.

    Attributes:
        commands: Sends commands to workflows.
        workflows: Reads instances from Postgres.
        new_id: Returns unique ids.
        clock: Returns Unix milliseconds.
    """

    commands: WorkflowClient
    workflows: Workflows
    new_id: Callable[[], str]
    clock: Callable[[], int]

    def now(self) -> str:
        """Return the current time in ISO 8601."""
        return datetime.fromtimestamp(self.clock() / 1000, UTC).isoformat()

    async def begin(self, request: AnyRequest, workflow: str, params: msgspec.Struct) -> str:
        """Start an instance and wait up to three seconds until it is readable; return its id.

        Raises:
            Problem: Kafka is not connected, or the audit log is unavailable.
            Overloaded: Too many commands wait.
            NotYetReadable: Some members run a release that cannot read the command.
        """
        operation_id = self.new_id()
        await attempt(request, run_id=operation_id, workflow=workflow)
        start = StartRun(msgspec.json.encode(params).decode())
        with suppress(OutcomeUnknown):  # The command is in the log, so a worker will start it.
            await send_all(self.commands, [Addressed(workflow, operation_id, start)])
        await poll_until(
            lambda row: row is not None,
            lambda: self.workflows.instance(workflow, operation_id),
            polls=_POLLS,
            every_s=_POLL_EVERY_S,
        )
        return operation_id

    async def find(self, workflow: str, operation_id: str, params: type[P]) -> Operation[P]:
        """Return an operation.

        Raises:
            Problem: There is no instance of this id that `begin` started.
        """
        row = await self.workflows.instance(workflow, operation_id)
        name, shown = workflow.removeprefix("headwater-"), operation_id[:64]
        if row is None:
            raise Problem("not_found", f"There is no {name} {shown} (yet).")
        instance = row.instance
        try:
            decoded = msgspec.json.decode(instance.meta.params, type=params)
        except msgspec.DecodeError:
            detail = f"{shown} is an instance of {workflow} that was not started as a {name}."
            raise Problem("not_found", detail) from None
        run = RunKey(workflow, instance.id, instance.meta.run_number)
        entries = (await self.workflows.steps(run, order="desc", limit=_LATEST)).rows
        erase = next((entry for entry in entries if entry.name == ERASE), None)
        return Operation(
            decoded,
            _state(instance.details, "running" if erase is None else "erasing"),
            _progress(entries),
            int(erase.result) if erase is not None and erase.result else None,
        )


def _state(status: InstanceStatus, running: str) -> str:
    if status.status is RunStatus.COMPLETE:
        return "done"
    return "failed" if status.ended else running


def _progress(entries: Sequence[Step]) -> PageProgress:
    """Return the result of the first page among entries that has one."""
    pages = (entry.result for entry in entries if entry.name == PAGE)
    last = next((page for page in pages if page is not None), None)
    return PageProgress() if last is None else msgspec.json.decode(last, type=PageProgress)
