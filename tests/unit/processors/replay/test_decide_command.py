"""What others send to an instance: given a state and a command, the events or the refusal."""

import pytest
from msgspec.structs import replace

from headwater.processors.code.decide import decide_command
from headwater.processors.code.state import Cancelling, CodeRun
from headwater.processors.runs.decisions import STALE, Facts, Rejection
from headwater.processors.runs.limits import CLEANUP_MS, MAILBOX_MAX
from headwater.processors.runs.state import Slot, StoredKey
from headwater.schemas.history import (
    ActivateJob,
    AskSlot,
    Attempt,
    CancelRequested,
    CancelRun,
    Command,
    CompleteJob,
    EntriesCancelled,
    EntryCompleted,
    EntryErrored,
    EventReceived,
    ExtendJob,
    FailJob,
    Failure,
    FinishChild,
    GrantSlot,
    LogWritten,
    MigrateRun,
    NoteRefusal,
    Once,
    Parent,
    PauseRun,
    Post,
    PostsQueued,
    RestartRun,
    ResumeRun,
    RetryRun,
    ReturnSlot,
    RunErrored,
    RunPaused,
    RunResumed,
    RunStarted,
    RunSuspended,
    RunTerminated,
    Sender,
    SendEvent,
    SetBranchOutput,
    SlotGranted,
    StartRun,
    TerminateRun,
)
from headwater.schemas.statuses import EntryKind, EntryStatus, RunStatus
from tests.unit.processors.replay.states import (
    CHILD,
    FAILURE,
    NOW_MS,
    PARENT,
    a_run,
    an_entry,
    copy_of,
    mail,
)

FACTS = Facts("order", "o-1", NOW_MS, NOW_MS + 9, "seed")
_COMPLETE, _PAUSED, _WAITING = RunStatus.COMPLETE, RunStatus.PAUSED, RunStatus.WAITING
_WAIT = an_entry(EntryKind.WAIT, event_types=("line",), wake_at_ms=NOW_MS)
_MANY = an_entry(EntryKind.WAIT, event_types=("line", "end"), wake_at_ms=NOW_MS, limit=2)
_LATER = Parent("parent", "p-1", 1, "bill")
_EVENT = SendEvent("evt-1", "line", "1")
_ONCE = Once("k", "1")
_KEYED = SendEvent("evt-1", "line", "1", once=_ONCE)
_SHOWN = f'{{"type":"line","payload":1,"timestamp":{NOW_MS}}}'


_ENDED_WELL = "found o-1 complete; restart begins a new run of it"
_FAILED = (
    "found o-1 errored; retry begins a new run that keeps what was done, restart one from the "
    "beginning"
)


@pytest.mark.parametrize(
    "command", [PauseRun(), TerminateRun(), _EVENT], ids=lambda c: str(type(c))
)
@pytest.mark.parametrize(
    ("status", "told"), [(_COMPLETE, _ENDED_WELL), (RunStatus.ERRORED, _FAILED)]
)
def test_of_what_has_ended_it_is_said_what_may_be_done(
    command: Command, status: RunStatus, told: str
):
    refused = decide_command(a_run(status), command, FACTS)
    assert isinstance(refused, Rejection)
    assert refused.message.endswith(told)


def test_of_what_has_ended_it_is_said_what_may_be_done_instead_of_a_resumption():
    refused = decide_command(a_run(_COMPLETE), ResumeRun(), FACTS)
    assert isinstance(refused, Rejection)
    assert refused.message == "o-1 is not paused but complete; restart begins a new run of it"


def _an_event(number: int) -> SendEvent:
    return SendEvent(f"other/x#{number}", "line", "1", Sender("other", "x", 0, number))


def _child(status: EntryStatus = EntryStatus.WAITING, **more: object) -> CodeRun:
    entries = {"bill": an_entry(EntryKind.CHILD, status, child=CHILD)}
    return a_run(_WAITING, entries=entries, **more)


