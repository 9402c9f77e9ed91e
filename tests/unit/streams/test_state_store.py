"""Goal: a store on disk gives what was written, or nothing, whatever happens to it.

Method: RocksDB itself. Its process is killed amid writes, its files are cut, changed and deleted.
A store may then have less, from some write on, or be new; it may not have anything else.
"""

import random
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from headwater.streams.kafka.state_store import Family, StateStore, StoreCorrupted
from tests.unit.streams.stores import CLAIMS, ROWS, data_of, opened

#: Each write has all of these, with its own number.
KEYS = [b"a", b"b", b"c" * 300]
WRITER = """
import sys
from pathlib import Path
from tests.unit.streams.test_state_store import number
from tests.unit.streams.stores import opened

store = opened(Path(sys.argv[1]))
for each in range(1, 1_000_000):
    number(store, each)
    print(each, flush=True)
"""


def number(store: StateStore, each: int) -> None:
    """A write that can be told from all others."""
    value = str(each).encode() * 50
    store.write({ROWS: dict.fromkeys(KEYS, value), CLAIMS: {str(each).encode(): b""}}, {"t": each})


def numbered(store: StateStore) -> int:
    """The number of the last write that a store has; all before it, and nothing after, is there."""
    last = store.positions().get("t", 0)
    expected = str(last).encode() * 50 if last else None
    assert store.multi_get(ROWS, KEYS) == [expected] * len(KEYS)
    assert store.scan(ROWS) == [(key, expected) for key in KEYS if expected]
    claims = {int(key) for key, _ in store.scan(CLAIMS, limit=1_000_000)}
    assert claims == set(range(1, last + 1))
    return last


def test_what_is_written_is_read_again_and_what_is_deleted_is_not(tmp_path: Path):
    store = opened(tmp_path)
    store.write({ROWS: {b"a": b"1", b"b": b"2"}}, {"rows": 5})
    store.write({ROWS: {b"a": None, b"c": b""}}, {"claims": 7})
    assert (store.get(ROWS, b"a"), store.get(ROWS, b"b")) == (None, b"2")
    assert store.multi_get(ROWS, [b"c", b"a", b"b"]) == [b"", None, b"2"]
    assert store.positions() == {"rows": 5, "claims": 7}


def test_a_store_that_is_opened_again_has_what_it_had(tmp_path: Path):
    store = opened(tmp_path)
    store.write({ROWS: {b"a": b"1"}}, {"rows": 5})
    store.close()
    store = opened(tmp_path)
    assert (store.get(ROWS, b"a"), store.positions()) == (b"1", {"rows": 5})


def test_families_have_nothing_in_common(tmp_path: Path):
    store = opened(tmp_path)
    near = [Family("row"), Family("rows"), Family("rowsa"), Family("rowt")]
    store.write({item: {b"a": item.encode()} for item in near}, {})
    assert [store.scan(item) for item in near] == [[(b"a", item.encode())] for item in near]
    assert sorted(store.families()) == near


def test_keys_are_scanned_in_order_within_a_prefix_some_at_a_time(tmp_path: Path):
    store = opened(tmp_path)
    keys = [b"u%d|%02d" % (user, day) for user in (1, 2, 3) for day in range(20)]
    store.write({ROWS: {key: key for key in reversed(keys)}}, {})
    mine = [(key, key) for key in keys if key.startswith(b"u2|")]
    assert store.scan(ROWS, b"u2|") == mine
    first = store.scan(ROWS, b"u2|", limit=7)
    assert first + store.scan(ROWS, b"u2|", after=first[-1][0]) == mine


def test_a_family_that_is_dropped_is_empty_and_may_be_written_again(tmp_path: Path):
    store = opened(tmp_path)
    store.write({ROWS: {b"a": b"1"}, CLAIMS: {b"x": b"", b"y": b""}}, {"rows": 1})
    store.drop(CLAIMS)
    assert (store.scan(CLAIMS), store.families()) == ([], [ROWS])
    store.write({CLAIMS: {b"z": b""}}, {"rows": 2})
    assert (store.scan(CLAIMS), store.get(ROWS, b"a")) == ([(b"z", b"")], b"1")


def test_a_store_that_is_cleared_is_as_new(tmp_path: Path):
    store = opened(tmp_path)
    number(store, 1)
    store.clear()
    assert (store.families(), store.positions()) == ([], {})
    store.close()
    assert opened(tmp_path).positions() == {}


def test_a_closed_store_says_so_and_is_not_deleted(tmp_path: Path):
    store = opened(tmp_path)
    number(store, 1)
    store.close()
    store.close()
    with pytest.raises(StoreCorrupted, match="found that it was closed"):
        number(store, 2)
    assert numbered(opened(tmp_path)) == 1


