"""Hooks in the harness: a URL resumes one wait of one run, once, until it expires."""

import asyncio

import pytest

from headwater import EventTimeoutError, Step, WorkflowEvent, WorkflowTest, workflow
from headwater.processors.hooks import HookSigner, HookTarget, sign, verify
from headwater.schemas.history import Once, SendEvent


@workflow("approve")
async def approve(event: WorkflowEvent, step: Step) -> object:
    hook = await step.hook("approval", timeout="1 hour")
    await step.do("mail", lambda: MAILS.append(hook.url))
    try:
        answer = await step.wait_for_event("answer", type=hook.type, timeout="1 hour")
    except EventTimeoutError:
        return "nobody"
    await step.sleep("rest", "1 hour")
    return [answer.payload, hook.expires_at.isoformat()]


MAILS: list[str] = []


async def begun(test: WorkflowTest) -> str:
    MAILS.clear()
    await test.create("approve", id="a")
    await test.run_until_idle()
    (url,) = MAILS
    return url


def test_a_call_resumes_the_wait_once_and_a_replay_has_the_same_hook():
    async def scenario() -> None:
        async with WorkflowTest([approve]) as test:
            url = await begun(test)
            await test.crash()
            await test.call_hook(url, {"ok": True})
            await test.call_hook(url, {"ok": False})
            await test.crash()
            await test.advance("2 hours")
            status = await test.get("approve", "a").status()
            assert status.output == [{"ok": True}, "2026-01-01T01:00:00+00:00"]
            assert [url] == MAILS

    asyncio.run(scenario())


def test_a_hook_that_has_expired_or_is_of_another_run_resumes_nothing():
    async def scenario() -> None:
        async with WorkflowTest([approve]) as test:
            url = await begun(test)
            await test.get("approve", "a").restart()
            await test.call_hook(url, 1)
            await test.run_until_idle()
            assert (await test.get("approve", "a").status()).status == "waiting"
            await test.advance("1 hour")
            assert (await test.get("approve", "a").status()).output == "nobody"
            with pytest.raises(ValueError, match="before the hook expired"):
                await test.call_hook(url)
            with pytest.raises(ValueError, match="expected the URL of a hook"):
                await test.call_hook(f"{url}x")

    asyncio.run(scenario())


@workflow("approve-or-fail")
async def approve_or_fail(event: WorkflowEvent, step: Step) -> object:
    hook = await step.hook("approval", timeout="1 hour")
    await step.do("mail", lambda: MAILS.append(hook.url))
    answer = await step.wait_for_event("answer", type=hook.type, timeout="1 hour")
    if not answer.payload:
        raise ValueError("refused")
    return answer.payload


def test_a_retried_run_that_creates_its_hook_again_waits_for_a_new_call():
    async def scenario() -> None:
        async with WorkflowTest([approve_or_fail]) as test:
            MAILS.clear()
            await test.create("approve-or-fail", id="a")
            await test.run_until_idle()
            await test.call_hook(MAILS[0], payload=False)
            await test.run_until_idle()
            await test.get("approve-or-fail", "a").retry(from_step="approval")
            await test.run_until_idle()
            await test.call_hook(MAILS[0], payload="an old mail")
            await test.call_hook(MAILS[1], payload=True)
            await test.run_until_idle()
            assert (await test.get("approve-or-fail", "a").status()).output is True

    asyncio.run(scenario())


@workflow("approve-twice")
async def approve_twice(event: WorkflowEvent, step: Step) -> object:
    hook = await step.hook("approval", timeout="30 days")
    await step.do("mail", lambda: MAILS.append(hook.url))
    first = await step.wait_for_event("first", type=hook.type, timeout="30 days")
    await step.sleep("rest", "2 days")
    await step.wait_for_event("note", type="note", timeout="30 days")
    try:
        second = await step.wait_for_event("second", type=hook.type, timeout="1 hour")
    except EventTimeoutError:
        return [first.payload]
    return [first.payload, second.payload]


def test_a_call_that_is_repeated_after_a_day_resumes_no_other_wait():
    async def scenario() -> None:
        async with WorkflowTest([approve_twice]) as test:
            MAILS.clear()
            await test.create("approve-twice", id="a")
            await test.run_until_idle()
            await test.call_hook(MAILS[0], "yes")
            await test.advance("2 days")
            instance = test.get("approve-twice", "a")
            # Another key, with which the older ones of clients are forgotten.
            later = SendEvent(test.new_id("evt"), "note", "null", once=Once("later", "digest"))
            await test.send("approve-twice", "a", later)
            await test.run_until_idle()
            await test.crash()
            await test.call_hook(MAILS[0], "again")
            await test.advance("1 hour")
            assert (await instance.status()).output == ["yes"]

    asyncio.run(scenario())


def test_any_key_of_the_settings_verifies_and_no_other():
    target = HookTarget("order", "o-1", "hook-00", 7)
    origin = HookSigner("old", "shop", "https://flows.example").origin("order", "o-1")
    token = sign(origin.key, target)
    assert origin.url == "https://flows.example/v1/hooks/"
    assert verify(["new", "old"], "shop", token) == target
    assert verify(["new"], "shop", token) is None
    assert verify([], "shop", token) is None
    assert verify(["new", "old"], "acme", token) is None, "a token is of one project"


@pytest.mark.parametrize("change", ["workflow", "instance_id", "event_type", "expires_ms"])
def test_a_token_permits_nothing_else(change: str):
    import msgspec  # noqa: PLC0415

    target = HookTarget("order", "o-1", "hook-00", 7)
    origin = HookSigner("key", "shop", "").origin("order", "o-1")
    other = msgspec.structs.replace(target, **{change: 8 if change == "expires_ms" else "other"})
    payload = sign(b"", other).partition(".")[0]
    mac = sign(origin.key, target).partition(".")[2]
    assert verify(["key"], "shop", f"{payload}.{mac}") is None


@pytest.mark.parametrize("token", ["", ".", "a.b", "\u00fc.x", "e30.AAAA", "x" * 5_000, "W10.W10"])
def test_what_is_no_token_is_refused(token: str):
    assert verify(["key"], "shop", token) is None
