"""What was done by those who have a key is in the audit log before it is answered.

A route that changes something names its action: `opt={"audit": "world.queue.publish"}`. Its entry
is written after the operation and before the answer goes out. Where that fails, the answer is 503
and no success: operations may be repeated, and so the caller does. What did not come to pass is
answered as it is, entry or not.

Requests without a valid key have no entry: the log is kept for ever, and anybody could fill it.
They are counted.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, cast

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.datastructures import Headers
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import override

from headwater.gateway.http.keys import admitted_key
from headwater.gateway.http.metrics import Metrics
from headwater.gateway.http.ports import AuditLog
from headwater.gateway.http.problems import on_house_error
from headwater.gateway.http.request_scope import problem_code_of, request_id_of
from headwater.gateway.http.segments import meant, shown
from headwater.schemas.audit import OperationAudited
from headwater.schemas.errors import BrokerUnavailable, HeadwaterError

_LOG: Final = logging.getLogger("headwater.gateway.audit")

#: Of a route: the name of its action.
ACTION: Final = "audit"
SUCCESS: Final = "success"
FAILURE: Final = "failure"
#: Where programs elsewhere ask, whose runs are here.
_WORLD: Final = "/v1/world/"
_FAILED_FROM: Final = 400
#: Characters of a path, and of whatever else comes from the caller: entries are kept for ever.
_PATH_CHARS: Final = 1024
_TEXT_CHARS: Final = 256
#: Fields of an entry that hold what the caller says, unchecked, and the headers they are from.
_CLAIMED_KEY: Final = "claimedIdempotencyKey"
_CLAIMED: Final = {
    "claimedRunId": "x-run-id",
    "claimedCorrelationId": "x-correlation-id",
    _CLAIMED_KEY: "idempotency-key",
}
_NOTES: Final = "headwater.audit_notes"
_USER: Final = "user_id"


def note(  # noqa: PLR0913 (each is a field of the entry)
    request: ASGIConnection[Any, Any, Any, Any],
    *,
    deduped: bool | None = None,
    run_id: str | None = None,
    run_ids: Sequence[str] | None = None,
    workflow: str | None = None,
    event_type: str | None = None,
    idempotency_key: str | None = None,
    dry_run: bool = False,
) -> None:
    """Record in the entry of a request what only its handler knows.

    Handlers note what they are about to touch before they do, so that the entry of an operation
    that fails names it, too. What is noted later replaces what was noted before.

    Args:
        request: The request.
        deduped: Whether an earlier request had done it already.
        run_id: The run that the operation touches.
        run_ids: The runs that an operation touches that is about several.
        workflow: The workflow of the run, or of all of them.
        event_type: The type of the event that was sent.
        idempotency_key: The key under which the operation is carried out once.
        dry_run: Whether it was only asked what the operation would do.
    """
    notes = cast("dict[str, Any]", request.scope).setdefault(_NOTES, {})
    noted = {
        "deduped": deduped,
        "runId": run_id,
        "runIds": None if run_ids is None else [*run_ids],
        "workflow": workflow,
        "eventType": event_type,
        "idempotencyKey": idempotency_key or None,
        "dryRun": dry_run or None,
    }
    notes.update({name: value for name, value in noted.items() if value is not None})


class Auditing(ASGIMiddleware):
    """Writes the entries of routes that name an action."""

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
                error = await self._written(scope, action, message["status"])
                if error is not None:
                    refused = True
                    request = Request[Any, Any, Any](scope)
                    answer = on_house_error(request, error).to_asgi_response(None, request)
                    await answer(scope, receive, send)
            if not refused:
                await send(message)

        await next_app(scope, receive, after_entry)

    async def _written(self, scope: Scope, action: str, status: int) -> HeadwaterError | None:
        """Writes the entry of a request; the error that is to be answered in place of success."""
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
            _LOG.warning("no entry of %s, which failed: %s", action, error)
        else:
            self._metrics.audited(entry.result)
        return None


def _unaudited(error: HeadwaterError) -> BrokerUnavailable:
    """What is answered in place of a success: never that nothing was begun."""
    if isinstance(error, BrokerUnavailable):
        return error
    return BrokerUnavailable(f"expected to write down what was done, found no way: {error.message}")


def _metadata(scope: Scope, headers: Headers, status: int) -> Mapping[str, Any]:
    """What the gateway knows of an operation, and, in fields of their own, what its caller says."""
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
        return [_storable(each) for each in value]
    return _text(value) if isinstance(value, str) else value


def _resource(scope: Scope) -> str:
    """The path of a request; who is wiped shall not be named in a log that is kept for ever."""
    path: str = scope["path"]
    user = scope["path_params"].get(_USER)
    if isinstance(user, str) and user:
        digest = sha256(user.encode(errors="replace")).hexdigest()
        parts = path.split("/")
        path = "/".join(f"sha256:{digest}" if meant(part) == user else part for part in parts)
    return _text(shown(path), _PATH_CHARS)


def _text(text: str, chars: int = _TEXT_CHARS) -> str:
    """What Avro and Postgres can hold of a text: no half characters, and no NUL."""
    return text[:chars].encode(errors="replace").decode().replace("\0", "\ufffd")


def _json(found: Mapping[str, Any]) -> str:
    return json.dumps(found, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
