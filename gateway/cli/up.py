"""`headwater up`: the whole system on this machine, with a day of demo deliveries.

The supervisor starts and watches the processes on the main thread. The demo day runs on a thread of
its own, over HTTP like any producer, so that Ctrl-C works at any time.
"""

import asyncio
import contextlib
import dataclasses
import os
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urljoin

import httpx2
from pydantic import SecretStr

from headwater.gateway.api.listening import listen
from headwater.gateway.cli.demo import DEMO_APP, DayFailed, DayShow, WorkflowShow, key_for_example
from headwater.gateway.cli.monitored import (
    publish_targets,
    targets_file,
    with_monitored_processes,
)
from headwater.gateway.cli.output import counted, say
from headwater.gateway.cli.process_group import command, several, sharing_port
from headwater.gateway.cli.starting import pipeline_rules, rules_without_app
from headwater.gateway.cli.user_tokens import with_development_issuer
from headwater.gateway.cli.work import declared_by
from headwater.gateway.client.requests import ulid_source
from headwater.gateway.local.demo_day import demo_people
from headwater.gateway.local.processes import ProcessSpec, is_above_info
from headwater.gateway.local.supervisor import Supervisor
from headwater.gateway.settings.addresses import url_of
from headwater.gateway.settings.cluster import cluster_of
from headwater.gateway.settings.database import dsn_of
from headwater.gateway.settings.environment import environment
from headwater.gateway.settings.privacy import close_environment
from headwater.gateway.settings.process import GroupProcess
from headwater.gateway.settings.settings import BUILTIN_APP, Settings, revealed
from headwater.gateway.settings.sources import sources_with_secrets, with_development_sources
from headwater.projections.errors import MigrationChanged
from headwater.projections.postgres.embedded import EmbeddedPostgres, psql_program
from headwater.projections.postgres.migrate import migrate
from headwater.schemas.errors import ProcessUnavailable
from headwater.streams.code_host.apps import Declarations
from headwater.streams.kafka.embedded import EmbeddedKafka
from headwater.streams.kafka.topics import (
    alter_topics,
    compare,
    create_authors_topics,
    create_topics,
    describe_catalog,
    named_in_kafka,
)
from headwater.streams.process_tuning import usable_cores

_HEALTH_TIMEOUT_S: Final = 2.0
#: Port of Terra's stand-in, unless it is taken.
_STAND_IN_PORT: Final = 8091
#: Developer id and API key for the stand-in.
_STAND_IN_KEY: Final = "stand-in"
#: Hyperthreads up to which there is one process of each kind.
_FEW_CORES: Final = 2


@dataclass(slots=True)
class _Result:
    """Result of the demo day's thread."""

    failure: str | None = None


def run_up(
    settings: Settings,
    *,
    show_day: bool,
    then_stop: bool,
    clock: Callable[[], int],
    reload: bool,
) -> str | None:
    """Run everything until Ctrl-C, or until the demo day is shown.

    Args:
        settings: Settings; servers that are not named are started.
        show_day: Whether to show the demo day.
        then_stop: Whether to stop after the demo day.
        clock: Milliseconds since 1970.
        reload: Whether to load an app again when its files change, and show its log lines.

    Returns:
        Why the demo day failed, or None.

    Raises:
        PartUnavailable, BrokerUnavailable, StoreUnavailable: A process or server did not start.
    """
    close_environment()
    if settings.kafka or settings.kafka_tls or settings.kafka_sasl:
        cluster_of(settings)  # Report errors in the settings before anything is started.
    settings = with_development_issuer(with_development_sources(settings))
    # Fails for sources without secrets before anything is started.
    sources_with_secrets(settings, os.environ)
    declared = _report_app(settings)
    settings = _with_processes(settings, usable_cores())
    result = _Result()
    with (
        contextlib.ExitStack() as exits,
        Supervisor(data_dir=settings.data_dir, report=say) as supervisor,
    ):
        # Not earlier: processes of a killed Headwater may still listen until here.
        _check_ports(settings)
        external_kafka, external_postgres = bool(settings.kafka), bool(settings.postgres)
        settings = _with_servers(settings, supervisor)
        asyncio.run(_make_topics(settings, declared, embedded=not external_kafka))
        _migrate(settings, embedded=not external_postgres)
        if show_day and not settings.app:
            settings = settings.model_copy(update={"app": DEMO_APP})
        settings, stand_in = _with_terra(with_monitored_processes(settings))
        shared = GroupProcess()
        if settings.processes > 1:
            settings, shared = exits.enter_context(sharing_port(settings))
        specs = process_specs(settings, shared, reload=reload)
        exits.enter_context(publish_targets(settings, specs))
        supervisor.start(*stand_in, *specs)
        if show_day:
            show = _Show(settings, clock, result, then_stop=then_stop)
            threading.Thread(target=show.run, name="demo day", daemon=True).start()
        else:
            _report_addresses(settings, embedded=not external_postgres)
        supervisor.watch()
    return result.failure


