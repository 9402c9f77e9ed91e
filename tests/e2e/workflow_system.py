"""Workers of workflows for one test: a real broker, workers as processes to be killed, one reader.

The reader folds the history as everybody has to, and remembers when the broker took each record:
the topic stamps records by the broker's clock, so "after its completion was in the log" can be
decided by comparing times of one machine.
"""

import asyncio
import json
import os
import signal
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from headwater.processors.code.state import CodeRun
from headwater.processors.runs.claims import Claims
from headwater.processors.runs.state import Run
from headwater.processors.slots.queue import SlotsRun
from headwater.schemas.codec import decode
from headwater.schemas.errors import BrokerUnavailable, HeadwaterError
from headwater.schemas.history import (
    NO_CAUSE,
    Command,
    CommandRejected,
    CommandSent,
    EntryRolledBack,
    HistoryAppended,
    InstanceDeleted,
    PartitionClaimed,
    PostsSent,
    ReplySent,
    RunStarted,
    StepCompleted,
    instance_key,
)
from headwater.schemas.statuses import RunStatus
from headwater.schemas.topics import TOPICS, WORKFLOW_COMMANDS, WORKFLOW_HISTORY
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.readers import read_partition
from headwater.streams.kafka.topics import create_topics
from headwater.streams.workflows.client import OutcomeUnknown, WorkflowClient
from tests import forker
from tests.e2e.workflow_app import PUBLISHED, TRAIL
from tests.fakes.engines import fold, runs
from tests.throwaway_kafka import ThrowawayKafka
from tests.waiting import until
from tests.workflow_parts import a_client, started

PARTITIONS = 4
ROOT = Path(__file__).parents[2]
EXIT_CRASHED = os.EX_SOFTWARE
_PATIENCE_S = 120.0
_ENDED = {RunStatus.COMPLETE, RunStatus.ERRORED, RunStatus.TERMINATED}

Instance: TypeAlias = str
H = TypeVar("H", bound="WorkflowSystem")


@dataclass(frozen=True)
class Told:
    """A record of the history, where it lies, and when the broker took it."""

    partition: int
    offset: int
    at_ms: int
    record: HistoryAppended
    counts: bool

    @property
    def key(self) -> Instance:
        return instance_key(self.record.workflow, self.record.instance_id)


