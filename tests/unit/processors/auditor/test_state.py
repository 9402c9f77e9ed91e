"""The state of the auditor fits into a record, and forgets the least important things first."""

import pytest

from headwater.processors.auditor.deliveries import Unsettled
from headwater.processors.auditor.histories import RunProgress
from headwater.processors.auditor.state import (
    AuditorState,
    decode_state,
    encode_state,
    encode_within,
)


def large_state() -> AuditorState:
    state = AuditorState()
    history = state.history(0)
    for number in range(100):
        results = {(number << 32) + step for step in range(20)}
        history.instances[f"order/{number}"] = RunProgress(0, 20, results)
        state.deliveries.parked[f"{number:032x}"] = number
    history.remembered = 2_000
    state.deliveries.waiting[0] = {3: Unsettled("e", 0)}
    return state


def test_a_state_that_fits_is_stored_as_it_is():
    state = large_state()
    data = encode_state(state)
    assert encode_within(state, len(data)) == (data, [])


@pytest.mark.parametrize(
    ("max_bytes", "expected"),
    [
        (10_000, ["results of steps"]),
        (5_000, ["results of steps", "progress of instances"]),
        (100, ["results of steps", "progress of instances", "parked deliveries"]),
    ],
)
def test_a_state_that_is_too_large_forgets(max_bytes: int, expected: list[str]):
    state = large_state()
    data, forgotten = encode_within(state, max_bytes)
    assert forgotten == expected
    stored = decode_state(data)
    assert stored == state
    assert stored.deliveries.waiting == {0: {3: Unsettled("e", 0)}}
    history = stored.history(0)
    assert history.remembered == 0
    assert all(progress.results is None for progress in history.instances.values())
    assert history.is_whole == bool(history.instances)
