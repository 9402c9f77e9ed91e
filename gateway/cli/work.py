"""`headwater worker --app`: the workflow worker, from start to the stop signal."""

import asyncio
import contextlib
import json
import logging
import os
import secrets
import signal
import sys
from collections import ChainMap
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib.metadata import version
from typing import Final

import click
import uvloop

from headwater.gateway.cli.starting import (
    measured_stores,
    rules_of,
    run_until_first_exit,
    start_workflows,
)
from headwater.gateway.client.requests import ulid_source
from headwater.gateway.settings.addresses import public_url_of
from headwater.gateway.settings.cluster import cluster_of
from headwater.gateway.settings.database import dsn_of
from headwater.gateway.settings.environment import environment
from headwater.gateway.settings.privacy import close_environment
from headwater.gateway.settings.process import log_to_stderr, process_name
from headwater.gateway.settings.settings import Settings, revealed
from headwater.gateway.settings.sources import secret_variables
from headwater.monitoring.endpoint import monitoring
from headwater.monitoring.monitor import Monitor
from headwater.processors.code.engine import ReplayEngine
from headwater.processors.graph.engine import GraphEngine
from headwater.processors.graph.graph import graph_of
from headwater.processors.hooks import HookSigner
from headwater.processors.runs.engine import Engines
from headwater.processors.runs.limits import name_problem
from headwater.processors.runs.slots import Concurrency
from headwater.processors.slots.engine import SlotsEngine
from headwater.processors.triggers.rules import Rule
from headwater.projections.errors import SchemaTaken
from headwater.projections.postgres.schema_prefix import check_prefix
from headwater.projections.workflows.step_commits import StepCommits
from headwater.schemas.errors import ProcessUnavailable
from headwater.schemas.history import Limits
from headwater.streams.code_host.apps import AppNotLoaded, Declarations, merge_declarations
from headwater.streams.evaluation.evaluator import started_evaluator
from headwater.streams.kafka.consumer_groups import MemberFenced
from headwater.streams.kafka.membership import WORKERS, system_membership
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.kafka.skips import load_skips
from headwater.streams.kafka.topics import check_topics, warn_about_missing_topics
from headwater.streams.loop_watch import measured_loop_watch
from headwater.streams.ownership.watchdog import StandstillWatch
from headwater.streams.process_tuning import collect_seldom, run_as_batch
from headwater.streams.workflows.code_folders import CodeFolders
from headwater.streams.workflows.deployed_code import DeployedCode
from headwater.streams.workflows.deployment_log import DefinitionLog, DeploymentLog
from headwater.streams.workflows.host_process import HostKilled, HostOptions, declarations_of
from headwater.streams.workflows.hosts import AppChanged
from headwater.streams.workflows.load_answers import LoadAnswers
from headwater.streams.workflows.runnable_code import DeployedGraphs
from headwater.streams.workflows.worker import WorkflowWorker
from headwater.streams.workflows.worker_options import Bounds, WorkerCode, WorkerServices

log = logging.getLogger(__name__)

_SEED_BYTES: Final = 8


class AppInvalid(click.ClickException):
    """An app cannot be loaded; the message has the author's traceback if there is one."""

    exit_code = 2


def run_workflows(
    settings: Settings, *, clock: Callable[[], int], ticked: bool, reload: bool
) -> None:
    """Run the workflows of `settings.apps`, and what starts them, until SIGTERM or SIGINT.

    Args:
        settings: Settings of the worker.
        clock: Unix milliseconds.
        ticked: Whether code runs only on requests to `settings.tick_url`.
        reload: Whether a change of an app's files restarts its host or, if its declarations
            changed, this process.

    Raises:
        AppInvalid: An app cannot be loaded.
        RulesUnusable: The rules cannot be read.
        PartUnavailable: A service that it needs does not answer.
        Exit: 70 after a crash, which is logged; 78 if another worker has taken its name, or the
            schema in Postgres has rows of another project.
    """
    close_environment()
    log_to_stderr(settings, "workflows")
    rules = rules_of(settings)
    # Only the gateway needs secrets, and authors' code runs in children of this process.
    for name in secret_variables(settings):
        os.environ.pop(name, None)
    run_as_batch()
    collect_seldom()
    try:
        address = settings.monitored_at(workflows=True)
        with monitoring(address, "workflows", version("headwater")) as monitor:
            work = _work(settings, rules, clock, monitor, ticked=ticked, reload=reload)
            uvloop.run(_until_signalled(work))
    except AppNotLoaded as error:
        raise AppInvalid(error.message) from error
    except (click.ClickException, ProcessUnavailable):
        raise
    except AppChanged as error:
        log.warning("%s", error.message)
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606, ourselves
    except (MemberFenced, SchemaTaken) as error:
        log.critical("the worker ends: %s", error)
        raise click.exceptions.Exit(os.EX_CONFIG) from error
    except Exception as error:
        log.critical("the worker ends, to restart from committed state", exc_info=True)
        raise click.exceptions.Exit(os.EX_SOFTWARE) from error


