"""`headwater topics accept-loss`: lets projections continue after a broker lost its log's end."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence

import click
import psycopg

from headwater.gateway.cli.options import (
    examples,
    json_option,
    kafka_option,
    postgres_option,
    settings_from,
)
from headwater.gateway.cli.output import counted, print_json, say
from headwater.gateway.settings.addresses import dsn_of
from headwater.gateway.settings.cluster import cluster_of
from headwater.projections.catalogue import PROJECTIONS
from headwater.projections.errors import store_edge
from headwater.projections.postgres.schemas import own_dsn
from headwater.projections.projector.accepting_loss import (
    Applied,
    Loss,
    accept,
    applied_offsets,
    losses,
)
from headwater.projections.projector.records import LogRecord
from headwater.streams.clock import now_ms
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.offsets import Offsets
from headwater.streams.kafka.partition_reader import read_partition


@click.command(
    "accept-loss",
    epilog=examples("headwater topics accept-loss", "headwater topics accept-loss --yes"),
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@kafka_option
@postgres_option
@json_option
def accept_loss(yes: bool, kafka: str | None, postgres: str | None, as_json: bool) -> None:
    """Continue after Kafka has lost records that Postgres has.

    A single broker that loses power may lose records that it had acknowledged. The projector then
    waits, and logs why. This command lists what was lost and moves the projections to where the log
    was cut. Rows of lost records stay in Postgres; `headwater rebuild` compares a table with Kafka.
    It is not for a Kafka whose data was removed: start with an empty database then.
    """
    settings = settings_from(kafka=kafka, postgres=postgres)
    cluster = cluster_of(settings)
    with (
        store_edge("read the applied offsets"),
        psycopg.connect(own_dsn(dsn_of(settings)), autocommit=True) as connection,
    ):
        applied = applied_offsets(connection, PROJECTIONS)
        lost = asyncio.run(_losses(cluster, applied))
        for loss in lost:
            say(f"Lost: {loss}")
        if lost and not yes:
            click.confirm("Accept that these records are lost?", abort=True, err=True)
        moved = [loss for loss in lost if asyncio.run(_accept(connection, cluster, loss))]
    if as_json:
        print_json({"accepted": [str(loss) for loss in moved]})
    elif not lost:
        say("Kafka has all that Postgres has; nothing to do.")
    else:
        say(f"{counted(len(moved), 'partition')} accepted; the projector continues in a minute.")


async def _losses(cluster: Cluster, applied: Iterable[Applied]) -> list[Loss]:
    offsets = Offsets(cluster, "headwater-accept-loss")
    try:
        return await losses(applied, lambda position: offsets.cut_before(*position[1:]))
    finally:
        await offsets.stop()


async def _accept(
    connection: "psycopg.Connection[tuple[str, int, int, int]]", cluster: Cluster, loss: Loss
) -> bool:
    def read(topic: str, partition: int, end: int) -> AsyncIterator[Sequence[LogRecord]]:
        return read_partition(cluster, [topic], partition, end=end)

    return await accept(connection, loss, read, now_ms())
