"""Record operations in the audit log: before they act, and before their response is sent.

A route that changes something names its action: `audit="world.queue.publish"`. Its entry with the
result `attempted` is appended before the handler runs, and without it nothing happens. A route with
`audits_attempt=True` appends it in its handler (`attempt`), as soon as the handler knows what it is
about to change, so that the entry names it. Requests that are rejected before that have no such
entry. The entry with the result is appended before the response is sent.

A route that reads personal data names its action, too: `audit_read="users.read"`. It has one entry,
with the result, without which nothing is sent.

Requests without a valid key are counted and get no entry: the log is kept indefinitely, and any
client could fill it.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypedDict, cast

import msgspec
from litestar import Request
from litestar.connection import ASGIConnection
from litestar.datastructures import Headers
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import Unpack, override

from headwater.gateway.api.authentication import admitted_key, caller_in
from headwater.gateway.api.monitoring import Metrics
from headwater.gateway.api.problems import Problem, on_problem
from headwater.gateway.api.request_scope import (
    AnyRequest,
    decode_segment,
    displayable_path,
    problem_code_of,
    request_id_of,
)
from headwater.schemas.errors import HeadwaterError
from headwater.schemas.records import OperationAudited
from headwater.streams.pipeline.request_logs import AuditLog

_LOG: Final = logging.getLogger("headwater.gateway.audit")

#: Options of a route: the name of its action, as an operation or as a read of personal data.
ACTION: Final = "audit"
READ: Final = "audit_read"
#: Option of a route with a handler that appends the attempt itself.
AUDITS_ATTEMPT: Final = "audits_attempt"
ATTEMPTED: Final = "attempted"
SUCCESS: Final = "success"
FAILURE: Final = "failure"
_LOST: Final = "lost"
#: Routes for app hosts with runs that Headwater stores.
_WORLD: Final = "/v1/world/"
_FAILED_FROM: Final = 400
#: Characters of a path and of other text from the caller: entries are kept indefinitely.
_PATH_CHARS: Final = 1024
_TEXT_CHARS: Final = 256
#: Items of a list in an entry, except runs: a longer list is replaced by its digest and its length.
_ITEMS_MAX: Final = 100
#: Fields of an entry with unchecked values of the caller, and the headers that they come from.
_CLAIMED_KEY: Final = "claimedIdempotencyKey"
_CLAIMED: Final = {
    "claimedRunId": "x-run-id",
    "claimedCorrelationId": "x-correlation-id",
    _CLAIMED_KEY: "idempotency-key",
}
_NOTES: Final = "headwater.audit_notes"
_RECORD: Final = "headwater.audit_record"
#: Paths that end with the key of a row, which may name a user.
_ROW: Final = "/admin/why/"
#: Path parameters that name a user, or a connection of one, and the token of a hook.
_HASHED_PARAMETERS: Final = ("user_id", "terra_user_id", "hook_token")


class Details(TypedDict, total=False):
    """Details of an operation that only its handler knows. None and False have no effect.

    Keys:
        deduped: Whether an earlier request had already carried out the operation.
        run_id: Run that the operation changes.
        run_ids: Runs that the operation changes, if it is about several.
        workflow: Workflow of the runs.
        event_type: Type of the event that was sent.
        idempotency_key: Idempotency key of the operation.
        migration: Version of a graph to which a run moves, and the map of its nodes.
        branch: Group, fork and index of the branch with an output that is set.
        from_step: Step from which a run is retried.
        change: Action that is applied to many instances.
        selection: Filter of what is changed; users are hashed.
        deployment: Deployment that is created, activated or requested.
        replaces: Deployment that was active before, with the share of another one, if any.
        percent: Percentage of the new runs that a deployment gets.
        app: App of a deployment.
        digest: SHA-256 of an artifact or a definition.
        version: Version of a graph.
        projection: Projection that is rebuilt.
        rebuild: Rebuild, or verification, of a projection.
        positions: Positions of dead letters, or of deliveries.
        count: Number of instances, records or days that the operation is about.
        wipe: Wipe of a user.
        key: API key that is created, rotated or revoked.
        key_role: Its role.
        key_scopes: Its scopes besides those of the role.
        revoked_keys: API keys that were revoked with it.
        disabled_endpoints: Endpoints that these keys had created, and that were disabled.
        endpoint: Endpoint of notifications that is changed.
        dry_run: Whether this is a dry run.
        forced: Why an operator overrides a check.
        diverged: Runs that do not fit the code of a deployment.
    """

    deduped: bool | None
    run_id: str | None
    run_ids: Sequence[str] | None
    workflow: str | None
    event_type: str | None
    idempotency_key: str | None
    migration: Mapping[str, Any] | None
    branch: Mapping[str, Any] | None
    from_step: str | None
    change: str | None
    selection: Mapping[str, Any] | None
    deployment: str | None
    replaces: str | None
    percent: int | None
    app: str | None
    digest: str | None
    version: int | None
    projection: str | None
    rebuild: str | None
    positions: Sequence[str] | None
    count: int | None
    wipe: str | None
    key: str | None
    key_role: str | None
    key_scopes: Sequence[str] | None
    revoked_keys: Sequence[str] | None
    disabled_endpoints: Sequence[str] | None
    endpoint: str | None
    dry_run: bool
    forced: str | None
    diverged: Sequence[str] | None


#: Details that are in an entry also if they are false.
_KEPT_FALSE: Final = frozenset({"deduped", "count", "percent"})


def note(request: ASGIConnection[Any, Any, Any, Any], **details: Unpack[Details]) -> None:
    """Add details to the audit entries of a request; a later value replaces an earlier one."""
    notes = cast("dict[str, Any]", request.scope).setdefault(_NOTES, {})
    notes.update(
        (_camel(name), value)
        for name, value in details.items()
        if value is not None and (value or name in _KEPT_FALSE)
    )


async def attempt(request: ASGIConnection[Any, Any, Any, Any], **details: Unpack[Details]) -> None:
    """Append the `attempted` entry of a request, once, before its handler changes anything.

    Raises:
        Problem: The entry was not stored; the operation must not happen.
    """
    note(request, **details)
    record: _RequestRecord | None = cast("dict[str, Any]", request.scope).get(_RECORD)
    if record is not None:
        await record.attempt()


async def attempt_run(request: AnyRequest, run_id: str, workflow: str) -> None:
    """Append the `attempted` entry of a request before it changes a run; see `attempt`."""
    await attempt(request, run_id=run_id, workflow=workflow)


async def attempt_operation(request: AnyRequest) -> None:
    """Append the `attempted` entry of an operation before its handler runs.

    A `before_request` of Litestar: guards have admitted the caller.
    """
    opt = request.route_handler.opt
    if opt.get(ACTION) and not opt.get(AUDITS_ATTEMPT):
        await attempt(request)


class RequestFacts(NamedTuple):
    """What an entry states about a request, besides its action and result.

    Attributes:
        key_id: Id of the key.
        resource: Path, with hashed users.
        peer: Address of the client.
        user_agent: Program of the client.
        at_ms: Unix milliseconds.
    """

    key_id: str
    resource: str
    peer: str
    user_agent: str
    at_ms: int


class Auditing(ASGIMiddleware):
    """Middleware that records the requests of routes that name an action."""

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
        opt = scope["route_handler"].opt
        action = opt.get(ACTION) or opt.get(READ)
        if action is None:
            await next_app(scope, receive, send)
            return
        record = _RequestRecord(self, scope, action)
        cast("dict[str, Any]", scope)[_RECORD] = record
        replaced = False

        async def after_entry(message: Message) -> None:
            nonlocal replaced
            if message["type"] == "http.response.start":
                problem = await record.finish(message["status"])
                if problem is not None:
                    replaced = True
                    request = Request[Any, Any, Any](scope)
                    answer = on_problem(request, problem).to_asgi_response(None, request)
                    await answer(scope, receive, send)
            if not replaced:
                await send(message)

        await next_app(scope, receive, after_entry)

    def facts_of(self, scope: Scope) -> RequestFacts:
        """Return what an entry states about a request with a valid key."""
        key_id = admitted_key(scope)
        if key_id is None:
            raise RuntimeError(f"expected a guard of {scope['path']} that admits keys, found none")
        agent = Headers.from_scope(scope).get("user-agent", "")
        return RequestFacts(key_id, resource_of(scope), self._peer_of(scope), agent, self._clock())

    async def append(
        self, facts: RequestFacts, action: str, result: str, metadata: Mapping[str, Any]
    ) -> str:
        """Append an entry; return its id.

        Raises:
            HeadwaterError: It was not stored.
        """
        entry = OperationAudited(
            id=self._new_id(),
            key_id=facts.key_id,
            project_id=self._project,
            action=action,
            resource=facts.resource,
            result=result,
            ip=facts.peer,
            user_agent=_text(facts.user_agent),
            metadata=_json(metadata),
            at_ms=facts.at_ms,
        )
        try:
            await self._log.append(entry)
        except HeadwaterError:
            self._metrics.audited(_LOST)
            raise
        self._metrics.audited(result)
        return entry.id

    def count_unaudited(self, action: str) -> None:
        """Count a request for an action without a valid key."""
        self._metrics.unaudited(action)


class _RequestRecord:
    """Entries of one request: at most one `attempted`, and at most one result."""

    def __init__(self, auditing: Auditing, scope: Scope, action: str) -> None:
        self._auditing = auditing
        self._scope = scope
        self._action = action
        self._attempt_id = ""
        self._refused = False

    async def attempt(self) -> None:
        if self._attempt_id:
            return
        try:
            self._attempt_id = await self._append(ATTEMPTED, _metadata(self._scope))
        except HeadwaterError as error:
            self._refused = True
            raise _nothing_done(error) from error

    async def finish(self, status: int) -> Problem | None:
        """Append the result; return a problem that must replace a successful response."""
        if admitted_key(self._scope) is None:
            self._auditing.count_unaudited(self._action)
            return None
        if self._refused:
            return None
        failed = status >= _FAILED_FROM
        outcome = {
            "attempt": self._attempt_id or None,
            "status": status,
            "code": problem_code_of(self._scope) if failed else None,
        }
        try:
            metadata = _metadata(self._scope, outcome)
            await self._append(FAILURE if failed else SUCCESS, metadata)
        except HeadwaterError as error:
            if failed:
                _LOG.warning("no audit entry for the failed operation %s: %s", self._action, error)
                return None
            return self._not_recorded(error) if self._attempt_id else _nothing_done(error)
        return None

    async def _append(self, result: str, metadata: Mapping[str, Any]) -> str:
        facts = self._auditing.facts_of(self._scope)
        return await self._auditing.append(facts, self._action, result, metadata)

    def _not_recorded(self, error: HeadwaterError) -> Problem:
        run_id = cast("dict[str, Any]", self._scope).get(_NOTES, {}).get("runId")
        return Problem(
            "result_not_recorded",
            f"The operation {self._action} was done, but the audit log did not store its result; "
            f"its entry {self._attempt_id} has the result {ATTEMPTED}. Repeat the request only if "
            f"it has an idempotency key or changes nothing the second time. {error.message}",
            attempt=self._attempt_id,
            **({"runId": run_id} if run_id else {}),
        )


def _nothing_done(error: HeadwaterError) -> Problem:
    return Problem(
        "audit_unavailable",
        f"The audit log did not store the entry of this request, so nothing was done: "
        f"{error.message}",
    )


def _metadata(scope: Scope, outcome: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """Return the metadata of an entry: facts known to the gateway, and `claimed…` of the caller."""
    notes: Mapping[str, Any] = cast("dict[str, Any]", scope).get(_NOTES, {})
    headers = Headers.from_scope(scope)
    caller = caller_in(scope)
    known = {
        "keyName": (caller and caller.name) or None,
        "lane": "world_proxy" if scope["path"].startswith(_WORLD) else "public",
        "deduped": False,
        "correlationId": request_id_of(scope),
        **notes,
        **(outcome or {}),
    }
    claimed = {name: headers.get(header) or None for name, header in _CLAIMED.items()}
    if claimed[_CLAIMED_KEY] == known.get("idempotencyKey"):
        del claimed[_CLAIMED_KEY]
    return {
        name: _storable(name, value)
        for name, value in {**known, **claimed}.items()
        if value is not None
    }


def _storable(name: str, value: Any) -> Any:  # noqa: ANN401 (any JSON)
    """Return a value with bounded texts; a long list, except of runs, as its digest and length."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        items = ((inner, item) for inner, item in value.items() if item is not None)
        return {inner: _storable(inner, item) for inner, item in items}
    if not isinstance(value, Sequence):
        return value
    if len(value) > _ITEMS_MAX and name != "runIds":
        digest = sha256(msgspec.json.encode(value)).hexdigest()
        return {"sha256": digest, "count": len(value)}
    return [_storable(name, item) for item in value]


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.title, others))


def resource_of(scope: Scope) -> str:
    """Return the path of a request, with a user's id hashed: the log outlives a wipe."""
    path: str = scope["path"]
    if path.startswith(_ROW):
        key = str(scope["path_params"].get("key", ""))
        path = f"{_ROW}{scope['path_params'].get('table')}/sha256:{_digest(key)}"
    for name in _HASHED_PARAMETERS:
        user = scope["path_params"].get(name)
        if isinstance(user, str) and user:
            digest = _digest(user)
            parts = path.split("/")
            path = "/".join(
                f"sha256:{digest}" if decode_segment(part) == user else part for part in parts
            )
    return _text(displayable_path(path), _PATH_CHARS)


def _digest(text: str) -> str:
    return sha256(text.encode(errors="replace")).hexdigest()


def _text(text: str, chars: int = _TEXT_CHARS) -> str:
    """Truncate a text and replace what Avro or Postgres cannot store: lone surrogates and NUL."""
    return text[:chars].encode(errors="replace").decode().replace("\0", "\ufffd")


def _json(metadata: Mapping[str, Any]) -> str:
    return msgspec.json.encode(metadata, order="sorted").decode()
