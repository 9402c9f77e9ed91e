"""Send commands to workflow instances, one or many, and respond with their outcomes.

A response is sent once Postgres has applied the outcome, so that later reads include it. A caller
that prefers not to wait gets 202 with the outcome itself; so does every caller while Postgres lags
or is unavailable.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final, NamedTuple

from litestar import Response

from headwater.gateway.api.problems import Problem
from headwater.gateway.api.workflows.bodies import (
    BulkChange,
    NewEvent,
    NewInstance,
    NewInstances,
    text,
)
from headwater.gateway.api.workflows.command_outcomes import (
    Statuses,
    accept_without_worker,
    pending_or_error,
    refusal,
    send_all,
)
from headwater.gateway.api.workflows.parameters import idempotency_of, prefers_async
from headwater.gateway.api.workflows.positions import Freshness, furthest
from headwater.gateway.api.workflows.query_service import QueryService, response_of
from headwater.processors.runs.limits import BUILTIN_PREFIX, labels_of, name_problem
from headwater.projections.workflows.queries import Page
from headwater.schemas.answers import (
    Answer,
    BulkChanged,
    BulkPage,
    EventSent,
    InstanceFound,
    InstanceListed,
    InstancesCreated,
    InstanceStatus,
    Managed,
)
from headwater.schemas.errors import StoreUnavailable
from headwater.schemas.failures import (
    EVENT_ALREADY_RECEIVED,
    INSTANCE_CREATED_BEFORE,
    INSTANCE_EXISTS,
    INSTANCE_NOT_FOUND,
    INVALID_INSTANCE_ID,
    REPLAY_DIVERGED,
    WORKFLOW_NOT_FOUND,
    is_refused,
)
from headwater.schemas.history import (
    Command,
    Limits,
    MoveRun,
    ReplySent,
    RestartRun,
    RetryRun,
    SendEvent,
    StartRun,
    creates,
)
from headwater.schemas.statuses import RunStatus, keep_unknown_values
from headwater.streams.workflows.client import Addressed, OutcomeUnknown, WorkflowClient

#: Seconds that a write waits for Postgres. A projection that lags by more will take longer than
#: clients wait.
_APPLIED_TIMEOUT_S: Final = 5.0
#: Seconds that a fence waits for Postgres: operators, not clients, wait for it.
_FENCE_TIMEOUT_S: Final = 30.0
#: Reply codes of a command with an idempotency key that was used before.
_REPLAYED_CODES: Final = frozenset({EVENT_ALREADY_RECEIVED, INSTANCE_CREATED_BEFORE})


class CommandResult(NamedTuple):
    """Replies to commands, and whether Postgres has applied their outcomes."""

    replies: Sequence[ReplySent]
    applied: bool


class CheckedMove(NamedTuple):
    """A move of runs that were replayed before.

    Attributes:
        command: The move.
        refused: Why runs are not moved, by instance id.
        not_replayed: Why the runs were not replayed; None if they were.
    """

    command: MoveRun
    refused: Mapping[str, str]
    not_replayed: str | None


class CommandService:
    """Sends commands and responds with their outcomes.

    Raises:
        Problem: Every method raises it when a command is refused or cannot be sent.
    """

    def __init__(
        self,
        commands: WorkflowClient,
        statuses: Statuses,
        freshness: Freshness,
        limits: Limits,
    ) -> None:
        self._limits = limits
        self._commands = commands
        self._statuses = statuses
        self._freshness = freshness

    @accept_without_worker
    async def create_instance(
        self, workflow: str, instance_id: str, new: NewInstance, key: str, prefer: str
    ) -> Response[bytes]:
        """Create an instance."""
        _check_workflow(workflow, self._limits)
        result = await self.send_commands(
            [Addressed(workflow, instance_id, _start(new, key))], prefer
        )
        (reply,) = result.replies
        if is_refused(reply.code):
            raise refusal(reply)
        # The instance is new: the reply has all of its status.
        created = InstanceListed(id=instance_id, details=_status(reply), labels=new.labels)
        return command_response(created, result, prefer)

    @accept_without_worker
    async def create_instances(
        self, workflow: str, batch: NewInstances, key: str, prefer: str
    ) -> Response[bytes]:
        """Create the instances of a batch that do not exist."""
        _check_workflow(workflow, self._limits)
        instances = batch.unique_instances()
        commands = [Addressed(workflow, new.id, _start(new, key)) for new in instances]
        result = await self.send_commands(commands, prefer)
        created = [
            InstanceListed(id=new.id, details=_status(reply), labels=new.labels)
            for new, reply in zip(instances, result.replies, strict=True)
            if not is_refused(reply.code)
        ]
        for reply in result.replies:
            if is_refused(reply.code) and reply.code != INSTANCE_EXISTS:
                raise refusal(reply, created=[instance.id for instance in created])
        return command_response(InstancesCreated(instances=created), result, prefer)

    @accept_without_worker
    async def control_instance(
        self,
        workflow: str,
        instance_id: str,
        command: Command,
        prefer: str,
        not_replayed: str | None = None,
    ) -> Response[bytes]:
        """Pause, resume, terminate, restart, retry or move an instance."""
        result = await self.send_command(workflow, instance_id, command, prefer)
        status = await self._status(workflow, instance_id, result)
        (reply,) = result.replies
        starts_run = isinstance(command, RestartRun | RetryRun)
        managed = Managed(
            ok=True,
            status=status,
            run_number=reply.run_number if starts_run else None,
            deployment_id=reply.deployment if starts_run or isinstance(command, MoveRun) else None,
            not_replayed=not_replayed,
        )
        return command_response(managed, result, prefer)

    @accept_without_worker
    async def send_event(
        self,
        workflow: str,
        instance_id: str,
        command: SendEvent,
        prefer: str,
    ) -> Response[bytes]:
        """Send an event; the command may create the instance."""
        result = await self.send_command(workflow, instance_id, command, prefer)
        status = await self._status(workflow, instance_id, result)
        return command_response(EventSent(status=status), result, prefer)

    async def send_command(
        self, workflow: str, instance_id: str, command: Command, prefer: str = ""
    ) -> CommandResult:
        """Send a command to an existing instance, or to one that the command creates."""
        may_create = creates(command)
        if may_create:
            _check_workflow(workflow, self._limits)
        _check_instance(workflow, instance_id, self._limits, may_create=may_create)
        result = await self.send_commands([Addressed(workflow, instance_id, command)], prefer)
        if is_refused(result.replies[0].code):
            raise refusal(result.replies[0])
        return result

    async def send_commands(self, commands: Sequence[Addressed], prefer: str) -> CommandResult:
        """Send commands; wait until Postgres has applied their outcomes, or for a timeout.

        Raises:
            Problem: The commands could not be sent.
            CommandsPending: No worker runs, and the caller prefers not to wait.
        """
        try:
            replies = await send_all(self._commands, commands)
        except OutcomeUnknown as error:
            if not prefers_async(prefer):
                raise
            raise pending_or_error(commands, error) from error
        if prefers_async(prefer):
            return CommandResult(replies, applied=False)
        return CommandResult(replies, await self._applied(replies))

    async def fence(self) -> None:
        """Return when Postgres has everything that workers had decided before the call.

        Every partition gets a command, which is refused after all earlier ones are decided.

        Raises:
            OutcomeUnknown: No worker decided it in time, in some partition.
            BrokerUnavailable: Kafka is not available.
            StoreUnavailable: Postgres is not available, or lags.
        """
        replies = await send_all(self._commands, self._commands.one_per_partition())
        positions = furthest((reply.partition, reply.position) for reply in replies)
        if not await self._freshness.wait_until_applied(positions, _FENCE_TIMEOUT_S):
            raise StoreUnavailable(
                f"expected Postgres to apply the log up to now within {_FENCE_TIMEOUT_S:.0f} s, "
                "found that it lags"
            )

    async def _applied(self, replies: Sequence[ReplySent]) -> bool:
        positions = furthest((reply.partition, reply.position) for reply in replies)
        try:
            return await self._freshness.wait_until_applied(positions, _APPLIED_TIMEOUT_S)
        except StoreUnavailable:
            return False

    async def _status(
        self, workflow: str, instance_id: str, result: CommandResult
    ) -> InstanceStatus:
        """Return an instance's status from Postgres; from the reply if Postgres has none."""
        (reply,) = result.replies
        if result.applied:
            try:
                status = await self._statuses.status_of(workflow, instance_id)
            except StoreUnavailable:
                status = None
            if status is not None:
                return status
        return _status(reply)


