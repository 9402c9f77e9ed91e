"""`WorkflowTest`: tests of workflows without Kafka, Postgres, network, or waiting.

Owner and hosts are those of production. Only the log (lists of encoded records), the clock (moved
by the test), the ids (drawn from a seed) and the database (SQLite in memory) are replaced.
`crash()` drops everything that the test's process holds in memory, as kill -9 would.
"""

import asyncio
import itertools
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from random import Random  # noqa: TID251, the harness draws from its seed
from types import TracebackType
from typing import Any, Final, Self, TypeVar, overload

import msgspec

from headwater.processors.code.engine import ReplayEngine
from headwater.processors.code.host_messages import FromHost
from headwater.processors.deployments import Deployments
from headwater.processors.graph.builder import GraphWorkflow
from headwater.processors.graph.engine import GraphEngine
from headwater.processors.runs.claims import claim_of
from headwater.processors.runs.durations import Duration, milliseconds
from headwater.processors.runs.engine import Engine, Engines
from headwater.processors.runs.limits import BUILTIN_PREFIX, CLEANUP_MS, DEFAULT_LIMITS, ENTRIES_MAX
from headwater.processors.runs.state import Run
from headwater.processors.slots.engine import SlotsEngine
from headwater.schemas.codec import decode as read
from headwater.schemas.codec import encode as write
from headwater.schemas.history import Command, CommandSent, HistoryAppended, Limits, ReplySent
from headwater.streams.authoring.tasks import Task
from headwater.streams.authoring.values import decode
from headwater.streams.authoring.workflow_values import Named, P_contra, R_co, WorkflowOf
from headwater.streams.code_host.apps import concurrency_limits, params_schemas
from headwater.streams.code_host.host import Host, ToHost
from headwater.streams.code_host.hosted_run import Allowance
from headwater.streams.engine.code import Code
from headwater.streams.engine.driver import Driver
from headwater.streams.engine.effects import Queued, command_of
from headwater.streams.engine.owner import Owner
from headwater.streams.engine.turns import Flight, Partition, Turn
from headwater.streams.evaluation.evaluator import EvaluatorProcess
from headwater.streams.harness.callbacks import Callbacks
from headwater.streams.harness.definitions import Definitions, start_time_ms
from headwater.streams.harness.handles import TestInstance, TestWorkflow, check_count
from headwater.streams.harness.histories import InstanceRecords, restored
from headwater.streams.harness.hooks import SIGNER, hook_event
from headwater.streams.harness.job_handle import TestJob, activate_jobs
from headwater.streams.harness.step_effects import (
    Listed,
    MemoryDatabase,
    Parameters,
    Published,
    check_topics,
)
from headwater.streams.replay.host_port import CurrentAttempt
from headwater.streams.replay.workflow import Workflow

R = TypeVar("R")
log = logging.getLogger(__name__)

_TO_HOST: Final = (msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(list[ToHost]))
_FROM_HOST: Final = (msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(list[FromHost]))
#: Turns after which the test's event loop may do something else, such as a timeout of the test.
_TURNS_AT_ONCE: Final = 64
#: The hosts of built-in workflows, if a test has any, and of all others.
_BUILTIN, _APP = _HOSTS = range(2)


