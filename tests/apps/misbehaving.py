"""Workflows whose code misbehaves, each in its own way; the host must live with all of them."""

import asyncio
import contextlib
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

from headwater import Retry, Step, WorkflowEvent, workflow
from headwater.processors.code.host_messages import Log

SOON = Retry(limit=2, delay="1 second", backoff="constant")
ONCE = Retry(limit=0)

EVENT = WorkflowEvent[object]
#: Nobody sets it: to wait for it blocks, and unlike sleeping it is not refused to a body.
NEVER = threading.Event()
_FOUR = threading.Barrier(4)


async def soon() -> str:
    """Ends in its first turn."""
    return "soon"


async def later() -> str:
    """Ends in a later turn."""
    await asyncio.sleep(0.01)
    return "later"


@workflow("all-kinds")
async def all_kinds(_: EVENT, step: Step) -> object:
    """Steps of all kinds."""
    at_once = await step.do("at once", soon)
    waited = await step.do("waited", later)
    blocking = await step.do("blocking", lambda: "in a thread")
    awaitable = await step.do("awaitable", lambda: later())  # noqa: PLW0108, calls it in a thread
    gathered = await step.do("gathered", lambda: asyncio.gather(later(), later()))
    posted = await step.do("posted", lambda tx: tx.publish("things", "key", 1))
    await step.sleep("a while", "1 second")
    await step.log.info("from the body")
    await step.do("logging", lambda: asyncio.run(step.log.info("from a thread")))
    await step.do("printing", lambda: print("an author's print"))  # noqa: T201
    both = await step.join("both", one=_branch, two=_branch)
    return [at_once, waited, blocking, awaitable, gathered, posted, both["one"], both["two"]]


async def _branch(step: Step) -> str:
    return await step.do("branch", later)


@workflow("races")
async def races(_: EVENT, step: Step) -> None:
    """The loser of a race has begun to work, and its winner waits for long."""

    async def slow(inner: Step) -> None:
        await inner.do("work", lambda: asyncio.sleep(60))

    async def quick(inner: Step) -> None:
        await inner.do("work", lambda: asyncio.sleep(0.2))

    await step.race("first", slow=slow, quick=quick)
    await step.wait_for_event("word", type="word")


@workflow("asks-first")
async def asks_first(_: EVENT, step: Step) -> str:
    """Waits for a while, then ends."""
    await step.sleep("a while", "2 seconds")
    return await step.do("then", soon)


@workflow("blocks-in-a-thread")
async def blocks_in_a_thread(_: EVENT, step: Step) -> str:
    await step.do("block", lambda: time.sleep(0.3))
    return "slow"


@workflow("meets-in-threads")
async def meets_in_threads(event: WorkflowEvent[str], step: Step) -> str:
    """A callback that blocks its thread until four do so at once, and there is a file."""

    def block() -> None:
        _FOUR.wait(60)
        while not Path(event.payload).exists():
            time.sleep(0.01)

    await step.do("block", block)
    return "met"


@workflow("quick")
async def quick(_: EVENT, step: Step) -> str:
    return await step.do("step", soon)


@workflow("blocks-the-loop")
async def blocks_the_loop(event: WorkflowEvent[str], step: Step) -> str:
    """A step that blocks the event loop the first time."""

    async def block() -> str:
        if _first_time(event.payload):
            time.sleep(60)  # noqa: ASYNC251, that is the point
        return "at last"

    return await step.do("block", block, retries=SOON)


@workflow("blocks-in-its-body")
async def blocks_in_its_body(event: WorkflowEvent[str], step: Step) -> str:
    """A body that blocks the first time."""
    await step.do("before", soon)
    if _first_time(event.payload):
        NEVER.wait(60)
    return "at last"


@workflow("cannot-be-sent")
async def cannot_be_sent(_: EVENT, step: Step) -> object:
    # All that authors write is checked before; this stands for what a check has missed.
    step.run.send(Log("info", "workflow", "\udcff", None, None, None, is_replay=False))
    return await step.do("work", soon)


@workflow("blocks-at-once")
async def blocks_at_once(_: EVENT, _step: Step) -> None:
    NEVER.wait(60)


@workflow("always-blocks")
async def always_blocks(_: EVENT, step: Step) -> str:
    await step.do("before", soon)
    NEVER.wait(60)
    return "never"


