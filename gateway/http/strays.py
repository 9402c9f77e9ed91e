"""Requests that no route takes: what a producer posts to a wrong path leaves a trace, too."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from litestar.enums import ScopeType
from litestar.exceptions import MethodNotAllowedException, NotFoundException
from litestar.types import Scope

from headwater.gateway.http.problems import Problem
from headwater.gateway.http.refusals import Refusals
from headwater.gateway.http.request_scope import claimed_request_id, own_request_id
from headwater.gateway.http.segments import shown
from headwater.schemas.records import RequestAnswered

#: What Litestar calls when a request has failed, before it is answered.
Hook: TypeAlias = Callable[[Exception, Scope], Awaitable[None]]

_SHOWN_CHARS: Final = 100
#: Who looks for a page that is not there has posted nothing.
_LOOKS: Final = frozenset({"GET", "OPTIONS"})


def refusals_told(
    refusals: Refusals, peer_of: Callable[[Scope], str], clock: Callable[[], int]
) -> Callable[[Scope, str], None]:
    """Tells of a request that is no delivery as of refused ones, by its code.

    Units:  the clock in Unix milliseconds.
    """

    def tell(scope: Scope, code: str) -> None:
        refusals.refused(
            RequestAnswered(
                request_id=own_request_id(scope),
                claimed_request_id=claimed_request_id(scope),
                source="",
                code=code,
                reason="",
                # repr: no path may end a line of the log, or hold what Postgres cannot.
                detail=f"{scope.get('method', '')} {shown(scope['path'])[:_SHOWN_CHARS]!r}",
                event_id="",
                size=0,
                peer=peer_of(scope),
                left_out=0,
                at_ms=clock(),
            )
        )

    return tell


def strays_told(tell: Callable[[Scope, str], None]) -> Hook:
    """A hook that tells of strays."""

    async def told(error: Exception, scope: Scope) -> None:
        code = _code_of(error)
        if code is None or scope["type"] != ScopeType.HTTP or scope["method"] in _LOOKS:
            return
        tell(scope, code)

    return told


def _code_of(error: Exception) -> str | None:
    if isinstance(error, Problem):
        return error.code if error.code in {"unknown_source", "remote_execution"} else None
    if isinstance(error, NotFoundException):
        return "not_found"
    return "method_not_allowed" if isinstance(error, MethodNotAllowedException) else None
