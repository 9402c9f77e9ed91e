"""What code, its host and the clock ask for: given a state, the events or a refusal."""

import msgspec
import pytest

from headwater.processors.code.decide import HOSTS_LOST_MAX, decide_request
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
from headwater.processors.code.lifecycle import ROLLBACK_RETRIES
from headwater.processors.code.state import Cancelling, CodeRun
from headwater.processors.runs.decisions import (
    STALE,
    HostFailed,
    Rejection,
    Request,
    RollbackRaised,
    StepRaised,
    StepReturned,
    StepUnderWay,
    Wake,
)
from headwater.processors.runs.limits import ENTRIES_MAX
from headwater.schemas.history import (
    CancelRun,
    EntriesCancelled,
    EntryCompleted,
    EntryErrored,
    EntryOpened,
    EntryRolledBack,
    Failure,
    FinishChild,
    HostLost,
    LogWritten,
    LoopAdvanced,
    Parent,
    Post,
    PostsQueued,
    RollbackFailed,
    RollbackStarted,
    RunCompleted,
    RunErrored,
    RunEvent,
    RunSuspended,
    RunTerminated,
    Sender,
    SendEvent,
    StartRun,
    StepCompleted,
    StepFailed,
    StepsRetried,
    StepStarted,
    TerminateRun,
)
from headwater.schemas.statuses import EntryKind, EntryStatus, RunStatus
from tests.unit.processors.replay.states import (
    CHILD,
    FAILURE,
    NOW_MS,
    PARENT,
    POLICY,
    a_run,
    an_entry,
    copy_of,
    mail,
    reached,
)

_KIND, _AT = EntryKind, EntryStatus
_STEP = ("quote", "quote", 3, NOW_MS - 5)


def _returned(attempt: int = 1, posts: tuple[Post, ...] = ()) -> StepReturned:
    return StepReturned(reached(), attempt, POLICY, "5", rollback=True, posts=posts)


def _raised(attempt: int, *, retryable: bool = True) -> StepRaised:
    return StepRaised(reached(), attempt, FAILURE, POLICY, retryable)


def _completed(attempt: int) -> StepCompleted:
    return StepCompleted(*_STEP, attempt, 3, 600_000, "5", True)


def _failed(attempt: int, retry_at_ms: int | None) -> StepFailed:
    return StepFailed(*_STEP, attempt, 3, 600_000, FAILURE, retry_at_ms)


def _with(key: str, kind: EntryKind, status: EntryStatus = _AT.WAITING, **more: object) -> CodeRun:
    return a_run(entries={key: an_entry(kind, status, **more)})


def _tried(attempts: int, status: EntryStatus = _AT.WAITING) -> CodeRun:
    return _with("quote", _KIND.DO, status, attempts=attempts)


def _rolling(**more: object) -> CodeRun:
    entry = an_entry(_KIND.DO, _AT.COMPLETED, rollback=True, **more)
    return a_run(entries={"pay": entry}, rollback=FAILURE)


_TRACE = a_run().context.text
_EVENT = Post(0, "other", "x", SendEvent("", "hello", "1"))
_SENT = SendEvent("order/o-1#4", "hello", "1", Sender("order", "o-1", 0, 4))
_ME = Parent("order", "o-1", 0, "bill")
_WAIT = {"event_types": ("line",), "wake_at_ms": NOW_MS}
_SHOWN = f'{{"type":"line","payload":1,"timestamp":{NOW_MS}}}'


_UNDER_WAY = StepUnderWay(reached(), 1)
_LATE = msgspec.structs.replace(_UNDER_WAY, attempt=2)

