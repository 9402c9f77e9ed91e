"""Record requests that match no route, so that deliveries to a wrong path are visible."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from litestar.enums import ScopeType
from litestar.exceptions import MethodNotAllowedException, NotFoundException
from litestar.types import Scope

from headwater.gateway.api.problems import Problem
from headwater.gateway.api.refusals import Refusals
from headwater.gateway.api.request_scope import claimed_request_id, own_request_id
from headwater.gateway.api.segments import displayable_path
from headwater.schemas.records import RequestAnswered

#: A hook that Litestar calls when a request has failed, before the response.
Hook: TypeAlias = Callable[[Exception, Scope], Awaitable[None]]

_SHOWN_CHARS: Final = 100
#: Methods that deliver nothing, so requests for unknown pages are not recorded.
_WITHOUT_BODY: Final = frozenset({"GET", "OPTIONS"})


def refusal_recorder(
    refusals: Refusals, peer_of: Callable[[Scope], str], clock: Callable[[], int]
) -> Callable[[Scope, str], None]:
    """Return a function that records a refused request by its code.

    Args:
        refusals: Logs and records refusals.
        peer_of: Returns the client address of a request.
        clock: Returns Unix milliseconds.
    """

    def record(scope: Scope, code: str) -> None:
        refusals.refused(
            RequestAnswered(
                request_id=own_request_id(scope),
                claimed_request_id=claimed_request_id(scope),
                source="",
                code=code,
                reason="",
                # repr: a path must not break a log line, or contain what Postgres cannot store.
                detail=f"{scope.get('method', '')} {_path(scope)!r}",
                event_id="",
                size=0,
                peer=peer_of(scope),
                left_out=0,
                at_ms=clock(),
            )
        )

    return record


def record_unmatched(record: Callable[[Scope, str], None]) -> Hook:
    """Return a hook that records requests without a matching route."""

    async def on_error(error: Exception, scope: Scope) -> None:
        code = _code_of(error)
        if code is None or scope["type"] != ScopeType.HTTP or scope["method"] in _WITHOUT_BODY:
            return
        record(scope, code)

    return on_error


def _path(scope: Scope) -> str:
    return displayable_path(scope["path"])[:_SHOWN_CHARS]


def _code_of(error: Exception) -> str | None:
    if isinstance(error, Problem):
        return error.code if error.code in {"unknown_source", "remote_execution"} else None
    if isinstance(error, NotFoundException):
        return "not_found"
    return "method_not_allowed" if isinstance(error, MethodNotAllowedException) else None
