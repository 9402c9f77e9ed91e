"""Goal: at half load, memory and open files of every part stay flat for an hour.

`SOAK_S` has another length in seconds. The first third is not judged: caches fill meanwhile.
"""

import os
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil  # type: ignore[import-untyped]  # its stubs are not among our packages
import pytest

from tests.e2e.campaigns import OwnPostgresSystem, Reader, never_silent
from tests.e2e.deliveries import mixed
from tests.e2e.system import System, opened

pytestmark = [pytest.mark.soak, pytest.mark.timeout(4 * 3600)]

LENGTH_S = float(os.environ.get("SOAK_S", "3600"))
SAMPLE_EVERY_S = 5.0
#: Half of what two hyperthreads take, with all parts, the sender, the broker and Postgres on them.
DELIVERIES_PER_S = 150
#: What a part may grow by in an hour: two of its samples differ by more.
GROWTH_MIB_PER_HOUR = 48.0
GROWTH_FILES_PER_HOUR = 20.0


class Sample(NamedTuple):
    at_s: float
    mib: float
    files: int


@pytest.fixture
def system(scratch: Path) -> Iterator[OwnPostgresSystem]:
    directory = scratch / "long run"
    directory.mkdir()
    with opened(OwnPostgresSystem(directory)) as system:
        system.start("worker9", "--app", "tests.e2e.campaign_app")
        yield system


def sampled(system: System) -> dict[str, tuple[float, int]]:
    """Memory in MiB and open files of each part, with its children."""
    result: dict[str, tuple[float, int]] = {}
    for name, part in system.parts.items():
        processes = [parent := psutil.Process(part.pid), *parent.children(recursive=True)]
        mib = sum(process.memory_info().rss for process in processes) / 2**20
        result[name] = mib, sum(process.num_fds() for process in processes)
    return result


def deliver_at_rate(system: System, over: threading.Event) -> None:
    batch, number = DELIVERIES_PER_S, 0
    while not over.is_set():
        began = time.monotonic()
        system.deliver(mixed(number, batch))
        number += 1
        over.wait(max(0.0, began + 1.0 - time.monotonic()))


def growth(samples: list[Sample], value: str) -> float:
    """Growth in an hour, by the slope of all samples after the first third."""
    judged = [one for one in samples if one.at_s >= samples[-1].at_s / 3]
    slope = statistics.linear_regression(
        [one.at_s for one in judged], [getattr(one, value) for one in judged]
    ).slope
    return slope * 3600


def test_memory_and_open_files_stay_flat_at_half_load(system: OwnPostgresSystem):
    samples: defaultdict[str, list[Sample]] = defaultdict(list)
    over, reader = threading.Event(), Reader(system, "nap")
    sending = threading.Thread(target=deliver_at_rate, args=(system, over))
    began = time.monotonic()
    with never_silent(system), reader.at_work():
        sending.start()
        try:
            while (at_s := time.monotonic() - began) < LENGTH_S:
                for name, (mib, files) in sampled(system).items():
                    samples[name].append(Sample(at_s, mib, files))
                time.sleep(SAMPLE_EVERY_S)
        finally:
            over.set()
            sending.join()
    system.check()
    assert reader.unknown == []
    grown = {
        name: (round(growth(all_of, "mib"), 1), round(growth(all_of, "files"), 1))
        for name, all_of in samples.items()
    }
    for name, (mib, files) in grown.items():
        assert mib <= GROWTH_MIB_PER_HOUR, (name, grown)
        assert files <= GROWTH_FILES_PER_HOUR, (name, grown)
