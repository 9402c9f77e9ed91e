"""Check parameters of requests: unknown and repeated ones, integers, timestamps, entity tags."""

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import cache
from typing import Annotated, Final, NamedTuple, get_args

from litestar.handlers import BaseRouteHandler
from litestar.params import HeaderParameter, PathParameter, QueryParameter

from headwater.gateway.api.problems import Problem
from headwater.gateway.api.request_scope import AnyConnection, AsyncGuard
from headwater.processors.input_texts import read_moment
from headwater.projections.postgres.connections import PAGE_MAX

#: Parameters of listings: rows of a page, and the cursor of the previous one.
Limit = Annotated[int, QueryParameter(ge=1, le=PAGE_MAX, description="Maximum number of results.")]
LIMIT_DEFAULT: Final = 50
Cursor = Annotated[str | None, QueryParameter(description="Cursor of the previous page.")]

_WHOLE: Final = re.compile(r"-?[0-9]+")
_SHOWN_CHARS: Final = 60
#: Bytes of a value. An entry of a Postgres index has at most 2,704 bytes, so a longer value cannot
#: match anything. Parameters that hold several values have their own limits.
VALUE_BYTES_MAX: Final = 2_048
_LIST_VALUED: Final = frozenset({"min_position"})
#: How often a repeatable parameter may occur.
REPEATS_MAX: Final = 100


class _Accepted(NamedTuple):
    """Parameters that a handler accepts."""

    #: By name, whether a query parameter may be repeated.
    queries: dict[str, bool]
    numbers_in_queries: list[str]
    numbers_in_headers: list[str]


def with_checked_parameters(authenticate: AsyncGuard) -> AsyncGuard:
    """Return a guard that authenticates, then rejects parameters that the handler does not accept.

    It is one guard, because Litestar copies the handler for each guard and request.

    Args:
        authenticate: The guard that authenticates the caller.
    """

    async def guard(connection: AnyConnection, handler: BaseRouteHandler) -> None:
        await authenticate(connection, handler)
        check_parameters(connection)

    return guard


def check_parameters(connection: AnyConnection) -> None:
    """Reject parameters that the handler of a request does not accept.

    Litestar alone ignores unknown parameters, and accepts 1e2 and 1.0 as integers.

    Raises:
        Problem: A parameter is unknown, repeated, too long or not a whole number.
    """
    # Not the handler that a guard gets: that is a copy for each request.
    accepted = _accepted(connection.route_handler)
    for name, values in connection.query_params.dict().items():
        if name not in accepted.queries:
            known = ", ".join(accepted.queries) or "none"
            raise Problem(
                "unknown_parameter",
                f"expected parameters of {known}, found {name[:_SHOWN_CHARS]!r}",
                field=name[:_SHOWN_CHARS],
            )
        if len(values) > 1 and not accepted.queries[name]:
            raise _invalid(name, f"it once, found it {len(values)} times")
        if len(values) > REPEATS_MAX:
            raise _invalid(name, f"it at most {REPEATS_MAX} times, found it {len(values)} times")
        if name not in _LIST_VALUED:
            _check_sizes(name, values)
    for name, text in _numbers(connection, accepted):
        if not _WHOLE.fullmatch(text):
            raise _invalid(name, f"a whole number in digits, found {text[:_SHOWN_CHARS]!r}")


def _check_sizes(name: str, values: Iterable[str]) -> None:
    for value in values:
        # A character has at most four bytes; lone surrogates are rejected elsewhere.
        size = len(value.encode(errors="replace")) if len(value) * 4 > VALUE_BYTES_MAX else 0
        if size > VALUE_BYTES_MAX:
            raise _invalid(name, f"at most {VALUE_BYTES_MAX} bytes, found {size}")


def _numbers(connection: AnyConnection, accepted: _Accepted) -> Iterator[tuple[str, str]]:
    for name in accepted.numbers_in_queries:
        for text in connection.query_params.getall(name, []):
            yield name, text
    for name in accepted.numbers_in_headers:
        if name in connection.headers:
            yield name, connection.headers[name]


def _invalid(name: str, expected: str) -> Problem:
    return Problem("invalid_parameter", f"{name}: expected {expected}", field=name)


@cache
def _accepted(handler: BaseRouteHandler) -> _Accepted:
    signatures = [handler.parsed_fn_signature]
    signatures += [
        dependency.parsed_fn_signature for dependency in handler.resolve_dependencies().values()
    ]
    accepted = _Accepted({}, [], [])
    for field in (field for signature in signatures for field in signature.parameters.values()):
        definition = field.kwarg_definition
        is_number = int in (field.annotation, *get_args(field.annotation))
        if isinstance(definition, QueryParameter):
            name, types = definition.name or field.name, (field, *field.inner_types)
            accepted.queries[name] = any(type_.is_non_string_collection for type_ in types)
            accepted.numbers_in_queries.extend([name] if is_number else ())
        elif isinstance(definition, HeaderParameter) and is_number:
            accepted.numbers_in_headers.append(definition.name or field.name)
    return accepted


# -- timestamps

#: A plus sign that was not escaped arrives as a space.
_UNESCAPED_PLUS: Final = re.compile(r" (?=\d\d:\d\d$)")
_MOMENT_SHOWN_CHARS: Final = 60


def moment_of(field: str, text: str | None) -> datetime | None:
    """Parse a timestamp in a parameter or a field of a body; None stays None.

    Raises:
        Problem: It is not RFC 3339 with an offset.
    """
    if text is None:
        return None
    moment = read_moment(_UNESCAPED_PLUS.sub("+", text))
    if moment is None:
        detail = (
            f"{field}: expected RFC 3339 with an offset, for example 2026-07-01T00:00:00Z, found "
            f"{text[:_MOMENT_SHOWN_CHARS]!r}"
        )
        raise Problem("invalid_parameter", detail, field=field)
    return moment


# -- entity tags

_TAG_SHOWN_CHARS = 80


def tag_of(if_match: str | None, form: re.Pattern[str], expected: str) -> str:
    """Return the entity tag in the header If-Match.

    Args:
        if_match: The header's value.
        form: Valid values; its first group is the tag.
        expected: Description of valid values, for the error.

    Returns:
        The tag, or "" without a header.

    Raises:
        Problem: The value is not valid.
    """
    if if_match is None:
        return ""
    match = form.fullmatch(if_match.strip())
    if match is None:
        raise Problem(
            "invalid_parameter",
            f"If-Match: expected {expected}, found {if_match[:_TAG_SHOWN_CHARS]!r}",
            field="If-Match",
        )
    return match[1]


# -- user ids

_USER_BYTES: Final = 512
UserId = Annotated[str, PathParameter(description="The user's id, as in deliveries.")]


def check_user_id(user_id: str) -> None:
    """Reject an id that no user can have.

    Raises:
        Problem: The id is too long, has a NUL, or is not valid Unicode.
    """
    try:
        fits = "\0" not in user_id and len(user_id.encode()) <= _USER_BYTES
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise Problem(
            "invalid_parameter",
            f"user_id: expected a text of at most {_USER_BYTES} bytes without NUL, found "
            f"{user_id[:60]!a}",
            field="user_id",
        )
