"""Workarounds for aiokafka: clients that hang silently, and slow compression.

Broken connections, on uvloop: aiokafka may write to a connection that the broker has dropped before
it notices. Transports of asyncio ignore that; those of uvloop raise RuntimeError. aiokafka takes it
for a bug and ends its fetch or send task for good: `getmany` returns nothing from then on, without
an error. The patch reports a broken connection, which aiokafka reconnects.

Starting and stopping: a start that is cancelled, or a stop that meets an error, leaves connections
open and tasks running. A `stop` may lose the cancellation of its caller to a task of the client
that ends at the same time, and one that meets a failed fetch ends as if it had been cancelled. The
patch closes all of them and cancels only the caller that was cancelled.

Closing a connection over TLS: `stop` also waits for the broker's close notification, for which
asyncio allows 30 seconds. That delays a takeover of partitions. The patch allows one second.

Partitions without a leader: while a producer has records for one, it refreshes metadata without a
pause, and sends nothing to any partition until it has the answer. That takes half a minute if it
queries a broker that is suspended. The patch refreshes at intervals and keeps sending.

Age of metadata: a consumer that starts before the broker knows a topic is assigned nothing of it
until its metadata is refreshed. The patch refreshes metadata without a topic, or without a leader,
every few seconds, and other metadata twice a minute.

Size of a fetch result: aiokafka limits the number of records and their compressed bytes. Repetitive
text compresses to a thousandth: a hundred deliveries of the largest size would be unpacked
together, a gigabyte. With the patch a call returns a limited number of unpacked bytes of a
partition, or one record; the next call returns the rest.

Gaps: `getmany` skips gap records, which only take up the offsets of records that are in another
partition (`GAP_KEY`).

Connecting: a client makes one connection at a time. While it waits for a suspended broker, it
connects to no other. The patch makes one at a time to every broker. A connection that is made after
its client was closed is closed, too.

Offsets of many topics: a consumer that does not know their leaders learns them one topic after
another, with a pause of 0.1 s for each. The patch requests the metadata of all at once.

Errors when no broker is reachable: aiokafka names only the addresses and logs the reason, so that a
wrong password looks like a broker that is down. The patch adds the reason to the error.

Tokens: a broker reports a refused token in a response that is not an error. aiokafka takes it for
success and waits for another response until it times out. The patch raises the refusal.

Compression: see `reuse_zstd_contexts`. Consumer groups, that is the time of the last confirmed
membership, static members and committed epochs: see `streams.kafka.consumer_groups`. Truncated
logs: see `streams.kafka.truncation`. Fetches that a broker holds: see `streams.kafka.idle_fetches`.
"""

import asyncio
import contextlib
import ssl
import threading
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

import zstandard
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.conn import AIOKafkaConnection, CloseReason, OAuthAuthenticator
from aiokafka.consumer.fetcher import Fetcher, FetchResult
from aiokafka.errors import KafkaConnectionError, KafkaError, SaslAuthenticationFailed
from aiokafka.producer.sender import Sender
from aiokafka.record._crecords import default_records

from headwater.schemas.epochs import GAP_KEY
from headwater.streams.kafka.consumer_groups import (
    commit_leader_epochs,
    patch_static_members,
    record_confirmations,
)
from headwater.streams.kafka.idle_fetches import hold_fetches
from headwater.streams.kafka.truncation import detect_truncation

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
    """Patch aiokafka for all of this process; calling it again changes nothing.

    Creating a context costs some 20 microseconds, to write a batch as to read one, and most batches
    are small: the records of a millisecond, per partition. A reused context costs a third of that.
    """
    default_records.zstd_encode = compress  # type: ignore[attr-defined]
    default_records.zstd_decode = decompress  # type: ignore[attr-defined]


# -- clients

#: Why the last attempt to connect to a broker failed, by its host and port.
_FAILED: Final[dict[tuple[str, int], str]] = {}

#: Held while a client makes a connection, by client, broker and connection group.
_LOCKS: Final[WeakKeyDictionary[AIOKafkaClient, dict[Any, asyncio.Lock]]] = WeakKeyDictionary()
_CLOSED: Final[WeakSet[AIOKafkaClient]] = WeakSet()

_USUAL_CAUSE: Final = (
    "usual cause: it expects other security, TLS, SASL or the certificate of a client"
)

