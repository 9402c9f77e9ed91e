"""Authorization of workflow requests by hooks; without them, keys authorize requests.

Two hooks check every request: `authorize_request`, and the hook of the route's policy. A hook
allows a request by returning None, and denies it by raising or returning `Denied`.
`authorize_request` may also return a `Principal`, the sender of the request. Any other result or
exception denies the request, so a broken hook lets nothing through.
"""

import asyncio
import hashlib
import importlib
import inspect
import json
import logging
import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from headwater.gateway.api.authentication import Caller, key_id
from headwater.gateway.api.key_guards import bearer_of
from headwater.gateway.api.problems import Problem
from headwater.schemas.errors import Disposition, HeadwaterError
from headwater.streams.authoring.programs import Runtime

_LOG: Final = logging.getLogger("headwater.gateway")

#: Seconds that a hook may take; it should call one other service at most.
HOOK_TIMEOUT_S: Final = 10.0
_CODE: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
#: Headers with credentials.
_CREDENTIALS: Final = ("authorization", "x-api-key", "cookie")
_SCOPE_BYTES: Final = 16
_HEADER: Final = re.compile(r"[A-Za-z0-9-]{1,64}")


class Policy(StrEnum):
    """Kind of operation that a request is authorized for."""

    CREATE = "instance_creation"
    READ = "instance_read"
    MANAGE = "management"
    SEND_EVENT = "send_event"
    WORK = "job"
    TICK = "runner_tick"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """A request, as passed to a hook.

    Attributes:
        policy: Kind of operation.
        workflow_name: Name of the workflow; None if the route has none.
        instance_id: Id of the instance; None if the route has none. For a batch the hook is called
            once for every instance.
        headers: Headers, matched case-insensitively.
        runtime: Clock and randomness. A hook that uses them is deterministic in tests.
        body: Decoded JSON, for the hook of the policy only: `id` and `params` of creations, `type`
            and `payload` of events, `types` and `worker` of job activations. Else None.
        principal: Name of the principal that `authorize_request` returned; None in that hook, and
            if it returned none.
    """

    policy: Policy
    workflow_name: str | None
    instance_id: str | None
    headers: Mapping[str, str]
    runtime: Runtime
    body: Any = None
    principal: str | None = None


@dataclass(frozen=True, slots=True)
class Principal:
    """Sender of a request, as `authorize_request` returns it: a tenant, a user, a program.

    Idempotency keys are scoped to the principal: two principals may use the same key.

    Raises:
        ValueError: The name is empty or not a string.
    """

    name: str

    def __post_init__(self) -> None:
        name: object = self.name
        if not isinstance(name, str) or not name:
            raise ValueError(f"expected the name of a principal, found {name!r}")


