"""`headwater topics grow`: give a stopped system more partitions (ADR 0101)."""

import asyncio
import re
from collections.abc import Sequence

import click
import psycopg

from headwater.gateway.cli.audited import Command, append_done
from headwater.gateway.cli.options import (
    confirm,
    examples,
    kafka_option,
    postgres_option,
    settings_from,
    yes_option,
)
from headwater.gateway.cli.output import say
from headwater.gateway.cli.results import Result, prints
from headwater.gateway.settings.cluster import cluster_of
from headwater.gateway.settings.database import dsn_of
from headwater.gateway.settings.patterns import TOPIC_PREFIX
from headwater.gateway.settings.settings import Settings
from headwater.gateway.settings.sources import sources_of
from headwater.processors.providers.provider import Placement
from headwater.processors.sources import providers_of
from headwater.projections.catalogue import PROJECTIONS
from headwater.projections.errors import store_edge
from headwater.projections.postgres.connections import own_dsn
from headwater.projections.projector.growth import (
    GrownTopics,
    applied_by_all,
    running_rebuilds,
    switch_topics,
    topic_prefix,
)
from headwater.schemas.topics import TOPICS, WEBHOOKS
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.records import partition_of
from headwater.streams.kafka.topic_copies import (
    Copies,
    close_topics,
    delete_topics,
    end_offsets,
    open_topics,
)
from headwater.streams.kafka.topics import (
    TopicState,
    describe_catalog,
    is_closed,
    refuse_foreign,
)
from headwater.streams.pipeline.growing import Growth
from headwater.streams.pipeline.growth_routes import Layout, Treatment, treatment_of


@click.command(
    "grow",
    epilog=examples(
        "headwater topics grow --partitions 24 --to v2. --check",
        "headwater topics grow --partitions 24 --to v2.",
        "headwater topics grow --to v2. --drop-old",
        "headwater topics grow --to v2. --abort",
    ),
)
@click.option("--partitions", type=click.IntRange(min=1), help="New number: a multiple of the old.")
@click.option("--to", "prefix", required=True, metavar="PREFIX", help="Prefix of the new topics.")
@click.option(
    "--check",
    "only",
    flag_value="check",
    help="With --partitions: only check whether it can begin.",
)
@click.option(
    "--drop-old", "only", flag_value="drop", help="Delete the old topics, after the switch."
)
@click.option(
    "--abort", "only", flag_value="abort", help="Delete the copies, and open the old topics again."
)
@yes_option
@kafka_option
@postgres_option
@prints
def grow(
    partitions: int | None,
    prefix: str,
    only: str | None,
    yes: bool,
    kafka: str | None,
    postgres: str | None,
) -> Result:
    """Copy all topics into ones with more partitions, while no process runs.

    Run it with HEADWATER_TOPIC_PREFIX of the old topics, first to grow them, later with --drop-old.
    In between, set HEADWATER_TOPIC_PREFIX of all processes to PREFIX, and HEADWATER_PARTITIONS to
    the new number. If it is interrupted, run it again: it continues.
    """
    settings = settings_from(kafka=kafka, postgres=postgres)
    cluster = cluster_of(settings)
    if not re.fullmatch(TOPIC_PREFIX, prefix) or prefix == cluster.prefix:
        raise click.BadParameter(f"expected another prefix, such as v2., found {prefix!r}")
    # Refuses a prefix that cannot be set.
    cluster_of(settings.model_copy(update={"topic_prefix": prefix}))
    if (partitions is None) is not (only in ("drop", "abort")):
        raise click.UsageError("expected one of --partitions, --drop-old and --abort")
    with (
        store_edge("switch the topics"),
        psycopg.connect(own_dsn(dsn_of(settings)), autocommit=True) as connection,
    ):
        switched = topic_prefix(connection) == prefix
        if only == "drop":
            return asyncio.run(_drop_old(cluster, switched=switched, prefix=prefix, yes=yes))
        if only == "abort":
            return asyncio.run(_abort(settings, cluster, switched=switched, prefix=prefix))
        growing = _Growing(settings, cluster, prefix, connection)
        return asyncio.run(growing.grow(partitions or 0, only_check=only == "check", yes=yes))


