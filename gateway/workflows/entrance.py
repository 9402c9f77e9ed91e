"""The way in: who may pass, where to, and with what body."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Final, TypeAlias

from litestar import Request

from headwater.gateway.http.bodies import BodyReader, Hold, Refusal
from headwater.gateway.http.problems import Problem
from headwater.gateway.workflows.authorization import Gatekeeper, Policy, RequestContext
from headwater.gateway.workflows.bodies import is_json, wrong_type
from headwater.gateway.workflows.parameters import Query

AnyRequest: TypeAlias = Request[Any, Any, Any]

#: How much more is read of a body that is refused, and for how many seconds.
_LINGER_BYTES: Final = 32 * 1024 * 1024
_LINGER_S: Final = 2.0

#: Of routes about a workflow or an instance: parameters of their paths. A path that spells an
#: instance out has it among the handler's options.
WORKFLOW: Final = "workflowName"
INSTANCE: Final = "instanceId"


class Entrance:
    """Lets requests in."""

    def __init__(self, gatekeeper: Gatekeeper, bodies: BodyReader) -> None:
        self._gatekeeper = gatekeeper
        self._bodies = bodies

    async def admit(self, request: AnyRequest, policy: Policy) -> RequestContext:
        """Asks the hook of every route; what it stops has not been looked at any further.

        Errors: Problem, here and in all below.
        """
        spelled_out = request.route_handler.opt.get(INSTANCE)
        context = RequestContext(
            policy=policy,
            workflow_name=request.path_params.get(WORKFLOW),
            instance_id=request.path_params.get(INSTANCE, spelled_out),
            headers=request.headers,
        )
        await self._gatekeeper.admit(context)
        return context

    async def allow(self, context: RequestContext, body: Callable[[], Any] | None = None) -> None:
        """Asks the hook of the context's policy; the body is made if there is one to see it."""
        if self._gatekeeper.has_hook(context.policy):
            await self._gatekeeper.allow(replace(context, body=body and body()))

    async def enter(self, request: AnyRequest, policy: Policy) -> RequestContext:
        """Asks both."""
        context = await self.admit(request, policy)
        await self.allow(context)
        return context

    @asynccontextmanager
    async def body(self, request: AnyRequest) -> AsyncIterator[bytes]:
        """The body; it counts against what the gateway holds until the end of the block."""
        length = request.headers.get("content-length", "")
        hold = Hold(self._bodies)
        try:
            found = await self._bodies.read(
                request.receive, int(length) if length.isdigit() else None, hold
            )
            if isinstance(found, Refusal):
                await _linger(request)
                raise Problem(found.code, found.detail)
            kind = request.headers.get("content-type")
            if found and not is_json(kind):
                wrong_type(kind or "")
            yield found
        finally:
            hold.release()


async def _linger(request: AnyRequest) -> None:
    """Reads on for a while, and keeps nothing: who is still sending would not hear the answer."""
    left = _LINGER_BYTES
    with suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_S):
            while left > 0:
                message: Any = await request.receive()
                left -= len(message.get("body", b"")) or 1
                if not message.get("more_body", False):
                    return


def query_of(request: AnyRequest) -> Query:
    """What a request asks, every value of every name."""
    return request.query_params.dict()
