"""States of runs for tests, as short as they can be said."""

import msgspec

from headwater.processors.code.state import CodeRun, Entry
from headwater.processors.runs.decisions import Reached, RetryPolicy
from headwater.processors.runs.state import Received
from headwater.schemas.history import Child, Failure, Parent
from headwater.schemas.statuses import EntryKind, EntryStatus, RunStatus

NOW_MS = 1_767_225_600_000
PARENT = Parent("parent", "p-1", 0, "bill")
CHILD = Child("invoice", "inv-1")
FAILURE = Failure("Unreachable", "no answer")
POLICY = RetryPolicy(2, 1_000, "linear")


def a_run(status: RunStatus = RunStatus.ACTIVE, **more: object) -> CodeRun:
    """A run; entries without a result are open."""
    run = CodeRun(
        workflow="order",
        instance_id="o-1",
        run_number=0,
        sequence=7,
        status=status,
        params="1",
        seed="seed",
        parent=None,
        created_at_ms=NOW_MS,
        started_at_ms=NOW_MS,
        updated_at_ms=NOW_MS,
    )
    run = msgspec.structs.replace(run, **more)
    unresolved = (EntryStatus.PENDING, EntryStatus.WAITING)
    run.open = {key: None for key, entry in run.entries.items() if entry.status in unresolved}
    return run


def an_entry(
    kind: EntryKind = EntryKind.DO, status: EntryStatus = EntryStatus.WAITING, **more: object
) -> Entry:
    """An entry of no matter what name."""
    entry = Entry(
        name="name", kind=kind, status=status, ordinal=0, created_at_ms=1, updated_at_ms=1
    )
    return msgspec.structs.replace(entry, **more)


def reached(key: str = "quote") -> Reached:
    """A step that code has come to."""
    return Reached(key, key, 3, NOW_MS - 5, 3, 600_000)


def mail(number: int, type_: str = "line", sent_at_ms: int = NOW_MS) -> Received:
    """An event in the mailbox."""
    return Received(f"evt-{number}", type_, str(number), sent_at_ms)


def copy_of(run: CodeRun) -> CodeRun:
    """The same state, sharing nothing."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(run), type=CodeRun)
