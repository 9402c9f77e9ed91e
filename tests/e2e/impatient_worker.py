"""A worker that keeps system often: `python -m tests.e2e.impatient_worker APP …`.

So a short test has what otherwise takes minutes and many records: checkpoints and instances that
are only bytes, on disk. Beside its apps it has counters, which need no code; the decision to start
one blocks the thread until the file `until` is there, if its params name one. Steps may have SQL if
HEADWATER_POSTGRES says where.
"""

import contextlib
import json
import logging
import os
import secrets
import sys
import time
from pathlib import Path

import uvloop
from typing_extensions import override

from headwater.processors.graph.engine import GraphEngine
from headwater.processors.graph.graph import graph_of
from headwater.processors.runs.decisions import Decision, Facts
from headwater.processors.slots.engine import SlotsEngine
from headwater.projections.workflows.step_commits import StepCommits
from headwater.schemas.history import RunCommand, StartRun
from headwater.streams.clock import now_ms
from headwater.streams.kafka.aiokafka_patches import patch_aiokafka
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.state_stores import StateStores
from headwater.streams.workflows.worker import WorkflowWorker
from headwater.streams.workflows.worker_options import Bounds, Pace, WorkerCode, WorkerServices
from tests.fakes.counter import Counter, CounterEngine
from tests.fakes.engines import ENGINES

#: Little, so that not all that rests is in the cache.
_MEMORY = 8 * 1024 * 1024


def _told(name: str, otherwise: float) -> float:
    return float(os.environ.get(f"IMPATIENT_{name}", otherwise))


class BlockingCounterEngine(CounterEngine):
    """Blocks the thread that decides, as a very long decision does."""

    @override
    def decide_command(self, run: Counter | None, command: RunCommand, facts: Facts) -> Decision:
        until = json.loads(command.params).get("until") if isinstance(command, StartRun) else None
        if until is not None:
            Path(until).with_suffix(".begun").touch()
            while not Path(until).exists():
                time.sleep(0.02)
        return super().decide_command(run, command, facts)


async def main() -> None:
    patch_aiokafka()
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    pace = Pace(
        housekeeping_s=_told("HOUSEKEEPING_S", 0.1),
        checkpoint_records=int(_told("CHECKPOINT_RECORDS", 1)),
        checkpoint_s=_told("CHECKPOINT_S", 60),
        idle_ms=int(_told("IDLE_MS", 50)),
    )
    graphs, slots = GraphEngine(), SlotsEngine()
    blocking = {CounterEngine.kind: BlockingCounterEngine()}

    async def joined() -> None:
        declared = await worker.declared()
        for document in declared.graphs.values():
            graphs.deploy(graph_of(json.loads(document)))
        slots.declare(
            {workflow: declared.concurrency.get(workflow) for workflow in declared.workflows}
        )

    dsn = os.environ.get("HEADWATER_POSTGRES")
    async with StepCommits(dsn) if dsn else contextlib.nullcontext() as database:
        worker = WorkflowWorker(
            cluster=Cluster(os.environ["HEADWATER_KAFKA"]),
            name=f"impatient-{os.getpid()}",
            engines={**ENGINES, GraphEngine.kind: graphs, SlotsEngine.kind: slots, **blocking},
            code=WorkerCode(apps=sys.argv[1:], kinds={"count": CounterEngine.kind}),
            services=WorkerServices(
                clock=now_ms,
                draw_seed=lambda: secrets.token_hex(8),
                database=database,
                stores=StateStores(Path(os.environ["HEADWATER_DATA_DIR"]), _MEMORY, now_ms),
                joined=joined,
            ),
            member=os.environ.get("HEADWATER_MEMBER") or None,
            pace=pace,
            bounds=Bounds(passed=("TEST_*",)),
        )
        await worker.run()


if __name__ == "__main__":
    uvloop.run(main())
