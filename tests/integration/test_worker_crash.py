"""The pipeline worker is crash-only, also when it is Faust that fails: its exit code says so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.streams.pipeline.worker import EXIT_CRASHED

PATIENCE_S = 60

WORKER = """
import logging, sys
from pathlib import Path
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import UnknownError
from headwater.gateway.providers import installed_providers
from headwater.processors.providers.placement import Placement
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.state_stores import StateStores
from headwater.streams.pipeline import _faust, worker

async def joined(): pass

logging.basicConfig(level="CRITICAL")
{failing}
worker.run_worker(
    cluster=Cluster(sys.argv[1]), app_id="crash", placement=Placement(installed_providers(), "hw_"),
    park_for_ms=1_000, stores=StateStores(Path(sys.argv[2]), 1 << 24, lambda: 0), joined=joined,
)
"""
SEEKING = """
async def fails(_):
    raise RuntimeError("could not seek")

_faust.BatchConsumer.perform_seek = fails
"""
#: Of what it did not expect, aiokafka tells whoever asks it for records; Faust does not ask.
JOINING = """
async def fails(*_):
    raise UnknownError("could not join")

GroupCoordinator.ensure_active_group = fails
"""


@pytest.mark.parametrize(
    ("failing", "said"), [(SEEKING, "could not seek"), (JOINING, "could not join")]
)
def test_a_failure_of_faust_ends_the_worker_as_a_crash(
    topics: str, tmp_path: Path, failing: str, said: str
):
    worker = subprocess.run(
        [sys.executable, "-c", WORKER.format(failing=failing), topics, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert not [*tmp_path.glob("*-data")], (
        "Faust makes a folder for tables, of which there are none"
    )
    assert worker.returncode == EXIT_CRASHED, worker.stderr
    assert said in worker.stderr
    assert "the worker ends, to " in worker.stderr
