"""A reconcile of all connections: requests per second, compared with the client alone.

Method. Postgres has the connections, and Terra's stand-in has the same people; it answers without
data, which would otherwise be a benchmark of the stand-in. A round makes all requests twice: once
by `terra-reconcile`, on the worker and the projector as in production, from its start to its end in
Postgres; once by a process that has the ids, with the same client and the same concurrency, which
discards the responses. The rate is as high as the settings allow, so that no request waits.
"""

import asyncio
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from random import Random
from typing import Any, Final

import httpx2
import psycopg

from benchmarks.children import BenchmarkFailed, Child
from benchmarks.results import Comparison, Round, Target, turns
from benchmarks.system import System, free_port, log_progress, opened
from headwater.gateway.builtin.data_requests import request_all, requests_of
from headwater.gateway.builtin.instances import RECONCILE
from headwater.gateway.builtin.terra.client import DATA_TYPES, Terra
from headwater.gateway.builtin.terra_workflows import RECONCILE_DAYS
from headwater.gateway.settings.terra import TerraAccess
from headwater.schemas.history import StartRun
from headwater.streams.clock import now_ms
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.workflows.client import WorkflowClient

NAME: Final = "reconcile"
BARE: Final = "bare client"
_RATE: Final = 10_000
_PATIENCE_S: Final = 600.0
_POLL_S: Final = 0.1
_PEOPLE_AT_ONCE: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Rounds, and the connections per round."""

    rounds: int
    connections: int


FULL: Final = Sizes(rounds=1, connections=10_000)
QUICK: Final = Sizes(rounds=1, connections=1_000)


def run(sizes: Sizes) -> Comparison:
    """Measure both ways."""
    targets = {
        NAME: Target(what="terra-reconcile, 25 connections a step, to its end in Postgres"),
        BARE: Target(what="the same requests by the same client, of ids in memory"),
    }
    requests = sizes.connections * len(DATA_TYPES)
    with opened() as system, ExitStack() as stack:
        bench = _ReconcileBench(system, stack, sizes.connections)
        ways = {NAME: bench.reconcile, BARE: bench.bare}
        for number in range(sizes.rounds):
            for name in turns(list(ways), number):
                before = bench.requests()
                read, started = system.meter(worker=bench.worker), time.perf_counter()
                ways[name]()
                seconds = time.perf_counter() - started
                count = bench.requests() - before
                if count != requests:
                    raise BenchmarkFailed(f"expected {requests} requests of {name}, found {count}")
                cpu_us = read.us_per_event(system.meter(worker=bench.worker), requests)
                log_progress(f"{name}: {sizes.connections:,} connections in {seconds:.1f} s")
                values = {"requests_s": requests / seconds, "seconds": seconds}
                targets[name].rounds.append(Round(values=values, cpu_us=cpu_us))
    return Comparison(
        name=NAME,
        title=f"Reconcile: requests/s for {sizes.connections:,} connections",
        measure="requests_s",
        subject=NAME,
        targets=targets,
    )


class _ReconcileBench:
    """The processes, and all connections."""

    def __init__(self, system: System, stack: ExitStack, connections: int) -> None:
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        self._ids = [f"c-{number:06}" for number in range(connections)]
        self._dsn = system.dsn
        self._cluster = Cluster(system.bootstrap)
        self._stand_in = stack.enter_context(_stand_in(system, port))
        self._add_people()
        settings = {"terra_api": f"{self._url}/v2", "terra_dev_id": "b", "terra_api_key": "b"}
        self.worker = stack.enter_context(
            system.start_process(
                "worker", app="headwater", member="bench", terra_rate=str(_RATE), **settings
            )
        )
        self._projector = stack.enter_context(system.start_process("project"))
        self.reconcile()  # Without connections: processes start, connect and import their code.
        self._connect()

    def _add_people(self) -> None:
        same = {"provider": "GARMIN", "scopes": "DAILY", "created_at": "2026-01-01T00:00:00+00:00"}
        rows = [{"user_id": name, "reference_id": f"user_{name}", **same} for name in self._ids]
        with httpx2.Client(base_url=self._url, timeout=_PATIENCE_S) as client:
            _until(lambda: _answers(client), [self._stand_in], "the stand-in to answer")
            for start in range(0, len(rows), _PEOPLE_AT_ONCE):
                answer = client.post("/stand-in/people", json=rows[start : start + _PEOPLE_AT_ONCE])
                answer.raise_for_status()

    def _connect(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as database:
            database.execute(
                "insert into terra_connections (terra_user_id, user_id, provider, active,"
                " column_sources, updated_at)"
                " select id, 'user_' || id, 'GARMIN', true, '{}', now()"
                " from unnest(%s::text[]) id",
                (self._ids,),
            )

    def requests(self) -> int:
        """Return how many requests for data the stand-in has had."""
        counts = httpx2.get(f"{self._url}/stand-in", timeout=_PATIENCE_S).json()["counts"]
        return int(counts.get("requests for data", 0))

    def reconcile(self) -> None:
        """Reconcile with the workflow."""
        instance_id = secrets.token_hex(8)
        asyncio.run(self._start(instance_id))
        query = "select status from workflow_instance where instance_id = %s"
        with psycopg.connect(self._dsn, autocommit=True) as database:

            def ended() -> bool:
                row = database.execute(query, (instance_id,)).fetchone()
                if row is not None and row[0] in {"errored", "terminated"}:
                    raise BenchmarkFailed(f"expected the reconcile to end, found it {row[0]}")
                return row is not None and row[0] == "complete"

            _until(ended, [self.worker, self._projector, self._stand_in], "the reconcile to end")

    async def _start(self, instance_id: str) -> None:
        client = WorkflowClient(
            cluster=self._cluster,
            client_id="bench-reconcile",
            timeout_s=60.0,
            clock=now_ms,
            new_id=lambda: secrets.token_hex(8),
        )
        await client.start()
        try:
            async with asyncio.timeout(60.0):
                while not client.ready:  # noqa: ASYNC110, it has no event for this
                    await asyncio.sleep(_POLL_S)
            reply = await client.send(RECONCILE, instance_id, StartRun("{}"))
        finally:
            await client.stop()
        if reply.code:
            raise BenchmarkFailed(f"expected the reconcile to start, found {reply.message}")

    def bare(self) -> None:
        """Reconcile with the client alone."""
        asyncio.run(self._request_all())

    async def _request_all(self) -> None:
        access = TerraAccess(api=f"{self._url}/v2", dev_id="b", api_key="b", rate=_RATE)
        today = date.today()  # noqa: DTZ011 (any day will do)
        async with Terra(access, draw=Random(1).random, wall_s=time.time) as terra:  # noqa: S311
            targets = requests_of(self._ids, DATA_TYPES)
            await request_all(terra, targets, today - timedelta(days=RECONCILE_DAYS), today)


@contextmanager
def _stand_in(system: System, port: int) -> Iterator[Child]:
    command = ("headwater", "terra-stand-in", "--port", str(port), "--without-data")
    with system.child("terra stand-in", *command) as child:
        yield child


def _answers(client: httpx2.Client) -> bool:
    try:
        return client.get("/stand-in").is_success
    except httpx2.TransportError:
        return False


def _until(holds: Any, parts: list[Child], what: str) -> None:  # noqa: ANN401
    deadline = time.monotonic() + _PATIENCE_S
    while not holds():
        for part in parts:
            part.check()
        if time.monotonic() > deadline:
            raise BenchmarkFailed(f"expected {what} within {_PATIENCE_S:.0f} s")
        time.sleep(_POLL_S)
