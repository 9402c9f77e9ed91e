"""Waiting for Postgres: one poller for all, none while nobody waits, and no waiter is forgotten."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headwater.gateway.api.workflows import positions
from headwater.gateway.api.workflows.positions import Freshness
from headwater.schemas.errors import StoreUnavailable
from tests.waiting import until


class Store:
    """Answers with what it has; counts how often it is asked."""

    def __init__(self) -> None:
        self.offsets: dict[int, int] = {}
        self.asked = 0
        self.error: Exception | None = None

    async def next_offsets(self) -> dict[int, int]:
        self.asked += 1
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return dict(self.offsets)


def play(act: Callable[[Freshness, Store], Awaitable[None]]) -> None:
    async def acts() -> None:
        store = Store()
        freshness = Freshness(store.next_offsets)
        await freshness.start()
        try:
            await act(freshness, store)
        finally:
            await freshness.stop()
        assert freshness.waiting == 0

    asyncio.run(acts())


def test_a_position_is_reached_when_what_lies_there_is_applied() -> None:
    async def act(freshness: Freshness, store: Store) -> None:
        store.offsets = {0: 5}
        assert await freshness.wait_until_applied({0: 4}, 5)
        waits = asyncio.create_task(freshness.wait_until_applied({0: 5, 1: 0}, 5))
        await asyncio.sleep(0.02)
        store.offsets = {0: 6}
        await asyncio.sleep(0.02)
        assert not waits.done()
        store.offsets = {0: 6, 1: 1}
        assert await waits
        assert freshness.applied() == {0: 5, 1: 0}

    play(act)


def test_what_is_known_to_be_reached_is_not_asked_for() -> None:
    async def act(freshness: Freshness, store: Store) -> None:
        store.offsets = {0: 5}
        assert await freshness.refresh() == {0: 4}
        requested = store.asked
        assert await freshness.wait_until_applied({0: 4}, 5)
        assert await freshness.wait_until_applied({}, 5)
        assert store.asked == requested

    play(act)


def test_waiting_ends_in_time() -> None:
    async def act(freshness: Freshness, store: Store) -> None:
        assert not await freshness.wait_until_applied({0: 0}, 0.02)
        store.offsets = {0: 0}
        assert not await freshness.wait_until_applied({0: 0}, 0.02)
        assert freshness.applied() == {}

    play(act)


def test_nobody_is_asked_while_nobody_waits() -> None:
    async def act(freshness: Freshness, store: Store) -> None:
        await asyncio.sleep(0.05)
        assert store.asked == 0
        await freshness.refresh()
        requested = store.asked
        await asyncio.sleep(0.05)
        assert store.asked <= requested + 1

    play(act)


def test_a_thousand_waiters_are_one_question_at_a_time() -> None:
    async def act(freshness: Freshness, store: Store) -> None:
        waits = [
            asyncio.create_task(freshness.wait_until_applied({0: n}, 60)) for n in range(1_000)
        ]
        await asyncio.sleep(0.05)
        await until(lambda: store.asked)
        assert store.asked <= 50
        store.offsets = {0: 500}
        await until(lambda: sum(wait.done() for wait in waits) >= 500)
        assert [wait.done() for wait in waits] == [n < 500 for n in range(1_000)]
        store.offsets = {0: 1_000}
        assert all(await asyncio.gather(*waits))

    play(act)


def test_who_waits_in_patience_does_not_slow_down_who_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headwater.gateway.api.workflows.positions._PATIENT_PAUSE_S", 600)

    async def act(freshness: Freshness, store: Store) -> None:
        patient = asyncio.create_task(freshness.wait_until_applied({0: 9}, 5, patient=True))
        await asyncio.sleep(0.02)
        requested = store.asked
        store.offsets = {0: 1}
        async with asyncio.timeout(60):
            assert await freshness.refresh() == {0: 0}
        assert store.asked > requested
        patient.cancel()
        await asyncio.gather(patient, return_exceptions=True)

    play(act)


@pytest.mark.parametrize("error", [StoreUnavailable("away"), ZeroDivisionError()])
def test_an_error_is_told_to_all_who_wait_and_the_next_look_may_succeed(error: Exception) -> None:
    async def act(freshness: Freshness, store: Store) -> None:
        store.error = error
        waits = [freshness.wait_until_applied({0: 0}, 5), freshness.refresh()]
        result = await asyncio.gather(*waits, return_exceptions=True)
        assert result == [error, error]
        store.error = None
        store.offsets = {0: 1}
        assert await freshness.wait_until_applied({0: 0}, 5)

    play(act)


def test_who_waits_at_the_end_is_told() -> None:
    async def act(freshness: Freshness, store: Store) -> None:
        waits = asyncio.create_task(freshness.wait_until_applied({0: 0}, 60))
        await asyncio.sleep(0.01)
        await freshness.stop()
        with pytest.raises(StoreUnavailable):
            await waits

    play(act)


def test_rows_that_postgres_lost_are_waited_for_until_they_are_back() -> None:
    async def act(freshness: Freshness, store: Store) -> None:
        store.offsets = {0: 9, 1: 3}
        await freshness.refresh()
        assert freshness.lost() == {}
        store.offsets = {0: 5}
        await freshness.refresh()
        assert freshness.lost() == {0: 8, 1: 2}
        store.offsets = {0: 9, 1: 2}
        await freshness.refresh()
        assert freshness.lost() == {1: 2}
        store.offsets = {0: 9, 1: 3}
        await freshness.refresh()
        assert freshness.lost() == {}

    play(act)


def test_rows_that_do_not_come_back_are_waited_for_no_longer_than_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(positions, "_RECOVERY_S", 0.02)

    async def act(freshness: Freshness, store: Store) -> None:
        store.offsets = {0: 9}
        await freshness.refresh()
        store.offsets = {0: 5}
        await freshness.refresh()
        assert freshness.lost() == {0: 8}
        assert "Postgres lost rows of workflows" in caplog.text

        async def is_given_up() -> bool:
            await freshness.refresh()
            return freshness.lost() == {}

        async with asyncio.timeout(30):
            while not await is_given_up():
                pass

    play(act)
