"""Mends faults of aiokafka's, by which what reads or writes stops, or waits, without a word.

Broken connections, on uvloop: a connection that the broker has dropped may be written to once more
before aiokafka has seen its end. The transports of asyncio let that pass; those of uvloop raise
RuntimeError. aiokafka takes it for a bug, and ends the task that fetches, or sends, for good:
`getmany` gives nothing ever after, and nobody is told. Here it becomes what it is: a connection
that is broken, and made again.

Starting and stopping: whoever is cancelled meanwhile, or meets an error while it stops a client,
leaves connections open and tasks running, which nothing ends any more. A `stop` may lose the
cancellation of whoever awaits it, to a task of the client's that ends just then; and one that finds
a fetch at rest after a failure ends them as if they had been cancelled. Here all of it ends, and
who is cancelled is whoever was.

Closing a connection over TLS: `stop` waits until the broker has said goodbye, too, which asyncio
gives it 30 seconds for; so long a takeover would rest. Here it gets one second.

Partitions without a leader: while a producer has records for one, it asks for leaders without a
pause, and sends nothing to anybody before it is answered, which takes half a minute if it asks a
broker that stands still. Here it asks now and then, and sends meanwhile.

Fetches of idle partitions: a consumer has one fetch under way to a broker, and a partition whose
records were being worked on waits for the end of one that began without it. Here the broker may
hold such a fetch for a moment only. One that asks for all partitions may take as long as its
consumer says: whichever of them gets a record ends it.

What a fetch gives: its records are counted, not their bytes, and it is limited by what they take
in the log. Text of which much is alike takes a thousandth of itself there: a hundred deliveries of
the largest size would be unpacked together, a gigabyte. Here a partition gives so many bytes at a
time, or one record, and the rest with the next call.

Making connections: a client makes one at a time. While it waits for a broker that stands still, it
connects to no other, whatever has to be sent there. Here it makes one at a time to each broker; one
that is made when its client has been closed is closed, too.

Finding no broker: the error names the addresses alone; why, it leaves to the log. A wrong password
is then not told from a broker that is away. Here the error also says why.

Tokens: a broker that refuses one says so in an answer that is no error. aiokafka takes it for a
yes, and waits for its next answer until it gives up. Here it is the refusal that it is.

Compressing: see `streams.kafka.zstd`. When a membership was confirmed: see
`streams.kafka.group_confirmations`. Logs that lost their end: see `streams.kafka.truncation`
and `streams.kafka.committed`.
"""

import asyncio
import contextlib
import ssl
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.conn import AIOKafkaConnection, CloseReason, OAuthAuthenticator
from aiokafka.consumer.fetcher import Fetcher, FetchResult
from aiokafka.errors import KafkaConnectionError, KafkaError, SaslAuthenticationFailed
from aiokafka.producer.sender import Sender

from headwater.streams.kafka.committed import commit_leader_epochs
from headwater.streams.kafka.group_confirmations import note_confirmations
from headwater.streams.kafka.static_members import mend_static_members
from headwater.streams.kafka.truncation import detect_truncation
from headwater.streams.kafka.zstd import use_contexts_again

#: Why the last attempt to connect to a broker failed, by its host and port.
_FAILED: Final[dict[tuple[str, int], str]] = {}

#: Of each client, who makes a connection, by broker and use.
_LOCKS: Final[WeakKeyDictionary[AIOKafkaClient, dict[Any, asyncio.Lock]]] = WeakKeyDictionary()
_CLOSED: Final[WeakSet[AIOKafkaClient]] = WeakSet()

_OTHERWISE: Final = (
    "usual cause: it expects other security, TLS, SASL or the certificate of a client"
)

#: The connections that are made to find the brokers, of a client that looks for them.
_MADE: Final[ContextVar[WeakSet[AIOKafkaConnection] | None]] = ContextVar("made", default=None)

