"""Callbacks in threads: what they get, what they give, and what becomes of those that hang."""

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable

import pytest

from headwater import Step, StepTx, WorkflowEvent, workflow
from headwater.processors.code.host_messages import Activate
from headwater.processors.runs.decisions import StepReturned
from headwater.processors.runs.host_messages import Evict
from headwater.streams.code_host.host import Host
from headwater.streams.code_host.threads import Threads
from headwater.streams.replay.host_port import ATTEMPT, CurrentAttempt

PATIENCE_S = 60
COLOUR = contextvars.ContextVar("COLOUR", default="none")


def drive(scenario: Callable[[Threads, list[str]], Awaitable[None]]) -> list[str]:
    """Runs a scenario with two threads; gives what it has been told."""
    reported: list[str] = []

    async def run() -> None:
        threads = Threads(lambda: reported.append("exhausted"), limit=2)
        async with asyncio.timeout(PATIENCE_S):
            await scenario(threads, reported)

    asyncio.run(run())
    return reported


def test_a_callback_has_its_callers_context_and_a_thread_of_its_own():
    async def scenario(threads: Threads, _: list[str]) -> None:
        COLOUR.set("red")
        here = threading.get_ident()
        colour, there = await threads.call(lambda extra: (COLOUR.get() + extra, _ident()), "!")
        assert colour == "red!"
        assert there != here

    drive(scenario)


def _ident() -> int:
    return threading.get_ident()


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), asyncio.CancelledError()])
def test_what_a_callback_raises_arrives(error: BaseException):
    async def scenario(threads: Threads, _: list[str]) -> None:
        with pytest.raises(type(error)):
            await threads.call(_raise, error)
        assert await threads.call(lambda: "still here") == "still here"

    assert drive(scenario) == []


def _raise(error: BaseException) -> None:
    raise error


def test_stop_iteration_does_not_hang():
    async def scenario(threads: Threads, _: list[str]) -> None:
        with pytest.raises(RuntimeError, match="StopIteration"):
            await threads.call(next, iter([]))

    drive(scenario)