def _a_signal(number: int) -> SendEvent:
    """A program that is no workflow says it, and may be the first to do so."""
    sender = Sender("~hooks", "webhooks-3", 0, number)
    return SendEvent(f"~hooks/webhooks-3#{number}", "line", "1", sender, '{"a":1}')


_SIGNALLED = EventReceived("~hooks/webhooks-3#7", "line", "1", NOW_MS)
_UNTIL = NOW_MS + 9 + CLEANUP_MS
_CANCELLED = LogWritten(
    "info",
    "system",
    "the instance is cancelled: why; its code may clean up until 2026-01-01T00:00:30+00:00",
)
_RETRIED = LogWritten(
    "info",
    "system",
    "run 0 is retried; done again: nothing; kept: 0 entries",
    '{"from":null,"again":[],"reopened":[]}',
)
_ENDED_BY = TerminateRun("its parent was restarted", Parent("order", "o-1", 0, "bill"))
_ENDED = PostsQueued((Post(0, "invoice", "inv-1", _ENDED_BY),))
_CASCADE = PostsQueued(
    (
        Post(
            0,
            "invoice",
            "inv-1",
            TerminateRun("its parent has ended", Parent("order", "o-1", 0, "bill")),
        ),
    )
)


_ASKED = Slot("~")
_GRANT = GrantSlot("o-1#0#seed", "~")
_FULL = Failure("SLOT_QUEUE_FULL", "too many")


def _started(params: str, seed: str, parent: Parent | None = None) -> RunStarted:
    return RunStarted(params, seed, parent, kind="replay")