#: Connections that a client makes during its bootstrap.
_BOOTSTRAP_CONNECTIONS: Final[ContextVar[WeakSet[AIOKafkaConnection] | None]] = ContextVar(
    "bootstrap_connections", default=None
)

#: How soon a topic or leader that metadata lacks is looked up again, and how old other metadata may
#: be: most errors of a former leader refresh them, but not all.
_INCOMPLETE_AGE_MS: Final = 3_000
_COMPLETE_AGE_MS: Final = 30_000

#: Unpacked bytes of keys and values that a call returns of a partition: as much as thousands of
#: usual records, and less than some of the largest.
_RETURNED_BYTES: Final = 8 * 1024 * 1024

#: How long a broker may take to close a TLS connection.
_GOODBYE_S: Final = 1.0

_BOOTSTRAP: Final = AIOKafkaClient.bootstrap
_GET_CONNECTION: Final = AIOKafkaClient._get_conn  # noqa: SLF001
_UPDATE_METADATA: Final = AIOKafkaClient._metadata_update  # noqa: SLF001
_CONNECT: Final = AIOKafkaConnection.connect
_SEND: Final = AIOKafkaConnection.send
_CLOSE_CONNECTION: Final = AIOKafkaConnection.close
_STEP: Final = OAuthAuthenticator.step
_START_SENDER: Final = Sender.start
_START_CONSUMER: Final = AIOKafkaConsumer.start
_STOP_CONSUMER: Final = AIOKafkaConsumer.stop
_REQUEST_OFFSETS: Final = Fetcher._proc_offset_requests  # noqa: SLF001
_START_PRODUCER: Final = AIOKafkaProducer.start
_STOP_PRODUCER: Final = AIOKafkaProducer.stop


def patch_aiokafka() -> None:
    """Patch aiokafka for all of this process; calling it again changes nothing."""
    AIOKafkaClient.bootstrap = _bootstrap  # type: ignore[method-assign]
    AIOKafkaClient.close = _close_client  # type: ignore[method-assign]
    AIOKafkaClient._get_conn = _get_connection  # type: ignore[method-assign]  # noqa: SLF001
    AIOKafkaClient._get_conn_lock = contextlib.nullcontext()  # type: ignore[assignment]  # noqa: SLF001
    AIOKafkaClient._metadata_update = _update_metadata  # type: ignore[method-assign]  # noqa: SLF001
    AIOKafkaConnection.connect = _connect  # type: ignore[method-assign]
    AIOKafkaConnection.send = _send  # type: ignore[method-assign]
    AIOKafkaConnection.close = _close_connection  # type: ignore[method-assign]
    OAuthAuthenticator.step = _step  # type: ignore[method-assign]
    FetchResult.getall = _get_all  # type: ignore[method-assign]
    Fetcher._proc_offset_requests = _request_offsets  # type: ignore[method-assign]  # noqa: SLF001
    Sender.start = _start_sender  # type: ignore[method-assign]
    AIOKafkaConsumer.start = _start_consumer  # type: ignore[method-assign]
    AIOKafkaConsumer.stop = _stop_consumer  # type: ignore[method-assign]
    AIOKafkaProducer.start = _start_producer  # type: ignore[method-assign]
    AIOKafkaProducer.stop = _stop_producer  # type: ignore[method-assign]
    patch_static_members()
    record_confirmations()
    detect_truncation()
    hold_fetches()
    commit_leader_epochs()
    reuse_zstd_contexts()


async def _bootstrap(self: AIOKafkaClient) -> None:
    connections: WeakSet[AIOKafkaConnection] = WeakSet()
    token = _BOOTSTRAP_CONNECTIONS.set(connections)
    try:
        await _BOOTSTRAP(self)  # type: ignore[no-untyped-call]
    except asyncio.CancelledError:
        for connection in connections:
            connection.close(reason=CloseReason.SHUTDOWN)
        raise
    except KafkaConnectionError as error:
        reasons = [
            f"{host}:{port}: {_FAILED.get((host, port), f'it takes no requests; {_USUAL_CAUSE}')}"
            for host, port, _ in self.hosts
        ]
        raise KafkaConnectionError("; ".join(reasons)) from error
    finally:
        _BOOTSTRAP_CONNECTIONS.reset(token)