class Hanging:
    """Callbacks that hang until they are let go; whoever awaits `began` knows that one runs."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._began = asyncio.Semaphore(0)
        self.let_go = threading.Event()

    def __call__(self) -> None:
        self._loop.call_soon_threadsafe(self._began.release)
        self.let_go.wait(PATIENCE_S)

    async def began(self) -> None:
        await self._began.acquire()


def test_callbacks_that_are_given_up_keep_their_threads_until_they_return():
    async def scenario(threads: Threads, told: list[str]) -> None:
        hanging = Hanging()
        first, second, queued = [asyncio.create_task(threads.call(hanging)) for _ in range(3)]
        await hanging.began()
        await hanging.began()
        await _cancelled(queued)
        await _cancelled(first)
        assert told == []
        await _cancelled(second)
        assert told == ["exhausted"]
        hanging.let_go.set()
        # They meet only if both threads are free again.
        meeting = threading.Barrier(2, timeout=PATIENCE_S)
        await asyncio.gather(*(threads.call(meeting.wait) for _ in range(2)))
        again = Hanging()
        third = asyncio.create_task(threads.call(again))
        await again.began()
        await _cancelled(third)
        again.let_go.set()
        assert told == ["exhausted"]

    drive(scenario)


async def _cancelled(task: asyncio.Task[object]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_threads_that_are_held_are_counted_until_they_return():
    held: list[int] = []

    async def scenario() -> None:
        free = asyncio.Event()

        def count(number: int) -> None:
            held.append(number)
            if not number:
                free.set()

        threads = Threads(lambda: None, 3, count)
        hanging = Hanging()
        calls = [asyncio.create_task(threads.call(hanging)) for _ in range(2)]
        for _ in calls:
            await hanging.began()
        for call in calls:
            await _cancelled(call)
        assert held == [1, 2]
        hanging.let_go.set()
        async with asyncio.timeout(PATIENCE_S):
            await free.wait()

    asyncio.run(scenario())
    assert held == [1, 2, 1, 0]


def test_a_callback_in_a_thread_hears_that_its_attempt_is_given_up():
    heard: list[bool] = []
    begun, reported = threading.Event(), threading.Event()

    def wait(tx: StepTx) -> None:
        begun.set()
        heard.append(tx.cancelled(PATIENCE_S))
        reported.set()

    async def quick(step: Step) -> str:
        return await step.do("quick", lambda: "won")

    async def slow(step: Step) -> None:
        await step.do("slow", wait)

    @workflow("hedge")
    async def hedge(event: WorkflowEvent, step: Step) -> str:
        return (await step.race("first", quick=quick, slow=slow)).winner

    async def scenario() -> None:
        ended: asyncio.Queue[object] = asyncio.Queue()
        threads = Threads(lambda: None, 2)
        host = Host(
            {"hedge": hedge}, emit=ended.put_nowait, now_ms=lambda: 0, call_sync=threads.call
        )
        host.handle([Activate(1, "hedge", "i", 0, "null", "s", 0, 0, 0, 0, {}, 10, {}, 0)])
        while not isinstance(getattr(await ended.get(), "request", None), StepReturned):
            pass
        assert await asyncio.to_thread(begun.wait, PATIENCE_S)
        # As the owner says it when the race is decided: the loser's attempt is not wanted.
        host.handle([Evict(1)])
        assert await asyncio.to_thread(reported.wait, PATIENCE_S)
        host.stop()

    asyncio.run(scenario())
    assert heard == [True]


def test_a_thread_that_does_not_return_is_counted_and_named_with_its_step(
    caplog: pytest.LogCaptureFixture,
):
    async def scenario(threads: Threads, _: list[str]) -> None:
        ATTEMPT.set(CurrentAttempt("charge", 3, "order/o-1"))
        hanging = Hanging()
        call = asyncio.create_task(threads.call(hanging))
        await hanging.began()
        call.cancel()
        await asyncio.wait([call])
        hanging.let_go.set()

    drive(scenario)
    assert "1 of 2 threads are held" in caplog.text
    assert 'attempt 3 of "charge" of order/o-1' in caplog.text


@pytest.mark.parametrize("is_async", [True, False])
def test_a_step_begins_only_while_its_partition_is_surely_owned(is_async: bool):
    owned, requested, begun = False, asyncio.Event(), threading.Event()

    def may_begin(_activation: int) -> bool:
        requested.set()
        return owned

    async def paid() -> str:
        begun.set()
        return "paid"

    def pays() -> str:
        begun.set()
        return "paid"

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> str:
        return await step.do("pay", paid if is_async else pays)

    async def scenario() -> None:
        nonlocal owned
        sent: asyncio.Queue[object] = asyncio.Queue()
        host = Host(
            {"order": order},
            emit=sent.put_nowait,
            now_ms=lambda: 0,
            call_sync=Threads(lambda: None, 2).call,
            may_begin=may_begin,
        )
        host.handle([Activate(1, "order", "i", 0, "null", "s", 0, 0, 0, 0, {}, 10, {}, 0)])
        async with asyncio.timeout(PATIENCE_S):
            await requested.wait()
            requested.clear()
            await requested.wait()
            assert not begun.is_set()
            owned = True
            while not isinstance(getattr(await sent.get(), "request", None), StepReturned):
                pass
        host.stop()

    asyncio.run(scenario())
    assert begun.is_set()


def test_a_step_that_waited_for_a_thread_does_not_begin_after_its_deadline():
    owned, begun = True, threading.Event()

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> str:
        return await step.do("pay", begun.set)

    async def scenario() -> None:
        nonlocal owned
        threads, hanging = Threads(lambda: None, 1), Hanging()
        host = Host(
            {"order": order},
            emit=lambda _: None,
            now_ms=lambda: 0,
            call_sync=threads.call,
            may_begin=lambda _: owned,
        )
        holding = asyncio.create_task(threads.call(hanging))
        async with asyncio.timeout(PATIENCE_S):
            await hanging.began()
            host.handle([Activate(1, "order", "i", 0, "null", "s", 0, 0, 0, 0, {}, 10, {}, 0)])
            # Its attempt has begun, and waits for the one thread.
            while threads._pool._work_queue.empty():  # noqa: ASYNC110, nobody would set an event
                await asyncio.sleep(0)
            owned = False
            hanging.let_go.set()
            await holding
            await threads.call(lambda: None)
            assert not begun.is_set()
            host.handle([Evict(1)])
        host.stop()

    asyncio.run(scenario())
    assert not begun.is_set()