def _check_ports(settings: Settings) -> None:
    """Check all ports before anything is started, so that one message names all that are taken.

    Raises:
        ProcessUnavailable: Other programs listen on some.
    """
    embedded = {
        "--kafka-port": None if settings.kafka else settings.kafka_port,
        "--postgres-port": None if settings.postgres else settings.postgres_port,
    }
    taken = [
        f"{option} ({port} is taken)"
        for option, port in embedded.items()
        if port and _free_port(port) != port
    ]
    also = f" Also needed: another {', '.join(taken)}" if taken else ""
    try:
        listen(settings.host, settings.port).close()
    except ProcessUnavailable as error:
        raise ProcessUnavailable(error.message + also) from error
    if taken:
        raise ProcessUnavailable(
            f"expected free ports for Kafka and Postgres, got other programs there; choose others: "
            f"{', '.join(taken)}"
        )


def _report_addresses(settings: Settings, *, embedded: bool) -> None:
    say(f"Logs are in {settings.data_dir / 'logs'}")
    say(f"Addresses of all metrics, for Prometheus: {targets_file(settings)}")
    if embedded:  # Another database's address may contain a password.
        say(f"The rows, in SQL: {psql_program()} {shlex.quote(settings.postgres)}")
    key = key_for_example("admin_key", revealed(settings.admin_key)[0])
    say(f"The console, in a browser: {url_of(settings)}/console; the key is {key}")
    say(f"Headwater is up at {url_of(settings)}; Ctrl-C stops it.")


def _report_app(settings: Settings) -> Declarations:
    """Print what the apps declare, so that mistakes show before anything is started."""
    rules = pipeline_rules(settings)
    declared = Declarations()
    if settings.apps:
        declared = declared_by(settings.apps, settings.app_environment)
        say(f"Workflows of {', '.join(settings.apps)}: {', '.join(declared.workflows) or 'none'}")
    for schedule in declared.schedules:
        say(
            f"Schedule {schedule.schedule}: {schedule.cron} in {schedule.timezone} starts "
            f"{schedule.workflow}"
        )
    undeclared = rules_without_app(rules, declared)
    for rule in rules:
        # Only the worker can check whether it is deployed, once Kafka is running.
        missing = f"; no app here has {rule.workflow}, so it has to be deployed"
        where = missing if rule in undeclared else ""
        say(f"Rule {rule.name}: {rule.mode} {rule.workflow} by {rule.source}{where}")
    return declared


def _migrate(settings: Settings, *, embedded: bool) -> None:
    try:
        migrate(dsn_of(settings), say)
    except MigrationChanged as error:
        if not embedded:
            raise
        folder = settings.data_dir / "postgres"
        raise MigrationChanged(
            f"{error.message}. Or, if it contains no tables of your own, delete it, and it is "
            "built again from Kafka, without idempotency keys (a request that is sent again under "
            f"an old key creates another run): rm -r {shlex.quote(str(folder))}"
        ) from error


async def _make_topics(settings: Settings, declared: Declarations, *, embedded: bool) -> None:
    """Create missing topics; in an embedded Kafka also alter topics that differ."""
    cluster = cluster_of(settings)
    size = {"partitions": settings.partitions, "replication": settings.replication}
    if made := await create_topics(cluster, **size):
        say(f"Made {counted(len(made), 'topic')}; `headwater topics list` explains them")
    if made := await create_authors_topics(cluster, declared.topics, **size):
        say(f"Made {counted(len(made), 'topic')}: {', '.join(made)}")
    if embedded:
        existing = await describe_catalog(cluster)
        altered = await alter_topics(cluster, existing, compare(existing))
        for difference in named_in_kafka(cluster, altered):
            say(f"Altered: {difference.line()}")


def _with_servers(settings: Settings, supervisor: Supervisor) -> Settings:
    """Return settings with the servers' addresses; servers that are not named are started."""
    kafka, postgres = settings.kafka, settings.postgres
    if not kafka:
        kafka = supervisor.start_embedded(
            EmbeddedKafka(settings.data_dir / "kafka", port=settings.kafka_port, report=say)
        )
    if not postgres:
        postgres = supervisor.start_embedded(
            EmbeddedPostgres(
                settings.data_dir / "postgres", port=settings.postgres_port, report=say
            )
        )
    return settings.model_copy(update={"kafka": kafka, "postgres": postgres})


def _with_terra(settings: Settings) -> tuple[Settings, tuple[ProcessSpec, ...]]:
    """Return settings with Terra: its stand-in, unless a developer id is set."""
    if settings.terra_dev_id:
        return settings, ()
    port = _free_port(_STAND_IN_PORT)
    url = f"http://127.0.0.1:{port}"
    settings = settings.model_copy(
        update={
            "terra_api": f"{url}/v2",
            "terra_dev_id": _STAND_IN_KEY,
            "terra_api_key": SecretStr(_STAND_IN_KEY),
        }
    )
    argv = (sys.executable, "-m", "headwater", "terra-stand-in", "--port", str(port))
    file = ("--file", str(settings.data_dir / "terra-stand-in.sqlite"))
    say(f"Terra is played by a stand-in at {url}/stand-in, with made-up data")
    return settings, (
        ProcessSpec(
            name="terra-stand-in",
            argv=(*argv, *file),
            env=environment(settings),
            ready=lambda: _answers(f"{url}/stand-in"),
        ),
    )


