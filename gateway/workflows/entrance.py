"""The way in: who may pass, where to, and with what body."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Final, TypeAlias

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from typing_extensions import override

from headwater.gateway.http.auditing import note
from headwater.gateway.http.keys import admit, presented_key
from headwater.gateway.http.limited_bodies import JsonRequest
from headwater.gateway.http.problems import Problem
from headwater.gateway.http.wrong_keys import check_key
from headwater.gateway.workflows import bodies
from headwater.gateway.workflows.authorization import (
    Admitted,
    Gatekeeper,
    Policy,
    RequestContext,
)
from headwater.gateway.workflows.parameters import INSTANCE, WORKFLOW
from headwater.processors.runs.limits import USUAL
from headwater.schemas.history import Limits
from headwater.streams.authoring.runtime import Runtime

AnyConnection: TypeAlias = ASGIConnection[Any, Any, Any, Any]

#: Policies whose hooks are shown the body, so the handler asks them when it has it.
_WITH_BODY: Final = frozenset({Policy.CREATE, Policy.SEND_EVENT, Policy.WORK})


#: Where a request's state keeps the principal that a hook has named.
_PRINCIPAL: Final = "headwater_principal"
#: Of a handler that learns which workflow it is about, and then asks the hooks itself.
NAMED_LATER: Final = "named_later"


class BodyRequest(JsonRequest):
    """A request whose body is read by the struct that its handler takes."""

    limits: ClassVar[Limits] = USUAL

    @override
    def read_body(self, kind: type[Any], body: bytes) -> Any:
        return bodies.read(kind, body, self.limits)


def requests_within(limits: Limits) -> type[BodyRequest]:
    """Requests whose bodies are held to limits."""
    return type("BodyRequestWithin", (BodyRequest,), {"limits": limits})


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
        note(connection, run_id=context.instance_id, workflow=context.workflow_name)
        admitted = await self._admitted(connection, context)
        admit(connection.scope, admitted.key_id, admitted.scope)
        connection.scope["state"][_PRINCIPAL] = admitted.principal
        context = replace(context, principal=admitted.principal)
        if context.policy not in _WITH_BODY and not handler.opt.get(NAMED_LATER):
            await self.allow(context)

    async def _admitted(self, connection: AnyConnection, context: RequestContext) -> Admitted:
        """Ask the gatekeeper, and note whether a key was right."""
        if self._gatekeeper.has_own_guard(context.policy):
            return await self._gatekeeper.admit(context)
        kind = "tick" if context.policy is Policy.TICK else "workflow"
        brought = presented_key(connection.headers)
        try:
            admitted = await self._gatekeeper.admit(context)
        except Problem:
            check_key(connection, kind, brought, right=False)
            raise
        check_key(connection, kind, brought, right=True)
        return admitted

    async def allow(self, context: RequestContext, body: Callable[[], Any] | None = None) -> None:
        """Asks the hook of the context's policy; the body is made if there is one to see it."""
        if self._gatekeeper.has_hook(context.policy):
            await self._gatekeeper.allow(replace(context, body=body and body()))

    async def allows(self, context: RequestContext) -> bool:
        """Whether the hook of the context's policy lets a request pass.

        Raises:
            Problem: The hook is broken.
        """
        try:
            await self.allow(context)
        except Problem as problem:
            if problem.status is None:  # Only what a hook denies has a status of its own.
                raise
            return False
        return True

    def context_of(self, connection: AnyConnection, handler: BaseRouteHandler) -> RequestContext:
        """What hooks are told of a request."""
        return RequestContext(
            policy=handler.opt["policy"],
            workflow_name=connection.path_params.get(WORKFLOW),
            instance_id=connection.path_params.get(INSTANCE, handler.opt.get(INSTANCE)),
            headers=connection.headers,
            runtime=self._runtime,
            principal=connection.scope["state"].get(_PRINCIPAL),
        )
