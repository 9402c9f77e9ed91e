"""The audit log: one entry per operation, written before the response, and read routes.

A route that changes something names its action: `opt={"audit": "world.queue.publish"}`. Its entry
is appended after the operation and before the response is sent. If a successful operation cannot be
audited, the response is 503, so that the caller repeats it; operations are safe to repeat. A failed
operation is answered as it is, with or without an entry.

Requests without a valid key are counted and get no entry: the log is kept indefinitely, and any
client could fill it.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from hashlib import sha256
from typing import Annotated, Any, Final, cast

import msgspec
from litestar import Request, Router, get
from litestar.connection import ASGIConnection
from litestar.datastructures import Headers
from litestar.di import NamedDependency, Provide
from litestar.middleware import ASGIMiddleware
from litestar.params import QueryParameter
from litestar.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import override

from headwater.gateway.api.authentication import admitted_key, operators_only
from headwater.gateway.api.monitoring import Metrics
from headwater.gateway.api.openapi import ADMIN_KEY, problem_responses
from headwater.gateway.api.problems import on_headwater_error
from headwater.gateway.api.request_parameters import moment_of, with_checked_parameters
from headwater.gateway.api.request_scope import (
    decode_segment,
    displayable_path,
    problem_code_of,
    request_id_of,
)
from headwater.projections.audit import AuditFilter, Chained, newest
from headwater.projections.postgres.connections import PooledReader
from headwater.schemas.errors import BrokerUnavailable, HeadwaterError
from headwater.schemas.records import OperationAudited
from headwater.streams.pipeline.request_logs import AuditLog

_LOG: Final = logging.getLogger("headwater.gateway.audit")

#: Option of a route: the name of its action.
ACTION: Final = "audit"
SUCCESS: Final = "success"
FAILURE: Final = "failure"
#: Routes for app hosts with runs that Headwater stores.
_WORLD: Final = "/v1/world/"
_FAILED_FROM: Final = 400
#: Characters of a path and of other text from the caller: entries are kept indefinitely.
_PATH_CHARS: Final = 1024
_TEXT_CHARS: Final = 256
#: Fields of an entry with unchecked values of the caller, and the headers that they come from.
_CLAIMED_KEY: Final = "claimedIdempotencyKey"
_CLAIMED: Final = {
    "claimedRunId": "x-run-id",
    "claimedCorrelationId": "x-correlation-id",
    _CLAIMED_KEY: "idempotency-key",
}
_NOTES: Final = "headwater.audit_notes"
_USER: Final = "user_id"


def note(  # noqa: PLR0913 (one parameter per field of the entry)
    request: ASGIConnection[Any, Any, Any, Any],
    *,
    deduped: bool | None = None,
    run_id: str | None = None,
    run_ids: Sequence[str] | None = None,
    workflow: str | None = None,
    event_type: str | None = None,
    idempotency_key: str | None = None,
    migration: Mapping[str, Any] | None = None,
    branch: Mapping[str, Any] | None = None,
    deployment: str | None = None,
    dry_run: bool = False,
) -> None:
    """Add fields to the audit entry of a request that only its handler knows.

    Handlers note the target before they act, so that the entry of a failed operation names it, too.
    A later note replaces an earlier one.

    Args:
        request: The request.
        deduped: Whether an earlier request had already carried out the operation.
        run_id: Run that the operation changes.
        run_ids: Runs that the operation changes, if it is about several.
        workflow: Workflow of the runs.
        event_type: Type of the event that was sent.
        idempotency_key: Idempotency key of the operation.
        migration: Version of a graph to which a run moves, and the map of its nodes.
        branch: Group, fork and index of the branch with an output that is set.
        deployment: Requested deployment, as in the request.
        dry_run: Whether this is a dry run.
    """
    notes = cast("dict[str, Any]", request.scope).setdefault(_NOTES, {})
    noted = {
        "deduped": deduped,
        "runId": run_id,
        "runIds": None if run_ids is None else [*run_ids],
        "workflow": workflow,
        "eventType": event_type,
        "idempotencyKey": idempotency_key or None,
        "migration": migration,
        "branch": branch,
        "deployment": deployment,
        "dryRun": dry_run or None,
    }
    notes.update({name: value for name, value in noted.items() if value is not None})


class Auditing(ASGIMiddleware):
    """Middleware that appends audit entries for routes that name an action."""

    def __init__(
        self,
        log: AuditLog,
        *,
        project: str,
        peer_of: Callable[[Scope], str],
        metrics: Metrics,
        clock: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        self._log = log
        self._project = project
        self._peer_of = peer_of
        self._metrics = metrics
        self._clock = clock
        self._new_id = new_id

    @override
    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        action = scope["route_handler"].opt.get(ACTION)
        if action is None:
            await next_app(scope, receive, send)
            return
        refused = False

        async def after_entry(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start":
                error = await self._append_entry(scope, action, message["status"])
                if error is not None:
                    refused = True
                    request = Request[Any, Any, Any](scope)
                    answer = on_headwater_error(request, error).to_asgi_response(None, request)
                    await answer(scope, receive, send)
            if not refused:
                await send(message)

        await next_app(scope, receive, after_entry)

    async def _append_entry(self, scope: Scope, action: str, status: int) -> HeadwaterError | None:
        """Append the entry of a request; return an error that must replace a success response."""
        key_id = admitted_key(scope)
        if key_id is None:
            self._metrics.unaudited(action)
            return None
        failed = status >= _FAILED_FROM
        headers = Headers.from_scope(scope)
        entry = OperationAudited(
            id=self._new_id(),
            key_id=key_id,
            project_id=self._project,
            action=action,
            resource=_resource(scope),
            result=FAILURE if failed else SUCCESS,
            ip=self._peer_of(scope),
            user_agent=_text(headers.get("user-agent", "")),
            metadata=_json(_metadata(scope, headers, status)),
            at_ms=self._clock(),
        )
        try:
            await self._log.append(entry)
        except HeadwaterError as error:
            self._metrics.audited("lost")
            if not failed:
                return _unaudited(error)
            _LOG.warning("no audit entry for the failed operation %s: %s", action, error)
        else:
            self._metrics.audited(entry.result)
        return None


def _unaudited(error: HeadwaterError) -> BrokerUnavailable:
    """Return the error to answer with; it must not claim that the operation was not begun."""
    if isinstance(error, BrokerUnavailable):
        return error
    return BrokerUnavailable(f"the audit entry of the operation was not stored: {error.message}")


def _metadata(scope: Scope, headers: Headers, status: int) -> Mapping[str, Any]:
    """Return the metadata of an entry: facts known to the gateway, and `claimed…` of the caller."""
    notes: Mapping[str, Any] = cast("dict[str, Any]", scope).get(_NOTES, {})
    known = {
        "lane": "world_proxy" if scope["path"].startswith(_WORLD) else "public",
        "deduped": False,
        "correlationId": request_id_of(scope),
        **notes,
        "status": status,
        "code": problem_code_of(scope) if status >= _FAILED_FROM else None,
    }
    claimed = {name: headers.get(header) or None for name, header in _CLAIMED.items()}
    if claimed[_CLAIMED_KEY] == known.get("idempotencyKey"):
        del claimed[_CLAIMED_KEY]
    return {
        name: _storable(value) for name, value in {**known, **claimed}.items() if value is not None
    }


def _storable(value: Any) -> Any:  # noqa: ANN401 (any JSON)
    if isinstance(value, list):
        return [_storable(item) for item in value]
    return _text(value) if isinstance(value, str) else value


def _resource(scope: Scope) -> str:
    """Return the path of a request, with a user's id hashed: the log outlives a wipe."""
    path: str = scope["path"]
    user = scope["path_params"].get(_USER)
    if isinstance(user, str) and user:
        digest = sha256(user.encode(errors="replace")).hexdigest()
        parts = path.split("/")
        path = "/".join(
            f"sha256:{digest}" if decode_segment(part) == user else part for part in parts
        )
    return _text(displayable_path(path), _PATH_CHARS)