@pytest.mark.parametrize("writes", [1, 40, 400])
def test_a_process_that_is_killed_amid_writes_loses_none_that_has_returned(
    tmp_path: Path, writes: int
):
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        for _ in range(writes):
            child.stdout.readline()
        child.kill()
        returned = [writes, *map(int, child.stdout.read().split("\n")[:-1])][-1]
    assert returned <= numbered(opened(tmp_path)) <= returned + 1


def test_of_a_log_that_is_cut_the_beginning_is_there(tmp_path: Path):
    store = opened(tmp_path / "whole")
    for item in range(1, 31):
        number(store, item)
    (wal,) = data_of(tmp_path / "whole").glob("*.log")
    result = set()
    for size in range(0, wal.stat().st_size, 311):
        cut = tmp_path / f"cut-{size}"
        shutil.copytree(tmp_path / "whole", cut)
        with (data_of(cut) / wal.name).open("r+b") as file:
            file.truncate(size)
        result.add(numbered(opened(cut)))
        shutil.rmtree(cut)
    assert result == set(range(30))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose files have something in each: tables, a log, and what says which there are."""
    folder = tmp_path_factory.mktemp("filled")
    store = opened(folder)
    for item in range(1, 200):
        number(store, item)
    store.close()
    store = opened(folder)
    for item in range(200, 220):
        number(store, item)
    shutil.copytree(folder, folder / "copy")  # Of a process that was killed.
    return folder / "copy"


def _harmed(folder: Path) -> bool:
    """Whether a store has lost something; nobody gets anything else than what was written."""
    store = opened(folder)
    try:
        last = numbered(store)
    except StoreCorrupted:
        last = numbered(opened(folder))
        assert last == 0
    assert last <= 219
    number(opened(folder / "another"), 1)
    return last < 219


def test_bytes_that_have_changed_are_noticed(tmp_path: Path, filled: Path):
    draw = random.Random("flips")
    harmed = 0
    for number_ in range(60):
        folder = tmp_path / str(number_)
        shutil.copytree(filled, folder)
        files = sorted(path for path in data_of(folder).iterdir() if path.stat().st_size)
        file = draw.choice(files)
        data = bytearray(file.read_bytes())
        for _ in range(draw.choice([1, 1, 8])):
            data[draw.randrange(len(data))] ^= draw.randint(1, 255)
        file.write_bytes(data)
        harmed += _harmed(folder)
        shutil.rmtree(folder)
    assert harmed > 10


def test_files_that_are_missing_are_noticed(tmp_path: Path, filled: Path):
    harmed = set()
    for name in sorted(path.name for path in data_of(filled).iterdir()):
        shutil.copytree(filled, tmp_path / name)
        (data_of(tmp_path / name) / name).unlink()
        if _harmed(tmp_path / name):
            harmed.add(name.split(".")[-1].split("-")[0])
    assert {"sst", "log", "MANIFEST", "CURRENT"} <= harmed


def test_no_file_names_what_was_purged_also_where_it_was_the_first_or_last_key(tmp_path: Path):
    store = opened(tmp_path)
    for entry in range(20):
        # A file of its own.
        store.write({ROWS: {b"%02d-someone" % entry: b"of someone", b"other": b""}}, {})
        store.purge(CLAIMS)
    assert _naming(tmp_path, b"someone")
    store.write({ROWS: {b"%02d-someone" % item: None for item in range(20)}}, {})
    store.purge(ROWS, [b"%02d" % item for item in range(20)])
    assert not _naming(tmp_path, b"someone")
    assert store.get(ROWS, b"other") == b""


def _naming(folder: Path, name: bytes) -> list[str]:
    return [file.name for file in data_of(folder).iterdir() if name in _content(file)]


def _content(file: Path) -> bytes:
    with suppress(FileNotFoundError):  # RocksDB deletes files that it no longer needs meanwhile.
        return file.read_bytes()
    return b""


@pytest.mark.parametrize("reading", ["get", "multi_get", "scan"])
def test_a_store_that_is_torn_while_it_is_open_is_deleted(tmp_path: Path, reading: str):
    store = opened(tmp_path)
    values = {b"%05d" % item: random.Random(item).randbytes(1_000) for item in range(2_000)}
    store.write({ROWS: values}, {"t": 1})
    store.close()
    store = opened(tmp_path)
    (table,) = data_of(tmp_path).glob("*.sst")
    with table.open("r+b") as file:
        file.seek(table.stat().st_size // 2)
        file.write(bytes(100_000))
    read = {
        "get": lambda: [store.get(ROWS, key) for key in values],
        "multi_get": lambda: store.multi_get(ROWS, list(values)),
        "scan": lambda: store.scan(ROWS, limit=10_000),
    }
    with pytest.raises(StoreCorrupted, match="deleted it"):
        read[reading]()
    store = opened(tmp_path)
    assert numbered(store) == 0
    number(store, 1)
    assert numbered(store) == 1