def _bounds(settings: Settings) -> Bounds:
    return Bounds(
        run_bytes_max=settings.max_run_bytes,
        skew_max_ms=1_000 * settings.max_clock_skew_s,
        threads_max=settings.step_threads,
        passed=settings.app_environment,
    )


def _worker_code(settings: Settings, *, ticked: bool, reload: bool) -> WorkerCode:
    builtin = HostOptions("headwater.gateway.builtin", {**os.environ, **environment(settings)})
    return WorkerCode(apps=settings.apps, builtin=builtin, ticked=ticked, reload=reload)


def _deployed_code(settings: Settings, deployments: DeploymentLog, name: str) -> DeployedCode:
    folders = CodeFolders(deployments, settings.state_dir, settings.environment_policy)
    loading = LoadAnswers(deployments, folders, f"{WORKERS}{name}", settings.app_environment)
    return DeployedCode(deployments, folders, hosts_max=settings.deployment_hosts, loading=loading)


def _replay(settings: Settings) -> ReplayEngine:
    keys = revealed(settings.hook_keys)
    hooks = HookSigner(keys[0], settings.project, public_url_of(settings)) if keys else None
    return ReplayEngine(settings.max_steps, settings.cleanup_s * 1_000, settings.limits, hooks)


def _tick_connections(
    settings: Settings, worker: WorkflowWorker, new_id: Callable[[], str]
) -> contextlib.AbstractAsyncContextManager[None]:
    # Imports the web framework, which other workers do not need.
    from headwater.gateway.api.workflows.ticks import serve_ticks  # noqa: PLC0415

    return serve_ticks(settings.tick_urls, worker.tick, new_id)


async def _work(
    settings: Settings,
    rules: Sequence[Rule],
    clock: Callable[[], int],
    monitor: Monitor,
    *,
    ticked: bool,
    reload: bool,
) -> None:
    monitor.follow_loop()
    new_id, cluster, name = ulid_source(clock, os.urandom), cluster_of(settings), process_name()
    evaluator, slots = started_evaluator(), SlotsEngine()
    graphs = GraphEngine(limits=settings.limits, evaluator=evaluator)
    definitions = DefinitionLog(cluster=cluster, client_id=f"{name}-graphs")
    deployments = DeploymentLog(cluster=cluster, client_id=f"{name}-deployments")
    code = _deployed_code(settings, deployments, name)

    async def joined() -> None:
        # By now the hosts have loaded the apps, and no partition is owned yet.
        declared = await worker.declared()
        _check_names(declared, settings.limits)
        for document in declared.graphs.values():
            graphs.deploy(graph_of(json.loads(document)))
        slots.declare(ChainMap(code.limits, _limits(declared), code.all_limits))
        await check_topics(cluster)
        await warn_about_missing_topics(cluster, declared.publishes)
        await load_skips(cluster)
        await membership.joined()

    async with contextlib.AsyncExitStack() as exits:
        exits.enter_context(measured_loop_watch().watching())
        database = await _step_database(settings, exits)
        membership = exits.enter_context(system_membership(cluster, f"{WORKERS}{name}"))
        worker = WorkflowWorker(
            cluster=cluster,
            name=name,
            engines=_engines(settings, graphs, slots),
            code=_worker_code(settings, ticked=ticked, reload=reload)._replace(
                graphs=DeployedGraphs(definitions, graphs.deploy, clock=clock), deployed=code
            ),
            services=WorkerServices(
                clock=clock,
                draw_seed=lambda: secrets.token_hex(_SEED_BYTES),
                database=database,
                stores=measured_stores(settings, clock, monitor),
                evaluator=evaluator,
                joined=joined,
                monitor=monitor,
            ),
            member=settings.member or None,
            bounds=_bounds(settings),
        )
        if ticked:
            await exits.enter_async_context(_tick_connections(settings, worker, new_id))
        starts = start_workflows(
            settings, rules, worker.declared(), name=name, clock=clock, new_id=new_id,
            deployed=partial(_deployed, definitions, deployments), activated=code.activated,
        )  # fmt: skip
        exits.enter_context(StandstillWatch(worker.current_work).watching())
        await run_until_first_exit(worker.run(), starts, _check_schema(settings))


