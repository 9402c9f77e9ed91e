"""What is done with workflows: commands, their outcomes, and when an answer follows.

A caller is answered once Postgres has what came of the command, so that what is read next is no
older. One who prefers not to wait, and everybody while Postgres lags or is away, is answered 202
with what the outcome itself says.
"""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final, NamedTuple

from litestar import Response

from headwater.gateway.http.problems import Problem
from headwater.gateway.http.sending import send_all
from headwater.gateway.workflows.accepting import accepting, undecided
from headwater.gateway.workflows.bodies import NewEvent, NewInstance, NewInstances, text
from headwater.gateway.workflows.freshness import Freshness
from headwater.gateway.workflows.idempotency import once
from headwater.gateway.workflows.parameters import prefers_async
from headwater.gateway.workflows.positions import furthest
from headwater.gateway.workflows.reading import answer
from headwater.gateway.workflows.refusals import refusal
from headwater.gateway.workflows.statuses import Statuses
from headwater.processors.runs.labels import labels_of
from headwater.processors.runs.limits import BUILTIN_PREFIX, name_problem
from headwater.schemas.answers import (
    Answer,
    EventSent,
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
    WORKFLOW_NOT_FOUND,
    is_refused,
)
from headwater.schemas.history import (
    Command,
    Limits,
    ReplySent,
    RestartRun,
    RetryRun,
    SendEvent,
    StartRun,
    creates,
)
from headwater.schemas.statuses import RunStatus, keep_unknown_values
from headwater.streams.workflows.client import Addressed, Commands, OutcomeUnknown

#: Seconds that a write waits for Postgres; what lags by more will take longer than anybody waits.
_APPLIED_WITHIN_S: Final = 5.0
#: What an idempotency key meets that was used before.
_DONE_BEFORE: Final = frozenset({EVENT_ALREADY_RECEIVED, INSTANCE_CREATED_BEFORE})


class Told(NamedTuple):
    """Outcomes, and whether Postgres has them."""

    replies: Sequence[ReplySent]
    applied: bool


class Writing:
    """Sends commands and answers with what came of them."""

    def __init__(
        self,
        commands: Commands,
        statuses: Statuses,
        freshness: Freshness,
        limits: Limits,
    ) -> None:
        self._limits = limits
        self._commands = commands
        self._statuses = statuses
        self._freshness = freshness

    @accepting
    async def create(
        self, workflow: str, instance_id: str, new: NewInstance, key: str, prefer: str
    ) -> Response[bytes]:
        """Creates an instance.

        Errors: Problem, here and in all below.
        """
        _check_workflow(workflow, self._limits)
        told = await self.send([Addressed(workflow, instance_id, _start(new, key))], prefer)
        (reply,) = told.replies
        if is_refused(reply.code):
            raise refusal(reply)
        # It has just begun: there is nothing to know of it that the reply does not say.
        made = InstanceListed(id=instance_id, details=_status(reply), labels=new.labels)
        return answered(made, told, prefer)

    @accepting
    async def create_batch(
        self, workflow: str, batch: NewInstances, key: str, prefer: str
    ) -> Response[bytes]:
        """Creates the instances of a batch that do not exist."""
        _check_workflow(workflow, self._limits)
        instances = batch.each_once()
        sent = [Addressed(workflow, new.id, _start(new, key)) for new in instances]
        told = await self.send(sent, prefer)
        created = [
            InstanceListed(id=new.id, details=_status(reply), labels=new.labels)
            for new, reply in zip(instances, told.replies, strict=True)
            if not is_refused(reply.code)
        ]
        for reply in told.replies:
            if is_refused(reply.code) and reply.code != INSTANCE_EXISTS:
                raise refusal(reply, created=[one.id for one in created])
        return answered(InstancesCreated(instances=created), told, prefer)

    @accepting
    async def manage(
        self, workflow: str, instance_id: str, command: Command, prefer: str
    ) -> Response[bytes]:
        """Pauses, resumes, terminates, restarts or retries an instance."""
        told = await self.tell(workflow, instance_id, command, prefer)
        status = await self._status(workflow, instance_id, told)
        begins = isinstance(command, RestartRun | RetryRun)
        number = told.replies[0].run_number if begins else None
        return answered(Managed(ok=True, status=status, run_number=number), told, prefer)

    @accepting
    async def send_event(
        self,
        workflow: str,
        instance_id: str,
        command: SendEvent,
        prefer: str,
    ) -> Response[bytes]:
        """Sends an event, perhaps to an instance that it may begin."""
        told = await self.tell(workflow, instance_id, command, prefer)
        status = await self._status(workflow, instance_id, told)
        return answered(EventSent(status=status), told, prefer)

    async def tell(
        self, workflow: str, instance_id: str, command: Command, prefer: str = ""
    ) -> Told:
        """Sends a command to an instance that is there, or is to begin with it."""
        starts = creates(command)
        if starts:
            _check_workflow(workflow, self._limits)
        _check_instance(workflow, instance_id, self._limits, starts=starts)
        told = await self.send([Addressed(workflow, instance_id, command)], prefer)
        if is_refused(told.replies[0].code):
            raise refusal(told.replies[0])
        return told

    async def send(self, commands: Sequence[Addressed], prefer: str) -> Told:
        """Sends commands; when it returns, their outcomes can be read, or take too long for that.

        Errors: Problem; Undecided for who prefers not to wait for a worker.
        """
        try:
            replies = await send_all(self._commands, commands)
        except OutcomeUnknown as error:
            if not prefers_async(prefer):
                raise
            raise undecided(commands, error) from error
        if prefers_async(prefer):
            return Told(replies, applied=False)
        return Told(replies, await self._applied(replies))

    async def _applied(self, replies: Sequence[ReplySent]) -> bool:
        wanted = furthest((reply.partition, reply.position) for reply in replies)
        try:
            return await self._freshness.reached(wanted, _APPLIED_WITHIN_S)
        except StoreUnavailable:
            return False

    async def _status(self, workflow: str, instance_id: str, told: Told) -> InstanceStatus:
        """How an instance stands, as Postgres has it if it may be asked."""
        (reply,) = told.replies
        if told.applied:
            try:
                found = await self._statuses.of(workflow, instance_id)
            except StoreUnavailable:
                found = None
            if found is not None:
                return found
        return _status(reply)