async def _get_connection(
    self: AIOKafkaClient,
    node_id: int | str,
    *,
    group: ConnectionGroup = ConnectionGroup.DEFAULT,
    no_hint: bool = False,
) -> Any:  # noqa: ANN401 (as aiokafka has it)
    locks = _LOCKS.setdefault(self, defaultdict(asyncio.Lock))
    async with locks[node_id, group]:
        connection = await _GET_CONNECTION(self, node_id, group=group, no_hint=no_hint)  # type: ignore[no-untyped-call]
    if connection is not None and self in _CLOSED:
        await connection.close(reason=CloseReason.SHUTDOWN)
        return None
    return connection


async def _close_client(self: AIOKafkaClient) -> None:
    _CLOSED.add(self)
    sync_task, self._sync_task = self._sync_task, None
    if sync_task is not None:
        sync_task.cancel()
    # Close all before the first await: the caller may be cancelled while it waits.
    closings = [
        connection.close(reason=CloseReason.SHUTDOWN) for connection in self._conns.values()
    ]
    if pending := [*filter(None, [sync_task]), *closings]:
        await asyncio.wait(pending)


async def _connect(self: AIOKafkaConnection) -> Any:  # noqa: ANN401 (as aiokafka has it)
    address, connections = (self.host, self.port), _BOOTSTRAP_CONNECTIONS.get()
    if connections is not None:
        connections.add(self)
    try:
        connected = await _CONNECT(self)  # type: ignore[no-untyped-call]
    except (KafkaError, OSError) as error:
        _FAILED[address] = _reason(error)
        raise
    except ValueError as error:  # a broker that cannot prove that it knows the password
        _FAILED[address] = str(error)
        raise KafkaConnectionError(str(error)) from error
    _FAILED.pop(address, None)
    return connected


def _reason(error: Exception) -> str:
    match error:
        case KafkaConnectionError(args=(str(message), *_)) if not message.endswith(" closed"):
            return message
        case ConnectionResetError() | KafkaConnectionError():
            return f"it closed the connection; {_USUAL_CAUSE}"
        case ssl.SSLCertVerificationError():
            return f"its certificate is not trusted: {error.verify_message}"
        case ssl.SSLError():
            return f"TLS failed: {error.reason or error}"
        case TimeoutError():
            return "no answer"
        case _:
            return str(error) or repr(error)


async def _step(self: OAuthAuthenticator, payload: bytes | None) -> Any:  # noqa: ANN401 (as aiokafka has it)
    if payload:
        raise SaslAuthenticationFailed(f"the token is refused: {payload.decode(errors='replace')}")
    return await _STEP(self, payload)  # type: ignore[no-untyped-call]


def _send(self: AIOKafkaConnection, request: Any, expect_response: bool = True) -> Any:  # noqa: ANN401 (as aiokafka has it)
    try:
        return _SEND(self, request, expect_response)  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        self.close(reason=CloseReason.CONNECTION_BROKEN)
        raise KafkaConnectionError(
            f"Connection at {self.host}:{self.port} broken: {error}"
        ) from error


def _close_connection(
    self: AIOKafkaConnection,
    reason: CloseReason | None = None,
    exc: BaseException | None = None,
) -> Any:  # noqa: ANN401 (as aiokafka has it)
    writer = self._writer
    closed: Any = _CLOSE_CONNECTION(self, reason, exc)  # type: ignore[no-untyped-call]
    if writer is not None:
        goodbye = self._loop.call_later(_GOODBYE_S, writer.transport.abort)
        closed.add_done_callback(lambda _: goodbye.cancel())
    return closed


async def _update_metadata(self: AIOKafkaClient, cluster: Any, topics: Any) -> Any:  # noqa: ANN401 (as aiokafka has it)
    updated = await _UPDATE_METADATA(self, cluster, topics)  # type: ignore[no-untyped-call]
    if cluster is self.cluster:
        is_complete = all(_has_leaders(cluster, topic) for topic in topics)
        age_ms = _COMPLETE_AGE_MS if is_complete else _INCOMPLETE_AGE_MS
        configured_ms: Any = cluster.config["metadata_max_age_ms"]
        self._metadata_max_age_ms = min(configured_ms, age_ms)
    return updated


