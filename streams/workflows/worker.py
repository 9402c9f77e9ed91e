"""The workflow worker: owns partitions of the workflow log, and runs their instances in hosts.

It brings the world to the driver's turns: what comes from Kafka, hosts and Postgres goes in, the
batches of a turn are appended, and what the driver releases goes out.
"""

import asyncio
import logging
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, Final

from headwater.processors.evaluations import Evaluator
from headwater.processors.replay.host_messages import Activate
from headwater.processors.runs.engine import Engines
from headwater.schemas.history import instance_key
from headwater.streams.clock import monotonic
from headwater.streams.code_host.apps import Declarations
from headwater.streams.deadlines import SessionDeadlines
from headwater.streams.engine.driver import Driver
from headwater.streams.engine.instance_store import InstanceStore
from headwater.streams.engine.live_instances import LiveInstances
from headwater.streams.engine.owner import Owner
from headwater.streams.engine.restore import restore_partition
from headwater.streams.engine.run_size_limit import RunSizeLimit
from headwater.streams.engine.step_database import StepDatabase
from headwater.streams.engine.turns import Flight, Partition
from headwater.streams.kafka.broker_clock import BrokerClock
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.kafka.state_stores import StateStores
from headwater.streams.workflows.checkpoints import Checkpoints
from headwater.streams.workflows.deployed_code import DeployedCode
from headwater.streams.workflows.deployed_graphs import DeployedGraphs
from headwater.streams.workflows.host_process import Program
from headwater.streams.workflows.hosts import Hosts
from headwater.streams.workflows.housekeeping import Housekeeping
from headwater.streams.workflows.incidents import Incidents
from headwater.streams.workflows.instance_stores import InstanceStores
from headwater.streams.workflows.log import OwnershipLost, WorkflowLog
from headwater.streams.workflows.manual_ticks import Done, Ticks
from headwater.streams.workflows.outbox import Outbox
from headwater.streams.workflows.ownership import Ownership
from headwater.streams.workflows.reloading import Reloading
from headwater.streams.workflows.replies import Replies
from headwater.streams.workflows.restoring import Restoring
from headwater.streams.workflows.runnable_code import RunnableCode
from headwater.streams.workflows.step_sql import StepSql
from headwater.streams.workflows.worker_settings import Bounds, Pace

log = logging.getLogger(__name__)

#: How long a partition rests after a fault that the next takeover is likely to meet again.
_PAUSE_AFTER_FAULT_S: Final = 30.0
#: How long appends under way are waited for where that is good, and not necessary.
_APPENDED_S: Final = 5.0
#: How long a rebalance may wait for replies.
_REPLIED_S: Final = 1.0
#: How often it is looked whether a partition is confirmed since this worker was suspended.
_LOOK_S: Final = 0.05


