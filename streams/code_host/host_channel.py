"""Channel between a worker and its code host: framed messages, and a shared crash record.

A frame is its length in 4 bytes followed by a list of messages in MessagePack. A raw socket is used
rather than an asyncio stream, so that sent data is passed to the kernel at once: it arrives even if
the next line of an author's code kills the sender.
"""

import asyncio
import contextlib
import mmap
import os
import re
import socket
import sysconfig
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from headwater.processors.runs.host_messages import AttemptStarted
from headwater.streams.ownership.deadlines import anonymous_file

#: Bytes of a frame's length.
_HEADER: Final = 4
#: Largest read: some thousand small messages, a few milliseconds of work.
_READ_BYTES: Final = 256 * 1024
#: Messages in a frame. A message may hold a result of 1 MiB. Bounds what is encoded at once,
#: and what a host handles before it responds. A lower limit would cost more appends.
_MESSAGES_MAX: Final = 256
#: Bytes of a frame with several messages.
_FRAME_BYTES: Final = 16 * 1024 * 1024
#: Largest frame of a host, more than any of its messages. A greater length means that authors' code
#: wrote to a descriptor that is not its own.
HOST_FRAME_MAX: Final = 64 * 1024 * 1024
#: Bytes that may be waiting to be sent: several of the largest results, little next to an app.
UNSENT_MAX: Final = 8 * 1024 * 1024

#: Exceptions raised for a message that cannot be encoded.
UNSENDABLE: Final = (TypeError, ValueError, OverflowError)

_ENCODER: Final = msgspec.msgpack.Encoder()


def encode_frames(messages: Sequence[msgspec.Struct]) -> list[bytearray]:
    """Encode messages as frames, in order."""
    frames: list[bytearray] = []
    for first in range(0, len(messages), _MESSAGES_MAX):
        frames += _framed(messages[first : first + _MESSAGES_MAX])
    return frames


def _framed(messages: Sequence[msgspec.Struct]) -> list[bytearray]:
    frame = bytearray(_HEADER)
    _ENCODER.encode_into(messages, frame, _HEADER)
    if len(frame) > _FRAME_BYTES and len(messages) > 1:
        half = len(messages) // 2
        return [*_framed(messages[:half]), *_framed(messages[half:])]
    frame[:_HEADER] = (len(frame) - _HEADER).to_bytes(_HEADER, "big")
    return [frame]


