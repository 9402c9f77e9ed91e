"""A look that is shared is never older than those who share it."""

import asyncio
import random

import pytest

from headwater.streams.kafka.folded_topic import SharedRefresh


def test_those_who_ask_while_one_looks_share_the_next_look() -> None:
    async def act() -> None:
        looks = 0
        go = asyncio.Event()

        async def look() -> None:
            nonlocal looks
            looks += 1
            await go.wait()

        shared = SharedRefresh(look)
        requested = [asyncio.create_task(shared()) for _ in range(50)]
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(*requested)
        assert looks == 2
        await shared()
        assert looks == 3

    asyncio.run(act())


@pytest.mark.parametrize("number", range(20))
def test_whoever_asks_sees_what_was_there_before(number: int) -> None:
    """Some looks fail; the others see all that was written before they were asked for."""
    chance = random.Random(number)

    async def act() -> None:
        written = seen = 0

        async def look() -> None:
            nonlocal seen
            result = written
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            if chance.random() < 0.2:
                raise ConnectionError
            seen = max(seen, result)

        shared = SharedRefresh(look)

        async def ask() -> bool:
            nonlocal written
            for _ in range(chance.randrange(10)):
                await asyncio.sleep(0)
            written += 1
            mine = written
            try:
                await shared()
            except ConnectionError:
                return False
            assert seen >= mine
            return True

        reported = await asyncio.gather(*(ask() for _ in range(100)))
        assert any(reported)

    asyncio.run(act())


def test_who_is_cancelled_while_looking_holds_up_nobody() -> None:
    async def act() -> None:
        begun = 0
        never = asyncio.Event()

        async def look() -> None:
            nonlocal begun
            begun += 1
            if begun == 1:
                await never.wait()

        shared = SharedRefresh(look)
        first = asyncio.create_task(shared())
        second = asyncio.create_task(shared())
        await asyncio.sleep(0)
        first.cancel()
        await second
        assert begun == 2

    asyncio.run(act())