def event_of(event: NewEvent, event_id: str, key: str) -> SendEvent:
    """The command that sends an event, under a key if there is one."""
    start = event.start_if_missing
    asked = (event.type, event.payload, *((start.params, start.labels) if start else ()))
    return SendEvent(
        event_id,
        event.type,
        text(event.payload),
        start=text(start.params) if start else None,
        once=once(key, *asked),
        labels=labels_of(start.labels) if start else (),
    )


def _start(new: NewInstance, key: str) -> StartRun:
    asked = once(key, new.params, new.labels)
    return StartRun(text(new.params), once=asked, labels=labels_of(new.labels))


def _status(reply: ReplySent) -> InstanceStatus:
    """How an instance stood when a command had its outcome: all that a reply says of it."""
    with keep_unknown_values():
        return InstanceStatus(status=RunStatus(reply.status))


def answered(found: Answer, told: Told, prefer: str) -> Response[bytes]:
    """An answer: 200 if what it says can be read by now, else 202."""
    headers = {"preference-applied": "respond-async"} if prefers_async(prefer) else {}
    if any(reply.code in _DONE_BEFORE for reply in told.replies):
        headers["idempotent-replayed"] = "true"
    return answer(
        found,
        furthest((reply.partition, reply.position) for reply in told.replies),
        status=HTTPStatus.OK if told.applied else HTTPStatus.ACCEPTED,
        headers=headers,
    )


def _check_workflow(workflow: str, limits: Limits) -> None:
    """Refuses a name that no workflow can have, and those whose instances others begin."""
    fault = _workflow_fault(workflow, limits)
    if fault:
        raise Problem(WORKFLOW_NOT_FOUND, fault)
    if workflow.startswith(BUILTIN_PREFIX):
        # Some of them do what only operators may who have another key.
        raise Problem(
            "forbidden",
            f"expected a workflow of an author's, found {workflow}, which comes with Headwater: "
            "its instances are begun by routes and commands of their own",
        )


def _workflow_fault(workflow: str, limits: Limits) -> str | None:
    longest = limits.max_workflow_name
    return name_problem("a workflow's name", workflow, longest, "max_workflow_name")


def _check_instance(workflow: str, instance_id: str, limits: Limits, *, starts: bool) -> None:
    """Refuses names that no instance can have."""
    fault = name_problem("an instance id", instance_id, limits.max_instance_id, "max_instance_id")
    if fault and starts:
        raise Problem(INVALID_INSTANCE_ID, fault, field="instanceId")
    fault = fault or _workflow_fault(workflow, limits)
    if fault:
        raise Problem(INSTANCE_NOT_FOUND, fault)
