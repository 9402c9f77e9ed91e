"""OpenAPI: security schemes, problem responses and bodies that types do not describe."""

from dataclasses import dataclass
from typing import Final

from litestar.openapi import ResponseSpec
from litestar.openapi.spec import OpenAPIMediaType, Operation, RequestBody, Schema, SecurityScheme

from headwater.gateway.api.problems import CODES, MEDIA_TYPE, ProblemDocument

READ_KEY: Final = "readKey"
ADMIN_KEY: Final = "adminKey"
API_KEY: Final = "apiKey"
USER_TOKEN: Final = "userToken"  # noqa: S105 (the name of a scheme)

SECURITY: Final = {
    READ_KEY: SecurityScheme(type="http", scheme="bearer", description="HEADWATER_READ_KEY."),
    USER_TOKEN: SecurityScheme(
        type="http",
        scheme="bearer",
        bearer_format="JWT",
        description="A token signed with a key of HEADWATER_JWKS; `sub` is the user.",
    ),
    API_KEY: SecurityScheme(
        type="http",
        scheme="bearer",
        description="An API key with the scope of the route; also in the header x-api-key.",
    ),
    ADMIN_KEY: SecurityScheme(
        type="apiKey",
        name="x-admin-key",
        security_scheme_in="header",
        description="HEADWATER_ADMIN_KEY; also as Authorization: Bearer.",
    ),
}


@dataclass
class OptionalBody(Operation):
    """An operation with an optional body."""

    def __post_init__(self) -> None:
        if isinstance(self.request_body, RequestBody):
            self.request_body.required = False


def raw_body(media_type: str, schema: Schema) -> type[Operation]:
    """Return an operation with a body that the handler reads, described by a schema."""
    content = {media_type: OpenAPIMediaType(schema=schema)}

    @dataclass
    class WithRawBody(Operation):
        def __post_init__(self) -> None:
            self.request_body = RequestBody(content=content, required=True)

    return WithRawBody


#: Problems of every route with a key.
_COMMON: Final = (
    "invalid_parameter",
    "unknown_parameter",
    "unauthorized",
    "too_many_requests",
    "internal_error",
)


def problem_responses(*codes: str) -> dict[int, ResponseSpec]:
    """Return the problems of a route with a key by status, including the common ones."""
    return responses_of(*_COMMON, *codes)


def responses_of(*codes: str) -> dict[int, ResponseSpec]:
    """Return problem responses by status."""
    by_status: dict[int, list[str]] = {}
    for code in dict.fromkeys(codes):
        by_status.setdefault(CODES[code][0], []).append(code)
    return {
        status: ResponseSpec(
            ProblemDocument,
            False,
            "; ".join(f"{code}: {CODES[code][1]}" for code in status_codes),
            MEDIA_TYPE,
        )
        for status, status_codes in sorted(by_status.items())
    }
