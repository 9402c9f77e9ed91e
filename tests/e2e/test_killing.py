"""Goal: whoever dies, and whenever, Postgres ends up equal to the pure fold over the raw topic.

Method: a real broker, a real Postgres and our parts as processes; deliveries are posted over HTTP
while one part is killed with kill -9 (or a worker joins and leaves) at moments drawn from a seed.
"""

import asyncio
import itertools
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import psutil  # type: ignore[import-untyped]  # its stubs are not among our packages
import psycopg
import pytest

from headwater.processors.auditor.receipts import Receipt, is_body, is_signed
from headwater.schemas.topics import OUTCOMES
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.readers import read_partition
from headwater.streams.kafka.records import Outgoing
from tests.e2e import dying_worker
from tests.e2e.deliveries import mixed
from tests.e2e.prometheus import Prometheus, need_prometheus, prometheus
from tests.e2e.system import ADMIN, PARTITIONS, System, free_port, opened, under_load
from tests.waiting import ANSWERED_WITHIN_S

DELIVERIES = 1_500
KILLS = 3
#: Delivered to a worker that dies.
BACKLOG = 500
PATIENCE_S = 120.0
USUAL = {"gateway", "worker", "project"}


@pytest.fixture(scope="module")
def system(scratch: Path, module_database: str) -> Iterator[System]:
    """One system for all tests, which is compared as a whole at the end of each."""
    directory = scratch / "killing"
    directory.mkdir()
    with opened(System(directory, module_database)) as system:
        yield system


@pytest.fixture(autouse=True)
def usual(system: System) -> None:
    """The parts that there are at first, as they are then, whatever the test before has left."""
    for name in system.parts.keys() - USUAL:
        system.kill(name)
    system.settings.clear()
    system.modules.clear()
    for name in USUAL - system.parts.keys():
        system.start(name)


def disturbed(system: System, seed: int, disturb: Callable[[random.Random], None]) -> None:
    """Posts deliveries from another thread while this one disturbs the system."""
    draw = random.Random(seed)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(system.deliver, mixed(seed, DELIVERIES))
        for _ in range(KILLS):
            time.sleep(draw.uniform(0.2, 1.5))
            disturb(draw)
        sending.result()
    check(system)


def check(system: System) -> None:
    """Compares all with the fold, once deliveries of every fate were sent."""
    expected = system.check()
    statuses = {status for status, _ in expected.outcomes.values()}
    assert statuses == {"processed", "skipped", "parked", "dead"}


@pytest.mark.soak
def test_killing_parts_loses_nothing(system: System, seed: int):
    parts = itertools.cycle(["worker", "project", "gateway"])

    def kill(draw: random.Random) -> None:
        part = next(parts)
        system.kill(part)
        time.sleep(draw.uniform(0, 0.5))
        system.start(part)

    disturbed(system, seed, kill)


@pytest.mark.soak
def test_killing_the_broker_loses_nothing(system: System, seed: int):
    def kill(_: random.Random) -> None:
        system.broker.kill()
        system.broker.start()

    disturbed(system, seed, kill)


@pytest.mark.soak
def test_workers_that_join_and_leave_lose_nothing(system: System):
    others: list[str] = []

    def disturb(draw: random.Random) -> None:
        if others and draw.random() < 0.5:
            draw.choice([system.kill, system.stop])(others.pop())
        else:
            others.append(f"worker{len(others) + 2}")
            system.start(others[-1])
        time.sleep(1)

    disturbed(system, 3, disturb)


def test_workers_that_die_in_the_middle_of_a_commit_unit_lose_nothing(system: System):
    system.kill("worker")
    system.modules["worker"] = dying_worker.__name__
    system.deliver(mixed(5, BACKLOG))
    for death in dying_worker.DEATHS:
        system.settings["TEST_DIES_AT"] = death
        system.start("worker")
        # It has a backlog, so it does not come to an end before that.
        assert system.parts.pop("worker").wait(PATIENCE_S) == -signal.SIGKILL, death
    system.settings["TEST_DIES_AT"] = "never"
    system.start("worker")
    expected = system.check()
    assert {status for status, _ in expected.outcomes.values()} >= {"processed", "parked", "dead"}
    system.kill("worker")