class Pipe:
    """One end of the connection, on the running event loop.

    Args:
        connection: The socket.
        received: Called with the bodies of the frames of one read.
        ended: Called once, when the other end is closed.
        waits: Whether this end stops reading while more than UNSENT_MAX bytes are unsent. At most
            one of the two ends may do so; otherwise both could wait forever.
        frame_max: Largest frame in bytes.
        garbled: Called for a larger frame. Nothing of it is kept.
    """

    def __init__(
        self,
        connection: socket.socket,
        *,
        received: Callable[[list[bytearray]], None],
        ended: Callable[[], None],
        waits: bool,
        frame_max: int | None = None,
        garbled: Callable[[], None] = lambda: None,
    ) -> None:
        connection.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._socket = connection
        self._received = received
        self._ended = ended
        self._waits = waits
        self._frame_max = frame_max
        self._garbled = garbled
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._rest = bytearray()
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        #: Whether more than UNSENT_MAX bytes are unsent, and not half of them sent since.
        self.full = False
        self._reading = self._paused = self._closed = False
        self._update_reading()

    # -- sending

    def send(self, messages: Sequence[msgspec.Struct]) -> None:
        """Send messages, immediately as far as the kernel accepts them.

        Does nothing when the pipe is closed.

        Raises:
            UNSENDABLE: A message cannot be encoded. Nothing was sent.
        """
        for frame in encode_frames(messages):
            if self._closed:
                return
            sent = 0 if self._unsent else self._try(memoryview(frame))
            if sent < len(frame):
                self._keep(memoryview(frame)[sent:])

    def _try(self, data: memoryview) -> int:
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            # The other end is closed, as the next read will notice.
            return len(data)

    def _keep(self, data: memoryview) -> None:
        if not self._unsent:
            self._loop.add_writer(self._socket, self._writable)
        self._unsent.append(data)
        self._unsent_bytes += len(data)
        if self._unsent_bytes > UNSENT_MAX:
            self.full = True
            self._update_reading()

    def _writable(self) -> None:
        while self._unsent:
            data = self._unsent[0]
            sent = self._try(data)
            self._unsent_bytes -= sent
            if sent < len(data):
                self._unsent[0] = data[sent:]
                break
            self._unsent.popleft()
        if not self._unsent:
            self._loop.remove_writer(self._socket)
        if self.full and self._unsent_bytes <= UNSENT_MAX // 2:
            self.full = False
            self._update_reading()

    # -- receiving

    def pause_reading(self) -> None:
        """Stop reading until `resume_reading`. The other end notices when its buffer is full."""
        self._paused = True
        self._update_reading()

    def resume_reading(self) -> None:
        """Continue reading."""
        self._paused = False
        self._update_reading()

    def _update_reading(self) -> None:
        """Start or stop reading according to `_paused`, `_closed` and `full`."""
        should_read = not (self._paused or self._closed or (self._waits and self.full))
        if should_read and not self._reading:
            self._loop.add_reader(self._socket, self._readable)
        elif self._reading and not should_read:
            self._loop.remove_reader(self._socket)
        self._reading = should_read

    def _readable(self) -> None:
        if self._read() == 0:
            self.close()
            self._ended()

    def _read(self) -> int | None:
        """Read once and return the size: 0 at the end, None if no data is available."""
        try:
            size = self._socket.recv_into(self._buffer)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            return 0
        self._rest += self._buffer[:size]
        self._take_frames()
        return size

    def _take_frames(self) -> None:
        data, start, garbled = self._rest, 0, False
        frames: list[bytearray] = []
        while len(data) - start >= _HEADER:
            size = int.from_bytes(data[start : start + _HEADER], "big")
            if self._frame_max is not None and size > self._frame_max:
                garbled, start = True, len(data)
                break
            end = start + _HEADER + size
            if end > len(data):
                break
            frames.append(data[start + _HEADER : end])
            start = end
        del data[:start]
        if frames:
            self._received(frames)
        if garbled and not self._closed:
            self._garbled()

    def read_waiting(self) -> None:
        """Receive all available data. The end of the stream is left to the next read."""
        while self._reading and self._read():
            pass

    def drain(self) -> None:
        """Receive what the other end sent before it exited, then close."""
        while not self._closed and self._read():
            pass
        self.close()

    def close(self) -> None:
        """Close this end. May be called repeatedly."""
        if self._closed:
            return
        self._closed = True
        self._update_reading()
        if self._unsent:
            self._loop.remove_writer(self._socket)
            self._unsent.clear()
        self._socket.close()
        self.full = False


# -- crash record

#: EX_SOFTWARE of sysexits.h: an error in Headwater; its traceback is in the log.
EXIT_BROKEN: Final = 70
#: Abandoned callbacks hold every thread.
EXIT_NO_THREADS: Final = 71

#: Offsets of the current activation, pulse, data length, and held threads: 8 bytes long.
_TURN, _PULSE, _LENGTH, _HELD = range(4)
_HEAD: Final = 32
#: Space for the attempts that start in one iteration of the loop: some 100 bytes an attempt.
_NOTE_MAX: Final = 1024 * 1024
_SIZE: Final = _HEAD + _NOTE_MAX
_NONE: Final = -1
#: Bytes read of the report of `faulthandler`, enough for several threads.
_REPORT_MAX: Final = 64 * 1024

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
    """The shared memory, mapped by either process.

    A child that is killed, crashes, or is stuck in C code cannot report which run was executing. It
    therefore records that in advance, at no cost, in shared memory. The pulse shows the parent
    whether the child makes progress; a thread of the child could not do this while C code holds the
    interpreter. After the recorded data, Python's `faulthandler` writes the stacks of all threads.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, _SIZE)
        self._head = memoryview(self._map)[:_HEAD].cast("q")

    @classmethod
    def create(cls) -> "CrashRecord":
        """Create a record on an anonymous file."""
        descriptor = anonymous_file("headwater-crash-record", _SIZE)
        # `faulthandler` writes at the current position of the file.
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
        """Return the activation that was executing code, if any."""
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
