"""Read JSON bodies within the limit of their route, and decode them into structs.

A route declares the kind of its body (`body=BodySize.PARAMS` in its decorator); the default is
`BodySize.SMALL`. A larger body is refused before it is parsed. Every error of decoding becomes a
problem with its path.
"""

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum, auto
from functools import cache, partial
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec
from litestar import Request
from litestar.datastructures import Headers
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, HTTPReceiveMessage, HTTPRequestEvent, Receive, Scope, Send
from msgspec import inspect
from typing_extensions import override

from headwater.gateway.api.body_limits import BodyReader, Hold, Refusal
from headwater.gateway.api.json_checks import SMALL_BYTES, DuplicateName, check_text
from headwater.gateway.api.problems import Problem
from headwater.gateway.settings.patterns import with_descriptions
from headwater.processors.input_texts import TooDeep, text_problem
from headwater.processors.runs.limits import BATCH_MAX, FAILURE_MESSAGE_MAX, VALUE_BYTES_TOP
from headwater.schemas.history import Limits

T = TypeVar("T")

#: Bytes of a body in addition to authors' values: names, labels, messages, whitespace.
ENVELOPE_BYTES: Final = 64 * 1024
#: The first record of a run contains its definition and everything else it starts with.
DEFINITION_BYTES_MAX: Final = 1024 * 1024
#: Ids of deliveries in one request, of at most 256 characters.
_IDS_BYTES_MAX: Final = 3 * 1024 * 1024
#: A thousand positions of dead letters in one request.
_POSITIONS_BYTES_MAX: Final = 256 * 1024

#: Option of a route that declares the size of its body.
BODY: Final = "body"


class BodySize(Enum):
    """Kind of content of a body, which determines its maximum size."""

    SMALL = auto()
    PARAMS = auto()
    PARAMS_OF_MANY = auto()
    EVENT = auto()
    VALUE = auto()
    FAILURE = auto()
    DEFINITION = auto()
    IDS = auto()
    POSITIONS = auto()
    ARTIFACT = auto()

    def bytes_max(self, limits: Limits, most: int) -> int:
        """Return the maximum size of a body in bytes.

        Args:
            limits: Limits of authors' values.
            most: Upper bound for every body, in bytes.
        """
        params = limits.max_params_bytes + ENVELOPE_BYTES
        sizes = {
            BodySize.SMALL: ENVELOPE_BYTES,
            BodySize.PARAMS: params,
            BodySize.PARAMS_OF_MANY: BATCH_MAX * params,
            BodySize.EVENT: limits.max_event_bytes + params,
            BodySize.VALUE: VALUE_BYTES_TOP + ENVELOPE_BYTES,
            # A character may be written as an escape of six bytes.
            BodySize.FAILURE: 6 * FAILURE_MESSAGE_MAX + ENVELOPE_BYTES,
            BodySize.DEFINITION: DEFINITION_BYTES_MAX,
            BodySize.IDS: _IDS_BYTES_MAX,
            BodySize.POSITIONS: _POSITIONS_BYTES_MAX,
            BodySize.ARTIFACT: most,
        }
        return min(sizes[self], most)


class BodyKind(NamedTuple):
    """Media type of bodies.

    Attributes:
        media_type: Name of the type.
        accepts: Returns whether a Content-Type names it.
        empty: Used instead of an empty body.
    """

    media_type: str
    accepts: Callable[[str | None], bool]
    empty: bytes


def is_json(content_type: str | None) -> bool:
    """Whether a body may be read as JSON in UTF-8; true without a Content-Type."""
    if content_type is None:
        return True
    kind, *parameters = (part.strip().lower() for part in content_type.split(";"))
    charsets = [part[8:].strip('"') for part in parameters if part.startswith("charset=")]
    named = kind == "application/json" or re.fullmatch(r"application/[\w.-]+\+json", kind)
    return bool(named) and all(charset in ("utf-8", "utf8") for charset in charsets)


JSON: Final = BodyKind("application/json", is_json, b"{}")
#: For routes that accept JSON with any Content-Type, and reject a missing body.
ANY_JSON: Final = BodyKind("application/json", lambda _: True, b"")


