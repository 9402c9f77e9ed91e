"""`headwater topics check`: compares the topics in Kafka with the catalogue."""

import asyncio
from collections.abc import Sequence

import click

from headwater.gateway.cli.options import (
    examples,
    json_option,
    kafka_option,
    settings_from,
    topic_options,
)
from headwater.gateway.cli.output import counted, print_rows, say
from headwater.gateway.settings.cluster import cluster_of
from headwater.schemas.errors import BrokerUnavailable
from headwater.streams.kafka.topics import Difference, alter_topics, compare, describe_catalog

_COLUMNS = ("topic", "what", "expected", "found", "loses_data", "mend")


@click.command(
    "check",
    epilog=examples("headwater topics check", "headwater topics check --mend --replication 3"),
)
@click.option("--mend", is_flag=True, help="Alter the topics, where that is possible.")
@kafka_option
@topic_options
@json_option
def check(
    mend: bool, kafka: str | None, partitions: int | None, replication: int | None, as_json: bool
) -> None:
    """Compare the topics in Kafka with the catalogue; exit code 1 when something differs.

    Shows how to repair every difference. Processes refuse to start if a difference may lose data.
    """
    settings = settings_from(kafka=kafka, partitions=partitions, replication=replication)
    cluster = cluster_of(settings)

    async def find_differences() -> list[Difference]:
        existing = await describe_catalog(cluster)
        differences = compare(
            existing, partitions=settings.partitions, replication=settings.replication
        )
        if not mend:
            return differences
        altered = await alter_topics(cluster, existing, differences)
        for difference in altered:
            say(f"Altered: {difference.line()}")
        return [difference for difference in differences if difference not in altered]

    try:
        differences = asyncio.run(find_differences())
    except BrokerUnavailable as error:
        if settings.kafka:
            raise
        raise BrokerUnavailable(
            f"{error.message} `headwater up` starts Kafka there by default; --kafka HOST:PORT "
            "names another one, and HEADWATER_KAFKA_PORT another port of `headwater up`"
        ) from error
    _report(differences, as_json=as_json)


def _report(differences: Sequence[Difference], *, as_json: bool) -> None:
    if differences or as_json:
        rows = [difference._asdict() for difference in differences]
        print_rows(
            rows,
            _COLUMNS,
            as_json=as_json,
            title=counted(len(rows), "difference"),
            drops=("loses_data",),
        )
    else:
        say("All topics are as the catalogue defines them.")
    if differences:
        raise click.exceptions.Exit(1)
