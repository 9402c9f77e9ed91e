"""What a workflow's own code may not do to the process that runs it, nor ask the process for."""

import asyncio
import bdb
import contextlib
import importlib
import linecache
import logging
import os
import random
import secrets
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import uuid
import zoneinfo
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import pytest

from headwater import (
    JoinError,
    NonDeterministicError,
    NonRetryableError,
    Step,
    WorkflowEvent,
    WorkflowTest,
    workflow,
)
from headwater.streams.clock import now_ms
from headwater.streams.replay.loop import WorkflowLoop
from tests.workflows.running import Instance, begin, error_of, failure, output, output_of, run


def protocol() -> asyncio.Protocol:
    return asyncio.Protocol()


#: How code asks for the world outside, and by what name the refusal knows it.
ASKED = {
    "create_connection": lambda: asyncio.open_connection("localhost", 1),
    "create_server": lambda: asyncio.start_server(protocol, "localhost", 1),
    "subprocess_exec": lambda: asyncio.create_subprocess_exec("true"),
    "subprocess_shell": lambda: asyncio.create_subprocess_shell("true"),
    "create_unix_connection": lambda: asyncio.open_unix_connection("nowhere"),
    "getaddrinfo": lambda: asyncio.get_running_loop().getaddrinfo("localhost", 1),
    "getnameinfo": lambda: asyncio.get_running_loop().getnameinfo(("127.0.0.1", 1)),
    "add_reader": lambda: asyncio.get_running_loop().add_reader(0, print),
    "add_signal_handler": lambda: asyncio.get_running_loop().add_signal_handler(2, print),
    "sock_recv": lambda: asyncio.get_running_loop().sock_recv(None, 1),
    "run_until_complete": lambda: asyncio.get_running_loop().run_until_complete(None),
    "stop": lambda: asyncio.get_running_loop().stop(),
    "a thread": lambda: asyncio.to_thread(print),
    "timers": lambda: asyncio.sleep(1),
    "the clock": lambda: asyncio.get_running_loop().time(),
}


@pytest.mark.parametrize("what", ASKED)
def test_what_needs_the_world_outside_is_refused(what: str):
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await ASKED[what]()

    error = failure(order)
    assert error.name == "NonDeterministicError"
    assert what in error.message
    assert "step." in error.message


#: What goes around asyncio, and by what name the refusal knows it.
AROUND = {
    "socket.socket": ("a socket", lambda: socket.socket().close()),
    "socket.create_connection": ("a look-up", lambda: socket.create_connection(("localhost", 1))),
    "socket.gethostbyname": ("a look-up", lambda: socket.gethostbyname("localhost")),
    "Thread.start": ("a thread", lambda: threading.Thread(target=print).start()),
    "Timer.start": ("a thread", lambda: threading.Timer(0, print).start()),
    "ThreadPoolExecutor": ("a thread", lambda: ThreadPoolExecutor(1).submit(int)),
    "subprocess.run": ("a process", lambda: subprocess.run(["true"], check=True)),
    "os.system": ("a process", lambda: os.system("true")),  # noqa: S605
    "time.sleep": ("time.sleep", lambda: time.sleep(0)),
    "open": ("files", lambda: open(__file__).close()),  # noqa: PTH123
    "Path.write_text": ("files", lambda: Path(os.devnull).write_text("1")),
    "os.listdir": ("files", lambda: os.listdir("/")),  # noqa: PTH208
    "tempfile": ("files", lambda: tempfile.TemporaryFile().close()),
    "sqlite3.connect": ("files", lambda: sqlite3.connect(":memory:").close()),
}


@pytest.mark.parametrize("name", AROUND)
def test_what_goes_around_the_loop_is_refused(name: str):
    what, use = AROUND[name]

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        use()

    error = failure(order)
    assert error.name == "NonDeterministicError"
    assert what in error.message
    assert "step." in error.message


