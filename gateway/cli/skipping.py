"""`headwater topics skip`: marks a record that blocks its partition as skipped."""

import asyncio
from typing import Final

import click

from headwater.gateway.cli.options import examples, json_option, kafka_option, settings_from
from headwater.gateway.cli.output import print_json, say
from headwater.gateway.settings.cluster import cluster_of
from headwater.schemas.errors import UndecodableRecord
from headwater.schemas.newer import RecordPosition
from headwater.schemas.topics import WORKFLOW_COMMANDS, WORKFLOW_HISTORY
from headwater.streams.clock import now_ms
from headwater.streams.kafka.skips import find_skippable, mark_skipped

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
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@kafka_option
@json_option
def skip(  # noqa: PLR0913, PLR0917 (one parameter a flag; click names them)
    topic: str,
    partition: int,
    offset: int,
    force: bool,
    yes: bool,
    kafka: str | None,
    as_json: bool,
) -> None:
    """Skip a record that blocks its partition.

    A process that waits for the record logs it: TOPIC/PARTITION@OFFSET has to wait. Skipping makes
    the record a dead letter, its bytes unchanged. Restart the waiting processes: from then on all
    processes skip it.
    """
    cluster = cluster_of(settings_from(kafka=kafka))
    position = RecordPosition(topic, partition, offset)
    try:
        record, problem = asyncio.run(find_skippable(cluster, position, force=force))
    except UndecodableRecord as error:
        raise click.ClickException(error.message) from error
    warning = _FORCED.get(topic, _FORCED_DEFAULT) if force else _WARNING
    say(f"{topic}/{partition}@{offset}: {problem}.\n{warning}")
    if not yes:
        click.confirm("Skip it?", abort=True, err=True)
    asyncio.run(mark_skipped(cluster, record, problem, now_ms))
    if as_json:
        print_json({"topic": topic, "partition": partition, "offset": offset, "fault": problem})
    say("It is a dead letter now; restart the processes that wait for it.")
