"""Truncation detection for consumers, which aiokafka lacks (KIP-320).

A broker that lost power, or has a restored disk, may have lost the end of a partition that
consumers have read. While the log ends before the position of a consumer, the broker refuses its
fetches as out of range. But new records get the lost offsets again. Once the log reaches the
position, the consumer continues there, and silently skips the records before it.

Every batch carries the epoch of the leader that appended it, and a leader that appends after a loss
has a higher one. So a fetch that begins with another epoch than the record before it is held
back, and the consumer queries the leader for the end of the earlier epoch (OffsetForLeaderEpoch).
If that is before the position, the log was cut there. A consumer at the end of a log queries its
leader every few seconds, because the log may end there with other records than it has read.

A consumer without `auto_offset_reset`, or for which `raise_when_truncated` was called, raises
LogTruncated, an OffsetOutOfRangeError. Any other consumer seeks to where the log was cut, and logs
the lost offsets.

To keep a position beyond the life of a consumer, store `leader_epoch_of` with it, and resume it by
`seek_with_epoch`; `truncation_before` compares it with the log at once.
"""

import asyncio
import logging
import math
import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.consumer import fetcher as fetching
from aiokafka.consumer.fetcher import Fetcher, FetchError, FetchResult, OffsetResetStrategy
from aiokafka.errors import (
    IncompatibleBrokerVersion,
    KafkaError,
    LeaderNotAvailableError,
    OffsetOutOfRangeError,
    for_code,
)
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Int16, Int32, Int64, Schema, String
from aiokafka.record.memory_records import MemoryRecords
from typing_extensions import override

from headwater.schemas.history import NO_LEADER_EPOCH
from headwater.streams.clock import monotonic

log = logging.getLogger(__name__)

#: End of an epoch that is later than any of the log: the log is another one, or an older copy.
UNKNOWN_END: Final = -1
#: End reported for a broker without that request.
_NO_END: Final = 2**63 - 1
_MAGIC_WITH_EPOCH: Final = 2
#: Length, leader epoch and magic of a batch, after its base offset.
_HEAD: Final = struct.Struct(">iib")
_HEAD_AT: Final = 8
#: Bytes of a batch that its length field omits.
_UNCOUNTED: Final = 12
#: Metadata's leader of a partition that has none.
_NO_NODE: Final = (None, -1)
#: How often the leader of a partition is queried while fetches return nothing. If as many records
#: were appended as were lost, they wait for at most this long. A consumer fetches far more often.
_QUERY_EVERY_S: Final = 3.0
#: Fields of a request that is not a broker's, and does not know the leader epoch.
_CONSUMER: Final = -1

_FETCH: Final = Fetcher._proc_fetch_request  # noqa: SLF001 (aiokafka has no hook there)
_MOVE: Final = FetchResult._update_position  # noqa: SLF001


class LogTruncated(OffsetOutOfRangeError):
    """A partition lost records that its consumer has read.

    As with OffsetOutOfRangeError, the first argument has the position by partition.
    """


class Read(NamedTuple):
    """Up to where a consumer has read a partition, and an epoch of a leader.

    The epoch is that of the last record before the position, or a later one that existed before
    the log was cut: both end at the same offset of a truncated log.
    """

    position: int
    leader_epoch: int


#: By the state that aiokafka keeps of an assigned partition.
_READ: Final[WeakKeyDictionary[Any, Read]] = WeakKeyDictionary()
#: When its leader was last queried.
_QUERIED_S: Final[WeakKeyDictionary[Any, float]] = WeakKeyDictionary()


#: Subscriptions of consumers that must not seek back by themselves.
_STRICT: Final[WeakSet[Any]] = WeakSet()


def detect_truncation() -> None:
    """Make all consumers of this process detect it; calling it again changes nothing."""
    fetching.MemoryRecords = _Batches  # type: ignore[attr-defined]
    FetchResult._update_position = _update_position  # type: ignore[method-assign] # noqa: SLF001
    Fetcher._proc_fetch_request = _proc_fetch_request  # type: ignore[method-assign] # noqa: SLF001