STEPS = {
    "a first attempt that takes a while": (
        a_run(), _UNDER_WAY, [StepStarted(*_STEP, 1, 3, 600_000)],
    ),
    "a first attempt while the run is paused": (
        a_run(RunStatus.PAUSED), _UNDER_WAY, [StepStarted(*_STEP, 1, 3, 600_000)],
    ),
    "a first attempt that is known": (_tried(0, _AT.PENDING), _UNDER_WAY, STALE),
    "a first attempt that has failed": (_tried(1), _UNDER_WAY, STALE),
    "a first attempt of what lost a race": (_tried(0, _AT.CANCELLED), _UNDER_WAY, STALE),
    "a first attempt in a run that is rolled back": (_rolling(), _UNDER_WAY, STALE),
    "a later attempt, which began by an event": (_tried(1, _AT.PENDING), _LATE, STALE),
    "the result of an attempt that took a while": (
        _tried(0, _AT.PENDING), _returned(), [_completed(1)],
    ),
    "a step's first result": (a_run(), _returned(), [_completed(1)]),
    "a result after two failures": (_tried(2), _returned(3), [_completed(3)]),
    "a result with posts, which get numbers and the sender": (
        a_run(posted=4),
        _returned(posts=(_EVENT, Post(0, topic="t", key="k", value="2"))),
        [
            PostsQueued(
                (
                    Post(4, "other", "x", _SENT, trace=_TRACE),
                    Post(5, topic="t", key="k", value="2", trace=_TRACE),
                )
            ),
            _completed(1),
        ],
    ),
    "a result of an attempt that never began": (a_run(), _returned(2), STALE),
    "a result of an attempt that has failed": (_tried(2), _returned(2), STALE),
    "a result of a step that is done": (_tried(1, _AT.COMPLETED), _returned(2), STALE),
    "a result under the key of a sleep": (_with("quote", _KIND.SLEEP), _returned(), STALE),
    "a failure with retries left": (a_run(), _raised(1), [_failed(1, NOW_MS + 1_000)]),
    "a second failure, linear": (_tried(1), _raised(2), [_failed(2, NOW_MS + 2_000)]),
    "the last failure": (_tried(2), _raised(3), [_failed(3, None)]),
    "a failure that is not tried again": (a_run(), _raised(1, retryable=False), [_failed(1, None)]),
    "a failure of an attempt that is over": (_tried(1), _raised(1), STALE),
}  # fmt: skip

OPENED = {
    "a join": (
        a_run(),
        Open("both", "both", _KIND.JOIN, 2),
        [EntryOpened("both", "both", _KIND.JOIN, 2)],
    ),
    "a loop with its first state": (
        a_run(),
        Open("pages", "pages", _KIND.LOOP, 2, value="0"),
        [EntryOpened("pages", "pages", _KIND.LOOP, 2, state="0")],
    ),
    "a sleep": (
        a_run(),
        Open("nap", "nap", _KIND.SLEEP, 2, wait_ms=60_000),
        [EntryOpened("nap", "nap", _KIND.SLEEP, 2, NOW_MS + 60_000)],
    ),
    "a sleep until a moment that has passed": (
        a_run(),
        Open("nap", "nap", _KIND.SLEEP, 2, wake_at_ms=NOW_MS),
        [EntryOpened("nap", "nap", _KIND.SLEEP, 2, NOW_MS), EntryCompleted("nap", "null")],
    ),
    "a wait without mail": (
        a_run(),
        Open("w", "w", _KIND.WAIT, 2, wait_ms=5, event_types=("line",)),
        [EntryOpened("w", "w", _KIND.WAIT, 2, NOW_MS + 5, ("line",))],
    ),
    "a wait whose event is there": (
        a_run(mailbox=[mail(0, "other"), mail(1), mail(2)]),
        Open("w", "w", _KIND.WAIT, 2, wait_ms=5, event_types=("line",)),
        [
            EntryOpened("w", "w", _KIND.WAIT, 2, NOW_MS + 5, ("line",)),
            EntryCompleted("w", _SHOWN, ("evt-1",)),
        ],
    ),
    "a wait whose event is there, while paused": (
        a_run(RunStatus.PAUSED, mailbox=[mail(1)]),
        Open("w", "w", _KIND.WAIT, 2, wait_ms=5, event_types=("line",)),
        [EntryOpened("w", "w", _KIND.WAIT, 2, NOW_MS + 5, ("line",))],
    ),
    "a child": (
        a_run(posted=2),
        Open(
            "bill", "bill", _KIND.CHILD, 2, 9, child_workflow="invoice", child_id="inv-1", value="3"
        ),
        [
            EntryOpened("bill", "bill", _KIND.CHILD, 2, NOW_MS + 9, child=CHILD),
            PostsQueued(
                (Post(2, "invoice", "inv-1", StartRun("3", _ME, depth=1), trace=_TRACE),)
            ),
        ],
    ),
    "an entry that is there": (_with("both", _KIND.JOIN), Open("both", "b", _KIND.JOIN, 2), STALE),
    "a checkpoint": (
        a_run(),
        OpenCompleted("c", "c", _KIND.CHECKPOINT, 2),
        [EntryOpened("c", "c", _KIND.CHECKPOINT, 2), EntryCompleted("c", "null")],
    ),
    "the time": (
        a_run(),
        OpenCompleted("@now#1", "@now#1", _KIND.NOW, 2),
        [EntryOpened("@now#1", "@now#1", _KIND.NOW, 2), EntryCompleted("@now#1", str(NOW_MS))],
    ),
    "a mark that is there": (
        _with("c", _KIND.CHECKPOINT, _AT.COMPLETED),
        OpenCompleted("c", "c", _KIND.CHECKPOINT, 2),
        STALE,
    ),
}  # fmt: skip

