"""Hooks and keys: who is let in, who is not, and that nothing that is broken lets anybody in."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from litestar.datastructures import Headers

from headwater import Runtime
from headwater.gateway.api.key_guards import SCOPE, KeyGuard
from headwater.gateway.api.key_ring import KeyRing, configured_keys
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.rate_limits import RateLimits
from headwater.gateway.api.workflows import (
    Denied,
    Hook,
    Policy,
    RequestContext,
    WorkflowHooks,
    authorization,
)
from headwater.gateway.api.workflows.authorization import Authorizer, HooksNotLoaded, load_hooks
from headwater.gateway.api.workflows.openapi import SCOPE_OF_POLICY
from headwater.gateway.api.workflows.request_guard import AUTHORIZES_LATER, RequestGuard
from headwater.gateway.settings.settings import Settings
from tests.fakes.api_keys import MemoryApiKeys

HOOKS = "tests.unit.gateway.workflow_hooks"
KEY = {"authorization": "Bearer workflow-key"}
TICK = {"authorization": "Bearer the-tick-key"}


def ask(
    hooks: WorkflowHooks,
    headers: dict[str, str],
    policy: Policy = Policy.READ,
    tick_key: str = "the-tick-key",
    body: object = None,
) -> tuple[int, str] | None:
    """The problem that a request ends in, if it does."""

    async def asks() -> None:
        settings = Settings(workflow_key="workflow-key", tick_key=tick_key)
        keys = configured_keys(settings)
        ring = KeyRing(MemoryApiKeys(), keys, project="default", clock=lambda: 0)  # type: ignore[arg-type] (a fake)
        authorizer = Authorizer(hooks)
        guard = RequestGuard(
            authorizer, KeyGuard(ring, RateLimits(0, lambda: 0)), Runtime.seeded(7)
        )
        connection: Any = SimpleNamespace(
            headers=Headers(headers),
            path_params={"workflow": "order", "instance_id": "a"},
            scope={"state": {}},
            app=SimpleNamespace(state={}),
        )
        opt = {"policy": policy, SCOPE: SCOPE_OF_POLICY[policy], AUTHORIZES_LATER: True}
        handler: Any = SimpleNamespace(opt=opt)
        await guard.guard(connection, handler)
        await authorizer.authorize(replace(guard.context_of(connection, handler), body=body))

    try:
        asyncio.run(asks())
    except Problem as problem:
        return problem.status or 0, problem.code
    return None


NO_KEY = (0, "unauthorized")
OTHER_KEY = (0, "insufficient_scope")
BROKEN = (0, "internal_error")


@pytest.mark.parametrize("policy", [item for item in Policy if item is not Policy.TICK])
@pytest.mark.parametrize(
    ("headers", "problem"),
    [
        (KEY, None),
        ({"x-api-key": "workflow-key"}, None),
        ({"authorization": "bearer  workflow-key "}, None),
        ({"authorization": "Bearer of-another", "x-api-key": "workflow-key"}, None),
        ({"authorization": "Bearer workflow-key", "x-api-key": "wrong"}, None),
        ({}, NO_KEY),
        ({"authorization": "Basic workflow-key"}, NO_KEY),
        ({"authorization": "Bearer"}, NO_KEY),
        ({"x-api-key": ""}, NO_KEY),
        ({"x-api-key": "workflow-key2"}, NO_KEY),
        ({"x-api-key": "é"}, NO_KEY),
        (TICK, OTHER_KEY),
    ],
)
def test_without_hooks_the_key_is_asked_for(
    policy: Policy, headers: dict[str, str], problem: tuple[int, str] | None
) -> None:
    assert ask(WorkflowHooks(), headers, policy) == problem


def test_a_tick_needs_its_own_key_whatever_hooks_there_are() -> None:
    everybody = WorkflowHooks(authorize_request=lambda _: None)
    for hooks in (WorkflowHooks(), everybody):
        assert ask(hooks, TICK, Policy.TICK) is None
        assert ask(hooks, KEY, Policy.TICK) == OTHER_KEY
        assert ask(hooks, {}, Policy.TICK) == NO_KEY
        assert ask(hooks, {"x-api-key": ""}, Policy.TICK, tick_key="") == NO_KEY
    nobody = WorkflowHooks(authorize_runner_tick=lambda _: Denied())
    assert ask(nobody, TICK, Policy.TICK) == (403, "forbidden")


def test_a_hook_takes_the_place_of_the_key() -> None:
    hooks = load_hooks(f"{HOOKS}:frozen")
    assert ask(hooks, {"x-user": "amara"}) is None
    assert ask(hooks, KEY) == (401, "WHO_ARE_YOU")


def test_a_policy_alone_does_not_open_the_rest() -> None:
    hooks = WorkflowHooks(authorize_instance_creation=lambda _: None)
    assert ask(hooks, {}, Policy.CREATE) == NO_KEY
    assert ask(hooks, {}, Policy.READ) == NO_KEY


def test_methods_of_an_object_are_hooks_and_may_be_coroutine_functions() -> None:
    hooks = load_hooks(f"{HOOKS}:tenants")
    amara = {"x-user": "amara"}
    assert ask(hooks, amara, Policy.CREATE, body={"params": "fine"}) is None
    forbidden = {"params": "forbidden"}
    assert ask(hooks, amara, Policy.CREATE, body=forbidden) == (403, "NOT_YOURS")
    assert ask(hooks, {}, Policy.CREATE, body=forbidden) == (401, "WHO_ARE_YOU")
    assert ask(hooks, amara, Policy.MANAGE) is None


@pytest.mark.parametrize("policy", Policy)
def test_each_policy_has_a_hook_of_its_own(policy: Policy) -> None:
    requested: list[tuple[Policy, str]] = []
    hooks = WorkflowHooks(
        authorize_request=lambda context: requested.append((context.policy, "request")),
        **{
            f"authorize_{entry.value}": lambda context, item=entry: requested.append(
                (context.policy, item.value)
            )
            for entry in Policy
        },
    )
    assert ask(hooks, TICK, policy) is None
    assert requested == [(policy, "request"), (policy, policy.value)]


def raises(error: BaseException) -> Hook:
    def hook(_: RequestContext) -> None:
        raise error

    return hook


def later(error: Exception) -> Hook:
    async def hook(_: RequestContext) -> None:
        await asyncio.sleep(0)
        raise error

    return hook


@pytest.mark.parametrize(
    "hook",
    [
        raises(KeyError("params")),
        raises(PermissionError()),
        raises(TimeoutError()),
        later(ValueError()),
        lambda: None,
        lambda _: True,
        lambda _: False,
        lambda _: "ok",
        lambda _: Denied,
        lambda _: lambda: None,
    ],
)
@pytest.mark.parametrize("name", ["authorize_request", "authorize_instance_read"])
def test_a_hook_that_is_broken_lets_nobody_in(hook: Hook, name: str) -> None:
    assert ask(WorkflowHooks(**{name: hook}), KEY) == BROKEN


def test_a_hook_that_does_not_come_back_lets_nobody_in(monkeypatch: pytest.MonkeyPatch) -> None:
    async def sleeps(_: RequestContext) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(authorization, "HOOK_TIMEOUT_S", 0.01)
    assert ask(WorkflowHooks(authorize_request=sleeps), KEY) == BROKEN


def test_a_hook_that_was_stopped_lets_nobody_in() -> None:
    with pytest.raises(asyncio.CancelledError):
        ask(WorkflowHooks(authorize_request=raises(asyncio.CancelledError())), KEY)


@pytest.mark.parametrize(
    ("status", "code", "headers"),
    [
        (200, "fine", {}),
        (399, "moved", {}),
        (500, "broken", {}),
        (403, "", {}),
        (403, "a b", {}),
        (401, "é", {}),
        (429, "quota", {"a b": "x"}),
        (429, "quota", {"retry-after": "1\r\nset-cookie: x"}),
    ],
)
def test_a_denial_is_a_4xx_and_has_a_code_and_headers_that_can_be_sent(
    status: int, code: str, headers: dict[str, str]
) -> None:
    with pytest.raises(ValueError, match="expected"):
        Denied(status, code, headers=headers)


def test_a_body_that_is_no_json_is_a_hook_that_is_broken() -> None:
    hooks = WorkflowHooks(authorize_request=lambda _: Denied(402, body=object()))
    assert ask(hooks, KEY) == BROKEN


def test_hooks_are_given_time_and_chance() -> None:
    seen = []

    def look(context: RequestContext) -> None:
        runtime = context.runtime
        seen.append((runtime.now().isoformat(), runtime.random(), runtime.uuid()))

    hooks = WorkflowHooks(authorize_request=look)
    assert ask(hooks, KEY) is ask(hooks, KEY) is None
    assert seen[0] == seen[1]
    now, drawn, unique = seen[0]
    assert now == "2026-01-01T00:00:00+00:00"
    assert 0 <= drawn < 1
    assert UUID(unique).version == 4
    assert Runtime.seeded(8).uuid() != unique


def test_no_setting_has_no_hooks() -> None:
    assert load_hooks("") == WorkflowHooks()


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("tests.unit.gateway.nowhere:hooks", "ModuleNotFoundError"),
        (f"{HOOKS}:nothing", "AttributeError"),
        (f"{HOOKS}:mistyped", "none of them"),
        (f"{HOOKS}:unknown", "authorize_creation"),
        (f"{HOOKS}:no_function", "found authorize_request"),
        (f"{HOOKS}_exit:hooks", "SystemExit"),
    ],
)
def test_what_cannot_be_used_is_said_when_the_gateway_starts(spec: str, said: str) -> None:
    with pytest.raises(HooksNotLoaded, match=said):
        load_hooks(spec)
