"""`headwater topics check`: compares the topics in Kafka with the catalogue."""

import asyncio
from collections.abc import Sequence

import click

from headwater.gateway.commands.cluster import cluster_of
from headwater.gateway.commands.options import (
    examples,
    json_option,
    kafka_option,
    settings_from,
    topic_options,
)
from headwater.gateway.commands.output import counted, print_rows, say
from headwater.schemas.errors import BrokerUnavailable
from headwater.streams.kafka.topics import Difference, alter_topics, compare, describe_catalog

_COLUMNS = ("topic", "what", "expected", "found", "loses_data", "mend")


@click.command(
    "check",
    epilog=examples("headwater topics check", "headwater topics check --mend --replication 3"),
)
@click.option("--mend", is_flag=True, help="Alter what can be altered.")
@kafka_option
@topic_options
@json_option
def check(
    mend: bool, kafka: str | None, partitions: int | None, replication: int | None, as_json: bool
) -> None:
    """Compare the topics in Kafka with the catalogue; exit code 1 when something differs.

    Says how to mend each difference. Parts refuse to start with those that may lose data.
    """
    settings = settings_from(kafka=kafka, partitions=partitions, replication=replication)
    cluster = cluster_of(settings)

    async def look() -> list[Difference]:
        found = await describe_catalog(cluster)
        differences = compare(
            found, partitions=settings.partitions, replication=settings.replication
        )
        if not mend:
            return differences
        altered = await alter_topics(cluster, found, differences)
        for each in altered:
            say(f"Mended: {each.line()}")
        return [each for each in differences if each not in altered]

    try:
        differences = asyncio.run(look())
    except BrokerUnavailable as error:
        if settings.kafka:
            raise
        raise BrokerUnavailable(
            f"{error.message} That is where `headwater up` has Kafka unless it is told otherwise; "
            "--kafka HOST:PORT names another, and HEADWATER_KAFKA_PORT the port that it was told"
        ) from error
    _report(differences, as_json=as_json)


def _report(differences: Sequence[Difference], *, as_json: bool) -> None:
    if differences or as_json:
        rows = [each._asdict() for each in differences]
        print_rows(
            rows,
            _COLUMNS,
            as_json=as_json,
            title=counted(len(rows), "difference"),
            drops=("loses_data",),
        )
    else:
        say("All topics are as the catalogue has them.")
    if differences:
        raise click.exceptions.Exit(1)
