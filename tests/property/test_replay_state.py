"""Whatever is asked in whatever order, decisions fit the state, and the fold is the live state."""

import copy
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.processors.code.appliers import apply
from headwater.processors.code.decide import decide_command, decide_request
from headwater.processors.code.host_messages import (
    Advance,
    BeginRollback,
    Cancel,
    Close,
    Fail,
    Log,
    Losers,
    Open,
    OpenCompleted,
    Raise,
    Return,
    RolledBack,
    Suspend,
)
from headwater.processors.code.state import UNRESOLVED, CodeRun
from headwater.processors.code.waits import next_wake_ms
from headwater.processors.runs.decisions import (
    Decision,
    Facts,
    HostFailed,
    Reached,
    Rejection,
    Request,
    RetryPolicy,
    RollbackRaised,
    StepRaised,
    StepReturned,
    StepUnderWay,
    Wake,
    delay_ms,
)
from headwater.processors.runs.durations import LONGEST_MS, milliseconds
from headwater.schemas.codec import decode, encode
from headwater.schemas.history import (
    Command,
    Failure,
    FinishChild,
    HistoryAppended,
    NoteRefusal,
    Parent,
    PauseRun,
    Post,
    RestartRun,
    ResumeRun,
    RetryRun,
    RunStarted,
    Sender,
    SendEvent,
    StartRun,
    TerminateRun,
)
from headwater.schemas.statuses import OPEN, EntryKind, EntryStatus
from tests.fakes.engines import fold
from tests.fakes.records import appended

KEYS = st.sampled_from(["a", "b", "race", "race/x", "race/y/z", "loop", "loop/~0/a", "loop/~3/a"])
FAILURES = st.builds(Failure, st.just("Error"), st.just("no"))
STEPS = st.builds(
    Reached, KEYS, st.just("n"), st.integers(0, 9), st.integers(0, 9), st.just(3), st.just(600)
)
POLICIES = st.builds(
    RetryPolicy,
    st.integers(-1, 3),
    st.integers(0, 20),
    st.sampled_from(["constant", "linear", "exponential"]),
)
ATTEMPTS = st.integers(1, 4)
POSTS = st.builds(Post, st.just(0), st.just("w"), st.just("i"), st.just(SendEvent("", "e", "1")))
ASKED: st.SearchStrategy[Request] = st.one_of(
    st.builds(
        StepReturned, STEPS, ATTEMPTS, POLICIES, st.just("1"), st.booleans(), st.tuples(POSTS)
    ),
    st.builds(StepUnderWay, STEPS, ATTEMPTS),
    st.builds(StepRaised, STEPS, ATTEMPTS, FAILURES, POLICIES, st.booleans()),
    st.builds(
        Open,
        KEYS,
        st.just("n"),
        st.sampled_from([k for k in EntryKind if k is not EntryKind.DO]),
        st.integers(0, 9),
        st.none() | st.integers(0, 50),
        st.none() | st.integers(0, 500),
        st.sampled_from([("e",), ("e", "f")]),
        st.none() | st.integers(1, 3),
        st.just("w"),
        st.just("child"),
        st.just("1"),
    ),
    st.builds(
        OpenCompleted,
        KEYS,
        st.just("n"),
        st.sampled_from([EntryKind.NOW, EntryKind.CHECKPOINT]),
        st.just(1),
    ),
    st.builds(Close, KEYS, st.just("1")),
    st.builds(
        Close,
        st.just("race"),
        st.just("1"),
        st.builds(Losers, st.just(("race/x", "race/y")), st.tuples(STEPS)),
    ),
    st.builds(Fail, KEYS, FAILURES),
    st.builds(Fail, st.just("race"), FAILURES, st.just(Losers(("race/x", "race/y")))),
    st.builds(Cancel, KEYS, st.just(()) | st.tuples(STEPS)),
    st.builds(Advance, KEYS, st.integers(1, 6), st.just("1"), st.integers(0, 5)),
    st.just(Log("info", "w", "hi", None, None, None, is_replay=False)),
    st.builds(Suspend, st.integers(0, 40)),
    st.builds(BeginRollback, FAILURES),
    st.builds(RolledBack, KEYS),
    st.builds(RollbackRaised, KEYS, st.integers(1, 7), FAILURES),
    st.builds(Return, st.just("1")),
    st.builds(Raise, FAILURES),
    st.just(HostFailed("gone")),
    st.builds(Wake, st.integers(0, 100_000)),
)
PARENTS = st.none() | st.builds(Parent, st.just("p"), st.just("p"), st.integers(0, 2), st.just("k"))
SENDERS = st.none() | st.builds(Sender, st.just("s"), st.just("s"), st.just(0), st.integers(0, 5))
COMMANDS: st.SearchStrategy[Command] = st.one_of(
    st.builds(StartRun, st.just("1"), PARENTS),
    st.builds(
        SendEvent,
        st.just("s/s#1"),
        st.sampled_from(["e", "f", ""]),
        st.just("1"),
        SENDERS,
        st.none() | st.just("1"),
    ),
    st.builds(RetryRun, st.none() | KEYS),
    st.just(PauseRun()),
    st.just(ResumeRun()),
    st.builds(TerminateRun, st.just("why"), PARENTS),
    st.just(RestartRun()),
    st.builds(FinishChild, st.integers(0, 1), KEYS, st.just("1"), st.none() | FAILURES),
    st.builds(NoteRefusal, st.integers(0, 1), st.just("no")),
)
#: What comes, and how much time passes before it.
STORIES = st.lists(st.tuples(ASKED | ASKED | COMMANDS, st.integers(0, 60)), max_size=40)


