"""`headwater up`: everything on this machine, with a day of deliveries to look at.

The parts are started and watched by the supervisor on the main thread; the demo day runs beside it
on a thread of its own, over HTTP like any producer, so that Ctrl-C works all the while.
"""

import asyncio
import contextlib
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

import httpx
from pydantic import SecretStr

from headwater.gateway.commands.cluster import cluster_of
from headwater.gateway.commands.options import url_of
from headwater.gateway.commands.output import counted, say
from headwater.gateway.commands.show_day import DayFailed, DayShow, mentioned
from headwater.gateway.commands.show_workflow import DEMO_APP, WorkflowShow
from headwater.gateway.commands.starting import not_of_apps, pipeline_rules
from headwater.gateway.commands.user_tokens import with_development_issuer
from headwater.gateway.commands.work import declared_by
from headwater.gateway.environment import environment
from headwater.gateway.http.server import refuse_taken_port
from headwater.gateway.local.demo_day import demo_people
from headwater.gateway.local.parts import says_more_than_news
from headwater.gateway.local.supervisor import Part, Supervisor
from headwater.gateway.privacy import close_environment
from headwater.gateway.request_ids import ulid_source
from headwater.gateway.settings import HOUSE_APP, Settings
from headwater.gateway.sources import (
    sources_with_secrets,
    with_development_sources,
)
from headwater.projections.errors import MigrationChanged
from headwater.projections.postgres.embedded import EmbeddedPostgres, psql_program
from headwater.projections.postgres.migrate import migrate
from headwater.streams.code_host.apps import Declarations
from headwater.streams.kafka.embedded import EmbeddedKafka
from headwater.streams.kafka.topics import (
    alter_topics,
    compare,
    create_authors_topics,
    create_topics,
    describe_catalog,
)

_HEALTH_TIMEOUT_S: Final = 2.0
#: Where Terra's stand-in is, unless somebody else is there.
_STAND_IN_PORT: Final = 8091
#: Who we are to it.
_STAND_IN: Final = "stand-in"


@dataclass(slots=True)
class _Result:
    """What the demo day's thread found."""

    failure: str | None = None


def run_up(
    settings: Settings,
    *,
    show_day: bool,
    then_stop: bool,
    clock: Callable[[], int],
    reload: bool,
) -> str | None:
    """Runs everything until Ctrl-C, or until the demo day is shown; returns why that failed.

    Shape:  with reload, an app is loaded again when its files change, and what it says is shown.
    Errors: ProcessUnavailable, BrokerUnavailable, StoreUnavailable.
    """
    close_environment()
    if settings.kafka or settings.kafka_tls or settings.kafka_sasl:
        cluster_of(settings)  # what is wrong with it is said before anything is started
    settings = with_development_issuer(with_development_sources(settings))
    # Whoever could not be received is told of before anything is started.
    sources_with_secrets(settings, os.environ)
    declared = _tell_of_app(settings)
    result = _Result()
    with Supervisor(data_dir=settings.data_dir, report=say) as house:
        # Not before: what a killed Headwater has left behind may still listen.
        refuse_taken_port(settings.host, settings.port)
        given, given_postgres = bool(settings.kafka), bool(settings.postgres)
        settings = _with_servers(settings, house)
        asyncio.run(_make_topics(settings, declared, ours=not given))
        _migrate(settings, ours=not given_postgres)
        if show_day and not settings.app:
            settings = settings.model_copy(update={"app": DEMO_APP})
        settings, stand_in = _with_terra(settings)
        house.start(*stand_in, *parts_of(settings, reload=reload))
        if show_day:
            show = _Show(settings, clock, result, then_stop=then_stop)
            threading.Thread(target=show.run, name="demo day", daemon=True).start()
        else:
            say(f"Logs are in {settings.data_dir / 'logs'}")
            if not given_postgres:  # somebody else's may have a password in it
                say(f"The rows, in SQL: {psql_program()} {shlex.quote(settings.postgres)}")
            key = mentioned("admin_key", settings.admin_key.get_secret_value())
            say(f"The console, in a browser: {url_of(settings)}/console; the key is {key}")
            say(f"Headwater is up at {url_of(settings)}; Ctrl-C stops it.")
        house.watch()
    return result.failure


def _tell_of_app(settings: Settings) -> Declarations:
    """Says what the apps declare, so that a mistake in them is seen before anything is started."""
    rules = pipeline_rules(settings)
    declared = Declarations()
    if settings.apps:
        declared = declared_by(settings.apps, settings.app_environment)
        say(f"Workflows of {', '.join(settings.apps)}: {', '.join(declared.workflows) or 'none'}")
    for each in declared.schedules:
        say(f"Schedule {each.schedule}: {each.cron} in {each.timezone} starts {each.workflow}")
    elsewhere = not_of_apps(rules, declared)
    for rule in rules:
        # Whether it is deployed, the worker sees when Kafka is there.
        missing = f"; no app here has {rule.workflow}, so it has to be deployed"
        where = missing if rule in elsewhere else ""
        say(f"Rule {rule.name}: {rule.mode} {rule.workflow} by {rule.source}{where}")
    return declared