def event_of(event: NewEvent, event_id: str, key: str) -> SendEvent:
    """Return the command that sends an event, deduplicated by a key if there is one."""
    start = event.start_if_missing
    request = (event.type, event.payload, *((start.params, start.labels) if start else ()))
    return SendEvent(
        event_id,
        event.type,
        text(event.payload),
        start=text(start.params) if start else None,
        once=idempotency_of(key, *request),
        labels=labels_of(start.labels) if start else (),
    )


def _start(new: NewInstance, key: str) -> StartRun:
    once = idempotency_of(key, new.params, new.labels)
    return StartRun(text(new.params), once=once, labels=labels_of(new.labels))


def _status(reply: ReplySent) -> InstanceStatus:
    """Return the status of an instance at the time of a reply."""
    with keep_unknown_values():
        return InstanceStatus(status=RunStatus(reply.status))


def command_response(body: Answer, result: CommandResult, prefer: str) -> Response[bytes]:
    """Return a response: 200 if Postgres has applied the outcomes, else 202."""
    headers = {"preference-applied": "respond-async"} if prefers_async(prefer) else {}
    if any(reply.code in _REPLAYED_CODES for reply in result.replies):
        headers["idempotent-replayed"] = "true"
    return response_of(
        body,
        furthest((reply.partition, reply.position) for reply in result.replies),
        status=HTTPStatus.OK if result.applied else HTTPStatus.ACCEPTED,
        headers=headers,
    )


