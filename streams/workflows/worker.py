"""The workflow worker: owns partitions of the workflow log, and runs their instances in hosts.

It does the I/O for the driver's turns: input from Kafka, hosts and Postgres is passed in, the
batches of a turn are appended, and released effects are sent.
"""

import asyncio
import contextlib
import logging
from collections.abc import Collection, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any, Final

from headwater.monitoring.catalog import STAGE_SECONDS
from headwater.processors.code.host_messages import Activate
from headwater.processors.runs.engine import Engines
from headwater.schemas.history import instance_key, is_of_app
from headwater.streams.clock import monotonic
from headwater.streams.code_host.apps import Declarations
from headwater.streams.engine.commands import RunSizeLimit
from headwater.streams.engine.driver import Driver
from headwater.streams.engine.instance_store import InstanceStore
from headwater.streams.engine.live_instances import LiveInstances
from headwater.streams.engine.owner import Owner
from headwater.streams.engine.restore import restore_partition
from headwater.streams.engine.steps_with_sql import StepDatabase
from headwater.streams.engine.turns import Flight, Partition
from headwater.streams.kafka.broker_clock import BrokerClock
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.ownership.deadlines import SessionDeadlines
from headwater.streams.workflows.app_environment import environment_of_apps
from headwater.streams.workflows.command_reader import CommandHandling
from headwater.streams.workflows.history_lease import Append, Outcome, OwnershipLost
from headwater.streams.workflows.history_metrics import count_records
from headwater.streams.workflows.host_process import HostOptions
from headwater.streams.workflows.hosts import Hosts, Reloading
from headwater.streams.workflows.housekeeping import Checkpoints, Housekeeping
from headwater.streams.workflows.incidents import Incidents, Restoring
from headwater.streams.workflows.instance_stores import InstanceStores
from headwater.streams.workflows.log import WorkflowLog
from headwater.streams.workflows.manual_ticks import TickResult, Ticks
from headwater.streams.workflows.measures import Measures
from headwater.streams.workflows.outbox import Outbox, Replies
from headwater.streams.workflows.ownership import Handover, Ownership
from headwater.streams.workflows.runnable_code import RunnableCode
from headwater.streams.workflows.step_sql import StepSql
from headwater.streams.workflows.worker_options import Bounds, Pace, WorkerCode, WorkerServices

log = logging.getLogger(__name__)

#: Pause before a partition is acquired again after an error that is likely to recur.
_PAUSE_AFTER_BUG_S: Final = 30.0
#: Longest wait for appends in flight where it is useful but not required.
_APPENDED_S: Final = 5.0
#: Longest wait of a rebalance for replies.
_REPLIED_S: Final = 1.0
#: Poll interval until a partition of a suspended worker is confirmed.
_POLL_S: Final = 0.05