def _migrate(settings: Settings, *, ours: bool) -> None:
    try:
        migrate(settings.postgres, say)
    except MigrationChanged as error:
        if not ours:
            raise
        folder = settings.data_dir / "postgres"
        raise MigrationChanged(
            f"{error.message}. Or, where it holds no tables of your own, have it made anew from "
            "Kafka, which does not have its idempotency keys (what is sent again under one then "
            f"creates another run): rm -r {shlex.quote(str(folder))}"
        ) from error


async def _make_topics(settings: Settings, declared: Declarations, *, ours: bool) -> None:
    """Makes the topics that are missing; those of a Kafka of ours become what they should be."""
    cluster = cluster_of(settings)
    size = {"partitions": settings.partitions, "replication": settings.replication}
    if made := await create_topics(cluster, **size):
        say(f"Made {counted(len(made), 'topic')}; `headwater topics list` says what for")
    if made := await create_authors_topics(cluster, declared.topics, **size):
        say(f"Made {counted(len(made), 'topic')}: {', '.join(made)}")
    if ours:
        found = await describe_catalog(cluster)
        for each in await alter_topics(cluster, found, compare(found)):
            say(f"Mended: {each.line()}")


def _with_servers(settings: Settings, house: Supervisor) -> Settings:
    """The settings with the addresses of the servers, which are started unless given."""
    kafka, postgres = settings.kafka, settings.postgres
    if not kafka:
        kafka = house.start_embedded(
            EmbeddedKafka(settings.data_dir / "kafka", port=settings.kafka_port, report=say)
        )
    if not postgres:
        postgres = house.start_embedded(
            EmbeddedPostgres(
                settings.data_dir / "postgres", port=settings.postgres_port, report=say
            )
        )
    return settings.model_copy(update={"kafka": kafka, "postgres": postgres})


def _with_terra(settings: Settings) -> tuple[Settings, tuple[Part, ...]]:
    """The settings with Terra, which somebody else plays unless we are known to it."""
    if settings.terra_dev_id:
        return settings, ()
    port = _free_port(_STAND_IN_PORT)
    url = f"http://127.0.0.1:{port}"
    settings = settings.model_copy(
        update={
            "terra_api": f"{url}/v2",
            "terra_dev_id": _STAND_IN,
            "terra_api_key": SecretStr(_STAND_IN),
        }
    )
    argv = (sys.executable, "-m", "headwater", "terra-stand-in", "--port", str(port))
    file = ("--file", str(settings.data_dir / "terra-stand-in.sqlite"))
    say(f"Terra is played by a stand-in at {url}/stand-in: it makes its data up")
    return settings, (
        Part(
            name="terra-stand-in",
            argv=(*argv, *file),
            env=environment(settings),
            ready=lambda: _answers(f"{url}/stand-in"),
        ),
    )


def _free_port(wanted: int) -> int:
    """A port of loopback on which nobody listens."""
    for port in (wanted, 0):
        try:
            with socket.create_server(("127.0.0.1", port)) as found:
                return int(found.getsockname()[1])
        except OSError:
            continue
    return wanted


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=_HEALTH_TIMEOUT_S).is_success
    except httpx.TransportError:
        return False


def parts_of(settings: Settings, *, reload: bool = False) -> tuple[Part, ...]:
    """Our own parts, in the order in which they are started."""
    url = url_of(settings)
    app = ("--app", settings.app or HOUSE_APP, *(["--reload"] if reload else []))

    def part(
        name: str,
        *command: str,
        ready: Callable[[], bool] = lambda: True,
        shown: Callable[[str], bool] | None = None,
    ) -> Part:
        argv = (sys.executable, "-m", "headwater", *command)
        # A worker that finds an app would not be the pipeline.
        own = settings.model_copy(update={"member": f"up-{name}", "app": ""})
        return Part(name=name, argv=argv, env=environment(own), ready=ready, shown=shown)

    return (
        part("gateway", "serve", ready=lambda: _answers(f"{url}/health/ready")),
        # None of these listens anywhere; if one cannot do its work, the demo's rows do not come.
        part("pipeline", "worker"),
        part("projector", "project"),
        part("workflows", "worker", *app, shown=says_more_than_news if reload else None),
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
        self._stand_in = settings.terra_api if settings.terra_dev_id == _STAND_IN else ""

    def run(self) -> None:
        """Shows everything, says what failed, and stops the house if it is to be stopped then."""
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
            os.kill(os.getpid(), signal.SIGTERM)  # ends the supervisor's watch on the main thread
        elif self._result.failure is None:
            self._day.print_hints()

    def _introduce(self) -> None:
        """Has the stand-in for Terra know the demo's people, who may ask for more of their days.

        Else it would say that their connections are gone, and they would be closed. Not before: it
        would post three months of made days among those of the demo.
        """
        if self._stand_in:
            people = urljoin(self._stand_in, "/stand-in/people")
            with contextlib.suppress(httpx.HTTPError):  # it may have been told to fail, or to die
                httpx.post(people, json=demo_people(), timeout=_HEALTH_TIMEOUT_S)
