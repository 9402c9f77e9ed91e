"""Batches of Kafka are compressed by us, and read whoever has compressed them."""

import os
from concurrent.futures import ThreadPoolExecutor

import cramjam
import pytest
import zstandard
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from headwater.streams.kafka import aiokafka_patches

PAYLOADS = [b"", b"a", b"headwater " * 1_000, os.urandom(3_000_000)]


@pytest.mark.parametrize("payload", PAYLOADS, ids=len)
def test_what_is_compressed_is_read_by_us_and_by_others(payload: bytes):
    frame = aiokafka_patches.compress(payload)
    assert aiokafka_patches.decompress(frame) == payload
    assert bytes(cramjam.zstd.decompress(frame)) == payload


@pytest.mark.parametrize("payload", PAYLOADS[1:], ids=len)
def test_frames_that_do_not_say_how_large_they_are_are_read(payload: bytes):
    stream = zstandard.ZstdCompressor().compressobj()
    frame = stream.compress(payload) + stream.flush()
    assert zstandard.frame_content_size(frame) == -1
    assert aiokafka_patches.decompress(frame) == payload


def test_threads_do_not_share_a_context():
    def there_and_back(number: int) -> bool:
        payload = bytes([number % 256]) * 50_000 + os.urandom(50_000)
        return aiokafka_patches.decompress(aiokafka_patches.compress(payload)) == payload

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(there_and_back, range(400)))


def test_aiokafka_compresses_and_reads_so(monkeypatch: pytest.MonkeyPatch):
    aiokafka_patches.patch_aiokafka()
    requested: list[str] = []
    monkeypatch.setattr(aiokafka_patches, "_ours", _Noted(requested))
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=DefaultRecordBatch.CODEC_ZSTD,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=100_000,
    )
    for offset in range(10):
        builder.append(offset, None, b"key", b"value" * 100, [])
    batch = DefaultRecordBatch(bytes(builder.build()))
    assert [record.value for record in batch] == [b"value" * 100] * 10
    assert requested == ["compressor", "decompressor"]


class _Noted:
    """Contexts that say which of them is used."""

    def __init__(self, asked: list[str]) -> None:
        self._asked = asked

    @property
    def compressor(self) -> zstandard.ZstdCompressor:
        self._asked.append("compressor")
        return zstandard.ZstdCompressor()

    @property
    def decompressor(self) -> zstandard.ZstdDecompressor:
        self._asked.append("decompressor")
        return zstandard.ZstdDecompressor()
