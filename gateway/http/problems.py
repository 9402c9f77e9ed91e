"""Errors over HTTP: RFC 9457 problem documents, and the one table from code to status.

Every answer that is no success is built here: our own refusals, the errors of the house, and what
Litestar itself refuses (no such path, wrong method, unreadable parameters).
"""

import logging
import re
from collections.abc import Mapping
from enum import Enum
from http import HTTPStatus
from http.client import responses
from typing import Any, Final

import msgspec
from litestar import Response
from litestar.exceptions import HTTPException
from litestar.params import ParameterKwarg
from litestar.types import ExceptionHandlersMap
from litestar.typing import FieldDefinition

from headwater.gateway.http.request_scope import (
    AnyRequest,
    claimed_request_id,
    keep_problem_code,
    request_id_of,
)
from headwater.gateway.http.segments import shown
from headwater.gateway.patterns import with_descriptions
from headwater.schemas.errors import HeadwaterError
from headwater.schemas.failures import REFUSALS

_LOG: Final = logging.getLogger("headwater.gateway")

MEDIA_TYPE: Final = "application/problem+json"
#: Characters of a value that an answer repeats: enough to know it again.
_SHOWN_CHARS: Final = 64

#: Status and title by code. A code is stable: clients may act on it.
CODES: Final[Mapping[str, tuple[int, str]]] = {
    "bad_request": (400, "The request cannot be understood"),
    "invalid_parameter": (400, "A parameter is not valid"),
    "unknown_parameter": (400, "The route has no such parameter"),
    "invalid_days": (400, "The number of days is not valid"),
    "expected_multipart": (400, "The body is not a form"),
    "missing_file_field": (400, "The form has no file"),
    "idempotency_required": (400, "An idempotency key is missing"),
    "empty_body": (400, "The body is empty"),
    "malformed_payload": (400, "The body is not what its producer documents"),
    "unauthorized": (401, "The key or token is missing or not valid"),
    "invalid_signature": (401, "The signature is not valid"),
    "not_compared": (409, "The rebuild is not as far as that"),
    "rebuild_under_way": (409, "Another rebuild of the projection is under way"),
    "not_found": (404, "There is nothing here"),
    "unknown_source": (404, "No such webhook source"),
    "unknown_schema": (404, "No such schema"),
    "method_not_allowed": (405, "This path does not take this method"),
    "no_connections": (409, "There is no active connection"),
    "import_under_way": (409, "An import of yours is under way"),
    "body_timeout": (408, "The body did not arrive in time"),
    "invalid_cursor": (400, "The cursor is not one of ours"),
    "remote_execution": (409, "Workers execute the runs"),
    "gone": (410, "It was here and is no more"),
    "cursor_expired": (410, "The cursor can no longer be continued"),
    "file_too_large": (413, "The file is too large"),
    "unsupported_file_type": (415, "The file is neither PDF nor PNG nor JPEG"),
    "body_too_large": (413, "The body is too large"),
    "unknown_host": (421, "The gateway has another name"),
    "too_many_requests": (429, "This address holds more than its share"),
    "internal_error": (500, "Something went wrong on our side"),
    "broker_unavailable": (503, "Kafka did not acknowledge in time"),
    "store_unavailable": (503, "Postgres did not answer"),
    "terra_failed": (502, "Terra gave no usable answer"),
    "terra_upload_failed": (502, "Terra did not take the lab report"),
    "terra_not_configured": (503, "Who we are to Terra is not set"),
    "blobs_unavailable": (503, "Files cannot be kept at the moment"),
    "jwks_unavailable": (503, "The keys of users' tokens are not there"),
    "overloaded": (503, "The gateway has as much to do as it takes on"),
    "not_yet_readable": (503, "Members of an older release could not read it yet"),
    # Of the workflow service; in capitals what owners refuse commands with.
    **{code: (refusal.status, refusal.title) for code, refusal in REFUSALS.items()},
    "invalid_body": (400, "The body is not what this route takes"),
    "forbidden": (403, "The caller may not do this"),
    "run_not_found": (404, "No run has this id"),
    "ambiguous_run": (409, "Runs of several workflows have this id"),
    "tick_disabled": (404, "Ticks are not enabled"),
    "COMMAND_REFUSED": (409, "The command was refused"),
    "outcome_unknown": (503, "What became of the command was not heard"),
    "position_not_reached": (503, "Postgres does not have it yet"),
    "worker_unavailable": (503, "The worker did not answer"),
}

