"""The workflow worker on a real broker: what it refuses and remembers, and what wakes it up."""

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from headwater.schemas.avro_schemas import IDS
from headwater.schemas.codec import decode, encode
from headwater.schemas.failures import INSTANCE_EXISTS
from headwater.schemas.history import (
    Command,
    CommandRejected,
    CommandSent,
    HistoryAppended,
    PauseRun,
    ReplySent,
    RestartRun,
    ResumeRun,
    RunStarted,
    SendEvent,
    StartRun,
    TerminateRun,
    instance_key,
)
from headwater.schemas.records import SnapshotTaken
from headwater.schemas.statuses import RunStatus
from headwater.schemas.topics import DEAD_LETTERS, WORKFLOW_COMMANDS, WORKFLOW_SNAPSHOTS
from headwater.streams.clock import monotonic, now_ms
from headwater.streams.engine.live_instances import LiveInstances
from headwater.streams.engine.restore import CHECKPOINT, restore_partition
from headwater.streams.kafka.broker_clock import BrokerClock
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.readers import read_partition
from headwater.streams.kafka.records import partition_of
from headwater.streams.workflows.log import WorkflowLog
from tests.e2e.workflow_system import PARTITIONS, Sender, Story, WorkflowSystem, opened
from tests.fakes.engines import ENGINES
from tests.fakes.workflow_log import append

HOUR = "3600000"
GARBAGE = b"no command"
#: As if a newer release had written it, with an id of somebody else's registry.
FOREIGN = b"\x00" + (max(IDS.values()) + 2).to_bytes(4, "big") + b"somebody else's"


@pytest.fixture(scope="module")
def system(scratch: Path) -> Iterator[WorkflowSystem]:
    directory = scratch / "workflow-worker"
    directory.mkdir()
    with opened(WorkflowSystem(directory)) as system:
        yield system


@dataclass
class Scene:
    system: WorkflowSystem
    story: Story
    client: Sender

    async def create(self, workflow: str, name: str, params: str = "null") -> str:
        reply = await self.client.send(workflow, name, StartRun(params))
        # It is sent again until a worker is there, and may have been carried out before.
        assert reply.code in {"", INSTANCE_EXISTS}, reply
        return instance_key(workflow, name)

    async def ask(self, key: str, command: Command) -> ReplySent:
        workflow, _, name = key.partition("/")
        return await self.client.send(workflow, name, command)

    async def event(self, key: str, type_: str = "go", payload: str = "1") -> None:
        reply = await self.ask(key, SendEvent(f"{key}-{now_ms()}", type_, payload))
        assert not reply.code, reply

    async def until(self, done: Callable[[], bool], what: str, patience_s: float = 90) -> None:
        await self.system.until(self.story, done, what, patience_s)

    async def status(self, key: str, status: RunStatus) -> None:
        await self.until(lambda: self.story.status(key) is status, f"{key} to be {status}")

    async def ends(self, key: str, patience_s: float = 90) -> object:
        await self.until(lambda: self.story.ended(key), f"{key} to end", patience_s)
        return self.story.output(key)

    async def after_the_waits(self, keys: list[str]) -> None:
        """Lets the time pass that `patient` instances wait."""
        deadline_ms = max(self.story.state(key).entries["wait"].wake_at_ms or 0 for key in keys)
        await asyncio.sleep(max(deadline_ms - now_ms() + 1, 0) / 1_000)

    async def written_down(self, *keys: str) -> None:
        """Waits until all that the history says of instances is behind a checkpoint."""
        async with asyncio.timeout(60):
            for key in keys:
                partition = partition_of(key.encode(), PARTITIONS)
                position = -1
                while position <= self.story.by_instance[key][-1].offset:
                    mark = (await snapshots(self.system, partition)).get(CHECKPOINT)
                    position = -1 if mark is None else mark.position


async def snapshots(system: WorkflowSystem, partition: int) -> dict[bytes, SnapshotTaken]:
    log = a_log(system)
    return {
        key: snapshot
        async for key, snapshot in log.read_snapshots(partition)
        if snapshot is not None
    }


def a_log(system: WorkflowSystem) -> WorkflowLog:
    return WorkflowLog(
        cluster=Cluster(system.bootstrap), client_id="test", clock=BrokerClock(now_ms, monotonic)
    )


@asynccontextmanager
async def scene(system: WorkflowSystem) -> AsyncIterator[Scene]:
    async with system.reading() as story, system.client() as client:
        await client.ready()
        yield Scene(system, story, client)


def play(system: WorkflowSystem, act: Callable[[Scene], Awaitable[None]]) -> None:
    async def acts() -> None:
        async with scene(system) as ready:
            await act(ready)
            commands = await system.commands()
            await ready.until(
                lambda: all(
                    not offsets or ready.story.claims[n].cause >= offsets[-1]
                    for n, offsets in commands.items()
                ),
                "the outcomes of all commands",
            )
            ready.story.check(commands)

    asyncio.run(acts())