class WorkflowTest:
    """Runs workflows in a test: `async with WorkflowTest([order], seed=7) as test: ...`.

    `workflows` are code, or definitions of graphs that name the tasks. `kinds` are
    workflows without code, by name, with the kinds of their additional engines. `topics` are those
    that steps may publish to, None for any. `cleanup` limits cancelled code, `limits` names and
    values. `patience` is the real time for which callbacks are awaited.
    """

    __test__ = False

    def __init__(  # noqa: PLR0913, authors pass options by name, a struct would hide them
        self,
        workflows: Iterable[Workflow | GraphWorkflow | Mapping[str, Any]],
        *,
        tasks: Iterable[Task] = (),
        seed: int = 0,
        start: str | datetime | float = "2026-01-01T00:00:00Z",
        max_steps: int = ENTRIES_MAX,
        cleanup: Duration = CLEANUP_MS,
        limits: Limits = DEFAULT_LIMITS,
        topics: Collection[str] | None = None,
        engines: Sequence[Engine[Any]] = (),
        kinds: Mapping[str, str] | None = None,
        patience: Duration = "10 seconds",
        rules: str = "",
    ) -> None:
        self.limits = limits
        definitions = Definitions.of_test(workflows, tasks, rules)
        replay = ReplayEngine(max_steps, milliseconds(cleanup), limits, SIGNER)
        self._evaluator = EvaluatorProcess()
        #: Warnings about graphs, by the name of the graph; only graphs that have any.
        self.warnings = {
            name: graph.warnings for name, graph in definitions.graphs.items() if graph.warnings
        }
        graphs = GraphEngine(definitions.graphs.values(), limits, self._evaluator)
        self._concurrency = concurrency_limits(definitions.workflows.values())
        slots = SlotsEngine({name: self._concurrency.get(name) for name in definitions.workflows})
        by_kind: list[Engine[Any]] = [replay, graphs, slots, *engines]
        self._engines: Engines = {engine.kind: engine for engine in by_kind}
        self._workflows, self._tasks = definitions.workflows, definitions.tasks
        self._kinds = (
            dict.fromkeys(definitions.workflows, replay.kind)
            | dict.fromkeys(definitions.graphs, graphs.kind)
            | dict(kinds or {})
        )
        self._host_of = {n: _BUILTIN if n.startswith(BUILTIN_PREFIX) else _APP for n in self._kinds}
        #: Empty: a test runs only the workflows that it was created with.
        self._deployments = Deployments()
        self._random = Random(seed)  # noqa: S311, no secrets are made here
        self.now_ms = start_time_ms(start)
        self._history: list[bytes] = []
        self._commands: list[bytes] = []
        self._read = 0
        self._records = InstanceRecords(self._engines)
        self._replies: dict[str, ReplySent] = {}
        self._topics = topics
        self._published: dict[tuple[str, int], Published] = {}
        self._numbers = itertools.count(1)
        self._sent_by_hosts: list[FromHost] = []
        self._callbacks = Callbacks(self._running, milliseconds(patience))
        self._allowance = Allowance()
        self._owner: Owner
        self._hosts: list[Host]

    async def __aenter__(self) -> Self:
        self._database = MemoryDatabase()
        self._boot()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()
        await asyncio.sleep(0)
        self._database.close()
        self._evaluator.close()

    # -- instances

    @overload
    def workflow(self, workflow: WorkflowOf[P_contra, R_co]) -> TestWorkflow[P_contra, R_co]: ...

    @overload
    def workflow(self, workflow: str | Named) -> TestWorkflow[Any, Any]: ...

    def workflow(self, workflow: str | Named) -> TestWorkflow[Any, Any]:
        """Return the handle of a workflow, by the object or its name."""
        return TestWorkflow(self, workflow)

    @overload
    async def create(
        self,
        workflow: WorkflowOf[Any, R],
        *,
        id: str | None = None,
        params: object = None,
        labels: Mapping[str, str] | None = None,
    ) -> TestInstance[R]: ...

    @overload
    async def create(
        self,
        workflow: str | Named,
        *,
        id: str | None = None,
        params: object = None,
        labels: Mapping[str, str] | None = None,
    ) -> TestInstance[Any]: ...

    async def create(
        self,
        workflow: str | Named,
        *,
        id: str | None = None,  # noqa: A002, the name of the contract
        params: object = None,
        labels: Mapping[str, str] | None = None,
    ) -> TestInstance[Any]:
        """Create an instance. It runs when the test advances.

        Raises as `TestWorkflow.create`.
        """
        return await self.workflow(workflow).create(id, params, labels=labels)

    async def create_batch(
        self, workflow: str | Named, instances: Sequence[Mapping[str, Any]]
    ) -> list[TestInstance[Any]]:
        """Create instances, skipping ids that exist, and return the created ones."""
        return await self.workflow(workflow).create_batch(instances)

    def get(self, workflow: str | Named, id: str) -> TestInstance[Any]:  # noqa: A002
        """Return an existing instance.

        Raises InstanceNotFoundError otherwise.
        """
        return self.workflow(workflow).get(id)

    def runs(self, workflow: str, instance_id: str) -> dict[int, Run]:
        """Return the runs of an instance, folded from the log."""
        return self._records.runs(workflow, instance_id)

    def records(self, workflow: str, instance_id: str) -> Sequence[HistoryAppended]:
        """Return the records of an instance.

        Raises InstanceNotFoundError if it does not exist.
        """
        return self._records.records_of(workflow, instance_id)

    async def activate_jobs(
        self,
        type: str,  # noqa: A002, the name of the contract
        *,
        worker: str = "test",
        max: int = 1,  # noqa: A002
        lease: Duration = "1 minute",
    ) -> list[TestJob]:
        """Acquire jobs of external nodes, as an external worker does, by the name of their task."""
        tokens = list(self._records.tokens())
        return await activate_jobs(tokens, type, self.send, max, worker=worker, lease=lease)

    async def call_hook(self, url: str, payload: Any = None) -> None:  # noqa: ANN401, any JSON
        """Call a hook, as a caller with its URL does; a repeated call has no effect.

        Raises:
            ValueError: There is no such hook, or it has expired.
        """
        await self.send(*hook_event(url, payload, self.new_id("evt"), self.now_ms))

    # -- time

    async def run_until_idle(self) -> None:
        """Run until nothing can continue without time or an event.

        Raises:
            TimeoutError: A callback waits too long for something real.
        """
        await self._run(None)
        self._callbacks.check()

    async def tick(self, max_instances: int | None = None, max_steps: int | None = None) -> int:
        """Perform one tick of a runner: run instances until they wait or end.

        Instances that continue come before those that start.

        Args:
            max_instances: Largest number of instances, 1 to 10,000; unlimited by default.
            max_steps: Largest number of step attempts, 1 to 10,000; unlimited by default.

        Returns:
            Number of instances that were run.

        Raises:
            TypeError: An argument is not an integer.
            ValueError: An argument is out of range.
            TimeoutError: A callback waits too long for something real.
        """
        check_count("max_instances", max_instances)
        check_count("max_steps", max_steps)
        with self._allowance.limited_to(max_steps):
            count = await self._run(max_instances, once=True)
        self._callbacks.check()
        return count

    async def advance(self, duration: Duration) -> None:
        """Advance the clock through every due time, and run what is due."""
        end_ms = self.now_ms + milliseconds(duration)
        await self._run(None)
        while (due_ms := self._next_due_ms()) is not None and due_ms <= end_ms + 1:
            if due_ms > self.now_ms:
                # Deadlines expire at the end of their millisecond, after everything else in it.
                self.now_ms = due_ms - 1
                await self._run(None, complete=True)
                if self._next_due_ms() != due_ms:
                    continue
                if due_ms > end_ms:
                    break
                self.now_ms = due_ms
            self._callbacks.wake(self.now_ms)
            await self._run(None)
        self.now_ms = end_ms
        await self._run(None)

    async def sleep(self, duration: Duration) -> None:
        """Wait for virtual time. For use in a callback."""
        await self._callbacks.sleep_until(self.now_ms + milliseconds(duration))

    def _next_due_ms(self) -> int | None:
        times = (self._callbacks.next_due_ms(), self._owner.next_due_ms())
        return min((time_ms for time_ms in times if time_ms is not None), default=None)

    def _running(self) -> list[CurrentAttempt]:
        return [attempt for host in self._hosts for attempt in host.running()]

    # -- results

    def published(self, topic: str) -> Listed[Published]:
        """Return the records that steps have published to a topic: `.key`, `.value`."""
        return Listed(record for record in self._published.values() if record.topic == topic)

    def execute(self, sql: str, params: Parameters = ()) -> Listed[tuple[Any, ...]]:
        """Run a statement on the harness's database and return its rows as tuples."""
        return Listed(self._database.execute(sql, params))

    # -- failures

    async def crash(self) -> None:
        """Drop everything in memory except the log."""
        self._stop()
        self._boot()
        await asyncio.sleep(0)

    # -- the harness

    def new_id(self, prefix: str) -> str:
        """Return an id drawn from the seed."""
        return f"{prefix}_{self._random.getrandbits(96):024x}"

    async def send(self, workflow: str, instance_id: str, command: Command) -> ReplySent:
        """Send a command and return its outcome."""
        command_id = self.new_id("cmd")
        self._append_command(
            CommandSent(
                command_id=command_id,
                workflow=workflow,
                instance_id=instance_id,
                sent_at_ms=self.now_ms,
                reply_to=0,
                command=command,
            )
        )
        self._turn()
        return self._replies.pop(command_id)

    def _append_command(self, command: CommandSent) -> None:
        self._commands.append(write(command))

    def _boot(self) -> None:
        claim = claim_of(self.new_id("owner"), self._kinds, self.now_ms)
        self._history.append(write(claim))
        claims, instances = restored(self._engines, self._history)
        self._read = claims.cause + 1
        self._sent_by_hosts = []
        self._driver = Driver(partitions=1)
        self._hosts = [self._new_host(number) for number in _HOSTS]
        known = (self._kinds, params_schemas(self._workflows.values()), self._concurrency)
        latest = {name for name, made in self._workflows.items() if made.follows_code}
        self._owner = Owner(
            0,
            claims,
            instances,
            code=Code(*known, self._host_of, self._deployments, lambda _: _APP, latest),
            number_activations=lambda host: self._driver.number_activation(0, host),
            draw_seed=lambda: self.new_id("seed"),
            evaluator=self._evaluator,
        )
        end = len(self._history)
        self._partition = Partition(
            0, self._owner, claims.epoch, {}, start=0, position=end, replied=self._read
        )
        self._driver.add_partition(self._partition)
        self._turn()

    def _new_host(self, number: int) -> Host:
        all_workflows = self._workflows.items()
        workflows = {name: made for name, made in all_workflows if self._host_of[name] == number}
        return Host(
            workflows,
            emit=partial(self._host_sent, self._driver),
            now_ms=lambda: self.now_ms,
            tasks=self._tasks if number == _APP else {},
            allowance=self._allowance,
        )

    def _stop(self) -> None:
        for host in self._hosts:
            host.stop()
        self._callbacks.cancel()
        self._sent_by_hosts.clear()

    def _host_sent(self, driver: Driver, message: FromHost) -> None:
        # Callbacks that a crash cancels may clean up, but their messages are dropped.
        if driver is self._driver:
            self._sent_by_hosts.append(check_topics(message, self._topics))

    def _turn(self, limit: int | None = 0, *, complete: bool = False) -> int:
        """Pass input to the driver, append, and deliver effects."""
        driver, partition = self._driver, self._partition
        while self._read < len(self._commands):
            sent = read(self._commands[self._read], CommandSent)
            partition.commands.append((self._read, sent))
            self._read += 1
        # All commands are known at any time.
        partition.reached_ms = self.now_ms
        sent_by_hosts, self._sent_by_hosts = self._sent_by_hosts, []
        for host in self._hosts:
            sent_by_hosts += host.still_running()
        if sent_by_hosts:
            encoder, decoder = _FROM_HOST
            driver.host_sent(decoder.decode(encoder.encode(sent_by_hosts)))
        turn = driver.turn(self.now_ms, limit, complete=complete)
        self._append(turn.flights)
        self._handle_incidents(turn)
        if turn.steps:
            for step in turn.steps:
                needed = self._owner.sql.mark_sent(step.commit)
                outcome = self._database.outcome(step.commit) if needed else None
                driver.step_settled(step, outcome)
            # At once: in production, the commit row survives a crash before this point.
            turn_of_sql = driver.turn(self.now_ms, 0)
            self._append(turn_of_sql.flights)
            self._handle_incidents(turn_of_sql)
        self._deliver_released()
        return turn.started

    def _handle_incidents(self, turn: Turn) -> None:
        """Log errors that cost one command or run, and restore damaged states."""
        for incident in turn.incidents:
            log.error("%s: %s", incident.kind, incident.what, exc_info=incident.error)
        for key in self._owner.damaged():
            _, instances = restored(self._engines, self._history, key)
            self._owner.restore_damaged(key, instances.find(key), self.now_ms)

    def _append(self, flights: Iterable[Flight]) -> None:
        for flight in flights:
            first = len(self._history)
            for key, record in flight.records():
                self._history.append(write(record))
                self._records.add(key.decode(), record)
            self._driver.appended(flight, first)

    def _deliver_released(self) -> None:
        """Deliver what the driver releases."""
        released = self._driver.take_released()
        for answers in released.answers:
            for _, reply in answers.replies:
                self._replies[reply.command_id] = reply
            for notice in answers.notices:
                self._append_command(notice)
        for _, queued in released.posts:
            self._send_posts(queued)
        for number, messages in released.to_hosts.items():
            encoder, decoder = _TO_HOST
            self._hosts[number].handle(decoder.decode(encoder.encode(messages)))

    def _send_posts(self, queued: Queued) -> None:
        for post in queued.posts:
            if post.command is not None:
                self._append_command(command_of(queued.key, post, self.now_ms))
            else:
                record = Published(post.topic or "", post.key, decode(post.value or "null"))
                self._published.setdefault((queued.key, post.number), record)
        self._driver.posts_sent(0, queued.key, queued.posts[-1].number)

    async def _run(self, limit: int | None, *, once: bool = False, complete: bool = False) -> int:
        """Run turns until nothing continues, except callbacks that wait for virtual time.

        `complete` means that everything at the current time has happened.
        """
        hosts = self._hosts
        count, turns = self._turn(limit, complete=complete), 0
        while self._hosts is hosts:
            if self._moves(ready=not once):
                count += self._turn(0 if once else None)
                turns += 1
                if turns % _TURNS_AT_ONCE == 0:
                    await asyncio.sleep(0)
                continue
            moved = lambda: bool(self._sent_by_hosts) or self._hosts is not hosts  # noqa: E731
            if not await self._callbacks.moved(moved):
                break
        if self._hosts is hosts or once:
            return count
        # It crashed meanwhile: the restored state has to come to rest before time advances.
        return await self._run(limit, complete=complete)

    def _moves(self, *, ready: bool) -> bool:
        owner, due_ms = self._owner, self._owner.next_due_ms()
        return (
            bool(self._sent_by_hosts)
            or self._driver.has_input()
            or self._read < len(self._commands)
            or owner.has_work(ready=ready)
            or (due_ms is not None and due_ms <= self.now_ms)
            or any(host.has_started() for host in self._hosts)
        )