class WorkflowWorker:
    """A worker for the workflows of some apps, and for those that come with Headwater.

    Shape:  apps are each `package.module` or `package.module:attribute`; engines decide for the
            kinds of their runs; workflows are those that need no code, with their kinds; name tells
            workers apart in the log and is not kept; member is a name that a worker keeps over
            restarts; one that is ticked runs code only then; joined returns when it is known what
            others read; stores have the instances that rest, which without any lie in memory; house
            is the program of the house's own app, which without one has schedules alone; graphs
            and deployed are those graphs, and that code, that are deployed, which without any are
            not followed; with reload, a change of an app's files starts its host again.
    """

    def __init__(  # noqa: PLR0913, what the composition root chooses
        self,
        *,
        cluster: Cluster,
        apps: Sequence[str],
        engines: Engines,
        workflows: Mapping[str, str] | None = None,
        clock: Callable[[], int],
        draw_seed: Callable[[], str],
        name: str,
        database: StepDatabase | None = None,
        member: str | None = None,
        pace: Pace | None = None,
        ticked: bool = False,
        joined: Callable[[], Awaitable[None]] | None = None,
        stores: StateStores | None = None,
        house: Program | None = None,
        graphs: DeployedGraphs | None = None,
        deployed: DeployedCode | None = None,
        bounds: Bounds | None = None,
        reload: bool = False,
        evaluator: Evaluator | None = None,
    ) -> None:
        self._stores, self._joined = InstanceStores(cluster, engines, stores), joined
        self._engines, self._evaluator = engines, evaluator
        self._draw_seed, self._name = draw_seed, name
        self._pace, self._bounds = pace or Pace(), bounds or Bounds()
        self._clock = BrokerClock(clock, monotonic, self._bounds.skew_max_ms)
        self._something_came = asyncio.Event()
        self._driver = Driver(1, self._something_came.set, monotonic)
        self._deadlines = SessionDeadlines.create()
        self._driver.may_release = self._deadlines.holds
        self._log = self._make_log(cluster)
        self._hosts = self._make_hosts(apps, house, named=reload)
        self._code = RunnableCode(self._hosts, workflows or {}, graphs, deployed)
        self._outbox, self._replies = self._make_senders(cluster)
        self._ownership = Ownership(
            cluster=cluster,
            name=name,
            member=member,
            driver=self._driver,
            workflow_log=self._log,
            deadlines=self._deadlines,
            clock=self._clock,
            take_over=self._take_over,
            before_giving_up=self._settle,
            given_up=self._given_up,
            after_giving_up=self._hosts.caught_up,
            parked=self._outbox.park,
            before_deciding=self._code.before_deciding,
        )
        self._checkpoints = self._make_checkpoints()
        self._reloading = [Reloading(self._hosts, self._open_runs)] if reload else []
        self._ticks = self._make_ticks() if ticked else None
        self._sql = self._make_sql(database)
        self._housekeeping = self._make_housekeeping()
        self._appends: dict[asyncio.Task[None], Partition] = {}
        self._letting_go, self._background = False, set[asyncio.Task[None]]()
        self._incidents = Incidents()
        self._restoring = self._make_restoring()

    # -- running

    async def run(self) -> None:
        """Works until it is cancelled.

        Errors: AppNotLoaded; HostKilled, when that happens again and again.
        """
        tasks: list[asyncio.Future[None]] = []
        self._fault: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self._hosts.start()
        try:
            await self._connect()
            if self._joined is not None:
                await self._joined()
            await self._code.start(self._code_changed)
            await self._ownership.start()
            tasks = [self._fault, *map(asyncio.create_task, self._work())]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (*tasks, *self._background):
                task.cancel()
            await asyncio.gather(*tasks, *self._background, return_exceptions=True)
            # Before others may take over: what it begins now would be begun twice.
            await self._hosts.stop()
            if tasks:
                await self._ownership.stop()
            for partition in self._driver.partitions.values():
                partition.owner.instances.store.close()
            await asyncio.gather(self._outbox.stop(), self._replies.stop(), self._log.stop())
            await self._code.stop()
            self._deadlines.close()

    def _work(self) -> Iterator[Coroutine[Any, Any, None]]:
        """What is done side by side."""
        yield from (self._ownership.run(), self._replies.run(), self._outbox.run())
        yield from (each.run() for each in self._reloading)
        yield self._turns()
        yield self._housekeeping.run()
        yield from self._code.follow(self._hosts_in_use)

    async def tick(
        self,
        max_instances: int | None = None,
        max_steps: int | None = None,
        *,
        continuing: bool = False,
    ) -> Done:
        """Has a worker that is ticked do what is due; see `Ticks.tick`."""
        assert self._ticks is not None  # noqa: S101, whoever ticks has chosen so
        return await self._ticks.tick(max_instances, max_steps, continuing=continuing)

    def _make_hosts(self, apps: Sequence[str], house: Program | None, *, named: bool) -> Hosts:
        return Hosts(
            apps,
            self._driver,
            house,
            named=named,
            threads_max=self._bounds.threads_max,
            passed=self._bounds.passed,
            deadlines=self._deadlines,
        )

    def _make_log(self, cluster: Cluster) -> WorkflowLog:
        return WorkflowLog(cluster=cluster, client_id=f"{self._name}-log", clock=self._clock)

    def _make_senders(self, cluster: Cluster) -> tuple[Outbox, Replies]:
        outbox = Outbox(
            cluster=cluster,
            client_id=f"{self._name}-posts",
            clock=self._clock.now_ms,
            sent=self._driver.posts_sent,
            may_release=self._deadlines.holds,
        )
        replies = Replies(
            cluster=cluster,
            client_id=f"{self._name}-replies",
            outbox=outbox,
            may_release=self._deadlines.holds,
        )
        return outbox, replies

    def _make_checkpoints(self) -> Checkpoints:
        return Checkpoints(
            self._log,
            replied=self._replies.all_sent,
            commit=self._ownership.commit,
            records=self._pace.checkpoint_records,
            seconds=self._pace.checkpoint_s,
        )

    def _make_sql(self, database: StepDatabase | None) -> StepSql:
        settled, waits = self._driver.step_settled, self._driver.step_waits
        return StepSql(
            database,
            settled=settled,
            waits=waits,
            superseded=self._ownership.lose,
            confirmed=self._confirmed,
        )

    def _make_restoring(self) -> Restoring:
        lose = self._ownership.lose
        return Restoring(self._log, self._driver, self._appended, self._clock.now_ms, lose)

    def _make_housekeeping(self) -> Housekeeping:
        return Housekeeping(
            driver=self._driver,
            checkpoints=self._checkpoints,
            sql=self._sql,
            pace=self._pace,
            clock=self._clock.now_ms,
            appended=self._appended,
            commit=self._ownership.commit,
            warn_of=self._hosts.warn_of,
        )

    def _make_ticks(self) -> Ticks:
        hosts = self._hosts
        return Ticks(self._driver.wake_up, self._owners, hosts.all_numbers, hosts.allow)

    def at_work(self) -> str:
        """What the event loop is deciding; may be called in any thread."""
        partition = self._driver.serving
        if partition is None:
            return "no decision"
        latest = partition.owner.last_decided
        if not isinstance(latest, str):
            key = instance_key(latest.workflow, latest.instance_id)
            latest = f"{key}, which is sent {type(latest.command).__name__},"
        return f"a decision for {latest} in partition {partition.number}"

    def threads_held(self) -> dict[str, int]:
        """See `Hosts.threads_held`."""
        return self._hosts.threads_held()

    def errors_contained(self) -> dict[str, int]:
        """Return how many errors have cost one command or run each, by what failed."""
        return dict(self._incidents.counts)

    def quarantined(self) -> int:
        """Return how many instances of this worker's partitions are quarantined."""
        return sum(len(owner.instances.quarantined) for owner in self._owners())

    async def declared(self) -> Declarations:
        """What the apps declare, once `run` has loaded them."""
        await self._hosts.started()
        return self._hosts.declared

    def _owners(self) -> list[Owner]:
        return [partition.owner for partition in self._driver.partitions.values()]

    def _open_runs(self) -> Iterator[Activate]:
        """The open runs of the apps' code, as a host would be given them."""
        for owner in self._owners():
            for engine, run in owner.instances.open_runs():
                message = engine.activate(run, 0)
                if isinstance(message, Activate) and run.deployment is None:
                    yield message

    def _code_changed(self) -> None:
        """Something was deployed or activated."""
        for owner in self._owners():
            owner.code_changed()
        self._driver.wake_up()

    def _hosts_in_use(self) -> set[int]:
        return {number for owner in self._owners() for number in owner.hosts_in_use()}

    async def _connect(self) -> None:
        retrying = Retrying(log, "waiting for Kafka")
        await retrying.until_done(self._log.start)
        self._driver.count = await retrying.until_done(self._log.partitions)
        self._deadlines.set_partitions(self._driver.count)
        await retrying.until_done(self._outbox.connect)
        await retrying.until_done(self._replies.connect)

    # -- turns

    async def _turns(self) -> None:
        while True:
            # The consumer wakes us up, too, whenever it has learnt that time went on.
            await self._something_came.wait()
            self._something_came.clear()
            self._hosts.hold()
            if self._driver.may_turn():
                if self._clock.is_doubtful():
                    await self._log.settle_time()
                self._turn()
                if self._driver.has_backlog(self._hosts.closed(), ready=self._ticks is None):
                    self._something_came.set()
                    await asyncio.sleep(0)  # Whatever else the process does comes in between.

    def _turn(self) -> None:
        limit, closed, continuing = None, self._hosts.closed(), False
        if self._ticks is not None:
            limit, closed = self._ticks.left, closed | self._ticks.closed
            continuing = self._ticks.continuing
        turn = self._driver.turn(self._clock.now_ms(), limit, closed=closed, continuing=continuing)
        for step in turn.steps:
            self._in_background(self._sql.run(step))
        for flight in turn.flights:
            append = self._in_background(self._append(flight))
            self._appends[append] = flight.partition
            append.add_done_callback(self._appends.pop)
        self._incidents.note(turn.incidents)
        for restoring in self._restoring.begin(self._driver.partitions.values()):
            self._in_background(restoring)
        self._let_go()
        if self._ticks is not None:
            self._ticks.turned(turn)

    async def _append(self, flight: Flight) -> None:
        first: int | None = None
        partition, records = flight.partition, flight.records()
        try:
            first = await self._log.append(partition.number, records) if records else 0
        except OwnershipLost as error:
            self._ownership.lose(partition, error.message, error.pause_s)
        except Exception as error:
            # A bug, or a record that is too large: its owner waits for what will never follow.
            log.exception("a turn cannot be appended")
            known = self._incidents.cannot_write(partition.number, records)
            self._ownership.lose(partition, repr(error), 0 if known else _PAUSE_AFTER_FAULT_S)
        finally:
            # Before the next turn, which the driver asks for: hosts work while it lasts.
            self._let_go_soon()
            # When cancelled, nobody knows whether the records count.
            self._driver.appended(flight, first)

    def _let_go_soon(self) -> None:
        """Lets go what follows from all appends that one answer of Kafka's has ended.

        Each by itself would send its host a frame, which it answers by itself, and so on: batches
        of few instances would stay as small as they have become.
        """
        if not self._letting_go:
            self._letting_go = True
            asyncio.get_running_loop().call_soon(self._let_go)

    def _let_go(self) -> None:
        """Sends what the driver releases to where it belongs."""
        self._letting_go = False
        released = self._driver.take_released()
        for partition, posts in released.posts:
            self._outbox.queue(partition.number, posts)
        for answers in released.answers:
            self._replies.send(answers)
        for partition, step in released.recorded:
            self._sql.recorded(partition, step)
        self._hosts.send(released.to_hosts)

    async def _appended(self, numbers: Collection[int]) -> None:
        """Waits for appends of partitions that are under way now, though not for very long."""
        appends = [task for task, each in self._appends.items() if each.number in numbers]
        if appends:
            await asyncio.wait(appends, timeout=_APPENDED_S)

    async def _settle(self, numbers: Collection[int]) -> None:
        """Wait for what is under way in partitions, though not for very long.

        Replies that are not sent by then are sent by the next owner.
        """
        await self._appended(numbers)
        self._let_go()
        partitions = [self._driver.partitions[n] for n in numbers if n in self._driver.partitions]
        if partitions:
            sent = asyncio.gather(*map(self._replies.all_sent, partitions))
            await asyncio.wait([sent], timeout=_REPLIED_S)
            sent.cancel()

    async def _confirmed(self, partition: Partition) -> bool:
        """Wait until a partition is surely owned; return False once it is given up."""
        while self._driver.drives(partition):
            if self._deadlines.holds(partition.number):
                return True
            await asyncio.sleep(_LOOK_S)
        return False

    # -- partitions

    async def _take_over(self, number: int, replied: int) -> Partition:
        store = await self._stores.open(number)
        try:
            return await self._restore(number, replied, store)
        except BaseException:
            store.close()
            raise

    async def _restore(self, number: int, replied: int, store: InstanceStore) -> Partition:
        workflows, params = self._code.workflows(), self._hosts.params()
        concurrency = self._hosts.concurrency()
        epoch = await self._log.claim(number, self._name, dict(workflows), params, concurrency)
        instances = LiveInstances(self._engines, store)
        restored = await restore_partition(self._log, instances, number, epoch, replied)
        for key, reason in self._incidents.take_unwritable(number).items():
            instances.quarantine(key, reason)
        owner = Owner(
            number,
            restored.claims,
            restored.instances,
            restored.wakes,
            code=self._code.code(),
            number_activations=lambda host: self._driver.number_activation(number, host),
            draw_seed=self._draw_seed,
            size_limit=RunSizeLimit(self._bounds.run_bytes_max),
            evaluator=self._evaluator,
        )
        partition = Partition(
            number,
            owner,
            epoch,
            restored.outcomes,
            start=restored.start,
            position=epoch + 1,
            replied=min(restored.replied, restored.claims.cause + 1),
            now_ms=restored.at_ms,
        )
        # After the log was read: what is committed here and not there, nobody else will record.
        partition.move_to(self._clock.now_ms())
        await self._sql.take_over(partition, partition.now_ms)
        at_work = instances.count_in_memory()
        log.info(
            "partition %s is taken over: its history was read from offset %s to %s; %s instances "
            "are in memory, those that rest are not",
            *(number, restored.start, epoch, at_work),
        )
        return partition

    def _given_up(self, partition: Partition) -> None:
        self._let_go()
        # A takeover that comes to nothing may end when the next one has its partition.
        if partition.number not in self._driver.partitions:
            self._outbox.forget(partition.number)
        self._checkpoints.forget(partition)
        self._replies.forget(partition)
        self._sql.forget(partition)
        partition.owner.instances.store.close()

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Works beside the turns; an error that nobody expects there ends the worker."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        fault = None if task.cancelled() else task.exception()
        if fault is not None and not self._fault.done():
            self._fault.set_exception(fault)
