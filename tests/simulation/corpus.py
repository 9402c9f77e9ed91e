"""The shapes: nested loops, joins in races, retries, waits, rollbacks, children, signals."""

import asyncio
import contextlib
import random
from typing import Any, Final

from headwater import (
    Break,
    ChildWorkflowError,
    Concurrency,
    Continue,
    EventTimeoutError,
    JoinError,
    NonRetryableError,
    RaceError,
    StepFailedError,
    StepTx,
)
from tests.fakes.counter import CounterEngine
from tests.simulation.shapes import EVER, ONCE, SHAPES, SOON, Shape, Work, shape

#: Longer than the clock can jump in a run.
LONG = "300 days"
Event = Any
Step = Any


def _fails(_: object = None) -> None:
    raise ConnectionError("no answer")


def _refuses(_: object = None) -> None:
    raise NonRetryableError("no")


@shape(strict=True, restarts=True)
async def line(event: Event, step: Step, work: Work) -> object:
    total = 0
    work.drawn("uuid", await step.uuid())
    for number in range(3):
        work.drawn(f"random {number}", await step.random())
        work.drawn(f"now {number}", (await step.now()).isoformat())
        await step.log.info("on the way", {"number": number})  # noqa: PLE1205, no logger
        total += await step.do(f"step {number}", work.do(number), retries=EVER)
        await step.sleep(f"nap {number}", "1 minute")
    return total


@shape(restarts=True)
async def retries(event: Event, step: Step, work: Work) -> object:
    result: list[object] = [await step.do("first", work.do(1, failures=3), retries=EVER)]
    try:
        await step.do("second", _fails, retries=ONCE)
    except StepFailedError as error:
        result.append(error.name)
    try:
        await step.do("refused", _refuses, retries=EVER)
    except StepFailedError as error:
        result.append(error.error.name)
    again = [await step.do("third", work.at_once(3), retries=SOON) for _ in range(2)]
    return [*result, *again]


@shape(restarts=True)
async def hurried(event: Event, step: Step, work: Work) -> object:
    """Its attempts often take longer than they may."""
    options = {"retries": SOON, "timeout": "2 seconds"}
    return [await step.do(f"step {n}", work.do(n), **options) for n in range(5)]


async def _turn(step: Step, state: dict[str, Any], work: Work) -> object:
    added = await step.do("work", work.do(state["n"]), retries=EVER)
    if state["n"] % 2:
        await step.sleep("nap", "1 minute")
    work.drawn(f"{step.scope}/dice", await step.random())
    state = {"sum": state["sum"] + added, "n": state["n"] + 1}
    return Break(state["sum"]) if state["n"] == 4 else Continue(state)


@shape(restarts=True)
async def nested_loops(event: Event, step: Step, work: Work) -> object:
    async def turn(step: Step, state: dict[str, Any]) -> object:
        return await _turn(step, state, work)

    async def one_round(step: Step, state: dict[str, Any]) -> object:
        await step.do("open", work.at_once(), retries=SOON)
        options = {"commit_interval": 2, "history_every": 1, "history_keep": 1}
        total = await step.loop("turns", turn, state={"n": 0, "sum": 0}, **options)
        sums = [*state["sums"], total]
        return Break(sums) if len(sums) == 3 else Continue({"sums": sums})

    options = {"commit_interval": 2, "history_every": 2, "history_keep": 1}
    return await step.loop("rounds", one_round, state={"sums": []}, **options)


async def sleeper(event: Event, step: Step, work: Work) -> None:
    await step.sleep("long", LONG)


