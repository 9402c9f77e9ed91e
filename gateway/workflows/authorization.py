"""Who may do what with workflows: hooks of the house's users, and the keys that are the default.

Every request passes two hooks: `authorize_request`, which every route has, and that of its policy.
A hook lets a request pass by returning None, and stops it by raising `Denied` or returning one.
`authorize_request` may return a `Principal` in place of None: whom the request is from. Whatever
else a hook does stops the request, too: a hook that is broken opens no door.
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
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from headwater.gateway.http.keys import bearer_of, has_key, key_id
from headwater.gateway.http.problems import Problem
from headwater.schemas.errors import Disposition, HeadwaterError
from headwater.streams.authoring.runtime import Runtime

_LOG: Final = logging.getLogger("headwater.gateway")

#: Seconds that a hook has: it asks one other service, or none.
HOOK_TIMEOUT_S: Final = 10.0
_CODE: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
#: Where callers bring what tells who they are.
_CREDENTIALS: Final = ("authorization", "x-api-key", "cookie")
_SCOPE_BYTES: Final = 16
_HEADER: Final = re.compile(r"[A-Za-z0-9-]{1,64}")


class Policy(StrEnum):
    """What a request is about to do."""

    CREATE = "instance_creation"
    READ = "instance_read"
    MANAGE = "management"
    SEND_EVENT = "send_event"
    WORK = "job"
    TICK = "runner_tick"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """What a hook is told of a request.

    Shape:  names are None where a route has none; names of headers are matched in any case. The
            body is JSON as Python has it, and there for creations (`id`, `params`) and events
            (`type`, `payload`) once their own hook is asked, and for activations of jobs (`types`,
            `worker`). A batch is asked about one by one. A hook that takes time and chance from
            `runtime` decides the same in a test that gives it the same. `principal` is the name
            that `authorize_request` has returned; None in that hook, and where it returned none.
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
    """Who sends a request, as `authorize_request` knows: a tenant, a user, a program.

    Idempotency keys are the principal's own: two principals that use one key share nothing.

    Raises:
        ValueError: The name is empty, or no text.
    """

    name: str

    def __post_init__(self) -> None:
        name: object = self.name
        if not isinstance(name, str) or not name:
            raise ValueError(f"expected the name of a principal, found {name!r}")


class Denied(Exception):
    """A request that a hook does not let pass, and what is answered: any 4xx.

    Shape:  a problem document with code and detail, or, in its place, a body of the hook's own:
            any JSON, with the headers that go with it.
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


#: What a hook returns; a principal is for `authorize_request` alone.
Verdict: TypeAlias = Denied | Principal | None
Hook: TypeAlias = Callable[[RequestContext], Awaitable[Verdict] | Verdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowHooks:
    """Hooks, each a function or a coroutine function; those that are None let everything pass.

    Without `authorize_request` the key of the workflow service is asked for in its place. A tick
    needs its own key, whatever hooks there are.
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
    """What the setting HEADWATER_WORKFLOW_HOOKS names cannot be used."""

    disposition = Disposition.HALT
    code = "hooks_not_loaded"


class AuthenticatedCaller(NamedTuple):
    """Who has been let in.

    Attributes:
        key_id: What names the key in the audit log.
        scope: What idempotency keys of the caller are scoped by; empty for the one caller that
            holds the key of the workflow service.
        principal: The name that the hook has returned.
    """

    key_id: str
    scope: str = ""
    principal: str | None = None


