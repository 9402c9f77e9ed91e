"""Handles of workflows and instances. A handle holds only names, so it cannot be stale."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

import msgspec
from typing_extensions import override

from headwater.gateway.client.answers import StreamItem, accepted, status_in, value_of
from headwater.gateway.client.listing import PAGE_SIZE, TRIMMED_PAGE_SIZE, Listing
from headwater.gateway.client.requests import REPLAY_TIMEOUT_S, Query, Repeat, json_object, path
from headwater.processors.runs.durations import Duration, milliseconds
from headwater.processors.runs.lifecycle import CANCEL, TERMINATE, Action
from headwater.processors.runs.limits import BATCH_MAX, VALUE_BYTES_TOP
from headwater.schemas.answers import (
    BulkPage,
    EventSent,
    History,
    HistoryPage,
    Instance,
    InstanceListed,
    InstancesCreated,
    InstanceStatus,
    LogLine,
    Managed,
)
from headwater.schemas.failures import InstanceFailedError, InstanceTerminalError
from headwater.schemas.statuses import RunStatus
from headwater.streams.authoring.inspection import InspectableInstance, InspectionQuery
from headwater.streams.authoring.lifecycle import Controllable
from headwater.streams.authoring.request_arguments import (
    checked_event_type,
    checked_instance_id,
    checked_labels,
    parse_batch,
)
from headwater.streams.authoring.value_types import output_of
from headwater.streams.authoring.values import encode_object, encode_params
from headwater.streams.authoring.workflow_values import Named, P_contra, R_co, name_of

if TYPE_CHECKING:
    from headwater.gateway.client.requests import HttpAnswer
    from headwater.gateway.client.session import Session
    from headwater.schemas.graph_answers import MigrationPlan

A = TypeVar("A")

#: Lists of a history; each has pages of its own.
_LISTS: Final = frozenset({"steps", "tokens", "events", "logs"})
_NO_ARGUMENTS: Final[Mapping[str, str]] = MappingProxyType({})


class InstanceHandle(Controllable[InstanceStatus], InspectableInstance, Generic[R_co]):
    """Handle of an instance, by its id. The instance need not exist.

    InstanceHandle[R] is a handle of an instance whose workflow returns R.
    """

    def __init__(
        self,
        session: "Session",
        workflow_name: str,
        instance_id: str,
        declared: object = None,
    ) -> None:
        """Make a handle; `declared` is the workflow itself, if the caller has it."""
        self._session = session
        self._declared = declared
        self._path = path("workflows", workflow_name, "instances", instance_id)
        self._key = f"{workflow_name}/{instance_id}"
        self.workflow_name = workflow_name
        self.id = instance_id

    @override
    def __repr__(self) -> str:
        return f"<instance {self._key}>"

    async def status(self) -> InstanceStatus:
        """Return the instance's `.status`, `.output` and `.error`."""
        return (await self.describe()).details

    async def describe(self) -> Instance:
        """Return everything about the instance except its history: `.details` and `.meta`."""
        return await self._session.read(self._path, Instance, instance=self._key)

    @override
    async def perform(
        self, action: Action, arguments: Mapping[str, str] = _NO_ARGUMENTS
    ) -> InstanceStatus:
        """Perform an action; return the instance's status after it."""
        body = json.dumps(dict(arguments))
        repeat = Repeat.SAFE if action.repeatable else Repeat.UNSAFE
        try:
            return status_in(await self._command(action.name, repeat, body), Managed)
        except InstanceTerminalError as error:
            if action not in (TERMINATE, CANCEL) or not error.repeated:
                raise
            # An earlier attempt, whose answer was lost, may have ended the instance as requested.
            status = await self.status()
            if status.status is not RunStatus.TERMINATED:
                raise
            return status

    @override
    async def inspect(self, query: InspectionQuery[A]) -> A:
        return await self._session.read(
            self._path + query.question.path,
            query.question.answer,
            dict(query.numbers),
            body=None if query.texts is None else json_object(**query.texts),
            instance=self._key,
        )

    @override
    async def move(
        self, to: str, *, dry_run: bool = False, force: bool = False, reason: str = ""
    ) -> InstanceStatus:
        """Continue a live run on other code, after its history was replayed against it.

        Args:
            to: "active", the id of a deployment, or "app", for which nothing is replayed.
            dry_run: Only check that there is such code, and that the run is live and fits it.
            force: Move it even if it does not fit.
            reason: Why, with `force`; the audit log keeps it.

        Raises:
            CommandRefusedError: The run does not fit, or the workflow is not there.
        """
        options = {"deployment": to, "dryRun": dry_run, "force": force, "reason": reason}
        body = json.dumps({name: value for name, value in options.items() if value})
        answer = await self._command("move", Repeat.SAFE, body, waits_s=REPLAY_TIMEOUT_S)
        return status_in(answer, Managed)

    async def migrate(
        self,
        to: int,
        *,
        map: Mapping[str, str] | None = None,  # noqa: A002 (as the CLI and the API name it)
        dry_run: bool = False,
    ) -> "MigrationPlan":
        """Continue the run of a graph on another version of it.

        Args:
            to: Number of the version.
            map: Its nodes by nodes of the run's definition, where the refs differ.
            dry_run: Change nothing.

        Returns:
            Where the live tokens are, or would be, and why not.

        Raises:
            CommandRefusedError: It is not possible (MIGRATION_REFUSED); not for a dry run.
        """
        renamed = dict(map or {})
        plan = await self._simulate_migration(str(to), renamed)
        if not dry_run:
            body = json.dumps({"to": to, "map": renamed})
            await self._command("migrate", Repeat.UNSAFE, body)
        return plan

    async def send_event(
        self,
        type: str,  # noqa: A002 (as authors call it)
        payload: Any = None,  # noqa: ANN401 (any JSON)
        *,
        start_if_missing: bool | Mapping[str, Any] = False,
        idempotency_key: str | None = None,
    ) -> InstanceStatus:
        """Send an event, once; the instance keeps it until it waits for it.

        Args:
            type: Type of the event.
            payload: JSON object, or None.
            start_if_missing: Create the instance if there is none: True, or {"params": …}.
            idempotency_key: A key that was used for this instance within a day sends nothing.
                Without one, each call has a key of its own.

        Returns:
            Status of the instance after the event. It is `accepted` if no worker has decided it yet
            and the client prefers not to wait (`Prefer: respond-async`).
        """
        start = None
        if start_if_missing is not False:
            options = {} if start_if_missing is True else start_if_missing
            params = options.get("params")
            start = json_object(
                params=None
                if params is None
                else encode_params(params, self.workflow_name, VALUE_BYTES_TOP)
            )
        body = json_object(
            type=json.dumps(checked_event_type(type)),
            payload=None
            if payload is None
            else encode_object(payload, "an event's payload", VALUE_BYTES_TOP),
            startIfMissing=start,
        )
        key = self._session.new_id() if idempotency_key is None else idempotency_key
        answer = await self._command("events", Repeat.SAFE, body, key)
        return status_in(answer, EventSent)

    async def set_branch_output(
        self, group: str, branch: int, output: Mapping[str, Any], *, fork: str | None = None
    ) -> InstanceStatus:
        """Replace the output of a branch of an errored graph run; a retry merges it again.

        Args:
            group: Sibling group of the fork.
            branch: The branch; the first is 0.
            output: All of its output.
            fork: The fork, if several forks of the group wait.
        """
        body = json_object(
            group=json.dumps(group),
            branch=json.dumps(branch),
            output=encode_object(output, "the output of a branch", VALUE_BYTES_TOP),
            fork=None if fork is None else json.dumps(fork),
        )
        return status_in(await self._command("branch-output", Repeat.SAFE, body), Managed)

    async def history(
        self,
        run_number: int | None = None,
        *,
        include_trimmed: bool = False,
        include_logs: bool = False,
        log_level: str | None = None,
        log_category: str | None = None,
    ) -> History:
        """Return what happened: `.steps`, or `.tokens` of a graph, `.events` and `.logs`.

        Args:
            run_number: Run to read; None for the current one.
            include_trimmed: Include what loops have trimmed, which is read from the log and slower.
            include_logs: Include log lines.
            log_level: Lowest level of the log lines.
            log_category: Category of the log lines.
        """
        query: Query = {"runNumber": run_number}
        if include_trimmed:
            query |= {"includeTrimmed": True, "pageSize": TRIMMED_PAGE_SIZE}
        if include_logs:
            query |= {"includeLogs": True, "logLevel": log_level, "logCategory": log_category}
        whole: History | None = None
        async for page in self._history_pages(query):
            whole = whole or History(
                run_number=page.run_number, steps=[], events=[], logs=[], tokens=[]
            )
            whole.steps.extend(page.steps)
            whole.tokens.extend(page.tokens)
            whole.events.extend(page.events)
            whole.logs.extend(page.logs or ())
        assert whole is not None  # noqa: S101, there is a first page
        return whole

    async def export_history(self, run_number: int | None = None) -> str:
        """Return the history of the current run, or of another one, as JSON lines.

        `check_replay` and `replay_history` read it from a file.
        """
        return await self._session.read(
            f"{self._path}/history/export", str, {"runNumber": run_number}, instance=self._key
        )

    async def logs(
        self,
        run_number: int | None = None,
        *,
        level: str | None = None,
        category: str | None = None,
        order: Literal["asc", "desc"] = "asc",
    ) -> AsyncGenerator[LogLine]:
        """Yield log lines of the current run, or of another one."""
        query: Query = {"runNumber": run_number, "includeLogs": True, "order": order}
        query |= {"logLevel": level, "logCategory": category}
        async for page in self._history_pages(query, logs_alone=True):
            for line in page.logs or ():
                yield line

    async def follow(
        self, last_id: str = "", *, names: Iterable[str] = ()
    ) -> AsyncGenerator[StreamItem[Any]]:
        """Yield what happens to the instance until it has ended, reconnecting as needed.

        After a lost connection the last few items may be repeated.

        Args:
            last_id: `.id` of the item after which to continue.
            names: Only items of these events, and `end`; also workflow events of a graph, such as
                `fan_in.completed`. By default status, step, token, event and log.
        """
        stream = self._session.follow_instance(
            f"{self._path}/events-stream", self._key, last_id, names
        )
        async with aclosing(stream) as items:
            async for item in items:
                yield item

    async def result(self, timeout: Duration | None = None) -> R_co:  # noqa: ASYNC109 (as authors call it)
        """Wait until the instance has ended; return its output.

        Args:
            timeout: How long to wait: a number of milliseconds, or text as in "10 seconds".

        Raises:
            InstanceFailedError: The instance ended without completing.
            TimeoutError: It has not ended in time.
        """
        limit = None if timeout is None else milliseconds(timeout) / 1000
        waiting = asyncio.timeout(limit)
        try:
            async with waiting:
                status = await self._end()
        except TimeoutError as error:
            if not waiting.expired():
                raise
            raise TimeoutError(f"expected {self._key} to end within {limit:g} s") from error
        if status.status is RunStatus.COMPLETE:
            output: R_co = output_of(self._declared, status.output)
            return output
        why = status.error
        raise InstanceFailedError(
            self._key, status.status, why.name if why else "", why.message if why else ""
        )

    async def _end(self) -> InstanceStatus:
        status = await self.status()
        if not status.ended:
            async with aclosing(self.follow()) as items:
                async for item in items:
                    status = item.data if item.event == "end" else status
        return status

    async def _command(
        self, name: str, repeat: Repeat, body: str, key: str | None = None, waits_s: float = 0.0
    ) -> "HttpAnswer":
        where, instance = f"{self._path}/{name}", self._key
        return await self._session.write(
            where, body, repeat=repeat, instance=instance, key=key, waits_s=waits_s
        )

    async def _history_pages(
        self, query: Query, *, logs_alone: bool = False
    ) -> AsyncGenerator[HistoryPage]:
        """Yield pages until every list is read; later pages leave out lists that are complete."""
        request: Query = {"pageSize": PAGE_SIZE, **query}
        left = set() if logs_alone else _LISTS - {"logs"}
        left |= {"logs"} if query.get("includeLogs") else set()
        while left:
            page = await self._session.read(
                f"{self._path}/history", HistoryPage, request, instance=self._key
            )
            yield msgspec.structs.replace(page, **{name: [] for name in _LISTS - left})
            left = {name for name in left if getattr(page, f"{name}_has_next_page")}
            if "steps" not in left:
                request |= {"includeTrimmed": None, "pageSize": PAGE_SIZE}
            # A new run may begin while the pages of this one are read.
            request |= {"runNumber": page.run_number}
            request |= {f"{name}Cursor": getattr(page, f"{name}_cursor") for name in left}


