"""Metrics of a gateway of several processes."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headwater.gateway.api import group_metrics
from headwater.gateway.api.group_metrics import MetricsFolder
from headwater.gateway.api.monitoring import Metrics
from headwater.monitoring.exposition import Collected
from headwater.monitoring.metrics import Counter
from tests.waiting import until

RECEIVED = "headwater_webhook_received_total"


def samples(text: bytes) -> dict[tuple[str, tuple[str, ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.values()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def counted(accepted: int, duplicates: int, seconds: float) -> Metrics:
    metrics = Metrics()
    for outcome, number in (("accepted", accepted), ("duplicate", duplicates)):
        for _ in range(number):
            metrics.answered("terra", outcome)
    metrics.appended(seconds)
    return metrics


def test_counts_of_all_processes_are_added_and_gauges_are_of_the_one_that_answers(tmp_path: Path):
    answering, ended = MetricsFolder(tmp_path, 1, 0), MetricsFolder(tmp_path, 2, 0)
    own, other = counted(3, 0, 0.002), counted(4, 5, 0.3)
    other.render(False)
    ended.publish(other.render_own())
    answering.publish(own.render_own())  # Counted once all the same.
    page = samples(own.render(True, answering.others())[0])
    received = "headwater_webhook_received_total"
    assert page[received, ("accepted", "terra")] == 7
    assert page[received, ("duplicate", "terra")] == 5
    assert page["headwater_webhook_append_seconds_count", ()] == 2
    assert page["headwater_webhook_append_seconds_sum", ()] == 0.302
    assert page["headwater_webhook_append_seconds_bucket", ("0.0025",)] == 1
    assert page["headwater_webhook_append_seconds_bucket", ("0.5",)] == 2
    assert page["headwater_webhook_append_seconds_bucket", ("+Inf",)] == 2
    assert page["headwater_kafka_connected", ()] == 1


def test_without_others_the_page_is_that_of_one_process():
    own = counted(3, 0, 0.002)
    (alone, _), (together, _) = own.render(True), own.render(True, {})
    assert samples(alone)[RECEIVED, ("accepted", "terra")] == 3
    assert samples(alone).keys() == samples(together).keys()


def test_what_only_another_process_has_counted_is_shown(tmp_path: Path):
    other = Counter("headwater_only_there", "Things that this process does not count.")
    other.add(amount=3)
    MetricsFolder(tmp_path, 2, 0).publish(generate_latest(Collected((other,))))
    page = samples(Metrics().render(True, MetricsFolder(tmp_path, 1, 0).others())[0])
    assert page["headwater_only_there_total", ()] == 3


def test_a_full_disk_ends_no_heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = MetricsFolder(tmp_path, 1, 0)
    folder.publish(b"# first")
    (file,) = tmp_path.glob("1-*")
    os.utime(file, (1, 1))
    monkeypatch.setattr(group_metrics, "_replace", lambda _file, _text: False)
    folder.publish(b"# second")
    assert file.read_bytes() == b"# first"
    assert file.stat().st_mtime > 1


def test_a_process_publishes_at_once_and_at_its_end(tmp_path: Path):
    folder, reader = MetricsFolder(tmp_path, 1, 0), MetricsFolder(tmp_path, 2, 0)
    metrics = counted(1, 0, 0.1)

    async def run() -> None:
        async with folder.publishing(metrics.render_own):
            await until(reader.others)
            metrics.answered("terra", "accepted")

    asyncio.run(run())
    page = samples(counted(0, 0, 0.1).render(True, reader.others())[0])
    assert page["headwater_webhook_received_total", ("accepted", "terra")] == 2


def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def received(folder: MetricsFolder) -> float:
    page = samples(counted(0, 0, 0.1).render(True, folder.others())[0])
    return page.get((RECEIVED, ("accepted", "terra")), 0)


def names(folder: Path) -> list[str]:
    return sorted(file.stem.partition("-")[0] for file in folder.glob("*.metrics"))


def test_counts_of_ended_processes_are_kept_in_one_file(tmp_path: Path):
    pid, running = ended_process(), os.getppid()
    MetricsFolder(tmp_path, running, 0).publish(counted(1, 0, 0.1).render_own())
    reader = MetricsFolder(tmp_path, 0, 0)
    for number in range(1, 4):
        restarted = MetricsFolder(tmp_path, pid, number)  # With the same process id every time.
        restarted.add_up_ended()
        restarted.publish(counted(10, 0, 0.3).render_own())
        assert received(reader) == 10 * number + 1
        assert names(tmp_path) == sorted([str(running), str(pid), *["ended"][: number - 1]])
    reader.add_up_ended()
    assert names(tmp_path) == sorted([str(running), "ended"])
    assert received(reader) == 31
    page = samples(counted(0, 0, 0.1).render(True, reader.others())[0])
    assert page["headwater_webhook_append_seconds_count", ()] == 5
    assert page["headwater_webhook_append_seconds_bucket", ("0.5",)] == 5


def test_a_kill_while_ended_processes_are_added_up_counts_none_twice(tmp_path: Path):
    ended = MetricsFolder(tmp_path, ended_process(), 0)
    ended.publish(counted(3, 0, 0.1).render_own())
    (published,) = tmp_path.glob("*.metrics")
    content = published.read_bytes()
    reader = MetricsFolder(tmp_path, 0, 0)
    reader.add_up_ended()
    published.write_bytes(content)  # As if it had not been deleted yet.
    assert received(reader) == 3
    reader.add_up_ended()
    assert received(reader) == 3
    assert names(tmp_path) == ["ended"]


def test_a_folder_that_is_gone_has_no_counts(tmp_path: Path):
    folder = MetricsFolder(tmp_path / "gone", 1, 0)
    folder.add_up_ended()
    folder.publish(b"")
    assert folder.others() == {}
