"""What starts workflows beside a workflow worker: the app's schedules, and rules for deliveries."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

import click

from headwater.gateway.commands.cluster import cluster_of
from headwater.gateway.settings import PREFIX, Settings
from headwater.gateway.sources import sources_of
from headwater.processors.deployments import Deployments
from headwater.processors.triggers.rules import (
    Rule,
    RulesInvalid,
    check_workflows,
    read_rules,
)
from headwater.streams.code_host.apps import Declarations
from headwater.streams.kafka.skips import load_skips
from headwater.streams.starters.effects import Starter
from headwater.streams.starters.schedule_declarer import REDECLARE_S, declare, declare_activated
from headwater.streams.workflows.client import WorkflowClient

#: Longer than a partition takes to change its owner; what has no outcome then is sent again.
_OUTCOME_WITHIN_S: Final = 15.0


class RulesWrong(click.ClickException):
    """Rules that cannot be used; one line each."""

    exit_code = 2


def rules_of(settings: Settings, sources: Collection[str] | None = None) -> tuple[Rule, ...]:
    """The rules of the file that the settings name, about these sources if they are known.

    Errors: RulesWrong.
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
    """The rules as the pipeline follows them: it knows the sources, workflow workers need not.

    Errors: RulesWrong, SourcesInvalid, ProviderInvalid.
    """
    return rules_of(settings, {source.name for source in sources_of(settings)})


def not_of_apps(rules: Iterable[Rule], declared: Declarations) -> list[Rule]:
    """The rules that name a workflow which no app has: it has to be deployed."""
    return [rule for rule in rules if rule.workflow not in declared.workflows]


def check_rules(settings: Settings, rules: Sequence[Rule], known: Collection[str]) -> None:
    """Sees that there are the workflows that rules name, in apps or deployed.

    Errors: RulesWrong.
    """
    try:
        check_workflows(rules, known)
    except RulesInvalid as error:
        raise _wrong(settings, error.message) from error


def _wrong(settings: Settings, problems: str) -> RulesWrong:
    return RulesWrong(f"{PREFIX}RULES, {settings.rules}:\n{problems}")


async def start_workflows(  # noqa: PLR0913 (all that it joins)
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
    """Declares schedules, and carries out effects until it is cancelled.

    Shape:  deployed gives the names of what is deployed, and is asked where rules need it;
            activated waits until there were more activations than so many.
    Errors: RulesWrong.
    """
    declared = await apps
    if not_of_apps(rules, declared):
        check_rules(settings, rules, {*declared.workflows, *await deployed()})
    cluster = cluster_of(settings)
    await load_skips(cluster)
    client = WorkflowClient(
        cluster=cluster,
        client_id=f"{name}-starts",
        timeout_s=_OUTCOME_WITHIN_S,
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
    await client.start()
    try:
        await together(
            declare(client, declared.schedules, new_id=new_id, repeat_s=REDECLARE_S),
            declare_activated(client, activated, new_id=new_id),
            starter.run(),
        )
    finally:
        await client.stop()


async def together(*works: Awaitable[None]) -> None:
    """Works side by side; the first error, or being cancelled, ends all of them."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