ACCEPTED = {
    "create": (None, StartRun("1"), [_started("1", "seed")]),
    "create for a parent": (None, StartRun("1", PARENT), [_started("1", "seed", PARENT)]),
    "a parent's next run": (
        a_run(_COMPLETE, parent=PARENT), StartRun("2", _LATER), [_started("2", "seed", _LATER)],
    ),
    "a parent's next run, while the child has a child": (
        _child(parent=PARENT), StartRun("2", _LATER), [_started("2", "seed", _LATER), _ENDED],
    ),
    "restart": (a_run(_COMPLETE), RestartRun(), [RunStarted("1", "seed")]),
    "restart with a child that runs": (_child(), RestartRun(), [RunStarted("1", "seed"), _ENDED]),
    "pause": (a_run(), PauseRun(), [RunPaused()]),
    "resume": (a_run(_PAUSED), ResumeRun(), [RunResumed()]),
    "resume what waits for its slot": (
        a_run(_PAUSED, slot=_ASKED), ResumeRun(), [RunResumed(), RunSuspended()],
    ),
    "a slot": (a_run(_WAITING, slot=_ASKED), _GRANT, [SlotGranted()]),
    "a slot, after what a retry has kept that slept": (
        a_run(
            _WAITING, slot=_ASKED, entries={"s": an_entry(EntryKind.SLEEP, wake_at_ms=NOW_MS - 1)}
        ),
        _GRANT,
        [SlotGranted(), EntryCompleted("s", "null")],
    ),
    "no slot": (
        a_run(_WAITING, slot=_ASKED),
        GrantSlot("o-1#0#seed", "~", _FULL),
        [PostsQueued((Post(0, "order", "~", ReturnSlot("o-1#0#seed")),)), RunErrored(_FULL)],
    ),
    "cancel what waits for its slot and has to undo what the run before it did": (
        a_run(
            _WAITING,
            slot=_ASKED,
            entries={"charge": an_entry(status=EntryStatus.COMPLETED, rollback=True)},
        ),
        CancelRun("why"),
        [SlotGranted(), _CANCELLED, CancelRequested("why", _UNTIL)],
    ),
    "cancel what waits for its slot": (
        a_run(_WAITING, slot=_ASKED),
        CancelRun("why"),
        [
            PostsQueued((Post(0, "order", "~", ReturnSlot("o-1#0#seed")),)),
            RunTerminated("why", cancelled=True),
        ],
    ),
    "resume with mail for waits, in their order": (
        a_run(_PAUSED, entries={"m": _MANY, "w": _WAIT}, mailbox=[mail(1), mail(2), mail(3)]),
        ResumeRun(),
        [
            RunResumed(),
            EntryCompleted("m", f"[{_SHOWN},{_SHOWN.replace(':1,', ':2,')}]", ("evt-1", "evt-2")),
            EntryCompleted("w", _SHOWN.replace(":1,", ":3,"), ("evt-3",)),
        ],
    ),
    "resume with what ended meanwhile, in the order of its times": (
        a_run(
            _PAUSED,
            entries={
                "late": an_entry(EntryKind.SLEEP, wake_at_ms=NOW_MS - 1),
                "w": _WAIT,
                "early": an_entry(EntryKind.SLEEP, wake_at_ms=NOW_MS - 9),
                "not yet": an_entry(EntryKind.SLEEP, wake_at_ms=NOW_MS + 1),
            },
            mailbox=[mail(1, sent_at_ms=NOW_MS - 5)],
        ),
        ResumeRun(),
        [
            RunResumed(),
            EntryCompleted("early", "null"),
            EntryCompleted("w", _SHOWN.replace(str(NOW_MS), str(NOW_MS - 5)), ("evt-1",)),
            EntryCompleted("late", "null"),
        ],
    ),
    "an event that was sent after a sleep had ended": (
        a_run(
            _WAITING,
            entries={"w": _WAIT, "nap": an_entry(EntryKind.SLEEP, wake_at_ms=NOW_MS - 1)},
        ),
        _EVENT,
        [
            EntryCompleted("nap", "null"),
            EventReceived("evt-1", "line", "1", NOW_MS),
            EntryCompleted("w", _SHOWN, ("evt-1",)),
        ],
    ),
    "an event that was sent when a sleep ended": (
        a_run(
            _WAITING,
            entries={"w": _WAIT, "nap": an_entry(EntryKind.SLEEP, wake_at_ms=NOW_MS)},
        ),
        _EVENT,
        [EventReceived("evt-1", "line", "1", NOW_MS), EntryCompleted("w", _SHOWN, ("evt-1",))],
    ),
    "a child that ended after a sleep had": (
        a_run(
            _WAITING,
            entries={
                "bill": an_entry(EntryKind.CHILD, child=CHILD),
                "nap": an_entry(EntryKind.SLEEP, wake_at_ms=NOW_MS - 1),
            },
        ),
        FinishChild(0, "bill", output="5"),
        [EntryCompleted("nap", "null"), EntryCompleted("bill", "5")],
    ),
    "an end": (a_run(), TerminateRun("why"), [RunTerminated("why")]),
    "an end with a child that runs": (
        _child(),
        TerminateRun(),
        [EntriesCancelled(("bill",), ended=True), _CASCADE, RunTerminated("")],
    ),
    "an end of a child": (
        a_run(parent=PARENT, posted=1),
        TerminateRun("why", PARENT),
        [
            PostsQueued(
                (
                    Post(
                        1,
                        "parent",
                        "p-1",
                        FinishChild(
                            0,
                            "bill",
                            failure=FAILURE.__class__("Terminated", "order/o-1 was ended: why"),
                        ),
                    ),
                )
            ),
            RunTerminated("why"),
        ],
    ),
    "a cancellation": (a_run(), CancelRun("why"), [_CANCELLED, CancelRequested("why", _UNTIL)]),
    "a cancellation of what is paused": (
        a_run(_PAUSED, entries={"nap": an_entry(EntryKind.SLEEP, wake_at_ms=NOW_MS)}),
        CancelRun("why"),
        [
            RunResumed(), EntryCompleted("nap", "null"), _CANCELLED,
            CancelRequested("why", _UNTIL),
        ],
    ),
    "an end of what is cancelled": (
        a_run(cancelling=Cancelling(3, "", _UNTIL)), TerminateRun("why"), [RunTerminated("why")],
    ),
    "an event": (a_run(), _EVENT, [EventReceived("evt-1", "line", "1", NOW_MS)]),
    "an event that is waited for, sent at the last moment": (
        a_run(_WAITING, entries={"w": _WAIT}),
        _EVENT,
        [EventReceived("evt-1", "line", "1", NOW_MS), EntryCompleted("w", _SHOWN, ("evt-1",))],
    ),
    "an event that is waited for, while paused": (
        a_run(_PAUSED, entries={"w": _WAIT}), _EVENT, [EventReceived("evt-1", "line", "1", NOW_MS)],
    ),
    "an event of another type than is waited for": (
        a_run(_WAITING, entries={"w": _WAIT}),
        SendEvent("evt-1", "other", "1"),
        [EventReceived("evt-1", "other", "1", NOW_MS)],
    ),
    "an event, while others than waits are open": (
        a_run(_WAITING, entries={"nap": an_entry(EntryKind.SLEEP), "w": _WAIT}),
        _EVENT,
        [EventReceived("evt-1", "line", "1", NOW_MS), EntryCompleted("w", _SHOWN, ("evt-1",))],
    ),
    "an event of a workflow": (
        a_run(received={"other/x": 3}),
        _an_event(4),
        [EventReceived("other/x#4", "line", "1", NOW_MS)],
    ),
    "an event that creates its instance": (
        None, _a_signal(7), [_started('{"a":1}', "seed"), _SIGNALLED],
    ),
    "an event that would create its instance, which is there": (
        a_run(received={"~hooks/webhooks-3": 6}), _a_signal(7), [_SIGNALLED],
    ),
    "a retry": (
        a_run(RunStatus.ERRORED, parent=PARENT), RetryRun(),
        [RunStarted("1", "seed", PARENT, kept=()), _RETRIED],
    ),
    "a child's output": (
        _child(), FinishChild(0, "bill", output="5"), [EntryCompleted("bill", "5")],
    ),
    "a child's failure": (
        _child(), FinishChild(0, "bill", failure=FAILURE), [EntryErrored("bill", FAILURE)],
    ),
    "a note": (a_run(), NoteRefusal(0, "no"), [LogWritten("warn", "system", "no")]),
    "a note for a run that has ended": (
        a_run(_COMPLETE), NoteRefusal(0, "no"), [LogWritten("warn", "system", "no")],
    ),
}  # fmt: skip