@dataclass
class Story:
    """The history as far as it was read."""

    told: list[Told] = field(default_factory=list)
    by_instance: dict[Instance, list[Told]] = field(default_factory=lambda: defaultdict(list))
    runs: dict[Instance, dict[int, Run]] = field(default_factory=dict)
    claims: dict[int, Claims] = field(default_factory=lambda: defaultdict(Claims))
    #: How many runs had a slot of a limit at once, at most.
    slots_held: Counter[Instance] = field(default_factory=Counter)
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    reader: "asyncio.Task[None]" = field(init=False)

    def hear(self, partition: int, offset: int, at_ms: int, record: HistoryAppended) -> None:
        counts = self.claims[partition].admit(offset, record)
        reported = Told(partition, offset, at_ms, record, counts)
        self.told.append(reported)
        if counts and isinstance(record.events[0], InstanceDeleted):
            self.by_instance.pop(reported.key, None)
            self.runs.pop(reported.key, None)
        elif counts:
            self.by_instance[reported.key].append(reported)
            self._apply(reported.key, record)

    def _apply(self, key: Instance, record: HistoryAppended) -> None:
        """Folds the run that a record belongs to; `runs` of the engines, record by record."""
        states, number = self.runs.setdefault(key, {}), record.run_number
        if isinstance(record.events[0], RunStarted):
            states[number] = fold(states.get(number - 1), record)
        elif number in states:
            states[number] = fold(states[number], record)
        state = states.get(number)
        if isinstance(state, SlotsRun):
            self.slots_held[key] = max(self.slots_held[key], state.held)

    def run(self, key: Instance) -> Run | None:
        """The current run of an instance."""
        states = self.runs.get(key)
        return states[max(states)] if states else None

    def status(self, key: Instance) -> RunStatus | None:
        return self.state(key).status if self.run(key) else None

    def ended(self, key: Instance) -> bool:
        return self.status(key) in _ENDED

    def state(self, key: Instance) -> CodeRun:
        run = self.run(key)
        assert run, f"{key} is not in the log"
        return run

    def output(self, key: Instance) -> object:
        state = self.state(key)
        if state.status is RunStatus.COMPLETE:
            return json.loads(state.output or "null")
        return (state.status, state.failure and state.failure.name)

    def records(self, key: Instance) -> list[HistoryAppended]:
        return [item.record for item in self.by_instance[key]]

    def ends(self) -> dict[int, int]:
        """How far each partition was read."""
        return {reported.partition: reported.offset + 1 for reported in self.told}

    # -- what must be true of every history

    def check(self, commands: dict[int, list[int]]) -> None:
        """Every law of the log; commands are the readable ones, offsets by partition."""
        for key in self.by_instance:
            self._sequences(key)
            # The fold from the beginning, by the function that readers use.
            assert runs(self.records(key)) == self.runs[key]
        self._outcomes(commands)
        twice = {position: n for position, n in self.completions().items() if n > 1}
        assert not twice, f"completed more than once: {twice}"

    def _sequences(self, key: Instance) -> None:
        run, expected = -1, 0
        for reported in self.by_instance[key]:
            for event in reported.record.events:
                if isinstance(event, RunStarted):
                    assert reported.record.run_number == run + 1, f"{key} at {reported.offset}"
                    run, expected = run + 1, 0
                assert reported.record.run_number == run or run < 0, f"{key} at {reported.offset}"
                if event is reported.record.events[0] and run >= 0:
                    assert reported.record.sequence == expected, (
                        f"{key} at {reported.offset}: {reported}"
                    )
                if not isinstance(event, PostsSent | CommandRejected):
                    expected += 1

    def _outcomes(self, commands: dict[int, list[int]]) -> None:
        causes: dict[int, list[int]] = defaultdict(list)
        for reported in self.told:
            if reported.counts and reported.record.cause != NO_CAUSE:
                causes[reported.partition].append(reported.record.cause)
        for partition, offsets in commands.items():
            # Behind them there may be more by now, from those who sent again what they had sent.
            known = causes[partition][: len(offsets)]
            assert known == offsets, f"outcomes of partition {partition}: {known} of {offsets}"

    def completions(self) -> Counter[tuple[Instance, int, str]]:
        return Counter(
            (reported.key, reported.record.run_number, event.key)
            for reported in self.told
            if reported.counts
            for event in reported.record.events
            if isinstance(event, StepCompleted)
        )

    def done_at(self) -> dict[tuple[Instance, int, str], int]:
        """When the completion of each step, and of each rollback, was in the log."""
        result: dict[tuple[Instance, int, str], int] = {}
        for reported in self.told:
            for event in reported.record.events if reported.counts else ():
                if isinstance(event, StepCompleted):
                    result[reported.key, reported.record.run_number, event.key] = reported.at_ms
                elif isinstance(event, EntryRolledBack):
                    result[reported.key, reported.record.run_number, f"undo {event.key}"] = (
                        reported.at_ms
                    )
        return result

    def void(self) -> list[Told]:
        """Records that count for nobody."""
        return [
            reported
            for reported in self.told
            if not reported.counts and not isinstance(reported.record.events[0], PartitionClaimed)
        ]


@dataclass(frozen=True)
class Mark:
    """The beginning of a callback."""

    at_ns: int
    pid: int
    instance: Instance
    run: int
    key: str


