"""Converts replies to refused commands into problems."""

from typing import Any

from headwater.gateway.api.problems import Problem
from headwater.gateway.api.workflows.positions import HEADER, format_positions, furthest
from headwater.schemas.failures import REFUSALS
from headwater.schemas.history import ReplySent


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