REFUSED = {
    "create what exists": (a_run(), StartRun("1"), "INSTANCE_ID_ALREADY_EXISTS"),
    "create for a parent what is nobody's": (
        a_run(), StartRun("1", PARENT), "INSTANCE_ID_ALREADY_EXISTS",
    ),
    "create for a parent what is another entry's": (
        a_run(parent=PARENT),
        StartRun("1", Parent("parent", "p-1", 1, "other")),
        "INSTANCE_ID_ALREADY_EXISTS",
    ),
    "create for a parent once more": (
        a_run(parent=PARENT), StartRun("1", PARENT), "INSTANCE_ID_ALREADY_EXISTS",
    ),
    "create with too much": (None, StartRun("x" * 2**21), "INVALID_PARAMS"),
    "pause what is not there": (None, PauseRun(), "INSTANCE_NOT_FOUND"),
    "pause what is over": (a_run(_COMPLETE), PauseRun(), "INSTANCE_TERMINAL"),
    "pause what is paused": (a_run(_PAUSED), PauseRun(), "ALREADY_PAUSED"),
    "resume what runs": (a_run(), ResumeRun(), "NOT_PAUSED"),
    "resume what is over": (a_run(_COMPLETE), ResumeRun(), "NOT_PAUSED"),
    "end what is over": (a_run(_COMPLETE), TerminateRun(), "INSTANCE_TERMINAL"),
    "cancel what is over": (a_run(_COMPLETE), CancelRun(), "INSTANCE_TERMINAL"),
    "cancel what is cancelled": (
        a_run(cancelling=Cancelling(3, "", _UNTIL)), CancelRun(), "ALREADY_CANCELLED",
    ),
    "cancel somebody else's child": (a_run(), CancelRun("", PARENT), "NOT_THE_PARENT"),
    "end somebody else's child": (a_run(), TerminateRun("", PARENT), "NOT_THE_PARENT"),
    "end a child of an older run": (
        a_run(parent=_LATER), TerminateRun("", PARENT), "NOT_THE_PARENT",
    ),
    "restart what is not there": (None, RestartRun(), "INSTANCE_NOT_FOUND"),
    "an event to what is over": (a_run(_COMPLETE), _EVENT, "INSTANCE_TERMINAL"),
    "an event without a type": (a_run(), SendEvent("e", "", "1"), "INVALID_EVENT_TYPE"),
    "an event that is too large": (
        a_run(), SendEvent("e", "line", "x" * 2**21), "INVALID_EVENT_PAYLOAD",
    ),
    "create under another's key": (
        a_run(once=Once("k", "1")), StartRun("1", once=Once("l", "1")),
        "INSTANCE_ID_ALREADY_EXISTS",
    ),
    "create under a key once more": (
        a_run(_COMPLETE, once=_ONCE), StartRun("1", once=_ONCE), "INSTANCE_CREATED_BEFORE",
    ),
    "create something else under a key": (
        a_run(once=Once("k", "2")), StartRun("1", once=_ONCE), "idempotency_conflict",
    ),
    "an event under a key once more": (
        a_run(keys={"k": StoredKey("1", 0)}), _KEYED, "EVENT_ALREADY_RECEIVED",
    ),
    "an event under a key once more, after the end": (
        a_run(_COMPLETE, keys={"k": StoredKey("1", 0)}), _KEYED, "EVENT_ALREADY_RECEIVED",
    ),
    "another event under a key": (
        a_run(keys={"k": StoredKey("2", 0)}), _KEYED, "idempotency_conflict",
    ),
    "an event of a workflow once more": (
        a_run(received={"other/x": 4}), _an_event(4), "EVENT_ALREADY_RECEIVED",
    ),
    "an event of a workflow once more, after the end": (
        a_run(_COMPLETE, received={"other/x": 4}), _an_event(4), "EVENT_ALREADY_RECEIVED",
    ),
    "an event of a program once more": (
        a_run(received={"~hooks/webhooks-3": 7}), _a_signal(7), "EVENT_ALREADY_RECEIVED",
    ),
    "an event of a program once more, after the end": (
        a_run(_COMPLETE, received={"~hooks/webhooks-3": 7}), _a_signal(7), "EVENT_ALREADY_RECEIVED",
    ),
    "an event of a program to what is over": (a_run(_COMPLETE), _a_signal(7), "INSTANCE_TERMINAL"),
    "an event to what is not there": (None, _EVENT, "INSTANCE_NOT_FOUND"),
    "an event without a type that would create its instance": (
        None, SendEvent("e", "", "1", start="1"), "INVALID_EVENT_TYPE",
    ),
    "an event that would create its instance with too much": (
        None, SendEvent("e", "line", "1", start="x" * 2**21), "INVALID_PARAMS",
    ),
    "retry what is not there": (None, RetryRun(), "INSTANCE_NOT_FOUND"),
    "retry what runs": (a_run(), RetryRun(), "INSTANCE_NOT_ERRORED"),
    "retry what has ended well": (a_run(_COMPLETE), RetryRun(), "INSTANCE_NOT_ERRORED"),
    "retry from nowhere": (a_run(RunStatus.ERRORED), RetryRun("k"), "STEP_NOT_FOUND"),
    "an event too many": (
        a_run(mailbox=[mail(n) for n in range(MAILBOX_MAX)]), _EVENT, "MAILBOX_FULL",
    ),
    "a child's end that is known": (
        _child(EntryStatus.COMPLETED), FinishChild(0, "bill", output="5"), STALE.code,
    ),
    "a child's end for a run that is over": (
        _child(run_number=1), FinishChild(0, "bill", output="5"), STALE.code,
    ),
    "a child's end for what is no child": (
        a_run(entries={"bill": _WAIT}), FinishChild(0, "bill", output="5"), STALE.code,
    ),
    "a child's end for what is not there": (
        a_run(), FinishChild(0, "bill", output="5"), STALE.code,
    ),
    "a slot that it has": (
        a_run(slot=Slot("~", granted=True)), _GRANT, "SLOT_GRANTED_BEFORE",
    ),
    "a slot that it did not ask for": (a_run(), _GRANT, "SLOT_NOT_WANTED"),
    "a slot of another life": (
        a_run(_WAITING, slot=_ASKED), GrantSlot("o-1#0#other", "~"), "SLOT_NOT_WANTED",
    ),
    "a slot, when it has ended": (a_run(_COMPLETE, slot=_ASKED), _GRANT, "SLOT_NOT_WANTED"),
    "that somebody asks it for a slot": (a_run(), AskSlot("x#0#seed"), "SLOT_NOT_WANTED"),
    "that somebody returns a slot to it": (a_run(), ReturnSlot("x#0#seed"), "SLOT_NOT_WANTED"),
    "another definition": (a_run(), MigrateRun("{}", "d"), "NOT_A_GRAPH"),
    "a move to another graph": (a_run(), MigrateRun("{}", "0"), "NOT_A_GRAPH"),
    "an output of a branch": (a_run(), SetBranchOutput("g", 0, "{}"), "NOT_A_GRAPH"),
    "a job": (a_run(), ActivateJob(Attempt(0, 0, 1), "me", 1), "JOB_NOT_FOUND"),
    "the end of a job": (a_run(), CompleteJob(Attempt(0, 0, 1), "5"), "JOB_NOT_FOUND"),
    "the failure of a job": (a_run(), FailJob(Attempt(0, 0, 1), FAILURE), "JOB_NOT_FOUND"),
    "a job for longer": (a_run(), ExtendJob(Attempt(0, 0, 1), 1), "JOB_NOT_FOUND"),
    "a note for an older run": (a_run(run_number=1), NoteRefusal(0, "no"), STALE.code),
}  # fmt: skip


