"""Compressing Kafka's batches: aiokafka's own way makes a context for each of them.

That costs some 20 microseconds, to write a batch as to read one, and most batches are small: what
arrives within a millisecond, by partitions. A context that is used again costs a third of that.
"""

import threading
from typing import Final

import zstandard
from aiokafka.record._crecords import default_records

#: Kafka's own default (KIP-390).
_LEVEL: Final = 3


class _Contexts(threading.local):
    """A context must not be in use twice at once: each thread has its own."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=_LEVEL)
        self.decompressor = zstandard.ZstdDecompressor()


_ours: Final = _Contexts()


def compress(payload: bytes | bytearray | memoryview) -> bytes:
    """The frame of a batch's records."""
    return _ours.compressor.compress(payload)


def decompress(frame: bytes | bytearray | memoryview) -> bytes:
    """The records in a frame.

    Shape:  whoever made it may have left out how large they are.
    Errors: ZstdError.
    """
    return _ours.decompressor.decompressobj().decompress(frame)


def use_contexts_again() -> None:
    """Has aiokafka compress so in all of this process; calling it again changes nothing."""
    default_records.zstd_encode = compress  # type: ignore[attr-defined]
    default_records.zstd_decode = decompress  # type: ignore[attr-defined]
