"""The worker of `headwater worker --app` with a configurable checkpoint interval.

`python -m benchmarks.workflow_worker BOOTSTRAP APP MEMBER often|never`: often is once a second, if
there are changes; never leaves the whole log to the next owner.
"""

import asyncio
import gc
import secrets
import signal
import sys
from typing import Final

import uvloop

from headwater.processors.code.engine import ReplayEngine
from headwater.streams.clock import now_ms
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.workflows.worker import WorkflowWorker
from headwater.streams.workflows.worker_options import Pace, WorkerCode, WorkerServices

_PACES: Final = {
    "often": Pace(checkpoint_records=1),
    "never": Pace(checkpoint_records=sys.maxsize, checkpoint_s=float("inf")),
}


async def _main(bootstrap: str, app: str, member: str, checkpoints: str) -> None:
    worker = WorkflowWorker(
        cluster=Cluster(bootstrap),
        name="bench-worker",
        engines={ReplayEngine.kind: ReplayEngine()},
        code=WorkerCode(apps=[app]),
        services=WorkerServices(clock=now_ms, draw_seed=lambda: secrets.token_hex(8)),
        member=member,
        pace=_PACES[checkpoints],
    )
    task = asyncio.ensure_future(worker.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()


if __name__ == "__main__":
    gc.freeze()
    gc.set_threshold(50_000)
    uvloop.run(_main(*sys.argv[1:]))