def _free_port(preferred: int) -> int:
    """Return a free port of loopback, preferably `preferred`."""
    for port in (preferred, 0):
        try:
            with socket.create_server(("127.0.0.1", port)) as server:
                return int(server.getsockname()[1])
        except OSError:
            continue
    return preferred


def _answers(url: str) -> bool:
    try:
        return httpx2.get(url, timeout=_HEALTH_TIMEOUT_S).is_success
    except httpx2.TransportError:
        return False


def _with_processes(settings: Settings, cores: int) -> Settings:
    """Return settings with a number of processes of each kind, which is reported if it is chosen.

    One with up to two cores. With more, half as many as cores, so that the gateways and workers of
    one kind of load can use all cores together; at most one for each partition, because a worker
    without a partition has no work.
    """
    if settings.processes:
        return settings
    number = 1 if cores <= _FEW_CORES else max(1, min(cores // 2, settings.partitions))
    if number > 1:
        say(
            f"{number} processes each of gateway, pipeline and workflows, for {cores} cores and "
            f"{settings.partitions} partitions; --processes sets another number"
        )
    return settings.model_copy(update={"processes": number})


def process_specs(
    settings: Settings, shared: GroupProcess | None = None, *, reload: bool = False
) -> tuple[ProcessSpec, ...]:
    """Return Headwater's own processes, in the order in which they are started.

    Args:
        settings: Settings; `processes` is the number of gateways and of workers of each kind.
        shared: What several gateways share.
        reload: Whether workers load an app again when it changes, and their log lines are shown.
    """
    url = url_of(settings)
    app = ("--app", settings.app or BUILTIN_APP, *(["--reload"] if reload else []))
    # Their logs are files, which a developer reads.
    readable = {"log_format": "human"} if settings.log_format == "auto" else {}

    workers = max(1, settings.processes)

    def specs(
        name: str,
        *arguments: str,
        number: int = settings.processes,
        first: int = 0,
        ready: Callable[[], bool] = lambda: True,
        shown: Callable[[str], bool] | None = None,
    ) -> list[ProcessSpec]:
        # With an app, the pipeline worker would be a workflow worker.
        own = settings.model_copy(
            update={
                "member": f"up-{name}",
                "app": "",
                "processes": max(1, number),
                "auditor": name == "projector",
            }
            | settings.monitored_from(first)
            | readable
        )
        spec = dataclasses.replace(command(name, *arguments), ready=ready, shown=shown)
        return several(spec, own, shared if shared and name == "gateway" else GroupProcess())

    return (
        *specs("gateway", "serve", ready=lambda: _answers(f"{url}/health/ready")),
        # If one of them fails, the demo's rows do not arrive.
        *specs("pipeline", "worker"),
        *specs("projector", "project", number=1, first=workers),
        *specs(
            "workflows",
            "worker",
            *app,
            first=workers + 1,
            shown=is_above_info if reload else None,
        ),
    )


class _Show:
    """The demo, on a thread of its own."""

    def __init__(
        self,
        settings: Settings,
        clock: Callable[[], int],
        result: _Result,
        *,
        then_stop: bool,
    ) -> None:
        self._day = DayShow(settings, clock)
        self._workflow: WorkflowShow | None = None
        if settings.app == DEMO_APP:
            self._workflow = WorkflowShow(settings, clock, ulid_source(clock, os.urandom))
        self._result = result
        self._then_stop = then_stop
        self._stand_in = settings.terra_api if settings.terra_dev_id == _STAND_IN_KEY else ""

    def run(self) -> None:
        """Show everything, print what failed, and stop `headwater up` if requested."""
        try:
            if self._workflow:
                self._workflow.begin()
            self._day.run()
            if self._workflow:
                self._workflow.finish()
            self._introduce()
        except DayFailed as error:
            self._result.failure = str(error)
            say(self._result.failure)
        if self._then_stop:
            os.kill(os.getpid(), signal.SIGTERM)  # Ends the supervisor's loop in the main thread.
        elif self._result.failure is None:
            self._day.print_hints()

    def _introduce(self) -> None:
        """Register the demo's people with Terra's stand-in, so that it can send more of their days.

        Otherwise it would report their connections as closed. Not earlier: it would post three
        months of made-up days among those of the demo.
        """
        if self._stand_in:
            people = urljoin(self._stand_in, "/stand-in/people")
            with contextlib.suppress(httpx2.HTTPError):  # The stand-in may simulate failures.
                httpx2.post(people, json=demo_people(), timeout=_HEALTH_TIMEOUT_S)
