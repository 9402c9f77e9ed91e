"""A workflow worker and a client of workflows inside the process of a test, on a real Kafka."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from headwater.streams.clock import now_ms
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.workflows.client import RESTARTED_WITHIN_S, WorkflowClient
from headwater.streams.workflows.worker import WorkflowWorker
from headwater.streams.workflows.worker_options import WorkerCode, WorkerServices
from tests.fakes.engines import ENGINES


def a_worker(bootstrap: str, **options: Any) -> WorkflowWorker:  # noqa: ANN401 (its own)
    """A worker of the app of most tests; options of its code and services are passed flat."""
    code = {"apps": ["tests.e2e.workflow_app"]} | _taken(options, WorkerCode)
    services = {"clock": now_ms, "draw_seed": lambda: "seed"} | _taken(options, WorkerServices)
    usual: dict[str, Any] = {"engines": ENGINES, "name": "tests"}
    return WorkflowWorker(
        cluster=Cluster(bootstrap),
        code=WorkerCode(**code),
        services=WorkerServices(**services),
        **(usual | options),
    )


def _taken(options: dict[str, Any], kind: Any) -> dict[str, Any]:  # noqa: ANN401 (a NamedTuple)
    return {name: options.pop(name) for name in kind._fields if name in options}


def a_client(
    bootstrap: str,
    client_id: str = "tests",
    timeout_s: float = 20,
    new_id: Callable[[], str] = lambda: os.urandom(8).hex(),
    restarted_within_s: float = RESTARTED_WITHIN_S,
    clock: Callable[[], int] = now_ms,
) -> WorkflowClient:
    return WorkflowClient(
        cluster=Cluster(bootstrap),
        client_id=client_id,
        timeout_s=timeout_s,
        clock=clock,
        new_id=new_id,
        restarted_within_s=restarted_within_s,
    )


@asynccontextmanager
async def running(worker: WorkflowWorker) -> AsyncIterator["asyncio.Task[None]"]:
    """Runs a worker; at the end it is stopped, if it has not ended."""
    work = asyncio.create_task(worker.run())
    try:
        yield work
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


@asynccontextmanager
async def started(client: WorkflowClient) -> AsyncIterator[WorkflowClient]:
    """Starts a client; at the end it is stopped."""
    await client.start()
    try:
        yield client
    finally:
        await client.stop()