_RACE = {
    "first": an_entry(_KIND.RACE, _AT.PENDING),
    "first/a/x": an_entry(_KIND.DO, _AT.WAITING, attempts=1),
    "first/a/bill": an_entry(_KIND.CHILD, _AT.WAITING, child=CHILD),
    "first/b/x": an_entry(_KIND.DO, _AT.COMPLETED),
    "firstly/a": an_entry(_KIND.SLEEP, _AT.WAITING),
}
_LOST = Parent("order", "o-1", 0, "first/a/bill")
_UNWANTED = TerminateRun("its parent no longer waits for it", _LOST)

SCOPES = {
    "a join's values": (
        _with("both", _KIND.JOIN), Close("both", "{}"), [EntryCompleted("both", "{}")],
    ),
    "a race's losers: their children end, their steps are written down": (
        a_run(entries=_RACE),
        Close("first", "1", Losers(("first/a",), (reached("first/a/y"), reached("first/a/x")))),
        [
            EntryOpened("first/a/y", "first/a/y", _KIND.DO, 3),
            PostsQueued(
                (Post(0, "invoice", "inv-1", _UNWANTED),)
            ),
            EntriesCancelled(("first/a/x", "first/a/bill", "first/a/y")),
            EntryCompleted("first", "1"),
        ],
    ),
    "a race whose losers had begun nothing": (
        a_run(entries=_RACE),
        Close("first", "1", Losers(("first/c",))),
        [EntryCompleted("first", "1")],
    ),
    "a close of what is not open": (
        _with("both", _KIND.JOIN, _AT.COMPLETED), Close("both", "{}"), STALE,
    ),
    "a join's failure": (
        _with("both", _KIND.JOIN), Fail("both", FAILURE), [EntryErrored("both", FAILURE)],
    ),
    "a race whose winner has no value to record: it has losers nevertheless": (
        a_run(entries=_RACE),
        Fail("first", FAILURE, Losers(("first/a",))),
        [
            PostsQueued((Post(0, "invoice", "inv-1", _UNWANTED),)),
            EntriesCancelled(("first/a/x", "first/a/bill")),
            EntryErrored("first", FAILURE),
        ],
    ),
    "what nobody awaits any more, and what is beneath it": (
        a_run(entries=_RACE),
        Cancel("first", (reached("first/a/y"),)),
        [
            EntryOpened("first/a/y", "first/a/y", _KIND.DO, 3),
            PostsQueued((Post(0, "invoice", "inv-1", _UNWANTED),)),
            EntriesCancelled(("first", "first/a/x", "first/a/bill", "first/a/y")),
        ],
    ),
    "a wait that nobody awaits any more": (
        _with("reply", _KIND.WAIT), Cancel("reply"), [EntriesCancelled(("reply",))],
    ),
    "what nobody awaits any more, though it has its result": (
        _with("reply", _KIND.WAIT, _AT.COMPLETED), Cancel("reply"), STALE,
    ),
    "a failure of what is not open": (a_run(), Fail("both", FAILURE), STALE),
    "an iteration": (
        _with("pages", _KIND.LOOP), Advance("pages", 9, "1", 5), [LoopAdvanced("pages", 9, "1", 5)],
    ),
    "an iteration of a loop that was cancelled": (
        _with("pages", _KIND.LOOP, _AT.CANCELLED), Advance("pages", 20, "1"), STALE,
    ),
}  # fmt: skip