def _has_leaders(cluster: Any, topic: str) -> bool:  # noqa: ANN401 (a ClusterMetadata)
    partitions = cluster.partitions_for_topic(topic)
    return bool(partitions) and partitions == cluster.available_partitions_for_topic(topic)


async def _request_offsets(self: Fetcher, timestamps: Any) -> Any:  # noqa: ANN401 (as aiokafka has it)
    for tp in timestamps:
        if self._client.cluster.leader_for_partition(tp) is None:
            self._client.add_topic(tp.topic)
    return await _REQUEST_OFFSETS(self, timestamps)  # type: ignore[no-untyped-call]


def _get_all(self: FetchResult, max_records: int | None = None) -> list[Any]:
    records: list[Any] = []
    if not self.check_assignment(self._topic_partition) or not self.has_more():
        return records
    size, is_whole = 0, True
    for record in self._partition_records:
        if record.key == GAP_KEY:
            continue
        records.append(record)
        size += record.serialized_key_size + record.serialized_value_size
        if len(records) == max_records or size >= _RETURNED_BYTES:
            is_whole = False
            break
    self._update_position()
    if is_whole:
        self._partition_records = None
    return records


async def _start_sender(self: Sender) -> None:
    accumulator, client = self._message_accumulator, self.client
    drain, loop = accumulator.drain_by_nodes, asyncio.get_running_loop()
    refreshing = False

    def drain_by_nodes(ignore_nodes: Any, muted_partitions: Any = frozenset()) -> Any:  # noqa: ANN401 (as aiokafka has it)
        nonlocal refreshing
        nodes, unknown_leaders_exist = drain(ignore_nodes, muted_partitions)
        if unknown_leaders_exist and not refreshing:
            refreshing = True
            refreshed = client.force_metadata_update()
            refreshed.add_done_callback(lambda _: loop.call_later(self._retry_backoff, drain_again))
        # With unknown leaders, the sender would wait for their metadata and send nothing.
        return nodes, False

    def drain_again() -> None:
        nonlocal refreshing
        refreshing = False
        waiter = accumulator.waiter()
        if not waiter.done():
            waiter.set_result(None)

    accumulator.drain_by_nodes = drain_by_nodes
    await _START_SENDER(self)  # type: ignore[no-untyped-call]


async def _start_consumer(self: AIOKafkaConsumer) -> None:
    try:
        await _START_CONSUMER(self)  # type: ignore[no-untyped-call]
    except asyncio.CancelledError:
        await self.stop()
        raise


async def _start_producer(self: AIOKafkaProducer) -> None:
    try:
        await _START_PRODUCER(self)  # type: ignore[no-untyped-call]
    except asyncio.CancelledError:
        await self.stop()
        raise


async def _stop_consumer(self: AIOKafkaConsumer) -> None:
    def tasks() -> Iterator[asyncio.Task[Any] | None]:
        for name in ("_coordination_task", "_heartbeat_task", "_commit_refresh_task"):
            yield getattr(self._coordinator, name, None)
        yield getattr(self._coordinator, "_reset_committed_task", None)
        yield getattr(self._fetcher, "_fetch_task", None)
        yield from getattr(self._fetcher, "_pending_tasks", ())

    await _stop(_STOP_CONSUMER(self), self._client, tasks)  # type: ignore[no-untyped-call]


async def _stop_producer(self: AIOKafkaProducer) -> None:
    stopped = _STOP_PRODUCER(self)  # type: ignore[no-untyped-call]
    await _stop(stopped, self.client, lambda: [self._sender.sender_task])


async def _stop(
    stopped: Coroutine[Any, Any, None],
    client: AIOKafkaClient,
    tasks: Callable[[], Iterable[asyncio.Task[Any] | None]],
) -> None:
    # In a task of its own: awaiting tasks that ignore cancellation would lose the caller's own.
    stopping = asyncio.create_task(stopped)
    try:
        await asyncio.wait([stopping])
    finally:
        left = [stopping, *filter(None, tasks())]
        for task in left:
            task.cancel()
        await client.close()
        await asyncio.wait(left, timeout=_GOODBYE_S)
    # If `stopped` itself was cancelled, aiokafka did it, not the caller.
    if not stopping.cancelled():
        stopping.result()
