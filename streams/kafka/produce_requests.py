"""Kafka's Produce request and response, and the batches of records in them.

Packed with `struct` and by aiokafka's batch builder, which is written in C. Version 7 of the
request is the first that permits zstd. Source: https://kafka.apache.org/protocol.html
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

#: A key and a value.
KeyValue: TypeAlias = tuple[bytes, bytes]

_PRODUCE: Final = 0
_VERSION: Final = 7
_ALL_REPLICAS: Final = -1
_NO_TRANSACTION: Final = -1
_MAGIC: Final = 2
_NO_PRODUCER: Final = -1

_SIZE: Final = struct.Struct(">i")
#: Key and version of the request, its number, and the length of the client's id.
_HEADER: Final = struct.Struct(">hhih")
#: Length of the transaction's id, acks, timeout, number of topics, and the length of the topic.
_BODY: Final = struct.Struct(">hhiih")
#: Number of a partition, and the length of its batch.
_PARTITION: Final = struct.Struct(">ii")
#: Number of a partition, error code, first offset, time of the append, and start of the log.
_RESULT: Final = struct.Struct(">ihqqq")
#: Number of the request, number of topics, and the length of the topic.
_RESPONSE: Final = struct.Struct(">iih")


class Batch(NamedTuple):
    """Records of a partition that one request appends; `builder` is aiokafka's."""

    builder: Any
    records: int

    def build(self, producer_id: int, producer_epoch: int, sequence: int) -> bytearray:
        """Return the compressed batch. May be called once.

        Args:
            producer_id: Id of the idempotent producer.
            producer_epoch: Epoch of the idempotent producer.
            sequence: Number of the batch's first record among those of producer and partition.
        """
        self.builder.set_producer_state(producer_id, producer_epoch, sequence)
        built: bytearray = self.builder.build()
        return built


class AppendResult(NamedTuple):
    """What a broker answered for a partition; `appended_ms` is -1 unless the broker sets times."""

    partition: int
    error_code: int
    offset: int
    appended_ms: int


def pack_batches(records: Iterable[KeyValue], batch_bytes: int) -> list[Batch]:
    """Pack records into zstd batches of at most this size each; a larger record has its own."""
    batches: list[Batch] = []
    builder, count = _new_builder(batch_bytes), 0
    for key, value in records:
        if builder.append(count, None, key, value, []) is None:
            batches.append(Batch(builder, count))
            builder, count = _new_builder(batch_bytes), 0
            builder.append(count, None, key, value, [])
        count += 1
    batches.append(Batch(builder, count))
    return batches


def _new_builder(batch_bytes: int) -> Any:  # noqa: ANN401 (aiokafka's)
    codec = DefaultRecordBatch.CODEC_ZSTD
    state = (_NO_PRODUCER, _NO_PRODUCER, 0)
    return DefaultRecordBatchBuilder(_MAGIC, codec, 0, *state, batch_bytes)


def produce_request(
    number: int,
    client_id: bytes,
    topic: bytes,
    batches: Sequence[tuple[int, bytearray]],
    timeout_ms: int,
) -> bytes:
    """Return a request with its size: one batch of every partition, for all in-sync replicas.

    Args:
        number: Correlation id, which the response repeats.
        client_id: Name of the client in the broker's logs.
        topic: The topic.
        batches: Partitions, each with its batch.
        timeout_ms: How long the broker may wait for its replicas.
    """
    header = _HEADER.pack(_PRODUCE, _VERSION, number, len(client_id))
    body = _BODY.pack(_NO_TRANSACTION, _ALL_REPLICAS, timeout_ms, 1, len(topic))
    parts: list[bytes | bytearray] = [header, client_id, body, topic, _SIZE.pack(len(batches))]
    for partition, batch in batches:
        parts += (_PARTITION.pack(partition, len(batch)), batch)
    size = sum(map(len, parts))
    return b"".join((_SIZE.pack(size), *parts))


def produce_response(response: bytes) -> tuple[int, list[AppendResult]]:
    """Return the number of the request, and the results of its partitions.

    Args:
        response: A response to a request with one topic, without its size.

    Raises:
        struct.error: It is too short.
    """
    number, topics, length = _RESPONSE.unpack_from(response)
    if topics != 1:
        return number, []
    at = _RESPONSE.size + length
    (count,) = _SIZE.unpack_from(response, at)
    at += _SIZE.size
    end = at + count * _RESULT.size
    results = _RESULT.iter_unpack(memoryview(response)[at:end])
    return number, [AppendResult(*result[:4]) for result in results]