async def _check_schema(settings: Settings) -> None:
    """Return when the rows in Postgres, if one is configured, are those of this project.

    Raises:
        SchemaTaken: They are those of another project.
    """
    dsn = steps_dsn_of(settings)
    if dsn is not None:
        await check_prefix(dsn, settings.topic_prefix)


async def _step_database(
    settings: Settings, exits: contextlib.AsyncExitStack
) -> StepCommits | None:
    """Open the connections for the SQL of steps, if a Postgres is configured."""
    dsn = steps_dsn_of(settings)
    if dsn is None:
        log.warning("no Postgres (HEADWATER_POSTGRES): steps that use tx.execute wait for one")
        return None
    return await exits.enter_async_context(StepCommits(dsn, settings.steps_postgres))


async def _deployed(definitions: DefinitionLog, deployments: DeploymentLog) -> set[str]:
    """Return the names of all deployed graphs and workflows, active or not; waits for Kafka."""
    retrying = Retrying(log, "rules wait for the deployments")
    graphs = await retrying.until_done(definitions.catch_up)
    code = await retrying.until_done(deployments.catch_up)
    workflows = {
        workflow.name for deployment in code.by_id.values() for workflow in deployment.workflows
    }
    return workflows | graphs.versions.keys()


def _limits(declared: Declarations) -> dict[str, Concurrency | None]:
    return {name: declared.concurrency.get(name) for name in declared.workflows}


def _check_names(declared: Declarations, limits: Limits) -> None:
    """Check that the names of an app's workflows are not too long.

    Raises:
        AppNotLoaded: A name is too long.
    """
    for name in declared.workflows:
        problem = name_problem(
            "the name of a workflow", name, limits.max_workflow_name, "max_workflow_name"
        )
        if problem:
            raise AppNotLoaded(problem)


def _engines(settings: Settings, graphs: GraphEngine, slots: SlotsEngine) -> Engines:
    return {
        ReplayEngine.kind: _replay(settings),
        GraphEngine.kind: graphs,
        SlotsEngine.kind: slots,
    }


def steps_dsn_of(settings: Settings) -> str | None:
    """Return the DSN for the SQL of steps: HEADWATER_POSTGRES, else the embedded Postgres.

    None if Kafka is configured and Postgres is not: then steps need not wait for a Postgres.
    """
    if settings.postgres or (not settings.kafka and settings.postgres_port):
        return dsn_of(settings)
    return None


def declared_by(apps: Sequence[str], passed: Sequence[str]) -> Declarations:
    """Return what apps declare, each loaded in a process of its own as a worker would.

    Args:
        apps: The apps.
        passed: Environment variables that they see in addition to the usual ones.

    Raises:
        AppInvalid: An app cannot be loaded.
    """
    try:
        return merge_declarations(
            {app: uvloop.run(declarations_of(app, passed=passed)) for app in apps}
        )
    except (AppNotLoaded, HostKilled) as error:
        raise AppInvalid(error.message) from error


async def _until_signalled(work: Awaitable[None]) -> None:
    """Work until a signal, which cancels the work and lets it end in order.

    Further signals change nothing, because they may not mean more than the first: systemd signals
    all processes of a unit, and the parent of several signals them, too.
    """
    task = asyncio.ensure_future(work)
    signalled = False

    def end() -> None:
        nonlocal signalled
        if not signalled:
            signalled = True
            task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    try:
        await task
    except asyncio.CancelledError:
        if not signalled:
            raise