class WorkflowSystem:
    """A broker and workers, in a directory, which serve some apps."""

    def __init__(self, directory: Path, *apps: str) -> None:
        self.directory = directory
        self.apps = apps or ("tests.e2e.workflow_app",)
        self.broker = ThrowawayKafka(directory / "kafka", port=0, report=print)
        self.parts: dict[str, subprocess.Popen[bytes]] = {}
        #: What parts are told beside where the broker is.
        self.settings: dict[str, str] = {}
        #: Seconds for an answer to a command.
        self.patience_s = _PATIENCE_S
        self.bootstrap = ""
        self.trail = directory / "trail"
        self.trail.touch()
        self._how: dict[str, tuple[list[str], dict[str, str]]] = {}

    def open(self) -> None:
        self.bootstrap = self.broker.start()
        asyncio.run(self._make_topics())

    async def _make_topics(self) -> None:
        await create_topics(Cluster(self.bootstrap), partitions=PARTITIONS, replication=1)
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        try:
            await admin.create_topics([NewTopic(PUBLISHED, PARTITIONS, 1)])
            # Kafka forgets whatever else was set for the topic.
            (history,) = (topic for topic in TOPICS if topic.name == WORKFLOW_HISTORY)
            stamped = {**history.config(replication=1), "message.timestamp.type": "LogAppendTime"}
            await admin.alter_configs(
                [ConfigResource(ConfigResourceType.TOPIC, WORKFLOW_HISTORY, configs=stamped)]
            )
        finally:
            await admin.close()

    def close(self) -> None:
        """Kills what is left: to wait for orderly ends that nobody looks at would take seconds."""
        for name in list(self.parts):
            self.kill(name)
        self.broker.kill()

    # -- workers

    def start(self, name: str, *, member: bool = True, **impatience: str) -> None:
        """Start a worker as a user would.

        Args:
            name: Name of the process.
            member: Whether it keeps its partitions if it is back within its session.
            impatience: Settings of a worker that evicts instances and writes snapshots sooner.
        """
        reported = {"HEADWATER_MEMBER": name if member else "", TRAIL: str(self.trail)}
        if not impatience:
            options = [word for app in self.apps for word in ("--app", app)]
            self.launch(name, ["headwater", "worker", *options], reported)
            return
        reported |= {f"IMPATIENT_{key.upper()}": value for key, value in impatience.items()}
        self.launch(name, ["tests.e2e.impatient_worker", *self.apps], reported)

    def launch(self, name: str, arguments: list[str], told: dict[str, str]) -> None:
        """Starts a part, `python -m` with arguments; told is its environment."""
        self._how[name] = (arguments, told)
        variables = {
            "PYTHONPATH": str(ROOT),
            "HEADWATER_KAFKA": self.bootstrap,
            "HEADWATER_APP_ENVIRONMENT": "TEST_*",
            "HEADWATER_DATA_DIR": str(self.directory / "data"),
            **self.settings,
            **told,
        }
        module, *rest = arguments
        with (self.directory / f"{name}.log").open("ab") as log:
            self.parts[name] = forker.start(module, rest, log, ROOT, **variables)

    def kill(self, name: str) -> None:
        """kill -9."""
        part = self.parts.pop(name)
        part.kill()
        part.wait()

    def kill_host(self, name: str, app: str | None = None) -> bool:
        """kill -9 of the child that runs the code of an app; tells whether there was one."""
        pid = self.host_of(name, app)
        if pid is None:
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return True

    def host_of(self, name: str, app: str | None = None) -> int | None:
        """The process id of a worker's code host for an app; the first, unless it is named."""
        parent = self.parts[name].pid
        served = (app or self.apps[0]).encode()
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError, ValueError):
                if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                    command = (stat.parent / "cmdline").read_bytes().split(b"\0")
                    if b"headwater.streams.code_host.child" in command and served in command:
                        return int(stat.parent.name)
        return None

    def stop(self, name: str) -> None:
        part = self.parts.pop(name)
        part.send_signal(signal.SIGCONT)
        part.send_signal(signal.SIGTERM)
        try:
            part.wait(20)
        except subprocess.TimeoutExpired:
            part.kill()
            part.wait()

    def restart_ended(self) -> None:
        """Starts again, as it was, whoever has ended as a worker may; fails if it may not."""
        for name, part in list(self.parts.items()):
            code = part.poll()
            if code == EXIT_CRASHED:
                self.launch(name, *self._how[name])
            elif code is not None:
                raise AssertionError(f"{name} ended with {code}: {self.log(name)}")

    def log(self, name: str, characters: int = 3_000) -> str:
        return (self.directory / f"{name}.log").read_text()[-characters:]

    def logs(self) -> str:
        return "\n".join(f"--- {file.name}\n{self.log(file.stem)}" for file in self._log_files())

    def _log_files(self) -> list[Path]:
        return sorted(self.directory.glob("*.log"))

    # -- reading

    def marks(self) -> list[Mark]:
        return [Mark(**json.loads(line)) for line in self.trail.read_text().splitlines()]

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Story]:
        """The history, read as it grows."""
        story = Story()
        story.reader = asyncio.create_task(self._read(story))
        try:
            yield story
        finally:
            story.reader.cancel()
            with suppress(asyncio.CancelledError):
                await story.reader

    async def _read(self, story: Story) -> None:
        async with self._consuming(WORKFLOW_HISTORY) as consumer:
            while True:
                for where, result in (await consumer.getmany(timeout_ms=200)).items():
                    for item in result:
                        record = decode(item.value, HistoryAppended)
                        story.hear(where.partition, item.offset, item.timestamp, record)
                    story.moved.set()

    @asynccontextmanager
    async def _consuming(
        self, topic: str, isolation_level: str = "read_uncommitted"
    ) -> AsyncIterator[AIOKafkaConsumer]:
        """A consumer of all partitions of a topic, from their beginning."""
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=50,
            isolation_level=isolation_level,
        )
        await consumer.start()
        try:
            places = [TopicPartition(topic, n) for n in range(PARTITIONS)]
            consumer.assign(places)
            await consumer.seek_to_beginning(*places)
            yield consumer
        finally:
            await consumer.stop()

    async def until(
        self, story: Story, done: Callable[[], bool], what: str, patience_s: float = _PATIENCE_S
    ) -> None:
        deadline = time.monotonic() + patience_s
        while not done():
            self.restart_ended()
            if story.reader.done():
                story.reader.result()
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {patience_s} s for {what}\n{self.logs()}")
            story.moved.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await story.moved.wait()

    async def commands(self) -> dict[int, list[int]]:
        """The offsets of the readable commands, by partition."""
        result: dict[int, list[int]] = {}
        for partition in range(PARTITIONS):
            result[partition] = []
            async for records in read_partition(
                Cluster(self.bootstrap), [WORKFLOW_COMMANDS], partition
            ):
                for record in records:
                    with suppress(HeadwaterError):
                        decode(record.value, CommandSent)
                        result[partition].append(record.offset)
        return result

    async def published(self) -> list[tuple[bytes, str, Any]]:
        """Number, key and value of what steps have published.

        Waits for transactions that are open: only behind them are all records committed or not.
        """
        async with self._consuming(PUBLISHED) as consumer:
            ends = await consumer.end_offsets(consumer.assignment())
        result = []
        async with (
            asyncio.timeout(_PATIENCE_S),
            self._consuming(PUBLISHED, "read_committed") as consumer,
        ):
            while [end for end in ends if await consumer.position(end) < ends[end]]:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    result += records
        return [
            (dict(record.headers)["headwater-id"], record.key.decode(), json.loads(record.value))
            for record in result
        ]

    # -- sending

    @asynccontextmanager
    async def client(self, name: str = "tests") -> AsyncIterator["Sender"]:
        """One that waits for a worker: what is sent again is one more command."""
        waits = a_client(self.bootstrap, name, self.patience_s, restarted_within_s=self.patience_s)
        async with started(waits) as client:
            yield Sender(client, self.patience_s)


class Sender:
    """A client that tries again until it is answered."""

    def __init__(self, client: WorkflowClient, patience_s: float = _PATIENCE_S) -> None:
        self.client, self._patience_s = client, patience_s

    async def ready(self) -> None:
        await until(lambda: self.client.ready)

    async def send(self, workflow: str, instance_id: str, command: Command) -> ReplySent:
        return await self.patiently(lambda: self.client.send(workflow, instance_id, command))

    async def patiently(self, ask: Callable[[], Awaitable[ReplySent]]) -> ReplySent:
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                return await ask()
            except (BrokerUnavailable, OutcomeUnknown):
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)


@contextmanager
def opened(system: H) -> Iterator[H]:
    try:
        system.open()
        yield system
    finally:
        system.close()


def play(system: WorkflowSystem, act: Callable[[Story, Sender], Awaitable[None]]) -> None:
    """Acts with what the history says and a client that is answered."""

    async def acts() -> None:
        async with system.reading() as story, system.client() as client:
            await client.ready()
            await act(story, client)

    asyncio.run(acts())
