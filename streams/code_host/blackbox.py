"""What is left of a child process, however it ends: memory that its parent shares.

A child that is killed, or whose code crashes or holds the interpreter, can no longer report
whose turn it was. So it notes that beforehand, where it costs nothing: in memory that outlives it.
The pulse shows the parent whether the child still runs; no thread of the child could see that while
C code holds the interpreter. After the notes, Python's fault handler writes where the code was.
"""

import contextlib
import mmap
import os
import re
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from headwater.processors.runs.host_messages import AttemptStarted
from headwater.streams.code_host.frames import UNSENDABLE
from headwater.streams.deadlines import anonymous_file

#: EX_SOFTWARE of sysexits.h: an error of our own, whose traceback is in the log.
EXIT_BROKEN: Final = 70
#: Callbacks that were given up hold every thread.
EXIT_NO_THREADS: Final = 71

#: Turn, pulse, the length of the note, and threads that are held, 8 bytes each.
_TURN, _PULSE, _LENGTH, _HELD = range(4)
_HEAD: Final = 32
#: Room for the attempts that begin in one turn of the loop, some 100 bytes each.
_NOTE_MAX: Final = 1024 * 1024
_SIZE: Final = _HEAD + _NOTE_MAX
_NOBODY: Final = -1
#: Bytes that are read of the fault handler's report: several threads' worth.
_REPORT_MAX: Final = 64 * 1024

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(list[AttemptStarted])

_THREAD: Final = re.compile(r"^(?=(?:Current thread|Thread) )", re.MULTILINE)
_FRAME: Final = re.compile(r'^  File "(.+)", line (\d+|\?\?\?) in (.+)$', re.MULTILINE)
#: Where code lies that is not an author's.
_OTHERS: Final = (
    *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    str(Path(__file__).parents[2]),
    "<",
)


class BlackBox:
    """The memory, mapped by either process."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, _SIZE)
        self._head = memoryview(self._map)[:_HEAD].cast("q")

    @classmethod
    def create(cls) -> "BlackBox":
        """A new one, on a file without a name."""
        descriptor = anonymous_file("headwater-black-box", _SIZE)
        # The fault handler writes at the position of the file.
        os.lseek(descriptor, _SIZE, os.SEEK_SET)
        box = cls(descriptor)
        box.set_turn(None)
        return box

    def close(self) -> None:
        """Lets the memory go."""
        self._head.release()
        self._map.close()
        os.close(self.descriptor)

    # -- the child's side

    def set_turn(self, activation: int | None) -> None:
        """Notes whose code runs from now on."""
        head = self._head
        head[_TURN] = _NOBODY if activation is None else activation
        head[_PULSE] += 1

    def beat(self) -> None:
        """Notes that the event loop goes on."""
        self._head[_PULSE] += 1

    def hold_threads(self, number: int) -> None:
        """Notes how many threads callbacks hold that were given up and have not returned."""
        self._head[_HELD] = number

    def note(self, starting: Sequence[AttemptStarted]) -> bool:
        """Notes attempts that may run before the parent knows of them.

        Shape:  replaces the note before; False if they cannot be noted, or are too many.
        """
        self._head[_LENGTH] = 0
        if not starting:
            return True
        try:
            data = _ENCODER.encode(starting)
        except UNSENDABLE:
            return False
        fits = len(data) <= _NOTE_MAX
        if fits:
            self._map[_HEAD : _HEAD + len(data)] = data
            self._head[_LENGTH] = len(data)
        return fits

    # -- the parent's side

    @property
    def pulse(self) -> int:
        """A number that changes while the child goes on."""
        return self._head[_PULSE]

    @property
    def threads_held(self) -> int:
        """How many threads callbacks hold that were given up and have not returned."""
        return self._head[_HELD]

    def turn(self) -> int | None:
        """Whose code ran last, if it was in the middle of it."""
        turn = self._head[_TURN]
        return None if turn == _NOBODY else turn

    def starting(self) -> list[AttemptStarted]:
        """The attempts of the last note."""
        data = self._map[_HEAD : _HEAD + self._head[_LENGTH]]
        # Whoever may write to the memory may also write nonsense.
        with contextlib.suppress(msgspec.DecodeError):
            return _DECODER.decode(data) if data else []
        return []

    def crash_report(self) -> str:
        """Where each thread stood when the child was aborted or crashed; empty otherwise."""
        return os.pread(self.descriptor, _REPORT_MAX, _SIZE).decode(errors="replace").rstrip()


def place_of(report: str) -> str:
    """The author's line in a report, of the crashed thread first; empty if there is none.

    Shape:  the text of `BlackBox.crash_report` -> `file, line n, in function`.
    """
    threads = [thread.partition("\n")[::2] for thread in _THREAD.split(report)[1:]]
    threads.sort(key=lambda thread: "Current" not in thread[0])
    for _, frames in threads:
        for file, line, function in _FRAME.findall(frames):
            if not file.startswith(_OTHERS):
                return f"{file}, line {line}, in {function}"
    return ""