class Denied(Exception):
    """A hook denies a request. The response is any 4xx.

    Args:
        status: Status of the response, 400 to 499.
        code: Code of the problem document.
        detail: Detail of the problem document.
        body: JSON that replaces the problem document.
        headers: Additional headers of the response.

    Raises:
        ValueError: The status, the code or a header is invalid.
    """

    def __init__(
        self,
        status: int = 403,
        code: str = "forbidden",
        detail: str = "This is not allowed.",
        *,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if status not in range(400, 500):
            raise ValueError(f"expected a status of 400 to 499, found {status}")
        for name, value in (headers or {}).items():
            if not _HEADER.fullmatch(name) or not (value.isascii() and value.isprintable()):
                raise ValueError(f"expected a header of printable ASCII, found {name!r}")
        if not _CODE.fullmatch(code):
            raise ValueError(f"expected a code such as TENANT_MISMATCH, found {code!r}")
        super().__init__(detail)
        self.status = int(status)
        self.code = code
        self.detail = detail
        self.body = None if body is None else msgspec.json.encode(body)
        self.headers = {name.lower(): value for name, value in (headers or {}).items()}


#: Result of a hook; only `authorize_request` may return a principal.
Verdict: TypeAlias = Denied | Principal | None
Hook: TypeAlias = Callable[[RequestContext], Awaitable[Verdict] | Verdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowHooks:
    """Hooks as functions or coroutine functions; a hook that is None allows everything.

    Without `authorize_request` the key of the workflow service is required. A tick always requires
    its own key.
    """

    authorize_request: Hook | None = None
    authorize_instance_creation: Hook | None = None
    authorize_instance_read: Hook | None = None
    authorize_management: Hook | None = None
    authorize_send_event: Hook | None = None
    authorize_job: Hook | None = None
    authorize_runner_tick: Hook | None = None


_NAMES: Final = tuple(field.name for field in fields(WorkflowHooks))


class HooksNotLoaded(HeadwaterError):
    """The object that HEADWATER_WORKFLOW_HOOKS names cannot be loaded or has invalid hooks."""

    disposition = Disposition.HALT
    code = "hooks_not_loaded"


class Authorizer:
    """Authenticates callers and authorizes their requests with hooks."""

    def __init__(self, hooks: WorkflowHooks) -> None:
        self._hooks = hooks

    async def authenticate(self, context: RequestContext) -> Principal | None:
        """Call `authorize_request`, before the body is read.

        Raises:
            Problem: The request is denied.
        """
        hook = self._hooks.authorize_request
        return None if hook is None else await _call_hook(hook, context)

    @property
    def authenticates(self) -> bool:
        """Whether there is the hook `authorize_request`, which replaces keys."""
        return self._hooks.authorize_request is not None

    async def authorize(self, context: RequestContext) -> None:
        """Call the hook of the request's policy, if there is one.

        Raises:
            Problem: The request is denied.
        """
        hook = self._hook(context.policy)
        if hook is not None and await _call_hook(hook, context) is not None:
            _LOG.error(
                "a hook of %s returned a principal: only authorize_request may", context.policy
            )
            raise _hook_failure()

    def has_hook(self, policy: Policy) -> bool:
        """Whether a policy has a hook."""
        return self._hook(policy) is not None

    def _hook(self, policy: Policy) -> Hook | None:
        hook: Hook | None = getattr(self._hooks, f"authorize_{policy.value}")
        return hook


def caller_of_hook(headers: Mapping[str, str], principal: Principal | None) -> Caller:
    """Return the caller that a hook allowed, identified by its principal or its credentials.

    All credentials count, since only the hook knows which of them it checks.
    """
    if principal is not None:
        name = principal.name
        return Caller(key_id("hook", name), frozenset(), _scope("principal", name))
    credentials = [headers.get(header, "") for header in _CREDENTIALS]
    credential = bearer_of(headers) or headers.get("x-api-key", "")
    return Caller(key_id("hook", credential), frozenset(), _scope("credentials", *credentials))


def _scope(*parts: str) -> str:
    text = json.dumps(parts)
    return hashlib.blake2b(text.encode(), digest_size=_SCOPE_BYTES).hexdigest()


async def _call_hook(hook: Hook, context: RequestContext) -> Principal | None:
    try:
        async with asyncio.timeout(HOOK_TIMEOUT_S):
            verdict: object = hook(context)
            if inspect.isawaitable(verdict):
                verdict = await verdict
    except Denied as denied:
        verdict = denied
    except Exception as error:
        _LOG.exception("a hook of the workflow service failed")
        raise _hook_failure() from error
    if isinstance(verdict, Denied):
        raise Problem(
            verdict.code,
            verdict.detail,
            status=verdict.status,
            headers=verdict.headers,
            body=verdict.body,
        )
    if verdict is None or isinstance(verdict, Principal):
        return verdict
    _LOG.error("a hook returned %r, expected None, Denied or a Principal", verdict)
    raise _hook_failure()


def _hook_failure() -> Problem:
    return Problem("internal_error", "The failure is logged under this request's id.")


def load_hooks(spec: str) -> WorkflowHooks:
    """Import the object that a setting names as package.module:attribute; "" means no hooks.

    Raises:
        HooksNotLoaded: It cannot be imported, or its hooks are invalid.
    """
    if not spec:
        return WorkflowHooks()
    module_name, _, attribute = spec.partition(":")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        loaded = getattr(importlib.import_module(module_name), attribute)
    except (Exception, SystemExit) as error:
        raise HooksNotLoaded(
            f"expected to import the hooks {spec}, found {type(error).__name__}: {error}"
        ) from error
    return hooks_of(loaded, spec)


def hooks_of(source: object, spec: str) -> WorkflowHooks:
    """Return the hooks that an object has as attributes.

    Raises:
        HooksNotLoaded: There are none, one is not callable, or the name of one is unknown. Ignoring
            a misspelled hook would let requests through.
    """
    if isinstance(source, WorkflowHooks):
        return source
    names = [name for name in dir(source) if name.startswith("authorize")]
    unknown = [name for name in names if name not in _NAMES]
    hooks = {name: getattr(source, name) for name in names if name in _NAMES}
    invalid = [name for name, hook in hooks.items() if hook is not None and not callable(hook)]
    if unknown or invalid or not names:
        shown = ", ".join(unknown or invalid) or "none of them"
        raise HooksNotLoaded(
            f"expected of {spec} functions named {', '.join(_NAMES)}, found {shown}"
        )
    return WorkflowHooks(**hooks)
