"""The most bytes that events take in a record is never less than what they do take."""

from typing import get_args

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headwater.processors.runs.limits import DECISION_BYTES_MAX
from headwater.processors.runs.sizes import _exactly, bytes_max
from headwater.schemas.codec import encode
from headwater.schemas.history import HistoryAppended, LogEvent, Post, PostsQueued, StartRun
from headwater.schemas.topics import MAX_VALUE_BYTES
from tests.property.structs import structs

_ENVELOPE = HistoryAppended(
    workflow="w" * 64,
    instance_id="i" * 100,
    run_number=2**63 - 1,
    sequence=2**63 - 1,
    epoch=2**63 - 1,
    cause=2**63 - 1,
    at_ms=2**63 - 1,
    events=(),
)


def _bytes(events: tuple[LogEvent, ...]) -> int:
    return len(encode(msgspec.structs.replace(_ENVELOPE, events=events)))


@pytest.mark.parametrize("kind", get_args(LogEvent), ids=lambda kind: kind.__name__)
def test_no_event_takes_more_than_is_said(kind: type[msgspec.Struct]):
    @given(events=st.lists(structs(kind), max_size=3).map(tuple))
    @settings(max_examples=30, deadline=None)
    def check(events: tuple[LogEvent, ...]) -> None:
        taken = _bytes(events) - _bytes(())
        assert taken <= bytes_max(events, _exactly) + 10 <= bytes_max(events) + 10

    check()


@given(chars=st.integers(0, 100_000))
@example(0)
@settings(max_examples=20, deadline=None)
def test_what_may_be_large_is_counted(chars: int):
    post = Post(0, "w", "i", StartRun("x" * chars), key="é" * chars)
    assert bytes_max((PostsQueued((post,)),)) >= 3 * chars
    assert bytes_max((PostsQueued((post,)),), _exactly) < 3 * chars + 1_000


def test_what_is_decided_at_most_fits_into_a_record():
    assert DECISION_BYTES_MAX + _bytes(()) < MAX_VALUE_BYTES
