"""Rebuilding rows: deliveries per second, compared with reading and decoding of the same topic.

Method. The topic `webhooks` is filled once. A round reads it completely, three times: one reader
decodes every delivery and does nothing else, partition by partition in this process; the others are
rebuilds with empty stores on disk, as the projector's process runs them, with their reader
processes: of the table that all deliveries fill, and of one that none fills. Five deliveries make a
row.
"""

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.payloads import delivery
from benchmarks.results import Comparison, Round, Target, turns
from benchmarks.system import PARTITIONS, System, log_progress, opened
from headwater.gateway.builtin.rebuilding.reading import placement_of, readers_of
from headwater.gateway.settings.settings import Settings
from headwater.schemas.codec import decode, encode
from headwater.schemas.records import WebhookReceived
from headwater.schemas.tables import ACTIVITIES, DAILY_SUMMARY, Table
from headwater.schemas.topics import WEBHOOKS
from headwater.streams.clock import now_ms
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.readers import Offsets, read_partition
from headwater.streams.kafka.records import Outgoing, partition_of
from headwater.streams.kafka.state_store import StoreIdentity
from headwater.streams.kafka.state_stores import StateStores
from headwater.streams.pipeline.partition_state import FORM
from headwater.streams.pipeline.rebuilding import Rebuild
from headwater.streams.process_tuning import collect_seldom

REBUILD: Final = "rebuild"
OF_OTHERS: Final = "rebuild of others"
DECODE: Final = "decode"
_MEMORY_BYTES: Final = 256 * 1024 * 1024
_PARK_MS: Final = 86_400_000
_BATCH: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Rounds, and the number of deliveries in the topic."""

    rounds: int
    deliveries: int


FULL: Final = Sizes(rounds=5, deliveries=200_000)
QUICK: Final = Sizes(rounds=2, deliveries=60_000)


def run(sizes: Sizes) -> Comparison:
    """Measure all three."""
    targets = {
        REBUILD: Target(what="headwater rebuild daily_summary, up to the rebuilt rows"),
        OF_OTHERS: Target(what="headwater rebuild activities, which these deliveries do not fill"),
        DECODE: Target(what="a consumer that decodes every delivery"),
    }
    collect_seldom()  # as in the process of a rebuild
    with opened() as system:
        log_progress(f"Filling {WEBHOOKS} with {sizes.deliveries:,} deliveries")
        asyncio.run(_fill(system, sizes.deliveries))
        ways: dict[str, Callable[[], Awaitable[None]]] = {
            REBUILD: partial(_rebuild, system, DAILY_SUMMARY),
            OF_OTHERS: partial(_rebuild, system, ACTIVITIES),
            DECODE: partial(_decode, system),
        }
        for number in range(sizes.rounds):
            for name in turns(list(ways), number):
                seconds, cpu_s = asyncio.run(_timed(ways[name]))
                rate = sizes.deliveries / seconds
                log_progress(f"{name}: {rate:,.0f} deliveries/s")
                cpu_us = {"all": cpu_s / sizes.deliveries * 1e6}
                targets[name].rounds.append(Round(values={"events_s": rate}, cpu_us=cpu_us))
    return Comparison(
        name=REBUILD,
        title="Rebuild: deliveries/s from webhooks to rebuilt rows",
        measure="events_s",
        subject=REBUILD,
        targets=targets,
    )


async def _timed(way: Callable[[], Awaitable[None]]) -> tuple[float, float]:
    began, cpu = time.perf_counter(), _cpu_s()
    await way()
    return time.perf_counter() - began, _cpu_s() - cpu


def _cpu_s() -> float:
    """Return the processor seconds of this process and its exited children."""
    return sum(os.times()[:4])


async def _fill(system: System, count: int) -> None:
    appender = Appender(cluster=Cluster(system.bootstrap), client_id="benchmark")
    for first in range(0, count, _BATCH):
        await appender.append([_record(number) for number in range(first, first + _BATCH)])
    await appender.stop()


def _record(number: int) -> Outgoing:
    generated = delivery(number)
    event_id = f"{number:032x}"
    received = WebhookReceived(
        event_id=event_id,
        request_id=event_id,
        source="terra",
        type="daily",
        subject=generated.subject,
        reference=generated.user,
        sent_at_ms=1_782_950_400_000 + number,
        updated_at_ms=0,
        received_at_ms=1_782_950_400_000 + number,
        body=generated.body,
    )
    partition = partition_of(generated.user.encode(), PARTITIONS)
    return Outgoing(WEBHOOKS, partition, event_id.encode(), encode(received))


async def _decode(system: System) -> None:
    for number in range(PARTITIONS):
        async for records in read_partition(Cluster(system.bootstrap), [WEBHOOKS], number):
            for record in records:
                decode(record.value, WebhookReceived)


async def _rebuild(system: System, table: Table) -> None:
    cluster = Cluster(system.bootstrap)
    folder = Path(tempfile.mkdtemp(prefix="headwater-rebuild-"))
    stores = StateStores(folder, _MEMORY_BYTES, now_ms)
    identities = (
        StoreIdentity(cluster="", group=REBUILD, topics=(WEBHOOKS,), partition=number, form=FORM)
        for number in range(PARTITIONS)
    )
    opened_stores = [stores.open(identity) for identity in identities]
    settings = Settings(kafka=system.bootstrap)
    rebuild = Rebuild(placement_of(settings), opened_stores, _PARK_MS, table)
    offsets = Offsets(cluster, REBUILD)
    try:
        ends = [(await offsets.ends([WEBHOOKS], n))[WEBHOOKS] for n in range(PARTITIONS)]
        spans = rebuild.spans(ends)
        readers = readers_of(settings, rebuild.reader, table, PARTITIONS, spans)
        await rebuild.follow(ends, readers, _nothing)
    finally:
        await offsets.stop()
        rebuild.close()
        shutil.rmtree(folder)


async def _nothing() -> None:
    """Do nothing."""
