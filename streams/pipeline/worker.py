"""The pipeline worker: a partition runner in one Faust app, and its session deadline.

The worker is crash-only: an error in the runner ends the process, because its memory may be ahead
of the log, and the next process restarts from committed state.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, NoReturn, ParamSpec, TypeVar

import uvloop

from headwater.processors.evaluations import Evaluator
from headwater.processors.providers.provider import Placement
from headwater.processors.triggers.rules import Rule
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
from headwater.streams.pipeline._faust import (
    HEARTBEAT_S,
    SESSION_TIMEOUT_S,
    App,
    batch_app,
    consume,
    consumer_failure,
    on_assignment,
    on_shutdown,
    run,
    run_periodically,
)
from headwater.streams.pipeline.intake import Intake
from headwater.streams.pipeline.partition_runner import PartitionRunner
from headwater.streams.pipeline.partition_state import FORM
from headwater.streams.process_tuning import collect_seldom
from headwater.streams.watchdog import Stalled, Watchdog, arm, dump


class SessionExpired(HeadwaterError):
    """The process was suspended for so long that its partitions may have another owner."""

    disposition = Disposition.HALT
    code = "lease_lost"


class SessionDeadline:
    """Prevents a worker that was suspended from appending outdated state.

    Its partitions may have another owner, and its appends would hide newer rows. The pulse stops
    with the process, so the deadline is checked before every append and at every pulse, whichever
    comes first when the process resumes.
    """

    def __init__(self, *, valid_for_s: float, monotonic: Callable[[], float]) -> None:
        self._valid_for_s = valid_for_s
        self._monotonic = monotonic
        self._renewed: float | None = None

    def renew(self) -> None:
        """Renew the deadline; called by the pulse.

        Raises:
            SessionExpired: The last pulse was too long ago.
        """
        now = self._monotonic()
        self._check(now)
        # Not the clock again: a suspension since the check must not count as a pulse.
        self._renewed = now

    def check(self) -> None:
        """Check the deadline.

        Raises:
            SessionExpired: The last pulse was too long ago.
        """
        self._check(self._monotonic())

    def _check(self, now: float) -> None:
        if self._renewed is None:
            return
        paused_s = now - self._renewed
        if paused_s > self._valid_for_s:
            raise SessionExpired(
                f"expected a pulse every {self._valid_for_s} s, found none for {paused_s:.1f} "
                "s; usual cause: the process or its machine was suspended"
            )


# -- the worker

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
LEASE_S: Final = SESSION_TIMEOUT_S - HEARTBEAT_S - _PULSE_S
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


def _pulse(app: App, deadline: SessionDeadline, watchdog: Watchdog) -> NoReturn:
    """Renew the session deadline and check progress for as long as the process lives.

    Runs in a thread of its own: when a suspended process resumes, the event loop may call no timer
    for a long time, and the loop may hang.
    """
    while True:
        arm(_LAST_RESORT_S)
        try:
            deadline.renew()
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
    deadline: SessionDeadline,
    watchdog: Watchdog,
    stores: StateStores,
    cluster: Cluster,
    clock: Callable[[], int],
    joined: Callable[[], Awaitable[None]],
) -> None:
    broker_clock = BrokerClock(clock, monotonic)
    appender = Appender(
        cluster=cluster, client_id=f"headwater-{intake.name}", broker_clock=broker_clock
    )
    offsets = Offsets(cluster, app.conf.id)
    runner = PartitionRunner(
        intake,
        cluster=cluster,
        appender=appender,
        offsets=offsets,
        check_session=deadline.check,
        watchdog=watchdog,
        open_store=partial(_open_store, stores, cluster, app.conf.id, clock),
        clock=broker_clock,
        owner=f"{socket.gethostname()}-{os.getpid()}",
    )
    for topic in intake.sources:
        consume(app, name=f"{intake.name}-{topic}", topic=topic, process=_or_die(runner.process))

    async def tick() -> None:
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
    return stores.open(identity, written_since_ms=clock() - _TOMBSTONES_KEPT_MS)


def run_worker(  # noqa: PLR0913 (its collaborators)
    *,
    cluster: Cluster,
    app_id: str,
    placement: Placement,
    park_for_ms: int,
    stores: StateStores,
    joined: Callable[[], Awaitable[None]],
    rules: Sequence[Rule],
    evaluator: Evaluator,
    member: str | None,
    clock: Callable[[], int],
) -> None:
    """Run the pipeline worker until SIGTERM or SIGINT; exits the process.

    The exit code is 70 after a crash, and 78 if another worker has taken its name.

    Args:
        cluster: The cluster.
        app_id: Consumer group of the workers.
        placement: The providers.
        park_for_ms: How long a delivery waits for its user, in milliseconds.
        stores: The stores on disk.
        joined: Returns once this process knows which schema versions to write.
        rules: Which deliveries start and signal workflows.
        evaluator: Evaluates the expressions of rules.
        member: A name that the worker keeps over restarts, unique among workers.
        clock: Returns Unix milliseconds.
    """
    uvloop.install()
    partitions = uvloop.run(_partitions(cluster))
    app = batch_app(app_id=app_id, cluster=cluster, member=member)
    intake = Intake(
        placement=placement,
        partitions=partitions,
        park_for_ms=park_for_ms,
        rules=rules,
        evaluator=evaluator,
    )
    deadline = SessionDeadline(valid_for_s=LEASE_S, monotonic=monotonic)
    watchdog = Watchdog(patience_s=_PATIENCE_S, monotonic=monotonic)
    _build(app, intake, deadline, watchdog, stores, cluster, clock, joined)
    collect_seldom()
    pulse = threading.Thread(
        target=_pulse, args=(app, deadline, watchdog), name="pulse", daemon=True
    )
    pulse.start()
    if not run(app):
        log.critical("the worker ends, to restart from committed state: Faust failed")
        _die()
