"""Use the workflow service as its clients do, and read the results in the log.

`python -m benchmarks.service_load BOOTSTRAP PORT KEY` reports `ready`, then executes every line of
its standard input, a JSON object with `do`, and reports the result:

- `create`: COUNT workflows of one step, CONCURRENCY at a time; reports `creates_s`
- `send`: one event per workflow to COUNT workflows that wait for it, likewise; reports `events_s`
- `settle`: waits until Postgres has all of the history; reports `settled`

HOW is the path of commands: `http`, `async` (the same, with Prefer: respond-async), `kafka`, or,
for `create`, `keyed` and `runs`: a message to a queue, or `POST /v1/runs`, under an idempotency
key, which is reserved and answered in Postgres. The gateway chooses the id of the instance, which
is recognized by the key or the params in its history.
A task sends a request, waits for the response and for the end of the workflow, pauses for GAP_S,
and sends the next one.
"""

import asyncio
import itertools
import json
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeAlias

import uvloop
from aiokafka import AIOKafkaConsumer, TopicPartition

from benchmarks.http_client import Connection
from benchmarks.reporting import report
from benchmarks.system import PARTITIONS
from headwater.schemas.codec import decode
from headwater.schemas.history import (
    Command,
    EntryCompleted,
    EntryOpened,
    HistoryAppended,
    RunCompleted,
    RunStarted,
    SendEvent,
    StartRun,
    instance_key,
    key_of_record,
)
from headwater.schemas.topics import WORKFLOW_HISTORY
from headwater.streams.clock import now_ms
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.workflows.client import WorkflowClient

#: A workflow of as many steps as its params state, and one that then waits for an event.
_STEPS: Final = "many"
#: A workflow of one step whose params are the name of the run.
_ONE_STEP: Final = "one-step"
_WAITS: Final = "many-then-wait"
_EVENT: Final = "go-on"
_PATIENCE_S: Final = 60.0
_POLL_S: Final = 0.02
_PREPARED_AT_ONCE: Final = 64
_MESSAGE: Final = b'{"message": 1}'

#: Sends the request about an instance.
_Request: TypeAlias = Callable[[str], Awaitable[None]]


class InstanceTimes:
    """Events of an instance in the log, and when they were read."""

    __slots__ = ("ended", "ended_at", "resumed_at", "waits")

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.waits: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.resumed_at = self.ended_at = 0.0

    def apply(self, record: HistoryAppended, at: float) -> None:
        """Apply a record that was read at a time."""
        for event in record.events:
            match event:
                case EntryOpened():
                    self.waits.set_result(None)
                case EntryCompleted():
                    self.resumed_at = at
                case RunCompleted():
                    self.ended_at = at
                    self.ended.set_result(None)
                case _:
                    pass