def work(system: WorkflowSystem, **impatience: str) -> None:
    """Has one worker at work that keeps system often."""
    if "one" not in system.parts:
        system.start("one", checkpoint_records="1", **impatience)


# -- commands


def test_refusals_have_their_codes(system: WorkflowSystem):
    async def act(scene: Scene) -> None:
        async def code(workflow: str, name: str, command: Command) -> str:
            return (await scene.client.send(workflow, name, command)).code

        sleeper = await scene.create("sleeper", "refused", HOUR)
        assert await code("sleeper", "refused", StartRun("1")) == "INSTANCE_ID_ALREADY_EXISTS"
        assert await code("nobody", "refused", StartRun("1")) == "WORKFLOW_NOT_FOUND"
        assert await code("sleeper", "-", StartRun("1")) == "INVALID_INSTANCE_ID"
        large = f'"{"x" * 1_100_000}"'
        assert await code("sleeper", "large", StartRun(large)) == "INVALID_PARAMS"
        missing = SendEvent("e", "go", "1")
        assert await code("sleeper", "missing", missing) == "INSTANCE_NOT_FOUND"
        for command in (PauseRun(), ResumeRun(), TerminateRun(), RestartRun()):
            assert await code("sleeper", "missing", command) == "INSTANCE_NOT_FOUND"
        assert await code("sleeper", "refused", SendEvent("e", "no type", "1")) == (
            "INVALID_EVENT_TYPE"
        )
        assert await code("sleeper", "refused", SendEvent("e", "go", large)) == (
            "INVALID_EVENT_PAYLOAD"
        )
        assert await code("sleeper", "refused", ResumeRun()) == "NOT_PAUSED"
        assert await code("sleeper", "refused", PauseRun()) == ""
        assert await code("sleeper", "refused", PauseRun()) == "ALREADY_PAUSED"
        assert await code("sleeper", "refused", TerminateRun("enough")) == ""
        for command in (PauseRun(), TerminateRun(), SendEvent("e", "go", "1")):
            assert await code("sleeper", "refused", command) == "INSTANCE_TERMINAL"
        assert scene.story.output(sleeper) == (RunStatus.TERMINATED, "Terminated")

    work(system)
    play(system, act)


def test_of_many_creates_of_one_id_one_is_accepted(system: WorkflowSystem):
    async def act(scene: Scene) -> None:
        replies = await asyncio.gather(
            *(scene.client.send("sleeper", "wanted", StartRun(HOUR)) for _ in range(50))
        )
        codes = sorted(reply.code for reply in replies)
        assert codes == ["", *["INSTANCE_ID_ALREADY_EXISTS"] * 49]
        assert {reply.run_number for reply in replies} == {0}

    work(system)
    play(system, act)


def test_a_command_that_cannot_be_read_becomes_a_dead_letter_and_stops_nothing(
    system: WorkflowSystem,
):
    async def act(scene: Scene) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=system.bootstrap)
        await producer.start()
        for partition in range(PARTITIONS):
            await producer.send_and_wait(
                WORKFLOW_COMMANDS, GARBAGE, key=b"sleeper/x", partition=partition
            )
            await producer.send_and_wait(
                WORKFLOW_COMMANDS, FOREIGN, key=b"their-key", partition=partition
            )
        await producer.stop()
        for number in range(8):
            await scene.create("sleeper", f"behind-{number}", HOUR)
        letters: list[bytes] = []
        while letters.count(GARBAGE) < PARTITIONS or letters.count(FOREIGN) < PARTITIONS:
            letters = [
                record.value
                for partition in range(PARTITIONS)
                async for records in read_partition(
                    Cluster(system.bootstrap), [DEAD_LETTERS], partition
                )
                for record in records
            ]
        assert letters.count(GARBAGE) == PARTITIONS, "each is parked once"
        assert letters.count(FOREIGN) == PARTITIONS, "its key is not ours: nobody waits for it"

    work(system)
    play(system, act)


