"""Refused commands as problems."""

from typing import Any

from headwater.gateway.http.problems import Problem
from headwater.gateway.workflows.positions import HEADER, furthest, format_positions
from headwater.schemas.failures import REFUSALS
from headwater.schemas.history import ReplySent


def refusal(reply: ReplySent, **extensions: Any) -> Problem:  # noqa: ANN401 (JSON)
    """The problem of a command that was refused; a code we do not know is a plain conflict."""
    position = format_positions(furthest([(reply.partition, reply.position)]))
    headers = {HEADER: position} if position else {}
    known = REFUSALS.get(reply.code)
    if known is None:
        message = f"{reply.code}: {reply.message}"
        return Problem("COMMAND_REFUSED", message, headers=headers, **extensions)
    if known.field is not None:
        extensions = {"field": known.field, **extensions}
    return Problem(reply.code, reply.message, headers=headers, **extensions)