@pytest.mark.parametrize("name", AROUND)
def test_what_goes_around_the_loop_is_refused_in_a_branch_and_after_a_step(name: str):
    _, use = AROUND[name]

    async def branch(step: Step) -> None:
        await step.do("work", lambda: 1)
        use()

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        try:
            await step.join("both", left=branch)
        except JoinError as error:
            return error.errors["left"].name
        return None

    assert output(order) == "NonDeterministicError"


#: The same, where nothing has to listen.
ALLOWED = {
    **{name: use for name, (_, use) in AROUND.items()},
    "socket.create_connection": lambda: socket.getaddrinfo("127.0.0.1", 1),
    "socket.gethostbyname": lambda: socket.gethostbyname("127.0.0.1"),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_steps_and_rollbacks_may_go_around_the_loop(name: str):
    used: list[str] = []

    def use(what: str) -> None:
        ALLOWED[name]()
        used.append(what)

    async def later() -> None:
        await asyncio.sleep(0)
        use("async")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.checkpoint("begin")
        await step.do("sync", lambda: use("sync"), rollback=lambda _: use("rollback"))
        await step.do("async", later)
        raise NonRetryableError("sold out")

    assert failure(order).name == "NonRetryableError"
    assert used == ["sync", "async", "rollback"]


class Shipping(logging.Handler):
    """Sends lines from a thread that it starts for the first of them, as many handlers do."""

    def emit(self, record: logging.LogRecord) -> None:
        thread = threading.Thread(target=time.sleep, args=(0,))
        thread.start()
        thread.join()


def test_a_handler_of_logs_may_start_a_thread_for_a_line_of_workflow_code():
    log = logging.getLogger("tests.shipped")
    log.addHandler(Shipping())

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> str:
        log.warning("on its way")
        return "went on"

    assert output(order) == "went on"


def test_what_a_tool_reads_for_workflow_code_is_no_file_of_its_own(tmp_path: Path):
    (tmp_path / "imported_late.py").write_text("VALUE = 7\n")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> list[object]:
        module = importlib.import_module("imported_late")
        try:
            int("no number")  # shown with its line
        except ValueError:
            shown = traceback.format_exc()
        zone = zoneinfo.ZoneInfo.no_cache("Pacific/Auckland")
        return [module.VALUE, "shown with its line" in shown, zone.key]

    sys.path.insert(0, str(tmp_path))
    linecache.clearcache()
    try:
        assert output(order) == [7, True, "Pacific/Auckland"]
    finally:
        sys.path.remove(str(tmp_path))


#: What asks for something that a replay would get otherwise, and what is to be used instead. Each
#: is looked up in its module when it is called.
DIFFERENT = {
    "time.time": (lambda: round(time.time()), "step.now()"),
    "time.time_ns": (lambda: time.time_ns() // 2, "step.now()"),
    "random.random": (lambda: random.random() + 1, "step.random()"),
    "random.shuffle": (lambda: random.shuffle([1, 2]), "step.random()"),
    "uuid.uuid4": (lambda: str(uuid.uuid4()), "uuid()"),
    "secrets.token_hex": (lambda: secrets.token_hex(4), "uuid()"),
    "os.urandom": (lambda: os.urandom(1), "uuid()"),
}


async def warnings_of(instance: Instance) -> list[str]:
    logs = (await instance.history()).logs
    return [line.message for line in logs if (line.level, line.category) == ("warn", "system")]


@pytest.mark.parametrize("name", DIFFERENT)
def test_who_asks_the_clock_or_chance_is_warned_once_for_each_place(name: str):
    ask, instead = DIFFERENT[name]

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> str:
        for number in range(2):
            ask()
            await step.sleep(f"nap {number}", "1 minute")
        await step.do("ask", lambda: str(ask()))
        return "done"

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 minute")
        await test.crash()
        await test.advance("1 minute")
        assert await output_of(instance) == "done"
        (said,) = await warnings_of(instance)
        assert said.startswith(f"{__file__}:")
        assert instead in said

    run(scenario, order)


def test_who_asks_the_time_for_a_line_is_not_warned_of():
    log = logging.getLogger("tests.timed")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> str:
        log.warning("a line has a time")
        assert now_ms() > 0  # As our own log asks it, in a code host.
        return "done"

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert await output_of(instance) == "done"
        assert not await warnings_of(instance)

    run(scenario, order)


class Debugger(bdb.Bdb):
    """Waits at each stop, as one does for what its user types, and then lets the code go on."""

    def user_line(self, frame: FrameType) -> None:
        time.sleep(0)
        self.clear_all_breaks()
        self.set_continue()


def test_a_debugger_may_wait_at_a_breakpoint_in_workflow_code():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> str:
        tracing = sys.gettrace()
        Debugger().set_trace()
        sys.settrace(tracing)
        return "went on"

    assert output(order) == "went on"


def test_workflow_code_is_refused_the_same_in_a_program_under_a_debugger():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        time.sleep(0)  # noqa: ASYNC251, what is tested

    tracing = sys.gettrace()
    error = Debugger().runcall(failure, order)
    sys.settrace(tracing)
    assert error.name == "NonDeterministicError"


def test_no_method_of_an_event_loop_is_left_out():
    loop = WorkflowLoop(lambda place, text: None)
    refused = []
    for name in vars(asyncio.AbstractEventLoop):
        if name.startswith("_"):
            continue
        method = getattr(loop, name)
        assert method.__qualname__ != f"AbstractEventLoop.{name}"
        try:
            method()
        except NonDeterministicError:
            refused.append(name)
        except TypeError:
            assert name in vars(WorkflowLoop)
    assert len(refused) > 40


def test_a_step_may_use_the_world_outside():
    async def ask() -> int:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        server.close()
        await server.wait_closed()
        return 5

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return await step.do("ask", ask)

    assert output(order) == 5


async def gathered(boom: Callable) -> None:
    await asyncio.gather(boom())


async def in_a_task(boom: Callable) -> None:
    await asyncio.create_task(boom())


async def in_a_task_of_a_task(boom: Callable) -> None:
    await asyncio.create_task(in_a_task(boom))


async def set_on_a_future(boom: Callable) -> None:
    future = asyncio.get_running_loop().create_future()

    async def fail() -> None:
        try:
            await boom()
        except BaseException as error:  # noqa: BLE001, it is handed on
            future.set_exception(type(error)("leaving"))

    async def wait() -> None:
        await future

    waiting = asyncio.create_task(wait())
    await asyncio.create_task(fail())
    await waiting


async def waited_for(boom: Callable) -> None:
    done, _ = await asyncio.wait([asyncio.create_task(boom())])
    done.pop().result()


@workflow("bystander")
async def bystander(event: WorkflowEvent, step: Step) -> str:
    await step.sleep("nap", "1 minute")
    return "fine"


@pytest.mark.parametrize(
    "how", [gathered, in_a_task, in_a_task_of_a_task, waited_for, set_on_a_future]
)
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_a_task_that_leaves_fails_its_run_only(kind: type[BaseException], how: Callable):
    async def boom() -> None:
        raise kind("leaving")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await how(boom)

    async def scenario(test: WorkflowTest) -> None:
        other = await test.create("bystander", id="other")
        error = await error_of(await begin(test))
        assert (error.name, error.message) == (kind.__name__, "leaving")
        await test.advance("1 minute")
        assert await output_of(other) == "fine"

    run(scenario, order, bystander)


@pytest.mark.parametrize("kind", [ValueError, SystemExit])
def test_a_task_that_fails_and_that_nobody_awaits_is_a_line_of_the_log(kind: type[BaseException]):
    async def boom() -> None:
        raise kind("unseen")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> str:
        tasks = [asyncio.create_task(boom()) for _ in range(2)]
        await step.do("work", lambda: 1)
        with contextlib.suppress(kind):
            await tasks[1]
        return "done"

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert await output_of(instance) == "done"
        (line,) = (await instance.history()).logs
        assert (line.level, line.category) == ("warn", "system")
        assert f"boom failed unseen: {kind.__name__}: unseen" in line.message

    run(scenario, order)
