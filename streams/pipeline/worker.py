"""The pipeline worker: an agent over one Faust app.

The loop of the agent: restore the memory of a partition before its first batch, let the stage
decide, append what it emits, and only when the broker has acknowledged all of it say that the batch
is done. The worker is crash-only: an error in the agent ends the process, whose memory may be ahead
of the log, and the next one starts from what is durable.
"""

import asyncio
import gc
import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Final, NoReturn

import uvloop

from headwater.processors.providers.placement import Placement
from headwater.processors.triggers.rules import Rule
from headwater.schemas.codec import written_forms
from headwater.schemas.errors import Disposition, HeadwaterError, NotYetReadable
from headwater.schemas.newer import Waiting, readable, why_waits
from headwater.schemas.topics import DEAD_LETTERS, EFFECTS, OUTCOMES, TRACES, WEBHOOKS
from headwater.streams.clock import monotonic, now_ms
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.partition_reader import read_partition
from headwater.streams.kafka.records import Outgoing
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.pipeline._faust import (
    SESSION_TIMEOUT_S,
    TP,
    App,
    Batch,
    batch_app,
    consume,
    every,
    on_assignment,
    run,
)
from headwater.streams.pipeline.intake import Intake
from headwater.streams.pipeline.stage import Stage, phases

log = logging.getLogger(__name__)

#: How often a stage does what is due without a record, such as ending a wait.
_TICK_S: Final = 1.0
#: How often the lease is renewed: many times in a session timeout, so that no hiccup ends a worker.
_PULSE_S: Final = 1.0
#: EX_SOFTWARE of sysexits.h: the supervisor starts the worker again.
EXIT_CRASHED: Final = 70
_GC_THRESHOLD: Final = 50_000


class LeaseLost(HeadwaterError):
    """The process stood still for so long that its partitions may have another owner."""

    disposition = Disposition.HALT
    code = "lease_lost"


class FormsChanged(HeadwaterError):
    """What was not to be written may be written now, and its partitions are to be read again."""

    disposition = Disposition.HALT
    code = "forms_changed"


class UnevenTopics(HeadwaterError):
    """Topics that lie side by side have different numbers of partitions."""

    disposition = Disposition.HALT
    code = "uneven_topics"


class Lease:
    """Keeps a worker that was suspended from appending what its memory holds of old.

    Its partitions may have gone to another worker, whose newer rows these appends would hide. The
    pulse stops with the process, so the time since the last one tells: before each append, and at
    the next pulse, whichever comes first when the process goes on.
    """

    def __init__(self, *, valid_for_s: float, monotonic: Callable[[], float]) -> None:
        self._valid_for_s = valid_for_s
        self._monotonic = monotonic
        self._renewed: float | None = None

    def renew(self) -> None:
        """The pulse.

        Errors: LeaseLost.
        """
        now = self._monotonic()
        self._check(now)
        # Not the clock again: a stop since the check must not count as a pulse.
        self._renewed = now

    def check(self) -> None:
        """Passes while the partitions are surely ours.

        Errors: LeaseLost.
        """
        self._check(self._monotonic())

    def _check(self, now: float) -> None:
        if self._renewed is None:
            return
        stood_still = now - self._renewed
        if stood_still > self._valid_for_s:
            raise LeaseLost(
                f"expected a pulse every {self._valid_for_s} s, found none for {stood_still:.1f} "
                "s; usual cause: the process or its machine was suspended"
            )


