"""A whole Headwater for one test: real broker, real Postgres, our parts as processes to be killed.

A sender posts deliveries over HTTP and, like any producer of webhooks, tries again until it is
answered 200. Afterwards Postgres is compared with the pure fold over the raw topic.
"""

import asyncio
import hashlib
import hmac
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime
from pathlib import Path
from random import SystemRandom
from typing import Any, BinaryIO

import httpx2
import psycopg
from psycopg import conninfo, sql

from headwater.gateway.client.requests import path
from headwater.gateway.settings.providers import installed_providers
from headwater.processors.providers.provider import Placement
from headwater.projections.postgres.migrate import migrate
from headwater.projections.postgres.roles import ROLES, make_roles
from headwater.schemas.codec import decode
from headwater.schemas.providers.headwater import SystemEvent
from headwater.schemas.records import WebhookReceived
from headwater.schemas.tables import TABLES, Row, Table
from headwater.streams.clock import now_ms
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.embedded import Access, Listener
from headwater.streams.kafka.readers import read_partition
from headwater.streams.kafka.topics import create_topics
from headwater.streams.pipeline.webhook_log import WebhookLog
from headwater.streams.pipeline.worker import EXIT_CRASHED
from tests import forker
from tests.e2e.deliveries import mixed
from tests.oracle import Folded, fold
from tests.throwaway_kafka import ThrowawayKafka
from tests.waiting import ANSWERED_WITHIN_S, pauses_s, until

PARTITIONS = 4
SECRET = "dev-terra-secret"
#: Of the roles of parts.
PASSWORD = "of the tests"
ADMIN = {"x-admin-key": "dev-admin-key"}
READER = {"authorization": "Bearer dev-read-key"}
_SENDERS = 16
_PATIENCE_S = 120.0


