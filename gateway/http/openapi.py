"""What the types of routes do not say: which key they ask for, and what goes wrong."""

from dataclasses import dataclass
from typing import Final

from litestar.openapi import ResponseSpec
from litestar.openapi.spec import OpenAPIMediaType, Operation, RequestBody, Schema, SecurityScheme

from headwater.gateway.http.problems import CODES, MEDIA_TYPE, ProblemDocument

READ_KEY: Final = "readKey"
ADMIN_KEY: Final = "adminKey"
USER_TOKEN: Final = "userToken"  # noqa: S105 (the name of a scheme)

SECURITY: Final = {
    READ_KEY: SecurityScheme(type="http", scheme="bearer", description="HEADWATER_READ_KEY."),
    USER_TOKEN: SecurityScheme(
        type="http",
        scheme="bearer",
        bearer_format="JWT",
        description="A token of the issuer whose keys HEADWATER_JWKS names; `sub` is the user.",
    ),
    ADMIN_KEY: SecurityScheme(
        type="apiKey",
        name="x-admin-key",
        security_scheme_in="header",
        description="HEADWATER_ADMIN_KEY.",
    ),
}


@dataclass
class OptionalBody(Operation):
    """An operation whose body may be left out, as all of its fields may."""

    def __post_init__(self) -> None:
        if isinstance(self.request_body, RequestBody):
            self.request_body.required = False


def raw_body(media_type: str, schema: Schema) -> type[Operation]:
    """An operation whose body is read as it comes, so that no type of Litestar's describes it."""
    content = {media_type: OpenAPIMediaType(schema=schema)}

    @dataclass
    class WithRawBody(Operation):
        def __post_init__(self) -> None:
            self.request_body = RequestBody(content=content, required=True)

    return WithRawBody


#: Problems that every route with a key has.
_OF_ALL: Final = (
    "invalid_parameter",
    "unknown_parameter",
    "unauthorized",
    "too_many_requests",
    "internal_error",
)


def problem_responses(*codes: str) -> dict[int, ResponseSpec]:
    """The problems of a route with a key, by status: these, and those of all of them."""
    return responses_of(*_OF_ALL, *codes)


def responses_of(*codes: str) -> dict[int, ResponseSpec]:
    """Problems by status, as a route describes them."""
    by_status: dict[int, list[str]] = {}
    for code in dict.fromkeys(codes):
        by_status.setdefault(CODES[code][0], []).append(code)
    return {
        status: ResponseSpec(
            ProblemDocument,
            False,
            "; ".join(f"{code}: {CODES[code][1]}" for code in of),
            MEDIA_TYPE,
        )
        for status, of in sorted(by_status.items())
    }