_LOGS = LogWritten("info", "workflow", "hi", "1", "quote", 2, True)
_ENDED = TerminateRun("its parent has ended", _ME)
_TOLD = FinishChild(0, "bill", output="1")

_AS_TOLD = Failure("CancelledError", "the run was cancelled")
_PAID = an_entry(_KIND.DO, _AT.COMPLETED, rollback=True)


def _told(until_ms: int = NOW_MS, **more: object) -> CodeRun:
    return a_run(cancelling=Cancelling(3, "why", until_ms), **more)


ENDS = {
    "a line of a log": (
        a_run(), Log("info", "workflow", "hi", "1", "quote", 2, True), [_LOGS],
    ),
    "nothing moves": (a_run(resolved=6), Suspend(6), [RunSuspended()]),
    "nothing moves, before the latest news": (a_run(resolved=6), Suspend(5), STALE),
    "nothing moves, before an attempt begins": (a_run(retried=6), Suspend(5), STALE),
    "nothing moves in a run that is paused": (a_run(RunStatus.PAUSED), Suspend(9), STALE),
    "rollback begins": (a_run(), BeginRollback(FAILURE), [RollbackStarted(FAILURE)]),
    "rollback begins, and something is open": (
        _with("bill", _KIND.CHILD, child=CHILD),
        BeginRollback(FAILURE),
        [
            PostsQueued((Post(0, "invoice", "inv-1", _ENDED),)),
            EntriesCancelled(("bill",), ended=True),
            RollbackStarted(FAILURE),
        ],
    ),
    "code that was told ends": (
        _told(), Raise(_AS_TOLD), [RunTerminated("why", cancelled=True)],
    ),
    "code that was told fails": (
        _told(),
        Raise(FAILURE),
        [
            LogWritten("warn", "system", "once it was cancelled, the run failed: Unreachable: "
                       "no answer"),
            RunTerminated("why", cancelled=True),
        ],
    ),
    "code returns that was not told yet": (
        _told(), Return("1"), [RunTerminated("why", cancelled=True)],
    ),
    "code returns that was not told yet, and has something to roll back": (
        _told(entries={"pay": _PAID, "bill": an_entry(_KIND.CHILD, child=CHILD)}),
        Return("1"),
        [
            PostsQueued((Post(0, "invoice", "inv-1", CancelRun("its parent has ended", _ME)),)),
            EntriesCancelled(("bill",), ended=True),
            RollbackStarted(
                Failure("CancelledError", "the code had returned before it saw the cancellation"),
                cut_off=True,
            ),
        ],
    ),
    "code that was told has its time": (_told(until_ms=NOW_MS + 1), Wake(NOW_MS), STALE),
    "code that was told takes too long": (
        _told(entries={"pay": _PAID}),
        Wake(NOW_MS),
        [RollbackStarted(Failure("CancelledError", "the code took too long to clean up"),
                         cut_off=True)],
    ),
    "a handler takes longer than code may clean up": (
        _told(rollback=FAILURE, entries={"pay": _PAID}), Wake(NOW_MS), STALE,
    ),
    "a step returns after its run is rolled back": (a_run(rollback=FAILURE), _returned(), STALE),
    "an iteration that code began before it was told": (
        _told(entries={"pages": an_entry(_KIND.LOOP)}), Advance("pages", 9, "1"), STALE,
    ),
    "an iteration that code began once it was told": (
        _told(entries={"pages": an_entry(_KIND.LOOP)}),
        Advance("pages", 9, "1", knows_cancelled=True),
        [LoopAdvanced("pages", 9, "1")],
    ),
    "a child that code which was told waits for no more": (
        _told(entries={"bill": an_entry(_KIND.CHILD, child=CHILD)}),
        Cancel("bill"),
        [
            PostsQueued((Post(0, "invoice", "inv-1",
                              CancelRun("its parent no longer waits for it", _ME)),)),
            EntriesCancelled(("bill",)),
        ],
    ),
    "rollback begins again": (_rolling(), BeginRollback(FAILURE), STALE),
    "a handler is through": (_rolling(), RolledBack("pay"), [EntryRolledBack("pay")]),
    "a handler is through again": (_rolling(rolled_back=True), RolledBack("pay"), STALE),
    "a handler of a run that is not rolled back": (
        _with("pay", _KIND.DO, _AT.COMPLETED), RolledBack("pay"), STALE,
    ),
    "a handler of what is not there": (a_run(rollback=FAILURE), RolledBack("pay"), STALE),
    "a handler fails": (
        _rolling(rollback_attempts=1),
        RollbackRaised("pay", 2, FAILURE),
        [RollbackFailed("pay", 2, FAILURE, NOW_MS + 20_000)],
    ),
    "a handler fails for the last time": (
        _rolling(rollback_attempts=ROLLBACK_RETRIES),
        RollbackRaised("pay", ROLLBACK_RETRIES + 1, FAILURE),
        [
            LogWritten(
                "error",
                "system",
                "the rollback of pay failed 6 times and is given up: Unreachable: no answer",
                step_key="pay",
                attempt=6,
            ),
            EntryRolledBack("pay", FAILURE),
        ],
    ),
    "a handler fails late": (_rolling(rolled_back=True), RollbackRaised("pay", 1, FAILURE), STALE),
    "a handler fails after its timeout": (
        _rolling(rollback_attempts=1), RollbackRaised("pay", 1, FAILURE), STALE,
    ),
    "the function returns": (a_run(), Return("1"), [RunCompleted("1")]),
    "the function of a child returns": (
        a_run(parent=PARENT, posted=3),
        Return("1"),
        [PostsQueued((Post(3, "parent", "p-1", _TOLD),)), RunCompleted("1")],
    ),
    "the function returns, and its child still runs": (
        _with("bill", _KIND.CHILD, child=CHILD),
        Return("1"),
        [
            EntriesCancelled(("bill",), ended=True),
            PostsQueued((Post(0, "invoice", "inv-1", _ENDED),)),
            RunCompleted("1"),
        ],
    ),
    "the function raises": (a_run(), Raise(FAILURE), [RunErrored(FAILURE)]),
    "the function of a child raises": (
        a_run(parent=PARENT),
        Raise(FAILURE),
        [
            PostsQueued((Post(0, "parent", "p-1", FinishChild(0, "bill", failure=FAILURE)),)),
            RunErrored(FAILURE),
        ],
    ),
    "all is rolled back": (_rolling(), Raise(PARENT), [RunErrored(FAILURE)]),
    "the host is lost in the run's turn": (
        a_run(hosts_lost=1),
        HostFailed("the host ended"),
        [
            LogWritten("error", "system", "the host ended; retried in 2 s"),
            HostLost("the host ended", NOW_MS + 2_000),
        ],
    ),
}  # fmt: skip