def free_port() -> int:
    """A port below those that the system gives to connections, which may take one meanwhile."""
    while True:
        port = SystemRandom().randrange(20_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def signed(body: bytes, at_s: int | None = None) -> dict[str, str]:
    """The header that Terra would send with a body."""
    at_s = int(time.time()) if at_s is None else at_s
    digest = hmac.new(SECRET.encode(), f"{at_s}.".encode() + body, hashlib.sha256)
    return {"terra-signature": f"t={at_s},v1={digest.hexdigest()}"}


class System:
    def __init__(
        self, directory: Path, dsn: str, listeners: Sequence[Listener] = (), **settings: str
    ) -> None:
        self.directory = directory
        self.dsn = dsn
        self.broker = ThrowawayKafka(
            directory / "kafka", port=0, report=print, access=Access(listeners)
        )
        #: What a part is given in the place of the broker's own address and Postgres's DSN.
        self.kafka_of: dict[str, str] = {}
        self.postgres_of: dict[str, str] = {}
        self.parts: dict[str, subprocess.Popen[bytes]] = {}
        self.ports: dict[str, int] = {}
        self._arguments: dict[str, tuple[str, ...]] = {}
        self.settings = settings
        #: Modules to run instead of `headwater`, by part.
        self.modules: dict[str, str] = {}
        #: Whose Headwater the parts are.
        self.python: str | Path = sys.executable
        self.bootstrap = ""

    def open(self) -> None:
        self.bootstrap = self.broker.start()
        asyncio.run(create_topics(Cluster(self.bootstrap), partitions=PARTITIONS, replication=1))
        make_roles(self.dsn)
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for role in ROLES:
                set_password = sql.SQL("alter role {} password {}")
                connection.execute(set_password.format(sql.Identifier(role), sql.Literal(PASSWORD)))
        migrate(self.dsn, print)
        if self.python != sys.executable:
            self.migrate()

    def migrate(self) -> None:
        """Make the tables of the packages that the parts' Headwater has installed."""
        command = [self.python, "-m", "headwater", "migrate", "--postgres", self.dsn]
        subprocess.run(command, check=True)

    def close(self) -> None:
        """Kills what is left: to wait for orderly ends that nobody looks at would take seconds."""
        for name in list(self.parts):
            self.kill(name)
        self.broker.kill()

    def start(self, name: str, *arguments: str) -> None:
        """Starts `gateway`, `worker` or `project`, with a number behind for several of them."""
        self._arguments[name] = arguments
        command = name.rstrip("0123456789")
        variables = {
            "HEADWATER_KAFKA": self.kafka_of.get(name, self.bootstrap),
            "HEADWATER_POSTGRES": self.postgres_of.get(name, self._dsn_of(command)),
            "HEADWATER_DATA_DIR": str(self.directory / "data"),
            "HEADWATER_MEMBER": name if command != "gateway" else "",
            **self.settings,
        }
        if command == "gateway":
            command = "serve"
            variables["HEADWATER_PORT"] = str(self.ports.setdefault(name, free_port()))
        with (self.directory / f"{name}.log").open("ab") as log:
            self.parts[name] = self._run([command, *arguments], variables, name, log)
        if command == "serve":
            self.wait(lambda: self._ready(name), f"{name} to be ready")

    def _run(
        self, arguments: list[str], variables: dict[str, str], name: str, log: BinaryIO
    ) -> subprocess.Popen[bytes]:
        module = self.modules.get(name, "headwater")
        if self.python == sys.executable:
            return forker.start(module, arguments, log, **variables)
        argv, env = [self.python, "-m", module, *arguments], {**os.environ, **variables}
        return subprocess.Popen(argv, env=env, stdout=log, stderr=log)

    def _dsn_of(self, command: str) -> str:
        """The database for a part, whose role reaches what the part needs and no more."""
        role = {"project": "projector"}.get(command, command)
        user = f"headwater_{role}"
        assert user in ROLES
        return conninfo.make_conninfo(self.dsn, user=user, password=PASSWORD)

    def _ready(self, name: str) -> bool:
        try:
            return httpx2.get(f"{self.url(name)}/health/ready").is_success
        except httpx2.TransportError:
            return False

    def url(self, name: str = "gateway") -> str:
        return f"http://127.0.0.1:{self.ports[name]}"

    def kill(self, name: str) -> None:
        """kill -9."""
        part = self.parts.pop(name)
        part.kill()
        part.wait()

    def stop(self, name: str) -> None:
        part = self.parts.pop(name)
        part.send_signal(signal.SIGTERM)
        try:
            part.wait(20)
        except subprocess.TimeoutExpired:
            part.kill()
            part.wait()

    def wait(self, done: Callable[[], bool], what: str, patience_s: float = _PATIENCE_S) -> None:
        deadline = time.monotonic() + patience_s
        for pause_s in pauses_s():
            if done():
                return
            self.start_crashed()
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {name}\n{self.log(name)}" for name in self.parts)
                raise AssertionError(f"waited {patience_s} s for {what}\n{logs}")
            time.sleep(pause_s)

    def start_crashed(self) -> None:
        """Starts again, as it was, whoever is crash-only and crashed; fails if another ended."""
        for name, part in list(self.parts.items()):
            if part.poll() == EXIT_CRASHED:
                self.start(name, *self._arguments.get(name, ()))
            elif part.poll() is not None:
                raise AssertionError(f"{name} ended with {part.poll()}: {self.log(name)}")

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text()[-3000:]

    def says(self, name: str, words: str) -> bool:
        """Whether a part has said something since it was first started."""
        return words in (self.directory / f"{name}.log").read_text()

    # --- sending ------------------------------------------------------------------------------

    def deliver(self, bodies: Sequence[bytes], gateways: Sequence[str] = ("gateway",)) -> int:
        """Posts bodies until each is answered 200; returns how many were called duplicates."""
        return asyncio.run(self._deliver(bodies, gateways))

    async def _deliver(self, bodies: Sequence[bytes], gateways: Sequence[str]) -> int:
        waiting = iter(list(enumerate(bodies)))
        async with httpx2.AsyncClient(timeout=ANSWERED_WITHIN_S) as client:
            sent = await asyncio.gather(
                *(self._sender(client, waiting, gateways) for _ in range(_SENDERS))
            )
        return sum(sent)

    async def _sender(
        self,
        client: httpx2.AsyncClient,
        waiting: Iterator[tuple[int, bytes]],
        gateways: Sequence[str],
    ) -> int:
        duplicates = 0
        for number, body in waiting:
            deadline = time.monotonic() + _PATIENCE_S
            while True:
                url = self.url(gateways[number % len(gateways)]) + "/webhooks/terra"
                try:
                    answer = await client.post(url, content=body, headers=signed(body))
                    if answer.is_success:
                        duplicates += answer.json().get("duplicate", False)
                        break
                    assert answer.status_code == 503, answer.text
                except httpx2.TransportError:
                    pass
                assert time.monotonic() < deadline, f"{body!r} was never taken"
                await asyncio.sleep(0.1)
        return duplicates

    def wipe(self, user_id: str) -> None:
        """Wipes a user, and waits until all of it is done: a slow system answers before it is."""
        url = f"{self.url()}/admin/user{path(user_id)}/wipe"
        ordered = httpx2.post(url, headers=ADMIN, timeout=ANSWERED_WITHIN_S)
        assert ordered.status_code in (200, 202), ordered.text
        assert ordered.json()["done"] == (ordered.status_code == 200), ordered.text
        wipe = url + path(ordered.json()["wipe_id"])

        def is_done() -> bool:
            answer = httpx2.get(wipe, headers=ADMIN, timeout=ANSWERED_WITHIN_S)
            return answer.status_code == 200 and bool(answer.json()["done"])

        self.wait(is_done, f"{user_id} to be wiped")

    # --- comparing ----------------------------------------------------------------------------

    def raw(self) -> list[tuple[int, int, WebhookReceived]]:
        """The topic `webhooks`, whole."""

        async def read() -> list[tuple[int, int, WebhookReceived]]:
            return [
                (partition, record.offset, decode(record.value, WebhookReceived))
                for partition in range(PARTITIONS)
                async for records in read_partition(
                    Cluster(self.bootstrap), ["webhooks"], partition
                )
                for record in records
            ]

        return asyncio.run(read())

    def tell(self, *facts: SystemEvent) -> None:
        """Tells facts as the system does, each twice: the second time it is a copy."""

        async def telling() -> None:
            log = WebhookLog(
                cluster=Cluster(self.bootstrap),
                append_timeout_s=10,
                placement=Placement(installed_providers(), "user_"),
                clock=now_ms,
            )
            await log.start()
            try:
                await until(lambda: log.ready)
                for fact in facts:
                    assert not (await log.publish_fact(fact, request_id="a-test")).duplicate
                    assert (await log.publish_fact(fact, request_id="a-test")).duplicate
            finally:
                await log.stop()

        asyncio.run(telling())

    def expected(self) -> Folded:
        """What the pipeline must come to."""
        return fold(self.raw(), user_prefix="user_")

    def outcomes(self) -> dict[str, tuple[str, str]]:
        with psycopg.connect(self.dsn) as connection:
            rows = connection.execute("select event_id, status, reason from webhook_outcomes")
            return {event_id: (status, reason) for event_id, status, reason in rows}

    def rows(self, table: Table) -> set[tuple[Any, ...]]:
        """A table as Postgres has it: key, columns, and the delivery behind each column."""
        columns = [column.name for column in (*table.key, *table.columns)]
        query = sql.SQL("select {}, column_sources::text from {}").format(
            sql.SQL(", ").join(
                sql.SQL("raw::text") if name == "raw" else sql.Identifier(name) for name in columns
            ),
            sql.Identifier(table.name),
        )
        with psycopg.connect(self.dsn) as connection:
            result = connection.execute(query).fetchall()
        return {(*map(_plain, row[:-1]), _sources(table, row[-1])) for row in result}

    def settled(self, expected: Folded) -> bool:
        """Whether Postgres has come to what the fold says."""
        return self.outcomes() == expected.outcomes and all(
            self.rows(table) == folded_rows(table, expected) for table in TABLES
        )

    def _missing(self, expected: Folded) -> str:
        """What Postgres has otherwise than the fold says: the first few, and where they lie."""
        result = self.outcomes()
        places = {item.event_id: f"{number}@{offset}" for number, offset, item in self.raw()}
        wrong = [
            f"{places.get(event_id)}: {result.get(event_id)}, not {expected.outcomes.get(event_id)}"
            for event_id in expected.outcomes.keys() | result.keys()
            if result.get(event_id) != expected.outcomes.get(event_id)
        ]
        rows = [t.name for t in TABLES if self.rows(t) != folded_rows(t, expected)]
        return f"{len(wrong)} outcomes: {sorted(wrong)[:5]}, tables: {rows}"

    def check(self) -> Folded:
        """Waits for the pipeline to come to rest, then compares everything."""
        expected = self.expected()
        try:
            self.wait(lambda: self.settled(expected), "Postgres to equal the fold")
        except AssertionError as waited:
            raise AssertionError(f"{self._missing(expected)}\n{waited}") from None
        return expected


@contextmanager
def under_load(system: System, seed: int, at_once: int = 300, pause_s: float = 0) -> Iterator[None]:
    """Post deliveries, again and again others, from another thread.

    Args:
        system: Where to.
        seed: What they are drawn from.
        at_once: How many come at once.
        pause_s: Seconds until the next; without, senders and parts take the whole processor.
    """
    over = threading.Event()

    def send() -> None:
        draw = random.Random(seed)
        while not over.is_set():
            system.deliver(mixed(draw.getrandbits(32), at_once))
            over.wait(pause_s)

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send)
        try:
            yield
        finally:
            over.set()
            sending.result()


