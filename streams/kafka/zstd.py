"""Compression of Kafka's batches with reused contexts; aiokafka creates one for each batch.

That costs some 20 microseconds, to write a batch as to read one, and most batches are small: the
records of a millisecond, per partition. A reused context costs a third of that.
"""

import threading
from typing import Final

import zstandard
from aiokafka.record._crecords import default_records

#: Kafka's own default (KIP-390).
_LEVEL: Final = 3


class _Contexts(threading.local):
    """Contexts per thread, because one must not be used twice at once."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=_LEVEL)
        self.decompressor = zstandard.ZstdDecompressor()


_ours: Final = _Contexts()


def compress(payload: bytes | bytearray | memoryview) -> bytes:
    """Return the compressed frame of a batch's records."""
    return _ours.compressor.compress(payload)


def decompress(frame: bytes | bytearray | memoryview) -> bytes:
    """Return the records of a frame; its header may omit their size.

    Raises:
        ZstdError: The frame is invalid.
    """
    return _ours.decompressor.decompressobj().decompress(frame)


def reuse_zstd_contexts() -> None:
    """Patch aiokafka for all of this process; calling it again changes nothing."""
    default_records.zstd_encode = compress  # type: ignore[attr-defined]
    default_records.zstd_decode = decompress  # type: ignore[attr-defined]
