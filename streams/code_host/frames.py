"""Messages over a socket, the same at both ends.

A frame is its length in 4 bytes and a list of messages in MessagePack. A raw socket is used rather
than a stream of asyncio's, so that what is sent is with the kernel at once: it arrives even if the
sender dies in the next line of an author's code.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

#: Bytes of a frame's length.
_HEADER: Final = 4
#: A read takes at most so much: some thousand small messages, a few milliseconds of work.
_READ_BYTES: Final = 256 * 1024
#: Messages of a frame, each of which may hold a result of 1 MiB: bounds what is encoded at once,
#: and what a host does before it answers. Fewer would cost more appends.
_MESSAGES_MAX: Final = 256
#: Bytes of a frame of several messages.
_FRAME_BYTES: Final = 16 * 1024 * 1024
#: Bytes of a frame of a host: more than any message of one has. A length beyond that was written by
#: code that has written to a descriptor which is not its own.
HOST_FRAME_MAX: Final = 64 * 1024 * 1024
#: What may wait to be sent: room for several of the largest results, little beside an app's memory.
UNSENT_MAX: Final = 8 * 1024 * 1024

#: What is raised for a message that cannot be sent.
UNSENDABLE: Final = (TypeError, ValueError, OverflowError)

_ENCODER: Final = msgspec.msgpack.Encoder()


def frames_of(messages: Sequence[msgspec.Struct]) -> list[bytearray]:
    """The frames that carry these messages, in order."""
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

    Shape:  `received` is called with the bodies of the frames of one read, `ended` once, when the
            other end is closed. An end that `waits` reads nothing while more than UNSENT_MAX is to
            be sent; at most one of the two may, or both could wait for each other. `garbled` is
            called for a frame of more than `frame_max` bytes, of which nothing is kept.
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
        self._room = asyncio.Event()
        self._room.set()
        self._reading = self._paused = self._closed = False
        self._update_reading()

    # -- sending

    @property
    def full(self) -> bool:
        """Whether more than UNSENT_MAX waits to be sent."""
        return not self._room.is_set()

    async def room(self) -> None:
        """Waits until it is no longer full, or closed."""
        await self._room.wait()

    def send(self, messages: Sequence[msgspec.Struct]) -> None:
        """Sends messages, at once as far as the kernel takes them; nothing once it is closed.

        Errors: UNSENDABLE; nothing is sent then.
        """
        for frame in frames_of(messages):
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
            # The other end is gone, as the next read finds too.
            return len(data)

    def _keep(self, data: memoryview) -> None:
        if not self._unsent:
            self._loop.add_writer(self._socket, self._writable)
        self._unsent.append(data)
        self._unsent_bytes += len(data)
        if self._unsent_bytes > UNSENT_MAX:
            self._room.clear()
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
            self._room.set()
            self._update_reading()

    # -- receiving

    def pause_reading(self) -> None:
        """Reads nothing until `resume_reading`; the other end notices when the pipe is full."""
        self._paused = True
        self._update_reading()

    def resume_reading(self) -> None:
        """Reads again."""
        self._paused = False
        self._update_reading()

    def _update_reading(self) -> None:
        """Begins or ends reading, as paused, closed and full ask for."""
        wanted = not (self._paused or self._closed or (self._waits and self.full))
        if wanted and not self._reading:
            self._loop.add_reader(self._socket, self._readable)
        elif self._reading and not wanted:
            self._loop.remove_reader(self._socket)
        self._reading = wanted

    def _readable(self) -> None:
        if self._read() == 0:
            self.close()
            self._ended()

    def _read(self) -> int | None:
        """Reads once and gives how much: 0 at the end, None when nothing is there."""
        try:
            size = self._socket.recv_into(self._buffer)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            return 0
        self._rest += self._buffer[:size]
        self._take()
        return size

    def _take(self) -> None:
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
        """Receives all that waits; that the other end is closed, the next read finds."""
        while self._reading and self._read():
            pass

    def drain(self) -> None:
        """Receives what the other end sent before it died, and closes."""
        while not self._closed and self._read():
            pass
        self.close()

    def close(self) -> None:
        """Closes this end, also when it is closed already."""
        if self._closed:
            return
        self._closed = True
        self._update_reading()
        if self._unsent:
            self._loop.remove_writer(self._socket)
            self._unsent.clear()
        self._socket.close()
        self._room.set()