class WorkflowHandle(Listing, Generic[P_contra, R_co]):
    """Handle of a workflow, by its name.

    WorkflowHandle[P, R] is a handle of a workflow that takes P and returns R.
    """

    def __init__(self, session: "Session", workflow: str | Named) -> None:
        name = name_of(workflow)
        super().__init__(session, path("workflows", name, "instances"))
        self._declared = workflow
        self.name = name

    @override
    def __repr__(self) -> str:
        return f"<workflow {self.name}>"

    def get(self, id: str) -> InstanceHandle[R_co]:  # noqa: A002 (as authors call it)
        """Return a handle of an instance; sends no request."""
        return InstanceHandle(self._session, self.name, id, self._declared)

    async def create(
        self,
        id: str | None = None,  # noqa: A002 (as authors call it)
        params: P_contra | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> InstanceHandle[R_co]:
        """Create an instance, once.

        Args:
            id: Id of the instance. Without one, it is made from the idempotency key, or random.
            params: Params of the workflow.
            labels: Labels by name, which listings can filter by.
            idempotency_key: If an instance was created under this key, its handle is returned.

        Raises:
            InstanceExistsError: There is an instance of this id.
            ClientError: The request failed.
        """
        if id is None and idempotency_key is None:
            id = self._session.new_id()  # noqa: A001 (as authors call it)
        body = json_object(
            id=None if id is None else json.dumps(checked_instance_id(id)),
            params=encode_params(params, self.name, VALUE_BYTES_TOP),
            labels=_labels(labels),
        )
        answer = await self._session.write(
            self._path,
            body,
            repeat=Repeat.SAFE,
            instance=None if id is None else f"{self.name}/{id}",
            key=self._session.new_id() if idempotency_key is None else idempotency_key,
        )
        if id is None:
            taken = accepted(answer)
            id = taken[0].id if taken else value_of(answer, InstanceListed).id  # noqa: A001
        return self.get(id)

    async def create_batch(self, batch: Iterable[Mapping[str, Any]]) -> list[InstanceHandle[R_co]]:
        """Create instances of {"id": …, "params": …, "labels": …}; return handles of the new ones.

        Existing ids are skipped and left out. More than 100 instances are sent in several requests,
        one after the other. A request is repeated if its answer was lost; the instances that it
        created are not left out. Where no worker has decided yet, all are returned.

        Raises:
            ClientError: A request was refused; instances of earlier requests stay.
            ValueError: The batch is no list of {"id": …}.
        """
        new = [
            json_object(
                id=json.dumps(item.id),
                params=encode_params(item.params, self.name, VALUE_BYTES_TOP),
                labels=_labels(item.labels),
            )
            for item in parse_batch(batch)
        ]
        created: list[InstanceHandle[R_co]] = []
        for first in range(0, len(new), BATCH_MAX):
            body = json_object(instances=f"[{','.join(new[first : first + BATCH_MAX])}]")
            answer = await self._session.write(
                f"{self._path}/batch", body, repeat=Repeat.SAFE, key=self._session.new_id()
            )
            instances = accepted(answer) or value_of(answer, InstancesCreated).instances
            created += [self.get(instance.id) for instance in instances]
        return created

    async def change_all(  # noqa: PLR0913 (one parameter per option)
        self,
        action: str,
        *,
        status: str | None = None,
        labels: Mapping[str, str] | None = None,
        dry_run: bool = False,
        reason: str = "",
        deployment: str | None = None,
        force: bool = False,
    ) -> AsyncGenerator[BulkPage]:
        """Retry, pause, resume, cancel, terminate or move all instances with a status, or labels.

        Yields a page as soon as it is done, newest instances first; a refused one has a `.code`.

        Args:
            action: The action.
            status: Status of the instances; None for any.
            labels: Labels that the instances must have.
            dry_run: Only list the instances.
            reason: Reason that is recorded of instances that the action ends, or of a forced move.
            deployment: Where the action continues the instances, as for `InstanceHandle.retry`.
            force: Also move runs that do not fit the code.
        """
        request: dict[str, Any] = {"action": action, "status": status, "labels": dict(labels or {})}
        options = {"reason": reason, "deployment": deployment, "force": force}
        request |= {"dryRun": dry_run} | {name: value for name, value in options.items() if value}
        where = path("workflows", self.name, "bulk")
        while True:
            answer = await self._session.write(
                where, json.dumps(request), repeat=Repeat.SAFE, waits_s=REPLAY_TIMEOUT_S
            )
            page = value_of(answer, BulkPage)
            yield page
            if not page.has_next_page:
                return
            request["cursor"] = page.cursor


def _labels(labels: object) -> str | None:
    """Return labels as JSON, or None where there are none.

    Raises:
        InvalidLabelsError: A label breaks the rules.
    """
    by_name = {label.name: label.value for label in checked_labels(labels or {})}
    return json.dumps(by_name) if by_name else None
