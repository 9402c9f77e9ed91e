"""Goal: a restore needs little memory at a time, and does not wait for the system.

Method: the parts of it that need no Kafka. The records are those of aiokafka.
"""

import asyncio

from headwater.schemas.topics import ADMISSIONS
from headwater.streams.kafka.readers import batches
from headwater.streams.kafka.records import Incoming
from headwater.streams.pipeline.worker import once_joined

KIB = 1024


def record(offset: int, kib: int) -> Incoming:
    return Incoming(ADMISSIONS, 0, offset, 0, 0, None, b"", None, 0, kib * KIB, ())


def offsets(*sizes: int) -> list[list[int]]:
    """How records of such sizes are divided."""
    records = [record(offset, kib) for offset, kib in enumerate(sizes)]
    return [[item.offset for item in some] for some in batches(records)]


def test_records_are_given_in_batches_of_bounded_bytes():
    assert offsets(100, 100, 100) == [[0, 1, 2]]
    assert offsets(300, 200, 100, 400, 200) == [[0, 1], [2, 3], [4]]


def test_a_record_larger_than_a_batch_comes_alone():
    assert offsets(100, 5_000, 100, 100) == [[0], [1], [2, 3]]
    assert offsets(5_000) == [[0]]
    assert offsets() == []


def test_a_partition_is_restored_while_the_system_is_joined_and_is_ready_after_that():
    async def scene() -> None:
        joined, owned = asyncio.Event(), {1: True, 2: True}
        restored: list[int] = []

        async def prepare(partition: int) -> bool:
            restored.append(partition)
            return owned[partition]

        async def joining() -> None:
            await joined.wait()

        preparing = [asyncio.create_task(once_joined(prepare, joining)(item)) for item in owned]
        await asyncio.sleep(0)
        assert restored == [1, 2]
        assert not any(item.done() for item in preparing)
        owned[2] = False  # It goes to somebody else meanwhile.
        joined.set()
        assert await asyncio.gather(*preparing) == [True, False]

    asyncio.run(scene())
