"""What is known of the request at hand, kept in its ASGI scope: its id, and how it failed."""

from typing import Any, Final, TypeAlias, cast

from litestar import Request
from litestar.types import Scope

from headwater.gateway.request_ids import usable

AnyRequest: TypeAlias = Request[Any, Any, Any]

_KEY: Final = "headwater.request_id"
_CLAIMED: Final = "headwater.claimed_request_id"
_CODE: Final = "headwater.problem_code"
#: Where the app keeps its source of request ids.
STATE_NAME: Final = "new_request_id"


def request_id_of(scope: Scope) -> str:
    """The request's id: the caller's own if it is usable, else a new one.

    Shape:  a scope of our app -> the same id every time.
    """
    # The scope is a plain dict that servers and frameworks add keys to; its type knows theirs only.
    known = cast("dict[str, Any]", scope)
    if _KEY not in known:
        offered = next((value for name, value in known["headers"] if name == b"x-request-id"), None)
        new = known["litestar_app"].state[STATE_NAME]
        known[_KEY] = usable(offered) or new()
    return str(known[_KEY])


def own_request_id(scope: Scope) -> str:
    """Return an id that the caller has not chosen, and give it to the request from now on.

    What is recorded of a caller that has signed nothing, or that is one of many users, is recorded
    under an id of the gateway's: an id of the caller's may be that of somebody else's request.
    """
    known = cast("dict[str, Any]", scope)
    if _CLAIMED not in known:
        offered = next((value for name, value in known["headers"] if name == b"x-request-id"), None)
        known[_CLAIMED] = usable(offered) or ""
        if known[_CLAIMED]:
            known[_KEY] = known["litestar_app"].state[STATE_NAME]()
    return request_id_of(scope)


def claimed_request_id(scope: Scope) -> str:
    """Return the id that the caller chose, where the gateway gave the request another; else ""."""
    return str(cast("dict[str, Any]", scope).get(_CLAIMED, ""))


def keep_request_id(scope: Scope, request_id: str) -> None:
    """Remembers an id that was already found."""
    cast("dict[str, Any]", scope)[_KEY] = request_id


def problem_code_of(scope: Scope) -> str | None:
    """The code of the problem that a request was answered with; None if it was none."""
    return cast("dict[str, Any]", scope).get(_CODE)


def keep_problem_code(scope: Scope, code: str) -> None:
    """Remembers the code of the problem that is about to be answered."""
    cast("dict[str, Any]", scope)[_CODE] = code
