"""Goal: a worker gets the store of its partition, nobody else's, within the memory it was given.

Method: RocksDB itself, in folders of the test; other processes hold stores as other workers would.
"""

import asyncio
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headwater.streams.kafka import state_stores
from headwater.streams.kafka.state_stores import StoreLocked
from tests.unit.streams.stores import MEMORY, NOW_MS, OURS, ROWS, data_of, opened, stores

HOLDER = """
import sys
from pathlib import Path
from tests.unit.streams.stores import ROWS, opened

store = opened(Path(sys.argv[1]))
store.write({ROWS: {b"held": b"1"}}, {"rows": 1})
print("held", flush=True)
sys.stdin.read()
"""
FILLER = """
import os, sys
from pathlib import Path
from tests.unit.streams.stores import MEMORY, OURS, ROWS, opened

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

store = opened(Path(sys.argv[1]))
before = resident()
for each in range(200):
    store.write({ROWS: {os.urandom(16): os.urandom(1_000) for _ in range(1_000)}}, {"rows": each})
keys, after = 0, None
while found := store.scan(ROWS, after=after, limit=500):
    keys, after = keys + len(found), found[-1][0]
assert keys == 200_000
print(resident() - before)
"""


@pytest.fixture
def held(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process, which has the store."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        yield child
        child.kill()


@pytest.mark.parametrize(
    "other",
    [
        {"cluster": "c-2"},
        {"topics": ("rows",)},
        {"form": "2"},
    ],
    ids=str,
)
def test_a_store_of_something_else_is_deleted(
    tmp_path: Path, other: dict[str, object], caplog: pytest.LogCaptureFixture
):
    theirs = opened(tmp_path, msgspec.structs.replace(OURS, **other))
    theirs.write({ROWS: {b"a": b"1"}}, {"rows": 1})
    theirs.close()
    ours = opened(tmp_path)
    assert (ours.get(ROWS, b"a"), ours.positions()) == (None, {})
    made = f"making the local store {data_of(tmp_path)} again, from Kafka: it is of another "
    assert made + next(iter(other)) in caplog.text


def test_partitions_and_groups_lie_beside_each_other(tmp_path: Path):
    identities = [
        msgspec.structs.replace(OURS, group=group, partition=partition)
        for group in ("pipeline", "workflows")
        for partition in (0, 1)
    ]
    all_of_them = stores(tmp_path)
    result = [all_of_them.open(identity) for identity in identities]
    for number, store in enumerate(result):
        store.write({ROWS: {b"a": b"%d" % number}}, {})
        store.close()
    again = [all_of_them.open(identity).get(ROWS, b"a") for identity in identities]
    assert again == [b"0", b"1", b"2", b"3"]


def test_a_store_that_was_last_written_too_long_ago_is_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    store = opened(tmp_path)
    store.write({ROWS: {b"a": b"1"}}, {"rows": 1})
    store.close()
    # To open it is not to write it.
    store = stores(tmp_path, NOW_MS + 2).open(OURS, written_since_ms=NOW_MS)
    assert store.get(ROWS, b"a") == b"1"
    store.close()
    store = stores(tmp_path).open(OURS, written_since_ms=NOW_MS + 1)
    assert store.positions() == {}
    assert "it was last written at" in caplog.text


def test_what_another_process_holds_is_left_alone_and_a_spare_is_used(
    tmp_path: Path, held: subprocess.Popen[str], caplog: pytest.LogCaptureFixture
):
    spare = opened(tmp_path)
    assert spare.get(ROWS, b"held") is None
    assert f"is held by process {held.pid}" in caplog.text
    spare.write({ROWS: {b"spare": b"1"}}, {})
    spare.close()
    assert opened(tmp_path).get(ROWS, b"spare") == b"1"


def test_the_next_owner_waits_until_the_last_one_has_closed_the_store(
    tmp_path: Path, held: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(state_stores, "_CLOSED_WITHIN_S", 60.0)

    async def run() -> bytes | None:
        opening = asyncio.create_task(stores(tmp_path).open_when_closed(OURS))
        await asyncio.sleep(0)
        assert not opening.done()
        held.kill()
        return (await opening).get(ROWS, b"held")

    assert asyncio.run(run()) == b"1"
    assert not data_of(tmp_path).parent.with_name("3.1").exists()


def test_the_next_owner_takes_a_spare_when_it_has_waited(
    tmp_path: Path, held: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(state_stores, "_CLOSED_WITHIN_S", 0.1)
    assert asyncio.run(stores(tmp_path).open_when_closed(OURS)).get(ROWS, b"held") is None
    assert data_of(tmp_path).parent.with_name("3.1").exists()


def test_the_store_of_a_process_that_has_died_is_opened_and_the_spare_is_deleted(
    tmp_path: Path, held: subprocess.Popen[str]
):
    spare = opened(tmp_path)
    spare.close()
    held.kill()
    held.wait()
    assert opened(tmp_path).get(ROWS, b"held") == b"1"
    assert not (data_of(tmp_path).parent.with_name("3.1") / "data").exists()


def test_no_two_open_stores_are_one(tmp_path: Path):
    four = [opened(tmp_path) for _ in range(4)]
    for number, store in enumerate(four):
        store.write({ROWS: {b"a": b"%d" % number}}, {})
    assert [store.get(ROWS, b"a") for store in four] == [b"0", b"1", b"2", b"3"]
    with pytest.raises(StoreLocked, match="found 4 that other processes hold"):
        opened(tmp_path)


def test_memory_does_not_grow_with_what_is_stored(tmp_path: Path):
    filler = [sys.executable, "-c", FILLER, str(tmp_path)]
    grown = int(subprocess.run(filler, capture_output=True, text=True, check=True).stdout)
    assert sum(path.stat().st_size for path in data_of(tmp_path).iterdir()) > 20 * MEMORY
    # RocksDB's own threads, files and batches come on top.
    assert grown < MEMORY + 48 * 1024 * 1024


def test_all_stores_share_one_limit_also_those_that_are_opened_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)
    for first in (True, False):
        together = stores(tmp_path)
        used = []
        for partition in range(3):
            store = together.open(msgspec.structs.replace(OURS, partition=partition))
            if first:
                values = {b"%05d" % number: b"v" * 500 for number in range(2_000)}
                store.write({ROWS: values}, {})
            store.scan(ROWS, limit=10_000)
            used.append(together.memory_used())
            store.close()
        assert used == sorted(set(used))
        assert used[-1] <= MEMORY
    assert not caplog.text
