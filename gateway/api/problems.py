"""Errors over HTTP: RFC 9457 problem documents, and the table from code to status.

Every error response is built here: problems raised by routes, Headwater's errors, and errors of
Litestar itself (unknown path, wrong method, invalid parameters).
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

from headwater.gateway.api.request_scope import (
    AnyRequest,
    claimed_request_id,
    displayable_path,
    keep_problem_code,
    logged_path,
    request_id_of,
)
from headwater.gateway.settings.patterns import with_descriptions
from headwater.monitoring.catalog import HTTP_PROBLEMS
from headwater.monitoring.metrics import OTHER
from headwater.schemas.errors import HeadwaterError
from headwater.schemas.failures import REFUSALS

_LOG: Final = logging.getLogger("headwater.gateway")

MEDIA_TYPE: Final = "application/problem+json"
#: Characters of a value that an error repeats: enough to recognize it.
_SHOWN_CHARS: Final = 64

#: Status and title by code. Codes are stable: clients may depend on them.
CODES: Final[Mapping[str, tuple[int, str]]] = {
    "bad_request": (400, "The request is malformed"),
    "invalid_parameter": (400, "A parameter is not valid"),
    "unknown_parameter": (400, "The route has no such parameter"),
    "no_selector": (400, "The order selects nothing"),
    "invalid_days": (400, "The number of days is not valid"),
    "expected_multipart": (400, "The body is not a form"),
    "missing_file_field": (400, "The form has no file"),
    "idempotency_required": (400, "An idempotency key is missing"),
    "unauthorized": (401, "The key or token is missing or not valid"),
    "invalid_signature": (401, "The signature is not valid"),
    "not_compared": (409, "The rebuild is in another state"),
    "nothing_to_switch": (409, "A verification has nothing to switch to"),
    "rebuild_under_way": (409, "Another rebuild of the projection is under way"),
    "not_found": (404, "The resource does not exist"),
    "unknown_source": (404, "No such webhook source"),
    "unknown_schema": (404, "No such schema"),
    "method_not_allowed": (405, "This path does not take this method"),
    "no_connections": (409, "There is no active connection"),
    "import_under_way": (409, "An import of this user is running"),
    "body_timeout": (408, "The body did not arrive in time"),
    "invalid_cursor": (400, "The cursor is not valid"),
    "remote_execution": (409, "Workers execute the runs"),
    "gone": (410, "The resource no longer exists"),
    "cursor_expired": (410, "The cursor can no longer be continued"),
    "file_too_large": (413, "The file is too large"),
    "unsupported_file_type": (415, "The file is neither PDF nor PNG nor JPEG"),
    "body_too_large": (413, "The body is too large"),
    "unknown_host": (421, "The gateway does not have this name"),
    "too_many_requests": (429, "Too many requests of this client"),
    "internal_error": (500, "Internal error"),
    "result_not_recorded": (500, "Done, but the audit log did not store the result"),
    "audit_unavailable": (503, "Nothing was done: the audit log is unavailable"),
    "broker_unavailable": (503, "Kafka did not acknowledge in time"),
    "store_unavailable": (503, "Postgres did not answer"),
    "terra_failed": (502, "Terra did not return a usable response"),
    "terra_upload_failed": (502, "Terra did not accept the lab report"),
    "terra_not_configured": (503, "Terra's credentials are not set"),
    "blobs_unavailable": (503, "Files cannot be stored at the moment"),
    "jwks_unavailable": (503, "The keys that verify users' tokens are not available"),
    "overloaded": (503, "The gateway is overloaded"),
    "not_yet_readable": (503, "Members of an older release could not read it yet"),
    # Codes of the workflow service. Those in capitals are rejections of commands by owners.
    **{code: (refusal.status, refusal.title) for code, refusal in REFUSALS.items()},
    "insufficient_scope": (403, "The key does not have the scope"),
    "key_ended": (409, "The key is no longer accepted"),
    "too_many_keys": (409, "There are too many keys"),
    "too_many_endpoints": (409, "There are too many endpoints"),
    "endpoint_disabled": (409, "The endpoint is disabled"),
    "keys_unavailable": (503, "The API keys are not available"),
    "invalid_body": (400, "The body is not valid for this route"),
    "forbidden": (403, "The caller may not do this"),
    "hook_not_found": (404, "No hook has this URL"),
    "hook_expired": (410, "The hook has expired"),
    "run_not_found": (404, "No run has this id"),
    "ambiguous_run": (409, "Runs of several workflows have this id"),
    "tick_disabled": (404, "Ticks are not enabled"),
    "COMMAND_REFUSED": (409, "The command was refused"),
    "outcome_unknown": (503, "The outcome of the command is unknown"),
    "position_not_reached": (503, "Postgres does not have it yet"),
    "worker_unavailable": (503, "The worker did not answer"),
}

#: Routes that other systems also have; their problems repeat the detail as `message`.
_WITH_MESSAGE: Final = ("/v1/runs/", "/v1/deployments/", "/v1/world/")

#: Codes of Litestar's errors by status; any other 4xx is a bad_request with that status.
_CODE_BY_STATUS: Final[Mapping[int, str]] = {
    400: "invalid_parameter",
    404: "not_found",
    405: "method_not_allowed",
    413: "body_too_large",
}

_CURSOR_CODES: Final = frozenset({"invalid_cursor", "cursor_expired"})
#: Parameters that may hold a cursor, in order of precedence.
_CURSOR_PARAMETERS: Final = ("cursor", "after", "since")

#: Statuses with a Retry-After header.
_RETRYABLE: Final = frozenset(
    {
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.SERVICE_UNAVAILABLE,
    }
)
#: Seconds until the client should retry: about the time that a broker needs to restart.
_RETRY_AFTER_S: Final = "5"


class ProblemDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """A problem document in the OpenAPI description; some codes have further fields."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    request_id: str
    #: The caller's `x-request-id`, if the request got another id.
    claimed_request_id: str | None = None
    reason: str | None = None
    field: str | None = None
    #: The same as `detail`, under /v1/runs, /v1/deployments and /v1/world.
    message: str | None = None


