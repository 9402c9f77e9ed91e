"""State of a request in its ASGI scope: its id, and the code of its problem."""

from typing import Any, Final, TypeAlias, cast

from litestar import Request
from litestar.types import Scope

from headwater.gateway.client.request_ids import usable

AnyRequest: TypeAlias = Request[Any, Any, Any]

_KEY: Final = "headwater.request_id"
_CLAIMED: Final = "headwater.claimed_request_id"
_CODE: Final = "headwater.problem_code"
#: Key of the app's state under which the source of request ids is stored.
STATE_NAME: Final = "new_request_id"


def request_id_of(scope: Scope) -> str:
    """Return the request's id: the caller's if it is valid, else a new one.

    Every call for a scope returns the same id.
    """
    # The scope is a plain dict to which servers and frameworks add keys that its type lacks.
    state = cast("dict[str, Any]", scope)
    if _KEY not in state:
        offered = next((value for name, value in state["headers"] if name == b"x-request-id"), None)
        new = state["litestar_app"].state[STATE_NAME]
        state[_KEY] = usable(offered) or new()
    return str(state[_KEY])


def own_request_id(scope: Scope) -> str:
    """Return an id that the gateway chose, and use it for the request from now on.

    Records about an unauthenticated caller, or one of many users, get an id of the gateway, because
    the caller could choose the id of another client's request.
    """
    state = cast("dict[str, Any]", scope)
    if _CLAIMED not in state:
        offered = next((value for name, value in state["headers"] if name == b"x-request-id"), None)
        state[_CLAIMED] = usable(offered) or ""
        if state[_CLAIMED]:
            state[_KEY] = state["litestar_app"].state[STATE_NAME]()
    return request_id_of(scope)


def claimed_request_id(scope: Scope) -> str:
    """Return the caller's id if the gateway replaced it; else ""."""
    return str(cast("dict[str, Any]", scope).get(_CLAIMED, ""))


def keep_request_id(scope: Scope, request_id: str) -> None:
    """Store the id of a request."""
    cast("dict[str, Any]", scope)[_KEY] = request_id


def problem_code_of(scope: Scope) -> str | None:
    """Return the code of the problem that a request was answered with, if any."""
    return cast("dict[str, Any]", scope).get(_CODE)


def keep_problem_code(scope: Scope, code: str) -> None:
    """Store the code of the problem that is about to be sent."""
    cast("dict[str, Any]", scope)[_CODE] = code