@shape(sleeper)
async def join_in_race(event: Event, step: Step, work: Work) -> object:
    async def slow(step: Step) -> object:
        await step.do("begin", work.do(), retries=EVER)
        await step.sleep("nap", "3 minutes")
        return await step.do("end", work.do("slow"), retries=EVER)

    async def quick(step: Step) -> object:
        return await step.do("load", work.at_once("quick", failures=1), retries=EVER)

    async def joined(step: Step) -> object:
        both = await step.join("both", slow=slow, quick=quick)
        return [both["slow"], both["quick"]]

    async def never(step: Step) -> None:
        await step.do("fetch", work.do(), retries=EVER)
        await step.sleep("nap", LONG)

    async def stuck(step: Step) -> None:
        await step.do("hangs", work.hangs(), retries=EVER, timeout="40 seconds")

    async def child(step: Step) -> None:
        await step.run_workflow("child", "sleeper", id=f"{event.instance_id}-loser")

    first = await step.race("fastest", never=never, joined=joined, stuck=stuck, child=child)
    await step.sleep("cool off", "5 minutes")
    return [first.winner, first.value]


@shape(restarts=True)
async def even_race(event: Event, step: Step, work: Work) -> object:
    async def branch(step: Step) -> None:
        await step.do("load", work.do(), retries=EVER)

    async def naps(step: Step) -> None:
        await step.sleep("nap", "10 seconds")
        await step.do("load", work.do(), retries=EVER)

    async def fails(step: Step) -> None:
        await step.do("load", _fails, retries=ONCE)

    for number in range(3):
        await step.race(f"race {number}", a=branch, b=naps, c=branch, d=fails)
    try:
        await step.race("lost", a=fails, b=fails)
    except RaceError as error:
        return [sorted(error.errors), await step.do("end", work.do(4), retries=EVER)]
    return None


@shape(restarts=True)
async def failing_join(event: Event, step: Step, work: Work) -> object:
    async def fails(step: Step) -> None:
        await step.do("load", _fails, retries=ONCE)

    async def waits(step: Step) -> object:
        await step.sleep("nap", "5 minutes")
        return await step.do("load", work.do(1), retries=EVER)

    try:
        await step.join("both", fails=fails, waits=waits)
    except JoinError as error:
        return [sorted(error.errors), await step.do("after", work.do(2), retries=EVER)]
    return None


@shape(script=tuple(("line", number) for number in range(5)))
async def events(event: Event, step: Step, work: Work) -> object:
    await step.do("begin", work.do(), retries=EVER)
    first = await step.wait_for_event("first", type="line", timeout=LONG)

    async def collect(step: Step, state: list[object]) -> object:
        lines = await step.wait_for_events("rest", types=["line"], limit=2, timeout=LONG)
        state = [*state, *(line.payload for line in lines)]
        return Break(state) if len(state) == 4 else Continue(state)

    result = await step.loop("lines", collect, state=[])
    try:
        await step.wait_for_event("never", type="never", timeout="2 minutes")
    except EventTimeoutError:
        await step.do("end", work.at_once(), retries=SOON)
    return [first.payload, result]


@shape(script=tuple(("knock", number) for number in range(3)))
async def in_time(event: Event, step: Step, work: Work) -> object:
    for number in range(3):
        with contextlib.suppress(EventTimeoutError):
            await step.wait_for_event(f"knock {number}", type="knock", timeout="20 seconds")
    return await step.do("open", work.do("opened"), retries=EVER)


@shape(script=tuple(("knock", number) for number in range(40)))
async def listens(event: Event, step: Step, work: Work) -> object:
    """Waits again and again, while it is knocked at all the time."""
    for number in range(20):
        with contextlib.suppress(EventTimeoutError):
            await step.wait_for_event(f"knock {number}", type="knock", timeout="2 seconds")
    return "opened"


@shape(script=(("go", 1), ("stop", 2)))
async def waits_in_races(event: Event, step: Step, work: Work) -> object:
    async def nap(step: Step) -> None:
        await step.sleep("nap", "30 seconds")

    async def go(step: Step) -> None:
        await step.wait_for_event("go", type="go", timeout="20 seconds")

    async def stop(step: Step) -> object:
        got = await step.wait_for_event("stop", type="stop", timeout=LONG)
        return got.payload

    async def load(step: Step) -> object:
        return await step.do("load", work.do(7), retries=EVER)

    await step.race("first", nap=nap, go=go)
    both = await step.join("then", stop=stop, load=load)
    return [both["stop"], both["load"]]


