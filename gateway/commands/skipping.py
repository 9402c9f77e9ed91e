"""`headwater topics skip`: marks a record that holds up its partition to be skipped."""

import asyncio
from typing import Final

import click

from headwater.gateway.commands.cluster import cluster_of
from headwater.gateway.commands.options import examples, json_option, kafka_option, settings_from
from headwater.gateway.commands.output import print_json, say
from headwater.schemas.errors import UndecodableRecord
from headwater.schemas.newer import RecordPosition
from headwater.schemas.topics import WORKFLOW_COMMANDS, WORKFLOW_HISTORY
from headwater.streams.clock import now_ms
from headwater.streams.kafka.skips import find_skippable, mark_skipped

_WARNING: Final = (
    "Skip it only if no release of Headwater wrote it: if one did, start that release instead."
)
#: What it means to skip a record that can be read, by its topic.
_FORCED: Final = {
    WORKFLOW_COMMANDS: "The command has no effect and no outcome in the log; a client that waits "
    "for its reply is answered with INTERNAL.",
    WORKFLOW_HISTORY: "The events of the record are lost: its instance is quarantined by the next "
    "owner of the partition, if other events depend on them.",
}
_FORCED_USUALLY: Final = "What the record says has no effect, in no part."


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
    help="Also skip a record that can be read. It has no effect then: a command has no outcome, "
    "and a client that waits for its reply is answered with INTERNAL.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@kafka_option
@json_option
def skip(  # noqa: PLR0913, PLR0917, each option is one
    topic: str,
    partition: int,
    offset: int,
    force: bool,
    yes: bool,
    kafka: str | None,
    as_json: bool,
) -> None:
    """Skip a record that holds up its partition.

    A part that waits for it says so in its log: TOPIC/PARTITION@OFFSET has to wait. The record
    becomes a dead letter, its bytes untouched. Restart the parts that wait: from then on every
    part skips it.
    """
    cluster = cluster_of(settings_from(kafka=kafka))
    place = RecordPosition(topic, partition, offset)
    try:
        record, fault = asyncio.run(find_skippable(cluster, place, force=force))
    except UndecodableRecord as error:
        raise click.ClickException(error.message) from error
    warning = _FORCED.get(topic, _FORCED_USUALLY) if force else _WARNING
    say(f"{topic}/{partition}@{offset}: {fault}.\n{warning}")
    if not yes:
        click.confirm("Skip it?", abort=True, err=True)
    asyncio.run(mark_skipped(cluster, record, fault, now_ms))
    if as_json:
        print_json({"topic": topic, "partition": partition, "offset": offset, "fault": fault})
    say("It is a dead letter now; restart the parts that wait for it.")
