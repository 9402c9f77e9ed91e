"""The pipeline worker is crash-only, also when it is Faust that fails: its exit code says so."""

import subprocess
import sys

from headwater.streams.pipeline.worker import EXIT_CRASHED

PATIENCE_S = 60

WORKER = """
import logging, sys
from headwater.gateway.providers import installed_providers
from headwater.processors.providers.placement import Placement
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.pipeline import _faust, worker

async def fails(_):
    raise RuntimeError("could not seek")

logging.basicConfig(level="CRITICAL")
_faust.BatchConsumer.perform_seek = fails
worker.run_worker(
    cluster=Cluster(sys.argv[1]), app_id="crash", placement=Placement(installed_providers(), "hw_"),
    park_for_ms=1_000,
)
"""


def test_a_failure_of_faust_ends_the_worker_as_a_crash(topics: str):
    worker = subprocess.run(
        [sys.executable, "-c", WORKER, topics],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert worker.returncode == EXIT_CRASHED, worker.stderr
    assert "could not seek" in worker.stderr
    assert "to start again from what is durable" in worker.stderr
