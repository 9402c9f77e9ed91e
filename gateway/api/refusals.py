"""Log and record requests without a new delivery: refusals, duplicates, unmatched paths."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import msgspec
from litestar.enums import ScopeType
from litestar.exceptions import MethodNotAllowedException, NotFoundException
from litestar.types import Scope

from headwater.gateway.api.problems import Problem
from headwater.gateway.api.request_scope import claimed_request_id, logged_path, own_request_id
from headwater.schemas.records import RequestAnswered
from headwater.streams.pipeline.request_logs import AnswerLog

_LOG: Final = logging.getLogger("headwater.gateway.refused")

#: Seconds of a window: a client that never stops is logged 12 times a minute.
_WINDOW_S: Final = 10.0
#: Kinds of refusals in a window; of further kinds only the number is logged.
_KINDS_MAX: Final = 250
#: Refusals in a window that are always recorded. With the first and the last of every kind, a flood
#: causes at most 100 records a second.
_RECORDS_MAX: Final = 500


class _Kind(msgspec.Struct):
    """Refusals of one source, address, code and reason, after the first."""

    last: RequestAnswered | None = None
    last_recorded: bool = True
    #: How many refusals before the last were not logged, and how many were not recorded.
    unlogged: int = 0
    unrecorded: int = 0


class Refusals:
    """Logs and records refusals, and records duplicates and handshakes.

    Unauthenticated clients cause refusals, so log lines and records are rate-limited. For every
    source, address, code and reason, the first refusal in a window is logged immediately, and the
    last one at the end of the window, with the number of those in between. All refusals are
    recorded for tracing, up to a limit per window; above it, only those that are logged.
    """

    def __init__(self, log: AnswerLog, *, window_s: float = _WINDOW_S) -> None:
        self._log = log
        self._window_s = window_s
        self._kinds: dict[tuple[str, ...], _Kind] = {}
        self._beyond = 0
        self._recorded = 0

    def answered(self, answer: RequestAnswered) -> None:
        """Record the response to a valid request: a duplicate, or a handshake."""
        self._log.record(answer)

    def refused(self, answer: RequestAnswered) -> None:
        """Log a refusal now or at the end of the window, or count it."""
        if not self._kinds:
            asyncio.get_running_loop().call_later(self._window_s, self._end_window)
        recorded = self._recorded < _RECORDS_MAX
        if recorded:
            self._recorded += 1
            self._log.record(answer)
        key = (answer.source, answer.peer, answer.code, answer.reason)
        kind = self._kinds.get(key)
        if kind is not None:
            kind.unlogged += kind.last is not None
            kind.unrecorded += not kind.last_recorded
            kind.last, kind.last_recorded = answer, recorded
        elif len(self._kinds) < _KINDS_MAX:
            self._kinds[key] = _Kind()
            _log_refusal(answer, 0)
            if not recorded:
                self._log.record(answer)
        else:
            self._beyond += 1

    def _end_window(self) -> None:
        """Log the last refusal of every kind; the next refusal starts another window."""
        kinds, self._kinds = self._kinds, {}
        beyond, self._beyond = self._beyond, 0
        self._recorded = 0
        for kind in kinds.values():
            if kind.last is not None:
                _log_refusal(kind.last, kind.unlogged)
                if not kind.last_recorded:
                    self._log.record(msgspec.structs.replace(kind.last, left_out=kind.unrecorded))
        if beyond:
            _LOG.warning("refused beyond=%d: more kinds of refusals than are logged", beyond)


def _log_refusal(answer: RequestAnswered, left_out: int) -> None:
    _LOG.warning(
        "refused source=%s code=%s reason=%s peer=%s bytes=%d request_id=%s%s left_out=%d: %s",
        answer.source or "-",
        answer.code,
        answer.reason or "-",
        answer.peer,
        answer.size,
        answer.request_id,
        f" claimed_request_id={answer.claimed_request_id}" if answer.claimed_request_id else "",
        left_out,
        answer.detail,
    )


# -- unmatched requests, so that deliveries to a wrong path are visible

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
    return logged_path(scope["path"])[:_SHOWN_CHARS]


def _code_of(error: Exception) -> str | None:
    if isinstance(error, Problem):
        return error.code if error.code in {"unknown_source", "remote_execution"} else None
    if isinstance(error, NotFoundException):
        return "not_found"
    return "method_not_allowed" if isinstance(error, MethodNotAllowedException) else None
