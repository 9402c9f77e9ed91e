"""The pipeline worker: a partition runner in one Faust app.

The worker is crash-only: an error in the runner ends the process, because its memory may be ahead
of the log, and the next process restarts from committed state.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NoReturn, ParamSpec, TypeVar

import uvloop

from headwater.monitoring.monitor import Monitor
from headwater.schemas.errors import Disposition, HeadwaterError
from headwater.schemas.topics import DEAD_LETTERS, EFFECTS, OUTCOMES, TRACES, WEBHOOKS
from headwater.streams.clock import monotonic
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.broker_clock import BrokerClock
from headwater.streams.kafka.cluster import Cluster, cluster_id
from headwater.streams.kafka.consumer_groups import MemberFenced
from headwater.streams.kafka.readers import Offsets
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.kafka.state_store import StateStore, StoreIdentity
from headwater.streams.kafka.state_stores import StateStores
from headwater.streams.ownership.deadlines import SESSION_S, SessionDeadlines, SessionExpired
from headwater.streams.ownership.phases import OwnedPartitions
from headwater.streams.ownership.watchdog import Stalled, Watchdog, arm, dump
from headwater.streams.pipeline._faust import (
    HEARTBEAT_S,
    App,
    batch_app,
    consume,
    consumer_failure,
    on_assignment,
    on_shutdown,
    run,
    run_periodically,
)
from headwater.streams.pipeline.deduplication import Intake
from headwater.streams.pipeline.fenced_log import FencedLog
from headwater.streams.pipeline.partition_runner import PartitionRunner
from headwater.streams.pipeline.partition_state import FORM
from headwater.streams.process_tuning import collect_seldom

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger(__name__)

#: How often intake does what is due without a record, such as ending a wait.
_TICK_S: Final = 1.0
#: How often the session deadline is renewed: many times in a session timeout, so that a short pause
#: does not end a worker.
_PULSE_S: Final = 1.0
#: How long a worker may be suspended. Its last heartbeat and its last pulse may have been up to
#: one interval before that; the session counts from the heartbeat.
LEASE_S: Final = SESSION_S - HEARTBEAT_S - _PULSE_S
#: EX_SOFTWARE of sysexits.h: the supervisor starts the worker again.
EXIT_CRASHED: Final = 70
#: EX_CONFIG of sysexits.h: another worker has its name, so a restart would end that one.
EXIT_FENCED: Final = 78
#: How long Kafka keeps tombstones: an older store may have values that they deleted.
_TOMBSTONES_KEPT_MS: Final = 24 * 60 * 60 * 1_000
#: A partition that makes no progress for as long, although it has work, is stuck.
_PATIENCE_S: Final = 60.0
#: A process is ended from C if its threads hang for as long.
_LAST_RESORT_S: Final = 90.0


class UnevenTopics(HeadwaterError):
    """Topics that are partitioned alike have different numbers of partitions."""

    disposition = Disposition.HALT
    code = "uneven_topics"


async def _partitions(cluster: Cluster) -> int:
    """Return the number of partitions of the topics; waits for Kafka and for the topics.

    Raises:
        UnevenTopics: The topics have different numbers of partitions.
    """
    appender = Appender(cluster=cluster, client_id="headwater-worker")
    topics = (*Intake.sources, *Intake.memory, OUTCOMES, TRACES, EFFECTS, DEAD_LETTERS)
    try:
        retrying = Retrying(log, "waiting for Kafka")
        counts = {
            topic: await retrying.until_done(partial(appender.partitions, topic))
            for topic in topics
        }
    finally:
        await appender.stop()
    if len(set(counts.values())) > 1:
        numbers = ", ".join(f"{topic} {count}" for topic, count in counts.items())
        raise UnevenTopics(
            f"expected as many partitions of each topic as of {WEBHOOKS}, found {numbers}; one "
            "worker owns a partition number of all of them"
        )
    return counts[WEBHOOKS]


def _die(code: int = EXIT_CRASHED) -> NoReturn:
    """End the process at once, from any thread."""
    logging.shutdown()
    os._exit(code)


def _pulse(app: App, deadlines: SessionDeadlines, watchdog: Watchdog) -> NoReturn:
    """Renew the session deadline and check progress for as long as the process lives.

    Runs in a thread of its own: when a suspended process resumes, the event loop may call no timer
    for a long time, and the loop may hang.
    """
    while True:
        arm(_LAST_RESORT_S)
        try:
            deadlines.renew()
            watchdog.check()
        except SessionExpired as error:
            log.critical("the worker ends, its partitions may have another owner: %s", error)
            _die()
        except Stalled as error:
            log.critical("the worker ends, to restart from committed state: %s", error)
            dump()
            _die()
        # Faust does not notice it, and calls no timer before the first assignment.
        failure = consumer_failure(app)
        if isinstance(failure, MemberFenced):
            log.critical("the worker ends: %s", failure)
            _die(EXIT_FENCED)
        if failure is not None:
            log.critical("the worker ends, to join its group again: %r", failure)
            _die()
        time.sleep(_PULSE_S)


def _or_die(action: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    """End the process at the first error of an action; see the module docstring."""

    async def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await action(*args, **kwargs)
        except Exception:
            log.critical("the worker ends, to restart from committed state", exc_info=True)
            _die()

    return guarded


def _build(  # noqa: PLR0913, PLR0917 (its collaborators)
    app: App,
    intake: Intake,
    deadlines: SessionDeadlines,
    watchdog: Watchdog,
    stores: StateStores,
    cluster: Cluster,
    clock: Callable[[], int],
    joined: Callable[[], Awaitable[None]],
    monitor: Monitor,
) -> None:
    broker_clock = BrokerClock(clock, monotonic)
    appender = Appender(
        cluster=cluster, client_id=f"headwater-{intake.name}", broker_clock=broker_clock
    )
    offsets, partitions = Offsets(cluster, app.conf.id), OwnedPartitions(watchdog)
    partitions.report_to(monitor)
    topics = FencedLog(
        cluster=cluster,
        appender=appender,
        check_session=deadlines.check,
        owner=f"{socket.gethostname()}-{os.getpid()}",
        memory=intake.memory,
        progress=partitions.progress,
    )
    runner = PartitionRunner(
        intake,
        topics=topics,
        partitions=partitions,
        offsets=offsets,
        open_store=partial(_open_store, stores, cluster, app.conf.id, clock),
        clock=broker_clock,
    )
    for topic in intake.sources:
        consume(app, name=f"{intake.name}-{topic}", topic=topic, process=_or_die(runner.process))

    async def tick() -> None:
        monitor.follow_loop()
        await joined()
        await runner.tick()

    run_periodically(app, _TICK_S, _or_die(tick))
    on_shutdown(app, offsets.stop)
    prepare = once_joined(runner.prepare, joined)
    on_assignment(app, assigned=runner.assigned, revoked=runner.revoked, prepare=_or_die(prepare))


def once_joined(
    prepare: Callable[[int], Awaitable[bool]], joined: Callable[[], Awaitable[None]]
) -> Callable[[int], Awaitable[bool]]:
    """Prepare partitions while the process joins the cluster members; none is ready before.

    Joining may wait for members that were killed, and restoring needs no schema versions to write
    in.
    """

    async def prepared(partition: int) -> bool:
        if not await prepare(partition):
            return False
        await joined()
        return await prepare(partition)  # It may have been revoked meanwhile.

    return prepared


async def _open_store(
    stores: StateStores, cluster: Cluster, group: str, clock: Callable[[], int], partition: int
) -> StateStore:
    """Open the store of a partition.

    Raises:
        BrokerUnavailable: No broker answered.
        StoreLocked: Other processes hold all folders of the store.
        StoreCorrupted: No store can be created.
    """
    identity = StoreIdentity(
        cluster=await cluster_id(cluster),
        group=f"pipeline-{group}",
        topics=Intake.memory,
        partition=partition,
        form=FORM,
    )
    since_ms = clock() - _TOMBSTONES_KEPT_MS
    return await stores.open_when_closed(identity, written_since_ms=since_ms)


def run_worker(  # noqa: PLR0913 (its collaborators)
    *,
    cluster: Cluster,
    app_id: str,
    make_intake: Callable[[int], Intake],
    stores: StateStores,
    joined: Callable[[], Awaitable[None]],
    member: str | None,
    clock: Callable[[], int],
    monitor: Monitor,
) -> None:
    """Run the pipeline worker until SIGTERM or SIGINT; exits the process.

    The exit code is 70 after a crash, and 78 if another worker has taken its name.

    Args:
        cluster: The cluster.
        app_id: Consumer group of the workers.
        make_intake: Returns the intake, for the number of partitions.
        stores: The stores on disk.
        joined: Returns once this process knows which schema versions to write.
        member: A name that the worker keeps over restarts, unique among workers.
        clock: Returns Unix milliseconds.
        monitor: Reports the partitions.
    """
    uvloop.install()
    intake = make_intake(uvloop.run(_partitions(cluster)))
    app = batch_app(app_id=app_id, cluster=cluster, member=member)
    deadlines = SessionDeadlines.create(session_s=LEASE_S)
    deadlines.confirm(monotonic())
    watchdog = Watchdog(patience_s=_PATIENCE_S, monotonic=monotonic)
    _build(app, intake, deadlines, watchdog, stores, cluster, clock, joined, monitor)
    collect_seldom()
    pulse = threading.Thread(
        target=_pulse, args=(app, deadlines, watchdog), name="pulse", daemon=True
    )
    pulse.start()
    if not run(app):
        log.critical("the worker ends, to restart from committed state: Faust failed")
        _die()
