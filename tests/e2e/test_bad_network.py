"""Goal: a bad network costs time and no data, and nobody stands still for long without a line.

Method: each part reaches the broker, or Postgres, through a proxy of its own. Under load its
network is held, made late, cut one way, dropped or left half open, for less and for longer than a
member of a group may be silent. Afterwards Postgres equals the pure fold over the raw topic.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from psycopg import conninfo

from headwater.streams.kafka.embedded import Listener
from headwater.streams.ownership.deadlines import SESSION_S
from tests.e2e.deliveries import mixed
from tests.e2e.system import System, opened, under_load
from tests.fakes.proxy import Proxy

PARTS = ("gateway", "worker", "project")
LONG_S = SESSION_S + 5


def cut(proxy: Proxy, seconds: float) -> None:
    proxy.hold()
    time.sleep(seconds)
    proxy.heal()


def cut_towards_the_server(proxy: Proxy, seconds: float) -> None:
    proxy.hold(to_client=False)
    time.sleep(seconds)
    proxy.heal()


def cut_towards_the_client(proxy: Proxy, seconds: float) -> None:
    proxy.hold(to_server=False)
    time.sleep(seconds)
    proxy.heal()


def make_late(proxy: Proxy, seconds: float) -> None:
    proxy.delay(0.1)
    time.sleep(seconds)
    proxy.heal()


def drop(proxy: Proxy, seconds: float) -> None:
    proxy.drop()
    time.sleep(seconds)


def leave_half_open(proxy: Proxy, seconds: float) -> None:
    proxy.drop(half_open=True)
    time.sleep(seconds)


DISTURBANCES: list[Callable[[Proxy, float], None]] = [
    cut,
    cut_towards_the_server,
    cut_towards_the_client,
    make_late,
    drop,
    leave_half_open,
]


class Networked(System):
    """A system in which each part has networks of its own."""

    def __init__(self, directory: Path, dsn: str, stack: ExitStack) -> None:
        self.to_kafka = {
            part: stack.enter_context(Proxy(lambda part=part: self.broker.address_of(part.upper())))
            for part in PARTS
        }
        listeners = [
            Listener(part.upper(), "PLAINTEXT", {}, proxy.address)
            for part, proxy in self.to_kafka.items()
        ]
        super().__init__(directory, dsn, listeners)
        self.kafka_of = {part: proxy.address for part, proxy in self.to_kafka.items()}
        server = conninfo.conninfo_to_dict(dsn)
        position = f"{server['host']}:{server['port']}"
        self.to_postgres = stack.enter_context(Proxy(lambda: position))
        host, port = self.to_postgres.address.split(":")
        self.postgres_of = dict.fromkeys(
            ("gateway", "project"), conninfo.make_conninfo(dsn, host=host, port=port)
        )


@pytest.fixture
def system(
    scratch: Path, fresh_database: str, request: pytest.FixtureRequest
) -> Iterator[Networked]:
    directory = scratch / request.node.name.replace("[", "-").strip("]")
    directory.mkdir()
    with ExitStack() as stack:
        system = Networked(directory, fresh_database, stack)
        stack.enter_context(opened(system))
        system.start("worker2")
        # Parts that have yet to start would not notice what becomes of their network.
        system.deliver(mixed(5, 300))
        system.check()
        yield system


# Ownership beside such a network is tested without a whole system in tests/integration.
@pytest.mark.soak
def test_a_worker_that_is_cut_off_for_longer_than_its_session_hides_nothing(system: Networked):
    with under_load(system, 3):
        time.sleep(1)
        cut(system.to_kafka["worker"], LONG_S)
        time.sleep(1)
    system.check()


# A minute, nearly all of it waiting; that reads keep their limits is in test_frozen_postgres.
@pytest.mark.soak
def test_a_postgres_that_does_not_answer_costs_time_alone(system: Networked):
    with under_load(system, 4):
        leave_half_open(system.to_postgres, 5)
    system.check()


@pytest.mark.soak
@pytest.mark.parametrize("disturb", DISTURBANCES, ids=lambda item: item.__name__)
@pytest.mark.parametrize("part", [*PARTS, "postgres"])
def test_a_bad_network_loses_nothing(
    system: Networked, part: str, disturb: Callable[[Proxy, float], None], seed: int
):
    draw = random.Random(f"{part} {disturb.__name__} {seed}")
    proxy = system.to_postgres if part == "postgres" else system.to_kafka[part]
    with under_load(system, seed):
        for seconds in draw.sample((1.0, 4.0, LONG_S), 3):
            disturb(proxy, seconds)
            time.sleep(draw.uniform(0.5, 2))
            system.start_crashed()
    system.check()