def folded_rows(table: Table, folded: Folded) -> set[tuple[Any, ...]]:
    return {_folded(table, row) for row in folded.rows[table.name].values()}


def _folded(table: Table, row: Row) -> tuple[Any, ...]:
    columns = (*table.key, *table.columns)
    values = (
        _moment(value) if column.sql == "timestamptz" and isinstance(value, str) else value
        for column, value in zip(columns, (*row.key, *row.values), strict=True)
    )
    sources = frozenset(
        (column.name, stamp.event_id, stamp.position)
        for column, stamp in zip(table.columns, row.stamps, strict=True)
        if stamp is not None
    )
    return (*values, sources)


def _moment(text: str) -> str:
    return datetime.fromisoformat(text).astimezone(UTC).isoformat()


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return value.isoformat() if isinstance(value, date) else value


def _sources(table: Table, text: str) -> frozenset[tuple[str, str, str]]:
    sources = json.loads(text)
    deliveries = sources["deliveries"]
    return frozenset(
        (name, deliveries[at]["event_id"], deliveries[at]["position"])
        for name, at in sources["columns"].items()
        if name in table.index
    )


@contextmanager
def opened(
    system: System, parts: Iterable[str] = ("gateway", "worker", "project")
) -> Iterator[System]:
    try:
        system.open()
        for part in parts:
            system.start(part)
        yield system
    finally:
        system.close()
