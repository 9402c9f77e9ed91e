"""Guard of the workflow routes: authenticates, authorizes and audits requests."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Final

from litestar.handlers import BaseRouteHandler
from typing_extensions import override

from headwater.gateway.api.audit import attempt_run, note
from headwater.gateway.api.authentication import admit, caller_in, in_process_caller
from headwater.gateway.api.json_bodies import JsonRequest
from headwater.gateway.api.key_guards import (
    TICKS,
    WORKFLOWS,
    KeyGuard,
    insufficient_scope,
    lists_methods,
    scope_of,
)
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.request_scope import AnyConnection, AnyRequest
from headwater.gateway.api.workflows import bodies
from headwater.gateway.api.workflows.authorization import (
    Authorizer,
    Policy,
    RequestContext,
    caller_of_hook,
)
from headwater.gateway.api.workflows.parameters import INSTANCE, WORKFLOW
from headwater.processors.api_keys import Scope
from headwater.processors.notifications import NOTIFY, REACT
from headwater.processors.queue_messages import DELIVERY
from headwater.processors.runs.limits import BUILTIN_PREFIX, DEFAULT_LIMITS
from headwater.schemas.history import Limits
from headwater.streams.authoring.programs import Runtime
from headwater.streams.code_host.builtin_app import RUNNER

#: Policies with hooks that get the body. The handler calls them once it has read the body.
_WITH_BODY: Final = frozenset({Policy.CREATE, Policy.SEND_EVENT, Policy.WORK})
#: Policies of routes that change instances that exist; others create no instance of Headwater's.
_CHANGES: Final = frozenset({Policy.MANAGE, Policy.SEND_EVENT})

#: Workflows with notifications in their params, which may contain rows of any user.
_WITH_ROWS: Final = frozenset({NOTIFY, REACT})

#: Key of the principal in a request's state.
_PRINCIPAL: Final = "headwater_principal"
#: Option of a handler that authorizes the request itself, once it knows the workflow.
AUTHORIZES_LATER: Final = "authorizes_later"


def is_system_instance(workflow: str, instance_id: str | None) -> bool:
    """Whether an instance carries out an operation of Headwater, such as a wipe or a replay.

    Messages of queues and schedules of apps have built-in workflows, too, but are the callers' own.

    Args:
        workflow: The workflow.
        instance_id: The instance; None for any.
    """
    if not workflow.startswith(BUILTIN_PREFIX) or workflow == DELIVERY:
        return False
    of_app = bool(instance_id) and not str(instance_id).startswith(BUILTIN_PREFIX)
    return not (workflow == RUNNER and of_app)


def require_readable(request: AnyConnection, *workflows: str | None) -> None:
    """Require the scope to read rows of a request for runs that contain rows.

    For routes that know the workflow only after they have read the run.

    Args:
        request: A request that was admitted.
        workflows: Workflows of the runs; None for authors' workflows.

    Raises:
        Problem: The caller may not read rows.
    """
    caller = caller_in(request.scope)
    needs = not _WITH_ROWS.isdisjoint(workflows)
    if needs and caller is not None and Scope.ROWS_READ not in caller.scopes:
        raise insufficient_scope(caller, Scope.ROWS_READ)


async def attempt_change(request: AnyRequest, run_id: str, workflow: str) -> None:
    """Append the `attempted` entry of a request before it changes a run that exists.

    Raises:
        Problem: The caller may not change the run, or the entry was not stored.
    """
    caller = caller_in(request.scope)
    is_system = is_system_instance(workflow, run_id)
    if is_system and caller is not None and Scope.SYSTEM_WRITE not in caller.scopes:
        raise insufficient_scope(caller, Scope.SYSTEM_WRITE)
    require_readable(request, workflow)
    await attempt_run(request, run_id, workflow)


class BodyRequest(JsonRequest):
    """A request that parses its body as the struct that its handler takes."""

    limits: ClassVar[Limits] = DEFAULT_LIMITS

    @override
    def read_body(self, kind: type[Any], body: bytes) -> Any:
        return bodies.read(kind, body, self.limits)


def requests_within(limits: Limits) -> type[BodyRequest]:
    """Return a request class that checks bodies against limits."""
    return type("BodyRequestWithin", (BodyRequest,), {"limits": limits})


class RequestGuard:
    """Authenticates and authorizes requests before they are handled."""

    def __init__(self, authorizer: Authorizer, keys: KeyGuard, runtime: Runtime) -> None:
        self._authorizer = authorizer
        self._keys = keys
        self._runtime = runtime

    async def guard(self, connection: AnyConnection, handler: BaseRouteHandler) -> None:
        """Authenticate and authorize a request; a guard in the sense of Litestar.

        Raises:
            Problem: The request is denied.
        """
        if lists_methods(connection):
            return
        context = self.context_of(connection, handler)
        note(connection, run_id=context.instance_id, workflow=context.workflow_name)
        principal = await self._authenticate(connection, handler, context)
        connection.scope["state"][_PRINCIPAL] = principal
        later = context.policy in _WITH_BODY or handler.opt.get(AUTHORIZES_LATER)
        if self.has_hook(context.policy) and not later:
            await self.authorize(replace(context, principal=principal))

    async def _authenticate(
        self, connection: AnyConnection, handler: BaseRouteHandler, context: RequestContext
    ) -> str | None:
        """Admit the caller, by the hook or by a key; return the principal of the hook, if any.

        A tick, a change of a system instance and a request for instances with rows always require
        a key.
        """
        ticks = context.policy is Policy.TICK
        further = _further_scopes(context, handler)
        by_hook = self._authorizer.authenticates and in_process_caller(connection.scope) is None
        principal = None
        if by_hook:
            principal = await self._authorizer.authenticate(context)
            admit(connection.scope, caller_of_hook(context.headers, principal))
        if ticks or further or not by_hook:
            expected = TICKS if ticks else WORKFLOWS
            await self._keys.authenticate(connection, handler, expected, *further)
        return None if principal is None else principal.name

    def still_admits(self, connection: AnyConnection) -> bool:
        """Whether the key of a request that was admitted is still valid; hooks decide only once."""
        if self._authorizer.authenticates and in_process_caller(connection.scope) is None:
            return True
        return self._keys.admits(connection, scope_of(connection.route_handler))

    async def authorize(
        self, context: RequestContext, body: Callable[[], Any] | None = None
    ) -> None:
        """Call the hook of the context's policy, if there is one.

        Args:
            context: The request.
            body: Returns the body for the hook; called only if there is a hook.

        Raises:
            Problem: The request is denied.
        """
        if self.has_hook(context.policy):
            await self._authorizer.authorize(replace(context, body=body and body()))

    def has_hook(self, policy: Policy) -> bool:
        """Whether a policy has a hook, for callers that need a context for it alone."""
        return self._authorizer.has_hook(policy)

    async def is_authorized(self, context: RequestContext) -> bool:
        """Whether the hook of the context's policy allows a request.

        Raises:
            Problem: The hook failed.
        """
        try:
            await self.authorize(context)
        except Problem as problem:
            if problem.status is None:  # Only a denial by a hook has a status of its own.
                raise
            return False
        return True

    def context_of(self, connection: AnyConnection, handler: BaseRouteHandler) -> RequestContext:
        """Return the context of a request for hooks."""
        return RequestContext(
            policy=handler.opt["policy"],
            workflow_name=connection.path_params.get(WORKFLOW),
            instance_id=connection.path_params.get(INSTANCE, handler.opt.get(INSTANCE)),
            headers=connection.headers,
            runtime=self._runtime,
            principal=connection.scope["state"].get(_PRINCIPAL),
        )


def _further_scopes(context: RequestContext, handler: BaseRouteHandler) -> list[Scope]:
    """Return the scopes that a request needs besides that of its route."""
    scopes = [Scope.SYSTEM_WRITE] if _changes_system(context, handler) else []
    return [*scopes, Scope.ROWS_READ] if context.workflow_name in _WITH_ROWS else scopes


def _changes_system(context: RequestContext, handler: BaseRouteHandler) -> bool:
    """Whether a request changes a system instance; definitions of graphs are no instances."""
    workflow = context.workflow_name
    return (
        context.policy in _CHANGES
        and scope_of(handler) == Scope.INSTANCES_WRITE
        and workflow is not None
        and is_system_instance(workflow, context.instance_id)
    )