def raise_when_truncated(consumer: AIOKafkaConsumer) -> None:
    """Make a consumer raise LogTruncated, whatever it does about other offsets out of range."""
    _STRICT.add(consumer._subscription)  # noqa: SLF001


# -- positions that outlive a consumer


def leader_epoch_of(consumer: AIOKafkaConsumer, tp: TopicPartition) -> int:
    """Return the leader epoch of the record before a position, if anything was read."""
    state = _state(consumer, tp)
    read = None if state is None else _READ.get(state)
    return NO_LEADER_EPOCH if read is None else read.leader_epoch


def read_up_to(assignment: Any, tp: TopicPartition) -> Read | None:  # noqa: ANN401 (aiokafka's)
    """Return up to where a partition of an assignment was read; None if nothing of it was."""
    state = assignment.state_value(tp)
    return None if state is None else _READ.get(state)


def seek_with_epoch(
    consumer: AIOKafkaConsumer,
    tp: TopicPartition,
    offset: int,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> None:
    """Seek to an offset before which records were read in a leader epoch, if that is known.

    Raises:
        IllegalStateError: The partition is not assigned.
    """
    consumer.seek(tp, offset)
    if leader_epoch == NO_LEADER_EPOCH:
        _READ.pop(_state(consumer, tp), None)
    else:
        _READ[_state(consumer, tp)] = Read(offset, leader_epoch)


async def truncation_before(
    consumer: AIOKafkaConsumer, tp: TopicPartition, offset: int, leader_epoch: int
) -> int | None:
    """Query the leader of a partition whether its log still has what was read of it.

    Args:
        consumer: A consumer to which the partition is assigned.
        tp: The partition.
        offset: Up to where it was read.
        leader_epoch: Value of `leader_epoch_of` at that offset.

    Returns:
        The offset at which the log was cut; None if it has everything; UNKNOWN_END if it is
        another log, or an older copy: it has no leader epoch that began after a loss.

    Raises:
        KafkaError: The leader does not answer.
    """
    client = consumer._client  # noqa: SLF001 (there is no other way to send a request)
    node = client.cluster.leader_for_partition(tp)
    if node in _NO_NODE:
        await client.force_metadata_update()
        node = client.cluster.leader_for_partition(tp)
    read = {tp: Read(offset, leader_epoch)}
    cuts = {} if node in _NO_NODE else await _cuts(client, node, read)
    if tp not in cuts:
        client.force_metadata_update()
        raise LeaderNotAvailableError(str(tp))
    return cuts[tp]


def _state(consumer: AIOKafkaConsumer, tp: TopicPartition) -> Any:  # noqa: ANN401 (aiokafka's)
    """Return the state of a partition; None if it is not assigned."""
    subscription: Any = consumer._subscription.subscription  # noqa: SLF001
    assignment = None if subscription is None else subscription.assignment
    return None if assignment is None else assignment.state_value(tp)


# -- fetches


class _Batches:
    """The batches of a fetch, like `MemoryRecords`, with their leader epochs."""

    def __init__(self, data: bytes) -> None:
        self._records = MemoryRecords(data)
        self._data = data
        self._next_at = 0
        #: Of the batch that `next_batch` returned last; of the first one until then.
        self.leader_epoch = self._read_head()[1] if self.has_next() else NO_LEADER_EPOCH

    def size_in_bytes(self) -> int:
        return self._records.size_in_bytes()

    def has_next(self) -> bool:
        return self._records.has_next()

    def next_batch(self) -> Any:  # noqa: ANN401 (as aiokafka has it)
        batch = self._records.next_batch()
        length, self.leader_epoch = self._read_head()
        self._next_at += _UNCOUNTED + length
        return batch

    def _read_head(self) -> tuple[int, int]:
        length, epoch, magic = _HEAD.unpack_from(self._data, self._next_at + _HEAD_AT)
        return length, epoch if magic >= _MAGIC_WITH_EPOCH else NO_LEADER_EPOCH


def _update_position(self: FetchResult) -> None:
    _MOVE(self)  # type: ignore[no-untyped-call]
    records = self._partition_records
    state = self._assignment.state_value(self._topic_partition)
    _READ[state] = Read(records.next_fetch_offset, _epoch(records))


def _epoch(records: Any) -> int:  # noqa: ANN401 (PartitionRecords)
    """Return the leader epoch of the record that was taken last, or of the first one."""
    batches = records._records  # noqa: SLF001
    return batches.leader_epoch if isinstance(batches, _Batches) else NO_LEADER_EPOCH


class _Doubt(NamedTuple):
    """A partition that may have been cut: what was read, and what was fetched after it."""

    read: Read
    held: FetchResult | None


async def _proc_fetch_request(self: Fetcher, assignment: Any, node_id: Any, request: Any) -> Any:  # noqa: ANN401 (as aiokafka has it)
    has_data = await _FETCH(self, assignment, node_id, request)  # type: ignore[no-untyped-call]
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        # aiokafka's fetch swallows that. A question would wait for as long as the broker holds
        # back the answer to that fetch, and the consumer's end for the question.
        return False
    # Held back until it is known whether they follow what was read.
    doubts = _take_doubtful(self, assignment, request) if assignment.active else {}
    if not doubts:
        return has_data
    if has_data:  # Other partitions need not wait for the leader's answer.
        for waiter in self._fetch_waiters:
            self._notify(waiter)
    try:
        read = {tp: doubt.read for tp, doubt in doubts.items()}
        cuts = await _cuts(self._client, node_id, read)
    except KafkaError as error:
        log.warning("fetched records wait for the leader's answer where its epochs end: %r", error)
        await asyncio.sleep(self._retry_backoff)
        return has_data
    except asyncio.CancelledError:  # The client is closed, or has another assignment: as aiokafka.
        return False
    for tp, cut in cuts.items() if assignment.active else ():
        has_data |= _decide(self, assignment.state_value(tp), tp, doubts[tp], cut)
    return has_data  # What has no answer is fetched again.


def _take_doubtful(
    fetcher: Fetcher,
    assignment: Any,  # noqa: ANN401 (aiokafka's)
    request: Any,  # noqa: ANN401
) -> dict[TopicPartition, _Doubt]:
    """Remove results with another leader epoch than the record read before them."""
    doubts = {}
    for topic, partitions in request.topics:
        for number, offset, _ in partitions:
            tp = TopicPartition(topic, number)
            state = assignment.state_value(tp)
            read, result = _READ.get(state), fetcher._records.get(tp)  # noqa: SLF001
            if read is None or offset > read.position or read.leader_epoch == NO_LEADER_EPOCH:
                continue
            if type(result) is FetchResult:
                epoch = _epoch(result._partition_records)  # noqa: SLF001
                if epoch not in {read.leader_epoch, NO_LEADER_EPOCH}:
                    del fetcher._records[tp]  # noqa: SLF001
                    doubts[tp] = _Doubt(Read(offset, read.leader_epoch), result)
            elif result is None and (state.awaiting_reset or _is_due(state)):
                # It was out of range, or is at the end.
                doubts[tp] = _Doubt(Read(offset, read.leader_epoch), None)
    return doubts


def _is_due(state: Any) -> bool:  # noqa: ANN401 (aiokafka's)
    now_s = monotonic()
    due = now_s - _QUERIED_S.get(state, -math.inf) >= _QUERY_EVERY_S
    if due:
        _QUERIED_S[state] = now_s
    return due


def _decide(
    fetcher: Fetcher,
    state: Any,  # noqa: ANN401 (aiokafka's)
    tp: TopicPartition,
    doubt: _Doubt,
    cut: int | None,
) -> bool:
    """Return what was held back to the consumer, or seek to where the log was cut.

    Returns:
        Whether there are records to return.
    """
    (offset, leader_epoch), held = doubt
    if state.has_valid_position and state.position != offset:
        return False  # The user has sought meanwhile.
    if cut is None:
        if held is not None:
            fetcher._records[tp] = held  # noqa: SLF001
        return held is not None
    first = "an unknown one" if cut == UNKNOWN_END else cut
    lost = f"{tp.topic}/{tp.partition} from offset {first} to {offset - 1}"
    strategy = fetcher._default_reset_strategy  # noqa: SLF001
    if strategy == OffsetResetStrategy.NONE or fetcher._subscriptions in _STRICT:  # noqa: SLF001
        state.seek(offset)  # aiokafka would reset the position elsewhere.
        error = LogTruncated({tp: offset}, f"the broker has lost {lost}, which was read")
        backoff = fetcher._prefetch_backoff  # noqa: SLF001
        fetcher._records[tp] = FetchError(error=error, backoff=backoff)  # noqa: SLF001
        return True
    log.error("the broker has lost %s, which was read: continuing from there", lost)
    if cut == UNKNOWN_END:
        _READ.pop(state, None)
        state.await_reset(strategy)
    else:
        _READ[state] = Read(cut, leader_epoch)
        state.seek(cut)
    return False


# -- queries to a leader


class _Response(Response):
    API_KEY = 23
    API_VERSION = 3
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            Array(
                ("topic", String("utf-8")),
                (
                    "partitions",
                    Array(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader_epoch", Int32),
                        ("end_offset", Int64),
                    ),
                ),
            ),
        ),
    )


