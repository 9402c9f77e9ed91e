"""Requests that are packed here are those that aiokafka's producer would send, byte for byte."""

import struct
from typing import Any

import pytest
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.protocol.produce import ProduceRequest_v7, ProduceResponse_v7
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.streams.kafka.appender import _pack
from headwater.streams.kafka.produce_requests import (
    AppendResult,
    pack_batches,
    produce_request,
    produce_response,
)
from headwater.streams.kafka.records import Outgoing

LONGS = st.integers(-(2**63), 2**63 - 1)
INTS = st.integers(0, 2**31 - 1)
RECORDS = st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=400)), min_size=1)
BATCH_BYTES = 1_000


class Producer:
    """What the ordinary path needs of aiokafka's producer."""

    def create_batch(self) -> BatchBuilder:
        return BatchBuilder(BATCH_BYTES, DefaultRecordBatch.CODEC_ZSTD)


def parts(batch: bytes) -> tuple[Any, ...]:
    """All that is in a batch, but for its times."""
    read = DefaultRecordBatch(bytes(batch))
    assert read.validate_crc()
    header = (read.magic, read.attributes, read.timestamp_type, read.compression_type)
    producer = (read.producer_id, read.producer_epoch, read.base_sequence, read.last_offset_delta)
    records = [(r.offset, r.key, r.value, r.headers) for r in DefaultRecordBatch(bytes(batch))]
    return header, producer, records, abs(read.max_timestamp - read.first_timestamp) < 60_000


@given(records=RECORDS, producer=st.tuples(LONGS, st.integers(0, 2**15 - 1), INTS))
@settings(deadline=None)
def test_batches_are_those_of_the_ordinary_producer(
    records: list[tuple[bytes, bytes]], producer: tuple[int, int, int]
):
    ordinary = _pack(Producer(), [Outgoing("t", 0, key, value) for key, value in records])  # type: ignore[arg-type]
    for builder, _ in ordinary:
        builder._set_producer_state(*producer)
    batches = pack_batches(records, BATCH_BYTES)
    assert [batch.records for batch in batches] == [count for _, count in ordinary]
    assert sum(batch.records for batch in batches) == len(records)
    assert [parts(batch.build(*producer)) for batch in batches] == [
        parts(builder._build()) for builder, _ in ordinary
    ]


def test_a_record_that_is_larger_than_a_batch_has_one_of_its_own():
    large = b"x" * 5 * BATCH_BYTES
    batches = pack_batches([(b"a", b"1"), (b"b", large), (b"c", b"2")], BATCH_BYTES)
    assert [batch.records for batch in batches] == [1, 1, 1]


@given(
    number=INTS,
    client_id=st.text(max_size=20),
    topic=st.text(max_size=20),
    batches=st.lists(st.tuples(INTS, st.binary(max_size=50)), max_size=4),
    timeout_ms=INTS,
)
def test_requests_are_those_of_the_ordinary_producer(
    number: int, client_id: str, topic: str, batches: list[tuple[int, bytes]], timeout_ms: int
):
    request = ProduceRequest_v7(None, -1, timeout_ms, [(topic, batches)])
    header = request.build_request_header(correlation_id=number, client_id=client_id)
    body = header.encode() + request.encode()
    mine = produce_request(
        number,
        client_id.encode(),
        topic.encode(),
        [(partition, bytearray(batch)) for partition, batch in batches],
        timeout_ms,
    )
    assert mine == struct.pack(">i", len(body)) + body


@given(
    number=INTS,
    topic=st.text(max_size=20),
    results=st.lists(st.tuples(INTS, st.integers(-1, 120), LONGS, LONGS, LONGS), max_size=4),
)
def test_responses_are_read_as_by_the_ordinary_producer(
    number: int, topic: str, results: list[tuple[int, int, int, int, int]]
):
    response = ProduceResponse_v7([(topic, results)], 7).encode()
    expected = [AppendResult(*result[:4]) for result in results]
    assert produce_response(struct.pack(">i", number) + response) == (number, expected)


@pytest.mark.parametrize("topics", [0, 2])
def test_a_response_for_other_topics_has_no_results(topics: int):
    response = ProduceResponse_v7([("t", [(0, 0, 1, 2, 3)])] * topics, 0).encode()
    assert produce_response(struct.pack(">i", 5) + response) == (5, [])


def test_a_response_that_is_cut_off_is_not_read():
    with pytest.raises(struct.error):
        produce_response(b"\0\0\0\1\0")