def _check_workflow(workflow: str, limits: Limits) -> None:
    """Refuse an invalid workflow name, and the names of built-in workflows."""
    problem = _workflow_name_problem(workflow, limits)
    if problem:
        raise Problem(WORKFLOW_NOT_FOUND, problem)
    if workflow.startswith(BUILTIN_PREFIX):
        # Some built-in workflows do what requires the operators' key.
        raise Problem(
            "forbidden",
            f"expected a workflow of your own, found the built-in workflow {workflow}, whose "
            "instances are created by routes and commands of its own",
        )


def _workflow_name_problem(workflow: str, limits: Limits) -> str | None:
    longest = limits.max_workflow_name
    return name_problem("a workflow's name", workflow, longest, "max_workflow_name")


def _check_instance(workflow: str, instance_id: str, limits: Limits, *, may_create: bool) -> None:
    """Refuse names that no instance can have."""
    problem = name_problem("an instance id", instance_id, limits.max_instance_id, "max_instance_id")
    if problem and may_create:
        raise Problem(INVALID_INSTANCE_ID, problem, field="instanceId")
    problem = problem or _workflow_name_problem(workflow, limits)
    if problem:
        raise Problem(INSTANCE_NOT_FOUND, problem)


# -- many instances


class BulkService:
    """Applies an action to all instances that match a filter.

    Instances are changed page by page, so that a caller can follow the progress. No state is kept
    between pages: every page has the cursor of the next. A page may be requested again, because
    every action can be repeated: it is refused or has no effect the second time.
    """

    def __init__(self, query_service: QueryService, command_service: CommandService) -> None:
        self._query_service = query_service
        self._command_service = command_service

    async def page(self, workflow: str, change: BulkChange) -> Page[InstanceFound]:
        """Return the page of instances that a change applies to.

        Raises:
            Problem: The cursor or the labels cannot be used, or Postgres cannot be read.
        """
        return await self._query_service.instance_page(
            workflow,
            self._query_service.applied(),
            status=change.status,
            error_name=change.error_name,
            labels=change.labels,
            page_size=change.page_size,
            cursor=change.cursor,
        )

    @accept_without_worker
    async def change(
        self,
        workflow: str,
        change: BulkChange,
        page: Page[InstanceFound],
        prefer: str,
        move: CheckedMove | None = None,
    ) -> Response[bytes]:
        """Change a page of instances; refusals are listed in the response.

        Raises:
            Problem: The commands could not be sent.
        """
        command = change.command() if move is None else move.command
        refused = {} if move is None else move.refused
        rows = {row.id: _unchanged(row, refused.get(row.id)) for row in page.rows}
        changing = [row for row in page.rows if row.id not in refused]
        result = CommandResult((), applied=True)
        if changing and not change.dry_run:
            result = await self._command_service.send_commands(
                [Addressed(workflow, row.id, command) for row in changing], prefer
            )
            pairs = zip(changing, result.replies, strict=True)
            rows |= {row.id: _changed(row, reply) for row, reply in pairs}
        body = BulkPage(
            instances=list(rows.values()),
            has_next_page=page.cursor is not None,
            cursor=page.cursor,
            not_replayed=None if move is None else move.not_replayed,
        )
        return command_response(body, result, prefer if result.replies else "")


def _unchanged(row: InstanceFound, refusal: str | None) -> BulkChanged:
    code = None if refusal is None else REPLAY_DIVERGED
    return BulkChanged(id=row.id, status=row.details.status, code=code, detail=refusal)


def _changed(row: InstanceFound, reply: ReplySent) -> BulkChanged:
    with keep_unknown_values():
        status = RunStatus(reply.status) if reply.status else row.details.status
    if not is_refused(reply.code):
        return BulkChanged(id=row.id, status=status)
    return BulkChanged(id=row.id, status=status, code=reply.code, detail=reply.message)
