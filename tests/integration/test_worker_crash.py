"""Workers are crash-only, that of the pipeline also when it is Faust that fails.

Their exit codes say so.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import GroupCoordinatorNotAvailableError

from headwater.streams.clock import monotonic
from headwater.streams.pipeline.worker import EXIT_CRASHED, EXIT_FENCED

PATIENCE_S = 60

WORKER = """
import logging, sys
from pathlib import Path
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import UnknownError
from headwater.gateway.settings.providers import installed_providers
from headwater.monitoring.monitor import Monitor
from headwater.processors.providers.provider import Placement
from headwater.streams.clock import now_ms
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.state_stores import StateStores
from headwater.streams.pipeline.deduplication import Intake
from headwater.streams.pipeline import _faust, worker

async def joined(): pass

logging.basicConfig(level="CRITICAL")
{failing}
placement = Placement(installed_providers(), "hw_")
worker.run_worker(
    cluster=Cluster(sys.argv[1]), app_id=sys.argv[3],
    make_intake=lambda count: Intake(count, placement=placement, park_for_ms=1_000),
    stores=StateStores(Path(sys.argv[2]), 1 << 24, lambda: 0), joined=joined,
    member="one-name", clock=now_ms, monitor=Monitor(),
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
    raise {error}("could not join")

GroupCoordinator.ensure_active_group = fails
"""

#: A worker of workflows whose clock fails.
WORKFLOWS = """
import sys
from headwater.gateway.cli.work import run_workflows
from headwater.gateway.settings.environment import load_settings

settings = load_settings(app="tests.apps.starting", kafka=sys.argv[1])
try:
    run_workflows(settings, clock=lambda: 1 // 0, ticked=False, reload=False)
except Exception as error:
    raise SystemExit(error.exit_code)
"""

#: A partition that is never taken: because its owner waits, or keeps the event loop or all of
#: Python from going on.
STUCK = """
import asyncio, ctypes, time
from headwater.streams.pipeline.partition_runner import PartitionRunner

async def stuck(*_):
    {waits}

PartitionRunner._acquire = stuck
worker._PATIENCE_S = 1.0
worker._LAST_RESORT_S = 4.0
"""


@pytest.mark.parametrize(
    ("failing", "said"),
    [
        (SEEKING, "could not seek"),
        (JOINING.format(error="UnknownError"), "could not join"),
        (JOINING.format(error="ValueError"), "could not join"),
    ],
)
def test_a_failure_of_faust_ends_the_worker_as_a_crash(
    topics: str, tmp_path: Path, failing: str, said: str
):
    worker = started(failing, topics, tmp_path)
    errors = said_until_the_end(worker)
    assert not [*tmp_path.glob("*-data")], (
        "Faust makes a folder for tables, of which there are none"
    )
    assert worker.returncode == EXIT_CRASHED, errors
    assert said in errors
    assert "the worker ends, to " in errors


@pytest.mark.parametrize("waits", ["await asyncio.Event().wait()", "time.sleep(1_000)"])
def test_a_worker_that_no_longer_gets_on_ends_and_says_where(
    topics: str, tmp_path: Path, waits: str
):
    worker = started(STUCK.format(waits=waits), topics, tmp_path, "stuck")
    errors = said_until_the_end(worker)
    assert worker.returncode == EXIT_CRASHED, errors
    assert "to restart from committed state: expected progress of partition" in errors
    assert "the last progress: it was assigned" in errors
    assert "in stuck" in errors or "in _pulse" in errors, "the stacks of all threads"


def test_a_worker_whose_python_stands_still_is_ended_from_outside_of_it(
    topics: str, tmp_path: Path
):
    worker = started(
        STUCK.format(waits="ctypes.PyDLL(None).sleep(1_000)"), topics, tmp_path, "still"
    )
    errors = said_until_the_end(worker)
    assert worker.returncode == 1, errors
    assert "Timeout (0:00:04)!" in errors
    assert "in stuck" in errors


def test_a_workflow_worker_that_crashes_says_so_and_ends_with_70(topics: str, tmp_path: Path):
    worker = run(WORKFLOWS, topics, directory=tmp_path)
    errors = said_until_the_end(worker)
    assert worker.returncode == EXIT_CRASHED == 70, errors
    assert "the worker ends, to restart from committed state" in errors
    assert "ZeroDivisionError" in errors


def started(
    failing: str, topics: str, directory: Path, group: str = "crash"
) -> subprocess.Popen[str]:
    program = WORKER.format(failing=failing)
    return run(program, topics, str(directory), group, directory=directory)


def run(program: str, *arguments: str, directory: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stderr=subprocess.PIPE,
        text=True,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def said_until_the_end(worker: "subprocess.Popen[str]") -> str:
    """What a worker has said once it has ended; one that does not is killed."""
    try:
        _, errors = worker.communicate(timeout=PATIENCE_S)
    finally:
        worker.kill()
    return errors


async def members(topics: str, group: str) -> list[str]:
    admin = AIOKafkaAdminClient(bootstrap_servers=topics)
    await admin.start()
    try:
        (answer,) = await admin.describe_consumer_groups([group])
    except GroupCoordinatorNotAvailableError:  # the first group of all
        return []
    finally:
        await admin.close()
    ((*_, result, _),) = answer.groups
    return [member for member, *_ in result]


def wait_for(done: Callable[[], object]) -> None:
    deadline = monotonic() + PATIENCE_S
    while not done():
        assert monotonic() < deadline


def test_of_two_workers_with_one_name_the_older_one_ends_and_says_why(topics: str, tmp_path: Path):
    older = started("", topics, tmp_path, "fenced")
    wait_for(lambda: asyncio.run(members(topics, "fenced")))
    newer = started("", topics, tmp_path, "fenced")
    try:
        errors = said_until_the_end(older)
        assert older.returncode == EXIT_FENCED, errors
        assert "another process joined under this name" in errors
        assert newer.poll() is None
    finally:
        newer.kill()
        newer.communicate()
        older.kill()