TIME = {
    "nothing is due": (_with("nap", _KIND.SLEEP, wake_at_ms=NOW_MS + 1), Wake(NOW_MS), STALE),
    "a sleep ends": (
        _with("nap", _KIND.SLEEP, wake_at_ms=NOW_MS), Wake(NOW_MS), [EntryCompleted("nap", "null")],
    ),
    "a sleep of a run that is paused": (
        a_run(RunStatus.PAUSED, entries={"nap": an_entry(_KIND.SLEEP, wake_at_ms=1)}),
        Wake(NOW_MS),
        STALE,
    ),
    "a wait for several ends with none": (
        _with("w", _KIND.WAIT, limit=5, **_WAIT),
        Wake(NOW_MS, complete=True),
        [EntryCompleted("w", "[]")],
    ),
    "a retry is due": (
        _with("quote", _KIND.DO, wake_at_ms=NOW_MS), Wake(NOW_MS), [StepsRetried(("quote",))],
    ),
    "a retry is under way": (_with("quote", _KIND.DO), Wake(NOW_MS), STALE),
    "a retry is due of a run that is rolled back": (
        a_run(entries={"quote": an_entry(wake_at_ms=1)}, rollback=FAILURE), Wake(NOW_MS), STALE,
    ),
    "a wait at its deadline, when more may come": (
        _with("w", _KIND.WAIT, limit=5, **_WAIT), Wake(NOW_MS), STALE,
    ),
    "a wait behind its deadline": (
        _with("w", _KIND.WAIT, limit=5, **_WAIT),
        Wake(NOW_MS + 1),
        [EntryCompleted("w", "[]")],
    ),
    "several end in the order of their times": (
        a_run(
            entries={
                "b": an_entry(_KIND.SLEEP, wake_at_ms=NOW_MS, ordinal=1),
                "a": an_entry(_KIND.SLEEP, wake_at_ms=NOW_MS - 1, ordinal=2),
                "c": an_entry(_KIND.SLEEP, wake_at_ms=NOW_MS, ordinal=0),
                "again": an_entry(wake_at_ms=NOW_MS - 2),
                "late": an_entry(_KIND.WAIT, limit=1, wake_at_ms=NOW_MS, ordinal=-1),
                "at once": an_entry(wake_at_ms=NOW_MS),
            }
        ),
        Wake(NOW_MS + 1),
        [
            *(EntryCompleted(key, "null") for key in ("a", "c", "b")),
            EntryCompleted("late", "[]"),
            StepsRetried(("again", "at once")),
        ],
    ),
}  # fmt: skip

