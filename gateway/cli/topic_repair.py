"""`headwater topics check`, `skip` and `accept-loss`: find and repair problems of topics."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Final

import click
import psycopg

from headwater.gateway.cli.audited import Command, append_done, audited
from headwater.gateway.cli.options import (
    confirm,
    examples,
    kafka_option,
    postgres_option,
    settings_from,
    topic_options,
    yes_option,
)
from headwater.gateway.cli.output import counted, say
from headwater.gateway.cli.results import Columns, Result, prints
from headwater.gateway.settings.cluster import cluster_of
from headwater.gateway.settings.database import dsn_of
from headwater.gateway.settings.settings import Settings
from headwater.projections.catalogue import PROJECTIONS
from headwater.projections.errors import store_edge
from headwater.projections.postgres.connections import own_dsn
from headwater.projections.projector.projection import LogRecord
from headwater.projections.projector.truncation import (
    Applied,
    Loss,
    accept,
    applied_offsets,
    losses,
)
from headwater.schemas.errors import BrokerUnavailable, UndecodableRecord
from headwater.schemas.newer import RecordPosition
from headwater.schemas.topics import AUDIT, WORKFLOW_COMMANDS, WORKFLOW_HISTORY
from headwater.streams.clock import now_ms
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.readers import Offsets, read_partition
from headwater.streams.kafka.skips import find_skippable, mark_skipped
from headwater.streams.kafka.topics import (
    Difference,
    TopicState,
    alter_topics,
    compare,
    describe_catalog,
    named_in_kafka,
    refuse_closed,
    refuse_foreign,
)

_DIFFERENCES = Columns(
    ("topic", "what", "expected", "found", "loses_data", "mend"), drops=("loses_data",)
)


@click.command(
    "check",
    epilog=examples("headwater topics check", "headwater topics check --mend --replication 3"),
)
@click.option("--mend", is_flag=True, help="Alter the topics, where that is possible.")
@kafka_option
@topic_options
@prints
def check(mend: bool, kafka: str | None, partitions: int | None, replication: int | None) -> Result:
    """Compare the topics in Kafka with the catalogue; exit code 1 when something differs.

    Shows how to repair every difference. Processes refuse to start if a difference may lose data.
    """
    settings = settings_from(kafka=kafka, partitions=partitions, replication=replication)
    cluster = cluster_of(settings)

    try:
        existing = asyncio.run(describe_catalog(cluster))
    except BrokerUnavailable as error:
        if settings.kafka:
            raise
        raise BrokerUnavailable(
            f"{error.message} `headwater up` starts Kafka there by default; --kafka HOST:PORT "
            "names another one, and HEADWATER_KAFKA_PORT another port of `headwater up`"
        ) from error
    refuse_foreign(cluster, existing)
    refuse_closed(cluster, existing)
    differences = compare(
        existing, partitions=settings.partitions, replication=settings.replication
    )
    if mend and differences:
        differences = _altered_topics(settings, existing, differences)
    rows = [difference._asdict() for difference in named_in_kafka(cluster, differences)]
    if not rows:
        return Result(answer=rows, hints=["All topics are as the catalogue defines them."])
    table = _DIFFERENCES.table(rows, counted(len(rows), "difference"))
    return Result(answer=rows, tables=[table], failed=True)


def _altered_topics(
    settings: Settings, existing: Mapping[str, TopicState], differences: Sequence[Difference]
) -> list[Difference]:
    """Alter topics; return the differences that remain."""
    topics = sorted({difference.topic for difference in differences})
    command = Command("topics.mend", "topics check --mend", {"topics": topics})
    # The topic of the log itself may have to be altered before it takes entries.
    audits = nullcontext() if AUDIT in topics else audited(settings, command)
    with audits:
        cluster = cluster_of(settings)
        altered = asyncio.run(alter_topics(cluster, existing, differences))
        for difference in named_in_kafka(cluster, altered):
            say(f"Altered: {difference.line()}")
    if AUDIT in topics and altered:
        append_done(settings, command)
    return [difference for difference in differences if difference not in altered]


# -- `headwater topics skip`

_WARNING: Final = (
    "Skip it only if no release of Headwater wrote it: if one did, start that release instead."
)
#: Effect of skipping a readable record, by topic.
_FORCED: Final = {
    WORKFLOW_COMMANDS: "The command has no effect and no outcome in the log; a client that waits "
    "for its reply is answered with INTERNAL.",
    WORKFLOW_HISTORY: "The events of the record are lost: the next owner of the partition "
    "quarantines its instance, if other events depend on them.",
}
_FORCED_DEFAULT: Final = "The record has no effect in any process."


@click.command(
    "skip",
    epilog=examples(
        "headwater topics skip webhooks 0 17",
        "headwater topics skip workflow-commands 3 2041 --force --yes",
    ),
)
@click.argument("topic")
@click.argument("partition", type=click.IntRange(min=0))
@click.argument("offset", type=click.IntRange(min=0))
@click.option(
    "--force",
    is_flag=True,
    help="Also skip a readable record. It has no effect then: a command has no outcome, "
    "and a client that waits for its reply is answered with INTERNAL.",
)
@yes_option
@kafka_option
@prints
def skip(
    topic: str, partition: int, offset: int, force: bool, yes: bool, kafka: str | None
) -> Result:
    """Skip a record that blocks its partition.

    A process that waits for the record logs it: TOPIC/PARTITION@OFFSET has to wait. Skipping makes
    the record a dead letter, its bytes unchanged. Restart the waiting processes: from then on all
    processes skip it.
    """
    settings = settings_from(kafka=kafka)
    cluster = cluster_of(settings)
    position = RecordPosition(topic, partition, offset)
    try:
        record, problem = asyncio.run(find_skippable(cluster, position, force=force))
    except UndecodableRecord as error:
        raise click.ClickException(error.message) from error
    warning = _FORCED.get(topic, _FORCED_DEFAULT) if force else _WARNING
    confirm(f"{topic}/{partition}@{offset}: {problem}.\n{warning}", "Skip it?", yes=yes)
    details = {"positions": [f"{topic}/{partition}@{offset}"], "force": force, "problem": problem}
    with audited(settings, Command("topics.skip", "topics skip", details)):
        asyncio.run(mark_skipped(cluster, record, problem, now_ms))
    return Result(
        answer={"topic": topic, "partition": partition, "offset": offset, "fault": problem},
        hints=["It is a dead letter now; restart the processes that wait for it."],
    )


# -- `headwater topics accept-loss`


@click.command(
    "accept-loss",
    epilog=examples("headwater topics accept-loss", "headwater topics accept-loss --yes"),
)
@yes_option
@kafka_option
@postgres_option
@prints
def accept_loss(yes: bool, kafka: str | None, postgres: str | None) -> Result:
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
        if lost:
            effect = "\n".join(f"Lost: {loss}" for loss in lost)
            confirm(effect, "Accept that these records are lost?", yes=yes)
        moved: list[Loss] = []
        if lost:
            details = {"positions": [str(loss) for loss in lost]}
            command = Command("topics.accept_loss", "topics accept-loss", details)
            with audited(settings, command):
                moved += (loss for loss in lost if asyncio.run(_accept(connection, cluster, loss)))
    accepted = counted(len(moved), "partition")
    hint = f"{accepted} accepted; the projector continues in a minute."
    return Result(
        answer={"accepted": [str(loss) for loss in moved]},
        hints=[hint if lost else "Kafka has all that Postgres has; nothing to do."],
    )


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
