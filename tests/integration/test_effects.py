"""Effects on a real broker: what is sent once, what is sent again, and what becomes a dead letter.

Workflows are stood in for by somebody who takes commands and answers as told, and may be cut off
from its caller at any moment; `test_starting` has workers.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from headwater.processors.providers.results import Effect
from headwater.processors.triggers.decide import decide
from headwater.processors.triggers.rules import read_rules
from headwater.schemas.codec import encode
from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.history import ReplySent, SendEvent
from headwater.schemas.records import WebhookAdmitted
from headwater.schemas.topics import DEAD_LETTERS, EFFECTS
from headwater.streams.clock import now_ms
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.dead_letters import REASON, key_of, original, text_header
from headwater.streams.kafka.readers import Offsets, read_partition
from headwater.streams.kafka.records import Incoming, Outgoing, partition_of
from headwater.streams.kafka.topics import create_topics
from headwater.streams.pipeline.record_batch import effect_of
from headwater.streams.pipeline.reprocessing import DeadLetters
from headwater.streams.starters.effects import Starter
from headwater.streams.workflows.client import Addressed, OutcomeUnknown
from tests.conftest import PARTITIONS
from tests.cut_logs import cut
from tests.integration.consumers import stranger_in
from tests.throwaway_kafka import ThrowawayKafka
from tests.waiting import until

RULES = """
[[rule]]
name = "start"
source = "{source}"
type = "sleep"
workflow = "review"
mode = "start"
id = '"review-" + event.event_id'

[[rule]]
name = "tell"
source = "{source}"
workflow = "watch"
mode = "signal_with_start"
id = '"{source}-" + event.user_id'
event = "delivery"
params = 'null'
payload = 'event.body.n'
"""


class Workflows:
    """Takes commands as workers would, and forgets nothing; those of other tests are let be."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.taken: list[Addressed] = []
        self.codes: dict[str, str] = {}
        #: What is done in place of answering, once each.
        self.instead: list[Callable[[], Exception | None]] = []

    async def send_many(self, commands: Sequence[Addressed]) -> list[ReplySent]:
        ours = [command for command in commands if self.source in command.instance_id]
        self.taken += ours
        if self.instead and ours:
            error = self.instead.pop(0)()
            if error is None:
                await asyncio.Event().wait()  # Nobody answers any more.
            else:
                raise error
        return [self.reply(command) for command in commands]

    def reply(self, sent: Addressed) -> ReplySent:
        code = self.codes.get(sent.instance_id.removeprefix(f"{self.source}-"), "")
        return ReplySent(
            command_id=sent.command_id or "",
            code=code,
            message=f"expected one thing, found {code}" if code else "",
            status="",
            run_number=0,
            partition=0,
            position=0,
        )

    def signals(self, user: str) -> list[int]:
        """The payloads that an instance has taken, by the rules of its mailbox."""
        heard: dict[str, int] = {}
        result = []
        for item in self.taken:
            command = item.command
            ours = item.instance_id == f"{self.source}-{user}"
            if ours and isinstance(command, SendEvent) and command.sender:
                sender = command.sender
                name = f"{sender.workflow}/{sender.instance_id}"
                if heard.get(name, -1) < sender.number:
                    heard[name] = sender.number
                    result.append(json.loads(command.payload))
        return result


