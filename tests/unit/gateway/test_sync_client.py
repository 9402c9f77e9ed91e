"""The client without an event loop: results, lists, errors, threads and forks."""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor

import httpx2
import pytest

import headwater
from headwater.gateway.client.sync_client import SyncClient
from headwater.schemas.failures import InstanceNotFoundError
from tests.unit.gateway.workflow_network import (
    BASE_URL,
    Network,
    answer,
    described,
    listed_as,
    problem,
)


def page(*ids: str, cursor: str | None = None) -> httpx2.Response:
    instances = [listed_as(instance_id) for instance_id in ids]
    return answer({"instances": instances, "hasNextPage": cursor is not None, "cursor": cursor})


def client(network: Network) -> SyncClient:
    return SyncClient(BASE_URL, key="k", transport=network, retries=0)


def live_threads() -> int:
    return sum(thread.name == "headwater client" for thread in threading.enumerate())


def test_it_is_public() -> None:
    assert headwater.SyncClient is SyncClient


def test_methods_of_the_client_and_of_its_handles_are_run() -> None:
    network = Network(answer({"workflows": [{"name": "order"}]}), answer(described("waiting")))
    with client(network) as opened:
        assert [workflow.name for workflow in opened.run(opened.workflows())] == ["order"]
        handle = opened.workflow("order").get("order-1")
        assert opened.run(handle.status()).status == "waiting"
    assert network.lines == ["GET /workflows", "GET /workflows/order/instances/order-1"]


def test_many_are_iterated_page_by_page_as_far_as_they_are_needed() -> None:
    network = Network(page("a", "b", cursor="c"), page("d"))
    with client(network) as opened:
        items = opened.iterate(opened.instances())
        assert [next(items).id, next(items).id] == ["a", "b"]
        assert len(network.asked) == 1
        assert [item.id for item in items] == ["d"]


def test_who_stops_early_closes_the_iteration() -> None:
    network = Network(page("a", "b", cursor="c"))
    with client(network) as opened:
        items = opened.iterate(opened.instances())
        assert next(items).id == "a"
        items.close()
    assert len(network.asked) == 1


def test_errors_are_those_of_the_client() -> None:
    network = Network(problem(404, "INSTANCE_NOT_FOUND"))
    with client(network) as opened, pytest.raises(InstanceNotFoundError):
        opened.run(opened.workflow("order").get("order-1").status())


def test_nothing_is_started_before_the_first_call_and_nothing_is_left() -> None:
    before = live_threads()
    opened = client(Network(answer({"workflows": []}), answer({"workflows": []})))
    opened.close()
    assert live_threads() == before
    opened.run(opened.workflows())
    assert live_threads() == before + 1
    opened.close()
    assert live_threads() == before
    opened.run(opened.workflows())  # opens it again
    opened.close()
    assert live_threads() == before


def test_threads_share_one_client_and_its_connections() -> None:
    loops = set()

    def workflows(_request: httpx2.Request) -> httpx2.Response:
        loops.add(asyncio.get_running_loop())
        return answer({"workflows": []})

    calls = 40
    with client(Network(*[workflows] * calls)) as opened, ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: opened.run(opened.workflows()), range(calls)))
    assert results == [[]] * calls
    assert len(loops) == 1


def in_child(work: Callable[[], object]) -> int:
    """Return the exit code of a child process that does the work."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001 (the parent sees the exit code)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_client_that_was_made_before_a_fork_works_after_it() -> None:
    opened = client(Network(answer({"workflows": []})))
    assert in_child(lambda: opened.run(opened.workflows())) == 0


def test_an_interrupted_call_is_canceled() -> None:
    begun, canceled = threading.Event(), threading.Event()

    async def never() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            canceled.set()
            raise

    with client(Network()) as opened:
        interrupt = threading.Timer(0, lambda: begun.wait(5) and _interrupt())
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            opened.run(never())
        assert canceled.wait(5)


def test_interrupted_items_are_closed_before_the_interrupt_is_seen() -> None:
    begun, closed = threading.Event(), threading.Event()

    async def one_and_no_more() -> AsyncGenerator[int, None]:
        try:
            yield 1
            begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            closed.set()

    with client(Network()) as opened:
        threading.Timer(0, lambda: begun.wait(5) and _interrupt()).start()
        with pytest.raises(KeyboardInterrupt):
            list(opened.iterate(one_and_no_more()))
        assert closed.is_set()


def test_closing_ends_the_calls_of_other_threads() -> None:
    begun = threading.Event()

    async def never() -> None:
        begun.set()
        await asyncio.Event().wait()

    opened = client(Network(answer({"workflows": []})))
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(opened.run, never())
        assert begun.wait(5)
        opened.close()
        with pytest.raises(CancelledError):
            call.result(5)
    assert opened.run(opened.workflows()) == []
    opened.close()


def test_an_opening_that_failed_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = client(Network(answer({"workflows": []})))
    with monkeypatch.context() as broken:
        broken.setattr(httpx2, "AsyncClient", lambda **_: 1 / 0)
        asked = opened.workflows()
        with pytest.raises(ZeroDivisionError):
            opened.run(asked)
        asked.close()
    assert opened.run(opened.workflows()) == []
    opened.close()


def _interrupt() -> None:
    os.kill(os.getpid(), 2)
