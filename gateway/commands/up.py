"""`headwater up`: everything on this machine, with a day of deliveries to look at.

The parts are started and watched by the supervisor on the main thread; the demo day runs beside it
on a thread of its own, over HTTP like any producer, so that Ctrl-C works all the while.
"""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import httpx

from gateway.commands.options import url_of
from gateway.commands.show_day import DayFailed, DayShow
from gateway.output import say
from gateway.server import refuse_taken_port
from gateway.settings import Settings, environment
from gateway.supervisor import Part, Supervisor
from projections.embedded import EmbeddedPostgres
from projections.migrate import migrate
from streams.embedded import EmbeddedKafka
from streams.topics import create_topics

_HEALTH_TIMEOUT_S: Final = 2.0


@dataclass(slots=True)
class _Result:
    """What the demo day's thread found."""

    failure: str | None = None


def run_up(
    settings: Settings, *, show_day: bool, then_stop: bool, clock: Callable[[], int]
) -> str | None:
    """Runs everything until Ctrl-C, or until the demo day is shown; returns why that failed.

    Errors: PartUnavailable, BrokerUnavailable, StoreUnavailable.
    """
    refuse_taken_port(settings.host, settings.port)
    result = _Result()
    with Supervisor(data_dir=settings.data_dir, report=say) as house:
        settings = _with_servers(settings, house)
        made = asyncio.run(
            create_topics(
                settings.kafka, partitions=settings.partitions, replication=settings.replication
            )
        )
        if made:
            say(f"Made {len(made)} topics: {', '.join(made)}")
        migrate(settings.postgres, say)
        house.start(*_parts(settings))
        show = DayShow(settings, clock)
        if show_day:
            threading.Thread(
                target=_show, args=(show, result, then_stop), name="demo day", daemon=True
            ).start()
        else:
            say(f"Headwater is up at {url_of(settings)}; Ctrl-C stops it.")
        house.watch()
    return result.failure


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


def _parts(settings: Settings) -> tuple[Part, ...]:
    variables = environment(settings)
    url = url_of(settings)

    def part(name: str, command: str, ready: Callable[[], bool]) -> Part:
        argv = (sys.executable, "-m", "gateway", command)
        env = {**variables, "HEADWATER_MEMBER": f"up-{name}"}
        return Part(name=name, argv=argv, env=env, ready=ready)

    def gateway_is_ready() -> bool:
        try:
            return httpx.get(f"{url}/health/ready", timeout=_HEALTH_TIMEOUT_S).is_success
        except httpx.TransportError:
            return False

    return (
        part("gateway", "serve", gateway_is_ready),
        # Neither listens anywhere; if one cannot do its work, the demo day's rows do not come.
        part("pipeline", "worker", lambda: True),
        part("projector", "project", lambda: True),
    )


def _show(show: DayShow, result: _Result, then_stop: bool) -> None:
    try:
        show.run()
    except DayFailed as error:
        result.failure = str(error)
        say(result.failure)
    if then_stop:
        os.kill(os.getpid(), signal.SIGTERM)  # ends the supervisor's watch on the main thread
    elif result.failure is None:
        show.print_hints()