class WorkflowWorker:
    """A worker for the workflows of some apps, and for the built-in ones.

    Args:
        cluster: The cluster.
        name: Distinguishes workers in the log.
        engines: Decide runs, by kind.
        code: The code that it runs.
        services: What it uses.
        member: Static group member name that survives restarts.
        pace: Intervals.
        bounds: Limits.
    """

    def __init__(  # noqa: PLR0913, chosen by the composition root
        self,
        *,
        cluster: Cluster,
        name: str,
        engines: Engines,
        code: WorkerCode,
        services: WorkerServices,
        member: str | None = None,
        pace: Pace = Pace(),  # noqa: B008 (a constant)
        bounds: Bounds = Bounds(),  # noqa: B008 (a constant)
    ) -> None:
        self._name, self._engines, self._services = name, engines, services
        self._stores = InstanceStores(cluster, engines, services.stores)
        self._pace, self._bounds = pace, bounds
        self._clock = BrokerClock(services.clock, monotonic, bounds.skew_max_ms)
        self._input_arrived = asyncio.Event()
        self._driver = Driver(1, self._input_arrived.set, monotonic)
        self._deadlines = SessionDeadlines.create()
        self._driver.may_release = self._deadlines.holds
        self._log = self._make_log(cluster)
        self._hosts = self._make_hosts(code)
        self._code = RunnableCode(self._hosts, code.kinds, code.graphs, code.deployed)
        self._outbox, self._replies = self._make_senders(cluster)
        self._ownership = Ownership(
            cluster=cluster,
            name=name,
            member=member,
            driver=self._driver,
            workflow_log=self._log,
            deadlines=self._deadlines,
            handover=Handover(self._acquire, self._finish, self._forget, self._hosts.caught_up),
            handling=CommandHandling(self._clock, self._outbox.park, self._code.before_deciding),
        )
        self._checkpoints = self._make_checkpoints()
        self._reloading = [Reloading(self._hosts, self._open_runs)] if code.reload else []
        self._ticks = self._make_ticks() if code.ticked else None
        self._sql = self._make_sql(services.database)
        self._housekeeping = self._make_housekeeping()
        self._is_stopping, self._background = False, set[asyncio.Task[None]]()
        self._incidents = Incidents()
        self._restoring = self._make_restoring()
        if services.monitor is not None:
            self._ownership.report_to(services.monitor)
            measures = Measures(self._driver, self._hosts, self._checkpoints, self._clock.now_ms)
            measures.report_to(services.monitor)

    # -- running

    async def run(self) -> None:
        """Run until it is cancelled.

        Raises:
            AppNotLoaded: An app cannot be imported.
            HostKilled: A host was killed repeatedly.
        """
        tasks: list[asyncio.Future[None]] = []
        self._error: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self._hosts.start()
        try:
            await self._connect()
            if self._services.joined is not None:
                await self._services.joined()
            await self._code.start(self._code_changed)
            await self._ownership.start()
            tasks = [self._error, *map(asyncio.create_task, self._work())]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            # Appends in flight have no effects any more; the next owner reads them.
            self._is_stopping = True
            for task in (*tasks, *self._background):
                task.cancel()
            await asyncio.gather(*tasks, *self._background, return_exceptions=True)
            # Before other workers may acquire partitions: attempts would be started twice.
            await self._hosts.stop()
            if tasks:
                await self._ownership.stop()
            for partition in self._driver.partitions.values():
                partition.owner.instances.store.close()
            await asyncio.gather(self._outbox.stop(), self._replies.stop(), self._log.stop())
            await self._code.stop()
            self._deadlines.close()

    def _work(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield the coroutines that run concurrently."""
        yield from (self._ownership.run(), self._replies.run(), self._outbox.run())
        yield from (reloading.run() for reloading in self._reloading)
        yield self._turns()
        yield self._housekeeping.run()
        yield from self._code.follow(self._hosts_in_use)

    async def tick(
        self,
        max_instances: int | None = None,
        max_steps: int | None = None,
        continuing: bool = False,
    ) -> TickResult:
        """Run a tick of a ticked worker; see `Ticks.tick`."""
        assert self._ticks is not None  # noqa: S101, only for ticked workers
        return await self._ticks.tick(max_instances, max_steps, continuing)

    def _make_hosts(self, code: WorkerCode) -> Hosts:
        threads_max, deadlines = self._bounds.threads_max, self._deadlines
        options = HostOptions(
            names_steps=code.reload,
            environment=environment_of_apps(self._bounds.passed),
            threads_max=threads_max,
            deadlines=deadlines,
        )
        builtin = code.builtin._replace(threads_max=threads_max, deadlines=deadlines)
        return Hosts(code.apps, self._driver, options, builtin)

    def _make_log(self, cluster: Cluster) -> WorkflowLog:
        return WorkflowLog(
            cluster=cluster,
            client_id=f"{self._name}-log",
            clock=self._clock,
            reported=self._reported,
        )

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
            superseded=self._ownership.reacquire,
            confirmed=self._confirmed,
        )

    def _make_restoring(self) -> Restoring:
        reacquire = self._ownership.reacquire
        return Restoring(self._log, self._driver, self._appended, self._clock.now_ms, reacquire)

    def _make_housekeeping(self) -> Housekeeping:
        return Housekeeping(
            driver=self._driver,
            checkpoints=self._checkpoints,
            sql=self._sql,
            pace=self._pace,
            clock=self._clock.now_ms,
            appended=self._appended,
            commit=self._ownership.commit,
            warn_of=self._hosts.warn_without_code,
        )

    def _make_ticks(self) -> Ticks:
        hosts = self._hosts
        return Ticks(self._driver.wake_up, self._owners, hosts.all_numbers, hosts.allow)

    def current_work(self) -> str:
        """Return what the event loop is deciding. May be called in any thread."""
        partition = self._driver.serving
        if partition is None:
            return "no decision"
        latest = partition.owner.last_decided
        if not isinstance(latest, str):
            key = instance_key(latest.workflow, latest.instance_id)
            latest = f"{type(latest.command).__name__} for {key}"
        return f"a decision on {latest} in partition {partition.number}"

    def threads_held(self) -> dict[str, int]:
        """See `Hosts.threads_held`."""
        return self._hosts.threads_held()

    async def declared(self) -> Declarations:
        """Return the declarations of apps, once `run` has loaded them."""
        await self._hosts.started()
        return self._hosts.declared

    def _owners(self) -> list[Owner]:
        return [partition.owner for partition in self._driver.partitions.values()]

    def _open_runs(self) -> Iterator[Activate]:
        """Yield the open runs of the apps' code, as a host would receive them."""
        for owner in self._owners():
            for engine, run in owner.instances.open_runs():
                message = engine.activate(run, 0)
                if isinstance(message, Activate) and is_of_app(run.deployment):
                    yield message

    def _code_changed(self) -> None:
        """Apply a deployment or activation."""
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
            # The consumer sets this, too, whenever it has learned that time has passed.
            await self._input_arrived.wait()
            self._input_arrived.clear()
            self._hosts.apply_backpressure()
            if self._driver.may_turn():
                if self._clock.is_doubtful():
                    await self._log.settle_time()
                self._turn()
                self._ownership.note_turn()
                if self._driver.has_backlog(self._hosts.closed(), ready=self._ticks is None):
                    self._input_arrived.set()
                    await asyncio.sleep(0)  # Let other tasks of the process run.

    def _turn(self) -> None:
        limit, closed, continuing = None, self._hosts.closed(), False
        if self._ticks is not None:
            limit, closed = self._ticks.left, closed | self._ticks.closed
            continuing = self._ticks.continuing
        began_s = monotonic()
        turn = self._driver.turn(self._clock.now_ms(), limit, closed=closed, continuing=continuing)
        STAGE_SECONDS.observe(monotonic() - began_s, ("workflow turn",))
        for step in turn.steps:
            self._in_background(self._sql.run(step))
        self._append(turn.flights)
        self._incidents.note(turn.incidents)
        for restoring in self._restoring.begin(self._driver.partitions.values()):
            self._in_background(restoring)
        self._send_released()
        if self._ticks is not None:
            self._ticks.record_turn(turn)

    def _append(self, flights: Iterable[Flight]) -> None:
        """Append what a turn has decided, of all partitions together."""
        appends: list[Append] = []
        began_s = monotonic()
        for flight in flights:
            if records := flight.records():
                done = partial(self._landed, flight, began_s)
                appends.append(Append(flight.partition.number, records, done))
            else:
                self._driver.appended(flight, 0)
        self._log.append(appends)

    def _landed(self, flight: Flight, began_s: float, outcome: Outcome) -> None:
        """Pass the outcome of an append to the driver."""
        STAGE_SECONDS.observe(monotonic() - began_s, ("workflow append",))
        first = outcome if isinstance(outcome, int) and not self._is_stopping else None
        try:
            if isinstance(outcome, Exception) and not self._is_stopping:
                self._reacquire(flight, outcome)
            self._driver.appended(flight, first)
            if first is not None:
                count_records(flight.batch.records)
        except Exception as error:  # noqa: BLE001, it ends the worker
            self._fail(error)

    def _reacquire(self, flight: Flight, error: Exception) -> None:
        """Acquire the partition of a failed append again."""
        partition = flight.partition
        if isinstance(error, OwnershipLost):
            self._ownership.reacquire(partition, error.message, error.pause_s)
            return
        # A bug, or a record that is too large: later appends of the owner depend on it.
        log.error("a turn cannot be appended", exc_info=error)
        is_unwritable = self._incidents.cannot_write(partition.number, flight.records())
        pause_s = 0 if is_unwritable else _PAUSE_AFTER_BUG_S
        self._ownership.reacquire(partition, repr(error), pause_s)

    def _reported(self) -> None:
        """Send the effects of all appends that one response of Kafka has completed, together.

        Sent separately, each would be a frame that its host answers separately, and so on: batches
        with few instances would stay small. They are sent before the next turn, which the driver
        requests, so that hosts work during it.
        """
        try:
            self._send_released()
        except Exception as error:  # noqa: BLE001, it ends the worker
            self._fail(error)

    def _send_released(self) -> None:
        """Send what the driver releases."""
        released = self._driver.take_released()
        for partition, posts in released.posts:
            self._outbox.queue(partition.number, posts)
        for answers in released.answers:
            self._replies.send(answers)
        for partition, step in released.recorded:
            self._sql.recorded(partition, step)
        self._hosts.send(released.to_hosts)

    async def _appended(self, numbers: Collection[int]) -> None:
        """Wait a limited time for the appends of partitions that are in flight now."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_APPENDED_S):
                await self._log.appended(numbers)

    async def _finish(self, numbers: Collection[int]) -> None:
        """Wait a limited time for work in flight in partitions.

        Replies that are not sent by then are sent by the next owner.
        """
        await self._appended(numbers)
        self._send_released()
        partitions = [self._driver.partitions[n] for n in numbers if n in self._driver.partitions]
        if partitions:
            sent = asyncio.gather(*map(self._replies.all_sent, partitions))
            await asyncio.wait([sent], timeout=_REPLIED_S)
            sent.cancel()

    async def _confirmed(self, partition: Partition) -> bool:
        """Wait until a partition is certainly owned. Return False if it is released."""
        while self._driver.drives(partition):
            if self._deadlines.holds(partition.number):
                return True
            await asyncio.sleep(_POLL_S)
        return False

    # -- partitions

    async def _acquire(self, number: int, replied: int) -> Partition:
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
            code=self._code.code(),
            number_activations=lambda host: self._driver.number_activation(number, host),
            draw_seed=self._services.draw_seed,
            size_limit=RunSizeLimit(self._bounds.run_bytes_max),
            evaluator=self._services.evaluator,
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
        # After the log was read: no other owner records what is committed only in Postgres.
        partition.move_to(self._clock.now_ms())
        await self._sql.recover_steps(partition, partition.now_ms)
        in_memory = instances.count_in_memory()
        log.info(
            "acquired partition %s: read its history from offset %s to %s; %s instances are in "
            "memory, resting ones are not",
            *(number, restored.start, epoch, in_memory),
        )
        return partition

    def _forget(self, partition: Partition) -> None:
        self._send_released()
        # An acquisition that is abandoned may end when the next one has its partition.
        if partition.number not in self._driver.partitions:
            self._outbox.forget(partition.number)
        self._checkpoints.forget(partition)
        self._replies.forget(partition)
        self._sql.forget(partition)
        partition.owner.instances.store.close()

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine concurrently. An unexpected error in it ends the worker."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End the worker with an unexpected error."""
        if not self._error.done():
            self._error.set_exception(error)