#: Routes that other systems have, too: problems say the detail once more there, as `message`.
_SAY_MESSAGE: Final = ("/v1/runs/", "/v1/deployments/", "/v1/world/")

#: Litestar's own refusals, by status; any other 4xx is a bad_request of that status.
_CODE_BY_STATUS: Final[Mapping[int, str]] = {
    400: "invalid_parameter",
    404: "not_found",
    405: "method_not_allowed",
    413: "body_too_large",
}

_OF_CURSORS: Final = frozenset({"invalid_cursor", "cursor_expired"})
#: Parameters that hold cursors; `since` may, where there is no `cursor`.
_CURSORS: Final = ("cursor", "after", "since")

#: What may be better the next time.
_RETRIED: Final = frozenset(
    {
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.SERVICE_UNAVAILABLE,
    }
)
#: Seconds after which a sender may try again: a broker that restarts needs about this long.
_RETRY_AFTER_S: Final = "5"


class ProblemDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """A problem document, as the API's description shows it; some codes have further fields."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    request_id: str
    #: The `x-request-id` of the caller, where the request got another id.
    claimed_request_id: str | None = None
    reason: str | None = None
    field: str | None = None
    #: The detail once more, below /v1/runs, /v1/deployments and /v1/world.
    message: str | None = None


class Problem(Exception):
    """A request that is refused; becomes a problem document.

    Shape:  a code of `CODES`, or one of somebody else's with the status that goes with it; a body,
            JSON, is answered in place of the document.
    """

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        **extensions: object,
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.status = status
        self.headers = dict(headers or {})
        self.body = body
        self.extensions = extensions


def document(
    *,
    code: str,
    detail: str,
    instance: str,
    request_id: str,
    status: int | None = None,
    extensions: Mapping[str, Any] | None = None,
) -> tuple[int, bytes]:
    """A problem document.

    Shape:  a code of `CODES`, or any code with a status -> (HTTP status, JSON).
    """
    # A hook may answer a status that nobody has named.
    unknown = (status or 500, responses.get(status or 500, "The request was refused"))
    known, title = CODES.get(code) or unknown
    status = status or known
    fields = {
        "type": f"urn:headwater:problem:{code}",
        "title": title,
        "status": status,
        "detail": detail,
        "instance": instance,
        "code": code,
        **({"message": detail} if f"{instance}/".startswith(_SAY_MESSAGE) else {}),
        **(extensions or {}),
        "request_id": request_id,
    }
    return status, msgspec.json.encode(fields)


def retry_headers(status: int) -> dict[str, str]:
    """Tells a sender when to come back, if coming back can help."""
    return {"retry-after": _RETRY_AFTER_S} if status in _RETRIED else {}


def on_problem(request: AnyRequest, error: Problem) -> Response[bytes]:
    """Answers a refusal of ours."""
    found = _response(
        request, error.code, error.detail, error.status, error.extensions, error.headers
    )
    if error.body is not None:
        found.content, found.media_type = error.body, "application/json"
    return found


def on_house_error(request: AnyRequest, error: HeadwaterError) -> Response[bytes]:
    """Answers an error of the house: what can be retried is 503, the rest is ours to mend."""
    # Postgres refuses a value only if it came in a parameter, for example a NUL character.
    code = "invalid_parameter" if error.code == "record_refused" else error.code
    if code not in CODES:
        return on_unexpected(request, error)
    field = {"field": _cursor_of(request)} if code in _OF_CURSORS else None
    return _response(request, code, error.message, extensions=field)


def _cursor_of(request: AnyRequest) -> str:
    """The parameter that holds the cursor of a request."""
    return next((name for name in _CURSORS if name in request.query_params), _CURSORS[0])


def on_litestar_error(request: AnyRequest, error: HTTPException) -> Response[bytes]:
    """Answers what Litestar refused."""
    status = error.status_code
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return on_unexpected(request, error)
    code = _CODE_BY_STATUS.get(status, "bad_request")
    extensions = _missing(error.detail) or _fields(request, error.extra)
    given = {name.lower(): value for name, value in (error.headers or {}).items()}
    headers = {name: value for name, value in given.items() if name == "allow"}
    return _response(request, code, _detail(error, extensions), status, extensions, headers)


def on_unexpected(request: AnyRequest, error: Exception) -> Response[bytes]:
    """Answers a bug of ours: the log has the story, the caller its request id."""
    _LOG.error("%s %s failed", request.method, shown(request.scope["path"]), exc_info=error)
    return _response(request, "internal_error", "The failure is logged under this request's id.")


HANDLERS: Final[ExceptionHandlersMap] = {
    Problem: on_problem,
    HeadwaterError: on_house_error,
    HTTPException: on_litestar_error,
    Exception: on_unexpected,
}


_MISSING: Final = re.compile(r"Missing required (\w+) parameter '(.+?)'")
#: What Litestar calls a body; where there is none, it says no more than that.
_BODY: Final = "data"


def _missing(detail: str) -> dict[str, Any] | None:
    """Names a parameter that is not there, which Litestar names in its sentence alone."""
    found = _MISSING.match(detail)
    if found is None:
        return None
    fault = {"field": found[2], "detail": f"expected this {found[1]} parameter, found none"}
    return {"field": fault["field"], "errors": [fault]}


def _fields(request: AnyRequest, extra: object) -> dict[str, Any] | None:
    """Names the parameters that Litestar found fault with, as the caller writes them."""
    if not isinstance(extra, list) or not extra:
        return None
    errors = [_fault(request, str(one.get("key")), str(one.get("message"))) for one in extra]
    return {"field": errors[0]["field"], "errors": errors}


def _fault(request: AnyRequest, key: str, message: str) -> dict[str, str]:
    """Names a parameter as callers write it, where Litestar names it as its handler does."""
    if key == _BODY and message == repr(_BODY):
        return {"field": "body", "detail": "expected a JSON object, found nothing"}
    found = _parameter(request, key)
    if found is None or not isinstance(found.kwarg_definition, ParameterKwarg):
        return {"field": key, "detail": message}
    name, message = found.kwarg_definition.name or key, with_descriptions(message)
    kinds = [each.annotation for each in (found, *found.inner_types)]
    enums = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Enum)]
    choices = [str(each.value) for kind in enums for each in kind]
    if choices and name in request.query_params:
        given = request.query_params[name]
        message = f"expected one of {', '.join(choices)}, found {given[:_SHOWN_CHARS]!r}"
    return {"field": name, "detail": message}


def _parameter(request: AnyRequest, key: str) -> FieldDefinition | None:
    handler = request.route_handler
    takers = [handler.parsed_fn_signature]
    takers += [each.parsed_fn_signature for each in handler.resolve_dependencies().values()]
    return next((each.parameters[key] for each in takers if key in each.parameters), None)


def _detail(error: HTTPException, fields: Mapping[str, Any] | None) -> str:
    if error.status_code == HTTPStatus.NOT_FOUND:
        return "No route has this path; /schema lists those that exist."
    if fields is None:
        return error.detail
    return "; ".join(f"{one['field']}: {one['detail']}" for one in fields["errors"])


def _response(
    request: AnyRequest,
    code: str,
    detail: str,
    status: int | None = None,
    extensions: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response[bytes]:
    request_id = request_id_of(request.scope)
    claimed = claimed_request_id(request.scope)
    keep_problem_code(request.scope, code)
    status, body = document(
        code=code,
        detail=detail,
        instance=shown(request.scope["path"]),
        request_id=request_id,
        status=status,
        extensions={**(extensions or {}), **({"claimed_request_id": claimed} if claimed else {})},
    )
    more = dict(headers or {})
    if status == HTTPStatus.UNAUTHORIZED and code != "invalid_signature":
        more["www-authenticate"] = "Bearer"
    return Response(
        body,
        status_code=status,
        media_type=MEDIA_TYPE,
        headers={"x-request-id": request_id, **retry_headers(status), **more},
    )
