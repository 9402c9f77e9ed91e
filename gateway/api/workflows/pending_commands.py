"""Responses to commands while no worker runs.

A command is durable before its outcome is awaited, and is decided when a worker starts. A caller
that waits for the outcome gets an error; one that prefers not to wait gets 202.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from http import HTTPStatus
from typing import Final, ParamSpec

from litestar import Response

from headwater.gateway.api.workflows.query_service import response_of
from headwater.schemas.answers import CommandAccepted, CommandsAccepted
from headwater.streams.workflows.client import Addressed, OutcomeUnknown

P = ParamSpec("P")

_DETAIL: Final = (
    "No workflow worker is running: the request is stored, and accepted or refused when one starts "
    "within 7 days. `headwater worker --app MODULE` starts one"
)


class CommandsPending(Exception):
    """Commands are in the log, but no worker runs that decides them."""

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
