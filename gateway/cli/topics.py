"""`headwater topics`: list and create Headwater's topics."""

import asyncio
from functools import partial

import click

from headwater.gateway.cli.on_demand import Group
from headwater.gateway.cli.options import examples, kafka_option, settings_from, topic_options
from headwater.gateway.cli.output import counted
from headwater.gateway.cli.results import Columns, Result, prints
from headwater.schemas.topics import TOPICS, author_topic_problem, is_own_topic


def _checked_names(
    _: click.Context, __: click.Parameter, names: tuple[str, ...]
) -> tuple[str, ...]:
    for problem in filter(None, map(author_topic_problem, names)):
        raise click.BadParameter(problem)
    return names


@click.group(
    cls=Group,
    epilog=examples(
        "headwater topics list",
        "headwater topics create --partitions 12",
        "headwater topics check",
        "headwater topics skip webhooks 0 17",
        "headwater topics grow --partitions 24 --to v2.",
    ),
)
def topics() -> None:
    """List and create Headwater's topics, check and repair them."""


@topics.command("list", epilog=examples("headwater topics list", "headwater topics list --json"))
@prints
def list_topics() -> Result:
    """List the topics of the catalogue: key, cleanup, retention, purpose."""
    settings = settings_from()
    rows = [
        {
            "topic": settings.topic_prefix + topic.name,
            "key": topic.key,
            "cleanup": topic.cleanup.value,
            "kept_days": None if topic.retention_ms is None else topic.retention_ms // 86_400_000,
            "purpose": topic.purpose,
        }
        for topic in TOPICS
    ]
    columns = Columns(("topic", "key", "cleanup", "kept_days", "purpose"))
    return Result(answer=rows, tables=[columns.table(rows)])


@topics.command(
    "create",
    epilog=examples(
        "headwater topics create --partitions 12",
        "headwater topics create orders-kept --partitions 3",
    ),
)
@click.argument("authors", metavar="[TOPIC]...", nargs=-1, callback=_checked_names)
@kafka_option
@topic_options
@prints
def make_topics(
    authors: tuple[str, ...], kafka: str | None, partitions: int | None, replication: int | None
) -> Result:
    """Create missing topics; existing topics are not changed.

    Creates Headwater's own topics, or each TOPIC, which steps of your workflows publish to.
    """
    settings = settings_from(kafka=kafka, partitions=partitions, replication=replication)
    # They need the extra `server`, which listing does not.
    from headwater.gateway.cli.audited import Command, append_done  # noqa: PLC0415
    from headwater.gateway.settings.cluster import cluster_of  # noqa: PLC0415
    from headwater.streams.kafka.topics import create_authors_topics, create_topics  # noqa: PLC0415

    for name in authors:
        if is_own_topic(settings.topic_prefix, name):
            raise click.BadParameter(f"expected a topic of your own, found Headwater's {name}")
    create = partial(create_authors_topics, names=authors) if authors else create_topics
    made = asyncio.run(
        create(
            cluster_of(settings),
            partitions=settings.partitions,
            replication=settings.replication,
        )
    )
    if made:
        # Only afterwards: before the first time there is no topic for entries. It destroys nothing.
        append_done(settings, Command("topics.create", "topics create", {"topics": [*made]}))
    created = f"Made {counted(len(made), 'topic')}: {', '.join(made)}"
    return Result(answer={"made": made}, hints=[created if made else "Nothing to do."])


topics.add_on_demand("topic_repair:check", "topic_repair:skip", "topic_repair:accept_loss")
topics.add_on_demand("topic_growth:grow")