class Agent:
    """Runs a stage over the partitions that this worker owns."""

    def __init__(
        self,
        stage: Stage,
        *,
        cluster: Cluster,
        appender: Appender,
        lease: Lease,
        clock: Callable[[], int],
    ) -> None:
        self.stage = stage
        self._cluster = cluster
        self._appender = appender
        self._lease = lease
        self._clock = clock
        self._waiting = Waiting()
        #: The forms that stopped a partition, if any did.
        self._forms: object = None
        self._owned: set[int] = set()
        self._ready: set[int] = set()
        # Batches of a partition, whichever topic they are of, and its ticks never overlap: all of
        # them change its memory.
        self._turns: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    def assigned(self, partitions: set[TP]) -> None:
        """Takes note of the partitions that this worker owns from now on.

        Whoever gave them out may not have known all topics yet, and does so again once it does.
        """
        topics_of: defaultdict[int, set[str]] = defaultdict(set)
        for tp in partitions:
            topics_of[tp.partition].add(tp.topic)
        wanted = set(self.stage.sources)
        self._owned = {number for number, topics in topics_of.items() if topics >= wanted}

    def revoked(self) -> None:
        """Forgets all partitions: another worker may write their tables from now on."""
        for partition in self._ready:
            self.stage.forget(partition)
        self._owned = set()
        self._ready.clear()
        self._waiting.clear()
        self._forms = None

    async def process(self, batch: Batch) -> None:
        """Processes a batch; when it returns, everything that it led to is durable.

        From a record on that a newer release wrote, a partition's batches are dropped and never
        done: whoever is assigned the partition next fetches them again.
        """
        async with self._turns[batch.partition]:
            if batch.partition not in self._owned or not await self._restored(batch.partition):
                return
            known, newer = readable(batch.records)
            if newer is not None:
                self._waiting.begin(batch.partition, why_waits(newer))
                before = sum(record.offset < newer.offset for record in batch.records)
                if not before:
                    return
                batch = batch.first(before)
            with self._writable(batch.partition):
                emitted = self.stage.step(batch.topic, batch.partition, known, self._clock())
                await self._append(emitted)
                batch.done()

    async def tick(self) -> None:
        """Does what is due in the partitions of this worker."""
        for partition in sorted(self._owned):
            async with self._turns[partition]:
                if partition in self._owned and await self._restored(partition):
                    with self._writable(partition):
                        await self._append(self.stage.tick(partition, self._clock()))
        self._check_forms()
        for line in self._waiting.due(self._clock()):
            log.warning("%s: %s", self.stage.name, line)

    @contextmanager
    def _writable(self, partition: int) -> Iterator[None]:
        """Stops a partition whose memory says what may not be written yet."""
        forms = written_forms()
        try:
            yield
        except NotYetReadable as error:
            # Those of before, and of the first that stopped: a change since then counts.
            if self._forms is None:
                self._forms = forms
            self._waiting.begin(partition, f"partition {partition} waits: {error}")

    def _check_forms(self) -> None:
        """Ends the worker when what partitions stopped for may have changed.

        Errors: FormsChanged.
        """
        if self._forms is not None and self._forms is not written_forms():
            raise FormsChanged("expected the forms that some partitions wait for, found others")

    async def _append(self, emitted: Sequence[Outgoing]) -> None:
        for phase in phases(emitted):
            self._lease.check()
            await self._appender.append(phase)

    async def _restored(self, partition: int) -> bool:
        """Restores a partition's memory if need be; False while the partition has to wait."""
        if partition in self._waiting:
            return False
        if partition in self._ready:
            return True
        self.stage.forget(partition)
        owned = self._owned
        reading = read_partition(self._cluster, self.stage.memory, partition)
        async with aclosing(reading) as batches:
            async for records in batches:
                if owned is not self._owned:
                    return False  # A rebalance: others may write on what was read so far.
                known, newer = readable(records)
                if newer is not None:
                    self._waiting.begin(partition, why_waits(newer))
                    return False
                for record in known:
                    self.stage.restored(record)
        if owned is self._owned:
            self._ready.add(partition)
        return partition in self._ready


async def _partitions(cluster: Cluster) -> int:
    """The number of partitions of the topics, waiting for Kafka and for the topics.

    Errors: UnevenTopics.
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
        found = ", ".join(f"{topic} {count}" for topic, count in counts.items())
        raise UnevenTopics(
            f"expected as many partitions of each topic as of {WEBHOOKS}, found {found}; one "
            "worker owns a partition number of all of them"
        )
    return counts[WEBHOOKS]


def _die() -> NoReturn:
    """Ends the process at once, from any thread."""
    logging.shutdown()
    os._exit(EXIT_CRASHED)


def _pulse(lease: Lease) -> NoReturn:
    """Renews the lease for as long as the process lives.

    For a thread of its own: when a stopped process goes on, the event loop may call no timer for
    a long time.
    """
    while True:
        try:
            lease.renew()
        except LeaseLost as error:
            log.critical("the worker ends, its partitions may have another owner: %s", error)
            _die()
        time.sleep(_PULSE_S)


def _or_die(action: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Ends the process at the first error of an action; see the module's first lines."""

    async def guarded(*args: Batch) -> None:
        try:
            await action(*args)
        except Exception:
            log.critical("the worker ends, to start again from what is durable", exc_info=True)
            _die()

    return guarded


def _build(
    app: App, stage: Stage, lease: Lease, cluster: Cluster, clock: Callable[[], int]
) -> None:
    appender = Appender(cluster=cluster, client_id=f"headwater-{stage.name}")
    agent = Agent(stage, cluster=cluster, appender=appender, lease=lease, clock=clock)
    for topic in stage.sources:
        consume(app, name=f"{stage.name}-{topic}", topic=topic, process=_or_die(agent.process))
    every(app, _TICK_S, _or_die(agent.tick))
    on_assignment(app, assigned=agent.assigned, revoked=agent.revoked)


def run_worker(  # noqa: PLR0913 (all that it joins)
    *,
    cluster: Cluster,
    app_id: str,
    placement: Placement,
    park_for_ms: int,
    rules: Sequence[Rule] = (),
    member: str | None = None,
    clock: Callable[[], int] = now_ms,
) -> None:
    """Runs the pipeline worker until SIGTERM or SIGINT; exits the process, with 70 after a crash.

    Shape:  rules say which deliveries start and signal workflows; member is a name that the worker
            keeps over restarts, no two workers the same.
    Units:  park_for_ms, how long a delivery waits for its user, in milliseconds.
    """
    uvloop.install()
    partitions = uvloop.run(_partitions(cluster))
    app = batch_app(app_id=app_id, cluster=cluster, member=member)
    stage = Intake(placement=placement, partitions=partitions, park_for_ms=park_for_ms, rules=rules)
    lease = Lease(valid_for_s=SESSION_TIMEOUT_S, monotonic=monotonic)
    _build(app, stage, lease, cluster, clock)
    # Batches make and drop many objects, none of them in cycles: look for cycles seldom, and never
    # among what lives as long as the process.
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)
    threading.Thread(target=_pulse, args=(lease,), name="lease", daemon=True).start()
    if not run(app):
        log.critical("the worker ends, to start again from what is durable: Faust failed")
        _die()
