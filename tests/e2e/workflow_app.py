"""The workflows that are killed in tests: their outputs do not depend on who dies, and when.

Every callback writes a line into the trail when it begins: one `write` to a file opened for
appending, so that lines of many processes do not mix and none is lost with its process.
"""

import asyncio
import json
import math
import os
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

from headwater import (
    Break,
    ChildWorkflowError,
    Concurrency,
    Continue,
    EventTimeoutError,
    Retry,
    Step,
    StepTx,
    WorkflowEvent,
    workflow,
)

TRAIL = "TEST_TRAIL"
PUBLISHED = "published"
ITERATIONS = 60
ENTRIES = 4
#: A host that is killed fails the steps it had in hand: how often must not decide an outcome.
EVER = Retry(limit=math.inf, delay="100 ms", backoff="constant")

_Event = WorkflowEvent[Any]


def _mark(event: _Event, key: str) -> None:
    line = {
        # Of the machine, also where the clock of this process was shifted.
        "at_ns": time.clock_gettime_ns(time.CLOCK_REALTIME),
        "pid": os.getpid(),
        "instance": f"{event.workflow_name}/{event.instance_id}",
        "run": event.run_number,
        "key": key,
    }
    trail = os.open(os.environ[TRAIL], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(trail, json.dumps(line).encode() + b"\n")
    finally:
        os.close(trail)


def _gives(event: _Event, key: str, value: object = None) -> Callable[[], object]:
    """A callback that is not async: it runs on a thread of the host."""

    def callback() -> object:
        _mark(event, key)
        return value

    return callback


def takes(
    event: _Event, key: str, value: object = None, ms: int = 5
) -> Callable[[], Awaitable[object]]:
    async def callback() -> object:
        _mark(event, key)
        await asyncio.sleep(ms / 1_000)
        return value

    return callback


async def _ten_steps(event: _Event, step: Step) -> int:
    total = 0
    for number in range(10):
        make = _gives if number % 2 else takes
        total += await step.do(f"s{number}", make(event, f"s{number}", number), retries=EVER)
    return total


@workflow("ten")
async def ten(event: _Event, step: Step) -> int:
    return await _ten_steps(event, step)


@workflow("limited", concurrency=Concurrency(2, key="params % 2"))
async def limited(event: _Event, step: Step) -> int:
    total = 0
    for number in range(3):
        total += await step.do(
            f"s{number}", takes(event, f"s{number}", number, ms=50), retries=EVER
        )
    return total


@workflow("joined")
async def joined(event: _Event, step: Step) -> list[int]:
    def branch(name: str, ms: int) -> Callable[[Step], Awaitable[int]]:
        async def run(step: Step) -> int:
            key = f"all/{name}"
            first = await step.do("before", _gives(event, f"{key}/before", ms), retries=EVER)
            await step.sleep("rest", ms)
            slow = takes(event, f"{key}/after", 1, ms=20)
            return first + await step.do("after", slow, retries=EVER)

        return run

    result = await step.join(
        "all", a=branch("a", 50), b=branch("b", 120), c=branch("c", 210), d=branch("d", 300)
    )
    return [result[name] for name in "abcd"]


@workflow("stubborn")
async def stubborn(event: _Event, step: Step) -> int:
    def flaky(key: str, value: int) -> Callable[[], int]:
        def callback() -> int:
            _mark(event, key)
            if random.random() < 0.5:
                raise ConnectionError(key)
            return value

        return callback

    total = 0
    for number in range(5):
        key = f"s{number}"
        total += await step.do(key, flaky(key, number), retries=EVER)
    return total


@workflow("looping")
async def looping(event: _Event, step: Step) -> int:
    async def body(step: Step, state: int) -> Continue | Break:
        n = state
        if n == ITERATIONS:
            return Break(n)
        add = _gives(event, f"count/~{n}/add", n + 1)
        return Continue(await step.do("add", add, retries=EVER))

    return await step.loop(
        "count", body, state=0, commit_interval=7, history_every=10, history_keep=10
    )


@workflow("waiting")
async def waiting(event: _Event, step: Step) -> list[Any]:
    await step.do("before", _gives(event, "before"), retries=EVER)
    first = await step.wait_for_event("first", type="go", timeout="1 hour")
    await step.do("between", takes(event, "between"), retries=EVER)
    second = await step.wait_for_event("second", type="go", timeout="1 hour")
    await step.do("after", takes(event, "after"), retries=EVER)
    return [first.payload, second.payload]


@workflow("parent")
async def parent(event: _Event, step: Step) -> list[Any]:
    await step.do("before", _gives(event, "before"), retries=EVER)
    mine = await step.run_workflow("call", "child", id=f"{event.instance_id}-c", params=7)
    try:
        await step.run_workflow("taken", "child", id="taken", params=1)
    except ChildWorkflowError as error:
        refused = type(error).__name__
    else:
        refused = ""
    await step.do("after", takes(event, "after"), retries=EVER)
    return [mine, refused]


@workflow("child")
async def child(event: _Event, step: Step) -> int:
    first = await step.do("first", takes(event, "first", event.payload), retries=EVER)
    await step.sleep("rest", 80)
    return first + await step.do("second", _gives(event, "second", 1), retries=EVER)


@workflow("creator")
async def creator(event: _Event, step: Step) -> str:
    other = f"{event.instance_id}-x"

    async def create(tx: StepTx) -> str:
        _mark(event, "create")
        tx.create_workflow("created", id=other, params=3)
        tx.send_event("created", other, "hello", {"from": event.instance_id})
        tx.publish(PUBLISHED, event.instance_id, {"created": other})
        await asyncio.sleep(0.005)
        return other

    def more(tx: StepTx) -> None:
        _mark(event, "more")
        tx.send_event("created", other, "hello", {"more": event.instance_id})

    await step.do("create", create, retries=EVER)
    await step.do("more", more, retries=EVER)
    return other


@workflow("created")
async def created(event: _Event, step: Step) -> list[Any]:
    first = await step.wait_for_event("first", type="hello", timeout="1 hour")
    await step.do("between", takes(event, "between"), retries=EVER)
    second = await step.wait_for_event("second", type="hello", timeout="1 hour")
    return [event.payload, first.payload, second.payload]


@workflow("undone")
async def undone(event: _Event, step: Step) -> None:
    def undo(key: str) -> Callable[[object], Awaitable[None]]:
        async def handler(_: object) -> None:
            _mark(event, f"undo {key}")
            await asyncio.sleep(0.005)

        return handler

    await step.checkpoint("from here")
    for key in ("a", "b", "c"):
        await step.do(key, takes(event, key, key), retries=EVER, rollback=undo(key))
    raise LookupError("nothing of it was wanted")


@workflow("publisher")
async def publisher(event: _Event, step: Step) -> None:
    for number in range(5):
        key = f"p{number}"

        def publish(tx: StepTx, number: int = number, key: str = key) -> None:
            _mark(event, key)
            tx.publish(PUBLISHED, event.instance_id, number)

        await step.do(key, lambda tx, publish=publish: publish(tx), retries=EVER)


@workflow("bookkeeper")
async def bookkeeper(event: _Event, step: Step) -> object:
    """Enters lines into a table that would take them twice, and counts them in another."""

    def enter(key: str) -> Callable[[StepTx], Awaitable[str]]:
        async def callback(tx: StepTx) -> str:
            _mark(event, key)
            return await _entered(event, tx, key)

        return callback

    for number in range(ENTRIES):
        await step.do(f"e{number}", enter(f"e{number}"), retries=EVER)
        line = {"number": number}
        await step.log.info("entered", line, category="books")  # noqa: PLE1205, no lazy format
    return (await step.wait_for_event("heard", type="entered", timeout="1 hour")).payload


async def _entered(event: _Event, tx: StepTx, key: str) -> str:
    """Notes what takes effect together; now and then the callback fails, or its SQL."""
    line = os.urandom(8).hex()
    scene, _, _ = event.instance_id.partition("-")
    fate = random.randrange(8)
    insert = "INSERT INTO entries (scene, instance, key, line) VALUES (%s, %s, %s, %s)"
    tx.execute(insert, [scene, f"{event.workflow_name}/{event.instance_id}", key, line])
    # So that some are killed between the first and the last of it.
    tx.execute("SELECT pg_sleep(0.01)")
    count = "UPDATE counters SET entered = entered + 1 WHERE scene = %s AND key = %s"
    tx.execute(count, [scene, key])
    if fate == 0:
        tx.execute("SELECT 1 / 0")
    await asyncio.sleep(0.005)
    if fate == 1:
        raise ConnectionError(key)
    if key == f"e{ENTRIES - 1}":
        tx.send_event(event.workflow_name, event.instance_id, "entered", {"entries": ENTRIES})
    return line


@workflow("racing")
async def racing(event: _Event, step: Step) -> list[Any]:
    async def fast(step: Step) -> str:
        await step.sleep("short", 60)
        return await step.do("win", _gives(event, "who/fast/win", "fast"), retries=EVER)

    async def slow(step: Step) -> str:
        await step.sleep("long", "1 hour")
        return "slow"

    won = await step.race("who", fast=fast, slow=slow)
    return [won.winner, won.value]


@workflow("sleeper")
async def sleeper(event: _Event, step: Step) -> str:
    """Sleeps for as many milliseconds as it is told."""
    await step.sleep("long", event.payload)
    return "awake"


@workflow("slow")
async def slow(event: _Event, step: Step) -> str:
    """Has a step that takes as many milliseconds as it is told, and never more than once."""
    return await step.do("work", takes(event, "work", "worked", event.payload), retries=EVER)


@workflow("announcer")
async def announcer(event: _Event, step: Step) -> None:
    """Publishes to the topic that it is told."""

    def announce(tx: StepTx) -> None:
        _mark(event, "announce")
        tx.publish(event.payload, event.instance_id, "hear, hear")

    await step.do("announce", announce, retries=EVER)


@workflow("patient")
async def patient(event: _Event, step: Step) -> object:
    """Waits for an event, no longer than it is told."""
    try:
        return (await step.wait_for_event("wait", type="go", timeout=event.payload)).payload
    except EventTimeoutError:
        return "too late"


@workflow("bulky")
async def bulky(event: _Event, step: Step) -> int:
    """Runs steps side by side whose results come at the same time and are large."""
    count, size = event.payload
    steps = [
        step.do(f"b{n}", _gives(event, f"b{n}", "x" * size), retries=EVER) for n in range(count)
    ]
    return sum(len(result) for result in await asyncio.gather(*steps))


@workflow("crowded")
async def crowded(event: _Event, step: Step) -> int:
    """Has children whose params come at the same time and are large."""
    count, size = event.payload
    calls = [step.run_workflow(f"c{n}", "echo", params="x" * size) for n in range(count)]
    return sum(await asyncio.gather(*calls))


@workflow("echo")
async def echo(event: _Event, step: Step) -> int:
    return len(event.payload)


@workflow("loud")
async def loud(event: _Event, step: Step) -> None:
    """Fails at length, in branches or by itself."""

    def shout() -> None:
        raise ValueError("e" * event.payload)

    async def branch(step: Step) -> None:
        await step.do("shout", shout, retries=Retry(limit=0))

    try:
        await step.join("all", **{f"b{n}": branch for n in range(14)})
    finally:
        shout()


@workflow("laden")
async def laden(event: _Event, step: Step) -> int:
    """Waits for many events side by side."""
    waits = [step.wait_for_event(f"w{n}", type=f"t{n}") for n in range(event.payload)]
    return sum(len(item.payload) for item in await asyncio.gather(*waits))


@workflow("greedy")
async def greedy(event: _Event, step: Step) -> int:
    """Takes many events at once."""
    await step.wait_for_event("begin", type="begin", timeout="1 hour")
    result = await step.wait_for_events("lines", types=["line"], limit=100, timeout="1 hour")
    return len(result)


@workflow("hoarder")
async def hoarder(event: _Event, step: Step) -> None:
    """Has more results than a record may have bytes, and sleeps over them."""
    for number in range(13):
        await step.do(f"h{number}", _gives(event, f"h{number}", "x" * 1_000_000), retries=EVER)
    await step.sleep("on it", "1 hour")