#: How long a broker may hold a fetch that leaves a partition of its consumer out.
_PARTIAL_WAIT_MS: Final = 50

#: Bytes of keys and values, unpacked, that a partition gives at a time: as much as thousands of
#: usual records, and less than some of the largest.
_GIVEN_BYTES: Final = 8 * 1024 * 1024

#: How long a broker gets to say goodbye.
_GOODBYE_S: Final = 1.0

_BOOTSTRAP: Final = AIOKafkaClient.bootstrap
_GET_CONNECTION: Final = AIOKafkaClient._get_conn  # noqa: SLF001
_CONNECT: Final = AIOKafkaConnection.connect
_SEND: Final = AIOKafkaConnection.send
_CLOSE_CONNECTION: Final = AIOKafkaConnection.close
_STEP: Final = OAuthAuthenticator.step
_GET_ACTIONS: Final = Fetcher._get_actions_per_node  # noqa: SLF001
_START_SENDER: Final = Sender.start
_START_CONSUMER: Final = AIOKafkaConsumer.start
_STOP_CONSUMER: Final = AIOKafkaConsumer.stop
_START_PRODUCER: Final = AIOKafkaProducer.start
_STOP_PRODUCER: Final = AIOKafkaProducer.stop


def mend() -> None:
    """Makes it so for all of this process; calling it again changes nothing."""
    AIOKafkaClient.bootstrap = _bootstrap  # type: ignore[method-assign]
    AIOKafkaClient.close = _close_client  # type: ignore[method-assign]
    AIOKafkaClient._get_conn = _get_connection  # type: ignore[method-assign]  # noqa: SLF001
    AIOKafkaClient._get_conn_lock = contextlib.nullcontext()  # type: ignore[assignment]  # noqa: SLF001
    AIOKafkaConnection.connect = _connect  # type: ignore[method-assign]
    AIOKafkaConnection.send = _send  # type: ignore[method-assign]
    AIOKafkaConnection.close = _close_connection  # type: ignore[method-assign]
    OAuthAuthenticator.step = _step  # type: ignore[method-assign]
    Fetcher._get_actions_per_node = _get_actions  # type: ignore[method-assign]  # noqa: SLF001
    FetchResult.getall = _get_all  # type: ignore[method-assign]
    Sender.start = _start_sender  # type: ignore[method-assign]
    AIOKafkaConsumer.start = _start_consumer  # type: ignore[method-assign]
    AIOKafkaConsumer.stop = _stop_consumer  # type: ignore[method-assign]
    AIOKafkaProducer.start = _start_producer  # type: ignore[method-assign]
    AIOKafkaProducer.stop = _stop_producer  # type: ignore[method-assign]
    mend_static_members()
    note_confirmations()
    detect_truncation()
    commit_leader_epochs()
    use_contexts_again()


async def _bootstrap(self: AIOKafkaClient) -> None:
    made: WeakSet[AIOKafkaConnection] = WeakSet()
    making = _MADE.set(made)
    try:
        await _BOOTSTRAP(self)  # type: ignore[no-untyped-call]
    except asyncio.CancelledError:
        for connection in made:
            connection.close(reason=CloseReason.SHUTDOWN)
        raise
    except KafkaConnectionError as error:
        reasons = [
            f"{host}:{port}: {_FAILED.get((host, port), f'it takes no requests; {_OTHERWISE}')}"
            for host, port, _ in self.hosts
        ]
        raise KafkaConnectionError("; ".join(reasons)) from error
    finally:
        _MADE.reset(making)


async def _get_connection(
    self: AIOKafkaClient,
    node_id: int | str,
    *,
    group: ConnectionGroup = ConnectionGroup.DEFAULT,
    no_hint: bool = False,
) -> Any:  # noqa: ANN401 (as aiokafka has it)
    locks = _LOCKS.setdefault(self, defaultdict(asyncio.Lock))
    async with locks[node_id, group]:
        made = await _GET_CONNECTION(self, node_id, group=group, no_hint=no_hint)  # type: ignore[no-untyped-call]
    if made is not None and self in _CLOSED:
        await made.close(reason=CloseReason.SHUTDOWN)
        return None
    return made


