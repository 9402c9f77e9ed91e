"""What a retry does again and what it keeps: given the entries of a run that has errored."""

import json

import pytest

from headwater.processors.code.retrying import retry
from headwater.processors.code.state import UNRESOLVED, CodeRun, Entry
from headwater.processors.runs.decisions import Rejection
from headwater.processors.runs.limits import LOG_MESSAGE_MAX, bounded
from headwater.schemas.history import Failure, LogWritten, Reopened, RetryRun, RunStarted
from headwater.schemas.statuses import EntryKind, EntryStatus, RunStatus
from tests.unit.processors.replay.states import FAILURE, a_run, an_entry, copy_of

_DO, _JOIN, _RACE, _LOOP = EntryKind.DO, EntryKind.JOIN, EntryKind.RACE, EntryKind.LOOP
_OTHER = Failure("Other", "something else")
_JOINED = Failure("JoinError", "branches failed")
_LONG = Failure("JoinError", "a: " + "x" * 100_000)
_CUT = Failure("JoinError", bounded(_LONG.message))


def _entry(kind: EntryKind, status: EntryStatus, **more: object) -> Entry:
    return an_entry(kind, status, **more)


def _done(sequence: int, kind: EntryKind = _DO, **more: object) -> Entry:
    return _entry(kind, EntryStatus.COMPLETED, sequence=sequence, result="1", **more)


def _bad(sequence: int, kind: EntryKind = _DO, failure: Failure = FAILURE, **more: object) -> Entry:
    return _entry(kind, EntryStatus.ERRORED, sequence=sequence, failure=failure, **more)


def _lost(kind: EntryKind = _DO) -> Entry:
    return _entry(kind, EntryStatus.CANCELLED, sequence=4)


def _open(kind: EntryKind) -> Entry:
    return _entry(kind, EntryStatus.PENDING)


def _undone(sequence: int) -> Entry:
    return _done(sequence, rollback=True, rolled_back=True)


def _run(entries: dict[str, Entry], failure: Failure = FAILURE) -> CodeRun:
    for ordinal, entry in enumerate(entries.values()):
        entry.ordinal = ordinal
    return a_run(RunStatus.ERRORED, entries=entries, failure=failure, sequence=50)


