"""Headwater's processes, forked from one that has imported everything they need.

To import it takes a second of processor time, and tests start hundreds of processes. Each process
of tests has one that forks, which does nothing else, so that a child is as one that Python has
just started: it has no threads, its own arguments, variables and directory, and ends as a program
does. That parts start by themselves is what the tests of the command line and of upgrades show.

All children have the hashes of the one that forks, and so one order of sets: they are not what a
result may depend on, as `tests/simulation/test_hash_order.py` shows. Code hosts and evaluators,
which parts start, and the parts that those tests start, have hashes of their own.
"""

import gc
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Final

from typing_extensions import override

_ROOT: Final = Path(__file__).parents[1]
#: What parts import when they start.
_IMPORTED: Final = (
    "headwater.gateway.api.workflows.ticks",
    "headwater.gateway.cli.pipeline",
    "headwater.gateway.cli.projecting",
    "headwater.gateway.cli.serving",
    "headwater.gateway.cli.work",
)
#: Variables that Headwater or tests read when a process runs, unlike those of Python or Java.
_OURS: Final = ("HEADWATER_", "IMPATIENT_", "TEST_")
#: Of what Python reads when it starts, what can be made up for later, unless this file is there.
_PATH: Final = "PYTHONPATH"
_AT_START: Final = "sitecustomize.py"
_NUMBER: Final = struct.Struct(">i")


def start(
    module: str,
    arguments: Sequence[str],
    log: BinaryIO,
    directory: Path | None = None,
    **variables: str,
) -> "subprocess.Popen[bytes]":
    """Run a module of this Headwater as a program.

    Args:
        module: Its name.
        arguments: Its arguments.
        log: File for its output.
        directory: Directory it runs in; ours by default.
        variables: Environment variables in addition to ours.
    """
    env = {**os.environ, **variables}
    others = {name for name in variables if not name.startswith(_OURS)}
    folders = variables.get(_PATH, "").split(os.pathsep)
    if others <= {_PATH} and not any(Path(folder, _AT_START).exists() for folder in folders):
        return _forker().fork(module, arguments, env, directory or Path.cwd(), log)
    argv = [sys.executable, "-m", module, *arguments]
    return subprocess.Popen(argv, env=env, cwd=directory, stdout=log, stderr=log)


class _Forked(subprocess.Popen[bytes]):
    """A process that is no child of ours: its parent tells how it has ended."""

    def __init__(self, pid: int, status: int) -> None:
        # Without that of Popen, which would start a process.
        self.args, self.pid, self._status = (), pid, status
        self.stdin = self.stdout = self.stderr = None
        self.returncode: int | None = None

    @override
    def poll(self) -> int | None:
        return self._ended_within(0)

    @override
    def wait(self, timeout: float | None = None) -> int:
        code = self._ended_within(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def _ended_within(self, seconds: float | None) -> int | None:
        if self.returncode is None:
            ended = select.poll()
            ended.register(self._status, select.POLLIN)
            if ended.poll(None if seconds is None else 1_000 * seconds):
                (self.returncode,) = _NUMBER.unpack(os.read(self._status, _NUMBER.size))
                os.close(self._status)
        return self.returncode


class _Forker:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection, theirs = socket.socketpair()
        with theirs:
            argv = [sys.executable, "-m", __name__, str(theirs.fileno())]
            self._process = subprocess.Popen(
                argv, cwd=_ROOT, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )

    def fork(
        self,
        module: str,
        arguments: Sequence[str],
        env: Mapping[str, str],
        directory: Path,
        log: BinaryIO,
    ) -> _Forked:
        asked = json.dumps([module, arguments, env, str(directory)]).encode()
        status, told = os.pipe()
        with self._lock:
            length = _NUMBER.pack(len(asked))
            socket.send_fds(self._connection, [length], [log.fileno(), told])
            os.close(told)
            self._connection.sendall(asked)
            (pid,) = _NUMBER.unpack(self._connection.recv(_NUMBER.size, socket.MSG_WAITALL))
        return _Forked(pid, status)


@cache
def _forker() -> _Forker:
    return _Forker()


# -- the process that forks


def _await_order(connection: socket.socket) -> tuple[str, list[str], dict[str, str], str]:
    """Fork for each order, and return it in the child; exit with whoever orders."""
    statuses: dict[int, int] = {}
    woken, waking = socket.socketpair()
    waking.setblocking(False)
    signal.set_wakeup_fd(waking.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        readable, _, _ = select.select([connection, woken], [], [])
        if woken in readable:
            woken.recv(4096)
            _tell_ends(statuses)
        if connection not in readable:
            continue
        length, descriptors, _, _ = socket.recv_fds(connection, _NUMBER.size, 2)
        if not length:
            for pid in statuses:
                os.kill(pid, signal.SIGKILL)
            sys.exit()
        log, status = descriptors
        order: Any = json.loads(connection.recv(*_NUMBER.unpack(length), socket.MSG_WAITALL))
        pid = os.fork()
        if pid == 0:
            _begin_anew(log, [status, *statuses.values()], [connection, woken, waking])
            module, arguments, env, directory = order
            return module, arguments, env, directory
        os.close(log)
        statuses[pid] = status
        connection.sendall(_NUMBER.pack(pid))


def _begin_anew(log: int, descriptors: list[int], sockets: list[socket.socket]) -> None:
    """Leave nothing of who forked but what it has imported."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for end in sockets:
        end.close()
    os.dup2(log, 1)
    os.dup2(log, 2)
    for descriptor in (log, *descriptors):
        os.close(descriptor)


def _tell_ends(statuses: dict[int, int]) -> None:
    for pid in list(statuses):
        ended, code = os.waitpid(pid, os.WNOHANG)
        if ended:
            with suppress(BrokenPipeError):
                os.write(statuses[pid], _NUMBER.pack(os.waitstatus_to_exitcode(code)))
            os.close(statuses.pop(pid))


def _main() -> None:
    for name in _IMPORTED:
        import_module(name)
    assert threading.active_count() == 1, threading.enumerate()
    gc.collect()
    gc.freeze()
    module, arguments, env, directory = _await_order(socket.socket(fileno=int(sys.argv[1])))
    os.chdir(directory)
    sys.path[:1] = filter(None, [directory, *env.get(_PATH, "").split(os.pathsep)])
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    sys.argv = [module, *arguments]
    sys.orig_argv = [sys.executable, "-m", *sys.argv]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