class LimitedBodies(ASGIMiddleware):
    """Middleware that reads bodies within limits; they count in the budget until the response."""

    def __init__(
        self,
        reader: BodyReader,
        peer_of: Callable[[Scope], str],
        limits: Limits,
        kind: BodyKind = JSON,
    ) -> None:
        self._reader = reader
        self._peer_of = peer_of
        self._limits = limits
        self._kind = kind
        self._readers = {
            size: reader.within(size.bytes_max(limits, reader.max_bytes)) for size in BodySize
        }

    def for_kind(self, kind: BodyKind) -> "LimitedBodies":
        """Return the same limits for another media type."""
        return LimitedBodies(self._reader, self._peer_of, self._limits, kind)

    @override
    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        reader = self._readers[scope["route_handler"].opt.get(BODY, BodySize.SMALL)]
        hold = reader.hold(self._peer_of(scope))
        begun = False

        async def whole() -> HTTPReceiveMessage:
            nonlocal begun
            if begun:
                return cast("HTTPReceiveMessage", await receive())
            begun = True
            body = await self._read(Headers.from_scope(scope), receive, reader, hold)
            return HTTPRequestEvent(type="http.request", body=body, more_body=False)

        try:
            await next_app(scope, whole, send)
        finally:
            hold.release()

    async def _read(
        self, headers: Headers, receive: Receive, reader: BodyReader, hold: Hold
    ) -> bytes:
        """Read a body.

        Raises:
            Problem: It is too large, too slow, incomplete or of another type.
        """
        length = length_of(headers.get("content-length", ""))
        body = await reader.read(receive, length, hold)
        if isinstance(body, Refusal):
            await reader.drain(receive, hold)
            raise Problem(body.code, body.detail)
        content_type = headers.get("content-type")
        if body and not self._kind.accepts(content_type):
            raise Problem(
                "invalid_body",
                f"content-type: expected {self._kind.media_type}, found "
                f"{(content_type or '')[:60]!r}",
                field="content-type",
            )
        return body or self._kind.empty


class JsonRequest(Request[Any, Any, Any]):
    """A request that decodes its body into the struct that the handler declares."""

    def read_body(self, kind: type[Any], body: bytes) -> Any:  # noqa: ANN401 (of that kind)
        """Decode a body into a struct; may run in another thread.

        Raises:
            Problem: The body does not match the struct.
        """
        raise NotImplementedError

    @override
    async def json(self) -> Any:
        field = self.route_handler.parsed_data_field
        assert field is not None  # noqa: S101 (called only for handlers with a body)
        body = await self.body()
        return await run_parser(partial(self.read_body, field.annotation, body), len(body))


#: One thread, so that large bodies take at most half of the interpreter's time.
_PARSER: Final = ThreadPoolExecutor(1, thread_name_prefix="headwater-json")


async def run_parser(work: Callable[[], T], size: int) -> T:
    """Run a function that parses JSON; in a thread if the JSON is large.

    Args:
        work: Takes at most a few milliseconds for `SMALL_BYTES`.
        size: Size of the JSON in bytes.
    """
    if size <= SMALL_BYTES:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_PARSER, work)


#: Digits of a plausible length: the server refuses requests with longer ones.
_LENGTH: Final = re.compile("[0-9]{1,19}")


def length_of(text: str) -> int | None:
    """Parse the header Content-Length; None if it is not a plausible number."""
    return int(text) if _LENGTH.fullmatch(text) else None


# -- decoding

#: An error message of msgspec, with its path.
_ERROR: Final = re.compile(r"(.*?)(?: - at `\$\.?(.*)`)?", re.DOTALL)
_FIELD: Final = re.compile(r"Object (?:contains unknown|missing required) field `(.*)`", re.DOTALL)
_FIELD_SHOWN: Final = 60
_NAMES: Final = re.compile(r"(?<![\[\w])\w+")

#: Code of a body that does not match the schema of its route.
INVALID_BODY: Final = "invalid_body"
#: The same for operator routes, where the body holds the parameters.
INVALID_PARAMETER: Final = "invalid_parameter"

S = TypeVar("S", bound=msgspec.Struct)