async def _close_client(self: AIOKafkaClient) -> None:
    _CLOSED.add(self)
    syncing, self._sync_task = self._sync_task, None
    if syncing is not None:
        syncing.cancel()
    # All of them before anything is waited for: whoever waits may be cancelled.
    closed = [each.close(reason=CloseReason.SHUTDOWN) for each in self._conns.values()]
    if ending := [*filter(None, [syncing]), *closed]:
        await asyncio.wait(ending)


async def _connect(self: AIOKafkaConnection) -> Any:  # noqa: ANN401 (as aiokafka has it)
    where, made = (self.host, self.port), _MADE.get()
    if made is not None:
        made.add(self)
    try:
        connected = await _CONNECT(self)  # type: ignore[no-untyped-call]
    except (KafkaError, OSError) as error:
        _FAILED[where] = _why(error)
        raise
    except ValueError as error:  # a broker that cannot prove that it knows the password
        _FAILED[where] = str(error)
        raise KafkaConnectionError(str(error)) from error
    _FAILED.pop(where, None)
    return connected


def _why(error: Exception) -> str:
    match error:
        case KafkaConnectionError(args=(str(found), *_)) if not found.endswith(" closed"):
            return found
        case ConnectionResetError() | KafkaConnectionError():
            return f"it closed the connection; {_OTHERWISE}"
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


def _get_actions(self: Fetcher, assignment: Any) -> Any:  # noqa: ANN401 (as aiokafka has it)
    wait_ms = self._fetch_max_wait_ms
    states = map(assignment.state_value, assignment.tps)
    if self._records or not all(each.has_valid_position and not each.paused for each in states):
        self._fetch_max_wait_ms = min(wait_ms, _PARTIAL_WAIT_MS)
    try:
        return _GET_ACTIONS(self, assignment)  # type: ignore[no-untyped-call]
    finally:
        self._fetch_max_wait_ms = wait_ms


def _get_all(self: FetchResult, max_records: int | None = None) -> list[Any]:
    found: list[Any] = []
    if not self.check_assignment(self._topic_partition) or not self.has_more():
        return found
    size, is_whole = 0, True
    for record in self._partition_records:
        found.append(record)
        size += record.serialized_key_size + record.serialized_value_size
        if len(found) == max_records or size >= _GIVEN_BYTES:
            is_whole = False
            break
    self._update_position()
    if is_whole:
        self._partition_records = None
    return found


async def _start_sender(self: Sender) -> None:
    accumulator, client = self._message_accumulator, self.client
    drain, loop = accumulator.drain_by_nodes, asyncio.get_running_loop()
    looking = False

    def drain_by_nodes(ignore_nodes: Any, muted_partitions: Any = frozenset()) -> Any:  # noqa: ANN401 (as aiokafka has it)
        nonlocal looking
        nodes, unknown_leaders_exist = drain(ignore_nodes, muted_partitions)
        if unknown_leaders_exist and not looking:
            looking = True
            found = client.force_metadata_update()
            found.add_done_callback(lambda _: loop.call_later(self._retry_backoff, drain_again))
        # Of leaders that are not known the sender would wait for these alone.
        return nodes, False

    def drain_again() -> None:
        nonlocal looking
        looking = False
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
    # In a task of its own: one that awaits tasks that listen to no cancellation loses its own.
    stopping = asyncio.create_task(stopped)
    try:
        await asyncio.wait([stopping])
    finally:
        left = [stopping, *filter(None, tasks())]
        for task in left:
            task.cancel()
        await client.close()
        await asyncio.wait(left, timeout=_GOODBYE_S)
    # Where it was cancelled, that was by aiokafka itself.
    if not stopping.cancelled():
        stopping.result()