def _text(text: str, chars: int = _TEXT_CHARS) -> str:
    """Truncate a text and replace what Avro or Postgres cannot store: lone surrogates and NUL."""
    return text[:chars].encode(errors="replace").decode().replace("\0", "\ufffd")


def _json(metadata: Mapping[str, Any]) -> str:
    return msgspec.json.encode(metadata, order="sorted").decode()


# -- routes

_PAGE_DEFAULT: Final = 50
_PAGE_MAX: Final = 1000


class Result(StrEnum):
    """Result of an operation."""

    SUCCESS = SUCCESS
    FAILURE = FAILURE


_Limit = Annotated[
    int, QueryParameter(ge=1, le=_PAGE_MAX, description="Maximum number of results.")
]
_Action = Annotated[str | None, QueryParameter(description="Only entries of this action.")]
_Result = Annotated[Result | None, QueryParameter(description="Only entries with this result.")]
_KeyId = Annotated[
    str | None, QueryParameter(name="keyId", description="Only entries of this key.")
]
_RunId = Annotated[
    str | None, QueryParameter(name="runId", description="Only entries about this run.")
]
_Since = Annotated[str | None, QueryParameter(description="Only entries since, in RFC 3339.")]
_Until = Annotated[str | None, QueryParameter(description="Only entries before, in RFC 3339.")]
_Cursor = Annotated[str | None, QueryParameter(description="Cursor of the previous page.")]


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An entry. `hash` is the SHA-256 of the previous entry's hash and this entry."""

    id: str
    key_id: str | None
    project_id: str | None
    action: str
    resource: str
    result: str
    ip: str | None
    user_agent: str | None
    metadata: Any
    created_at: str
    offset: int
    hash: str


class AuditPage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Entries, newest first; `cursor` continues with older ones."""

    entries: list[AuditEntry]
    cursor: str | None
    has_more: bool


def audit_router(reader: PooledReader, key: str) -> Router:
    """Return the router for /v1/audit."""

    @get(
        "/",
        operation_id="listAuditEntries",
        summary="List audit entries, newest first",
        responses=problem_responses("invalid_parameter", "invalid_cursor", "store_unavailable"),
    )
    async def entries(
        filters: NamedDependency[AuditFilter], limit: _Limit = _PAGE_DEFAULT, cursor: _Cursor = None
    ) -> AuditPage:
        page, more = await newest(reader, filters, limit=limit, cursor=cursor)
        return AuditPage(entries=list(map(_entry, page)), cursor=more, has_more=more is not None)

    return Router(
        "/v1/audit",
        route_handlers=[entries],
        dependencies={"filters": Provide(_filters, sync_to_thread=False)},
        guards=[with_checked_parameters(operators_only(key))],
        security=[{ADMIN_KEY: []}],
        tags=["operate"],
    )


def _filters(
    action: _Action = None,
    result: _Result = None,
    key_id: _KeyId = None,
    run_id: _RunId = None,
    since: _Since = None,
    until: _Until = None,
) -> AuditFilter:
    return AuditFilter(
        action=action,
        result=result,
        key_id=key_id,
        run_id=run_id,
        since=moment_of("since", since),
        until=moment_of("until", until),
    )


def _entry(chained: Chained) -> AuditEntry:
    fields = msgspec.structs.asdict(chained.entry)
    metadata = msgspec.json.decode(fields.pop("metadata_json") or "{}")
    return AuditEntry(**fields, metadata=metadata, hash=chained.hash.hex())