class Problem(Exception):
    """An error that is answered with a problem document.

    Args:
        code: A code of `CODES`, or any code together with `status`.
        detail: What happened.
        status: HTTP status; by default that of the code.
        headers: Further headers of the response.
        body: JSON to answer with instead of the problem document.
        **extensions: Further fields of the document.
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
    """Build a problem document.

    Returns:
        The HTTP status, and the document as JSON.
    """
    # A hook may return a status without a known title.
    unknown = (status or 500, responses.get(status or 500, "The request was refused"))
    known, title = CODES.get(code) or unknown
    HTTP_PROBLEMS.add((code if code in CODES else OTHER,))
    status = status or known
    fields = {
        "type": f"urn:headwater:problem:{code}",
        "title": title,
        "status": status,
        "detail": detail,
        "instance": instance,
        "code": code,
        **({"message": detail} if f"{instance}/".startswith(_WITH_MESSAGE) else {}),
        **(extensions or {}),
        "request_id": request_id,
    }
    return status, msgspec.json.encode(fields)


def retry_headers(status: int) -> dict[str, str]:
    """Return the Retry-After header of a retryable status."""
    return {"retry-after": _RETRY_AFTER_S} if status in _RETRYABLE else {}


def on_problem(request: AnyRequest, error: Problem) -> Response[bytes]:
    """Answer a problem that a route raised."""
    response = _response(
        request, error.code, error.detail, error.status, error.extensions, error.headers
    )
    if error.body is not None:
        response.content, response.media_type = error.body, "application/json"
    return response


def on_headwater_error(request: AnyRequest, error: HeadwaterError) -> Response[bytes]:
    """Answer an error of Headwater by its code; an error without a code in `CODES` is a bug."""
    # Postgres rejects only values that came in a parameter, for example one with a NUL character.
    code = "invalid_parameter" if error.code == "record_refused" else error.code
    if code not in CODES:
        return on_unexpected(request, error)
    field = {"field": _cursor_of(request)} if code in _CURSOR_CODES else None
    return _response(request, code, error.message, extensions=field)


def _cursor_of(request: AnyRequest) -> str:
    """Return the name of the parameter that holds the cursor of a request."""
    return next(
        (name for name in _CURSOR_PARAMETERS if name in request.query_params), _CURSOR_PARAMETERS[0]
    )


def on_litestar_error(request: AnyRequest, error: HTTPException) -> Response[bytes]:
    """Answer an error of Litestar."""
    status = error.status_code
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return on_unexpected(request, error)
    code = _CODE_BY_STATUS.get(status, "bad_request")
    extensions = _missing(error.detail) or _fields(request, error.extra)
    lowered = {name.lower(): value for name, value in (error.headers or {}).items()}
    headers = {name: value for name, value in lowered.items() if name == "allow"}
    return _response(request, code, _detail(error, extensions), status, extensions, headers)


def on_unexpected(request: AnyRequest, error: Exception) -> Response[bytes]:
    """Answer an unexpected error: the traceback is logged, the caller gets the request id."""
    path = logged_path(request.scope["path"])
    fields = {"request_id": request_id_of(request.scope)}
    _LOG.error("%s %s failed", request.method, path, exc_info=error, extra=fields)
    return _response(request, "internal_error", "The failure is logged under this request's id.")


HANDLERS: Final[ExceptionHandlersMap] = {
    Problem: on_problem,
    HeadwaterError: on_headwater_error,
    HTTPException: on_litestar_error,
    Exception: on_unexpected,
}


_MISSING: Final = re.compile(r"Missing required (\w+) parameter '(.+?)'")
#: Litestar's name of a body, and its whole message about a missing one.
_BODY: Final = "data"


def _missing(detail: str) -> dict[str, Any] | None:
    """Return the fields of a missing parameter, which Litestar names only in its message."""
    match = _MISSING.match(detail)
    if match is None:
        return None
    error = {"field": match[2], "detail": f"expected this {match[1]} parameter, found none"}
    return {"field": error["field"], "errors": [error]}


def _fields(request: AnyRequest, extra: object) -> dict[str, Any] | None:
    """Return the fields of parameters that Litestar rejected."""
    if not isinstance(extra, list) or not extra:
        return None
    errors = [
        _parameter_error(request, str(item.get("key")), str(item.get("message"))) for item in extra
    ]
    return {"field": errors[0]["field"], "errors": errors}


def _parameter_error(request: AnyRequest, key: str, message: str) -> dict[str, str]:
    """Translate Litestar's error, which names a parameter of the handler, for the caller."""
    if key == _BODY and message == repr(_BODY):
        return {"field": "body", "detail": "expected a JSON object, found nothing"}
    definition = _parameter(request, key)
    if definition is None or not isinstance(definition.kwarg_definition, ParameterKwarg):
        return {"field": key, "detail": message}
    name, message = definition.kwarg_definition.name or key, with_descriptions(message)
    kinds = [field.annotation for field in (definition, *definition.inner_types)]
    enums = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Enum)]
    choices = [str(member.value) for kind in enums for member in kind]
    if choices and name in request.query_params:
        value = request.query_params[name]
        message = f"expected one of {', '.join(choices)}, found {value[:_SHOWN_CHARS]!r}"
    return {"field": name, "detail": message}


def _parameter(request: AnyRequest, key: str) -> FieldDefinition | None:
    handler = request.route_handler
    signatures = [handler.parsed_fn_signature]
    signatures += [
        dependency.parsed_fn_signature for dependency in handler.resolve_dependencies().values()
    ]
    return next(
        (signature.parameters[key] for signature in signatures if key in signature.parameters), None
    )


def _detail(error: HTTPException, fields: Mapping[str, Any] | None) -> str:
    if error.status_code == HTTPStatus.NOT_FOUND:
        return "No route has this path; /schema lists those that exist."
    if fields is None:
        return error.detail
    return "; ".join(f"{error['field']}: {error['detail']}" for error in fields["errors"])


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
        instance=displayable_path(request.scope["path"]),
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
