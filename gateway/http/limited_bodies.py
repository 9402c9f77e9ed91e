"""Bodies within the limit of their route, and read as JSON without blocking the event loop.

A route declares what its body holds (`body=BodySize.PARAMS` in its decorator); one that declares
nothing takes `BodySize.SMALL`. A longer body is refused before anything of it is parsed.
"""

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum, auto
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, cast

from litestar import Request
from litestar.datastructures import Headers
from litestar.middleware import ASGIMiddleware
from litestar.types import (
    ASGIApp,
    HTTPReceiveMessage,
    HTTPRequestEvent,
    Receive,
    Scope,
    Send,
)
from typing_extensions import override

from headwater.gateway.http.bodies import BodyReader
from headwater.gateway.http.budget import Hold, Refusal
from headwater.gateway.http.json_checks import SMALL_BYTES
from headwater.gateway.http.problems import Problem
from headwater.processors.runs.limits import BATCH_MAX, FAILURE_MESSAGE_MAX, VALUE_BYTES_TOP
from headwater.schemas.history import Limits

T = TypeVar("T")

#: Bytes of a body beside the values of authors: names, labels, texts for people, whitespace.
ENVELOPE_BYTES: Final = 64 * 1024
#: A run holds its definition, in one record with all that it begins with.
DEFINITION_BYTES_MAX: Final = 1024 * 1024
#: Ids of deliveries in one order, each of at most 256 characters.
_IDS_BYTES_MAX: Final = 3 * 1024 * 1024
#: Positions of dead letters in one order, a thousand.
_POSITIONS_BYTES_MAX: Final = 256 * 1024

#: The option of a route that declares the size of its body.
BODY: Final = "body"


class BodySize(Enum):
    """What a body holds, which decides how large it may be."""

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
        """Return how many bytes a body may have.

        Args:
            limits: Limits of the values of authors.
            most: What no body exceeds, in bytes.
        """
        params = limits.max_params_bytes + ENVELOPE_BYTES
        wanted = {
            BodySize.SMALL: ENVELOPE_BYTES,
            BodySize.PARAMS: params,
            BodySize.PARAMS_OF_MANY: BATCH_MAX * params,
            BodySize.EVENT: limits.max_event_bytes + params,
            BodySize.VALUE: VALUE_BYTES_TOP + ENVELOPE_BYTES,
            # Each character may be written as an escape of six bytes.
            BodySize.FAILURE: 6 * FAILURE_MESSAGE_MAX + ENVELOPE_BYTES,
            BodySize.DEFINITION: DEFINITION_BYTES_MAX,
            BodySize.IDS: _IDS_BYTES_MAX,
            BodySize.POSITIONS: _POSITIONS_BYTES_MAX,
            BodySize.ARTIFACT: most,
        }
        return min(wanted[self], most)


class BodyKind(NamedTuple):
    """What bodies are: their type, which content-types may say so, and what stands for none."""

    media_type: str
    named: Callable[[str | None], bool]
    empty: bytes


def is_json(content_type: str | None) -> bool:
    """Whether a body may be read as JSON in UTF-8; one that does not say what it is may."""
    if content_type is None:
        return True
    kind, *parameters = (part.strip().lower() for part in content_type.split(";"))
    charsets = [part[8:].strip('"') for part in parameters if part.startswith("charset=")]
    named = kind == "application/json" or re.fullmatch(r"application/[\w.-]+\+json", kind)
    return bool(named) and all(charset in ("utf-8", "utf8") for charset in charsets)


JSON: Final = BodyKind("application/json", is_json, b"{}")
#: Of routes that take JSON whatever it is called, and where no body is not an empty one.
ANY_JSON: Final = BodyKind("application/json", lambda _: True, b"")


class LimitedBodies(ASGIMiddleware):
    """Reads bodies within limits; they count against what the gateway holds until the answer."""

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

    def of(self, kind: BodyKind) -> "LimitedBodies":
        """The same limits, for bodies of another kind."""
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
        """Reads a body.

        Errors: Problem.
        """
        length = length_of(headers.get("content-length", ""))
        found = await reader.read(receive, length, hold)
        if isinstance(found, Refusal):
            await reader.drain(receive, hold)
            raise Problem(found.code, found.detail)
        named = headers.get("content-type")
        if found and not self._kind.named(named):
            raise Problem(
                "invalid_body",
                f"content-type: expected {self._kind.media_type}, found {(named or '')[:60]!r}",
                field="content-type",
            )
        return found or self._kind.empty


class JsonRequest(Request[Any, Any, Any]):
    """A request whose body is read by the struct that its handler takes."""

    def read_body(self, kind: type[Any], body: bytes) -> Any:  # noqa: ANN401 (of that kind)
        """Read a body as a struct; may run in another thread.

        Raises:
            Problem: It is not as the struct says.
        """
        raise NotImplementedError

    @override
    async def json(self) -> Any:
        field = self.route_handler.parsed_data_field
        assert field is not None  # noqa: S101 (only then it is called)
        body = await self.body()
        return await aside(partial(self.read_body, field.annotation, body), len(body))


#: One thread: at most half of the interpreter's time goes to large bodies, whoever sends how many.
_PARSER: Final = ThreadPoolExecutor(1, thread_name_prefix="headwater-json")


async def aside(work: Callable[[], T], size: int) -> T:
    """Do work on so many bytes of JSON; beside the event loop if there are many.

    Args:
        work: Takes at most some milliseconds for `SMALL_BYTES`.
        size: Bytes of what it works on.
    """
    if size <= SMALL_BYTES:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_PARSER, work)


#: Digits of a length that may be read: of more, the server refuses the request, or it is not true.
_LENGTH: Final = re.compile("[0-9]{1,19}")


def length_of(text: str) -> int | None:
    """Read the header Content-Length; None if it says no number that can be read."""
    return int(text) if _LENGTH.fullmatch(text) else None
