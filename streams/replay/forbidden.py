"""Refuses what workflow code must not use, and warns when it reads the clock or random numbers.

The workflow's loop refuses operations of asyncio (`loop.py`). This module covers operations that
bypass asyncio. Python reports most of them to an audit hook (PEP 578) before they happen, however
the function was imported. Functions that older versions do not report, the clock, and random
numbers are wrapped. Libraries may use the clock and random numbers harmlessly, so those only cause
a warning. `datetime.now` is not covered: Python's built-in types cannot be patched.
Steps run on other loops, or in threads without one, and may use all of it.
"""

import asyncio
import functools
import os
import random  # noqa: TID251 (patched here, where authors call it)
import secrets
import sys
import sysconfig
import threading
import time
import uuid
import zoneinfo
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from headwater.processors.code.errors import NonDeterministicError
from headwater.streams.replay.loop import WorkflowLoop

if TYPE_CHECKING:
    from types import FrameType

_SOCKET: Final = ("a socket", "use it inside step.do")
_NAMES: Final = ("a look-up of a host's name", "do it inside step.do")
_PROCESS: Final = ("a process", "start it inside step.do")
_FILE: Final = ("files", "read and write them inside step.do")

#: What is refused, by audit event: its description, and what to use instead.
_REFUSED: Final = {
    "open": _FILE,
    "os.chmod": _FILE,
    "os.link": _FILE,
    "os.listdir": _FILE,
    "os.mkdir": _FILE,
    "os.remove": _FILE,
    "os.rename": _FILE,
    "os.rmdir": _FILE,
    "os.scandir": _FILE,
    "os.symlink": _FILE,
    "os.truncate": _FILE,
    "os.utime": _FILE,
    "sqlite3.connect": _FILE,
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

#: Functions that return random values, by module.
_RANDOM: Final[dict[ModuleType, tuple[str, ...]]] = {
    os: ("urandom",),
    random: (
        "choice", "choices", "gauss", "getrandbits", "randbytes", "randint", "random", "randrange",
        "sample", "shuffle", "uniform",
    ),
    secrets: ("choice", "randbelow", "randbits", "token_bytes", "token_hex", "token_urlsafe"),
    uuid: ("uuid1", "uuid4"),
}  # fmt: skip

#: Modules of tools that run within workflow code. Debuggers sleep and start threads at a
#: breakpoint: the standard library's and tools based on it, and that of PyCharm and VS Code. Log
#: handlers open a socket or start a thread for the first line. Imports read files, and tracebacks
#: read source lines.
_TOOLS: Final = frozenset(
    {"bdb", "importlib._bootstrap", "linecache", "logging", "pydevd", "tokenize", "warnings"}
)

#: Calls from the standard library are attributed to its caller.
_LIBRARY: Final = sysconfig.get_path("stdlib")
_PACKAGES: Final = "site-packages"
_OURS: Final = "headwater."


@functools.cache
def refuse_in_workflows() -> None:
    """Start refusing in this process. It cannot be undone: audit hooks cannot be removed.

    `time.sleep` that was imported under its own name before this call is not refused.
    """
    sys.addaudithook(_on_audit)
    time.sleep = _checked(time.sleep, "time.sleep", "use step.sleep")
    threading.Thread.start = _checked(  # type: ignore[method-assign]
        threading.Thread.start, "a thread", "use step.do, and the thread inside it"
    )
    for name in ("time", "time_ns"):
        warned = _warned(getattr(time, name), "reads clock values", "await step.now()")
        setattr(time, name, warned)
    for module, names in _RANDOM.items():
        for name in names:
            warned = _warned(
                getattr(module, name), "reads random numbers", "await step.random() or uuid()"
            )
            setattr(module, name, warned)


def _on_audit(event: str, arguments: tuple[object, ...]) -> None:
    # Python still calls the hook after it has cleared this module.
    if (
        _REFUSED
        and event in _REFUSED
        and not (event == "open" and _is_time_zone_file(arguments[0]))
    ):
        _check(*_REFUSED[event])


def _is_time_zone_file(path: object) -> bool:
    """Whether a file has time zone rules, which `ZoneInfo` reads when a zone is first used."""
    return isinstance(path, str) and path.startswith(zoneinfo.TZPATH)


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


def _warned(function: Callable[..., Any], action: str, instead: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def warned(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401, whatever the function takes
        loop = asyncio._get_running_loop()  # noqa: SLF001
        if isinstance(loop, WorkflowLoop):
            caller = _caller()
            if caller is not None:
                loop.warn(
                    caller,
                    f"{caller} {action}, which differ on a replay; decisions based on them may "
                    f"not fit the history then. Use {instead}, or do it inside step.do",
                )
        return function(*args, **kwargs)

    return warned


def _caller() -> str | None:
    """Return file and line of the author's or a library's code; None for tools and Headwater."""
    for frame in _frames():
        module, file = frame.f_globals.get("__name__", ""), frame.f_code.co_filename
        if module == __name__:
            continue
        if module in _TOOLS or module.startswith(_OURS):
            return None
        if _PACKAGES in file or not file.startswith(_LIBRARY):
            return f"{file}:{frame.f_lineno}"
    return None


def _is_tool() -> bool:
    """Whether the checked call is made by a tool that runs within workflow code."""
    return any(frame.f_globals.get("__name__") in _TOOLS for frame in _frames())


def _frames() -> "Iterator[FrameType]":
    """Yield the frames of the workflow's code and its callees, innermost first.

    Frames outside of the workflow's loop are ignored: a whole program may run under a debugger.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None and frame.f_globals.get("__name__") != WorkflowLoop.__module__:
        yield frame
        frame = frame.f_back
