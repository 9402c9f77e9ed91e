"""`headwater topics skip`: passes over a record that holds up its partition."""

import asyncio
from typing import Final

import click

from headwater.gateway.commands.cluster import cluster_of
from headwater.gateway.commands.options import examples, json_option, kafka_option, settings_from
from headwater.gateway.commands.output import print_json, say
from headwater.schemas.errors import UndecodableRecord
from headwater.schemas.newer import Place
from headwater.streams.clock import now_ms
from headwater.streams.kafka.skips import find, mark_skipped

_WARNING: Final = (
    "Skip it only if no release of Headwater wrote it: if one did, start that release instead."
)


@click.command(
    "skip",
    epilog=examples(
        "headwater topics skip webhooks 0 17",
        "headwater topics skip workflow-commands 3 2041 --yes",
    ),
)
@click.argument("topic")
@click.argument("partition", type=click.IntRange(min=0))
@click.argument("offset", type=click.IntRange(min=0))
@click.option("--yes", is_flag=True, help="Do not ask.")
@kafka_option
@json_option
def skip(
    topic: str, partition: int, offset: int, yes: bool, kafka: str | None, as_json: bool
) -> None:
    """Pass over a record that nobody can read and that holds up its partition.

    A part that waits for it says so in its log: TOPIC/PARTITION@OFFSET has to wait. The record
    becomes a dead letter, its bytes untouched. Restart the parts that wait: from then on every
    part passes over it.
    """
    cluster = cluster_of(settings_from(kafka=kafka))
    place = Place(topic, partition, offset)
    try:
        record, fault = asyncio.run(find(cluster, place))
    except UndecodableRecord as error:
        raise click.ClickException(error.message) from error
    say(f"{topic}/{partition}@{offset}: {fault}.\n{_WARNING}")
    if not yes:
        click.confirm("Skip it?", abort=True, err=True)
    asyncio.run(mark_skipped(cluster, record, fault, now_ms))
    if as_json:
        print_json({"topic": topic, "partition": partition, "offset": offset, "fault": fault})
    say("It is a dead letter now; restart the parts that wait for it.")
