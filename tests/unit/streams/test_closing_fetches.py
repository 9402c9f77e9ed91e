"""A consumer that is closed cancels its fetches, and nothing is asked of the broker after that."""

import asyncio
from types import SimpleNamespace

import pytest
from aiokafka import TopicPartition

from headwater.streams.kafka import truncation


def test_a_fetch_that_was_cancelled_asks_nothing_more(monkeypatch: pytest.MonkeyPatch):
    began = asyncio.Event()
    asked: list[object] = []

    async def fetch(*_arguments: object) -> bool:
        began.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            return False  # As aiokafka does.
        return True

    async def cuts(*arguments: object) -> dict[TopicPartition, int | None]:
        asked.append(arguments)
        return {}

    doubt = {TopicPartition("topic", 0): truncation._Doubt(truncation.Read(1, 1), None)}
    monkeypatch.setattr(truncation, "_FETCH", fetch)
    monkeypatch.setattr(truncation, "_cuts", cuts)
    monkeypatch.setattr(truncation, "_take_doubtful", lambda *_arguments: doubt)

    async def scene() -> bool:
        # The assignment stays when the whole consumer is closed.
        assignment = SimpleNamespace(active=True)
        fetcher = SimpleNamespace(_client=None)
        task = asyncio.create_task(truncation._proc_fetch_request(fetcher, assignment, 1, None))
        await began.wait()
        task.cancel()
        return await task

    assert asyncio.run(scene()) is False
    assert asked == []
