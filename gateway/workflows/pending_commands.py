"""Commands that nobody is there to decide: accepted, for callers who prefer not to wait.

A command is durable before anybody waits for its outcome, and is carried out when a worker comes.
Who asks for an outcome is told that there is none; who prefers not to wait, what was accepted.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from http import HTTPStatus
from typing import Final, ParamSpec

from litestar import Response

from headwater.gateway.workflows.query_service import response_of
from headwater.schemas.answers import CommandAccepted, CommandsAccepted
from headwater.streams.workflows.client import Addressed, OutcomeUnknown

P = ParamSpec("P")

_DETAIL: Final = (
    "No worker of workflows runs: what is asked for is kept, and done or refused when one comes, "
    "within 7 days. `headwater worker --app MODULE` starts one"
)


class CommandsPending(Exception):
    """Commands that are in the log, and that no worker is there to decide."""

    def __init__(self, accepted: Sequence[CommandAccepted]) -> None:
        super().__init__(f"{len(accepted)} commands")
        self.accepted = accepted


def pending(commands: Sequence[Addressed], error: OutcomeUnknown) -> CommandsPending:
    """Commands as they were accepted.

    Errors: the error itself, unless it says that no worker runs, and that all of them wait.
    """
    if error.worked or len(error.command_ids) != len(commands):
        raise error
    return CommandsPending(
        [
            CommandAccepted(workflow_name=one.workflow, id=one.instance_id, command_id=command_id)
            for one, command_id in zip(commands, error.command_ids, strict=True)
        ]
    )


def accept_without_worker(
    write: Callable[P, Awaitable[Response[bytes]]],
) -> Callable[P, Awaitable[Response[bytes]]]:
    """Answers 202 with what was accepted, where a write meets no worker."""

    @wraps(write)
    async def whole(*given: P.args, **named: P.kwargs) -> Response[bytes]:
        try:
            return await write(*given, **named)
        except CommandsPending as found:
            return response_of(
                CommandsAccepted(accepted=list(found.accepted), detail=_DETAIL),
                {},
                status=HTTPStatus.ACCEPTED,
                headers={"preference-applied": "respond-async"},
            )

    return whole
