"""States as records, and back: whatever their sizes were, and wherever a worker ended amid them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.schemas.records import SnapshotTaken
from headwater.streams.engine import state_records
from headwater.streams.engine.instance_store import DELETED, HistoryMark, StoredState
from headwater.streams.engine.state_records import PART, StateParts, records_of

KEY = "order/o-1"


@pytest.fixture(autouse=True, scope="module")
def small_parts():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(state_records, "PART_BYTES", 10)
        yield


def _state(size: int, parts: int) -> StoredState:
    return StoredState("replay", 1, -1, 0, bytes(n % 251 for n in range(size)), parts)


def _written(sizes: list[int]) -> list[list[tuple[bytes, SnapshotTaken]]]:
    """The records of each checkpoint of an instance whose state had these sizes; 0 deletes it."""
    most, written = 1, []
    for number, size in enumerate(sizes):
        most = max(most, -(-size // 10))
        state = _state(size, most) if size else DELETED.__class__("", 0, -1, 0, b"", most)
        written.append(records_of(KEY, state, HistoryMark(number, 0, -1)))
    return written


def _read(records: list[tuple[bytes, SnapshotTaken]]) -> tuple[StoredState | None, StateParts]:
    parts, result = StateParts({}), None
    for name, snapshot in records:
        key, _, number = name.decode().partition(PART)
        if number:
            parts.add(key, int(number), snapshot)
        else:
            result = parts.join(key, snapshot)
    return result, parts


def _compacted(
    records: list[tuple[bytes, SnapshotTaken]], clean: int
) -> list[tuple[bytes, SnapshotTaken]]:
    """What compaction leaves, up to a place: of each key the last before it."""
    last = {key: position for position, (key, _) in enumerate(records[:clean])}
    kept = [
        record for position, record in enumerate(records[:clean]) if last[record[0]] == position
    ]
    return kept + records[clean:]


@given(st.lists(st.integers(0, 45), min_size=1, max_size=6), st.data())
def test_the_last_state_is_read_back_wherever_compaction_is(sizes: list[int], data: st.DataObject):
    records = [item for written in _written(sizes) for item in written]
    clean = data.draw(st.integers(0, len(records)))
    result, parts = _read(_compacted(records, clean))
    assert not parts.incomplete
    assert (result.state if result else b"") == _state(sizes[-1], 1).state
    left = {key for key, record in dict(records).items() if record.state}
    assert left == {name for name, _ in _written([sizes[-1]])[0] if sizes[-1]}, "no part stays"


@given(st.lists(st.integers(1, 45), min_size=1, max_size=4), st.data())
def test_what_was_written_in_part_is_the_state_before_or_known_to_be_torn(
    sizes: list[int], data: st.DataObject
):
    *before, last = _written(sizes)
    written = data.draw(st.integers(0, len(last)))
    records = [item for group in before for item in group] + last[:written]
    clean = data.draw(st.integers(0, len(records)))
    result, parts = _read(_compacted(records, clean))
    if not parts.incomplete:
        allowed = [_state(size, 1).state for size in sizes[-2:]]
        assert result is None or result.state in allowed
