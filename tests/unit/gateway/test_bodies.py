"""Bodies in pieces, bodies that lie about their length, and too much at once: who gives way."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

from headwater.gateway.api.body_limits import BodyReader, Budget, Refusal
from tests.waiting import until

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]


def reader_of(max_bytes: int, **limits: float) -> BodyReader:
    return BodyReader(max_bytes=max_bytes, budget=Budget(**limits))


def sender(pieces: Iterable[bytes | None]) -> Receive:
    """Hands pieces over as a server would; a None is the sender going away."""
    messages = [
        {"type": "http.disconnect"}
        if piece is None
        else {"type": "http.request", "body": piece, "more_body": True}
        for piece in pieces
    ]
    messages.append({"type": "http.request", "body": b"", "more_body": False})
    left = iter(messages)

    async def receive() -> Message:
        return next(left)

    return receive


async def silence() -> Message:
    """A sender that sends nothing and does not go away."""
    await asyncio.Event().wait()
    raise AssertionError


def trickle(*pieces: bytes) -> Receive:
    """A sender that falls silent after some pieces."""
    left = iter(pieces)

    async def receive() -> Message:
        for piece in left:
            return {"type": "http.request", "body": piece, "more_body": True}
        return await silence()

    return receive


class Full(Exception):
    """Raised by whoever takes no more pieces."""


@pytest.mark.parametrize("length", [4, 6])
def test_who_has_enough_ends_the_reading_and_is_not_waited_for(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.gateway.api.body_limits._DRAIN_S", 600)
    taken: list[bytes] = []

    def take(piece: bytes) -> None:
        taken.append(piece)
        if len(taken) == 2:
            raise Full

    async def scenario() -> None:
        reader = reader_of(100)
        hold = reader.hold("10.0.0.1")
        receive = trickle(b"ab", b"cd") if length == 4 else sender([b"ab", b"cd", b"ef"])
        with pytest.raises(Full):
            await reader.feed(receive, length, hold, take)
        async with asyncio.timeout(60):  # A drain waits for longer where nothing comes.
            await reader.drain(receive, hold)

    asyncio.run(scenario())
    assert taken == [b"ab", b"cd"]


def test_of_a_body_that_is_refused_no_more_is_read_than_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headwater.gateway.api.body_limits._DRAIN_BYTES", 10)
    left = iter([b"abcd"] * 9)

    async def receive() -> Message:
        return {"type": "http.request", "body": next(left), "more_body": True}

    async def scenario() -> None:
        reader = reader_of(100)
        await reader.drain(receive, reader.hold("10.0.0.1"))

    asyncio.run(scenario())
    assert len(list(left)) == 6, "three pieces hold ten bytes"


async def read_from(
    reader: BodyReader, receive: Receive, peer: str = "10.0.0.1", length: int | None = None
) -> bytes | Refusal:
    hold = reader.hold(peer)
    try:
        return await reader.read(receive, length, hold)
    finally:
        hold.release()


def read(
    reader: BodyReader, pieces: Iterable[bytes | None], length: int | None = None
) -> bytes | Refusal:
    return asyncio.run(read_from(reader, sender(pieces), length=length))


def code_of(answer: bytes | Refusal) -> str:
    assert isinstance(answer, Refusal)
    return answer.code


def test_pieces_become_a_body() -> None:
    assert read(reader_of(10), [b"ab", b"", b"cd"]) == b"abcd"


def test_a_body_without_length_may_have_the_limit_and_no_byte_more() -> None:
    assert read(reader_of(4), [b"ab", b"cd"]) == b"abcd"
    assert code_of(read(reader_of(4), [b"ab", b"cde"])) == "body_too_large"


def test_an_announced_length_above_the_limit_is_refused_before_a_byte_is_read() -> None:
    assert code_of(read(reader_of(4), [], length=5)) == "body_too_large"


@pytest.mark.parametrize("pieces", [[None], [b"a", None]])
def test_a_body_that_breaks_off_is_refused(pieces: list[bytes | None]) -> None:
    assert code_of(read(reader_of(4), pieces)) == "bad_request"


@pytest.mark.parametrize("receive", [silence, trickle(b"a")], ids=["no byte", "a byte"])
def test_a_body_that_does_not_arrive_in_time_is_refused_from_its_first_byte_on(
    receive: Receive,
) -> None:
    assert code_of(asyncio.run(read_from(reader_of(4, read_s=0.05), receive))) == "body_timeout"


def test_of_too_many_reads_the_oldest_of_the_address_that_has_most_is_ended() -> None:
    async def whole() -> None:
        budget = Budget(reads_max=3)
        reader = BodyReader(max_bytes=10, budget=budget)
        many = [asyncio.create_task(read_from(reader, silence, "many")) for _ in range(2)]
        few = asyncio.create_task(read_from(reader, silence, "few"))
        await until(lambda: budget.reads == 3)
        assert await read_from(reader, sender([b"quick"]), "few") == b"quick"
        assert code_of(await many[0]) == "too_many_requests"
        assert budget.reads == 2
        assert not many[1].done()
        assert not few.done()
        await ended(many[1], few)

    asyncio.run(whole())


def test_who_holds_most_bytes_gives_way_to_whoever_comes() -> None:
    async def whole() -> None:
        budget = Budget(held_bytes_max=20)
        reader = BodyReader(max_bytes=10, budget=budget)
        slow = [asyncio.create_task(read_from(reader, trickle(b"x" * 9), "slow")) for _ in range(2)]
        await until(lambda: budget.held_bytes == 18)
        assert await read_from(reader, sender([b"quick"]), "quick") == b"quick"
        assert code_of(await slow[0]) == "too_many_requests"
        assert budget.held_bytes == 9
        await ended(slow[1])
        assert budget.held_bytes == 0

    asyncio.run(whole())


def test_of_one_address_the_slow_give_way_to_the_quick() -> None:
    async def whole() -> None:
        budget = Budget(held_bytes_max=10)
        reader = BodyReader(max_bytes=10, budget=budget)
        slow = asyncio.create_task(read_from(reader, trickle(b"x" * 9)))
        await until(lambda: budget.held_bytes == 9)
        assert await read_from(reader, sender([b"quick"])) == b"quick"
        assert code_of(await slow) == "overloaded"

    asyncio.run(whole())


def test_bodies_that_were_read_are_counted_until_their_answer_and_do_not_give_way() -> None:
    async def whole() -> None:
        reader = reader_of(10, held_bytes_max=12)
        hold = reader.hold("10.0.0.1")
        assert await reader.read(sender([b"x" * 8]), None, hold) == b"x" * 8
        assert code_of(await read_from(reader, sender([b"12345"]))) == "overloaded"
        hold.release()
        assert await read_from(reader, sender([b"12345"])) == b"12345"

    asyncio.run(whole())


def test_a_task_whose_read_was_ended_can_wait_for_other_things() -> None:
    async def whole() -> None:
        assert code_of(await read_from(reader_of(4, read_s=0.05), silence)) == "body_timeout"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await silence()

    asyncio.run(whole())


def test_a_read_that_the_server_cancels_is_cancelled() -> None:
    async def whole() -> None:
        budget = Budget()
        reader = BodyReader(max_bytes=10, budget=budget)
        one = asyncio.create_task(read_from(reader, silence))
        await until(lambda: budget.reads == 1)
        await ended(one)
        assert budget.reads == 0

    asyncio.run(whole())


def test_what_is_refused_is_read_on_for_a_while_unless_room_is_needed() -> None:
    async def whole() -> None:
        budget = Budget(reads_max=1)
        reader = BodyReader(max_bytes=4, budget=budget)
        hold = reader.hold("10.0.0.1")
        pieces = sender([b"more", b"than", b"fits"])
        assert code_of(await reader.read(pieces, None, hold)) == "body_too_large"
        await reader.drain(pieces, hold)
        with pytest.raises(RuntimeError, match="StopIteration"):
            await pieces()
        draining = asyncio.create_task(reader.drain(silence, hold))
        await until(lambda: budget.reads == 1)
        assert await read_from(reader, sender([b"next"])) == b"next"
        await draining

    asyncio.run(whole())


async def ended(*tasks: "asyncio.Task[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)