class _Request(RequestStruct):
    API_KEY = 23
    API_VERSION = 3
    RESPONSE_TYPE = _Response
    SCHEMA = Schema(
        ("replica_id", Int32),
        (
            "topics",
            Array(
                ("topic", String("utf-8")),
                (
                    "partitions",
                    Array(
                        ("partition", Int32),
                        ("current_leader_epoch", Int32),
                        ("leader_epoch", Int32),
                    ),
                ),
            ),
        ),
    )


class _OffsetForLeaderEpoch(Request[_Request]):
    API_KEY = 23

    def __init__(self, epochs: Mapping[TopicPartition, int]) -> None:
        self._epochs = epochs

    @override
    def build(self, request_struct_class: type[_Request]) -> _Request:
        topics = [
            (tp.topic, [(tp.partition, _CONSUMER, epoch)]) for tp, epoch in self._epochs.items()
        ]
        return request_struct_class(_CONSUMER, topics)


async def _cuts(
    client: AIOKafkaClient, node: int | str, read: Mapping[TopicPartition, Read]
) -> dict[TopicPartition, int | None]:
    """Query a leader where partitions were cut; see `truncation_before`.

    Returns:
        Offsets of the partitions that it leads; None for those that were not cut.

    Raises:
        KafkaError: The broker does not answer, or refuses.
    """
    epochs = {tp: position.leader_epoch for tp, position in read.items()}
    ends = await _ends(client, node, epochs)
    cuts = {tp: end if end < read[tp].position else None for tp, end in ends.items()}
    # A leader that appends after a loss has a later epoch. Without one, the log is another one.
    cut = {tp: read[tp].leader_epoch + 1 for tp, end in cuts.items() if end is not None}
    later = await _ends(client, node, cut) if cut else {}
    for tp in cut:
        if tp not in later:
            del cuts[tp]
        elif later[tp] == UNKNOWN_END:
            cuts[tp] = UNKNOWN_END
    return cuts


async def _ends(
    client: AIOKafkaClient, node: int | str, epochs: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Query where epochs end, or the last one before them; omits partitions it does not lead.

    Raises:
        KafkaError: The broker does not answer, or refuses.
    """
    try:
        response = await client.send(node, _OffsetForLeaderEpoch(epochs))
    except (IncompatibleBrokerVersion, NotImplementedError):  # Kafka before 2.3
        return dict.fromkeys(epochs, _NO_END)
    ends: dict[TopicPartition, int] = {}
    for topic, partitions in response.topics:
        for code, number, _, end in partitions:
            if code == 0:
                ends[TopicPartition(topic, number)] = end
            elif not for_code(code).retriable:
                raise for_code(code)(f"{topic}/{number}")
    return ends