@shape(restarts=True)
async def rollback(event: Event, step: Step, work: Work) -> None:
    await step.checkpoint("before money")
    for name in ("a", "b"):
        await step.do(name, work.do(name), retries=EVER, rollback=work.undo(name))
        await step.sleep(f"nap {name}", "1 minute")

    async def branch(step: Step) -> None:
        key = f"{step.scope}/pay"
        await step.do("pay", work.do(), retries=EVER, rollback=work.undo(key))

    await step.join("both", one=branch, two=branch)

    async def turn(step: Step, n: int) -> object:
        key = f"{step.scope}/pay"
        await step.do("pay", work.do(), retries=EVER, rollback=work.undo(key))
        return Break(n) if n == 2 else Continue(n + 1)

    await step.loop("turns", turn, state=0, commit_interval=2)
    raise NonRetryableError("sold out")


async def leaf(event: Event, step: Step, work: Work) -> object:
    await step.sleep("wait", "20 seconds")
    if event.payload == "bad":
        raise LookupError("out of paper")
    return await step.do("charge", work.do(event.payload), retries=EVER)


@shape(leaf, sleeper)
async def children(event: Event, step: Step, work: Work) -> object:
    me = event.instance_id
    await step.do(
        "make", work.tx(lambda tx: tx.create_workflow("leaf", id=f"{me}-taken", params=0)),
        retries=EVER,
    )  # fmt: skip
    result: list[object] = [await step.run_workflow("good", "leaf", id=f"{me}-good", params="ok")]
    for name, workflow, options in (
        ("bad", "leaf", {"params": "bad"}),
        ("late", "sleeper", {"timeout": "1 hour"}),
        ("taken", "leaf", {"params": 1}),
    ):
        try:
            await step.run_workflow(name, workflow, id=f"{me}-{name}", **options)
        except ChildWorkflowError:
            result.append(await step.do(f"after {name}", work.at_once(name), retries=SOON))
    return result


async def brief(event: Event, step: Step, work: Work) -> object:
    return event.payload


@shape(brief)
async def refused(event: Event, step: Step, work: Work) -> object:
    """Creates again and again what is there: each refusal has to reach it."""
    taken = f"{event.instance_id}-taken"

    def create(tx: StepTx) -> None:
        tx.create_workflow("brief", id=taken, params=0)

    await step.do("make", work.tx(create), retries=EVER)
    result = 0
    for number in range(8):
        try:
            await step.run_workflow(f"again {number}", "brief", id=taken)
        except ChildWorkflowError:
            result += 1
    return result


async def middle(event: Event, step: Step, work: Work) -> object:
    value = await step.do("load", work.do(event.payload), retries=EVER)
    return [value, await step.run_workflow("leaf", "leaf", params=value)]


@shape(middle, leaf, restarts=True)
async def family(event: Event, step: Step, work: Work) -> object:
    calls = (step.run_workflow(f"child {n}", "middle", params=n) for n in range(3))
    return await asyncio.gather(*calls)


@shape(sleeper, leaf)
async def orphans(event: Event, step: Step, work: Work) -> None:
    await step.checkpoint("start")
    await step.do("reserve", work.do(), retries=EVER, rollback=work.undo("reserve"))

    async def child(step: Step) -> None:
        await step.run_workflow("child", "sleeper")

    async def fails(step: Step) -> None:
        await step.run_workflow("leaf", "leaf", params=2)
        await step.do("load", work.do(), retries=EVER, rollback=work.undo(f"{step.scope}/load"))

    await step.race("some", child=child, fails=fails)
    await asyncio.gather(
        step.run_workflow("for ever", "sleeper"),
        step.do("break", _refuses),
    )


