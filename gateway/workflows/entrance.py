"""The way in: who may pass, where to, and with what body."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias, cast

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.datastructures import Headers
from litestar.handlers import BaseRouteHandler
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
from headwater.gateway.http.keys import admit
from headwater.gateway.http.problems import Problem
from headwater.gateway.workflows import bodies
from headwater.gateway.workflows.authorization import Gatekeeper, Policy, RequestContext
from headwater.gateway.workflows.parameters import INSTANCE, WORKFLOW
from headwater.processors.runs.limits import USUAL
from headwater.schemas.history import Limits
from headwater.streams.authoring.runtime import Runtime

AnyConnection: TypeAlias = ASGIConnection[Any, Any, Any, Any]

#: Policies whose hooks are shown the body, so the handler asks them when it has it.
_WITH_BODY: Final = frozenset({Policy.CREATE, Policy.SEND_EVENT, Policy.WORK})


#: Of a handler that learns which workflow it is about, and then asks the hooks itself.
NAMED_LATER: Final = "named_later"


class BodyRequest(Request[Any, Any, Any]):
    """A request whose body is read by the struct that its handler takes."""

    limits: ClassVar[Limits] = USUAL

    @override
    async def json(self) -> Any:
        field = self.route_handler.parsed_data_field
        assert field is not None  # noqa: S101 (only then it is called)
        return bodies.read(field.annotation, await self.body(), self.limits)


def requests_within(limits: Limits) -> type[BodyRequest]:
    """Requests whose bodies are held to limits."""
    return type("BodyRequestWithin", (BodyRequest,), {"limits": limits})


class BodyKind(NamedTuple):
    """What bodies are: their type, which content-types may say so, and what stands for none."""

    media_type: str
    named: Callable[[str | None], bool]
    empty: bytes


JSON: Final = BodyKind("application/json", bodies.is_json, b"{}")


class LimitedBodies(ASGIMiddleware):
    """Reads bodies within limits; they count against what the gateway holds until the answer."""

    def __init__(
        self, reader: BodyReader, peer_of: Callable[[Scope], str], kind: BodyKind = JSON
    ) -> None:
        self._reader = reader
        self._peer_of = peer_of
        self._kind = kind

    def of(self, kind: BodyKind) -> "LimitedBodies":
        """The same limits, for bodies of another kind."""
        return LimitedBodies(self._reader, self._peer_of, kind)

    @override
    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        hold = self._reader.hold(self._peer_of(scope))
        begun = False

        async def whole() -> HTTPReceiveMessage:
            nonlocal begun
            if begun:
                return cast("HTTPReceiveMessage", await receive())
            begun = True
            body = await self._read(Headers.from_scope(scope), receive, hold)
            return HTTPRequestEvent(type="http.request", body=body, more_body=False)

        try:
            await next_app(scope, whole, send)
        finally:
            hold.release()

    async def _read(self, headers: Headers, receive: Receive, hold: Hold) -> bytes:
        """Reads a body.

        Errors: Problem.
        """
        length = headers.get("content-length", "")
        found = await self._reader.read(receive, int(length) if length.isdecimal() else None, hold)
        if isinstance(found, Refusal):
            await self._reader.drain(receive, hold)
            raise Problem(found.code, found.detail)
        named = headers.get("content-type")
        if found and not self._kind.named(named):
            raise Problem(
                "invalid_body",
                f"content-type: expected {self._kind.media_type}, found {(named or '')[:60]!r}",
                field="content-type",
            )
        return found or self._kind.empty


class Entrance:
    """Asks the hooks, before anything of a request is looked at any further."""

    def __init__(self, gatekeeper: Gatekeeper, runtime: Runtime) -> None:
        self._gatekeeper = gatekeeper
        self._runtime = runtime

    async def guard(self, connection: AnyConnection, handler: BaseRouteHandler) -> None:
        """Lets requests in; a guard of Litestar's.

        Errors: Problem, here and in all below.
        """
        if isinstance(connection, Request) and connection.method == "OPTIONS":
            return  # It tells which methods a path takes, as the description does to everybody.
        context = self.context_of(connection, handler)
        admit(connection.scope, await self._gatekeeper.admit(context))
        if context.policy not in _WITH_BODY and not handler.opt.get(NAMED_LATER):
            await self.allow(context)

    async def allow(self, context: RequestContext, body: Callable[[], Any] | None = None) -> None:
        """Asks the hook of the context's policy; the body is made if there is one to see it."""
        if self._gatekeeper.has_hook(context.policy):
            await self._gatekeeper.allow(replace(context, body=body and body()))

    def context_of(self, connection: AnyConnection, handler: BaseRouteHandler) -> RequestContext:
        """What hooks are told of a request."""
        return RequestContext(
            policy=handler.opt["policy"],
            workflow_name=connection.path_params.get(WORKFLOW),
            instance_id=connection.path_params.get(INSTANCE, handler.opt.get(INSTANCE)),
            headers=connection.headers,
            runtime=self._runtime,
        )
