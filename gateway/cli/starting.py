"""Start of workers: their state stores, and the workflows that schedules and rules start."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from headwater.gateway.settings.cluster import cluster_of
from headwater.gateway.settings.privacy import make_private_folder
from headwater.gateway.settings.settings import PREFIX, Settings
from headwater.gateway.settings.sources import sources_of
from headwater.monitoring.monitor import Monitor
from headwater.processors.deployments import Deployments
from headwater.processors.sources import kafka_sources
from headwater.processors.triggers.reactions import reaction_rules
from headwater.processors.triggers.rules import Rule, RulesInvalid, check_workflows, read_rules
from headwater.schemas.errors import ProcessUnavailable
from headwater.streams.code_host.apps import Declarations
from headwater.streams.kafka.endpoint_log import EndpointLog
from headwater.streams.kafka.skips import load_skips
from headwater.streams.kafka.state_stores import StateStores
from headwater.streams.starters.effects import Starter
from headwater.streams.starters.notifier import Notifier
from headwater.streams.starters.schedule_declarer import REDECLARE_S, declare, declare_activated
from headwater.streams.workflows.client import WorkflowClient

if TYPE_CHECKING:
    from headwater.gateway.builtin.watch import Watch
    from headwater.processors.notifications import Notification

_MIB = 1024 * 1024


def stores_of(settings: Settings, clock: Callable[[], int]) -> StateStores:
    """Return the stores of a worker's partitions.

    Raises:
        PartUnavailable: The folder cannot be used.
    """
    folder = settings.state_dir
    try:
        make_private_folder(folder, settings.data_dir)
        writable = os.access(folder, os.W_OK)
    except OSError as error:
        raise _unusable(settings, repr(error)) from error
    if not writable:
        raise _unusable(settings, "a folder that this user cannot write")
    return StateStores(folder, settings.state_memory_mib * _MIB, clock)


def measured_stores(settings: Settings, clock: Callable[[], int], monitor: Monitor) -> StateStores:
    """Return the stores of a worker's partitions; monitors see their sizes.

    Raises:
        PartUnavailable: The folder cannot be used.
    """
    stores = stores_of(settings, clock)
    monitor.measure(stores.measure)
    return stores


def _unusable(settings: Settings, found: str) -> ProcessUnavailable:
    return ProcessUnavailable(
        f"expected a folder for the state of partitions in {settings.state_dir}, found {found}; "
        "set HEADWATER_DATA_DIR to a folder that the worker may write"
    )


# -- schedules and rules

#: Longer than an ownership change of a partition; a command without an outcome is sent again.
_OUTCOME_TIMEOUT_S: Final = 15.0


class RulesUnusable(click.ClickException):
    """The rules cannot be used; the message has a line per problem."""

    exit_code = 2


def rules_of(settings: Settings, sources: Collection[str] | None = None) -> tuple[Rule, ...]:
    """Return the rules of the file that the settings name.

    Args:
        settings: Settings.
        sources: Names that rules may refer to; None if they are unknown.

    Raises:
        RulesUnusable: The file cannot be read, or a rule is invalid.
    """
    if not settings.rules:
        return ()
    try:
        return read_rules(Path(settings.rules).read_text("utf-8"), sources)
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(settings, f"expected a file of rules, found: {error}") from error
    except RulesInvalid as error:
        raise _wrong(settings, error.message) from error


def pipeline_rules(settings: Settings) -> tuple[Rule, ...]:
    """Return the rules, checked against the sources as the pipeline does.

    Raises:
        RulesUnusable, SourcesInvalid, ProviderInvalid: A file is invalid.
    """
    return rules_of(settings, {source.name for source in sources_of(settings)})


def rules_without_app(rules: Iterable[Rule], declared: Declarations) -> list[Rule]:
    """Return the rules whose workflow no app declares: it has to be deployed."""
    return [rule for rule in rules if rule.workflow not in declared.workflows]


def check_rules(settings: Settings, rules: Sequence[Rule], known: Collection[str]) -> None:
    """Check that the rules' workflows are declared by apps or deployed.

    Raises:
        RulesUnusable: A workflow is unknown.
    """
    try:
        check_workflows(rules, known)
    except RulesInvalid as error:
        raise _wrong(settings, error.message) from error


def _wrong(settings: Settings, problems: str) -> RulesUnusable:
    return RulesUnusable(f"{PREFIX}RULES, {settings.rules}:\n{problems}")


async def start_workflows(  # noqa: PLR0913 (its dependencies)
    settings: Settings,
    rules: Sequence[Rule],
    apps: Awaitable[Declarations],
    *,
    name: str,
    clock: Callable[[], int],
    new_id: Callable[[], str],
    deployed: Callable[[], Awaitable[Collection[str]]],
    activated: Callable[[int], Awaitable[Deployments]],
) -> None:
    """Declare schedules, and perform effects of rules until canceled.

    Args:
        settings: Settings.
        rules: The rules.
        apps: Declarations of the apps.
        name: Name of this process.
        clock: Milliseconds since 1970.
        new_id: Returns a new id.
        deployed: Returns the names of deployed workflows; called only if rules need it.
        activated: Waits until there were more activations than this number.

    Raises:
        RulesUnusable: A rule's workflow is unknown.
    """
    declared = await apps
    if rules_without_app(rules, declared):
        check_rules(settings, rules, {*declared.workflows, *await deployed()})
    cluster = cluster_of(settings)
    await load_skips(cluster)
    client = WorkflowClient(
        cluster=cluster,
        client_id=f"{name}-starts",
        timeout_s=_OUTCOME_TIMEOUT_S,
        clock=clock,
        new_id=new_id,
    )
    starter = Starter(
        client,
        cluster=cluster,
        group=f"{settings.app_id}-effects",
        member=settings.member or None,
        clock=clock,
    )
    notifier = Notifier(
        client,
        EndpointLog(cluster=cluster, client_id=f"{name}-endpoints"),
        reaction_rules(rules),
        _Watching(settings, clock).check,
        cluster=cluster,
        app_id=settings.app_id,
        member=settings.member or None,
        retries_ms=settings.endpoint_retries_ms,
        clock=clock,
    )
    await client.start()
    try:
        await run_until_first_exit(
            declare(client, declared.schedules, new_id=new_id, repeat_s=REDECLARE_S),
            declare_activated(client, activated, new_id=new_id),
            starter.run(),
            notifier.run(),
        )
    finally:
        await client.stop()


class _Watching:
    """Looks for what is stuck or lags; imports and connects at first use, which is seldom."""

    def __init__(self, settings: Settings, clock: Callable[[], int]) -> None:
        self._settings = settings
        self._clock = clock
        self._watch: Watch | None = None

    async def check(self) -> "list[Notification]":
        """Return the notifications that begin now."""
        if self._watch is None:
            self._watch = self._make()
        return await self._watch.check()

    def _make(self) -> "Watch":
        from headwater.gateway.builtin.dependencies import Dependencies  # noqa: PLC0415 (see above)
        from headwater.gateway.builtin.watch import Watch  # noqa: PLC0415 (see above)
        from headwater.gateway.cli.lag_groups import consumer_groups  # noqa: PLC0415 (see above)
        from headwater.streams.kafka.lags import read_lags  # noqa: PLC0415 (see above)

        groups = consumer_groups(self._settings, kafka_sources(sources_of(self._settings)))
        return Watch(
            partial(read_lags, cluster_of(self._settings), groups),
            Dependencies(self._settings).connections,
            self._clock,
        )


async def run_until_first_exit(*awaitables: Awaitable[None]) -> None:
    """Run all concurrently; the first error, or cancellation, cancels the others."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