@shape(restarts=True, strict=True)
async def gathers(event: Event, step: Step, work: Work) -> object:
    first = await asyncio.gather(
        *(step.do(f"step {number}", work.do(number), retries=EVER) for number in range(4)),
        step.sleep("nap", "10 seconds"),
    )

    async def two(name: str) -> list[object]:
        return [
            await step.do(f"{name}1", work.at_once(name), retries=SOON),
            await step.do(f"{name}2", work.do(name), retries=EVER),
        ]

    tasks = [asyncio.create_task(two(name)) for name in "ab"]
    work.drawn("now", (await step.now()).isoformat())
    return [first, [await task for task in tasks]]


async def collector(event: Event, step: Step, work: Work) -> object:
    async def collect(step: Step, state: list[object]) -> object:
        got = await step.wait_for_events("page", types=["page"], limit=3, timeout=LONG)
        state = sorted([*state, *(item.payload for item in got)])
        # None come when an operator has ended who sends them.
        all_there = len(state) == event.payload["n"] or not got
        return Break(state) if all_there else Continue(state)

    result = await step.loop("pages", collect, state=[])
    to = event.payload["to"]
    await step.do(
        "done", work.tx(lambda tx: tx.send_event(*to, "done", result), len(result)), retries=EVER
    )
    # What is sent twice but counted once must not turn up here.
    return [result, await step.wait_for_events("more", types=["page"], timeout="1 minute")]


@shape(collector)
async def transactions(event: Event, step: Step, work: Work) -> object:
    there = f"{event.instance_id}-collector"
    to = [event.workflow_name, event.instance_id]

    async def one_page(step: Step, n: int) -> object:
        def fill(tx: StepTx) -> None:
            tx.create_workflow("collector", id=there, params={"n": 5, "to": to})
            tx.send_event("collector", there, "page", n)
            tx.publish("pages", there, n)

        await step.do("save", work.tx(fill, n), retries=EVER)
        return Break(n) if n == 4 else Continue(n + 1)

    await step.loop("pages", one_page, state=0, commit_interval=3)
    done = await step.wait_for_event("done", type="done", timeout=LONG)
    return done.payload


async def sender(event: Event, step: Step, work: Work) -> None:
    for number in range(2):
        value = f"{event.payload['name']}{number}"
        await step.do(
            f"send {number}",
            work.tx(lambda tx, v=value: tx.send_event(*event.payload["to"], "hello", v)),
            retries=EVER,
        )


@shape(sender)
async def crowd(event: Event, step: Step, work: Work) -> object:
    to = [event.workflow_name, event.instance_id]

    def fill(tx: StepTx) -> None:
        for name in "abc":
            params = {"name": name, "to": to}
            tx.create_workflow("sender", id=f"{event.instance_id}-{name}", params=params)

    await step.do("begin", work.tx(fill), retries=EVER)
    got: list[object] = []
    while len(got) < 6:
        hello = await step.wait_for_event(f"hello {len(got)}", type="hello", timeout=LONG)
        got.append(hello.payload)
    more = await step.wait_for_events("more", types=["hello"], timeout="1 minute")
    return [sorted(map(str, got)), more]


@shape(leaf, restarts=True, retries=True)
async def mended(event: Event, step: Step, work: Work) -> object:
    """Each of its parts fails in one run more than the part before."""
    work.drawn("timestamp", event.timestamp.isoformat())
    work.drawn("uuid", await step.uuid())
    result: list[object] = [await step.do("first", work.do(1), retries=EVER)]

    async def good(step: Step) -> object:
        value = await step.do("a", work.do("a"), retries=EVER)
        await step.sleep("nap", "3 minutes")
        return [value, await step.do("b", work.at_once("b"), retries=SOON)]

    async def bad(step: Step) -> object:
        await step.do("c", work.do("c"), retries=EVER)
        return await step.do("d", work.broken("d"), retries=EVER)

    async def never(step: Step) -> None:
        await step.do("begin", work.do(), retries=EVER)
        await step.sleep("nap", LONG)

    both = await step.join("both", good=good, bad=bad)
    result += [both["good"], both["bad"]]
    result.append(await step.run_workflow("leaf", "leaf", params=2))

    async def turn(step: Step, state: list[object]) -> object:
        n = len(state)
        work.drawn(f"{step.scope}/dice", await step.random())
        got = await step.do("work", work.broken(n, runs=2 if n == 3 else 0), retries=EVER)
        won = await step.race("race", good=good, never=never) if n in (1, 3) else None
        state = [*state, [got, won and won.value]]
        return Break(state) if len(state) == 5 else Continue(state)

    options = {"commit_interval": 2, "history_every": 2, "history_keep": 2}
    result.append(await step.loop("turns", turn, state=[], **options))
    return result + await asyncio.gather(
        step.run_workflow("child", "leaf", params=3),
        step.sleep("nap", "1 minute"),
        step.do("more", work.do("more"), retries=EVER),
        step.do("last", work.broken("last", runs=3), retries=EVER),
    )