class OperatorRequest(JsonRequest):
    """A request of an operator. Its body is decoded into the struct that the handler declares."""

    @override
    def read_body(self, kind: type[Any], body: bytes) -> Any:
        check_json(body, INVALID_PARAMETER)
        return decoded(kind, body, code=INVALID_PARAMETER)


def check_texts(longest: int, **texts: str | None) -> None:
    """Reject texts that cannot match any id or code.

    Args:
        longest: Maximum length in characters.
        **texts: Texts by the name of their field.

    Raises:
        Problem: A text is not valid.
    """
    for field, text in texts.items():
        error = text_problem(field, text, longest)
        if error is not None:
            raise Problem(INVALID_PARAMETER, error, field=field)


def decoded(kind: type[S], part: bytes | msgspec.Raw, at: str = "", code: str = INVALID_BODY) -> S:
    """Decode a part of a body that is known to be valid JSON.

    Args:
        kind: Struct to decode into.
        part: JSON.
        at: Path of the part in the body, a prefix of the paths in errors.
        code: Code of the problem.

    Raises:
        Problem: The part does not match the struct.
    """
    try:
        value: S = _decoder(kind).decode(part)
    except msgspec.ValidationError as error:
        raise _validation_problem(str(error), kind, at, code) from error
    return value


@cache
def _decoder(kind: type[msgspec.Struct]) -> msgspec.json.Decoder[Any]:
    # msgspec takes 10 µs for a number such as 1e308, Python's float 0.1 µs.
    return msgspec.json.Decoder(kind, float_hook=float)


def _validation_problem(message: str, kind: type[msgspec.Struct], at: str, code: str) -> Problem:
    """Translate an error message of msgspec into a problem."""
    match = _ERROR.fullmatch(message)
    what, path = (match[1], match[2] or "") if match else (message, "")
    field = _FIELD.fullmatch(what)
    if field is None:
        return invalid(f"{at}{path}".rstrip(".") or "body", with_descriptions(what), code)
    name = ascii(field[1][:_FIELD_SHOWN])[1:-1]
    detail = what.replace(field[1], name)
    if "unknown" in what:
        fields = ", ".join(_fields(kind, path)) or "no fields"
        detail = f"expected {fields}, found {name}"
    return invalid(at + (f"{path}.{name}" if path else name), detail, code)


def _fields(kind: type[msgspec.Struct], path: str) -> list[str]:
    """Return the field names of the struct at a path, in msgspec's notation of paths."""
    struct = _struct(inspect.type_info(kind))
    for name in _NAMES.findall(path):
        struct = _struct(next(field.type for field in struct.fields if field.encode_name == name))
    return [field.encode_name for field in struct.fields]


def _struct(type_: inspect.Type) -> inspect.StructType:
    """Return the struct in a type: the type itself, or that of a sequence or an optional."""
    match type_:
        case inspect.StructType():
            return type_
        case inspect.Metadata(type=inner) | inspect.VarTupleType(item_type=inner):
            return _struct(inner)
        case inspect.UnionType(types=types):
            return _struct(next(t for t in types if not isinstance(t, inspect.NoneType)))
        case _:
            raise TypeError(f"expected a type with fields, found {type_}")


# --- JSON ----------------------------------------------------------------------------------------


def check_json(body: bytes, code: str = INVALID_BODY) -> None:
    """Reject what is not JSON, or what parsers read differently.

    Duplicate names, NaN, numbers that no float can hold, invalid Unicode and too deep nesting are
    rejected for all callers: the code that processes the value runs far from the sender.

    Raises:
        Problem: The body is not acceptable; its code is `code`.
    """
    try:
        check_text(body)
    except TooDeep as error:
        raise _malformed(str(error), code) from error
    except DuplicateName as error:
        detail = f"expected each name once in an object, found {error} again"
        raise _malformed(detail, code) from error
    except ValueError as error:
        raise _malformed(f"expected JSON in UTF-8, found: {error}", code) from error


def _malformed(detail: str, code: str) -> Problem:
    return Problem(code, detail, field="body")


def invalid(field: str, detail: str, code: str = INVALID_BODY) -> Problem:
    """Return the problem of a body with an error at a field."""
    return Problem(code, f"{field}: {detail}", field=field)