#: Entries in the order in which they were reached, from where, and what is reopened and kept.
CASES: dict[str, tuple[CodeRun, str | None, list[Reopened], list[str]]] = {
    "the step that failed": (_run({"a": _done(1), "b": _bad(2)}), None, [], ["a"]),
    "no step: the code failed": (_run({"a": _done(1), "b": _done(2)}), None, [], ["a", "b"]),
    "what failed last, where the code has made another error of it": (
        _run({"a": _bad(1), "b": _bad(2)}, _OTHER), None, [], ["a"],
    ),
    "the step whose error the run has, and what failed after it": (
        _run({"met": _bad(1, failure=_OTHER), "a": _bad(2), "b": _bad(3, failure=_OTHER)}),
        None, [], ["met"],
    ),
    "the last of two that failed the same way": (
        _run({"met": _bad(1), "a": _bad(2)}), None, [], ["met"],
    ),
    "failed branches of a join": (
        _run(
            {"j": _bad(9, _JOIN, _JOINED), "j/x/a": _done(1), "j/x/b": _bad(2), "j/y/c": _bad(3)},
            _JOINED,
        ),
        None, [Reopened("j")], ["j/x/a"],
    ),
    "a branch whose own code failed": (
        _run({"j": _bad(9, _JOIN, _JOINED), "j/x/a": _done(1)}, _JOINED),
        None, [Reopened("j")], ["j/x/a"],
    ),
    "a join within a join": (
        _run(
            {"j": _bad(9, _JOIN, _JOINED), "j/x/k": _bad(8, _JOIN), "j/x/k/y/a": _bad(3)},
            _JOINED,
        ),
        None, [Reopened("j"), Reopened("j/x/k")], [],
    ),
    "a step in a join that is open": (
        _run({"j": _open(_JOIN), "j/x/a": _bad(3), "j/y/b": _done(2)}),
        None, [Reopened("j")], ["j/y/b"],
    ),
    "errors that a race has met": (
        _run({"r": _done(5, _RACE), "r/x/a": _bad(3), "b": _done(6)}, _OTHER),
        None, [], ["r", "r/x/a", "b"],
    ),
    "errors that an iteration has met": (
        _run({
            "l": _bad(9, _LOOP, commits={0: "0"}),
            "l/~0/a": _bad(1), "l/~0/b": _done(2), "l/~1/a": _bad(3), "l/~1/b": _bad(4),
        }),
        None, [Reopened("l")], ["l/~0/a", "l/~0/b"],
    ),
    "a join whose message was cut where it ended the run": (
        _run({
            "met": _bad(1, failure=_OTHER), "j": _bad(5, _JOIN, _LONG), "j/x/a": _bad(3),
            "b": _bad(8, failure=_OTHER),
        }, _CUT),
        None, [Reopened("j")], ["met"],
    ),
    "a step of an iteration behind a commit": (
        _run({
            "l": _bad(9, _LOOP, commits={0: "0", 2: "2"}, iteration=2), "l/~1/a": _done(3),
            "l/~2/a": _bad(4),
        }),
        None, [Reopened("l")], ["l/~1/a"],
    ),
    "what was cancelled, but not in an iteration that is past": (
        _run({
            "wait": _lost(EntryKind.WAIT), "l": _open(_LOOP), "l/~0/a": _done(3),
            "l/~0/wait": _lost(EntryKind.WAIT), "l/~1/wait": _lost(EntryKind.WAIT),
            "l/~1/a": _bad(9),
        }),
        None, [Reopened("l")], ["l/~0/a", "l/~0/wait"],
    ),
    "what was rolled back, and where": (
        _run({
            "a": _undone(1), "b": _done(2),
            "l": _done(9, _LOOP, commits={0: "0", 1: "1", 2: "2"}, iteration=2),
            "l/~0/a": _done(3), "l/~1/a": _undone(4), "l/~2/a": _done(5),
            "r": _done(8, _RACE), "r/x/a": _undone(6), "r/y/nap": _lost(EntryKind.SLEEP),
            "z": _bad(10),
        }),
        None, [Reopened("l", 2), Reopened("r")], ["b", "l/~0/a", "l/~2/a"],
    ),
    "what was cut off: a sleep goes on": (
        _run({
            "a": _bad(3), "do": _open(_DO), "wait": _open(EntryKind.WAIT),
            "child": _open(EntryKind.CHILD), "nap": _open(EntryKind.SLEEP),
            "j": _open(_JOIN), "j/x/b": _open(_DO), "j/x/c": _done(2),
        }),
        None, [], ["nap", "j", "j/x/c"],
    ),
    "from a step on": (
        _run({"a": _done(1), "b": _done(2), "c": _done(3), "d": _bad(4)}), "b", [], ["a"],
    ),
    "from a step on, and what ended the run before it": (
        _run({"a": _bad(4), "met": _bad(1, failure=_OTHER), "b": _done(2)}), "b", [], ["met"],
    ),
    "from a container on": (
        _run({"a": _done(1), "j": _done(3, _JOIN), "j/x/b": _done(2), "c": _bad(4)}),
        "j", [], ["a"],
    ),
    "from a step in a join that was there before": (
        _run({
            "a": _done(1), "j": _done(4, _JOIN), "j/x/b": _done(2), "j/y/c": _done(3),
            "k": _done(6, _JOIN), "k/x/d": _done(5), "e": _bad(7),
        }),
        "j/y/c", [Reopened("j")], ["a", "j/x/b"],
    ),
    "from a step that others were beside": (
        _run({
            "j": _done(6, _JOIN), "k": _done(7, _JOIN), "j/x/a": _done(1), "k/x/b": _done(2),
            "j/x/c": _done(3), "d": _bad(8),
        }),
        "k/x/b", [Reopened("j"), Reopened("k")], ["j/x/a"],
    ),
    "from a step of a loop": (
        _run({
            "l": _done(9, _LOOP, commits={0: "0", 1: "1", 2: "2"}, iteration=2),
            "l/~0/a": _done(1), "l/~1/a": _done(2), "l/~1/b": _done(3), "l/~2/a": _done(4),
            "z": _bad(10),
        }),
        "l/~1/b", [Reopened("l", 2)], ["l/~0/a", "l/~1/a"],
    ),
    "from a step of a winner": (
        _run({
            "r": _done(9, _RACE), "r/x/a": _done(1), "r/y/nap": _lost(EntryKind.SLEEP),
            "r/y/j": _lost(_JOIN), "r/y/j/x/c": _done(2), "r/z/i": _done(3, _RACE),
            "r/z/i/x/d": _lost(), "r/x/b": _done(8), "e": _bad(10),
        }),
        "r/x/b", [Reopened("r"), Reopened("r/y/j")],
        ["r/x/a", "r/y/j/x/c", "r/z/i", "r/z/i/x/d"],
    ),
    "from a step beside a loop that has trimmed iterations": (
        _run({
            "l": _done(9, _LOOP, commits={0: "0", 3: "3"}, trimmed=2), "b": _done(1),
            "l/~0/a": _done(2), "l/~1/a": _done(3), "l/~2/a": _done(4), "l/~3/a": _done(5),
            "z": _bad(10),
        }),
        "b", [Reopened("l", 3)], ["l/~0/a", "l/~1/a"],
    ),
    "what an earlier retry has kept": (
        _run({"a": _done(-9), "b": _done(-4), "c": _bad(3), "nap": _open(EntryKind.SLEEP)}),
        None, [], ["a", "b", "nap"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_retry_keeps_and_reopens_what_the_table_says(name: str):
    run, from_key, reopened, kept = CASES[name]
    before = copy_of(run)
    decision = retry(run, RetryRun(from_key))
    assert run == before, "deciding changes nothing"
    assert isinstance(decision, list)
    started, line = decision
    expected = RunStarted("1", "seed", None, kept=tuple(kept), reopened=tuple(reopened))
    assert started == expected
    assert isinstance(line, LogWritten)
    reported = json.loads(line.data or "")
    names = [item.key for item in reopened]
    assert reported == {
        "from": from_key,
        "again": [key for key in run.entries if key not in (*kept, *names)],
        "reopened": names,
    }


def test_of_very_much_that_is_done_again_a_line_says_the_beginning():
    run = _run({f"step {number}": _bad(number) for number in range(1_000)})
    decision = retry(run, RetryRun("step 0"))
    assert isinstance(decision, list)
    assert isinstance(decision[1], LogWritten)
    assert len(decision[1].message) == LOG_MESSAGE_MAX


@pytest.mark.parametrize("key", ["", "b", "l/~0/a", "l/~1/a"])
def test_from_what_is_not_there_or_where_no_state_leads_nothing_is_retried(key: str):
    loop = _bad(9, _LOOP, commits={2: "2"}, iteration=2)
    trimmed = _bad(9, _LOOP, commits={0: "0"}, trimmed=2)
    for item in (loop, trimmed):
        run = _run({"l": item, "l/~1/a": _done(3), "l/~2/a": _bad(4)})
        decision = retry(run, RetryRun(key))
        assert isinstance(decision, Rejection)
        assert decision.code == "STEP_NOT_FOUND"


def test_kept_results_stay_below_all_that_has_none():
    assert UNRESOLVED == -1, "it is written in the states of instances"