def test_everything_killed_at_once_loses_nothing(system: System):
    system.settings["TMPDIR"] = str(system.directory)
    system.settings["HEADWATER_AUDITOR"] = "true"
    system.kill("project")
    system.start("project")
    before = len(system.outcomes())
    with under_load(system, 4, at_once=50, pause_s=0.3):
        system.wait(lambda: len(system.outcomes()) > before, "the first outcomes")
        for part in ("worker", "project", "gateway"):
            system.kill(part)
        system.broker.kill()
        system.broker.start()
        system.start("project")
        # Then several processes of a command, one of which is killed.
        for part in SEVERAL:
            system.start(part, "--processes", "2")
        for part in SEVERAL:
            system.wait(partial(both_work, system, part), f"both of {part} to work")
            killed = min(children(system, part))
            os.kill(killed, signal.SIGKILL)
            system.wait(partial(both_work, system, part, killed), f"{part} to be two again")
    check(system)
    assert_nothing_lost(system)
    stop_together(system)


def audited(system: System) -> dict[str, Any]:
    """What the auditor has reported; empty if it has not yet."""
    answer = httpx2.get(f"{system.url()}/admin/auditor", headers=ADMIN, timeout=ANSWERED_WITHIN_S)
    return answer.json() if answer.is_success else {}


def open_laws(system: System) -> set[str]:
    """The laws of open findings."""
    return {one["law"] for one in audited(system).get("findings", ()) if one["ended"] is None}


def assert_nothing_lost(system: System) -> None:
    """The auditor has verified each delivery that was ever sent, whatever was killed."""
    number = len(system.outcomes())

    def is_verified() -> bool:
        report = audited(system)
        read = (report.get("deliveries"), report.get("waiting"), report.get("caught_up"))
        return read == (number, 0, True)

    try:
        system.wait(is_verified, f"{number} deliveries to be verified")
    except AssertionError as waited:
        raise AssertionError(f"{audited(system)}\n{waited}") from None
    report = audited(system)
    assert (report["lost"], report["findings"]) == (0, []), report


def test_the_auditor_finds_a_changed_row_and_a_removed_outcome(system: System):
    system.settings |= {"HEADWATER_AUDITOR": "true", "HEADWATER_AUDITOR_ROWS": "50000"}
    system.settings["HEADWATER_AUDIT_KEYS"] = AUDIT_KEY
    for part in ("gateway", "project"):
        system.kill(part)
        system.start(part)
    system.deliver(mixed(6, 50))
    system.check()
    assert_nothing_lost(system)
    with psycopg.connect(system.dsn) as connection:
        changed = connection.execute(CHANGE_A_ROW).rowcount
    assert changed == 1
    removed = min(system.outcomes())
    check_receipt(system, removed)
    outcome = asyncio.run(outcome_of(system, removed))
    asyncio.run(append(system, outcome._replace(value=None, headers=None)))
    found = {"row_differs", "outcome_removed"}
    system.wait(lambda: open_laws(system) == found, "both to be found")
    with psycopg.connect(system.dsn) as connection:
        connection.execute(CHANGE_IT_BACK)
    system.wait(lambda: open_laws(system) == {"outcome_removed"}, "the row to be right again")
    # Without the epoch of its writer, which may have lost the partition since.
    asyncio.run(append(system, outcome._replace(headers=None)))
    system.wait(lambda: open_laws(system) == set(), "the outcome to be there again")


AUDIT_KEY = "a-key-of-the-audit-log-0123456789"


