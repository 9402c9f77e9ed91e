"""Programs drawn from a seed, in which whatever authors can nest is nested.

Beside what it returns, a program has a list that all of its code adds to, and sometimes decides by:
it shows in which order its parts went on.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final, TypeAlias

from headwater import (
    Break,
    ChildWorkflowError,
    Continue,
    NonRetryableError,
    Retry,
    RollbackError,
    Step,
    StepTx,
    Workflow,
    WorkflowEvent,
    workflow,
)
from headwater.streams.replay.host_port import ATTEMPT

#: A kind, a number that no other node has, a small number, and what is within.
Node: TypeAlias = tuple[str, int, int, list["Node"]]
_LEAVES: Final = (
    *("step", "step", "tries", "tries", "undone", "undone", "sleep", "sleep", "wait", "waits"),
    *("fails", "raises", "stops", "now", "chance", "line", "mark", "child", "again"),
    *("turns", "turns", "turns"),
)
_NODES: Final = {
    "seq": 3, "join": 3, "race": 3, "gather": 3, "settle": 3, "first": 3, "loop": 1, "cycle": 1,
    "catch": 1, "tidies": 2, "cancels": 2, "decides": 2, "locked": 2, "waits_for": 2, "group": 3,
    "breaks": 1, "abandons": 2, "leaks": 2, "shields": 1,
}  # fmt: skip
_CONTAINERS: Final = ("join", "race", "cycle")


def drawn(draw: Random, depth: int, numbers: list[int], least: int) -> Node:
    """Draw a program.

    Args:
        draw: Source of the random choices.
        depth: Levels of nodes above the leaves, at most.
        numbers: Numbers that are left for its nodes.
        least: How many of these have to be left for a node with others in it.
    """
    number, small = numbers.pop(), draw.randint(0, 6)
    if not depth or len(numbers) < least:
        return (draw.choice(_LEAVES), number, small, [])
    kind = draw.choice([*_NODES, "seq", "seq", *_CONTAINERS])
    most = _NODES[kind]
    count = draw.randint(1, 3) if most == 3 else most
    return (kind, number, small, [drawn(draw, depth - 1, numbers, least) for _ in range(count)])


def drawn_collapse(draw: Random, numbers: list[int]) -> Node:
    """Draw a failure beside nested containers, of which some end in the same few turns."""
    node = drawn(draw, draw.randint(0, 1), numbers, 0)
    if draw.random() < 0.7:
        node = ("turns", numbers.pop(), draw.randint(0, 6), [])
    for kind in [*draw.choices(_CONTAINERS, k=draw.randint(1, 3)), "breaks"]:
        node = (kind, numbers.pop(), draw.randint(0, 6), [node])
    for kind in draw.choices([*_CONTAINERS, "catch", "breaks"], k=draw.randint(0, 3)):
        node = (kind, numbers.pop(), draw.randint(0, 6), [node])
    return node


class Program:
    """A program as workflows: `root`, and `child`, which it starts.

    Shape:  `called` has the attempts of its callbacks that were begun. Times differ by the
            milliseconds of a node's number, so that nothing happens at the same time as another.
    """

    def __init__(self, *nodes: Node) -> None:
        self._nodes = nodes
        self.called: list[tuple[str, int]] = []

    def workflows(self) -> list[Workflow]:
        @workflow("child")
        async def child(event: WorkflowEvent[int], step: Step) -> object:
            await step.sleep("nap", event.payload * 1_000 + 7)
            if event.payload == 3:
                raise LookupError("the child fails")
            return await step.do("work", self._callback(1, of=f"{event.instance_id} "))

        @workflow("root")
        async def root(event: WorkflowEvent[None], step: Step) -> object:
            await step.checkpoint("begin")
            said: list[object] = []
            return [[await self._run(node, step, said) for node in self._nodes], said]

        return [root, child]

    async def _run(self, node: Node, step: Step, said: list[object]) -> Any:  # noqa: ANN401
        kind, number, small, within = node
        try:
            if within:
                return await getattr(self, f"_{kind}")(f"{kind}{number}", node, step, said)
            result = await getattr(self, f"_{kind}")(f"{kind}{number}", number, small, step)
        except asyncio.CancelledError:
            said.append(f"{kind}{number} is cancelled")
            raise
        said.append(result)
        return result

    def _of(self, node: Node, said: list[object]) -> list[Callable[[Step], Awaitable[Any]]]:
        def code(each: Node) -> Callable[[Step], Awaitable[Any]]:
            return lambda step: self._run(each, step, said)

        return [code(item) for item in node[3]]

    def _callback(self, value: object, failures: float = 0, of: str = "") -> Callable[[], object]:
        def callback() -> object:
            attempt = ATTEMPT.get()
            assert attempt is not None
            self.called.append((of + attempt.key, attempt.number))
            if attempt.number <= failures:
                raise ConnectionError(f"{attempt.key} {attempt.number}")
            return value

        return callback

    # -- leaves

    async def _step(self, name: str, number: int, _: int, step: Step) -> object:
        return await step.do(name, self._callback(number))

    async def _tries(self, name: str, number: int, small: int, step: Step) -> object:
        def tries(tx: StepTx) -> object:
            tx.publish("t", name, small)
            return self._callback(number, small % 4)()

        backoff = ("constant", "linear", "exponential")[small % 3]
        retries = Retry(limit=2, delay=small * 1_000 + number, backoff=backoff)
        return await step.do(name, tries, retries=retries)

    async def _undone(self, name: str, number: int, small: int, step: Step) -> object:
        key = step.key(name)
        retries = Retry(limit=3, delay=2_000 + number)
        undo = lambda _: self.called.append((f"undo {key}", 0))  # noqa: E731
        return await step.do(
            name, self._callback(number, small % 2), retries=retries, rollback=undo
        )

    async def _again(self, _: str, number: int, __: int, step: Step) -> object:
        return await step.do("again", self._callback(number))

    async def _fails(self, name: str, _: int, small: int, step: Step) -> object:
        def fails() -> None:
            raise NonRetryableError(name)

        return await step.do(name, self._callback(0, 9) if small else fails, retries=Retry(limit=0))

    async def _raises(self, name: str, _: int, __: int, ___: Step) -> None:
        raise LookupError(name)

    async def _stops(self, name: str, _: int, small: int, __: Step) -> None:
        if not small:
            raise RollbackError(name)

    async def _sleep(self, name: str, number: int, small: int, step: Step) -> None:
        await step.sleep(name, small * 1_000 + number if small else 0)

    async def _wait(self, name: str, number: int, small: int, step: Step) -> object:
        timeout = (1 + small) * 1_000 + number
        got = await step.wait_for_event(name, type=f"e{small % 3}", timeout=timeout)
        return got.payload

    async def _waits(self, name: str, number: int, small: int, step: Step) -> object:
        timeout = (1 + small) * 1_000 + number
        got = await step.wait_for_events(name, types=["e0", "e1"], limit=2, timeout=timeout)
        return [item.payload for item in got]

    async def _now(self, _: str, __: int, ___: int, step: Step) -> str:
        return (await step.now()).isoformat()

    async def _chance(self, _: str, __: int, ___: int, step: Step) -> object:
        return [await step.uuid(), await step.random()]

    async def _line(self, name: str, _: int, small: int, step: Step) -> None:
        for line in range(1 + small % 2):
            await step.log.info(f"{name} {line}")  # noqa: G004, the log of the run

    async def _mark(self, name: str, _: int, small: int, step: Step) -> None:
        await (step.removed(name, kind="step") if small % 2 else step.checkpoint(name))

    async def _child(self, name: str, number: int, small: int, step: Step) -> object:
        timeout = (1 + small % 4) * 1_000 + number
        try:
            return await step.run_workflow(name, "child", params=small, timeout=timeout)
        except ChildWorkflowError:
            return "no child"

    async def _turns(self, _: str, __: int, small: int, ___: Step) -> int:
        await _turns(small)
        return small

    # -- nodes

    async def _seq(self, _: str, node: Node, step: Step, said: list[object]) -> object:
        return [await item(step) for item in self._of(node, said)]

    async def _join(self, name: str, node: Node, step: Step, said: list[object]) -> object:
        branches = {f"b{n}": item for n, item in enumerate(self._of(node, said))}
        return await step.join(name, **branches)

    async def _race(self, name: str, node: Node, step: Step, said: list[object]) -> object:
        branches = {f"b{n}": item for n, item in enumerate(self._of(node, said))}
        won = await step.race(name, **branches)
        return [won.winner, won.value]

    async def _loop(self, name: str, node: Node, step: Step, said: list[object]) -> object:
        async def turn(step: Step, state: list[object]) -> object:
            # What a loop does to variables is lost with iterations that a replay passes over.
            mine: list[object] = []
            try:
                result = await self._run(node[3][0], step, mine)
            except Exception as error:  # noqa: BLE001, whatever it is
                result = type(error).__name__
            state = [*state, [result, mine]]
            return Break(state) if len(state) > node[2] else Continue(state)

        number = node[1]
        return await step.loop(
            name,
            turn,
            state=[],
            commit_interval=1 + number % 3,
            history_every=1 + number % 4,
            history_keep=1 + number % 2,
        )

    async def _cycle(self, name: str, node: Node, step: Step, said: list[object]) -> object:
        async def turn(step: Step, state: list[object]) -> object:
            mine: list[object] = []
            state = [*state, [await self._run(node[3][0], step, mine), mine]]
            return Break(state) if len(state) > node[2] // 3 else Continue(state)

        return await step.loop(name, turn, state=[], commit_interval=1 + node[1] % 2)

    async def _gather(self, _: str, node: Node, step: Step, said: list[object]) -> object:
        return await asyncio.gather(*(item(step) for item in self._of(node, said)))

    async def _settle(self, _: str, node: Node, step: Step, said: list[object]) -> object:
        calls = (item(step) for item in self._of(node, said))
        return [_shown(item) for item in await asyncio.gather(*calls, return_exceptions=True)]

    async def _first(self, _: str, node: Node, step: Step, said: list[object]) -> object:
        tasks = [asyncio.ensure_future(item(step)) for item in self._of(node, said)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        return [_shown(item) for item in await asyncio.gather(*tasks, return_exceptions=True)]

    async def _cancels(self, _: str, node: Node, step: Step, said: list[object]) -> object:
        alongside, code = self._of(node, said)
        task = asyncio.ensure_future(alongside(step))
        try:
            result = await code(step)
        finally:
            task.cancel()
            said.append(_shown((await asyncio.gather(task, return_exceptions=True))[0]))
        return result

    async def _waits_for(self, _: str, node: Node, step: Step, said: list[object]) -> object:
        alongside, code = self._of(node, said)
        task = asyncio.ensure_future(alongside(step))
        try:
            result = await code(step)
        finally:
            said.append(_shown((await asyncio.gather(task, return_exceptions=True))[0]))
        return result

    async def _breaks(self, name: str, node: Node, step: Step, said: list[object]) -> object:
        async def breaks() -> None:
            await _turns(node[2])
            raise LookupError(name)

        code = self._of(node, said)[0](step)
        return await asyncio.gather(*([code, breaks()] if node[1] % 2 else [breaks(), code]))

    async def _abandons(self, name: str, node: Node, step: Step, said: list[object]) -> object:
        alongside, code = self._of(node, said)
        task = asyncio.ensure_future(alongside(step))
        await code(step)
        raise LookupError(f"{name} {task!r:.0}")

    async def _leaks(self, _: str, node: Node, step: Step, said: list[object]) -> object:
        alongside, code = self._of(node, said)
        task = asyncio.ensure_future(alongside(step))
        return [await code(step), f"{task!r:.0}"]

    async def _shields(self, _: str, node: Node, step: Step, said: list[object]) -> object:
        return await asyncio.shield(self._of(node, said)[0](step))

    async def _group(self, _: str, node: Node, step: Step, said: list[object]) -> object:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(item(step)) for item in self._of(node, said)]
        return [task.result() for task in tasks]

    async def _catch(self, _: str, node: Node, step: Step, said: list[object]) -> object:
        try:
            return await self._of(node, said)[0](step)
        except Exception as error:  # noqa: BLE001, whatever it is
            return type(error).__name__

    async def _tidies(self, _: str, node: Node, step: Step, said: list[object]) -> object:
        code, cleans_up = self._of(node, said)
        try:
            return await code(step)
        finally:
            await cleans_up(step)

    async def _decides(self, _: str, node: Node, step: Step, said: list[object]) -> object:
        return await self._of(node, said)[len(json.dumps(said)) % 2](step)

    async def _locked(self, _: str, node: Node, step: Step, said: list[object]) -> object:
        lock = asyncio.Lock()

        async def alone(code: Callable[[Step], Awaitable[Any]]) -> object:
            async with lock:
                return await code(step)

        return await asyncio.gather(*(alone(item) for item in self._of(node, said)))


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def _shown(found: object) -> object:
    return type(found).__name__ if isinstance(found, BaseException) else found