CASES = STEPS | OPENED | SCOPES | ENDS | TIME


@pytest.mark.parametrize("name", CASES)
def test_what_is_asked_for_is_decided_as_the_table_says(name: str):
    run, requested, expected = CASES[name]
    before = copy_of(run)
    assert decide_request(run, requested, NOW_MS) == expected
    assert run == before, "deciding changes nothing"


@pytest.mark.parametrize("status", [RunStatus.COMPLETE, RunStatus.ERRORED, RunStatus.TERMINATED])
def test_nothing_is_decided_for_a_run_that_is_over(status: RunStatus):
    for _, requested, _ in CASES.values():
        assert decide_request(a_run(status), requested, NOW_MS) is STALE


def test_a_wait_that_ends_without_its_event_says_what_it_waited_for():
    run = _with("w", _KIND.WAIT, event_types=("line", "end"), wake_at_ms=NOW_MS)
    (event,) = _events(run, Wake(NOW_MS, complete=True))
    assert isinstance(event, EntryErrored)
    assert event.failure.name == "EventTimeoutError"
    assert event.failure.message == (
        "expected an event of type line or end for name until 2026-01-01T00:00:00+00:00, found none"
    )


def test_a_child_that_takes_too_long_is_ended_and_fails_its_entry():
    run = _with("bill", _KIND.CHILD, child=CHILD, wake_at_ms=NOW_MS)
    posts, event = _events(run, Wake(NOW_MS, complete=True))
    assert posts == PostsQueued(
        (Post(0, "invoice", "inv-1", TerminateRun("it took too long", _ME)),)
    )
    assert isinstance(event, EntryErrored)
    assert event.failure.name == "ChildWorkflowError"
    assert event.failure.message.startswith("expected invoice/inv-1 to end within its timeout")


def test_a_run_that_takes_its_host_with_it_too_often_is_given_up():
    (event,) = _events(a_run(hosts_lost=HOSTS_LOST_MAX), HostFailed("the host ended"))
    assert isinstance(event, RunErrored)
    assert event.failure.name == "HostLostError"
    assert "4 times in a row" in event.failure.message


@pytest.mark.parametrize(
    "asked",
    [
        _returned(),
        Open("both", "both", _KIND.JOIN, 2),
        OpenCompleted("c", "c", _KIND.CHECKPOINT, 2),
    ],
)
def test_one_entry_more_than_allowed_ends_the_run_unless_some_of_them_are_sleeps(asked: Request):
    entries = {str(n): an_entry(_KIND.DO, _AT.COMPLETED) for n in range(ENTRIES_MAX)}
    (event,) = _events(a_run(entries=entries), asked)
    assert isinstance(event, RunErrored)
    assert event.failure.name == "MAX_STEPS_EXCEEDED"
    entries["0"] = an_entry(_KIND.SLEEP, _AT.COMPLETED)
    assert not isinstance(_events(a_run(entries=entries), asked)[0], RunErrored)


def test_a_step_that_is_tried_again_counts_once():
    entries = {str(n): an_entry(_KIND.DO, _AT.COMPLETED) for n in range(ENTRIES_MAX - 1)}
    entries["quote"] = an_entry(_KIND.DO, attempts=1)
    assert _events(a_run(entries=entries), _returned(2)) == [_completed(2)]


def _events(run: CodeRun, asked: Request) -> list[RunEvent]:
    decision = decide_request(run, asked, NOW_MS)
    assert not isinstance(decision, Rejection)
    return decision