def check_receipt(system: System, event_id: str) -> None:
    """A receipt has the position and the hash of a delivery, and is signed."""
    url = f"{system.url()}/admin/deliveries/{event_id}/receipt"
    answer = httpx2.get(url, headers=ADMIN, timeout=ANSWERED_WITHIN_S)
    receipt = msgspec.json.decode(answer.content, type=Receipt)
    body = {
        (partition, offset): one.body
        for partition, offset, one in system.raw()
        if one.event_id == event_id
    }[receipt.partition, receipt.offset]
    assert is_signed(receipt, [AUDIT_KEY])
    assert is_body(receipt, body)
    assert receipt.outcome is not None
    assert (receipt.outcome.status, receipt.outcome.reason) == system.outcomes()[event_id]


#: A value of one row, as by hand.
CHANGE_A_ROW = """
update daily_summary set steps = steps + 1 where (user_id, source, datetime) =
(
    select user_id, source, datetime from daily_summary where steps is not null
    order by user_id, source, datetime limit 1
)
"""
CHANGE_IT_BACK = CHANGE_A_ROW.replace("steps + 1", "steps - 1")


async def outcome_of(system: System, event_id: str) -> Outgoing:
    """The last outcome of a delivery."""
    cluster, key = Cluster(system.bootstrap), event_id.encode()
    outcomes = [
        Outgoing(OUTCOMES, partition, key, record.value, list(record.headers))
        for partition in range(PARTITIONS)
        async for records in read_partition(cluster, [OUTCOMES], partition)
        for record in records
        if record.key == key
    ]
    return outcomes[-1]


async def append(system: System, record: Outgoing) -> None:
    """Append a record, as a tool for Kafka does."""
    appender = Appender(cluster=Cluster(system.bootstrap), client_id="a-tool")
    await appender.append([record])
    await appender.stop()


#: The commands that run as several processes.
SEVERAL = ("worker", "gateway")


def children(system: System, part: str) -> set[int]:
    """The processes of a command, without what else its parent has started."""
    command = "serve" if part == "gateway" else part
    running = set()
    for child in psutil.Process(system.parts[part].pid).children():
        with suppress(psutil.Error):  # It has just ended.
            if command in child.cmdline():
                running.add(child.pid)
    return running


def both_work(system: System, part: str, killed: int = 0) -> bool:
    """Whether two processes of a command have done some of the work, and none is that."""
    running = children(system, part)
    working = owners(system) if part == "worker" else answering(system)
    return len(running) == 2 and killed not in running and running <= working


def owners(system: System) -> set[int]:
    """The processes that have the stores of partitions."""
    locks = (system.directory / "data" / "state").glob("pipeline-*/*/lock")
    return {int(lock.read_text() or 0) for lock in locks}


def answering(system: System) -> set[int]:
    """The gateways that have accepted deliveries."""
    pages = system.directory.glob("headwater-metrics-*/*-*.metrics")
    return {
        int(page.stem.partition("-")[0])
        for page in pages
        if 'outcome="accepted"' in page.read_text()
    }


def stop_together(system: System) -> None:
    """One signal to each command ends all of its processes."""
    before = {part: children(system, part) for part in SEVERAL}
    for part in SEVERAL:
        system.parts[part].send_signal(signal.SIGTERM)
    for part in SEVERAL:
        code = system.parts.pop(part).wait(PATIENCE_S)
        # On a busy machine some may take longer than they may.
        assert code == ("killed\n" in system.log(part)), system.log(part)
        assert not any(map(psutil.pid_exists, before[part]))


#: Alerts while the parts run, and when a worker and the projector are gone.
RUNNING_ALERTS = {"HeadwaterDeadLetters", "HeadwaterStepsFailing"}
GONE_ALERTS = {"HeadwaterDown", "HeadwaterPartitionStuck", "HeadwaterProjectionLate"}


