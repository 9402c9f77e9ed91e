"""Outcomes of commands: statuses of instances, refusals, and commands that wait for a worker."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import wraps
from http import HTTPStatus
from typing import Any, Final, ParamSpec, TypeAlias

from litestar import Response

from headwater.gateway.api.problems import Problem
from headwater.gateway.api.workflows.positions import HEADER, format_positions, furthest
from headwater.gateway.api.workflows.query_service import response_of
from headwater.schemas.answers import CommandAccepted, CommandsAccepted, InstanceStatus
from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.failures import REFUSALS
from headwater.schemas.history import ReplySent
from headwater.streams.workflows.client import Addressed, OutcomeUnknown, WorkflowClient

#: Instances of one query; the output of one may have a megabyte.
_BATCH_SIZE: Final = 50

#: Workflow name and instance id.
InstanceKey: TypeAlias = tuple[str, str]
FetchStatuses: TypeAlias = Callable[
    [Sequence[InstanceKey]], Awaitable[Mapping[InstanceKey, InstanceStatus]]
]


class Statuses:
    """Looks up statuses of instances in batches.

    Requests that wait for the same position of the projection continue at the same time, and then
    all of them read a status.
    """

    def __init__(self, fetch: FetchStatuses) -> None:
        self._fetch = fetch
        self._pending: dict[InstanceKey, asyncio.Future[InstanceStatus | None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def status_of(self, workflow: str, instance_id: str) -> InstanceStatus | None:
        """Return the current status of an instance; None if Postgres does not have it.

        Raises:
            StoreUnavailable: Postgres could not be read.
        """
        if not self._pending:
            task = asyncio.create_task(self._fetch_pending())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        key = workflow, instance_id
        if key not in self._pending:
            self._pending[key] = asyncio.get_running_loop().create_future()
        # Other callers may wait for the same future.
        return await asyncio.shield(self._pending[key])

    async def _fetch_pending(self) -> None:
        pending, self._pending = self._pending, {}
        keys = list(pending)
        for start in range(0, len(keys), _BATCH_SIZE):
            batch = keys[start : start + _BATCH_SIZE]
            try:
                statuses = await self._fetch(batch)
            except Exception as error:  # noqa: BLE001 (every waiting caller gets it)
                for key in batch:
                    pending[key].set_exception(error)
                    pending[key].exception()  # Marks it as retrieved: all callers may have left.
            else:
                for key in batch:
                    pending[key].set_result(statuses.get(key))


# -- refusals


def refusal(reply: ReplySent, **extensions: Any) -> Problem:  # noqa: ANN401 (JSON)
    """Convert the reply to a refused command; an unknown code becomes COMMAND_REFUSED."""
    position = format_positions(furthest([(reply.partition, reply.position)]))
    headers = {HEADER: position} if position else {}
    known = REFUSALS.get(reply.code)
    if known is None:
        message = f"{reply.code}: {reply.message}"
        return Problem("COMMAND_REFUSED", message, headers=headers, **extensions)
    if known.field is not None:
        extensions = {"field": known.field, **extensions}
    return Problem(reply.code, reply.message, headers=headers, **extensions)


# -- commands while no worker runs

P = ParamSpec("P")

_DETAIL: Final = (
    "No workflow worker is running: the request is stored, and accepted or refused when one starts "
    "within 7 days. `headwater worker --app MODULE` starts one"
)


class CommandsPending(Exception):
    """Commands are in the log, but no worker runs that decides them.

    A command is durable before its outcome is awaited, and is decided when a worker starts. A
    caller that waits for the outcome gets an error; one that prefers not to wait gets 202.
    """

    def __init__(self, accepted: Sequence[CommandAccepted]) -> None:
        super().__init__(f"{len(accepted)} commands")
        self.accepted = accepted


def pending_or_error(commands: Sequence[Addressed], error: OutcomeUnknown) -> CommandsPending:
    """Return the exception that reports commands as accepted.

    Raises:
        OutcomeUnknown: The error itself, if a worker runs or not all commands are stored.
    """
    if error.has_worker or len(error.command_ids) != len(commands):
        raise error
    return CommandsPending(
        [
            CommandAccepted(
                workflow_name=command.workflow, id=command.instance_id, command_id=command_id
            )
            for command, command_id in zip(commands, error.command_ids, strict=True)
        ]
    )


def accept_without_worker(
    write: Callable[P, Awaitable[Response[bytes]]],
) -> Callable[P, Awaitable[Response[bytes]]]:
    """Decorate a write: respond 202 with the accepted commands while no worker runs."""

    @wraps(write)
    async def wrapped(*args: P.args, **kwargs: P.kwargs) -> Response[bytes]:
        try:
            return await write(*args, **kwargs)
        except CommandsPending as pending:
            return response_of(
                CommandsAccepted(accepted=list(pending.accepted), detail=_DETAIL),
                {},
                status=HTTPStatus.ACCEPTED,
                headers={"preference-applied": "respond-async"},
            )

    return wrapped


async def send_all(commands: WorkflowClient, addressed: Sequence[Addressed]) -> list[ReplySent]:
    """Send commands; return a reply for each.

    Raises:
        Problem: Kafka is not connected, or did not acknowledge.
        OutcomeUnknown: No reply arrived in time.
        Overloaded: Too many commands wait.
        NotYetReadable: Some members run a release that cannot read a command.
    """
    if not commands.ready:
        raise Problem("broker_unavailable", "Kafka is not connected; nothing was sent")
    try:
        return await commands.send_many(addressed)
    except BrokerUnavailable as error:
        raise Problem(
            "broker_unavailable",
            f"{error.message}; the command may have been sent, and may still be executed",
        ) from error
