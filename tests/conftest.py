"""The real parts, started once per session, in a directory that goes with the session."""

import asyncio
import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest
from httpx2._transports import default as httpx_transport
from hypothesis import HealthCheck, settings
from psycopg import conninfo
from typing_extensions import override
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from headwater.projections.postgres.embedded import EmbeddedPostgres
from headwater.projections.postgres.migrate import migrate
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.topics import create_topics
from headwater.streams.process_tuning import collect_seldom
from tests.databases import MigratedDatabases, new_database, new_migrated_database
from tests.throwaway_kafka import ThrowawayKafka

#: Partitions of each topic on the broker that tests share.
PARTITIONS = 4
#: For a search, TEST_SEEDS="1 2 3 …" plays every scene with each.
SEEDS = [int(seed) for seed in os.environ.get("TEST_SEEDS", "").split()] or [1]
#: Folders of tests that share one system.
_SHARING = ("tests/integration/workflow_routes",)
_INTEGRATION = "tests/integration/"


def pytest_configure() -> None:
    """Prepares this process, and what the processes that tests start inherit.

    Hypothesis judges no example by its time: on a busy machine any of them may be slow. SIGINT
    reaches the processes: below a script's `make test &` it is ignored. Their Java compiles with
    C1 alone: brokers of tests live for seconds, in which C2 takes more than it gives. httpx2 parses
    the certificates of all authorities once instead of for each client: that takes 20 ms, and the
    servers of tests have none of those.
    """
    gc.disable()
    settings.register_profile(
        "headwater",
        max_examples=60,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("headwater")
    httpx_transport.create_ssl_context = cache(httpx_transport.create_ssl_context)
    # Processes that tests start log for people, although stderr is no terminal.
    os.environ["HEADWATER_LOG_FORMAT"] = "human"
    os.environ["JDK_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=1"
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run what takes minutes before what takes milliseconds, so that no process ends late."""
    items.sort(key=lambda item: not item.nodeid.startswith(("tests/upgrade/", *_SHARING)))


def pytest_collection_finish() -> None:
    """Have the garbage collector pass over the tests themselves: millions of objects that stay.

    While they come it has nothing to do, and afterwards little: it runs as often as in our servers.
    """
    collect_seldom()
    gc.enable()


class _ByFile(LoadFileScheduling):
    """Gives test processes whole files, and the folders whose files share a system as a whole.

    Every other process begins with integration tests, whose broker and Postgres the rest need not
    start. Who has done its half takes what is left of the other, from the end.
    """

    @override
    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        folder = file.rpartition("/")[0]
        return folder if folder in _SHARING else file

    @override
    def _assign_work_unit(self, node: WorkerController) -> None:
        integrates = int(node.gateway.id.removeprefix("gw")) % 2 == 0
        ours = (scope for scope in self.workqueue if (_INTEGRATION in scope) == integrates)
        chosen = next(ours, next(reversed(self.workqueue)))
        self.workqueue.move_to_end(chosen, last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:  # noqa: ANN401
    """Distribute the tests over the test processes."""
    return _ByFile(config, log)


@pytest.fixture(params=SEEDS)
def seed(request: pytest.FixtureRequest) -> int:
    """What a scene draws its chances from."""
    result: int = request.param
    return result


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    """A directory for the parts' data; not pytest's own, whose closed parents shut Postgres out."""
    directory = Path(tempfile.mkdtemp(prefix="headwater-tests-"))
    # Where tests run as root, another account runs Postgres and has to pass through.
    directory.chmod(0o711)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def kafka(scratch: Path) -> Iterator[str]:
    """The bootstrap address of a real broker; its jars come from the cache all sessions share."""
    broker = ThrowawayKafka(scratch / "kafka", port=0, report=print)
    try:
        yield broker.start()
    finally:
        broker.kill()


@pytest.fixture(scope="session")
def topics(kafka: str) -> str:
    """The address of that broker, which has the topics of the catalogue."""
    asyncio.run(create_topics(Cluster(kafka), partitions=PARTITIONS, replication=1))
    return kafka


@pytest.fixture(scope="session")
def postgres(scratch: Path) -> Iterator[str]:
    """The DSN of a real Postgres; tests that write take `fresh_database` instead."""
    server = EmbeddedPostgres(scratch / "postgres", report=print)
    try:
        dsn = server.start()
        # Tests kill processes, not machines: what was written is there without waiting for a disk.
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")
        yield dsn
    finally:
        # Its last checkpoint would take seconds, for data that is thrown away.
        server.kill()


@pytest.fixture(scope="session")
def migrated_template(postgres: str) -> Iterator[str]:
    """The name of a migrated database that is copied, and that nobody connects to."""
    with new_database(postgres) as dsn:
        migrate(dsn, lambda _: None)
        yield str(conninfo.conninfo_to_dict(dsn)["dbname"])


@pytest.fixture
def fresh_database(postgres: str) -> Iterator[str]:
    """The DSN of a new, empty database that only this test sees."""
    with new_database(postgres) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def migrated_databases(postgres: str, migrated_template: str) -> Iterator[MigratedDatabases]:
    """Databases with the tables of this release, for one test after the other."""
    with closing(MigratedDatabases(postgres, migrated_template)) as databases:
        yield databases


@pytest.fixture
def migrated(migrated_databases: MigratedDatabases) -> Iterator[str]:
    """The DSN of a new database with the tables of this release, which only this test sees."""
    with migrated_databases.lent() as dsn:
        yield dsn


@pytest.fixture(scope="module")
def module_database(postgres: str) -> Iterator[str]:
    """The DSN of a new, empty database that the tests of a module share."""
    with new_database(postgres) as dsn:
        yield dsn


@pytest.fixture(scope="module")
def module_migrated(postgres: str, migrated_template: str) -> Iterator[str]:
    """The DSN of a new database with the tables of this release, which a module's tests share."""
    with new_migrated_database(postgres, migrated_template) as dsn:
        yield dsn