@shape(leaf, restarts=True, retries=True)
async def undone(event: Event, step: Step, work: Work) -> object:
    """Is rolled back and tried again: what was undone is done in the run that ends well."""
    await step.checkpoint("before money")
    done = [await step.do(n, work.numbered(), retries=EVER, rollback=work.undo(n)) for n in "ab"]

    async def branch(step: Step) -> int:
        key = f"{step.scope}/pay"
        return await step.do("pay", work.numbered(), retries=EVER, rollback=work.undo(key))

    async def nap(step: Step) -> int:
        await step.sleep("nap", LONG)
        return await branch(step)

    won = await step.race("first", branch=branch, nap=nap)

    async def turn(step: Step, state: list[int]) -> object:
        state = [*state, await branch(step)]
        return Break(state) if len(state) == 4 else Continue(state)

    done += [won.value, *await step.loop("turns", turn, state=[], commit_interval=2)]
    try:
        await step.do("met", _refuses)
    except StepFailedError:
        await step.do("after", work.do(), retries=EVER)
    await asyncio.gather(
        step.run_workflow("child", "leaf", params=3),
        step.do("last", work.broken(runs=2), retries=EVER),
    )
    return [number == event.run_number for number in done]


# -- programs drawn from the variant: whatever can be nested is


_LEAVES: Final = ("do", "do", "once", "sleep", "wait", "fail")
_LEAVES_THAT_FAIL: Final = ("undo", "undo at once", "sleep", "wait", "break", "refuse")


def draw(
    seed: random.Random, depth: int, size: list[int], leaves: tuple[str, ...] = _LEAVES
) -> list[Any]:
    """A tree of entries; each has a number, which is its name."""
    size[0] += 1
    number = size[0]
    nodes = ["seq", "join", "race", "sure", "loop", "gather"]
    kind = seed.choice(leaves if depth == 0 or size[0] > 14 else [*leaves[:2], *nodes * 2])
    if kind in nodes:
        count = 1 if kind == "loop" else seed.randint(1, 3)
        return [kind, number, [draw(seed, depth - 1, size, leaves) for _ in range(count)]]
    return [kind, number]


async def _evaluate(node: list[Any], step: Step, work: Work) -> object:  # noqa: C901, PLR0911, PLR0912
    name = str(node[1])

    def branch(each: list[Any]) -> Any:  # noqa: ANN401
        async def run(step: Step) -> object:
            return await _evaluate(each, step, work)

        return run

    async def turn(step: Step, state: list[object]) -> object:
        state = [*state, await _evaluate(node[2][0], step, work)]
        return Break(state) if len(state) == 3 else Continue(state)

    async def never(step: Step) -> None:
        await step.sleep("never", LONG)

    match node[0]:
        case "do":
            return await step.do(name, work.do(node[1]), retries=EVER)
        case "once":
            return await step.do(name, work.at_once(node[1]), retries=SOON)
        case "sleep":
            return await step.sleep(name, f"{node[1]} seconds")
        case "wait":
            return await step.wait_for_events(name, types=["never"], timeout=f"{node[1]} seconds")
        case "undo" | "undo at once":
            callback = work.do(node[1]) if node[0] == "undo" else work.at_once(node[1], 0)
            undo = work.undo(step.key(name))
            return await step.do(name, callback, retries=EVER, rollback=undo)
        case "break":
            return await step.do(name, work.broken(runs=99))
        case "refuse":
            return await step.do(name, _refuses)
        case "fail":
            try:
                return await step.do(name, _fails, retries=ONCE)
            except StepFailedError as error:
                return error.name
        case "seq":
            return [await _evaluate(item, step, work) for item in node[2]]
        case "gather":
            return await asyncio.gather(*(_evaluate(item, step, work) for item in node[2]))
        case "join":
            return await step.join(name, **{f"b{item[1]}": branch(item) for item in node[2]})
        case "race":
            await step.race(name, **{f"b{item[1]}": branch(item) for item in node[2]})
            return "raced"
        case "sure":
            won = await step.race(name, never=never, sure=branch(node[2][0]))
            return won.value
        case _:
            options = {"commit_interval": 2, "history_every": 2, "history_keep": 1}
            return await step.loop(name, turn, state=[], **options)


