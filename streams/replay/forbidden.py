"""Refuses what a workflow's own code may not use: threads, processes, sockets, and sleeping.

The workflow's loop refuses what asyncio would do (`loop.py`). What goes around asyncio is met here.
Python reports most of it to an audit hook (PEP 578) before it happens, under whatever name it was
imported; sleeping and threads, which older versions do not report, have a check put in front.
Steps run on other loops, or in threads without one, and may use all of it.
"""

import asyncio
import functools
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from headwater.processors.replay.errors import NonDeterministicError
from headwater.streams.replay.loop import WorkflowLoop

if TYPE_CHECKING:
    from types import FrameType

_SOCKET: Final = ("a socket", "use it inside step.do")
_NAMES: Final = ("a look-up of a host's name", "do it inside step.do")
_PROCESS: Final = ("a process", "start it inside step.do")

#: What Python calls it, by the names of audit events, and what to do instead.
_REFUSED: Final = {
    "socket.__new__": _SOCKET,
    "socket.getaddrinfo": _NAMES,
    "socket.gethostbyaddr": _NAMES,
    "socket.gethostbyname": _NAMES,
    "socket.getnameinfo": _NAMES,
    "subprocess.Popen": _PROCESS,
    "os.exec": _PROCESS,
    "os.fork": _PROCESS,
    "os.forkpty": _PROCESS,
    "os.posix_spawn": _PROCESS,
    "os.spawn": _PROCESS,
    "os.startfile": _PROCESS,
    "os.system": _PROCESS,
}

#: What runs inside a workflow's code and is none of it. Debuggers sleep and start threads while
#: they wait at a breakpoint: the standard library's, with what builds on it, and that of PyCharm
#: and VS Code. Handlers of logs open a socket, or start a thread, for the first line.
_TOOLS: Final = frozenset({"bdb", "logging", "pydevd"})


@functools.cache
def refuse_in_workflows() -> None:
    """Refuses it from now on, in this process: Python offers no way to remove an audit hook.

    Shape:  `time.sleep` under a name of its own is refused only if it was imported after this.
    """
    sys.addaudithook(_on_audit)
    time.sleep = _checked(time.sleep, "time.sleep", "use step.sleep")
    threading.Thread.start = _checked(  # type: ignore[method-assign]
        threading.Thread.start, "a thread", "use step.do, and the thread inside it"
    )


def _on_audit(event: str, _: object) -> None:
    if event in _REFUSED:
        _check(*_REFUSED[event])


def _checked(function: Callable[..., Any], what: str, instead: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401, whatever the function takes
        _check(what, instead)
        return function(*args, **kwargs)

    return checked


def _check(what: str, instead: str) -> None:
    if isinstance(asyncio._get_running_loop(), WorkflowLoop) and not _is_tool():  # noqa: SLF001
        raise NonDeterministicError(
            f"a workflow's own code may not use {what}, because a replay would do it again, and "
            f"other runs wait for it; {instead}"
        )


def _is_tool() -> bool:
    """Whether a tool that the workflow's code has run into does what is checked.

    What lies outside of the loop does not count: a whole program may run under a debugger.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if module == WorkflowLoop.__module__:
            return False
        if module in _TOOLS:
            return True
        frame = frame.f_back
    return False
