"""Up to which command a partition has its replies: in order, whichever are durable first."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from headwater.schemas.history import ReplySent
from headwater.streams.engine.turns import Answers, Partition
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.workflows.outbox import Outbox, Replies


class Queues:
    """Queues of three partitions, of which nothing is durable before that is said."""

    def __init__(self) -> None:
        self.count = 3
        self.entries: list[Any] = []

    def add(self, partition: int, entry: object) -> None:
        self.entries.append((partition, entry))

    def drop(self, unwanted: Callable[[Any], bool]) -> None:
        self.entries = [entry for entry in self.entries if not unwanted(entry[1])]


def reply(command: str) -> ReplySent:
    return ReplySent(
        command_id=command, code="", message="", status="", run_number=0, partition=0, position=1
    )


class Scene:
    def __init__(self) -> None:
        cluster = Cluster("nowhere:1")
        outbox = Outbox(
            cluster=cluster,
            client_id="test",
            clock=lambda: 0,
            sent=lambda *_: None,
            may_release=lambda _: True,
        )
        self.replies = Replies(
            cluster=cluster, client_id="test", outbox=outbox, may_release=lambda _: True
        )
        self.queues = Queues()
        self.replies._replies = cast("Any", self.queues)
        owner = cast("Any", SimpleNamespace())
        self.partition = Partition(0, owner, 0, {}, start=0, position=0, replied=0)

    def answer(self, through: int, *to: int) -> None:
        replies = [(item, reply(f"c-{through}")) for item in to]
        self.replies.send(Answers(self.partition, through, replies, []))

    def durable(self, number: int) -> None:
        self.replies._sent(self.queues.entries[number][1].open)


def test_a_partition_has_its_replies_as_far_as_all_before_are_durable():
    scene = Scene()
    scene.answer(4, 0)
    scene.answer(9, 1, 2)
    scene.durable(1)
    scene.durable(2)
    assert scene.partition.replied == 0
    scene.durable(0)
    assert scene.partition.replied == 10


def test_replies_that_nobody_waits_for_or_that_have_no_place_are_left_out():
    scene = Scene()
    scene.answer(4, -1, 3)
    assert (scene.queues.entries, scene.partition.replied) == ([], 5)


def test_who_waits_for_the_replies_until_now_does_not_wait_for_others():
    async def play() -> None:
        scene = Scene()
        await scene.replies.all_sent(scene.partition)
        scene.answer(4, 0)
        waiting = asyncio.create_task(scene.replies.all_sent(scene.partition))
        await asyncio.sleep(0)
        scene.answer(9, 1)
        assert not waiting.done()
        scene.durable(0)
        await waiting
        scene.answer(12, 2)
        waiting = asyncio.create_task(scene.replies.all_sent(scene.partition))
        await asyncio.sleep(0)
        scene.replies.forget(scene.partition)
        await waiting

    asyncio.run(play())