@dataclass
class Scene:
    bootstrap: str
    source: str
    workflows: Workflows = field(init=False)
    appender: Appender = field(init=False)

    def __post_init__(self) -> None:
        self.workflows = Workflows(self.source)
        self.appender = Appender(cluster=Cluster(self.bootstrap), client_id="test")

    @property
    def group(self) -> str:
        return f"test-{self.source}"

    def delivery(self, user: str, n: int, **changes: object) -> WebhookAdmitted:
        fields: dict[str, Any] = {
            "event_id": f"{self.source}-{user}-{n}",
            "request_id": f"r-{n}",
            "source": self.source,
            "type": "sleep",
            "subject": "s",
            "reference": user,
            "sent_at_ms": 1,
            "updated_at_ms": 1,
            "received_at_ms": 1,
            "body": json.dumps({"n": n}).encode(),
            "user_id": user,
            "partition": 0,
            "offset": 0,
            "admitted_at_ms": 1,
        }
        return WebhookAdmitted(**{**fields, **changes})

    async def post(self, *deliveries: WebhookAdmitted) -> None:
        """Appends the effects of deliveries, as the pipeline does."""
        rules = read_rules(RULES.replace("{source}", self.source))
        await self.appender.append(
            [
                Outgoing(
                    EFFECTS,
                    partition_of((delivery.user_id or "").encode(), PARTITIONS),
                    delivery.event_id.encode(),
                    encode(effect_of(delivery, result)),
                )
                for delivery in deliveries
                for result in decide(rules, delivery)
                if isinstance(result, Effect)
            ]
        )

    @asynccontextmanager
    async def following(self) -> AsyncIterator["asyncio.Task[None]"]:
        """Carries effects out, until it is cut off."""
        starter = Starter(
            self.workflows,
            cluster=Cluster(self.bootstrap),
            group=self.group,
            member="only",
            clock=now_ms,
        )
        task = asyncio.create_task(starter.run())
        try:
            yield task
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def until(self, done: Callable[[], bool], within_s: float = 20) -> None:
        deadline = time.monotonic() + within_s
        while not done():
            assert time.monotonic() < deadline, [
                (item.instance_id, item.command_id) for item in self.workflows.taken
            ]
            await asyncio.sleep(0.02)

    async def settled(self) -> None:
        """Waits until the group has committed all there is."""
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap, group_id=self.group, enable_auto_commit=False
        )
        await consumer.start()
        try:
            places = [TopicPartition(EFFECTS, n) for n in range(PARTITIONS)]
            async with asyncio.timeout(60):
                while True:
                    ends = await consumer.end_offsets(places)
                    result = {where: await consumer.committed(where) for where in places}
                    if all((result[where] or 0) >= ends[where] for where in places):
                        return
                    await asyncio.sleep(0.05)
        finally:
            await consumer.stop()

    async def letters(self) -> list[Incoming]:
        """The dead letters of this source's rules that were not replayed."""
        return [
            record
            for partition in range(PARTITIONS)
            async for records in read_partition(Cluster(self.bootstrap), [DEAD_LETTERS], partition)
            for record in records
            if self.source.encode() in (record.value or key_of(record) or b"")
        ]


def play(bootstrap: str, source: str, act: Callable[[Scene], Awaitable[None]]) -> None:
    async def acts() -> None:
        scene = Scene(bootstrap, source)
        try:
            await act(scene)
        finally:
            await scene.appender.stop()

    asyncio.run(acts())


USERS = ("user_a", "user_b", "user_c")


def test_each_delivery_starts_and_signals_once_in_order(topics: str):
    async def act(scene: Scene) -> None:
        async with scene.following():
            for n in range(30):
                # The pipeline may append a delivery twice, when it dies in between.
                copies = [scene.delivery(user, n) for user in USERS] * (1 + n % 2)
                await scene.post(*copies)
            await scene.settled()
        for user in USERS:
            assert scene.workflows.signals(user) == list(range(30))
        starts = [item for item in scene.workflows.taken if item.workflow == "review"]
        assert len(starts) == len({start.instance_id for start in starts}) == 90

    play(topics, "once", act)


def test_who_the_group_refuses_waits_until_it_is_let_in(
    topics: str, caplog: pytest.LogCaptureFixture
):
    async def act(scene: Scene) -> None:
        await scene.post(scene.delivery("user_a", 0))
        async with AsyncExitStack() as exits:
            async with stranger_in(scene.group, EFFECTS, topics):
                task = await exits.enter_async_context(scene.following())
                await until(lambda: "InconsistentGroupProtocol" in caplog.text or task.done())
            await until(lambda: scene.workflows.signals("user_a") == [0] or task.done())
        assert scene.workflows.signals("user_a") == [0]

    play(topics, "stranger", act)