#: Metrics of each process and stage.
SHOWN = {
    "headwater_code_hosts",
    "headwater_committed_offset",
    "headwater_dead_letters_total",
    "headwater_delivery_outcomes_total",
    "headwater_disk_free_bytes",
    "headwater_event_loop_late_seconds",
    "headwater_lag_records",
    "headwater_lag_seconds",
    "headwater_partition_takeovers_total",
    "headwater_partitions",
    "headwater_pipeline_records_total",
    "headwater_projection_age_seconds",
    "headwater_projection_records_total",
    "headwater_stage_seconds",
    "headwater_store_bytes",
    "headwater_webhook_received_total",
    "headwater_workflow_attempts_failed_total",
    "headwater_workflow_commands_waiting_bytes",
    "headwater_workflow_runs_started_total",
    "headwater_workflow_timers_late_seconds",
}


#: Rules look back for half a minute, and count rows once a minute.
@pytest.mark.timeout(900)
def test_faults_raise_their_alerts(system: System):
    """Dead letters, a failing step, a full disk, a partition without reader, a late projector."""
    need_prometheus()
    targets = {"gateway": f"127.0.0.1:{system.ports['gateway']}"}
    disk = system.directory / "small disk"
    with small_disk(disk) as is_small, ExitStack() as exits:
        for name, app, data in (
            ("worker", (), disk),
            ("project", (), system.directory / "data"),
            ("worker2", ("--app", "tests.apps.failing"), system.directory / "data"),
        ):
            if name in system.parts:
                system.kill(name)
            targets[name] = monitored(system, name, data, *app)
        for address in targets.values():
            system.wait(partial(is_ready, address), f"{address} to be ready")
        url = f"{system.url()}/api/workflows/workflows/failing/instances"
        key = {"x-api-key": "dev-workflow-key"}
        assert httpx2.post(url, headers=key, json={}, timeout=ANSWERED_WITHIN_S).is_success
        system.deliver(mixed(7, 50))
        system.check()
        system.wait(lambda: shown(targets) >= SHOWN, "metrics of all processes")
        (disk / "filler").write_bytes(bytes(int(shutil.disk_usage(disk).free * 0.95)) * is_small)
        directory = system.directory / "prometheus"
        server = exits.enter_context(prometheus(directory, free_port(), targets))
        full = {"HeadwaterDiskAlmostFull"} if is_small else set()
        wait_for_alerts(system, server, RUNNING_ALERTS | full)
        for part in ("worker", "project"):
            system.kill(part)
        system.deliver(mixed(8, 50))
        wait_for_alerts(system, server, GONE_ALERTS)
        system.kill("worker2")


def monitored(system: System, name: str, data: Path, *arguments: str) -> str:
    """Start a part that answers monitors, and return where."""
    address = f"127.0.0.1:{free_port()}"
    own = {"HEADWATER_METRICS_ADDRESS": address, "HEADWATER_DATA_DIR": str(data)}
    system.settings.update(own)
    system.start(name, *arguments)
    for variable in own:
        del system.settings[variable]
    return address


def shown(targets: Mapping[str, str]) -> set[str]:
    """The metrics that processes have."""
    pages = [httpx2.get(f"http://{address}/metrics").text for address in targets.values()]
    return {line.split()[2] for page in pages for line in page.splitlines() if "# TYPE " in line}


def is_ready(address: str) -> bool:
    with suppress(httpx2.TransportError):
        return httpx2.get(f"http://{address}/health/ready").is_success
    return False


def wait_for_alerts(system: System, server: Prometheus, expected: set[str]) -> None:
    """Wait until all of these alerts fire at once, as their causes stay."""
    try:
        system.wait(lambda: expected <= server.firing(), "alerts", 2 * PATIENCE_S)
    except AssertionError as waited:
        firing = server.firing()
        raise AssertionError(f"expected {expected}, found {firing}\n{waited}") from None


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Mount a small file system on a folder; yield whether this process may."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200m,mode=0755", "tmpfs", str(folder)]
    is_small = subprocess.run(mount, check=False, capture_output=True).returncode == 0
    try:
        yield is_small
    finally:
        if is_small:
            subprocess.run(["umount", "-l", str(folder)], check=True)