@workflow("holds-the-interpreter")
async def holds_the_interpreter(_: EVENT, step: Step) -> int:
    """C code that lets no other thread run, such as a regular expression that backtracks."""
    await step.do("before", soon)
    return sum(range(10**11))


@workflow("dies-in-its-body")
async def dies_in_its_body(event: WorkflowEvent[str], step: Step) -> str:
    await step.do("before", soon)
    if _first_time(event.payload):
        os.kill(os.getpid(), signal.SIGSEGV)
    return "at last"


@workflow("exits-in-a-step")
async def exits_in_a_step(event: WorkflowEvent[str], step: Step) -> str:
    """A step that ends the process in its first turn, the first time."""

    async def leave() -> str:
        if _first_time(event.payload):
            os._exit(1)
        return "at last"

    return await step.do("leave", leave, retries=SOON)


@workflow("crashes-in-a-thread")
async def crashes_in_a_thread(event: WorkflowEvent[str], step: Step) -> str:
    def crash() -> str:
        if _first_time(event.payload):
            os.kill(os.getpid(), signal.SIGSEGV)
            time.sleep(60)
        return "at last"

    return await step.do("crash", crash, retries=SOON)


@workflow("wants-to-exit")
async def wants_to_exit(event: WorkflowEvent[str], step: Step) -> None:
    """Code that raises SystemExit wherever code may, or KeyboardInterrupt."""

    kind = KeyboardInterrupt if event.payload == "interrupted task" else SystemExit

    async def leave(_: Step | None = None) -> None:
        raise kind(3)

    async def leave_in_a_task() -> None:
        await asyncio.create_task(leave())

    match event.payload:
        case "body":
            sys.exit(3)
        case "branch":
            await step.join("both", one=leave, two=leave)
        case "task" | "interrupted task":
            await asyncio.gather(leave())
        case "step":
            await step.do("leave", leave, retries=ONCE)
        case "thread":
            await step.do("leave", lambda: sys.exit(3), retries=ONCE)
        case "task of a step":
            await step.do("leave", leave_in_a_task, retries=ONCE)


@workflow("large")
async def large(_: EVENT, step: Step) -> int:
    text = await step.do("large", lambda: "x" * (1024 * 1024 - 100))
    again = await step.do("larger", lambda: "y" * (1024 * 1024 - 100))
    return len(text) + len(again)


@workflow("leaves-a-mark")
async def leaves_a_mark(event: EVENT, step: Step) -> None:
    await step.do("mark", lambda: _first_time(event.payload))


@workflow("leaves-a-program")
async def leaves_a_program(_: EVENT, step: Step) -> int:
    """Starts a program that outlives it, and inherits what it can."""

    def start() -> int:
        return subprocess.Popen(["sleep", "60"], close_fds=False).pid

    pid = await step.do("start", start)
    await step.do("end", lambda: os.kill(pid, signal.SIGTERM))
    return pid


@workflow("closes-everything")
async def closes_everything(_: EVENT, step: Step) -> None:
    await step.do("close", lambda: os.closerange(3, 100), retries=ONCE)


@workflow("writes-to-every-pipe")
async def writes_to_every_pipe(event: WorkflowEvent[str], step: Step) -> str:
    """Writes what is no message to all that is open, the first time."""

    async def write() -> str:
        if _first_time(event.payload):
            for descriptor in range(3, 100):
                with contextlib.suppress(OSError):
                    if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                        os.write(descriptor, b"\xff" * 100_000)
        return "at last"

    return await step.do("write", write, retries=SOON)


@workflow("forks")
async def forks(event: WorkflowEvent[str], step: Step) -> int:
    """Forks a process that returns into the host's code, in a thread and in its loop."""

    def fork() -> int:
        pid = os.fork()
        return pid and os.waitpid(pid, 0)[1]

    async def fork_in_the_loop() -> int:
        return fork()

    return await step.do("fork", fork if event.payload == "thread" else fork_in_the_loop)


def _first_time(marker: str) -> bool:
    """Whether nobody has asked with this file before; survives the process.

    Bodies ask, too, which may open no file: of a pipe with a name Python reports nothing.
    """
    try:
        os.mkfifo(marker)
    except FileExistsError:
        return False
    return True