def test_an_outcome_whose_owner_died_before_it_told_anybody_is_told_by_the_next(
    system: WorkflowSystem,
):
    """The owner that dies is this test: it writes outcomes, and neither replies nor commits."""

    async def act(scene: Scene) -> None:
        parent = await scene.create("parent", "bereaved")
        await scene.status(parent, RunStatus.COMPLETE)
        log = a_log(system)
        await log.start()
        names = [f"untold-{n}" for n in range(8)]
        system.stop("one")
        requested = [
            asyncio.create_task(scene.client.send("sleeper", name, StartRun(HOUR)))
            for name in names
        ]
        again = [
            asyncio.create_task(scene.client.send("sleeper", name, StartRun(HOUR)))
            for name in names
        ]
        sent = await _unanswered(scene, 16)
        for partition in {partition for partition, _, _ in sent}:
            epoch = await log.claim(partition, "dies")
            mine = [(offset, command) for number, offset, command in sent if number == partition]
            begun: set[str] = set()
            records = []
            for offset, command in mine:
                key = instance_key(command.workflow, command.instance_id)
                records.append((key.encode(), _outcome(epoch, offset, command, key in begun)))
                begun.add(key)
            await append(log, partition, records)
        await log.stop()
        work(system)
        replies = await asyncio.gather(*requested, *again)
        codes = sorted(reply.code for reply in replies)
        assert codes == [*[""] * 8, *["INSTANCE_ID_ALREADY_EXISTS"] * 8]
        assert all(reply.position >= 0 for reply in replies)
        for name in names:
            await scene.status(f"sleeper/{name}", RunStatus.WAITING)

    work(system)
    play(system, act)


async def _unanswered(scene: Scene, count: int) -> list[tuple[int, int, CommandSent]]:
    """The last commands, once there are as many that have no outcome."""
    while True:
        result = [
            (partition, record.offset, decode(record.value, CommandSent))
            for partition in range(PARTITIONS)
            async for records in read_partition(
                Cluster(scene.system.bootstrap), [WORKFLOW_COMMANDS], partition
            )
            for record in records
            if record.offset > scene.story.claims[partition].cause and record.value != GARBAGE
        ]
        if len(result) >= count:
            return result


def _outcome(epoch: int, offset: int, command: CommandSent, exists: bool) -> HistoryAppended:
    event = CommandRejected("INSTANCE_ID_ALREADY_EXISTS", "it is there")
    return HistoryAppended(
        workflow=command.workflow,
        instance_id=command.instance_id,
        run_number=0,
        sequence=1 if exists else 0,
        epoch=epoch,
        cause=offset,
        at_ms=now_ms(),
        events=(event if exists else RunStarted(HOUR, "seed", kind="replay"),),
    )


# -- taking over


def test_what_sleeps_on_as_bytes_is_woken_by_time_by_events_and_by_restarts(system: WorkflowSystem):
    async def act(scene: Scene) -> None:
        timely = await scene.create("sleeper", "timely", "5000")
        waiting = await scene.create("waiting", "cold")
        ended = await scene.create("ten", "cold")
        paused = await scene.create("sleeper", "paused", "500")
        assert not (await scene.ask(paused, PauseRun())).code
        await scene.ends(ended)
        await scene.status(waiting, RunStatus.WAITING)
        await _replace_worker(scene, timely, waiting, ended, paused)
        assert await scene.ends(timely) == "awake"
        slept_ms = scene.story.state(timely).updated_at_ms - scene.story.state(timely).created_at_ms
        assert slept_ms >= 5_000
        await scene.event(waiting, payload="1")
        await scene.event(waiting, payload="2")
        assert await scene.ends(waiting) == [1, 2]
        assert (await scene.ask(ended, RestartRun())).run_number == 1
        assert await scene.ends(ended) == 45
        assert not (await scene.ask(paused, ResumeRun())).code
        assert await scene.ends(paused) == "awake"

    work(system)
    play(system, act)


def test_what_is_at_work_as_bytes_goes_on(system: WorkflowSystem):
    async def act(scene: Scene) -> None:
        def begun() -> int:
            return sum(mark.instance == slow for mark in system.marks())

        async def heard(topic: str) -> list[bytes | None]:
            # To be read by such a reader is what `tx.publish` promises.
            reader = {"isolation_level": "read_committed", "auto_offset_reset": "earliest"}
            async with AIOKafkaConsumer(
                topic, bootstrap_servers=system.bootstrap, **reader
            ) as consumer:
                first = await consumer.getone()
                more = await consumer.getmany(timeout_ms=1_000)
            return [first.key, *(item.key for result in more.values() for item in result)]

        slow = await scene.create("slow", "cold", "60000")
        silent = await scene.create("announcer", "cold", '"not-yet-there"')
        await scene.ends(silent)
        await scene.until(lambda: begun() == 1, "the step to begin")
        await _replace_worker(scene, slow, silent)
        await scene.until(lambda: begun() == 2, "the step to be begun again")
        assert await heard("not-yet-there") == [b"cold"]
        assert not (await scene.ask(slow, TerminateRun())).code

    work(system)
    play(system, act)


def test_a_run_of_another_kind_rests_is_written_down_and_taken_over(system: WorkflowSystem):
    async def act(scene: Scene) -> None:
        async def add(number: int) -> None:
            event = SendEvent(f"add-{number}", "add", "1")
            assert (await scene.client.send("count", "to-three", event)).code == ""

        counter = await scene.create("count", "to-three", '{"to": 3}')
        await add(1)
        await scene.written_down(counter)
        await _replace_worker(scene, counter)
        await add(2)
        await add(3)
        await scene.status(counter, RunStatus.COMPLETE)
        assert scene.story.output(counter) == 3

    work(system)
    play(system, act)


