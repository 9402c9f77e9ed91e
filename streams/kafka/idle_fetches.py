"""Fixes to aiokafka's fetches of consumers that have nothing to read.

A consumer has one fetch in flight per broker, which the broker holds until there is a record, or
the time that the consumer allows has passed. The longer it may hold fetches, the less an idle
consumer costs, and records arrive as soon as before. But with aiokafka, other things wait for the
end of a held fetch. So these are changed:

- A partition with records that were being processed waits for the end of a fetch that began without
  it. A broker may hold such a fetch for a short time only.
- A broker answers the requests of a connection in order. Consumers that allow long fetches have a
  connection for them, so that queries of offsets and the first fetch of an assignment need not
  wait. When a fetch is cancelled, its connection is closed.
- A fetch that has another position than its consumer is cancelled: a partition was sought.
- If a fetch ends in the same turn in which a partition is drained, aiokafka takes the broker for
  occupied, and fetches again only after its time-out of 0.2 s. Here it does so in the next turn.
- aiokafka looks for changes five times a second, because not all of them wake it. A consumer that
  allows long fetches looks as often as it fetches, and is woken also by `resume`.
"""

import asyncio
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.conn import CloseReason
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.protocol.fetch import FetchRequest

#: How long a broker may hold the fetches of an idle consumer that lives as long as its process. A
#: log that was cut and has grown to the same length is detected after a fetch (`truncation`).
IDLE_FETCH_MS: Final = 5_000
#: How long a broker may hold a fetch that omits a partition of its consumer.
_PARTIAL_WAIT_MS: Final = 50
#: Consumers that let a broker hold fetches for this long have a connection for them.
_HELD_MS: Final = 1_000
#: Group of the connections for such fetches; aiokafka's own groups are 0 and 1.
_FETCHES: Final[Any] = 2

_GET_ACTIONS: Final = Fetcher._get_actions_per_node  # noqa: SLF001 (aiokafka has no hook there)
_SEND_REQUEST: Final = AIOKafkaClient.send
_RESUME: Final = AIOKafkaConsumer.resume


class _Held(NamedTuple):
    """A fetch that a broker may hold for long, and the task that waits for it."""

    task: asyncio.Task[Any]
    request: FetchRequest


#: By client and broker.
_HELD: Final[WeakKeyDictionary[AIOKafkaClient, dict[Any, _Held]]] = WeakKeyDictionary()


def hold_fetches() -> None:
    """Patch aiokafka for all of this process; calling it again changes nothing."""
    Fetcher._get_actions_per_node = _get_actions  # type: ignore[method-assign]  # noqa: SLF001
    AIOKafkaClient.send = _send_request  # type: ignore[method-assign]
    AIOKafkaConsumer.resume = _resume  # type: ignore[method-assign]


def _get_actions(self: Fetcher, assignment: Any) -> Any:  # noqa: ANN401 (as aiokafka has it)
    wait_ms = self._fetch_max_wait_ms
    is_held = wait_ms >= _HELD_MS
    if is_held:
        self._fetcher_timeout = wait_ms / 1_000
        _abandon_outdated(self, assignment)
    states = map(assignment.state_value, assignment.tps)
    if self._records or not all(state.has_valid_position and not state.paused for state in states):
        self._fetch_max_wait_ms = min(wait_ms, _PARTIAL_WAIT_MS)
    try:
        actions = _GET_ACTIONS(self, assignment)  # type: ignore[no-untyped-call]
    finally:
        self._fetch_max_wait_ms = wait_ms
    requests, resets, timeout_s, invalid_metadata, resumed = actions
    for _, request in requests:
        request.has_own_connection = is_held
    if len(self._in_flight) > len(self._pending_tasks):
        timeout_s = 0  # A fetch has ended, but its broker becomes free in the next turn only.
    return requests, resets, timeout_s, invalid_metadata, resumed


async def _send_request(
    self: AIOKafkaClient,
    node_id: Any,  # noqa: ANN401 (as aiokafka has it)
    request: Any,  # noqa: ANN401
    *,
    group: ConnectionGroup = ConnectionGroup.DEFAULT,
) -> Any:  # noqa: ANN401
    if not (isinstance(request, FetchRequest) and getattr(request, "has_own_connection", False)):
        return await _SEND_REQUEST(self, node_id, request, group=group)  # type: ignore[no-untyped-call]
    task = asyncio.current_task()
    if task is not None and request._max_wait_ms >= _HELD_MS:  # noqa: SLF001
        _HELD.setdefault(self, {})[node_id] = _Held(task, request)
    try:
        return await _SEND_REQUEST(self, node_id, request, group=_FETCHES)  # type: ignore[no-untyped-call]
    except asyncio.CancelledError:
        # The broker would answer the next request only after this one.
        connection = self._conns.pop((node_id, _FETCHES), None)
        if connection is not None:
            connection.close(reason=CloseReason.SHUTDOWN)
        raise
    finally:
        _HELD.get(self, {}).pop(node_id, None)


def _abandon_outdated(fetcher: Fetcher, assignment: Any) -> None:  # noqa: ANN401 (aiokafka's)
    """Cancel held fetches that lack a partition, or have another position of it."""
    for node_id, (task, request) in _HELD.get(fetcher._client, {}).items():  # noqa: SLF001
        offsets = {
            (topic, number): offset
            for topic, partitions in request.topics
            for number, offset, _ in partitions
        }
        for tp in assignment.tps:
            state = assignment.state_value(tp)
            if fetcher._client.cluster.leader_for_partition(tp) != node_id:  # noqa: SLF001
                continue
            if state.has_valid_position and (state.paused or tp in fetcher._records):  # noqa: SLF001
                continue
            if not state.has_valid_position or offsets.get(tp) != state.position:
                task.cancel()
                break


def _resume(self: AIOKafkaConsumer, *partitions: TopicPartition) -> None:
    _RESUME(self, *partitions)  # type: ignore[no-untyped-call]
    # A fetch that began without them would keep aiokafka from noticing.
    fetcher = self._fetcher
    if fetcher is not None:
        fetcher._notify(fetcher._wait_consume_future)  # noqa: SLF001