class _Growing:
    """One growth."""

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        prefix: str,
        connection: psycopg.Connection[tuple[object, ...]],
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._prefix = prefix
        self._connection = connection

    async def grow(self, partitions: int, *, only_check: bool, yes: bool) -> Result:
        """Check, copy, verify and switch, or what of that is left."""
        topics = await describe_catalog(self._cluster)
        refuse_foreign(self._cluster, topics)
        layout = _layout(topics, partitions)
        copies = Copies(self._cluster, self._prefix, topics)
        placement = Placement(providers_of(sources_of(self._settings)), self._settings.user_prefix)
        growth = Growth(self._cluster, copies, layout, placement, self._settings.app_id)
        await growth.refuse_running()
        is_switched = topic_prefix(self._connection) == self._prefix
        if only_check and not is_switched:
            await growth.refuse_unread(self._applied(layout))
            return Result(answer={"ready": True}, hints=["Ready: everything was read."])
        records = None if is_switched else await self._copy(growth, copies, layout, topics, yes=yes)
        await growth.repeat_skips()
        await growth.note(self._prefix)
        await copies.complete()
        return Result(
            answer={"prefix": self._prefix, "partitions": layout.after, "records": records},
            hints=[
                f"Switched. Set HEADWATER_TOPIC_PREFIX={self._prefix} and "
                f"HEADWATER_PARTITIONS={layout.after} for all processes, move uploaded files to "
                "the folder of the new prefix, and start the processes. The old topics stay until "
                f"`headwater topics grow --to {self._prefix} --drop-old`."
            ],
        )

    async def _copy(
        self,
        growth: Growth,
        copies: Copies,
        layout: Layout,
        topics: dict[str, TopicState],
        *,
        yes: bool,
    ) -> int:
        """Copy, verify and switch; return the number of records."""
        confirm(
            f"All topics are copied into {self._prefix}…, with {layout.after} partitions instead "
            f"of {layout.before}. No process can run meanwhile.",
            "Begin?",
            yes=yes,
        )
        await copies.refuse_others()
        await self._close(growth, layout, topics)
        await copies.create(layout.after)
        await growth.copy(say)
        records = await growth.verify(say)
        await growth.commit()
        ends = await end_offsets(self._cluster, WEBHOOKS, range(layout.before))
        with self._connection.transaction():
            self._switch(layout, [ends[number] for number in range(layout.before)])
        return records

    async def _close(self, growth: Growth, layout: Layout, topics: dict[str, TopicState]) -> None:
        """Close the old topics, when everything there was read."""
        if not is_closed(topics):
            await growth.refuse_unread(self._applied(layout))
            details = {"to": self._prefix, "partitions": layout.after}
            command = Command("topics.grow", "topics grow", details)
            await asyncio.to_thread(append_done, self._settings, command)
        await close_topics(self._cluster, topics)
        # Again: a process may have appended something before the topics were closed.
        await growth.refuse_running()
        await growth.refuse_unread(self._applied(layout))

    def _applied(self, layout: Layout) -> dict[tuple[str, int], int]:
        rebuilds = running_rebuilds(self._connection)
        if rebuilds:
            raise click.ClickException(
                f"expected no running rebuild, found {', '.join(rebuilds)}; let it end first"
            )
        # The others keep their partitions, so projections continue there.
        kept = {topic.name for topic in TOPICS if treatment_of(topic) is Treatment.KEPT}
        projected = {name for projection in PROJECTIONS for name in projection.topics} - kept
        unknown = {(name, number): 0 for name in projected for number in range(layout.before)}
        applied = applied_by_all(self._connection)
        return unknown | {place: n for place, n in applied.items() if place[0] in projected}

    def _switch(self, layout: Layout, ends: Sequence[int]) -> None:
        by_treatment = {topic.name: treatment_of(topic) for topic in TOPICS}
        continued = {Treatment.DIVIDED, Treatment.REPEATED, Treatment.NUMBERED}
        switch_topics(
            self._connection,
            self._cluster.prefix,
            self._prefix,
            GrownTopics(
                layout.before,
                layout.after,
                [name for name, treatment in by_treatment.items() if treatment in continued],
                [name for name, how in by_treatment.items() if how is Treatment.EMPTIED],
                ends,
            ),
            lambda key: partition_of(key.encode(), layout.after),
        )


def _layout(topics: dict[str, TopicState], partitions: int) -> Layout:
    """Return the numbers of partitions, if they fit the topics."""
    missing = sorted({topic.name for topic in TOPICS} - topics.keys())
    if missing:
        raise click.ClickException(
            f"expected all topics of this release, found no {', '.join(missing)}; run "
            "`headwater topics create` first"
        )
    counts = {state.partitions for state in topics.values()}
    before = min(counts)
    if len(counts) > 1:
        raise click.ClickException(f"expected topics with one number of partitions, found {counts}")
    if partitions % before:
        raise click.BadParameter(
            f"expected a multiple of {before}, such as {before * 2} or {before * 3}, found "
            f"{partitions}: the keys of a partition are divided among whole new ones"
        )
    return Layout(before, partitions)


async def _drop_old(cluster: Cluster, *, switched: bool, prefix: str, yes: bool) -> Result:
    topics = await describe_catalog(cluster)
    if not switched or (topics and not is_closed(topics)):
        raise click.ClickException(
            f"expected a switch to the topics {prefix}…, found that the topics of this prefix are "
            "in use; nothing was deleted"
        )
    confirm(f"The topics {cluster.prefix}webhooks and so on are deleted.", "Delete them?", yes=yes)
    deleted = await delete_topics(cluster)
    return Result(answer={"deleted": deleted}, hints=[f"Deleted: {', '.join(deleted) or 'none'}."])


async def _abort(settings: Settings, cluster: Cluster, *, switched: bool, prefix: str) -> Result:
    topics = await describe_catalog(cluster)
    if switched or not topics:
        raise click.ClickException(
            f"expected topics that are still in use, found a switch to {prefix}…: only the new "
            "topics can be used now"
        )
    copies = Copies(cluster, prefix, topics)
    await copies.refuse_others()
    deleted = await copies.delete()
    await open_topics(cluster, topics)
    command = Command("topics.grow", "topics grow --abort", {"to": prefix})
    await asyncio.to_thread(append_done, settings, command)
    return Result(
        answer={"deleted": deleted},
        hints=["The topics are open again; start the processes as before."],
    )
