"""Goal: a disk that is full stops a part, and loses nothing; with room again, the part goes on.

The directory of one part is a file system of its own, in memory, that a large file fills under
load. While Kafka's is full the gateway answers 503, and senders try again.
"""

import errno
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.e2e.campaigns import OwnPostgresSystem, never_silent
from tests.e2e.system import opened, under_load

pytestmark = pytest.mark.soak

FULL_S = 8.0
#: Large enough for an empty part, small enough to fill within a second.
SIZE_MIB = {"kafka": 600, "postgres": 600, "data": 200}


@contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[None]:
    """Mount a file system of some size on a folder."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=0755", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this process may not mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Fill the file system of a folder to its last byte."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1024 * 1024, 4096, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))
    assert os.statvfs(folder).f_bavail == 0, errno.errorcode[errno.ENOSPC]
    return filler


@pytest.fixture(params=["kafka", "postgres", "data"])
def disk(request: pytest.FixtureRequest) -> str:
    part: str = request.param
    return part


@pytest.fixture
def system(scratch: Path, disk: str) -> Iterator[OwnPostgresSystem]:
    directory = scratch / f"full disk of {disk}"
    directory.mkdir()
    with (
        small_disk(directory / disk, SIZE_MIB[disk]),
        opened(OwnPostgresSystem(directory)) as system,
    ):
        yield system


def test_a_full_disk_loses_nothing(system: OwnPostgresSystem, disk: str, seed: int):
    with under_load(system, seed), never_silent(system):
        for _ in range(2):
            time.sleep(2.0)
            filler = fill(system.directory / disk)
            refill_until = time.monotonic() + FULL_S
            while time.monotonic() < refill_until:
                time.sleep(0.5)
                with suppress(OSError), filler.open("ab", buffering=0) as file:
                    while True:  # what was freed meanwhile is taken again
                        file.write(bytes(4096))
            filler.unlink()
            # A supervisor starts a server again that has ended for want of room.
            if disk == "kafka":
                system.broker.kill()
                system.broker.start()
            elif disk == "postgres":
                system.postgres.kill()
                system.postgres.start()
    system.check()