def _decide(run: CodeRun | None, what: Request | Command, now_ms: int) -> Decision:
    if isinstance(what, Request):
        return Rejection("NO", "no") if run is None else decide_request(run, what, now_ms)
    return decide_command(run, what, Facts("w", "i", now_ms, now_ms, "seed"))


def _live(run: CodeRun | None, record: HistoryAppended) -> CodeRun | None:
    """As an owner applies its own decisions."""
    if run is None or isinstance(record.events[0], RunStarted):
        return fold(run, record)
    for event in record.events:
        apply(run, event, record.at_ms)
    return run


def _records(
    story: Iterable[tuple[Request | Command, int]],
) -> Iterable[tuple[CodeRun, HistoryAppended]]:
    run, now_ms = None, 0
    for what, later_ms in [(StartRun("1"), 0), *story]:
        now_ms += later_ms
        before = msgspec.msgpack.encode(run)
        decision = _decide(run, what, now_ms)
        assert msgspec.msgpack.encode(run) == before, "deciding changes nothing"
        if isinstance(decision, Rejection):
            continue
        begins = isinstance(decision[0], RunStarted)
        number = -1 if run is None else run.run_number
        record = appended(
            *decision,
            run_number=number + begins,
            sequence=0 if run is None or begins else run.sequence,
            at_ms=now_ms,
        )
        run = _live(run, record)
        assert run is not None
        yield run, record


@given(story=STORIES)
@settings(max_examples=150, deadline=None)
def test_every_decision_can_be_applied_and_the_fold_of_its_bytes_is_the_live_state(
    story: list[tuple[Request | Command, int]],
):
    folded: CodeRun | None = None
    for run, record in _records(story):
        folded = fold(folded, decode(encode(record), HistoryAppended))
        assert folded == run
        assert folded is not None
        assert list(folded.open) == list(run.open)


@given(story=STORIES)
@settings(max_examples=150, deadline=None)
def test_what_is_open_has_no_result_and_what_is_not_has_one(
    story: list[tuple[Request | Command, int]],
):
    for run, _ in _records(story):
        assert run.open.keys() == {k for k, e in run.entries.items() if e.status in OPEN}
        assert all(e.sequence < run.sequence for e in run.entries.values())
        assert run.resolved < run.sequence
        for entry in run.entries.values():
            assert (entry.completed_at_ms is None) is (entry.status in OPEN)
            assert entry.last_attempt_at_ms is None or entry.kind is EntryKind.DO
        assert [post.number for post in run.unsent] == list(range(run.posted))
        assert next_wake_ms(run, 10**15) is None


@given(story=STORIES, from_key=st.none() | KEYS)
@settings(max_examples=150, deadline=None)
def test_a_run_that_errors_can_be_retried_and_the_code_comes_to_no_end_that_it_cannot_leave(
    story: list[tuple[Request | Command, int]], from_key: str | None
):
    again = [*story, (ResumeRun(), 1), (Raise(Failure("Error", "no")), 1), (RetryRun(from_key), 1)]
    before: CodeRun | None = None
    for run, record in _records(again):
        started = record.events[0]
        if isinstance(started, RunStarted) and started.kept is not None and before is not None:
            _check_retry(before, run, started)
        before = copy.deepcopy(run)


def _check_retry(before: CodeRun, run: CodeRun, started: RunStarted) -> None:
    reopened = {item.key for item in started.reopened}
    assert started.kept is not None
    assert set(started.kept).isdisjoint(reopened)
    assert set(run.entries) == {*started.kept, *reopened}
    results = {k: e for k, e in run.entries.items() if e.status not in OPEN}
    assert sorted(results, key=lambda key: results[key].sequence) == [
        key
        for key in sorted(before.entries, key=lambda key: before.entries[key].sequence)
        if key in results
    ]
    assert all(e.sequence < UNRESOLVED for e in results.values())
    assert not any(e.rolled_back for e in run.entries.values())
    assert run.mailbox == before.mailbox
    for key, entry in run.entries.items():
        if entry.kind is EntryKind.LOOP and key in reopened and before.entries[key].commits:
            assert entry.commits
        if entry.status is EntryStatus.CANCELLED:
            assert any(key.startswith(f"{result}/") for result in results) or _is_past(key, before)


def _is_past(key: str, run: CodeRun) -> bool:
    """Whether the loop of these stories has gone on to another iteration."""
    iterations = {entry: int(entry[6]) for entry in run.entries if entry.startswith("loop/~")}
    if key not in iterations:
        return False
    return iterations[key] < max(*iterations.values(), *run.entries["loop"].commits, 0)


@given(policy=POLICIES, retry=st.integers(1, 10**6))
def test_delays_never_shrink_and_stay_within_a_year(policy: RetryPolicy, retry: int):
    assert 0 <= delay_ms(policy, retry) <= delay_ms(policy, retry + 1) <= 365 * 86_400_000


@given(number=st.integers(0, 10**6), unit=st.sampled_from(["ms", "s", "minutes", "hr", "days"]))
def test_a_duration_grows_with_its_number_up_to_a_hundred_years(number: int, unit: str):
    expected = number * milliseconds(f"1 {unit}")
    if expected <= LONGEST_MS:
        assert milliseconds(f"{number} {unit}") == expected
    else:
        with pytest.raises(ValueError, match="at most 100 years"):
            milliseconds(f"{number} {unit}")