def test_what_was_sent_and_not_committed_is_sent_again(topics: str):
    async def act(scene: Scene) -> None:
        answered = len(scene.workflows.taken)
        for round_ in range(4):
            # As after kill -9: the commands are on their way, and nobody hears what became of them.
            scene.workflows.instead = [lambda: None]
            async with scene.following():
                await scene.post(*(scene.delivery("user_a", 10 * round_ + n) for n in range(10)))
                await scene.until(lambda: not scene.workflows.instead)
        async with scene.following():
            await scene.settled()
        assert scene.workflows.signals("user_a") == list(range(40))
        assert len(scene.workflows.taken) > answered + 2 * 40
        assert await scene.letters() == []

    play(topics, "again", act)


def test_a_copy_is_known_to_who_takes_over(topics: str):
    async def act(scene: Scene) -> None:
        async with scene.following():
            await scene.post(*(scene.delivery("user_a", n) for n in range(5)))
            await scene.settled()
        await scene.post(*(scene.delivery("user_a", n) for n in range(3, 7)))
        async with scene.following():
            await scene.settled()
        assert scene.workflows.signals("user_a") == list(range(7))

    play(topics, "copies", act)


def test_commands_without_an_outcome_are_sent_until_they_have_one(topics: str):
    async def act(scene: Scene) -> None:
        def unknown() -> Exception:
            first = scene.workflows.taken[0]
            left = [item.command_id or "" for item in scene.workflows.taken[1:]]
            known = {first.command_id or "": scene.workflows.reply(first)}
            return OutcomeUnknown("expected replies, found none", left, known)

        scene.workflows.instead = [unknown, lambda: BrokerUnavailable("expected Kafka")]
        async with scene.following():
            await scene.post(*(scene.delivery("user_a", n) for n in range(3)))
            await scene.settled()
        times = [item.command_id for item in scene.workflows.taken]
        # The first had its outcome; the others were sent three times.
        assert times.count(times[0]) == 1
        assert times.count(times[1]) == 3
        assert scene.workflows.signals("user_a") == [0, 1, 2]

    play(topics, "unknown", act)


def test_a_group_that_is_new_begins_with_the_first_effect(topics: str):
    async def act(scene: Scene) -> None:
        await scene.post(scene.delivery("user_a", 0))
        async with scene.following():
            await scene.post(scene.delivery("user_a", 1))
            await scene.settled()
        assert scene.workflows.signals("user_a") == [0, 1]

    play(topics, "new", act)


def test_an_effect_that_a_wipe_removed_is_no_dead_letter(topics: str):
    async def act(scene: Scene) -> None:
        key = f"{scene.source}-wiped".encode()
        partition = partition_of(b"user_a", PARTITIONS)
        await scene.appender.append([Outgoing(EFFECTS, partition, key, None)])
        await scene.post(scene.delivery("user_a", 0))
        async with scene.following():
            await scene.settled()
        assert scene.workflows.signals("user_a") == [0]
        assert await scene.letters() == []

    play(topics, "wiped", act)


def test_what_is_refused_is_a_dead_letter_and_the_others_go_on(topics: str):
    async def act(scene: Scene) -> None:
        scene.workflows.codes["user_c"] = "INSTANCE_TERMINAL"
        async with scene.following():
            await scene.post(*(scene.delivery(user, 0) for user in USERS))
            await scene.settled()
        assert scene.workflows.signals("user_a") == scene.workflows.signals("user_b") == [0]
        (letter,) = await scene.letters()
        assert text_header(letter, REASON) == "instance_terminal"
        assert text_header(letter, "__connect.errors.stage") == "starter"
        assert text_header(letter, "headwater.event_id") == scene.delivery("user_c", 0).event_id
        assert text_header(letter, "headwater.rule") == "tell"
        reported = text_header(letter, "__connect.errors.exception.message")
        assert reported == "tell: expected one thing, found INSTANCE_TERMINAL"

    play(topics, "refused", act)


