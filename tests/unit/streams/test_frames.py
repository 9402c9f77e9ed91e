"""Frames between a worker and its hosts."""

import asyncio
import socket

from headwater.processors.code.host_messages import Log
from headwater.processors.runs.host_messages import Requested
from headwater.streams.code_host.host_channel import HOST_FRAME_MAX, Pipe, encode_frames


def line(text: str) -> Requested[Log]:
    return Requested(1, Log("info", "workflow", text, None, None, None, is_replay=False))


def test_large_messages_are_in_frames_of_a_bounded_size():
    messages = [line("x" * 3_000_000) for _ in range(12)]
    frames = encode_frames(messages)
    assert len(frames) > 1
    assert max(map(len, frames)) < 20_000_000
    assert sum(map(len, frames)) > 36_000_000


def test_small_messages_share_a_frame():
    assert len(encode_frames([line("x")] * 256)) == 1


def test_a_length_that_no_frame_has_is_reported_and_nothing_is_kept_for_it():
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        frames: list[bytearray] = []
        garbled = asyncio.Event()
        pipe = Pipe(
            ours,
            received=frames.extend,
            ended=lambda: None,
            waits=False,
            frame_max=HOST_FRAME_MAX,
            garbled=garbled.set,
        )
        theirs.setblocking(False)
        (good,) = encode_frames([line("x")])
        too_long = (HOST_FRAME_MAX + 1).to_bytes(4, "big")
        await loop.sock_sendall(theirs, bytes(good) + too_long + b"garbage")
        async with asyncio.timeout(10):
            await garbled.wait()
        assert frames == [good[4:]]
        theirs.close()
        pipe.close()

    asyncio.run(scenario())
