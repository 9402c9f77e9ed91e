"""What no record can hold: given a state and a decision, what is decided instead."""

import re
from functools import partial

import pytest

from headwater.processors.code.appliers import apply
from headwater.processors.code.decide import decide_command
from headwater.processors.code.state import CodeRun
from headwater.processors.runs.decisions import Decision, Facts, Rejection
from headwater.processors.runs.limits import DECISION_BYTES_MAX, FAILURE_MESSAGE_MAX
from headwater.processors.runs.sizes import bytes_max
from headwater.processors.runs.sizes import fitting as _fitting
from headwater.processors.runs.state import Received
from headwater.schemas.failures import RECORD_TOO_LARGE
from headwater.schemas.history import (
    EntriesCancelled,
    EntryCompleted,
    FinishChild,
    PostsQueued,
    ResumeRun,
    RunErrored,
    RunEvent,
    RunResumed,
    RunStarted,
    TerminateRun,
)
from headwater.schemas.statuses import EntryKind, RunStatus
from tests.fakes.engines import REPLAY
from tests.unit.processors.replay.states import CHILD, NOW_MS, PARENT, a_run, an_entry

fitting = partial(_fitting, REPLAY)

_LARGE = "x" * 1_000_000
_MANY = [EntryCompleted(f"w{n}", _LARGE) for n in range(11)]


def _resumed(waits: int) -> tuple[CodeRun, Decision]:
    """A paused run with a large event for each of its waits, and what resuming it leads to."""
    entries = {
        f"w{n}": an_entry(EntryKind.WAIT, event_types=(f"t{n}",), wake_at_ms=NOW_MS)
        for n in range(waits)
    }
    mailbox = [Received(f"evt-{n}", f"t{n}", f'"{_LARGE}"', NOW_MS - 1) for n in range(waits)]
    run = a_run(RunStatus.PAUSED, entries=entries, mailbox=mailbox)
    decision = decide_command(run, ResumeRun(), Facts("order", "o-1", NOW_MS, NOW_MS))
    return run, decision


def _end(events: Decision) -> RunErrored:
    assert isinstance(events, list)
    end = events[-1]
    assert isinstance(end, RunErrored)
    return end


def test_what_fits_stays_as_it_is():
    run, decision = _resumed(9)
    assert fitting(run, decision) is decision


def test_a_run_ends_that_would_lead_to_more_than_a_record_holds():
    run, decision = _resumed(11)
    events = fitting(run, decision)
    end = _end(events)
    (cancelled,) = events[:-1]
    assert isinstance(cancelled, EntriesCancelled)
    assert set(cancelled.keys) == run.open.keys()
    assert end.failure.name == RECORD_TOO_LARGE
    assert end.failure.message.startswith(
        f"expected what is decided at once to have at most {DECISION_BYTES_MAX} bytes, found 110"
    )
    assert re.search(
        r"in 12 events, the largest EntryCompleted of w\d+ with 1000", end.failure.message
    )
    assert "store large data elsewhere" in end.failure.message
    # What it was decided of is there all the same, for a retry.
    for event in events:
        apply(run, event, NOW_MS)
    assert (run.status, len(run.mailbox)) == (RunStatus.ERRORED, 11)


def test_its_children_end_with_it_and_its_parent_is_told():
    entries = {"bill": an_entry(EntryKind.CHILD, child=CHILD)}
    run = a_run(entries=entries, parent=PARENT)
    events = fitting(run, _MANY)
    end = _end(events)
    cancelled, queued = events[:-1]
    assert cancelled == EntriesCancelled(("bill",), ended=True)
    assert isinstance(queued, PostsQueued)
    ended, reported = (post.command for post in queued.posts)
    assert isinstance(ended, TerminateRun)
    assert isinstance(reported, FinishChild)
    assert reported.failure == end.failure


def test_children_that_are_too_many_to_be_ended_go_on():
    entries = {
        f"{n}/{'k' * 2_000}": an_entry(EntryKind.CHILD, child=CHILD, ordinal=n)
        for n in range(DECISION_BYTES_MAX // 2_000)
    }
    run = a_run(entries=entries, parent=PARENT)
    events = fitting(run, _MANY)
    _end(events)
    assert bytes_max(events) < 10_000
    (queued,) = events[:-1]
    assert isinstance(queued, PostsQueued)
    assert [type(post.command) for post in queued.posts] == [FinishChild]


@pytest.mark.parametrize("status", [RunStatus.ERRORED, RunStatus.COMPLETE, RunStatus.ACTIVE])
def test_a_run_that_would_begin_too_large_does_not(status: RunStatus):
    kept = tuple(f"{n}/{'k' * 2_000}" for n in range(6_000))
    refused = fitting(a_run(status), [RunStarted("1", "seed", kept=kept)])
    assert isinstance(refused, Rejection)
    assert refused.code == RECORD_TOO_LARGE
    assert "the largest RunStarted with 12" in refused.message


def test_text_is_counted_as_utf_8_where_it_matters():
    text = "é" * (DECISION_BYTES_MAX // 2 - 1_000)
    event: list[RunEvent] = [EntryCompleted("w", text)]
    assert bytes_max(event) > DECISION_BYTES_MAX
    assert fitting(a_run(), event) is event
    assert fitting(a_run(), [RunResumed(), EntryCompleted("w", text + "é" * 2_000)]) is not event


def test_a_refusal_is_no_longer_than_an_error():
    refused = fitting(None, Rejection("STEP_NOT_FOUND", "x" * 12_000_000))
    assert isinstance(refused, Rejection)
    assert (refused.code, len(refused.message)) == ("STEP_NOT_FOUND", FAILURE_MESSAGE_MAX)