def test_a_dead_letter_that_is_replayed_is_carried_out_alone(topics: str):
    async def act(scene: Scene) -> None:
        scene.workflows.codes["user_a"] = "MAILBOX_FULL"
        async with scene.following():
            await scene.post(scene.delivery("user_a", 0))
            await scene.settled()
            scene.workflows.codes.clear()
            scene.workflows.taken.clear()
            await scene.post(scene.delivery("user_a", 1))
            await scene.settled()
            (letter,) = await scene.letters()
            replays = DeadLetters(cluster=Cluster(scene.bootstrap), clock=now_ms)
            (replayed,) = await replays.replay([(letter.partition, letter.offset)])
            assert replayed.ok, replayed
            await replays.stop()
            await scene.settled()
        assert scene.workflows.signals("user_a") == [1, 0]
        starts = [item for item in scene.workflows.taken if item.workflow == "review"]
        assert [start.instance_id for start in starts] == [f"review-{scene.source}-user_a-1"]

    play(topics, "replay", act)


def test_a_record_that_cannot_be_read_is_a_dead_letter(topics: str):
    async def act(scene: Scene) -> None:
        async with scene.following():
            value = b"unreadable of " + scene.source.encode()
            await scene.appender.append([Outgoing(EFFECTS, 0, b"x", value)])
            await scene.post(scene.delivery("user_a", 0))
            await scene.settled()
        assert scene.workflows.signals("user_a") == [0]
        (letter,) = await scene.letters()
        assert text_header(letter, REASON) == "undecodable_record"
        assert original(letter) == []

    play(topics, "unreadable", act)


@pytest.mark.parametrize(
    "count", [pytest.param(1, marks=pytest.mark.soak), 5], ids=["shorter", "longer"]
)
def test_effects_at_the_offsets_of_lost_ones_are_carried_out(scratch: Path, count: int):
    broker = ThrowawayKafka(scratch / f"kafka that loses effects {count}", port=0, report=print)
    partition = partition_of(b"user_a", PARTITIONS)

    async def posted(first: int, last: int) -> list[str]:
        """Post deliveries, one by one, and return the instances that they start."""
        scene = Scene(broker.start(), "lost")
        deliveries = [scene.delivery("user_a", n) for n in range(first, last)]
        for item in deliveries:
            await scene.post(item)
        await scene.appender.stop()
        return [f"review-{delivery.event_id}" for delivery in deliveries]

    async def carried_out(names: list[str], *, of: int) -> None:
        scene = Scene(broker.start(), "lost")
        async with scene.following():
            await until(lambda: len(scene.workflows.taken) >= 2 * len(names))
            await until_committed(scene, partition, of)
        started = [item for item in scene.workflows.taken if item.workflow == "review"]
        assert [item.instance_id for item in started] == names

    async def act() -> None:
        await create_topics(Cluster(broker.start()), partitions=PARTITIONS, replication=1)
        names = await posted(0, 6)
        await carried_out(names, of=12)
        await asyncio.to_thread(broker.kill)
        cut(broker, EFFECTS, partition, 6)
        await asyncio.to_thread(broker.start)
        names = await posted(10, 10 + count)
        await carried_out(names, of=6 + 2 * count)

    try:
        asyncio.run(act())
    finally:
        broker.kill()


async def until_committed(scene: Scene, partition: int, offset: int) -> None:
    """Wait until the group has committed an offset of a partition."""
    offsets = Offsets(Cluster(scene.bootstrap), scene.group)
    try:
        async with asyncio.timeout(60):
            while (await offsets.committed([EFFECTS], partition))[EFFECTS] != offset:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    finally:
        await offsets.stop()