@shape(restarts=True)
async def drawn(event: Event, step: Step, work: Work) -> object:
    seed = random.Random(event.payload["variant"])
    trees = [draw(seed, 3, [100 * n]) for n in range(2)]
    return [await _evaluate(tree, step, work) for tree in trees]


@shape(restarts=True)
async def left_behind(event: Event, step: Step, work: Work) -> object:
    """Failures that leave entries under way everywhere, and a rollback at the end of them."""
    seed = random.Random(event.payload["variant"])
    await step.checkpoint("before")
    for number in range(2):
        with contextlib.suppress(Exception):
            await _evaluate(draw(seed, 3, [100 * number], _LEAVES_THAT_FAIL), step, work)
    raise NonRetryableError("the end")


_LEAVES_TO_UNDO: Final = ("undo", "undo", "undo at once", "sleep", "wait")


@shape(leaf, restarts=True)
async def tidies(event: Event, step: Step, work: Work) -> object:
    """Cleans up where it is told that it is cancelled, and sometimes goes on all the same."""
    seed = random.Random(event.payload["variant"])
    trees = [draw(seed, 3, [100 * number], _LEAVES_TO_UNDO) for number in range(3)]
    swallows = seed.random() < 0.5
    await step.checkpoint("before")

    async def turn(step: Step, number: int) -> object:
        try:
            await _evaluate(trees[0], step, work)
        except asyncio.CancelledError:
            key = f"{step.scope}/tidy"
            await step.do("tidy", work.do(), retries=EVER, rollback=work.undo(key))
            if not swallows:
                raise
        return Break(number) if number == 3 else Continue(number + 1)

    try:
        await step.run_workflow("leaf", "leaf", params=1)
        await step.loop("turns", turn, state=0, commit_interval=1 + seed.randrange(2))
        await _evaluate(trees[1], step, work)
    except asyncio.CancelledError:
        await step.log.info("told")
        await _evaluate(trees[2], step, work)
        if not swallows:
            raise
    return "done"


__all__ = ["SHAPES"]


#: Not of code: told to add, it ends at three.
SHAPES["count"] = Shape(
    "count", {}, script=tuple(("add", 1) for _ in range(3)), kind=CounterEngine.kind
)


async def guest(event: Event, step: Step, work: Work) -> object:
    await step.do("enter", work.do(), retries=EVER)
    await step.sleep("stay", "1 minute")
    if event.payload.get("falls"):
        raise LookupError("no chair is free")
    return await step.do("leave", work.do(event.payload["n"]), retries=EVER)


@shape(
    guest, restarts=True, limits={"limited": Concurrency(1), "guest": Concurrency(2, "params.room")}
)
async def limited(event: Event, step: Step, work: Work) -> object:
    """Of it and of its guests only so many are under way at once."""
    calls = (
        step.run_workflow(f"guest {n}", "guest", params={"room": n % 2, "n": n}) for n in range(4)
    )
    return await asyncio.gather(*calls)
