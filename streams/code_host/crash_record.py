"""Crash record of a child process: memory shared with its parent, which survives the child.

A child that is killed, crashes, or is stuck in C code cannot report which run was executing. It
therefore records that in advance, at no cost, in shared memory. The pulse shows the parent whether
the child makes progress; a thread of the child could not do this while C code holds the
interpreter. After the recorded data, Python's fault handler writes the stacks of all threads.
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

#: EX_SOFTWARE of sysexits.h: an error in Headwater, whose traceback is in the log.
EXIT_BROKEN: Final = 70
#: Abandoned callbacks hold every thread.
EXIT_NO_THREADS: Final = 71

#: Offsets of the current activation, pulse, data length, and held threads, 8 bytes each.
_TURN, _PULSE, _LENGTH, _HELD = range(4)
_HEAD: Final = 32
#: Space for the attempts that start in one iteration of the loop, some 100 bytes each.
_NOTE_MAX: Final = 1024 * 1024
_SIZE: Final = _HEAD + _NOTE_MAX
_NONE: Final = -1
#: Bytes read of the fault handler's report, enough for several threads.
_REPORT_MAX: Final = 64 * 1024

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(list[AttemptStarted])

_THREAD: Final = re.compile(r"^(?=(?:Current thread|Thread) )", re.MULTILINE)
_FRAME: Final = re.compile(r'^  File "(.+)", line (\d+|\?\?\?) in (.+)$', re.MULTILINE)
#: Prefixes of files that are not an author's.
_OTHERS: Final = (
    *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    str(Path(__file__).parents[2]),
    "<",
)


class CrashRecord:
    """The shared memory, mapped by either process."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, _SIZE)
        self._head = memoryview(self._map)[:_HEAD].cast("q")

    @classmethod
    def create(cls) -> "CrashRecord":
        """Create a record on an anonymous file."""
        descriptor = anonymous_file("headwater-crash-record", _SIZE)
        # The fault handler writes at the current position of the file.
        os.lseek(descriptor, _SIZE, os.SEEK_SET)
        record = cls(descriptor)
        record.set_turn(None)
        return record

    def close(self) -> None:
        """Unmap the memory and close the file."""
        self._head.release()
        self._map.close()
        os.close(self.descriptor)

    # -- written by the child

    def set_turn(self, activation: int | None) -> None:
        """Record which activation's code runs from now on."""
        head = self._head
        head[_TURN] = _NONE if activation is None else activation
        head[_PULSE] += 1

    def beat(self) -> None:
        """Record that the event loop makes progress."""
        self._head[_PULSE] += 1

    def set_threads_held(self, number: int) -> None:
        """Record how many threads are held by abandoned callbacks."""
        self._head[_HELD] = number

    def record_starting(self, starting: Sequence[AttemptStarted]) -> bool:
        """Record attempts that may run before the parent knows of them.

        Replaces the attempts recorded before.

        Returns:
            False if they cannot be encoded, or are too many.
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

    # -- read by the parent

    @property
    def pulse(self) -> int:
        """A number that changes as long as the child makes progress."""
        return self._head[_PULSE]

    @property
    def threads_held(self) -> int:
        """Number of threads held by abandoned callbacks."""
        return self._head[_HELD]

    def turn(self) -> int | None:
        """Return the activation whose code was executing, if any."""
        turn = self._head[_TURN]
        return None if turn == _NONE else turn

    def starting(self) -> list[AttemptStarted]:
        """Return the attempts that were recorded last."""
        data = self._map[_HEAD : _HEAD + self._head[_LENGTH]]
        # The child's code can also write garbage here.
        with contextlib.suppress(msgspec.DecodeError):
            return _DECODER.decode(data) if data else []
        return []

    def crash_report(self) -> str:
        """Return the stacks of all threads if the child aborted or crashed, else an empty text."""
        return os.pread(self.descriptor, _REPORT_MAX, _SIZE).decode(errors="replace").rstrip()


def crash_location(report: str) -> str:
    """Return the author's line in a crash report, preferring the crashed thread.

    Args:
        report: Text of `CrashRecord.crash_report`.

    Returns:
        `file, line n, in function`, or an empty text if there is no such line.
    """
    threads = [thread.partition("\n")[::2] for thread in _THREAD.split(report)[1:]]
    threads.sort(key=lambda thread: "Current" not in thread[0])
    for _, frames in threads:
        for file, line, function in _FRAME.findall(frames):
            if not file.startswith(_OTHERS):
                return f"{file}, line {line}, in {function}"
    return ""
