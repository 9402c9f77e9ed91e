"""Refuses what a workflow's own code may not use, and warns where it asks the clock or chance.

The workflow's loop refuses what asyncio would do (`loop.py`). What goes around asyncio is met here.
Python reports most of it to an audit hook (PEP 578) before it happens, under whatever name it was
imported; what older versions do not report, and clock and chance, have a check put in front. A
library may ask for these without any harm, so they are no error. `datetime.now` is out of reach:
Python's own types cannot be changed.
Steps run on other loops, or in threads without one, and may use all of it.
"""

import asyncio
import functools
import os
import random  # noqa: TID251 (what authors call is met here)
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

from headwater.processors.replay.errors import NonDeterministicError
from headwater.streams.replay.loop import WorkflowLoop

if TYPE_CHECKING:
    from types import FrameType

_SOCKET: Final = ("a socket", "use it inside step.do")
_NAMES: Final = ("a look-up of a host's name", "do it inside step.do")
_PROCESS: Final = ("a process", "start it inside step.do")
_FILE: Final = ("files", "read and write them inside step.do")

#: What Python calls it, by the names of audit events, and what to do instead.
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

#: What is drawn at random, by module.
_DRAWN: Final[dict[ModuleType, tuple[str, ...]]] = {
    os: ("urandom",),
    random: (
        "choice", "choices", "gauss", "getrandbits", "randbytes", "randint", "random", "randrange",
        "sample", "shuffle", "uniform",
    ),
    secrets: ("choice", "randbelow", "randbits", "token_bytes", "token_hex", "token_urlsafe"),
    uuid: ("uuid1", "uuid4"),
}  # fmt: skip

#: What runs inside a workflow's code and is none of it. Debuggers sleep and start threads while
#: they wait at a breakpoint: the standard library's, with what builds on it, and that of PyCharm
#: and VS Code. Handlers of logs open a socket, or start a thread, for the first line. Modules are
#: imported from files, and errors show their lines.
_TOOLS: Final = frozenset(
    {"bdb", "importlib._bootstrap", "linecache", "logging", "pydevd", "tokenize", "warnings"}
)

#: Python's own library asks for whoever has called it.
_LIBRARY: Final = sysconfig.get_path("stdlib")
_PACKAGES: Final = "site-packages"
_OURS: Final = "headwater."


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
    for name in ("time", "time_ns"):
        asked = _warned(getattr(time, name), "the clock", "await step.now()")
        setattr(time, name, asked)
    for module, names in _DRAWN.items():
        for name in names:
            drawn = _warned(getattr(module, name), "for chance", "await step.random() or uuid()")
            setattr(module, name, drawn)


def _on_audit(event: str, arguments: tuple[object, ...]) -> None:
    if event in _REFUSED and not (event == "open" and _is_of_time_zones(arguments[0])):
        _check(*_REFUSED[event])


def _is_of_time_zones(path: object) -> bool:
    """Whether a file has the rules of a zone, which `ZoneInfo` reads when it meets the zone."""
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


def _warned(function: Callable[..., Any], asked: str, instead: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def warned(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401, whatever the function takes
        loop = asyncio._get_running_loop()  # noqa: SLF001
        if isinstance(loop, WorkflowLoop):
            place = _place()
            if place is not None:
                loop.warn(
                    place,
                    f"{place} asks {asked}, which a replay would answer otherwise; what is decided "
                    f"by it may not fit the history then. Use {instead}, or ask inside step.do",
                )
        return function(*args, **kwargs)

    return warned


def _place() -> str | None:
    """Where the author's code, or a library of theirs, asks; None if a tool does, or we do."""
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
    """Whether a tool that the workflow's code has run into does what is checked."""
    return any(frame.f_globals.get("__name__") in _TOOLS for frame in _frames())


def _frames() -> "Iterator[FrameType]":
    """The frames of the workflow's code and of what it has called, the innermost first.

    What lies outside of the loop does not count: a whole program may run under a debugger.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None and frame.f_globals.get("__name__") != WorkflowLoop.__module__:
        yield frame
        frame = frame.f_back