class Load:
    """The callers, and the reader of the history."""

    def __init__(self, bootstrap: str, port: int, key: str) -> None:
        self._client = WorkflowClient(
            cluster=Cluster(bootstrap),
            client_id="bench-service",
            timeout_s=_PATIENCE_S,
            clock=now_ms,
            new_id=lambda: secrets.token_hex(8),
        )
        self._consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
        self._port = port
        self._key = key
        self._name = secrets.token_hex(4)
        self._numbers = itertools.count()
        self._watched: dict[bytes, InstanceTimes] = {}
        #: By idempotency keys, or params, of instances that have not begun.
        self._keyed: dict[str, InstanceTimes] = {}

    async def start(self) -> None:
        """Connect, and start reading at the end of the history."""
        await self._client.start()
        await self._consumer.start()
        while not self._client.ready:  # noqa: ASYNC110, it has no event for this
            await asyncio.sleep(_POLL_S)
        partitions = [TopicPartition(WORKFLOW_HISTORY, number) for number in range(PARTITIONS)]
        self._consumer.assign(partitions)
        await self._consumer.seek_to_end(*partitions)
        for partition in partitions:
            await self._consumer.position(partition)

    async def read(self) -> None:
        """Read the history until cancelled."""
        watched = self._watched
        while True:
            for records in (await self._consumer.getmany(timeout_ms=1_000)).values():
                at = time.perf_counter()
                for record in records:
                    key = key_of_record(record.key or b"")
                    if record.value is None or not (key in watched or self._keyed):
                        continue
                    appended = decode(record.value, HistoryAppended)
                    started = appended.events[0]
                    if isinstance(started, RunStarted) and self._keyed:
                        once = started.once
                        name = started.params.strip('"') if once is None else once.key
                        watched[key] = self._keyed.pop(name)
                    if key in watched:
                        watched[key].apply(appended, at)

    # -- measurements

    async def create(self, how: str, count: int, concurrency: int, gap_s: float) -> dict[str, Any]:
        """Create workflows of one step and wait for their ends."""
        connections = await self._connections(how, concurrency)
        seen = {name: self._watch(_STEPS, name) for name in self._names(count)}
        if how in {"keyed", "runs"}:
            self._keyed.update(seen)

        def requests(connection: Connection | None) -> _Request:
            async def request(name: str) -> None:
                if connection is None:
                    await self._send(_STEPS, name, StartRun("1"))
                elif how == "keyed":
                    await _post_keyed(connection, f"/v1/queues/{_STEPS}/messages", _MESSAGE, name)
                elif how == "runs":
                    run = json.dumps({"workflowName": _ONE_STEP, "input": name}).encode()
                    await _post_keyed(connection, "/v1/runs", run, name)
                else:
                    body = json.dumps({"id": name, "params": 1}).encode()
                    await self._post(connection, how, f"{_STEPS}/instances", body)

            return request

        return await self._measure("creates_s", seen, requests, connections, gap_s)

    async def send(self, how: str, count: int, concurrency: int, gap_s: float) -> dict[str, Any]:
        """Send the event that workflows wait for; they wait before the clock runs."""
        connections = await self._connections(how, concurrency)
        seen = await self._waiting(self._names(count))

        def requests(connection: Connection | None) -> _Request:
            async def request(name: str) -> None:
                if connection is None:
                    await self._send(_WAITS, name, SendEvent(name, _EVENT, "1"))
                else:
                    body = json.dumps({"type": _EVENT, "payload": 1}).encode()
                    await self._post(connection, how, f"{_WAITS}/instances/{name}/events", body)

            return request

        return await self._measure("events_s", seen, requests, connections, gap_s)

    async def settle(self) -> dict[str, Any]:
        """Wait until Postgres has the whole history."""
        ends = await self._consumer.end_offsets(self._consumer.assignment())
        targets = [f"{at.topic}/{at.partition}@{end - 1}" for at, end in ends.items() if end]
        connection = await Connection.open(self._port, self._key)
        async with asyncio.timeout(_PATIENCE_S):
            path = f"/api/workflows/workflows?min_position={','.join(targets)}"
            while await connection.request("GET", path) != 200:  # noqa: ASYNC110, no event for it
                await asyncio.sleep(_POLL_S)
        connection.close()
        return {"settled": len(targets)}

    async def _connections(self, how: str, count: int) -> list[Connection | None]:
        if how == "kafka":
            return [None] * count
        return [await Connection.open(self._port, self._key) for _ in range(count)]

    async def _measure(
        self,
        rate: str,
        seen: dict[str, InstanceTimes],
        requests: Callable[[Connection | None], _Request],
        connections: list[Connection | None],
        gap_s: float,
    ) -> dict[str, Any]:
        names = iter(seen)
        began_at: dict[str, float] = {}
        answered_at: dict[str, float] = {}

        async def one_after_another(request: _Request) -> None:
            for name in names:
                began_at[name] = time.perf_counter()
                await request(name)
                answered_at[name] = time.perf_counter()
                await seen[name].ended
                await asyncio.sleep(gap_s)

        cpu, began = time.process_time(), time.perf_counter()
        await _together(one_after_another(requests(connection)) for connection in connections)
        took, busy = time.perf_counter() - began, time.process_time() - cpu
        for connection in connections:
            if connection is not None:
                connection.close()
        self._watched.clear()
        resumed = [times.resumed_at - began_at[name] for name, times in seen.items()]
        return {
            rate: round(len(seen) / took, 1),
            **_percentiles("answered", [answered_at[name] - began_at[name] for name in seen]),
            **(_percentiles("resumed", resumed) if rate == "events_s" else {}),
            **_percentiles("complete", [seen[name].ended_at - began_at[name] for name in seen]),
            "busy": round(busy / took, 2),
            "seconds": round(took, 3),
        }

    # -- requests

    async def _post(self, connection: Connection, how: str, path: str, body: bytes) -> None:
        status = await connection.request(
            "POST",
            f"/api/workflows/workflows/{path}",
            body,
            prefer="respond-async" if how == "async" else "",
        )
        if status != (202 if how == "async" else 200):
            raise RuntimeError(f"POST {path} was answered {status}")

    async def _send(self, workflow: str, instance_id: str, command: Command) -> None:
        reply = await self._client.send(workflow, instance_id, command)
        if reply.code:
            raise RuntimeError(f"a command was refused: {reply.code}, {reply.message}")

    async def _waiting(self, names: list[str]) -> dict[str, InstanceTimes]:
        """Start workflows that wait for their event, and wait until they do."""
        seen = {name: self._watch(_WAITS, name) for name in names}
        rest = iter(names)

        async def some() -> None:
            for name in rest:
                await self._send(_WAITS, name, StartRun("0"))
                await seen[name].waits

        await _together(some() for _ in range(_PREPARED_AT_ONCE))
        return seen

    def _watch(self, workflow: str, name: str) -> InstanceTimes:
        times = self._watched[instance_key(workflow, name).encode()] = InstanceTimes()
        return times

    def _names(self, count: int) -> list[str]:
        return [f"{self._name}-{next(self._numbers)}" for _ in range(count)]


async def _post_keyed(connection: Connection, path: str, body: bytes, key: str) -> None:
    status = 503
    while status == 503:  # Safe to repeat, as its clients do.
        status = await connection.request("POST", path, body, key=key)
    if status not in {200, 201, 202}:
        raise RuntimeError(f"POST {path} was answered {status}")


async def _together(works: Iterable[Awaitable[None]]) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        await asyncio.gather(*works)


def _percentiles(what: str, seconds: list[float]) -> dict[str, float]:
    """Return the median and the 99th percentile, in milliseconds."""
    ranked = sorted(seconds)
    return {
        f"{what}_p50_ms": round(ranked[len(ranked) // 2] * 1e3, 2),
        f"{what}_p99_ms": round(ranked[int(len(ranked) * 0.99)] * 1e3, 2),
    }


async def _main(bootstrap: str, port: str, key: str) -> None:
    load = Load(bootstrap, int(port), key)
    await load.start()
    # A group, so that a reader that fails ends the process at once.
    async with asyncio.TaskGroup() as group:
        group.create_task(load.read())
        report(ready=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            command: dict[str, Any] = json.loads(line)
            report(**await getattr(load, command.pop("do"))(**command))


if __name__ == "__main__":
    uvloop.run(_main(*sys.argv[1:]))