def _decide(run: CodeRun | None, command: Command, instance_id: str = "o-1") -> object:
    return decide_command(run, command, replace(FACTS, instance_id=instance_id))


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_command_leads_to_the_events_of_the_table(name: str):
    run, command, expected = ACCEPTED[name]
    before = copy_of(run) if run else None
    assert _decide(run, command) == expected
    assert run == before, "deciding changes nothing"


@pytest.mark.parametrize("name", REFUSED)
def test_a_command_is_refused_with_the_code_of_the_table(name: str):
    run, command, code = REFUSED[name]
    decision = _decide(run, command)
    assert isinstance(decision, Rejection)
    assert decision.code == code


def test_an_event_that_was_sent_too_late_is_kept_and_ends_no_wait():
    run = a_run(
        _WAITING, entries={"w": an_entry(EntryKind.WAIT, event_types=("line",), wake_at_ms=1)}
    )
    assert _decide(run, _EVENT) == [EventReceived("evt-1", "line", "1", NOW_MS)]


@pytest.mark.parametrize("instance_id", ["", "-a", "a b", "é", "x" * 101])
def test_an_instance_id_that_breaks_the_rules_is_refused(instance_id: str):
    for command in (StartRun("1"), _a_signal(7)):
        decision = _decide(None, command, instance_id)
        assert isinstance(decision, Rejection)
        assert decision.code == "INVALID_INSTANCE_ID"