class Authorizer:
    """Asks the hooks."""

    def __init__(self, hooks: WorkflowHooks, *, workflow_key: str, tick_key: str) -> None:
        self._hooks = hooks
        self._workflow_key = workflow_key
        self._tick_key = tick_key
        self._workflow_key_id = key_id("workflow", workflow_key)

    async def admit(self, context: RequestContext) -> AuthenticatedCaller:
        """Ask the hook of every route, before anything of the body is read.

        Raises:
            Problem: The request may not pass.
        """
        principal = None
        if self._hooks.authorize_request is not None:
            principal = await _ask(self._hooks.authorize_request, context)
        elif context.policy is not Policy.TICK and not has_key(context.headers, self._workflow_key):
            raise Problem(
                "unauthorized",
                "expected the key of the workflow service, as Authorization: Bearer or in the "
                "header x-api-key",
            )
        if context.policy is Policy.TICK and not (
            self._tick_key and has_key(context.headers, self._tick_key)
        ):
            raise Problem(
                "unauthorized",
                "expected the key of those who may tick, as Authorization: Bearer or in the "
                "header x-api-key",
            )
        if self._hooks.authorize_request is None:
            return AuthenticatedCaller(self._workflow_key_id)
        return _known_by_hook(context.headers, principal)

    def has_own_guard(self, policy: Policy) -> bool:
        """Whether a hook alone decides who passes, by what only it knows."""
        return self._hooks.authorize_request is not None and policy is not Policy.TICK

    async def allow(self, context: RequestContext) -> None:
        """Asks the hook of a policy.

        Errors: Problem.
        """
        hook = self._hook(context.policy)
        if hook is not None and await _ask(hook, context) is not None:
            _LOG.error(
                "a hook of %s returned a principal: only authorize_request may", context.policy
            )
            raise _broken()

    def has_hook(self, policy: Policy) -> bool:
        """Whether a policy has a hook."""
        return self._hook(policy) is not None

    def _hook(self, policy: Policy) -> Hook | None:
        hook: Hook | None = getattr(self._hooks, f"authorize_{policy.value}")
        return hook


def _known_by_hook(headers: Mapping[str, str], principal: Principal | None) -> AuthenticatedCaller:
    """Who a hook has let in: its principal, else whoever brings the same credentials.

    All credentials count, since only the hook knows which of them it looks at.
    """
    if principal is not None:
        name = principal.name
        return AuthenticatedCaller(key_id("hook", name), _scope("principal", name), name)
    credentials = [headers.get(header, "") for header in _CREDENTIALS]
    brought = bearer_of(headers) or headers.get("x-api-key", "")
    return AuthenticatedCaller(key_id("hook", brought), _scope("credentials", *credentials))


def _scope(*parts: str) -> str:
    text = json.dumps(parts)
    return hashlib.blake2b(text.encode(), digest_size=_SCOPE_BYTES).hexdigest()


async def _ask(hook: Hook, context: RequestContext) -> Principal | None:
    try:
        async with asyncio.timeout(HOOK_TIMEOUT_S):
            found: object = hook(context)
            if inspect.isawaitable(found):
                found = await found
    except Denied as denied:
        found = denied
    except Exception as error:
        _LOG.exception("a hook of the workflow service failed")
        raise _broken() from error
    if isinstance(found, Denied):
        raise Problem(
            found.code, found.detail, status=found.status, headers=found.headers, body=found.body
        )
    if found is None or isinstance(found, Principal):
        return found
    _LOG.error("a hook returned %r, expected None, Denied or a Principal", found)
    raise _broken()


def _broken() -> Problem:
    return Problem("internal_error", "The failure is logged under this request's id.")


def load_hooks(spec: str) -> WorkflowHooks:
    """Imports what a setting names as package.module:attribute; empty has no hooks.

    Errors: HooksNotLoaded.
    """
    if not spec:
        return WorkflowHooks()
    module_name, _, attribute = spec.partition(":")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (Exception, SystemExit) as error:
        raise HooksNotLoaded(
            f"expected to import the hooks {spec}, found {type(error).__name__}: {error}"
        ) from error
    return hooks_of(found, spec)


def hooks_of(found: object, spec: str) -> WorkflowHooks:
    """The hooks that an object has as attributes.

    Errors: HooksNotLoaded, also for names that are nearly right: to pass over them opens a door.
    """
    if isinstance(found, WorkflowHooks):
        return found
    named = [name for name in dir(found) if name.startswith("authorize")]
    unknown = [name for name in named if name not in _NAMES]
    hooks = {name: getattr(found, name) for name in named if name in _NAMES}
    wrong = [name for name, hook in hooks.items() if hook is not None and not callable(hook)]
    if unknown or wrong or not named:
        shown = ", ".join(unknown or wrong) or "none of them"
        raise HooksNotLoaded(
            f"expected of {spec} functions named {', '.join(_NAMES)}, found {shown}"
        )
    return WorkflowHooks(**hooks)
