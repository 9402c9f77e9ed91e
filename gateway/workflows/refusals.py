"""Outcomes of commands as answers: which refusals are none, and which problem the others are."""

from collections.abc import Mapping
from typing import Any, Final

from headwater.gateway.http.problems import CODES, Problem
from headwater.gateway.workflows.positions import HEADER, furthest, stated
from headwater.processors.runs.decide import ALREADY_PAUSED, NOT_PAUSED
from headwater.schemas.history import ReplySent

#: What was asked for is so already.
_AS_ASKED: Final = frozenset({"", ALREADY_PAUSED, NOT_PAUSED})

#: The field of a request that a refusal is about, where it is about one.
FIELDS: Final[Mapping[str, str]] = {
    "WORKFLOW_PARAMS_INVALID": "params",
    "INVALID_INSTANCE_ID": "id",
    "INVALID_EVENT_TYPE": "type",
    "INVALID_EVENT_PAYLOAD": "payload",
    "STEP_NOT_FOUND": "fromStep",
}


def accepted(reply: ReplySent) -> bool:
    """Whether a command did what was asked, or found it done."""
    return reply.code in _AS_ASKED


def refusal(reply: ReplySent, **extensions: Any) -> Problem:  # noqa: ANN401 (JSON)
    """The problem of a command that was refused; a code we do not know is a plain conflict."""
    headers = position_header([reply])
    if reply.code not in CODES:
        message = f"{reply.code}: {reply.message}"
        return Problem("COMMAND_REFUSED", message, headers=headers, **extensions)
    if reply.code in FIELDS:
        extensions = {"field": FIELDS[reply.code], **extensions}
    return Problem(reply.code, reply.message, headers=headers, **extensions)


def position_header(replies: list[ReplySent]) -> dict[str, str]:
    """The header that states where outcomes lie."""
    text = stated(furthest((reply.partition, reply.position) for reply in replies))
    return {HEADER: text} if text else {}