async def _replace_worker(scene: Scene, *keys: str) -> None:
    """Kills the worker once instances are written down; the next one has them as bytes."""
    await scene.written_down(*keys)
    scene.system.kill("one")
    await _make_topic(scene.system, "not-yet-there")
    await _compare_takeover(scene, keys)
    work(scene.system)


async def _make_topic(system: WorkflowSystem, name: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=system.bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(name, 1, 1)])
    await admin.close()


async def _compare_takeover(scene: Scene, keys: tuple[str, ...]) -> None:
    """What a takeover comes to, from the checkpoint on, is what the whole history says."""
    log = a_log(scene.system)
    await log.start()
    for key in keys:
        partition = partition_of(key.encode(), PARTITIONS)
        epoch = await log.claim(partition, "compares")
        taken = await restore_partition(log, LiveInstances(ENGINES), partition, epoch, 0)
        assert taken.start > scene.story.by_instance[key][0].offset
        hand = taken.instances.find(key)
        state = scene.story.state(key)
        assert hand, key
        if state.ended:
            hand.run.entries, hand.run.open = state.entries, state.open
            hand.run.mailbox = state.mailbox
        assert hand.run == state
    await log.stop()


def test_snapshots_of_an_unknown_format_are_passed_over(system: WorkflowSystem):
    async def act(scene: Scene) -> None:
        waiting = await scene.create("waiting", "unknown")
        await scene.status(waiting, RunStatus.WAITING)
        await scene.written_down(waiting)
        system.stop("one")
        shutil.rmtree(system.directory / "data")
        partition = partition_of(waiting.encode(), PARTITIONS)
        producer = AIOKafkaProducer(bootstrap_servers=system.bootstrap)
        await producer.start()
        result = await snapshots(system, partition)
        for key in (waiting.encode(), b"waiting/of-the-future"):
            old = result[waiting.encode()]
            new = SnapshotTaken(
                kind="replay",
                compressed=False,
                format=99,
                epoch=old.epoch,
                position=old.position,
                cause=old.cause,
                wake_at_ms=0,
                state=b"from the future",
            )
            await producer.send_and_wait(
                WORKFLOW_SNAPSHOTS, encode(new), key=key, partition=partition
            )
        await producer.stop()
        work(system)
        await scene.event(waiting, payload="1")
        await scene.event(waiting, payload="2")
        assert await scene.ends(waiting) == [1, 2]

    work(system)
    play(system, act)


def test_a_takeover_goes_on_from_the_store_and_from_kafka_when_that_is_torn(system: WorkflowSystem):
    async def act(scene: Scene) -> None:
        waiting = await scene.create("waiting", "stored")
        ended = await scene.create("ten", "stored")
        await scene.ends(ended)
        await scene.status(waiting, RunStatus.WAITING)
        for number, torn in enumerate([False, True], 1):
            await scene.written_down(waiting, ended)
            system.kill("one")
            before = len((system.directory / "one.log").read_text())
            torn_files = (system.directory / "data").rglob("MANIFEST-*") if torn else ()
            for file in torn_files:
                file.write_bytes(b"torn" * file.stat().st_size)
            work(system)
            await scene.event(waiting, payload=str(number))
            # The event needs its own partition only; the others may still be starting.
            starts: list[int] = []
            async with asyncio.timeout(60):
                while len(starts) < PARTITIONS:
                    await asyncio.sleep(0.05)
                    lines = (system.directory / "one.log").read_text()[before:]
                    starts = [int(at) for at in re.findall(r"history from offset (\d+) to", lines)]
            assert max(starts) > 0
            assert ("again, from Kafka" in lines) is torn
        assert await scene.ends(waiting) == [1, 2]
        assert (await scene.ask(ended, RestartRun())).run_number == 1
        assert await scene.ends(ended) == 45

    work(system)
    play(system, act)


# -- time


def test_an_event_that_was_sent_in_time_counts_though_no_worker_was_there(system: WorkflowSystem):
    async def act(scene: Scene) -> None:
        # Long enough for a worker to end in.
        patient = [f"in-time-{n}" for n in range(8)]
        keys = await asyncio.gather(*(scene.create("patient", item, "4000") for item in patient))
        for key in keys:
            await scene.status(key, RunStatus.WAITING)
        system.stop("one")
        requested = [asyncio.create_task(scene.event(key)) for key in keys]
        await scene.after_the_waits(keys)
        work(system)
        await asyncio.gather(*requested)
        assert [await scene.ends(key) for key in keys] == [1] * len(keys)

    work(system)
    play(system, act)
