"""Streams of changes: their messages, where they go on, and how they end."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from headwater.gateway.api import body_limits, event_streams
from headwater.gateway.api.event_streams import EventStreams
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.workflows import read_routes
from headwater.gateway.api.workflows.positions import Freshness
from headwater.gateway.api.workflows.read_routes import Tails, message
from headwater.processors.rows.answers import event_of, log_line_of
from headwater.projections.workflows.queries import FOLLOWED
from headwater.schemas.answers import InstanceStatus
from headwater.schemas.errors import StoreUnavailable
from tests.unit.gateway.workflow_fakes import AT, MemoryTail, instance, status
from tests.waiting import until

OF_RUN = {"workflow_name": "order", "instance_id": "a", "run_number": 0}
LINE = log_line_of(
    {
        **OF_RUN,
        "id": "x",
        "step_key": None,
        "attempt": None,
        "level": "info",
        "category": "test",
        "message": "hello",
        "data": '{"a":\n1}',
        "is_replay": False,
        "created_at": AT,
    }
)
EVENT = event_of(
    {
        **OF_RUN,
        "id": "e",
        "type": "go",
        "payload": "1",
        "sequence": 1,
        "created_at": AT,
        "delivered_at": None,
        "consumed_by_step_key": None,
    }
)

Act = Callable[[Tails, MemoryTail, Freshness], Awaitable[None]]


def play(act: Act, memory: MemoryTail, heartbeat_s: float = 5) -> None:
    async def acts() -> None:
        freshness = Freshness(memory.next_offsets)
        await freshness.start()
        streams = EventStreams(heartbeat_s)
        tails = Tails(memory, freshness, streams)
        async with asyncio.timeout(60):
            await act(tails, memory, freshness)
        assert tails.streams.count == 0
        assert freshness.waiting == 0
        await freshness.stop()

    asyncio.run(acts())


async def heard(tails: Tails, memory: MemoryTail, after: int = -1) -> list[tuple[str, str]]:
    """Events and ids of a stream, to its end."""
    response = tails.response(memory.row, after, FOLLOWED, lambda: True)
    chunks = [chunk async for chunk in response.iterator]
    return parsed(b"".join(chunks))


def parsed(stream: bytes) -> list[tuple[str, str]]:
    result = []
    for block in stream.decode().split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in block.splitlines() if not line.startswith(":")
        )
        if "event" in fields:
            result.append((fields["event"], fields.get("id", "")))
    return result


def test_a_stream_ends_behind_the_end_of_its_instance() -> None:
    async def act(tails: Tails, memory: MemoryTail, _: Freshness) -> None:
        memory.put(EVENT)
        memory.put(LINE)
        memory.put(status(status="complete", output="1", offset=10))
        assert await heard(tails, memory) == [
            ("event", "8"),
            ("log", "9"),
            ("status", "10"),
            ("end", "10"),
        ]
        assert await heard(tails, memory, 8) == [("log", "9"), ("status", "10"), ("end", "10")]

    play(act, MemoryTail(instance()))


def test_a_stream_that_has_heard_all_of_an_ended_instance_ends_at_once() -> None:
    async def act(tails: Tails, memory: MemoryTail, _: Freshness) -> None:
        assert await heard(tails, memory, 7) == [("end", "7")]

    play(act, MemoryTail(instance(status="terminated")))


def test_of_several_messages_of_one_record_the_last_has_its_id() -> None:
    async def act(tails: Tails, memory: MemoryTail, _: Freshness) -> None:
        memory.put(EVENT, 8)
        memory.put(LINE, 8)
        memory.put(status(status="errored", offset=8), 8)
        memory.put(LINE, 9)
        assert await heard(tails, memory) == [
            ("event", ""),
            ("log", ""),
            ("status", "8"),
            ("log", "9"),
            ("end", "9"),
        ]

    play(act, MemoryTail(instance()))


def test_many_changes_come_page_by_page() -> None:
    async def act(tails: Tails, memory: MemoryTail, _: Freshness) -> None:
        memory.page = 2
        for _number in range(5):
            memory.put(LINE)
        memory.put(status(status="complete", offset=13))
        assert [event for event, _ in await heard(tails, memory)] == ["log"] * 5 + ["status", "end"]
        assert memory.asked == [-1, 9, 11]

    play(act, MemoryTail(instance()))


def test_what_changes_later_is_told_when_its_partition_moves() -> None:
    async def act(tails: Tails, memory: MemoryTail, _: Freshness) -> None:
        hears = asyncio.create_task(heard(tails, memory))
        for _number in range(3):
            await asyncio.sleep(0.05)
            memory.put(LINE)
        memory.put(status(status="complete", offset=11))
        assert await hears == [
            ("log", "8"),
            ("log", "9"),
            ("log", "10"),
            ("status", "11"),
            ("end", "11"),
        ]

    play(act, MemoryTail(instance()))


def test_an_instance_that_was_restarted_meanwhile_is_followed_on() -> None:
    async def act(tails: Tails, memory: MemoryTail, _: Freshness) -> None:
        memory.put(status(status="active", run_number=1, offset=8))
        hears = asyncio.create_task(heard(tails, memory, 7))
        await asyncio.sleep(0.05)
        assert not hears.done()
        memory.put(status(status="complete", run_number=1, offset=9))
        assert await hears == [("status", "8"), ("status", "9"), ("end", "9")]

    play(act, MemoryTail(instance(status="complete")))


def test_a_silent_stream_sends_comments() -> None:
    async def act(tails: Tails, memory: MemoryTail, _: Freshness) -> None:
        chunks = tails.response(memory.row, 7, FOLLOWED, lambda: True).iterator
        result = [await anext(chunks) for _number in range(3)]
        assert result == [b"retry: 1000\n\n", b": still here\n\n", b": still here\n\n"]
        await chunks.aclose()

    play(act, MemoryTail(instance()), heartbeat_s=0.05)


def test_a_stream_outlives_postgres(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_routes, "_RETRY_S", 0.02)

    async def act(tails: Tails, memory: MemoryTail, _: Freshness) -> None:
        memory.error = StoreUnavailable("away")
        hears = asyncio.create_task(heard(tails, memory, 7))
        await asyncio.sleep(0.1)
        assert not hears.done()
        memory.put(status(status="complete", offset=8))
        memory.error = None
        assert await hears == [("status", "8"), ("end", "8")]

    play(act, MemoryTail(instance()))


def test_all_streams_end_when_the_gateway_does() -> None:
    async def act(tails: Tails, memory: MemoryTail, _: Freshness) -> None:
        hears = [asyncio.create_task(heard(tails, memory, 7)) for _number in range(3)]
        await until(lambda: tails.streams.count == 3)
        tails.streams.close()
        async with asyncio.timeout(30):
            assert await asyncio.gather(*hears) == [[], [], []]

    play(act, MemoryTail(instance()), heartbeat_s=60)


async def stream(tails: Tails, memory: MemoryTail, receive: object, send: object) -> None:
    response = tails.response(memory.row, 7, FOLLOWED, lambda: True)
    await response({"type": "http", "method": "GET"}, receive, send)  # type: ignore[arg-type]


def test_a_reader_that_goes_leaves_nothing_behind() -> None:
    async def act(tails: Tails, memory: MemoryTail, freshness: Freshness) -> None:
        removed = asyncio.Event()
        before = asyncio.all_tasks()

        async def receive() -> dict[str, str]:
            await removed.wait()
            return {"type": "http.disconnect"}

        async def send(_: object) -> None: ...

        streams = asyncio.create_task(stream(tails, memory, receive, send))
        await until(lambda: (tails.streams.count, freshness.waiting) == (1, 1))
        removed.set()
        await streams
        assert (tails.streams.count, freshness.waiting) == (0, 0)
        assert asyncio.all_tasks() == before

    play(act, MemoryTail(instance()))


def test_a_reader_that_takes_nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_limits, "_SEND_WITHIN_S", 0.05)

    async def act(tails: Tails, memory: MemoryTail, _: Freshness) -> None:
        removed = asyncio.Event()

        async def receive() -> dict[str, str]:
            await removed.wait()
            return {"type": "http.disconnect"}

        async def send(event: dict[str, object]) -> None:
            if event["type"] == "http.response.body":
                await asyncio.sleep(60)

        streams = asyncio.create_task(stream(tails, memory, receive, send))
        await until(lambda: tails.streams.count == 1)
        await until(lambda: tails.streams.count == 0)
        removed.set()
        await streams

    play(act, MemoryTail(instance()))


def test_there_is_a_limit_to_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "STREAMS_MAX", 1)

    async def act(tails: Tails, memory: MemoryTail, _: Freshness) -> None:
        tails.streams.require_capacity()
        chunks = tails.response(memory.row, 7, FOLLOWED, lambda: True).iterator
        await anext(chunks)
        with pytest.raises(Problem) as caught:
            tails.streams.require_capacity()
        assert caught.value.code == "overloaded"
        await chunks.aclose()
        tails.streams.require_capacity()

    play(act, MemoryTail(instance()))


def test_a_value_on_several_lines_stays_one_message() -> None:
    # Readers put the lines of a message together again with line feeds.
    shape = InstanceStatus(status="complete", output=msgspec.Raw(b"[1,\r\n2,\r3,\n4]"))
    text = message("end", shape, 3)
    assert text.endswith(b"\n\n")
    assert text.count(b"\n\n") == 1
    lines = text.decode().splitlines()
    assert lines[:2] == ["event: end", "id: 3"]
    data = "\n".join(line.removeprefix("data: ") for line in lines[2:])
    assert json.loads(data) == {"status": "complete", "output": [1, 2, 3, 4]}


def test_a_stream_ends_with_the_key_of_its_caller() -> None:
    async def act(tails: Tails, memory: MemoryTail, _: Freshness) -> None:
        valid = iter([True, False])
        memory.put(LINE)
        response = tails.response(memory.row, 7, FOLLOWED, lambda: next(valid))
        chunks = [chunk async for chunk in response.iterator]
        assert parsed(b"".join(chunks)) == [("log", "8")]

    # The instance is live: without the check the stream would wait for changes.
    play(act, MemoryTail(instance()), heartbeat_s=0.05)
